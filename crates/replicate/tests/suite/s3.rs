//! Ships into a bucket with the real program: on a server of this test, with faults, and on
//! installed servers. `ONEWRITE_TEST_STORE` names the protocol: s3,
//! gs, abs, webdav.

use crate::dialect::{AZURE_KEY, Answer, Asked, Dialect, Staged, webdav};
use rusqlite::Connection;
use std::collections::{BTreeMap, VecDeque};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};
use tiny_http::{Header, Method, Response, Server};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// Not done, with an error.
    Refused,
    /// Done, with an error.
    AnswerLost,
    /// Done, with an error, and the store is away from then on.
    LastAnswerLost,
    /// Not done, since another request is under way.
    Conflict,
}

#[derive(Clone, Debug)]
struct Object {
    bytes: Vec<u8>,
    time: Option<String>,
}

#[derive(Default)]
pub struct Bucket {
    objects: BTreeMap<String, Object>,
    staged: Staged,
    pub requests: Vec<String>,
    faults: VecDeque<Fault>,
    replaces: bool,
    refuses: Option<(u16, &'static str, &'static str)>,
    is_away: bool,
    pause: Duration,
    kill: Option<Kill>,
    lists: Lists,
    /// Whether the next requests get no answer: `Some(true)`: they are done.
    silent: VecDeque<Option<bool>>,
    /// Snapshots get no answer as long as this is so.
    holds_snapshots: bool,
    /// The same, for the first batch.
    holds_first: bool,
    /// As many requests get no answer before all of them have come.
    holds_for: usize,
    /// A key that the next listing of its level leaves out.
    unlisted: Option<String>,
    /// Answers in place of the server, where it returns `Some`.
    answers: Option<Answers>,
    /// The access keys of all requests.
    pub access_keys: Vec<String>,
    /// The one that is accepted; `None`: any.
    pub accepts: Option<String>,
}

type Answers = fn(&Asked, &BTreeMap<String, String>) -> Option<Answer>;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Lists {
    /// A time long after the object's state.
    #[default]
    Later,
    /// The state's time in whole seconds, as on S3.
    Seconds,
    /// The time by a clock that is an hour behind, or ahead.
    HourBehind,
    HourAhead,
}

impl Lists {
    fn time(self, object: &Object) -> String {
        let Some(time) = object.time.as_deref().filter(|_| self != Lists::Later) else {
            return "2101-01-01T00:00:00.000Z".to_owned();
        };
        let (time, hour) = (humantime::parse_rfc3339(time).unwrap(), Duration::from_secs(3600));
        let time = match self {
            Lists::HourBehind => time - hour,
            Lists::HourAhead => time + hour,
            _ => time,
        };
        humantime::format_rfc3339_seconds(time).to_string().replace('Z', ".000Z")
    }
}

/// A process that is killed at one of its requests.
struct Kill {
    process: u32,
    requests: usize,
    /// Killed after a request that changes something, before its answer.
    done: bool,
}

impl Kill {
    fn now(&self) {
        signal(self.process, "KILL");
    }
}

fn signal(process: u32, name: &str) {
    assert!(Command::new("kill").args([&format!("-{name}"), &process.to_string()]).status().unwrap().success());
}

pub struct Place {
    pub bucket: Arc<Mutex<Bucket>>,
    server: Arc<Server>,
    dialect: Dialect,
    stalls: Arc<AtomicBool>,
    stalled: Arc<AtomicUsize>,
    pub dir: tempfile::TempDir,
    pub file: PathBuf,
}

fn xml(status: u16, text: String) -> Answer {
    Response::from_string(text).with_status_code(status)
}

fn error(status: u16, code: &str) -> Answer {
    xml(status, format!("<?xml version=\"1.0\"?><Error><Code>{code}</Code><Message>Said so.</Message></Error>"))
}

fn etag(bytes: &[u8]) -> String {
    format!("\"{:016x}\"", xxhash_rust::xxh3::xxh3_64(bytes))
}

fn answer_or_kill(bucket: &mut Bucket, request: &Asked, body: Vec<u8>) -> Answer {
    let Some(kill) = &mut bucket.kill else { return answer(bucket, request, body) };
    let counts = !kill.done || !matches!(request.method, Method::Get | Method::Head);
    kill.requests = kill.requests.saturating_sub(usize::from(counts));
    if !counts || kill.requests > 0 {
        return answer(bucket, request, body);
    }
    if !kill.done {
        kill.now();
        bucket.kill = None;
        return error(500, "InternalError");
    }
    let answered = answer(bucket, request, body);
    bucket.kill.take().unwrap().now();
    answered
}

fn answer(bucket: &mut Bucket, request: &Asked, bytes: Vec<u8>) -> Answer {
    let Asked { url, path, query, .. } = request;
    bucket.requests.push(format!("{} {path}", request.method));
    assert!(query.contains_key("X-Amz-Signature"), "{url}");
    let access_key = query["X-Amz-Credential"].split('/').next().unwrap_or_default().to_owned();
    let is_refused = bucket.accepts.as_ref().is_some_and(|accepted| *accepted != access_key);
    bucket.access_keys.push(access_key);
    if is_refused {
        return error(403, "InvalidAccessKeyId");
    }
    let (name, _) = path.split_once('/').unwrap_or((path, ""));
    if name != "bucket" {
        return error(404, "NoSuchBucket");
    }
    if bucket.is_away {
        return error(503, "ServiceUnavailable");
    }
    thread::sleep(bucket.pause);
    if let Some((status, code, message)) = bucket.refuses {
        return xml(status, format!("<Error><Code>{code}</Code><Message>{message}</Message></Error>"));
    }
    if let Some(answered) = bucket.answers.and_then(|answers| answers(request, query)) {
        return answered;
    }
    if request.dialect == Dialect::WebDav {
        let source = request.path.clone();
        match webdav(&mut bucket.staged, request, &bytes) {
            Some(Ok(answered)) => return answered,
            Some(Err((asked, bytes))) => {
                let answered = answer_of(bucket, &asked, bytes);
                // It has its name, or the answer is lost.
                if !matches!(answered.status_code().0, 409 | 412 | 503) {
                    bucket.staged.remove(&source);
                }
                return answered;
            }
            None => {}
        }
    }
    answer_of(bucket, request, bytes)
}

fn answer_of(bucket: &mut Bucket, request: &Asked, bytes: Vec<u8>) -> Answer {
    let Asked { url, path, query, .. } = request;
    let (_, key) = path.split_once('/').unwrap_or((path, ""));
    match request.method {
        Method::Put => {
            let (creates, matches) = (request.header("if-none-match"), request.header("if-match").map(str::to_owned));
            let replaces = request.header("replaces").is_some();
            assert!(
                replaces || creates == Some("*") && matches.is_none() || creates.is_none() && matches.is_some(),
                "{url}"
            );
            let condition = if matches.is_some() { "if-match" } else { "if-none-match" };
            assert!(query["X-Amz-SignedHeaders"].contains(condition), "{url}");
            let time = request.header("x-amz-meta-litestream-timestamp").map(str::to_owned);
            let fault = if key.ends_with(".ltx") { bucket.faults.pop_front() } else { None };
            match fault {
                Some(Fault::Refused) => return error(503, "SlowDown"),
                Some(Fault::Conflict) => return error(409, "ConditionalRequestConflict"),
                Some(Fault::AnswerLost | Fault::LastAnswerLost) | None => {}
            }
            let there = bucket.objects.get(key).map(|object| request.version(&etag(&object.bytes)));
            let refuses = match &matches {
                Some(_) if there.is_none() => return error(404, "NoSuchKey"),
                Some(_) => there != matches,
                None => there.is_some(),
            };
            if refuses && !bucket.replaces && !replaces {
                return error(412, "PreconditionFailed");
            }
            bucket.objects.insert(key.to_owned(), Object { bytes, time });
            bucket.is_away |= fault == Some(Fault::LastAnswerLost);
            match fault {
                Some(_) => error(500, "InternalError"),
                None => xml(200, String::new()),
            }
        }
        Method::Get if key.is_empty() => {
            // Two keys a page.
            let from = query.get("continuation-token").or(query.get("start-after")).cloned().unwrap_or_default();
            let all = bucket.objects.iter().filter(|(key, _)| key.starts_with(&query["prefix"]) && **key >= from);
            let mut all: Vec<_> = all.collect();
            if let Some(key) = bucket.unlisted.take_if(|key| key.starts_with(&query["prefix"])) {
                all.retain(|(other, _)| **other != key);
            }
            let mut text = String::from("<ListBucketResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">");
            let page = if request.dialect == Dialect::WebDav { usize::MAX } else { 2 };
            for (key, object) in all.iter().take(page) {
                let size = object.bytes.len();
                let time = bucket.lists.time(object);
                text += &format!("<Contents><Key>{key}</Key><LastModified>{time}</LastModified>");
                text += &format!("<ETag>x</ETag><Size>{size}</Size><StorageClass>STANDARD</StorageClass></Contents>");
            }
            text += &format!("<IsTruncated>{}</IsTruncated>", all.len() > page);
            if let Some((next, _)) = all.get(page) {
                text += &format!("<NextContinuationToken>{next}</NextContinuationToken>");
            }
            xml(200, text + "</ListBucketResult>")
        }
        Method::Get | Method::Head => match bucket.objects.get(key) {
            None => error(404, "NoSuchKey"),
            Some(object) => {
                let body = if request.method == Method::Get { object.bytes.clone() } else { Vec::new() };
                let time = object.time.clone().unwrap_or_default();
                // Not every server supports ranges.
                let knows = request.dialect != Dialect::S3 || bucket.requests.len().is_multiple_of(2);
                let range = request.header("range").filter(|_| knows).and_then(|range| range.strip_prefix("bytes="));
                let (body, status, part) = match range.and_then(|range| range.split_once('-')) {
                    Some((from, to)) => {
                        let (from, to) = (from.parse::<usize>().unwrap(), to.parse::<usize>().unwrap());
                        let (from, end) = (from.min(body.len()), body.len().min(to + 1));
                        let part = format!("bytes {from}-{}/{}", end.saturating_sub(1), body.len());
                        (body[from..end].to_vec(), 206, part)
                    }
                    None => (body, 200, "none".to_owned()),
                };
                Response::from_data(body)
                    .with_header(Header::from_bytes("Content-Range", part).unwrap())
                    .with_header(Header::from_bytes("ETag", etag(&object.bytes)).unwrap())
                    .with_status_code(status)
                    .with_header(Header::from_bytes("x-amz-meta-litestream-timestamp", time).unwrap())
            }
        },
        Method::Delete => {
            bucket.objects.remove(key);
            xml(204, String::new())
        }
        ref other => panic!("{other} is not asked for"),
    }
}

pub fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

pub struct Killed(pub Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        self.0.wait().unwrap();
    }
}

pub fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < Duration::from_secs(60), "{what}");
        thread::sleep(Duration::from_millis(20));
    }
}

impl Place {
    /// Waits until the shipper has looked for its last batch.
    fn becomes_quiet(&self) {
        let requests = || self.bucket.lock().unwrap().requests.len();
        let (mut before, mut since) = (requests(), Instant::now());
        until("no request for longer than looks are apart", || {
            let now = requests();
            if std::mem::replace(&mut before, now) != now {
                since = Instant::now();
            }
            since.elapsed() > Duration::from_secs(7)
        });
    }

    pub fn new() -> Place {
        Place::of(Dialect::of_environment())
    }

