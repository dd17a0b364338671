//! Messages: lines for people or, with `--json`, for programs, a status line on a terminal, and
//! counters.
//!
//! All of it is global: a process ships or follows one database. One that ships many says which one
//! a line is [`about`], and has the state of each elsewhere.

use crate::ending::moved;
use crate::secrets::scrubbed;
use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use onewrite_core::text::{printable, printable_json};
use serde_json::{Map, Value};
use std::cell::RefCell;
use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU8, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

static JSON: AtomicBool = AtomicBool::new(false);
static BARS: OnceLock<MultiProgress> = OnceLock::new();
/// Lines of a lesser level are not printed; see [`Level`].
static VERBOSE: AtomicBool = AtomicBool::new(false);
static LEAST: AtomicU8 = AtomicU8::new(0);

thread_local! {
    static ABOUT: RefCell<Option<Arc<str>>> = const { RefCell::new(None) };
}

/// Lines of this thread are about one database until this is dropped.
pub struct About(Option<Arc<str>>);

/// Makes the lines of this thread name a database.
pub fn about(database: &Arc<str>) -> About {
    About(ABOUT.replace(Some(database.clone())))
}

impl Drop for About {
    fn drop(&mut self) {
        ABOUT.set(self.0.take());
    }
}

/// Hides bars: they would be of many databases.
pub fn hide_bars() {
    bars().set_draw_target(ProgressDrawTarget::hidden());
}

/// Makes lines tell of each batch.
pub fn speak_of_batches() {
    VERBOSE.store(true, Relaxed);
}

/// Whether lines tell of each batch.
pub fn is_verbose() -> bool {
    VERBOSE.load(Relaxed)
}

/// Prints lines of this level and above alone.
pub fn speak_from(level: Level) {
    LEAST.store(level as u8, Relaxed);
}

/// Makes lines JSON from now on, and hides bars.
pub fn speak_json() {
    JSON.store(true, Relaxed);
    bars().set_draw_target(ProgressDrawTarget::hidden());
}

/// Whether lines are JSON.
pub fn is_json() -> bool {
    JSON.load(Relaxed)
}

/// All bars of this process; printed lines must not run into them.
pub fn bars() -> &'static MultiProgress {
    BARS.get_or_init(MultiProgress::new)
}

/// The severity of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// Normal.
    Info,
    /// Work goes on, with a fault.
    Warning,
    /// Work ends.
    Error,
}

/// Prints a line to stderr. `event` is a stable name with `fields` for programs; `message` is for
/// people.
pub fn say(level: Level, event: &str, fields: &[(&str, Value)], message: &str) {
    if (level as u8) < LEAST.load(Relaxed) {
        return;
    }
    let about = ABOUT.with_borrow(Clone::clone);
    let line = match (is_json(), about) {
        (true, Some(db)) => {
            let fields = [&[("db", Value::from(&*db))], fields].concat();
            json_line(level, event, &fields, &scrubbed(message), SystemTime::now())
        }
        (true, None) => json_line(level, event, fields, &scrubbed(message), SystemTime::now()),
        (false, Some(db)) => format!("onewrite: {db}: {message}"),
        (false, None) => format!("onewrite: {message}"),
    };
    tell(&line);
}

/// Prints a line to stderr, with control characters escaped. A closed stderr does not stop the
/// work.
pub fn tell(line: &str) {
    let line = scrubbed(line);
    bars().suspend(|| {
        let _nobody_reads = writeln!(io::stderr(), "{}", printable(&line));
    });
}

fn json_line(level: Level, event: &str, fields: &[(&str, Value)], message: &str, now: SystemTime) -> String {
    let level = match level {
        Level::Info => "info",
        Level::Warning => "warning",
        Level::Error => "error",
    };
    let mut line = Map::new();
    line.insert("time".to_owned(), humantime::format_rfc3339_millis(now).to_string().into());
    for (name, text) in [("level", level), ("event", event), ("message", &printable(message))] {
        line.insert(name.to_owned(), text.into());
    }
    for (name, value) in fields {
        let value = value.as_str().map_or_else(|| value.clone(), |text| scrubbed(text).into());
        line.insert((*name).to_owned(), value);
    }
    printable_json(&Value::Object(line).to_string()).into_owned()
}