    pub fn of(dialect: Dialect) -> Place {
        let bucket = Arc::new(Mutex::new(Bucket::default()));
        let server = Arc::new(Server::http("127.0.0.1:0").unwrap());
        let (serves, has) = (server.clone(), bucket.clone());
        let (stalls, stalled) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let (does, how_many) = (stalls.clone(), stalled.clone());
        thread::spawn(move || {
            for mut request in serves.incoming_requests() {
                let (has, stalls, stalled) = (has.clone(), does.clone(), how_many.clone());
                // A stalled client must not hold up others.
                thread::spawn(move || {
                    let mut body = Vec::new();
                    while stalls.load(Ordering::SeqCst) {
                        stalled.fetch_add(1, Ordering::SeqCst);
                        thread::park();
                    }
                    if request.as_reader().read_to_end(&mut body).is_ok() {
                        let asked = Asked::of(dialect, &request, &body);
                        let etag = etag(&body);
                        let silent = has.lock().unwrap().silent.pop_front().flatten();
                        if silent == Some(true) {
                            answer_or_kill(&mut has.lock().unwrap(), &asked, body.clone());
                        }
                        while silent.is_some() {
                            thread::park();
                        }
                        let puts = |part| asked.method == Method::Put && asked.path.contains(part);
                        let (is_snapshot, is_first) = (puts("/0009/"), puts("/0000/0000000000000001-"));
                        let holds =
                            |bucket: &Bucket| is_snapshot && bucket.holds_snapshots || is_first && bucket.holds_first;
                        let waits = {
                            let mut bucket = has.lock().unwrap();
                            let waits = bucket.holds_for > 0;
                            bucket.holds_for = bucket.holds_for.saturating_sub(1);
                            waits
                        };
                        while waits && has.lock().unwrap().holds_for > 0 {
                            thread::sleep(Duration::from_millis(5));
                        }
                        while holds(&has.lock().unwrap()) {
                            thread::sleep(Duration::from_millis(10));
                        }
                        let answer = answer_or_kill(&mut has.lock().unwrap(), &asked, body);
                        let _ = request.respond(asked.answered(answer, &etag));
                    }
                });
            }
        });
        let dir = tempfile::tempdir().unwrap();
        let place = Place { bucket, server, dialect, stalls, stalled, file: dir.path().join("app.db"), dir };
        place.sql("CREATE TABLE t(n INTEGER PRIMARY KEY, x); INSERT INTO t VALUES (1, randomblob(5000))");
        place
    }

    pub fn sql(&self, sql: &str) {
        onewrite_rusqlite::open(&self.file).unwrap().execute_batch(sql).unwrap();
    }

    pub fn url(&self, rest: &str) -> String {
        self.dialect.url(&self.server.server_addr().to_string(), rest)
    }

    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_onewrite-replicate"));
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.as_encoded_bytes().starts_with(b"AWS_")) {
            command.env_remove(name);
        }
        command.args(args).env("AWS_ACCESS_KEY_ID", "key").env("AWS_SECRET_ACCESS_KEY", "secret");
        // No test takes the role of the machine that it runs on.
        command.env("AWS_EC2_METADATA_DISABLED", "true").env("HOME", self.dir.path());
        command.env("LITESTREAM_AZURE_ACCOUNT_KEY", AZURE_KEY);
        command.env("NO_PROXY", "127.0.0.1").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    pub fn run(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }

    fn ship(&self) -> String {
        let output = self.run(&["replicate", "--once", "-v", self.file.to_str().unwrap(), &self.url("a/b")]);
        assert!(output.status.success(), "{}", said(&output));
        said(&output)
    }

    pub fn keys(&self) -> Vec<String> {
        self.bucket.lock().unwrap().objects.keys().cloned().collect()
    }

    pub fn restored(&self, args: &[&str]) -> String {
        let dest = self.dir.path().join("restored.db");
        let output = self.run(&[&["restore"], args, &[&self.url("a/b"), dest.to_str().unwrap()]].concat());
        assert!(output.status.success(), "{}", said(&output));
        let db = Connection::open(&dest).unwrap();
        let all = db.query_row("SELECT group_concat(n || hex(substr(x, 1, 4))) FROM t", [], |row| row.get(0)).unwrap();
        drop(db);
        std::fs::remove_file(&dest).unwrap();
        all
    }

    pub fn here(&self) -> String {
        let db = onewrite_rusqlite::open(&self.file).unwrap();
        db.query_row("SELECT group_concat(n || hex(substr(x, 1, 4))) FROM t", [], |row| row.get(0)).unwrap()
    }
}

#[test]
fn each_shipped_state_is_restored() {
    let place = Place::new();
    let mut states = Vec::new();
    for n in 2..8 {
        place.ship();
        states.push((humantime::format_rfc3339_millis(std::time::SystemTime::now()).to_string(), place.here()));
        thread::sleep(Duration::from_millis(20));
        place.sql(&format!("INSERT INTO t VALUES ({n}, randomblob(2000))"));
    }
    let last = place.ship();
    assert!(last.contains("a batch of"), "{last}");
    let names: Vec<_> = (1..8).map(|n| format!("a/b/0000/{n:016x}-{n:016x}.ltx")).collect();
    assert_eq!(place.keys(), [&names[..], &["a/b/onewrite-probe".to_owned(), "a/b/owner.json".to_owned()]].concat());
    assert_eq!(place.restored(&[]), place.here());
    for (n, (time, state)) in (1..).zip(&states) {
        assert_eq!(&place.restored(&["--timestamp", time]), state, "{time}");
        assert_eq!(&place.restored(&["--txid", &format!("{n:x}")]), state);
    }
    let verified = place.run(&["verify", place.file.to_str().unwrap(), &place.url("a/b")]);
    assert!(verified.status.success(), "{}", said(&verified));
    // The header's time decides, also if a listing has whole seconds or another clock's time.
    for lists in [Lists::Seconds, Lists::HourBehind, Lists::HourAhead] {
        place.bucket.lock().unwrap().lists = lists;
        for (time, state) in &states {
            assert_eq!(&place.restored(&["--timestamp", time]), state, "{time} {lists:?}");
        }
    }
    // The same in a copy of the bucket without metadata.
    let mut bucket = place.bucket.lock().unwrap();
    bucket.lists = Lists::Later;
    bucket.objects.values_mut().for_each(|object| object.time = None);
    // One file's clock was ahead: that file does not count as earlier than later ones.
    let ahead = bucket.objects.get_mut(&names[3]).unwrap();
    ahead.bytes = of_another_time(&ahead.bytes, 4_165_516_800_000);
    drop(bucket);
    let expected = [0, 1, 2, 2, 4, 5].map(|n| &states[n].1);
    for ((time, _), state) in states.iter().zip(expected) {
        assert_eq!(&place.restored(&["--timestamp", time]), state, "{time}");
    }
}

fn of_another_time(file: &[u8], time_ms: i64) -> Vec<u8> {
    use onewrite_replicate::ltx;
    let mut reader = ltx::Reader::open(file).unwrap();
    let mut writer = ltx::Writer::begin(Vec::new(), ltx::Header { time_ms, ..*reader.header() }).unwrap();
    let mut image = Vec::new();
    while let Some(page) = reader.page(&mut image).unwrap() {
        writer.page(page, &image).unwrap();
    }
    writer.finish().unwrap().0
}

#[test]
fn a_request_that_fails_is_sent_again_and_knows_its_own_work() {
    let place = Place::new();
    place.ship();
    for faults in [&[Fault::Refused, Fault::Refused][..], &[Fault::AnswerLost], &[Fault::Refused, Fault::AnswerLost]] {
        place.sql("UPDATE t SET x = randomblob(3000)");
        place.bucket.lock().unwrap().faults.extend(faults);
        place.ship();
        assert_eq!(place.restored(&[]), place.here(), "{faults:?}");
    }
    assert_eq!(place.keys().len(), 6);
}

#[cfg_attr(windows, ignore = "Wine replaces no file that is open")]
#[test]
fn of_two_that_ship_into_one_path_the_second_is_refused_until_it_is_promoted() {
    let place = Place::new();
    let other = Place { bucket: place.bucket.clone(), server: place.server.clone(), ..Place::new() };
    other.sql("DELETE FROM t; INSERT INTO t VALUES (100, 'other')");
    let mut first =
        place.command(&["replicate", "--interval", "50ms", place.file.to_str().unwrap(), &place.url("a/b")]);
    let mut first = Killed(first.spawn().unwrap());
    until("the first snapshot", || place.keys().len() == 3);
    let file = other.file.to_str().unwrap();
    let second = other.run(&["replicate", "--once", file, &place.url("a/b")]);
    assert_eq!(second.status.code(), Some(3), "{}", said(&second));
    assert!(said(&second).contains(&format!("belongs to {} on ", place.file.display())), "{}", said(&second));
    let third = other.run(&["promote", file, &place.url("a/b")]);
    assert_eq!(third.status.code(), Some(1), "{}", said(&third));
    assert!(said(&third).contains("pages differ"), "{}", said(&third));
    let rejoined = other.run(&["rejoin", file, &place.url("a/b")]);
    assert!(rejoined.status.success(), "{}", said(&rejoined));
    assert_eq!(other.here(), place.here());
    let promoted = other.run(&["promote", file, &place.url("a/b")]);
    assert!(promoted.status.success(), "{}", said(&promoted));
    other.sql("INSERT INTO t VALUES (200, 'shipped')");
    other.ship();
    place.sql("INSERT INTO t VALUES (2, 'two')");
    let mut text = String::new();
    // It ends by itself.
    first.0.stderr.take().unwrap().read_to_string(&mut text).unwrap();
    assert_eq!(first.0.wait().unwrap().code(), Some(3));
    assert!(text.contains("fenced: the store belongs to"), "{text}");
    assert_eq!(place.restored(&[]), other.here());
    let again = place.run(&["replicate", "--once", place.file.to_str().unwrap(), &place.url("a/b")]);
    assert_eq!(again.status.code(), Some(3), "{}", said(&again));
    let back = place.run(&["rejoin", place.file.to_str().unwrap(), &place.url("a/b")]);
    assert!(back.status.success(), "{}", said(&back));
    assert_eq!(place.here(), other.here());
    let diverged = Connection::open(format!("{}.diverged", place.file.display())).unwrap();
    let kept = diverged.query_row("SELECT count(*) FROM t WHERE n = 2", [], |row| row.get::<_, u32>(0)).unwrap();
    assert_eq!(kept, 1);
}

#[test]
fn nothing_is_asked_while_nothing_changes() {
    let place = Place::new();
    let mut shipper =
        place.command(&["replicate", "--interval", "20ms", place.file.to_str().unwrap(), &place.url("a/b")]);
    let _shipper = Killed(shipper.spawn().unwrap());
    until("the first snapshot", || place.keys().len() == 3);
    place.becomes_quiet();
    let before = place.bucket.lock().unwrap().requests.len();
    thread::sleep(Duration::from_secs(1));
    assert_eq!(place.bucket.lock().unwrap().requests[before..], [""; 0]);
}

#[test]
fn a_batch_is_one_request() {
    if Dialect::of_environment() != Dialect::S3 {
        return;
    }
    let place = Place::new();
    let (file, url) = (place.file.to_str().unwrap(), place.url("a/b"));
    let begun = Instant::now();
    let mut shipper = place.command(&["replicate", "--interval", "10ms", "--no-compaction", file, &url]);
    let _shipper = Killed(shipper.spawn().unwrap());
    let batches = || place.keys().iter().filter(|key| key.starts_with("a/b/0000/")).count();
    until("the first batch", || batches() == 1);
    // With the first batch a claim looks at each level once.
    place.sql("INSERT INTO t VALUES (2, randomblob(2000))");
    // Where a look is between the transaction and the close, both are batches.
    until("the second batch", || batches() > 1);
    let before = place.bucket.lock().unwrap().requests.len();
    for n in 3..43 {
        let there = batches();
        place.sql(&format!("INSERT INTO t VALUES ({n}, randomblob(2000))"));
        until("the batch", || batches() > there);
    }
    let requests = place.bucket.lock().unwrap().requests[before..].to_vec();
    let (puts, looks): (Vec<_>, Vec<_>) = requests.iter().partition(|request| request.starts_with("PUT"));
    let most = 2 * (1 + begun.elapsed().as_secs() / 5);
    assert!(puts.len() >= 40 && looks.len() as u64 <= most, "{} {looks:?}", puts.len());
    until("a look behind the last batch", || {
        let requests = &place.bucket.lock().unwrap().requests;
        let last = |word: &str| requests.iter().rposition(|request| request.contains(word)).unwrap_or(0);
        last("GET bucket/a/b/owner.json") > last("PUT")
    });
    assert_eq!(place.restored(&[]), place.here());
}

/// Merging lists nothing, reads nothing back, and ends when no file is due.
#[test]
fn merged_files_are_restored_and_then_nothing_is_asked() {
    let place = Place::new();
    let mut args = vec!["replicate", "--interval", "10ms", "--keep-batches", "50ms"];
    let url = place.url("a/b");
    args.extend(["--levels", "30ms,100ms,200ms", place.file.to_str().unwrap(), &url]);
    let mut shipper = place.command(&args);
    let _shipper = Killed(shipper.spawn().unwrap());
    until("the first snapshot", || place.keys().iter().any(|key| key.contains("/0000/")));
    let begun = place.bucket.lock().unwrap().requests.len();
    for n in 2..40 {
        place.sql(&format!("INSERT INTO t VALUES ({n}, randomblob(2000))"));
        thread::sleep(Duration::from_millis(10));
    }
    let of_level = |level: &str| place.keys().iter().filter(|key| key.starts_with(&format!("a/b/{level}/"))).count();
    until("all is merged", || of_level("0000") == 2 && of_level("0003") > 0);
    let newest =
        |level: &str| place.keys().into_iter().filter(|key| key.contains(level)).max().map(|key| key[26..].to_owned());
    until("up to the newest", || newest("/0003/") == newest("/0000/"));
    place.becomes_quiet();
    let before = place.bucket.lock().unwrap().requests.len();
    thread::sleep(Duration::from_millis(700));
    let requests = place.bucket.lock().unwrap().requests[begun..].to_vec();
    assert_eq!(requests[before - begun..], [""; 0], "nothing is left to do");
    let end = requests.iter().rposition(|request| request.starts_with("DELETE")).unwrap();
    let read = requests[..end].iter().filter(|request| request.starts_with("GET") && request.ends_with(".ltx"));
    assert_eq!(read.collect::<Vec<_>>(), [""; 0], "what it has shipped, it knows");
    assert_eq!(place.restored(&[]), place.here());
}

#[test]
fn a_replica_asks_once_a_look() {
    let place = Place::new();
    place.ship();
    let replica = place.dir.path().join("replica.db");
    let url = place.url("a/b");
    let mut follower = place.command(&["follow", "--interval", "50ms", &url, replica.to_str().unwrap()]);
    let follower = Killed(follower.spawn().unwrap());
    let count = |file: &PathBuf| -> i64 {
        let db = onewrite_rusqlite::open(file).unwrap();
        db.busy_timeout(Duration::from_secs(10)).unwrap();
        db.query_row("SELECT count(*) FROM t", [], |row| row.get(0)).unwrap()
    };
    until("the replica is made", || replica.exists());
    place.sql("INSERT INTO t VALUES (2, randomblob(3000))");
    place.ship();
    until("the batch is applied", || count(&replica) == 2);
    thread::sleep(Duration::from_millis(100));
    let before = place.bucket.lock().unwrap().requests.len();
    thread::sleep(Duration::from_secs(1));
    let requests = place.bucket.lock().unwrap().requests[before..].to_vec();
    let next = format!("HEAD bucket/a/b/0000/{0:016x}-{0:016x}.ltx", 3);
    let (looks, others): (Vec<_>, Vec<_>) = requests.into_iter().partition(|request| *request == next);
    assert!((5..=21).contains(&looks.len()), "{}", looks.len());
    let further = format!("HEAD bucket/a/b/0000/{0:016x}-{0:016x}.ltx", 4);
    assert!(others.len() <= looks.len() / 5 && others.iter().all(|request| *request == further), "{others:?}");
    drop(follower);
}

#[cfg_attr(windows, ignore = "limits memory with a shell")]
#[test]
fn answers_of_any_length_cost_no_memory() {
    if Dialect::of_environment() != Dialect::S3 {
        return;
    }
    let place = Place::new();
    place.ship();
    let says = |answers: Answers, words: &str| {
        place.bucket.lock().unwrap().answers = Some(answers);
        let (dest, other) = (place.dir.path().join("r.db"), place.dir.path().join("p.db"));
        for args in [
            ["restore", &place.url("a/b"), dest.to_str().unwrap()],
            ["promote", other.to_str().unwrap(), &place.url("a/b")],
        ] {
            let mut command = Command::new("sh");
            let of = place.command(&args);
            command.args(["-c", "ulimit -v 4000000; exec \"$@\"", "sh"]).arg(of.get_program()).args(of.get_args());
            command.envs(of.get_envs().filter_map(|(name, value)| Some((name, value?))));
            let output = command.output().unwrap();
            let text = said(&output);
            assert!(!output.status.success() && output.status.code().is_some(), "{text}");
            if args[0] == "restore" {
                assert!(text.contains(words), "{text}");
            }
        }
    };
    says(
        |_, query| {
            query.get("prefix").filter(|prefix| prefix.ends_with("/0000/"))?;
            let key = format!("a/b/0000/{0:016x}-{0:016x}.ltx", 1);
            let object = format!(
                "<Contents><Key>{key}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified><ETag>x</ETag>\
                 <Size>{}</Size><StorageClass>STANDARD</StorageClass></Contents>",
                u64::MAX
            );
            Some(xml(
                200,
                format!(
                    "<ListBucketResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">{object}\
                 <IsTruncated>false</IsTruncated></ListBucketResult>"
                ),
            ))
        },
        "it is shorter than the listing says",
    );
    says(
        |_, query| {
            query.get("prefix")?;
            let again = "<IsTruncated>true</IsTruncated><NextContinuationToken>again</NextContinuationToken>";
            let text = format!(
                "<ListBucketResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">{again}</ListBucketResult>"
            );
            Some(xml(200, text))
        },
        "the server sends the same page again",
    );
    says(|_, query| query.get("prefix").map(|_| xml(200, "<".repeat(20 << 20))), "cannot list s3://bucket/a/b/0000/");
    says(|_, _| Some(xml(403, "<Error>".repeat(20 << 20))), "the server says 403");
    // A record that is too long only costs `restore` the permissions.
    place.bucket.lock().unwrap().answers = Some(|request, _| {
        let long = || xml(200, " ".repeat(20 << 20)).with_header(Header::from_bytes("ETag", "x").unwrap());
        request.url.contains("owner.json").then(long)
    });
    let dest = place.dir.path().join("r.db");
    let output = place.run(&["restore", &place.url("a/b"), dest.to_str().unwrap()]);
    assert!(output.status.success() && said(&output).contains("permissions"), "{}", said(&output));
    let file = place.file.to_str().unwrap();
    let output = place.run(&["replicate", "--once", file, &place.url("a/b")]);
    assert!(
        !output.status.success() && said(&output).contains("cannot read s3://bucket/a/b/owner.json"),
        "{}",
        said(&output)
    );
}

#[test]
fn errors_name_their_remedy() {
    if Dialect::of_environment() != Dialect::S3 {
        return;
    }
    let place = Place::new();
    let refused = |url: &str, words: &[&str]| {
        let output = place.run(&["replicate", "--once", place.file.to_str().unwrap(), url]);
        let text = said(&output);
        assert!(!output.status.success(), "{text}");
        assert!(words.iter().all(|word| text.contains(word)), "{url}: {text}");
    };
    let endpoint = format!("endpoint=http://{}", place.server.server_addr());
    refused(&format!("s3://other/a?{endpoint}"), &["NoSuchBucket", "make the bucket"]);
    refused("s3://bucket/a", &["region"]);
    refused("s3:///a?region=x", &["s3://bucket/path"]);
    refused("s3://bucket/a?regoin=x", &["regoin", "region, endpoint, force-path-style"]);
    refused("s3://bucket/a?force-path-style=1&region=x", &["force-path-style=1"]);
    refused("s3://bucket/a?endpoint=http://127.0.0.1:1", &["no answer from http://127.0.0.1:1"]);
    // A wrong clock as versitygw reports it for signed URLs, and as other servers do.
    for (status, code, message, advice) in [
        (403, "AccessDenied", "Access Denied.", "list, get, put and delete"),
        (403, "AccessDenied", "Request is not valid yet.", "set this machine's clock"),
        (403, "AccessDenied", "Request has expired.", "set this machine's clock"),
        (403, "RequestTimeTooSkewed", "The difference is too large.", "set this machine's clock"),
        (403, "InvalidAccessKeyId", "It does not exist.", "AWS_ACCESS_KEY_ID"),
        (404, "InvalidAccessKeyId", "It does not exist.", "AWS_ACCESS_KEY_ID"),
        (403, "SignatureDoesNotMatch", "It does not match.", "AWS_SECRET_ACCESS_KEY"),
        (400, "ExpiredToken", "The token has expired.", "AWS_SESSION_TOKEN"),
        (301, "PermanentRedirect", "Another endpoint.", "?region="),
        (403, "QuotaExceeded", "Quota exceeded.", "the store is full"),
        (507, "XMinioStorageFull", "No room.", "the store is full"),
    ] {
        place.bucket.lock().unwrap().refuses = Some((status, code, message));
        refused(&format!("s3://bucket/a?{endpoint}"), &[code, message, advice]);
    }
    place.bucket.lock().unwrap().refuses = None;
    let mut no_keys = place.command(&["replicate", "--once", place.file.to_str().unwrap(), &place.url("a")]);
    let no_keys = no_keys.env_remove("AWS_SECRET_ACCESS_KEY").output().unwrap();
    assert!(said(&no_keys).contains("set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"), "{}", said(&no_keys));
    place.bucket.lock().unwrap().replaces = true;
    assert!(place.ship().contains("nobody will notice"));
}

impl Place {
    /// Runs the program, and kills it at that request; `false` if it ended before.
    fn is_killed(&self, args: &[&str], requests: usize, done: bool) -> bool {
        let mut bucket = self.bucket.lock().unwrap();
        let child = self.command(args).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        bucket.kill = Some(Kill { process: child.id(), requests, done });
        drop(bucket);
        let mut child = Killed(child);
        let status = child.0.wait().unwrap();
        let is_killed = self.bucket.lock().unwrap().kill.take().is_none();
        assert_eq!(is_killed, status.code().is_none(), "{args:?}: {status}");
        is_killed
    }
}