/// Seconds since then, to a hundredth.
pub fn seconds(since: Instant) -> Value {
    hundredths(since.elapsed()).into()
}

/// The end of a message about work that began then. Work of less than a second leaves it out.
pub fn took(since: Instant) -> String {
    took_so_long(since.elapsed())
}

fn took_so_long(time: Duration) -> String {
    let seconds = time.as_secs_f64();
    if seconds < 1.0 { String::new() } else { format!(". Took {seconds:.1} s") }
}

fn hundredths(time: Duration) -> f64 {
    (time.as_secs_f64() * 100.0).round() / 100.0
}

/// A status line on a terminal.
pub fn status_line() -> ProgressBar {
    let line = bars().add(ProgressBar::new_spinner());
    line.set_style(ProgressStyle::with_template("{msg}").unwrap_or_else(|_| ProgressStyle::default_spinner()));
    line
}

/// A kind of request to a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// Reads a file.
    Get,
    /// Asks whether a file is there.
    Head,
    /// Lists the files of a level.
    List,
    /// Makes a file.
    Put,
    /// Removes a file.
    Delete,
}

impl Request {
    /// The kind, for messages and labels.
    pub fn name(self) -> &'static str {
        KINDS.iter().find(|(of, _)| *of == self).map_or("", |(_, name)| name)
    }

    /// The method by which HTTP asks for it.
    pub fn method(self) -> &'static str {
        match self {
            Request::Get | Request::List => "GET",
            Request::Head => "HEAD",
            Request::Put => "PUT",
            Request::Delete => "DELETE",
        }
    }
}

const KINDS: [(Request, &str); 5] = [
    (Request::Get, "get"),
    (Request::Head, "head"),
    (Request::List, "list"),
    (Request::Put, "put"),
    (Request::Delete, "delete"),
];
/// Kinds of buckets, as Litestream's counters name them.
const REPLICA_TYPES: [&str; 6] = ["s3", "gs", "abs", "sftp", "webdav", "nats"];
const LEVELS: usize = 10;

/// How many commits the store lacks; `None`: that cannot be told.
type Waiting = Box<dyn Fn() -> Option<u64> + Send>;

/// Counters since the process began.
pub struct Counters {
    requests: [AtomicU64; KINDS.len()],
    /// Those to buckets.
    buckets: [[AtomicU64; KINDS.len()]; REPLICA_TYPES.len()],
    retries: AtomicU64,
    slow: AtomicU64,
    errors: AtomicU64,
    files: [AtomicU64; LEVELS],
    bytes: [AtomicU64; LEVELS],
    pages: AtomicU64,
    commits: AtomicU64,
    removed: AtomicU64,
    compared: AtomicU64,
    txid: AtomicU64,
    commits_behind: AtomicU64,
    /// Looks how many commits the store lacks, where they wait for it.
    waiting: Mutex<Option<Waiting>>,
    /// The newest moment at which both sides had the same state, in milliseconds since 1970.
    same_ms: AtomicI64,
}

/// The counters of this process.
pub static COUNTERS: Counters = Counters::new();

/// The time in milliseconds since 1970.
pub fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

impl Counters {
    const fn new() -> Counters {
        Counters {
            requests: [const { AtomicU64::new(0) }; KINDS.len()],
            buckets: [const { [const { AtomicU64::new(0) }; KINDS.len()] }; REPLICA_TYPES.len()],
            retries: AtomicU64::new(0),
            slow: AtomicU64::new(0),
            errors: AtomicU64::new(0),
            files: [const { AtomicU64::new(0) }; LEVELS],
            bytes: [const { AtomicU64::new(0) }; LEVELS],
            pages: AtomicU64::new(0),
            commits: AtomicU64::new(0),
            removed: AtomicU64::new(0),
            compared: AtomicU64::new(0),
            txid: AtomicU64::new(0),
            commits_behind: AtomicU64::new(0),
            waiting: Mutex::new(None),
            same_ms: AtomicI64::new(0),
        }
    }

    /// Counts a request.
    pub fn request(&self, kind: Request) {
        moved();
        count(&self.requests, kind);
    }

    /// Counts a request to a bucket, which is counted as a request besides.
    pub fn bucket(&self, replica_type: &str, kind: Request) {
        for (of, counts) in REPLICA_TYPES.iter().zip(&self.buckets) {
            if *of == replica_type {
                count(counts, kind);
            }
        }
    }

    /// Counts a request that is sent again.
    pub fn retry(&self) {
        self.retries.fetch_add(1, Relaxed);
    }

    /// Counts a request whose answer came late, or not at all.
    pub fn slow(&self) {
        self.slow.fetch_add(1, Relaxed);
    }

    /// Counts a failed look at the database or the store.
    pub fn error(&self) {
        self.errors.fetch_add(1, Relaxed);
    }

    /// Counts a file of `level` that was put into the store, or read from it.
    pub fn file(&self, level: u8, bytes: u64, pages: u32) {
        let level = usize::from(level);
        if let (Some(files), Some(sum)) = (self.files.get(level), self.bytes.get(level)) {
            files.fetch_add(1, Relaxed);
            sum.fetch_add(bytes, Relaxed);
        }
        self.pages.fetch_add(u64::from(pages), Relaxed);
    }

    /// Counts a file removed from the store.
    pub fn removed(&self) {
        self.removed.fetch_add(1, Relaxed);
    }

    /// Counts pages of the database that were read to see whether they have changed.
    pub fn compared(&self, pages: u32) {
        self.compared.fetch_add(pages.into(), Relaxed);
    }

    /// Notes that both sides had the state of transaction `txid` at `time_ms`, `commits` after the
    /// last.
    pub fn same(&self, txid: u64, commits: u32, time_ms: i64) {
        self.txid.store(txid, Relaxed);
        self.commits.fetch_add(u64::from(commits), Relaxed);
        self.commits_behind.store(0, Relaxed);
        let now_ms = now_ms();
        // A time to come is from a clock that was ahead, and does not count.
        let newer = |was: i64| Some(if was > now_ms { time_ms } else { was.max(time_ms) });
        let _set = self.same_ms.fetch_update(Relaxed, Relaxed, newer);
    }

    /// Notes that one side lacks this many commits.
    pub fn behind(&self, commits: u32) {
        self.commits_behind.store(u64::from(commits), Relaxed);
    }