#[cfg_attr(windows, ignore = "sends signals, which Windows has not")]
#[test]
fn a_shipper_that_is_killed_at_any_request_leaves_no_gap() {
    let place = Place::new();
    let file = place.file.to_str().unwrap();
    for done in [false, true] {
        for requests in 1.. {
            place.bucket.lock().unwrap().objects.clear();
            place.sql("UPDATE t SET x = randomblob(3000)");
            place.ship();
            place.sql("INSERT INTO t(x) VALUES (randomblob(500))");
            let is_killed = place.is_killed(&["replicate", "--once", file, &place.url("a/b")], requests, done);
            place.ship();
            assert_eq!(place.restored(&[]), place.here(), "request {requests}, done: {done}");
            if !is_killed {
                assert!(requests > if done { 4 } else { 20 }, "{requests}");
                break;
            }
        }
    }
}

#[cfg_attr(windows, ignore = "sends signals, which Windows has not")]
#[test]
fn a_promotion_that_is_killed_at_any_request_can_be_repeated() {
    let place = Place::new();
    let file = place.file.to_str().unwrap();
    let next = place.dir.path().join("next.db");
    for done in [false, true] {
        for requests in 1.. {
            place.bucket.lock().unwrap().objects.clear();
            place.ship();
            let args = ["promote", next.to_str().unwrap(), &place.url("a/b")];
            let is_killed = place.is_killed(&args, requests, done);
            if is_killed {
                assert!(!next.exists(), "request {requests}, done: {done}: it has its name too early");
                let promoted = place.run(&args);
                assert!(promoted.status.success(), "request {requests}, done: {done}: {}", said(&promoted));
            }
            assert_eq!(place.run(&["replicate", "--once", file, &place.url("a/b")]).status.code(), Some(3));
            assert_eq!(place.restored(&[]), place.here());
            let moved = Place {
                file: next.clone(),
                bucket: place.bucket.clone(),
                server: place.server.clone(),
                ..Place::new()
            };
            assert_eq!(moved.here(), place.here());
            moved.sql("INSERT INTO t(x) VALUES ('shipped')");
            moved.ship();
            assert_eq!(place.restored(&[]), moved.here());
            std::fs::remove_file(&next).unwrap();
            let _ = std::fs::remove_file(format!("{}-onewrite", next.display()));
            if !is_killed {
                assert!(requests > if done { 4 } else { 20 }, "{requests}");
                break;
            }
        }
    }
    let left =
        std::fs::read_dir(place.dir.path()).unwrap().map(|file| file.unwrap().file_name().into_string().unwrap());
    let left: Vec<_> = left.filter(|name| name.ends_with(".db")).collect();
    assert_eq!(left, ["app.db"]);
}

/// A replica behind the store, or a database compared before the takeover, would take transactions
/// back.
#[cfg_attr(windows, ignore = "sends signals, which Windows has not")]
#[test]
fn a_replica_not_promoted_to_the_end_is_not_shipped() {
    let place = Place::new();
    let replica = place.dir.path().join("replica.db");
    let (url, file) = (place.url("a/b"), replica.to_str().unwrap());
    for requests in 1.. {
        place.bucket.lock().unwrap().objects.clear();
        place.ship();
        for suffix in ["", "-follow", "-promoting", "-onewrite"] {
            let _ = std::fs::remove_file(format!("{file}{suffix}"));
        }
        let followed = place.run(&["follow", "--once", &url, file]);
        assert!(followed.status.success(), "{}", said(&followed));
        let refused = place.run(&["replicate", "--once", file, &url]);
        assert_eq!(refused.status.code(), Some(3), "{}", said(&refused));
        let is_killed = place.is_killed(&["promote", file, &url], requests, true);
        let shipped = place.run(&["replicate", "--once", file, &url]);
        if !is_killed {
            assert!(shipped.status.success() && requests > 4, "{requests}: {}", said(&shipped));
            break;
        }
        assert!(!shipped.status.success(), "request {requests}: {}", said(&shipped));
        if shipped.status.code() != Some(3) {
            assert!(said(&shipped).contains("onewrite promote"), "{}", said(&shipped));
            let promoted = place.run(&["promote", file, &url]);
            assert!(promoted.status.success(), "{}", said(&promoted));
            assert!(place.run(&["replicate", "--once", file, &url]).status.success());
        }
    }
}

#[test]
fn of_promotions_that_race_one_wins_each_epoch() {
    let place = Place::new();
    place.ship();
    for round in 0..3 {
        let racing: Vec<_> = (0..16)
            .map(|n| {
                let file = place.dir.path().join(format!("{round}-{n}.db"));
                let mut command = place.command(&["promote", file.to_str().unwrap(), &place.url("a/b")]);
                (file, command.spawn().unwrap())
            })
            .collect();
        let mut won = Vec::new();
        for (file, child) in racing {
            let output = child.wait_with_output().unwrap();
            let text = said(&output);
            match output.status.code() {
                Some(0) => {
                    let epoch = text.split("epoch ").last().unwrap().split(' ').next().unwrap();
                    won.push((epoch.parse::<u64>().unwrap(), file));
                }
                Some(3) => assert!(text.contains("fenced: the store belongs to") && !file.exists(), "{text}"),
                _ => panic!("{text}"),
            }
        }
        won.sort();
        let owner: serde_json::Value =
            serde_json::from_slice(&place.bucket.lock().unwrap().objects["a/b/owner.json"].bytes).unwrap();
        let (epoch, file) = won.last().unwrap();
        assert_eq!((owner["epoch"].as_u64(), owner["file"].as_str()), (Some(*epoch), file.to_str()));
        assert!(won.is_sorted_by(|one, other| one.0 < other.0), "{won:?}");
        for (epoch, file) in &won {
            let shipped = place.run(&["replicate", "--once", file.to_str().unwrap(), &place.url("a/b")]);
            let expected = if Some(*epoch) == owner["epoch"].as_u64() { 0 } else { 3 };
            assert_eq!(shipped.status.code(), Some(expected), "{}", said(&shipped));
        }
    }
}

/// The first batch of a promotion has the next name of a stopped owner. Where the one before has
/// ended, none need stay.
#[test]
fn the_first_batch_of_a_promotion_stays_and_that_of_a_restart_does_not() {
    let place = Place::new();
    place.bucket.lock().unwrap().lists = Lists::HourBehind;
    let hasty = ["replicate", "--once", "--levels", "1ms", "--keep-batches", "0s", "--snapshot-interval", "1ms"];
    let ships = |place: &Place, times: u32| {
        for n in 0..times {
            place.sql(&format!("INSERT INTO t(x) VALUES ('{n}')"));
            thread::sleep(Duration::from_millis(5));
            let args = ["--retention", "1ms", place.file.to_str().unwrap(), &place.url("a/b")];
            let output = place.run(&[&hasty[..], &args].concat());
            assert!(output.status.success(), "{}", said(&output));
        }
    };
    let firsts = || -> serde_json::Value {
        let record = place.bucket.lock().unwrap().objects["a/b/owner.json"].bytes.clone();
        serde_json::from_slice::<serde_json::Value>(&record).unwrap()["firsts"].clone()
    };
    let batches = || place.keys().iter().filter(|key| key.contains("/0000/")).count();
    ships(&place, 5);
    assert_eq!((firsts(), batches()), (serde_json::Value::Null, 1), "{:?}", place.keys());
    let next = place.dir.path().join("next.db");
    let promoted = place.run(&["promote", next.to_str().unwrap(), &place.url("a/b")]);
    assert!(promoted.status.success(), "{}", said(&promoted));
    let moved = Place { file: next, bucket: place.bucket.clone(), server: place.server.clone(), ..Place::new() };
    ships(&moved, 5);
    let first = firsts()[0].as_u64().unwrap();
    assert!(place.keys().contains(&format!("a/b/0000/{first:016x}-{first:016x}.ltx")), "{:?}", place.keys());
    // The machine was started anew, or another one has its disk.
    let mut bucket = place.bucket.lock().unwrap();
    let record = &mut bucket.objects.get_mut("a/b/owner.json").unwrap().bytes;
    let text = String::from_utf8(record.clone()).unwrap();
    *record = text.replace("\"lock\": \"", "\"lock\": \"0").into_bytes();
    assert_ne!(text.as_bytes(), &*record);
    drop(bucket);
    ships(&moved, 5);
    assert_eq!((firsts().as_array().unwrap().len(), batches()), (2, 3), "{:?}", place.keys());
    assert_eq!(place.restored(&[]), moved.here());
}

/// The owner is stopped at a random moment, another machine is promoted and ships. The first
/// continues: it must end, and write nothing that counts.
#[cfg_attr(windows, ignore = "sends signals, which Windows has not")]
#[test]
fn an_owner_that_was_stopped_ends_and_overwrites_nothing() {
    for round in 0..5u64 {
        let place = Place::new();
        let args = ["replicate", "--interval", "5ms", "--levels", "40ms,200ms", "--keep-batches", "50ms"];
        let (file, url) = (place.file.to_str().unwrap(), place.url("a/b"));
        let mut first = Killed(place.command(&[&args[..], &[file, &url]].concat()).spawn().unwrap());
        until("the first snapshot", || place.keys().iter().any(|key| key.contains("/0000/")));
        let writer = place.file.clone();
        let writes = thread::spawn(move || {
            let db = onewrite_rusqlite::open(writer).unwrap();
            for n in 0..200 {
                db.execute_batch(&format!("INSERT INTO t(x) VALUES ('first {n}')")).unwrap();
                thread::sleep(Duration::from_millis(5));
            }
        });
        thread::sleep(Duration::from_millis(100 + fastrand::u64(0..300) + round));
        signal(first.0.id(), "STOP");
        let next = place.dir.path().join("next.db");
        let promoted = place.run(&["promote", next.to_str().unwrap(), &url]);
        assert!(promoted.status.success(), "{}", said(&promoted));
        let owner = || place.bucket.lock().unwrap().objects["a/b/owner.json"].bytes.clone();
        let promoted_as = owner();
        let moved =
            Place { file: next.clone(), bucket: place.bucket.clone(), server: place.server.clone(), ..Place::new() };
        let mut second = Killed(place.command(&[&args[..], &[next.to_str().unwrap(), &url]].concat()).spawn().unwrap());
        for n in 0..fastrand::u64(1..60) {
            moved.sql(&format!("INSERT INTO t(x) VALUES ('second {n}')"));
            thread::sleep(Duration::from_millis(3));
        }
        signal(first.0.id(), "CONT");
        moved.sql("INSERT INTO t(x) VALUES ('last')");
        until("the first is fenced", || first.0.try_wait().unwrap().is_some());
        assert_eq!(first.0.wait().unwrap().code(), Some(3));
        moved.sql("INSERT INTO t(x) VALUES ('behind')");
        // A signal ends a shipper that has not begun at once.
        until("the second has begun", || owner() != promoted_as);
        signal(second.0.id(), "TERM");
        let mut text = String::new();
        second.0.stderr.take().unwrap().read_to_string(&mut text).unwrap();
        assert!(second.0.wait().unwrap().success(), "{text}");
        assert_eq!(place.restored(&[]), moved.here(), "round {round}");
        writes.join().unwrap();
        let rejoined = place.run(&["rejoin", file, &url]);
        assert!(rejoined.status.success(), "{}", said(&rejoined));
        assert_eq!(place.here(), moved.here());
    }
}