    /// Where commits wait for the store, `waiting` tells how many do.
    pub fn watch(&self, waiting: impl Fn() -> Option<u64> + Send + 'static) {
        *self.waiting.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(waiting));
    }

    /// Commits that one side lacks, as far as known.
    fn lacking(&self) -> u64 {
        let waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let now = waiting.as_ref().and_then(|waiting| waiting());
        now.unwrap_or_else(|| self.commits_behind.load(Relaxed))
    }

    /// Time since both sides had the same state; `None`: never yet.
    pub fn lag(&self) -> Option<Duration> {
        let same_ms = self.same_ms.load(Relaxed);
        (same_ms > 0).then(|| Duration::from_millis(u64::try_from(now_ms().saturating_sub(same_ms)).unwrap_or(0)))
    }

    /// Text of the status line.
    pub fn summary(&self) -> String {
        let sum = |of: &[AtomicU64]| of.iter().map(|n| n.load(Relaxed)).sum::<u64>();
        let lag = self
            .lag()
            .map_or_else(|| "not yet the same".to_owned(), |lag| format!("{:.1} s behind", lag.as_secs_f64()));
        format!(
            "transaction {:x}, {lag}: {} files, {}, {} requests, {} errors",
            self.txid.load(Relaxed),
            indicatif::HumanCount(sum(&self.files)),
            indicatif::HumanBytes(sum(&self.bytes)),
            indicatif::HumanCount(sum(&self.requests)),
            self.errors.load(Relaxed),
        )
    }

    /// The work of this process, which took so long, as fields and in words.
    pub fn work(&self, time: Duration) -> ([(&'static str, Value); 5], String) {
        let sum = |of: &[AtomicU64]| of.iter().map(|n| n.load(Relaxed)).sum::<u64>();
        let (files, bytes, pages) = (sum(&self.files), sum(&self.bytes), self.pages.load(Relaxed));
        let requests = sum(&self.requests);
        let counted =
            |n: u64, one: &str| format!("{} {one}{}", indicatif::HumanCount(n), if n == 1 { "" } else { "s" });
        let message = format!(
            "done: {}, {}, {}, {}{}",
            counted(files, "file"),
            counted(pages, "page"),
            counted(bytes, "byte"),
            counted(requests, "request"),
            took_so_long(time)
        );
        let fields = [
            ("files", files.into()),
            ("pages", pages.into()),
            ("bytes", bytes.into()),
            ("requests", requests.into()),
            ("seconds", hundredths(time).into()),
        ];
        (fields, message)
    }

    /// Requests to buckets, with the methods and labels of Litestream's counters.
    pub fn bucket_requests(&self) -> Vec<(String, String)> {
        let operations =
            [(Request::Get, "GET"), (Request::List, "LIST"), (Request::Put, "PUT"), (Request::Delete, "DELETE")];
        let of = |counts: &[AtomicU64; KINDS.len()], kind| {
            KINDS.iter().zip(counts).find(|((of, _), _)| *of == kind).map_or(0, |(_, n)| n.load(Relaxed))
        };
        let lines = REPLICA_TYPES.iter().zip(&self.buckets).flat_map(|(replica_type, counts)| {
            operations.map(|(kind, name)| {
                (format!("{{operation=\"{name}\",replica_type=\"{replica_type}\"}}"), of(counts, kind).to_string())
            })
        });
        lines.collect()
    }

    /// All counters in the text format of Prometheus.
    pub fn text(&self) -> String {
        self.text_of_all() + &self.text_of_one()
    }

    /// The counters of a process with any number of databases.
    pub fn text_of_all(&self) -> String {
        let mut text = String::new();
        let mut metric = |name: &str, kind: &str, help: &str, values: &[(String, String)]| {
            text += &metric_text(&format!("onewrite_{name}"), kind, help, values);
        };
        let one = |value: &AtomicU64| vec![(String::new(), value.load(Relaxed).to_string())];
        let levels = |values: &[AtomicU64]| -> Vec<_> {
            let level =
                |(n, value): (usize, &AtomicU64)| (format!("{{level=\"{n}\"}}"), value.load(Relaxed).to_string());
            values.iter().enumerate().map(level).collect()
        };
        let requests: Vec<_> = KINDS
            .iter()
            .zip(&self.requests)
            .map(|((_, kind), n)| (format!("{{kind=\"{kind}\"}}"), n.load(Relaxed).to_string()))
            .collect();
        metric("files_total", "counter", "Files shipped, or taken by a replica, by level.", &levels(&self.files));
        metric("file_bytes_total", "counter", "Bytes of these files, by level.", &levels(&self.bytes));
        metric("pages_total", "counter", "Pages in these files.", &one(&self.pages));
        metric("commits_total", "counter", "Commits of the database in batches.", &one(&self.commits));
        metric(
            "pages_compared_total",
            "counter",
            "Pages of the database read to see whether they have changed.",
            &one(&self.compared),
        );
        metric("files_removed_total", "counter", "Files removed from the store.", &one(&self.removed));
        metric("store_requests_total", "counter", "Requests to the store, tries counted, by kind.", &requests);
        metric("store_retries_total", "counter", "Requests sent again after an error.", &one(&self.retries));
        metric("store_slow_requests_total", "counter", "Requests answered late or not at all.", &one(&self.slow));
        metric(
            "errors_total",
            "counter",
            "Looks at the database or the store that ended with an error.",
            &one(&self.errors),
        );
        text
    }

    fn text_of_one(&self) -> String {
        let mut text = String::new();
        let mut metric = |name: &str, kind: &str, help: &str, values: &[(String, String)]| {
            text += &metric_text(&format!("onewrite_{name}"), kind, help, values);
        };
        let txid = vec![(String::new(), self.txid.load(Relaxed).to_string())];
        metric("txid", "gauge", "Transaction that both sides have.", &txid);
        let lacking = vec![(String::new(), self.lacking().to_string())];
        metric("commits_behind", "gauge", "Commits seen that are not in the store yet.", &lacking);
        let lag = self.lag().map_or_else(|| "NaN".to_owned(), |lag| format!("{:.3}", lag.as_secs_f64()));
        metric(
            "lag_seconds",
            "gauge",
            "Time since both sides were seen to have the same state.",
            &[(String::new(), lag)],
        );
        text
    }
}

fn count(counts: &[AtomicU64; KINDS.len()], kind: Request) {
    for ((of, _), count) in KINDS.iter().zip(counts) {
        if *of == kind {
            count.fetch_add(1, Relaxed);
        }
    }
}

/// A metric in the text format of Prometheus: its values have labels.
pub fn metric_text(name: &str, kind: &str, help: &str, values: &[(String, String)]) -> String {
    let lines = values.iter().map(|(labels, value)| format!("{name}{labels} {value}\n"));
    format!("# HELP {name} {help}\n# TYPE {name} {kind}\n") + &lines.collect::<String>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_one_object() {
        let at = UNIX_EPOCH + Duration::from_millis(1_500);
        let line = json_line(Level::Warning, "shipped", &[("pages", 3.into()), ("name", "a\"b".into())], "x\ny", at);
        let value: Value = serde_json::from_str(&line).unwrap();
        assert!(!line.contains('\n'));
        assert_eq!((&value["pages"], &value["name"]), (&Value::from(3), &Value::from("a\"b")));
        assert_eq!((&value["time"], &value["level"]), (&"1970-01-01T00:00:01.500Z".into(), &"warning".into()));
    }

    #[test]
    fn text_of_a_store_commands_no_terminal() {
        let before = "ev\u{9b}2J\u{202e}\u{1b}[2J\n";
        let line =
            json_line(Level::Error, "failed", &[("before", before.into())], "no\u{9b}2J\u{1b}[2Jx\ny", UNIX_EPOCH);
        assert_eq!(printable(&line), line);
        let value: Value = serde_json::from_str(&line).unwrap();
        assert_eq!(value["before"], before);
        assert_eq!(value["message"], "no\\u{9b}2J\\u{1b}[2Jx\\ny");
    }

    #[test]
    fn the_end_of_work_tells_a_time_of_a_second_or_more() {
        let said = |ms| Counters::new().work(Duration::from_millis(ms)).1;
        assert_eq!(said(990), "done: 0 files, 0 pages, 0 bytes, 0 requests");
        assert_eq!(said(12_340), "done: 0 files, 0 pages, 0 bytes, 0 requests. Took 12.3 s");
    }

    #[test]
    fn counters_are_told_with_their_kind() {
        let counters = Counters::new();
        counters.request(Request::Put);
        counters.request(Request::Put);
        counters.file(9, 70, 3);
        assert!(counters.text().contains("onewrite_lag_seconds NaN\n"));
        counters.behind(4);
        assert!(counters.text().contains("onewrite_commits_behind 4\n"));
        counters.same(7, 4, now_ms() - 2_000);
        let text = counters.text();
        for line in [
            "onewrite_store_requests_total{kind=\"put\"} 2",
            "onewrite_store_requests_total{kind=\"get\"} 0",
            "onewrite_file_bytes_total{level=\"9\"} 70",
            "onewrite_txid 7",
            "onewrite_commits_behind 0",
            "onewrite_commits_total 4",
            "# TYPE onewrite_lag_seconds gauge",
            "onewrite_lag_seconds 2.",
        ] {
            assert!(text.contains(line), "{line} in {text}");
        }
    }
}