#[cfg_attr(windows, ignore = "sends signals, which Windows has not")]
#[test]
fn commits_go_on_while_the_store_is_away_and_are_shipped_then() {
    let place = Place::new();
    let (file, url) = (place.file.to_str().unwrap(), place.url("a/b"));
    let mut shipper = Killed(place.command(&["replicate", "--interval", "10ms", file, &url]).spawn().unwrap());
    until("the first snapshot", || place.keys().iter().any(|key| key.contains("/0000/")));
    let db = onewrite_rusqlite::open(&place.file).unwrap();
    for round in 0..3 {
        place.bucket.lock().unwrap().is_away = true;
        // For longer than requests are repeated. A commit that waited for the store would never
        // end.
        let away = Instant::now();
        for n in 0.. {
            if n >= 150 && away.elapsed() > Duration::from_secs(2) {
                break;
            }
            db.execute_batch(&format!("INSERT INTO t(x) VALUES ('{round} {n}' || hex(randomblob(4000)))")).unwrap();
            thread::sleep(Duration::from_millis(5));
        }
        place.bucket.lock().unwrap().is_away = false;
        thread::sleep(Duration::from_millis(200));
    }
    assert!(shipper.0.try_wait().unwrap().is_none(), "it goes on");
    signal(shipper.0.id(), "TERM");
    let mut text = String::new();
    shipper.0.stderr.take().unwrap().read_to_string(&mut text).unwrap();
    assert!(shipper.0.wait().unwrap().success(), "{text}");
    assert!(text.contains("not shipped, trying again") && text.contains("shipping goes on"), "{text}");
    assert_eq!(place.restored(&[]), place.here());
}

#[cfg_attr(windows, ignore = "sends signals, which Windows has not")]
#[test]
fn behind_an_outage_the_stores_files_are_not_read_again() {
    let place = Place::new();
    let (file, url) = (place.file.to_str().unwrap(), place.url("a/b"));
    let alone = ["replicate", "--no-compaction", "--interval", "10ms", file, &url];
    // Whether the batch of the outage was made.
    for (waits, is_made) in [(false, false), (false, true), (true, false), (true, true)] {
        let shipper = if waits {
            place.sync(&["--no-compaction"])
        } else {
            Killed(place.command(&alone).stderr(Stdio::null()).spawn().unwrap())
        };
        let batches = || place.keys().iter().filter(|key| key.contains("/0000/")).count();
        let db = place.open(Duration::from_secs(20));
        let insert = || db.execute("INSERT INTO t(x) VALUES (hex(randomblob(4000)))", []).unwrap();
        // The shipper is no longer at its beginning.
        for _ in 0..3 {
            let begun = batches();
            insert();
            until("a batch", || batches() > begun);
        }
        let before = batches();
        match is_made {
            true => place.bucket.lock().unwrap().faults.push_back(Fault::LastAnswerLost),
            false => place.bucket.lock().unwrap().is_away = true,
        }
        thread::scope(|scope| {
            // Longer than requests are repeated.
            scope.spawn(|| {
                thread::sleep(Duration::from_secs(3));
                let mut bucket = place.bucket.lock().unwrap();
                bucket.requests.clear();
                bucket.is_away = false;
            });
            insert();
        });
        until("the batch of the outage", || batches() > before);
        until("the store is back", || !place.bucket.lock().unwrap().is_away);
        insert();
        until("the batch behind it", || batches() > before + 1);
        let requests = place.bucket.lock().unwrap().requests.clone();
        let reads = requests.iter().filter(|asked| asked.starts_with("GET") && asked.ends_with(".ltx"));
        let mut reads: Vec<_> = reads.collect();
        reads.dedup();
        // One that it does not know to be its own.
        assert_eq!(reads.len(), usize::from(is_made), "commits wait: {waits}: {reads:?} of {requests:?}");
        assert_eq!(place.restored(&[]), place.here());
        signal(shipper.0.id(), "TERM");
        drop(shipper);
    }
}

#[cfg_attr(windows, ignore = "sends signals, which Windows has not")]
#[test]
fn where_commits_wait_an_owner_that_cannot_be_read_costs_no_new_look_at_the_files() {
    // Other stores ask for the record in other ways.
    let place = Place::of(Dialect::S3);
    let _shipper = place.sync(&["--no-compaction"]);
    let db = place.open(Duration::from_secs(20));
    let insert = || db.execute("INSERT INTO t(x) VALUES (hex(randomblob(4000)))", []).unwrap();
    insert();
    // The owner is asked for with the next batch.
    thread::sleep(Duration::from_millis(1200));
    place.bucket.lock().unwrap().answers =
        Some(|asked, _| asked.path.ends_with("owner.json").then(|| error(503, "ServiceUnavailable")));
    place.bucket.lock().unwrap().requests.clear();
    let begun = Instant::now();
    thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(Duration::from_secs(3));
            place.bucket.lock().unwrap().answers = None;
        });
        insert();
    });
    assert!(begun.elapsed() > Duration::from_secs(3), "no commit is acknowledged while the owner is unknown");
    insert();
    let requests = place.bucket.lock().unwrap().requests.clone();
    let reads: Vec<_> = requests.iter().filter(|asked| asked.starts_with("GET") && asked.ends_with(".ltx")).collect();
    assert!(reads.is_empty(), "{reads:?} of {requests:?}");
}

impl Place {
    fn sync(&self, more: &[&str]) -> Killed {
        self.sync_and_hear(more).0
    }

    /// The shipper, and all that it says.
    fn sync_and_hear(&self, more: &[&str]) -> (Killed, Arc<Mutex<String>>) {
        let url = self.url("a/b");
        let mut command =
            self.command(&[&["replicate", "--sync"], more, &[self.file.to_str().unwrap(), &url]].concat());
        let mut child = command.spawn().unwrap();
        let mut said = BufReader::new(child.stderr.take().unwrap());
        let mut all = String::new();
        while !all.contains("commits wait for it") {
            assert!(said.read_line(&mut all).unwrap() > 0, "{all}");
        }
        let heard = Arc::new(Mutex::new(all));
        let hears = heard.clone();
        thread::spawn(move || {
            let mut line = String::new();
            while said.read_line(&mut line).is_ok_and(|n| n > 0) {
                *hears.lock().unwrap() += &std::mem::take(&mut line);
            }
        });
        (Killed(child), heard)
    }

    fn open(&self, timeout: Duration) -> Connection {
        let db = onewrite_rusqlite::open(&self.file).unwrap();
        db.busy_timeout(timeout).unwrap();
        db
    }
}

fn rows(db: &Connection) -> String {
    db.query_row("SELECT group_concat(n) FROM (SELECT n FROM t ORDER BY n)", [], |row| row.get(0)).unwrap()
}

fn insert(db: &Connection, n: i64) -> Result<usize, String> {
    let done = db.execute("INSERT INTO t VALUES (?1, 'x')", [n]);
    done.map_err(|e| format!("{e}: {}", onewrite_rusqlite::last_error().unwrap_or_default()))
}

fn store_of(db: &Connection) -> String {
    let status: String = db.query_row("PRAGMA onewrite_status", [], |row| row.get(0)).unwrap();
    let store = status.lines().find_map(|line| line.strip_prefix("store=")).map(str::to_owned);
    store.unwrap_or_else(|| panic!("{status}"))
}

#[test]
fn where_commits_wait_an_outage_leaves_their_outcome_open_and_readers_read() {
    let place = Place::new();
    let (_shipper, heard) = place.sync_and_hear(&["--ship-timeout", "500ms", "--metrics", "127.0.0.1:0"]);
    let db = place.open(Duration::from_millis(100));
    let outages: [fn(&mut Bucket, bool); 2] = [
        |b, on| b.is_away = on,
        |b, on| {
            b.refuses = on.then_some((403, "AccessDenied", "Said so."));
        },
    ];
    let mut n = 1;
    let mut all = "1".to_owned();
    for outage in outages {
        outage(&mut place.bucket.lock().unwrap(), true);
        n += 1;
        let begun = Instant::now();
        let error = insert(&db, n).unwrap_err();
        assert!(error.contains("whether it is committed is not known"), "{error}");
        assert!((500..30_000).contains(&begun.elapsed().as_millis()), "{:?}", begun.elapsed());
        assert!(store_of(&db).starts_with("commits wait for it, and it takes nothing now"), "{}", store_of(&db));
        // No reader sees the commit; no writer builds on it.
        let begun = Instant::now();
        let reader = place.open(Duration::ZERO);
        for _ in 0..3 {
            assert_eq!((rows(&reader), rows(&db)), (all.clone(), all.clone()));
        }
        let error = insert(&db, 1000).unwrap_err();
        assert!(error.contains("locked") && error.contains("has taken nothing for"), "{error}");
        assert!(error.contains("roll back") && error.contains("gives up after 0.500 s"), "{error}");
        let counted = metrics(&heard.lock().unwrap());
        assert!(counted.contains("onewrite_commits_behind 1\n"), "{counted}");
        assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
        outage(&mut place.bucket.lock().unwrap(), false);
        // The unknown outcome was a commit.
        all = format!("{all},{n}");
        until("the store has it", || rows(&reader) == all);
        n += 1;
        until("commits go on", || insert(&db, n).is_ok());
        assert_eq!(store_of(&db), "commits wait for it");
        assert!(metrics(&heard.lock().unwrap()).contains("onewrite_commits_behind 0\n"));
        all = format!("{all},{n}");
        assert_eq!(rows(&reader), all);
        assert_eq!(place.restored(&[]), place.here());
    }
    place.bucket.lock().unwrap().pause = Duration::from_millis(50);
    let begun = Instant::now();
    insert(&db, 100).unwrap();
    assert!(begun.elapsed() >= Duration::from_millis(50), "{:?}", begun.elapsed());
    // Without commits there is no request.
    place.bucket.lock().unwrap().pause = Duration::ZERO;
    place.becomes_quiet();
    let before = place.bucket.lock().unwrap().requests.len();
    rows(&db);
    thread::sleep(Duration::from_secs(1));
    assert_eq!(place.bucket.lock().unwrap().requests[before..], [""; 0]);
}

#[cfg_attr(windows, ignore = "sends signals, which Windows has not")]
#[test]
fn where_commits_wait_no_transaction_begins_without_the_shipper() {
    let place = Place::new();
    let mut shipper = place.sync(&["--ship-timeout", "300ms"]);
    let db = place.open(Duration::from_millis(100));
    insert(&db, 2).unwrap();
    shipper.0.kill().unwrap();
    shipper.0.wait().unwrap();
    let error = insert(&db, 3).unwrap_err();
    assert!(error.contains("is not known"), "{error}");
    assert_eq!(rows(&db), "1,2");
    drop(db);
    // A reader does not see commits that the store lacks.
    let db = place.open(Duration::from_millis(100));
    let error = db.query_row("SELECT count(*) FROM t", [], |row| row.get::<_, i64>(0)).unwrap_err();
    let why = onewrite_rusqlite::last_error().unwrap_or_default();
    assert!(why.contains("replicate --sync"), "{error}: {why}");
    let without = place.run(&["replicate", "--once", place.file.to_str().unwrap(), &place.url("a/b")]);
    assert!(said(&without).contains("add --sync"), "{}", said(&without));
    let shipper = place.sync(&[]);
    until("the store has it", || db.query_row("SELECT count(*) FROM t", [], |row| row.get(0)).ok() == Some(3));
    insert(&db, 4).unwrap();
    assert_eq!(place.restored(&[]), place.here());
    drop(db);
    // The shipper's end leaves a plain file, and no writes.
    signal(shipper.0.id(), "TERM");
    let mut shipper = shipper;
    assert!(shipper.0.wait().unwrap().success());
    let plain = Connection::open(&place.file).unwrap();
    assert_eq!(rows(&plain), "1,2,3,4");
    drop(plain);
    let db = place.open(Duration::from_millis(100));
    assert_eq!(rows(&db), "1,2,3,4");
    let error = insert(&db, 5).unwrap_err();
    assert!(error.contains("replicate --sync"), "{error}");
}

#[test]
fn where_commits_wait_two_files_cannot_be_committed_together() {
    let place = Place::new();
    let _shipper = place.sync(&[]);
    let db = place.open(Duration::from_millis(100));
    let other = place.dir.path().join("other.db");
    db.execute_batch(&format!("ATTACH '{}' AS other; CREATE TABLE other.t(x)", other.display())).unwrap();
    let error =
        db.execute_batch("BEGIN; INSERT INTO t VALUES (2, 'x'); INSERT INTO other.t VALUES (1); COMMIT").unwrap_err();
    let why = onewrite_rusqlite::last_error().unwrap_or_default();
    assert!(why.contains("several files"), "{error}: {why}");
    db.execute_batch("ROLLBACK").unwrap_or(());
    let error = db.execute_batch("PRAGMA page_size=8192; VACUUM").unwrap_err();
    assert!(error.to_string().contains("lock"), "{error}");
    insert(&db, 3).unwrap();
    assert_eq!(place.restored(&[]), place.here());
    assert_eq!(rows(&db), "1,3");
    // A transaction larger than the log fails, too.
    let error = db.execute("INSERT INTO t VALUES (4, randomblob(9000000))", []).unwrap_err();
    assert!(error.to_string().contains("full"), "{error}");
    db.execute("INSERT INTO t VALUES (5, randomblob(1000000))", []).unwrap();
    assert_eq!(place.restored(&[]), place.here());
}

#[cfg_attr(windows, ignore = "sends signals, which Windows has not")]
#[test]
fn where_commits_wait_one_that_is_promoted_over_in_an_outage_is_fenced() {
    let place = Place::new();
    let mut first = place.sync(&["--ship-timeout", "20s"]);
    insert(&place.open(Duration::ZERO), 2).unwrap();
    place.bucket.lock().unwrap().is_away = true;
    let file = place.file.clone();
    let waits = thread::spawn(move || insert(&onewrite_rusqlite::open(file).unwrap(), 3).unwrap_err());
    // Stopped between two attempts; another machine is promoted.
    thread::sleep(Duration::from_secs(2));
    signal(first.0.id(), "STOP");
    place.bucket.lock().unwrap().is_away = false;
    let next = place.dir.path().join("next.db");
    let promoted = place.run(&["promote", next.to_str().unwrap(), &place.url("a/b")]);
    assert!(promoted.status.success(), "{}", said(&promoted));
    signal(first.0.id(), "CONT");
    let error = waits.join().unwrap();
    assert!(error.contains("fenced"), "{error}");
    assert_eq!(first.0.wait().unwrap().code(), Some(3));
    // A request under way may have arrived.
    let there = rows(&Connection::open(&next).unwrap());
    assert!(["1,2", "1,2,3"].contains(&&*there), "{there}");
}

/// Requests fail before or after their effect, or because of another one. The store has every
/// acknowledged commit.
#[test]
fn where_commits_wait_faults_of_the_store_cost_time_alone() {
    let place = Place::new();
    let _shipper = place.sync(&[]);
    let told = Mutex::new(Vec::from([1]));
    thread::scope(|scope| {
        for first in [100, 200, 300] {
            let (place, told) = (&place, &told);
            scope.spawn(move || {
                let db = place.open(Duration::from_secs(20));
                for n in first..first + 8 {
                    insert(&db, n).unwrap();
                    told.lock().unwrap().push(n);
                }
            });
        }
        scope.spawn(|| {
            while told.lock().unwrap().len() < 25 {
                let all = [Fault::Refused, Fault::AnswerLost, Fault::Conflict];
                let faults = (0..fastrand::usize(1..4)).map(|_| all[fastrand::usize(0..3)]);
                place.bucket.lock().unwrap().faults = faults.collect();
                let before = told.lock().unwrap().clone();
                let there = place.restored(&[]);
                let there: Vec<&str> = there.split(',').collect();
                assert!(
                    before.iter().all(|n| there.iter().any(|row| row.starts_with(&n.to_string()))),
                    "{before:?} {there:?}"
                );
                thread::sleep(Duration::from_millis(100));
            }
        });
    });
    assert_eq!(place.restored(&[]), place.here());
}

#[cfg_attr(windows, ignore = "Wine replaces no file that is open")]
#[test]
fn where_commits_wait_one_that_is_promoted_over_acknowledges_nothing_more() {
    for round in 0..5 {
        let place = Place::new();
        let mut first = place.sync(&["--ship-timeout", "5s"]);
        let file = place.file.clone();
        let writes = thread::spawn(move || {
            let db = onewrite_rusqlite::open(file).unwrap();
            db.busy_timeout(Duration::from_secs(5)).unwrap();
            for n in 2.. {
                if let Err(error) = insert(&db, n) {
                    // Rows 2 to `n - 1` were acknowledged.
                    assert!(error.contains("fenced"), "{error}");
                    let again = insert(&db, n + 1).unwrap_err();
                    assert!(again.contains("fenced") && again.contains("rejoin"), "{again}");
                    assert!(store_of(&db).starts_with("it belongs to another database"), "{}", store_of(&db));
                    return (n, rows(&db));
                }
            }
            unreachable!()
        });
        thread::sleep(Duration::from_millis(fastrand::u64(50..300)));
        let next = place.dir.path().join("next.db");
        let promoted = place.run(&["promote", next.to_str().unwrap(), &place.url("a/b")]);
        assert!(promoted.status.success(), "{}", said(&promoted));
        let (failed, seen) = writes.join().unwrap();
        assert_eq!(first.0.wait().unwrap().code(), Some(3));
        let told = (1..failed).map(|n| n.to_string()).collect::<Vec<_>>().join(",");
        assert_eq!(seen, told, "round {round}");
        let there = rows(&Connection::open(&next).unwrap());
        assert!(there == told || there == format!("{told},{failed}"), "round {round}: {there} of {told}");
        let moved = Place { file: next, bucket: place.bucket.clone(), server: place.server.clone(), ..Place::new() };
        let _second = moved.sync(&[]);
        insert(&moved.open(Duration::from_secs(5)), 100_000).unwrap();
        let rejoined = place.run(&["rejoin", place.file.to_str().unwrap(), &place.url("a/b")]);
        assert!(rejoined.status.success(), "{}", said(&rejoined));
        assert_eq!(place.here(), moved.here());
        let followed = place.run(&["follow", "--once", &place.url("a/b"), place.file.to_str().unwrap()]);
        assert!(followed.status.success(), "{}", said(&followed));
    }
}

/// Sends a signal, and waits for the end, for less time than one request may take.
fn ends_by(child: &mut Child, name: &str) -> std::process::ExitStatus {
    let begun = Instant::now();
    signal(child.id(), name);
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        assert!(begun.elapsed() < Duration::from_secs(15), "it does not end at SIG{name}");
        thread::sleep(Duration::from_millis(10));
    }
}

/// A job that a shell script put into the background ignores SIGINT, and so do its commands.
fn hears_interrupts() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.map_or(0, |mask| u64::from_str_radix(mask.trim(), 16).unwrap());
    // SIGINT is 2, and the lowest bit is signal 1.
    ignored & 2 == 0
}

fn temporary_files(place: &Place) -> Vec<String> {
    let files = std::fs::read_dir(place.dir.path()).unwrap();
    let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.starts_with(".onewrite")).collect()
}

#[cfg_attr(windows, ignore = "sends signals, which Windows has not")]
#[test]
fn a_signal_ends_every_command_while_the_store_does_not_answer() {
    let place = Place::new();
    place.ship();
    let (file, url, new) = (place.file.to_str().unwrap(), &*place.url("a/b"), place.dir.path().join("new.db"));
    let new = new.to_str().unwrap();
    place.stalls.store(true, Ordering::SeqCst);
    for name in ["TERM", "INT"].into_iter().filter(|name| *name != "INT" || hears_interrupts()) {
        for args in [
            &["restore", url, new][..],
            &["verify", file, url],
            &["promote", new, url],
            &["rejoin", file, url],
            &["follow", url, new],
            &["follow", "--once", url, new],
            &["replicate", file, url],
            &["replicate", "--once", file, url],
            &["replicate", "--sync", file, url],
        ] {
            let before = place.stalled.load(Ordering::SeqCst);
            let mut child = Killed(place.command(args).spawn().unwrap());
            until("it asks", || place.stalled.load(Ordering::SeqCst) > before);
            let status = ends_by(&mut child.0, name);
            assert!(!status.success(), "{args:?}: {status}");
            assert_eq!(temporary_files(&place), [""; 0], "{args:?}");
        }
    }
}

#[cfg_attr(windows, ignore = "sends signals, which Windows has not")]
#[test]
fn a_signal_ends_requests_to_a_silent_store() {
    for args in [&["replicate", "--interval", "20ms"][..], &["replicate", "--sync"], &["follow", "--interval", "20ms"]]
    {
        let place = Place::new();
        place.ship();
        let (file, url, new) = (place.file.to_str().unwrap(), &*place.url("a/b"), place.dir.path().join("new.db"));
        let follows = args[0] == "follow";
        let names = if follows { [url, new.to_str().unwrap()] } else { [file, url] };
        let mut child = Killed(place.command(&[args, &names[..], &["--json"]].concat()).spawn().unwrap());
        let mut lines = BufReader::new(child.0.stderr.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap().contains("began")), "{args:?}");
        place.stalls.store(true, Ordering::SeqCst);
        let _writes = (!follows).then(|| {
            let file = place.file.clone();
            thread::spawn(move || {
                let db = onewrite_rusqlite::open(file).unwrap();
                // With --sync the commit waits in vain.
                let _ = db.execute_batch("INSERT INTO t VALUES (2, randomblob(2000))");
            })
        });
        until("it asks", || place.stalled.load(Ordering::SeqCst) > 0);
        assert_eq!(ends_by(&mut child.0, "TERM").code(), Some(1), "{args:?}");
        let rest: Vec<String> = lines.map(|line| line.unwrap()).collect();
        assert!(rest.iter().any(|line| line.contains("it did not end in time")), "{args:?}: {rest:?}");
    }
}

#[cfg(unix)]
#[test]
fn a_second_signal_ends_one_that_still_ships_at_once() {
    let place = Place::new();
    place.ship();
    let (file, url) = (place.file.to_str().unwrap(), place.url("a/b"));
    let mut child = Killed(place.command(&["replicate", "--json", file, &url]).spawn().unwrap());
    let mut lines = BufReader::new(child.0.stderr.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().contains("began")));
    place.bucket.lock().unwrap().pause = Duration::from_millis(400);
    let asked = place.bucket.lock().unwrap().requests.len();
    place.sql("INSERT INTO t VALUES (2, randomblob(2000))");
    // The server holds this lock during its pause.
    until("it ships", || place.bucket.lock().unwrap().requests.len() > asked);
    signal(child.0.id(), "TERM");
    thread::sleep(Duration::from_millis(50));
    let status = ends_by(&mut child.0, "TERM");
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(9), "{status}");
}

/// The output of each command with these arguments and variables, as lines and as JSON.
fn all_said(place: &Place, url: &str, variables: &[(&str, &str)], more: &[&str]) -> String {
    said_by(place, 7, url, variables, more)
}

/// The same for the first `commands` commands.
fn said_by(place: &Place, commands: usize, url: &str, variables: &[(&str, &str)], more: &[&str]) -> String {
    let (file, new) = (place.file.to_str().unwrap(), place.dir.path().join("new.db"));
    let new = new.to_str().unwrap();
    let mut all = String::new();
    for args in [
        &["restore", url, new][..],
        &["restore", "--timestamp", "2100-01-01T00:00:00Z", url, new],
        &["verify", "--wait", "0s", file, url],
        &["promote", new, url],
        &["rejoin", file, url],
        &["follow", "--once", url, new],
        &["replicate", "--once", file, url],
    ]
    .into_iter()
    .take(commands)
    {
        for json in [&[][..], &["--json"]] {
            let mut command = place.command(&[args, json, more].concat());
            command.env("AWS_ACCESS_KEY_ID", "AKIDSECRETX").env("AWS_SECRET_ACCESS_KEY", "TOPSECRETX/+y");
            command.env("AWS_SESSION_TOKEN", "TOKENSECRETX/+=y").envs(variables.iter().copied());
            let output = command.output().unwrap();
            assert!(output.status.code().is_some_and(|code| code < 100), "{}", said(&output));
            all += &said(&output);
        }
        for suffix in ["", "-follow", "-node", "-promoting", "-onewrite"] {
            let _ = std::fs::remove_file(format!("{new}{suffix}"));
        }
    }
    all
}

/// Errors of the URL, the environment, the connection, the server, and its messages.
#[cfg_attr(windows, ignore = "Wine has too few descriptors")]
#[test]
fn no_secret_is_told() {
    if Dialect::of_environment() != Dialect::S3 {
        return;
    }
    let place = Place::new();
    place.ship();
    let at = place.server.server_addr().to_string();
    let good = place.url("a/b");
    let check = |what: &str, text: String| {
        assert!(!text.is_empty(), "{what}");
        for line in text.lines() {
            assert!(!line.contains("SECRETX"), "{what}: {line}");
        }
    };
    for url in [
        "s3://bucket/a?endpoint=http://user:SECRETX@AT",
        "s3://bucket/a?endpoint=http://SECRETX@AT",
        "s3://bucket/a?endpoint=http%3A%2F%2Fuser%3ASECRETX%40AT",
        "s3://bucket/a?endpoint=http%3a%2f%2fuser%3aSECRETX%40AT",
        "s3://bucket/a?endpoint=http://user:SECRETX/x@AT",
        "s3://bucket/a?endpoint=http://user:x&SECRETX@AT",
        "s3://bucket/a?endpoint=http://user:SECRETX&x@AT",
        "s3://bucket/a?endpoint=http://user:x#SECRETX@AT",
        "s3://bucket/a?endpoint=user:SECRETX@AT",
        "s3://bucket/a?endpoint=http://user:'a SECRETX b'@AT",
        "s3://bucket/a?endpoint=http://AT?token=SECRETX",
        "s3://bucket/a?endpoint=http://AT&secret=SECRETX",
        "s3://bucket/a?endpoint=http://AT&SECRETX",
        "s3://bucket/a?endpoint=http://AT#SECRETX",
        "s3://bucket/a?endpoint=http://AT&X-Amz-Signature=SECRETX",
        "s3://AKID:SECRETX@bucket/a?endpoint=http://AT",
        "s3://AKID:x/SECRETX@bucket/a?endpoint=http://AT",
        "s3://SECRETX@bucket/a?endpoint=http://AT",
        "https://user:SECRETX@AT/a",
        "sftp://user:SECRETX@AT/a",
        "file://user:SECRETX@host/a",
        "file:///a?token=SECRETX",
        "user:SECRETX@host/a",
    ] {
        let url = url.replace("AT", &at);
        check(&url, all_said(&place, &url, &[], &[]));
        if !url.contains(' ') {
            check(&url, said_by(&place, 1, &url, &[], &["one-too-many"]));
            check(&url, said_by(&place, 1, "one-too-many", &[], &[&url]));
        }
    }
    for (name, value) in [
        ("AWS_ENDPOINT_URL", "http://user:SECRETX@AT"),
        ("AWS_ENDPOINT_URL_S3", "user:SECRETX@AT"),
        ("AWS_ENDPOINT_URL", "http://AT/?token=SECRETX"),
        ("HTTP_PROXY", "http://user:SECRETX@127.0.0.1:1"),
        ("ALL_PROXY", "socks9://user:SECRETX@127.0.0.1:1"),
        ("AWS_CA_BUNDLE", "/nowhere"),
        ("AWS_SECRET_ACCESS_KEY", "OTHERSECRETX"),
    ] {
        let value = value.replace("AT", &at);
        let url = if name.starts_with("AWS_ENDPOINT") { "s3://bucket/a/b" } else { &*good };
        check(name, said_by(&place, 1, url, &[(name, &value), ("NO_PROXY", "")], &[]));
    }
    for endpoint in ["http://127.0.0.1:1", "https://127.0.0.1:1"] {
        check(endpoint, said_by(&place, 1, &format!("s3://bucket/a/b?endpoint={endpoint}"), &[], &[]));
    }
    let echoes: Answers = |request, _| {
        let headers: Vec<String> = request.headers.iter().map(|(name, value)| format!("{name}: {value}")).collect();
        let (url, headers) = (request.url.replace('&', "&amp;"), headers.join(" "));
        let echo =
            format!("{} http://here{} {headers} Authorization: AWS4 Credential=SECRETX", request.url, request.url);
        Some(xml(403, format!("<Error><Code>{url}</Code><Message>{echo}</Message></Error>")))
    };
    place.bucket.lock().unwrap().answers = Some(echoes);
    check("echo", all_said(&place, &good, &[], &[]));
    for status in [301, 400, 404, 500] {
        place.bucket.lock().unwrap().answers = None;
        place.bucket.lock().unwrap().refuses = Some((status, "Said", "X-Amz-Credential=SECRETX TOKENSECRETX/+=y"));
        check("refused", said_by(&place, if status == 500 { 1 } else { 7 }, &good, &[], &[]));
    }
    place.bucket.lock().unwrap().refuses = None;
    check("all is well", all_said(&place, &good, &[], &[]));
}

/// While a file is made, and when it has its name.
#[cfg(unix)]
#[test]
fn no_file_is_ever_open_to_more_than_the_database_was() {
    use std::os::unix::fs::PermissionsExt;
    let place = Place::new();
    std::fs::set_permissions(&place.file, std::fs::Permissions::from_mode(0o640)).unwrap();
    place.ship();
    place.bucket.lock().unwrap().pause = Duration::from_millis(20);
    let (url, new) = (place.url("a/b"), place.dir.path().join("new"));
    for command in ["restore", "follow", "promote"] {
        std::fs::create_dir(&new).unwrap();
        let dest = new.join("r.db");
        let mut child = Command::new("sh");
        let of =
            place.command(if command == "follow" { &["follow", "--once"] } else { std::slice::from_ref(&command) });
        child.args(["-c", "umask 0; exec \"$@\"", "sh"]).arg(of.get_program()).args(of.get_args());
        match command {
            "promote" => child.arg(&dest).arg(&url),
            _ => child.arg(&url).arg(&dest),
        };
        child.envs(of.get_envs().filter_map(|(name, value)| Some((name, value?)))).stderr(Stdio::piped());
        let mut child = Killed(child.spawn().unwrap());
        let mut seen = 0;
        while child.0.try_wait().unwrap().is_none() {
            for file in std::fs::read_dir(&new).unwrap() {
                let path = file.unwrap().path();
                let name = path.file_name().unwrap().to_str().unwrap().to_owned();
                // The node's number and the promotion's mark have no content of the database.
                let Ok(data) = path.symlink_metadata() else { continue };
                if name.ends_with("-node") || name.ends_with("-promoting") || name.starts_with(".onewrite-node") {
                    continue;
                }
                let most = if data.is_dir() { 0o700 } else { 0o640 };
                assert_eq!(data.permissions().mode() & 0o777 & !most, 0, "{command}: {name}");
                seen += u32::from(name.starts_with(".onewrite") || name.contains("-follow-new"));
            }
        }
        assert!(child.0.wait().unwrap().success() && seen > 0, "{command}: {seen}");
        assert_eq!(dest.metadata().unwrap().permissions().mode() & 0o777, 0o640, "{command}");
        std::fs::remove_dir_all(&new).unwrap();
    }
}

fn metrics(heard: &str) -> String {
    let at = heard.split("http://").nth(1).unwrap().split("/metrics").next().unwrap();
    let mut to = TcpStream::connect(at).unwrap();
    write!(to, "GET /metrics HTTP/1.1\r\nHost: {at}\r\nConnection: close\r\n\r\n").unwrap();
    let mut text = String::new();
    to.read_to_string(&mut text).unwrap();
    text
}

#[test]
fn where_commits_wait_a_request_without_an_answer_is_sent_again_on_a_new_connection() {
    let place = Place::new();
    let (_shipper, heard) = place.sync_and_hear(&["--ship-timeout", "10s", "--metrics", "127.0.0.1:0"]);
    let db = place.open(Duration::from_millis(100));
    insert(&db, 2).unwrap();
    // The batch, done or not, once and twice; and the look for the file of an earlier attempt.
    let lost: [&[Option<bool>]; 4] =
        [&[Some(false)], &[Some(true)], &[Some(false), Some(true)], &[Some(true), None, Some(false)]];
    for (n, lost) in (3..).zip(lost) {
        place.bucket.lock().unwrap().silent.extend(lost);
        let begun = Instant::now();
        insert(&db, n).unwrap();
        let took = begun.elapsed();
        assert!((800..9_000).contains(&took.as_millis()), "{lost:?}: {took:?}");
        place.bucket.lock().unwrap().silent.clear();
    }
    assert_eq!(place.restored(&[]), place.here());
    let heard = heard.lock().unwrap().clone();
    assert!(heard.contains("did not answer a request (put) within"), "{heard}");
    assert!(!heard.contains("not shipped"), "{heard}");
    let told = metrics(&heard);
    let slow = told.lines().find_map(|line| line.strip_prefix("onewrite_store_slow_requests_total ")).unwrap();
    assert!((6..=8).contains(&slow.parse::<u32>().unwrap()), "{slow}");
}

static THROTTLED: AtomicUsize = AtomicUsize::new(0);
static THROTTLES_BY: AtomicUsize = AtomicUsize::new(503);

/// A server that throttles reads of files, or fails with each.
fn throttles(request: &Asked, _: &BTreeMap<String, String>) -> Option<Answer> {
    let is_read = request.method == Method::Get && request.path.contains(".ltx");
    let left =
        THROTTLED.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(usize::from(is_read)));
    if !is_read || left == Err(0) {
        return None;
    }
    let status = THROTTLES_BY.load(Ordering::SeqCst);
    let answer = error(u16::try_from(status).unwrap(), "SlowDown");
    Some(answer.with_header(Header::from_bytes("Retry-After", "0").unwrap()))
}

#[test]
fn a_store_that_fails_is_not_a_damaged_one() {
    let place = Place::new();
    place.ship();
    place.sql("INSERT INTO t VALUES (2, randomblob(2000))");
    place.ship();
    let keys = place.keys();
    let file = place.file.to_str().unwrap();
    place.sql("INSERT INTO t VALUES (3, randomblob(2000))");
    place.bucket.lock().unwrap().answers = Some(throttles);
    // As often as it takes.
    for (n, status) in (1..).zip([429, 500, 503]) {
        THROTTLES_BY.store(status, Ordering::SeqCst);
        THROTTLED.store(6, Ordering::SeqCst);
        let said_by = place.ship();
        assert!(said_by.contains("a batch of") && !said_by.contains("new snapshot"), "{status}: {said_by}");
        assert_eq!((place.keys().len(), THROTTLED.load(Ordering::SeqCst)), (keys.len() + n, 0));
        place.sql(&format!("INSERT INTO t VALUES ({}, randomblob(2000))", 100 + n));
    }
    place.ship();
    let keys = place.keys();
    // Not for good: nothing is known about the files.
    place.sql("INSERT INTO t VALUES (4, randomblob(2000))");
    THROTTLED.store(usize::MAX, Ordering::SeqCst);
    let output = place.run(&["replicate", "--once", file, &place.url("a/b")]);
    assert!(!output.status.success() && said(&output).contains("503 SlowDown"), "{}", said(&output));
    assert!(!said(&output).contains("snapshot"), "{}", said(&output));
    assert_eq!(place.keys().len(), keys.len());
    place.bucket.lock().unwrap().answers = None;
    assert!(place.ship().contains("a batch of"));
    // A file that was read, and is wrong.
    place.sql("INSERT INTO t VALUES (5, randomblob(2000))");
    let key = place.keys().into_iter().rfind(|key| key.ends_with(".ltx")).unwrap();
    place.bucket.lock().unwrap().objects.get_mut(&key).unwrap().bytes[150] ^= 1;
    assert!(place.ship().contains("a new snapshot follows"));
    assert_eq!(place.restored(&[]), place.here());
}

/// A listing is no snapshot: a name is seen, and an earlier one that was made meanwhile is not.
#[test]
fn a_name_that_one_listing_lacks_is_no_gap() {
    let place = Place::new();
    for n in 2..7 {
        place.ship();
        place.sql(&format!("INSERT INTO t VALUES ({n}, randomblob(2000))"));
    }
    place.ship();
    let (file, url, replica) = (place.file.to_str().unwrap(), place.url("a/b"), place.dir.path().join("replica.db"));
    let replica = replica.to_str().unwrap();
    let hide = |n: u64| place.bucket.lock().unwrap().unlisted = Some(format!("a/b/0000/{n:016x}-{n:016x}.ltx"));
    for n in 1..6 {
        hide(n);
        assert_eq!(place.restored(&[]), place.here(), "{n}");
        hide(n);
        place.restored(&["--txid", &format!("{n:x}")]);
        hide(n);
        let verified = place.run(&["verify", file, &url]);
        assert!(verified.status.success(), "{}", said(&verified));
    }
    hide(3);
    let followed = place.run(&["follow", "--once", &url, replica]);
    assert!(followed.status.success(), "{}", said(&followed));
    for n in 7..9 {
        place.sql(&format!("INSERT INTO t VALUES ({n}, randomblob(2000))"));
        hide(n - 2);
        let shipped = place.ship();
        assert!(shipped.contains("a batch of") && !shipped.contains("snapshot"), "{shipped}");
    }
    hide(7);
    let followed = place.run(&["follow", "--once", &url, replica]);
    assert!(followed.status.success(), "{}", said(&followed));
    assert!(place.bucket.lock().unwrap().unlisted.is_none());
    // One that is not there is one.
    place.bucket.lock().unwrap().objects.remove("a/b/0000/0000000000000003-0000000000000003.ltx");
    let restored = place.run(&["restore", &url, place.dir.path().join("gap.db").to_str().unwrap()]);
    assert!(said(&restored).contains("transaction 3 is missing"), "{}", said(&restored));
}

#[cfg_attr(windows, ignore = "sends signals, which Windows has not")]
#[test]
fn where_commits_wait_they_do_not_wait_for_a_snapshot() {
    let place = Place::new();
    place.bucket.lock().unwrap().holds_snapshots = true;
    let (shipper, _heard) = place.sync_and_hear(&["--snapshot-interval", "300ms"]);
    let db = place.open(Duration::from_millis(100));
    let snapshots = || place.keys().iter().filter(|key| key.contains("/0009/")).count();
    insert(&db, 2).unwrap();
    thread::sleep(Duration::from_millis(400));
    // The first of these begins one.
    for n in 3..20 {
        let begun = Instant::now();
        insert(&db, n).unwrap();
        assert!(begun.elapsed() < Duration::from_secs(2), "{n}: {:?}", begun.elapsed());
    }
    assert_eq!(snapshots(), 0);
    assert_eq!(place.restored(&[]), place.here());
    place.bucket.lock().unwrap().holds_snapshots = false;
    until("it is there", || snapshots() > 0);
    assert_eq!(place.restored(&[]), place.here());
    // At its end the shipper waits for none.
    place.bucket.lock().unwrap().holds_snapshots = true;
    thread::sleep(Duration::from_millis(400));
    insert(&db, 20).unwrap();
    drop(db);
    signal(shipper.0.id(), "TERM");
    let mut shipper = shipper;
    assert!(shipper.0.wait().unwrap().success());
    place.bucket.lock().unwrap().holds_snapshots = false;
    let verified = place.run(&["verify", "--wait", "0s", place.file.to_str().unwrap(), &place.url("a/b")]);
    assert!(verified.status.success(), "{}", said(&verified));
}

#[test]
fn batches_do_not_wait_for_a_snapshot() {
    let place = Place::new();
    place.bucket.lock().unwrap().holds_snapshots = true;
    let (file, url) = (place.file.to_str().unwrap().to_owned(), place.url("a/b"));
    let mut shipper = place.command(&["replicate", "--interval", "20ms", "--snapshot-interval", "300ms", &file, &url]);
    let _shipper = Killed(shipper.spawn().unwrap());
    until("the first one", || place.keys().len() == 3);
    thread::sleep(Duration::from_millis(400));
    for n in 2..6 {
        place.sql(&format!("INSERT INTO t VALUES ({n}, 'x')"));
        until("a batch", || place.keys().iter().filter(|key| key.contains("/0000/")).count() >= n);
    }
    place.bucket.lock().unwrap().holds_snapshots = false;
    until("a snapshot", || place.keys().iter().any(|key| key.contains("/0009/")));
    assert_eq!(place.restored(&[]), place.here());
}

#[cfg_attr(windows, ignore = "sends signals, which Windows has not")]
#[test]
fn a_replica_whose_next_batches_are_merged_and_gone_goes_on() {
    let place = Place::new();
    place.bucket.lock().unwrap().lists = Lists::HourBehind;
    place.ship();
    let (replica, url) = (place.dir.path().join("replica.db"), place.url("a/b"));
    let mut follower = place.command(&["follow", "--interval", "50ms", &url, replica.to_str().unwrap()]);
    let follower = Killed(follower.spawn().unwrap());
    until("the replica is made", || replica.exists());
    let count = || -> i64 {
        let db = onewrite_rusqlite::open(&replica).unwrap();
        db.busy_timeout(Duration::from_secs(10)).unwrap();
        db.query_row("SELECT count(*) FROM t", [], |row| row.get(0)).unwrap()
    };
    place.sql("INSERT INTO t VALUES (2, 'x')");
    place.ship();
    until("the batch is applied", || count() == 2);
    signal(follower.0.id(), "STOP");
    let hasty = ["replicate", "--once", "--levels", "1ms", "--keep-batches", "0s"];
    for n in 3..8 {
        place.sql(&format!("INSERT INTO t VALUES ({n}, 'x')"));
        let output = place.run(&[&hasty[..], &[place.file.to_str().unwrap(), &url]].concat());
        assert!(output.status.success(), "{}", said(&output));
        thread::sleep(Duration::from_millis(5));
    }
    let batches = place.keys().iter().filter(|key| key.contains("/0000/")).count();
    assert!(batches <= 2, "{:?}", place.keys());
    signal(follower.0.id(), "CONT");
    let begun = Instant::now();
    until("it goes on", || count() == 7);
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
}

#[test]
fn a_store_that_is_away_or_empty_at_the_start_is_waited_for() {
    let place = Place::new();
    place.bucket.lock().unwrap().is_away = true;
    let replica = place.dir.path().join("replica.db");
    let (file, url) = (place.file.to_str().unwrap().to_owned(), place.url("a/b"));
    let hear = |args: &[&str]| {
        let mut child = Killed(place.command(args).spawn().unwrap());
        let mut said = BufReader::new(child.0.stderr.take().unwrap());
        let mut line = String::new();
        said.read_line(&mut line).unwrap();
        (child, said, line)
    };
    let (_follower, _rest, line) = hear(&["follow", "--interval", "50ms", &url, replica.to_str().unwrap()]);
    assert!(line.contains("waiting for the store") && line.contains("503"), "{line}");
    let (_shipper, mut said_by, line) = hear(&["replicate", "--sync", &file, &url]);
    assert!(line.contains("waiting for the store") && line.contains("503"), "{line}");
    place.bucket.lock().unwrap().is_away = false;
    let mut all = String::new();
    while !all.contains("commits wait for it") {
        assert!(said_by.read_line(&mut all).unwrap() > 0, "{all}");
    }
    assert!(all.contains("the store is there"), "{all}");
    insert(&place.open(Duration::from_secs(1)), 2).unwrap();
    until("the replica is made", || replica.exists());
    // A run that is to end ends.
    place.bucket.lock().unwrap().is_away = true;
    let other = place.dir.path().join("other.db");
    let output = place.run(&["follow", "--once", &url, other.to_str().unwrap()]);
    assert!(!output.status.success() && said(&output).contains("503"), "{}", said(&output));
}

/// The looks at the owner and for the newest file are under way together with the batch.
#[test]
fn a_commit_waits_for_one_round_trip_to_the_store() {
    let place = Place::new();
    let _shipper = place.sync(&[]);
    let db = place.open(Duration::from_millis(100));
    insert(&db, 2).unwrap();
    for n in 3..6 {
        thread::sleep(Duration::from_millis(1100));
        // None of the three is answered before all have come.
        place.bucket.lock().unwrap().holds_for = 3;
        insert(&db, n).unwrap();
        assert_eq!(place.bucket.lock().unwrap().holds_for, 0);
    }
    let (before, begun) = (place.bucket.lock().unwrap().requests.len(), Instant::now());
    for n in 6..26 {
        insert(&db, n).unwrap();
    }
    let looks = usize::try_from(begun.elapsed().as_secs()).unwrap() + 1;
    let requests = place.bucket.lock().unwrap().requests[before..].to_vec();
    assert!((20..=20 + 2 * looks).contains(&requests.len()), "{requests:?}");
    assert_eq!(place.restored(&[]), place.here());
}

/// The database is as large as it likes: the store gets all of it before commits wait.
#[test]
fn where_commits_wait_they_do_not_wait_for_the_first_copy() {
    let place = Place::new();
    place.bucket.lock().unwrap().holds_first = true;
    let (file, url) = (place.file.to_str().unwrap().to_owned(), place.url("a/b"));
    let mut child = Killed(place.command(&["replicate", "--sync", &file, &url]).spawn().unwrap());
    let mut said_by = BufReader::new(child.0.stderr.take().unwrap());
    let mut all = String::new();
    said_by.read_line(&mut all).unwrap();
    assert!(all.contains("gets every page") && all.contains("do not wait"), "{all}");
    let db = place.open(Duration::from_millis(100));
    until("the request", || place.bucket.lock().unwrap().requests.iter().any(|request| request.contains("owner.json")));
    thread::sleep(Duration::from_millis(300));
    for n in 2..10 {
        insert(&db, n).unwrap();
    }
    assert!(!place.keys().iter().any(|key| key.contains("/0000/")), "{:?}", place.keys());
    place.bucket.lock().unwrap().holds_first = false;
    while !all.contains("commits wait for it") {
        assert!(said_by.read_line(&mut all).unwrap() > 0, "{all}");
    }
    // Those of before are there by the first commit that was waited for.
    insert(&db, 10).unwrap();
    assert_eq!(place.restored(&[]), place.here());
    assert!(store_of(&db).contains("commits wait"), "{}", store_of(&db));
}
