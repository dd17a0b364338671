//! Many databases in one process.
//!
//! A few threads serve all of them. The *leader* waits for the next database that is due, and looks
//! whether its files have changed. If they have, another thread leads from there on, and this one
//! ships. So idle databases need one thread, and one whose store is slow holds up no other:
//! databases of one place of stores have [`OF_ONE_PLACE`] threads at most. A database whose commits
//! wait for its store has a thread of its own.

mod member;

use crate::config::{ConfiguredDatabases, FleetConfig};
use crate::local::locked;
use crate::metrics::{COUNTED, HttpPage, PLAIN};
use crate::report::{COUNTERS, metric_text, now_ms};
use crate::ship::MergeWork;
use anyhow::Result;
pub use member::{FleetMember, MemberNews, Stopped, worst};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Threads at most; and those at once for stores of one place.
const THREADS_MAX: usize = 512;
const OF_ONE_PLACE: usize = 64;
/// Threads that wait for work, beside the leader; each ends after a time without any.
const SPARE_MAX: usize = 3;
const SPARE: Duration = Duration::from_secs(10);
/// Databases are looked at together, so that the leader wakes up this often at most.
const TICK: Duration = Duration::from_millis(100);
/// Pause between two attempts to have a database looked at, which another thread may be doing.
const HASTENS: Duration = Duration::from_millis(10);

/// Databases that are shipped.
pub struct Fleet {
    shared: Arc<FleetShared>,
    config: Vec<ConfiguredDatabases>,
    /// Threads of databases whose commits wait.
    waiting: Vec<thread::JoinHandle<()>>,
}

struct FleetShared {
    began: Instant,
    queue: Mutex<FleetQueue>,
    due: Condvar,
    spare: Condvar,
    ended: Condvar,
    members: Mutex<Vec<Arc<FleetMember>>>,
}

#[derive(Default)]
struct FleetQueue {
    due: BTreeMap<(Instant, u64), FleetJob>,
    number: u64,
    /// By the place of their stores.
    running: HashMap<String, usize>,
    held: HashMap<String, VecDeque<FleetJob>>,
    has_leader: bool,
    spare: usize,
    threads: usize,
    /// Databases that have not ended.
    open: usize,
    ends: bool,
}

struct FleetJob {
    member: Arc<FleetMember>,
    /// `None`: looks at the database.
    merge: Option<MergeWork>,
}

impl FleetQueue {
    fn put(&mut self, at: Instant, job: FleetJob) {
        self.number += 1;
        self.due.insert((at, self.number), job);
    }

    /// The next job, or when there may be one.
    fn next(&mut self) -> Result<FleetJob, Option<Instant>> {
        loop {
            let Some(first) = self.due.first_entry() else { return Err(None) };
            let at = first.key().0;
            if at > Instant::now() {
                return Err(Some(at));
            }
            let job = first.remove();
            let running = self.running.get(&job.member.group).copied().unwrap_or(0);
            if running < OF_ONE_PLACE {
                return Ok(job);
            }
            self.held.entry(job.member.group.clone()).or_default().push_back(job);
        }
    }

    fn begins(&mut self, group: &str) {
        *self.running.entry(group.to_owned()).or_default() += 1;
    }

    fn has_ended(&mut self, group: &str) {
        if let Some(running) = self.running.get_mut(group) {
            *running = running.saturating_sub(1);
        }
        if let Some(job) = self.held.get_mut(group).and_then(VecDeque::pop_front) {
            self.put(Instant::now(), job);
        }
    }
}

impl Fleet {
    /// The databases of a configuration.
    pub fn new(config: FleetConfig) -> Fleet {
        let shared = Arc::new(FleetShared {
            began: Instant::now(),
            queue: Mutex::default(),
            due: Condvar::new(),
            spare: Condvar::new(),
            ended: Condvar::new(),
            members: Mutex::default(),
        });
        Fleet { shared, config: config.databases, waiting: Vec::new() }
    }

    /// Begins to ship them.
    pub fn begin(&mut self) -> Result<()> {
        for at in 0..self.config.len() {
            self.look_for(at)?;
        }
        locked(&self.shared.queue).threads = 1;
        let shared = self.shared.clone();
        thread::spawn(move || serve(&shared));
        Ok(())
    }

    /// Looks for new databases in directories that are watched. Returns the pause until the next
    /// look; `None`: there are none.
    pub fn look_for_new(&mut self) -> Option<Duration> {
        let begun = Instant::now();
        let mut any = false;
        for at in 0..self.config.len() {
            if self.config.get(at).is_some_and(ConfiguredDatabases::is_watched) {
                any = true;
                if let Err(e) = self.look_for(at) {
                    COUNTERS.error();
                    member::tell_once(&format!("cannot look for databases: {e:#}"));
                }
            }
        }
        any.then(|| begun.elapsed().saturating_mul(20).max(Duration::from_secs(1)))
    }

    fn look_for(&mut self, at: usize) -> Result<()> {
        let Some(of) = self.config.get(at) else { return Ok(()) };
        let known: BTreeSet<PathBuf> = self.members().iter().map(|member| member.file.clone()).collect();
        let files = of.files_beyond(&|file| known.contains(file))?;
        for file in files.into_iter().filter(|file| !known.contains(file)) {
            let member = Arc::new(FleetMember::new(&file, of));
            let waits = member.waits();
            locked(&self.shared.members).push(member.clone());
            let mut queue = locked(&self.shared.queue);
            queue.open += 1;
            if waits {
                drop(queue);
                let shared = self.shared.clone();
                self.waiting.push(thread::spawn(move || serve_waiting(&shared, &member)));
            } else {
                queue.put(Instant::now(), FleetJob { member, merge: None });
                self.shared.due.notify_one();
            }
        }
        Ok(())
    }

    /// The databases.
    pub fn members(&self) -> Vec<Arc<FleetMember>> {
        self.control().members()
    }

    /// Whether each database has begun, or cannot now although its commits need not wait.
    pub fn is_ready(&self) -> bool {
        self.members().iter().all(|member| member.is_ready())
    }

    /// Whether no database is shipped any more.
    pub fn has_ended(&self) -> bool {
        locked(&self.shared.queue).open == 0 && !self.config.iter().any(ConfiguredDatabases::is_watched)
    }

    /// Answers requests for `/metrics`, `/healthz` and `/replicas`.
    pub fn pages(&self) -> impl Fn(&str) -> HttpPage + Send + 'static {
        let control = self.control();
        move |path| control.page(path)
    }

    /// What the control socket may do.
    pub fn control(&self) -> Control {
        Control { shared: self.shared.clone() }
    }

    /// Ships the rest of all databases.
    pub fn finish(self) -> Vec<Arc<FleetMember>> {
        let mut queue = locked(&self.shared.queue);
        queue.ends = true;
        let jobs: Vec<FleetJob> =
            std::mem::take(&mut queue.due).into_values().filter(|job| job.merge.is_none()).collect();
        for job in jobs {
            queue.put(Instant::now(), job);
        }
        self.shared.due.notify_one();
        while queue.open > 0 {
            queue = self.shared.ended.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
        drop(queue);
        self.members()
    }
}

/// Looks into a fleet, and hastens it.
pub struct Control {
    shared: Arc<FleetShared>,
}

impl Control {
    /// The databases.
    pub fn members(&self) -> Vec<Arc<FleetMember>> {
        locked(&self.shared.members).clone()
    }

    /// The process, under the names of Litestream's `/info`.
    pub fn info(&self) -> Value {
        let uptime = self.shared.began.elapsed();
        let started_ms = now_ms() - i64::try_from(uptime.as_millis()).unwrap_or(0);
        json!({
            "version": env!("CARGO_PKG_VERSION"),
            "pid": std::process::id(),
            "uptime_seconds": uptime.as_secs(),
            "started_at": crate::times::shown(started_ms),
            "database_count": self.members().len(),
        })
    }

    /// One of the pages that [`Fleet::pages`] answers.
    pub fn page(&self, path: &str) -> HttpPage {
        page(path, &self.members())
    }

    /// Waits until the store has what a database has now, and returns its newest transaction. Else
    /// an HTTP status and the reason.
    pub fn ship_now(&self, file: &Path, patience: Duration) -> Result<u64, (u16, String)> {
        let known = self.members().into_iter().find(|member| member.file == file);
        let Some(member) = known else {
            return Err((404, format!("no database {} is shipped here", file.display())));
        };
        let (begun, asked_ms, errors) = (Instant::now(), now_ms(), member.news().errors);
        loop {
            self.shared.hasten(&member);
            let news = member.news();
            if news.stopped.is_some() {
                return Err((409, format!("it is not shipped any more: {}", news.word())));
            }
            if news.same_ms.is_some_and(|same| same >= asked_ms) {
                return Ok(news.txid);
            }
            if let Some(error) = news.error.filter(|_| news.errors > errors) {
                return Err((503, error));
            }
            if begun.elapsed() >= patience {
                let seconds = patience.as_secs();
                return Err((
                    504,
                    format!("the store does not have it within {seconds} s; it is shipped all the same"),
                ));
            }
            thread::sleep(HASTENS);
        }
    }
}

/// Serves databases until the process ends, or there are threads enough.
fn serve(shared: &Arc<FleetShared>) {
    let mut queue = locked(&shared.queue);
    loop {
        while queue.has_leader {
            if queue.spare >= SPARE_MAX {
                queue.threads = queue.threads.saturating_sub(1);
                return;
            }
            queue.spare += 1;
            let (back, waited) = shared.spare.wait_timeout(queue, SPARE).unwrap_or_else(PoisonError::into_inner);
            queue = back;
            queue.spare = queue.spare.saturating_sub(1);
            if waited.timed_out() && queue.has_leader {
                queue.threads = queue.threads.saturating_sub(1);
                return;
            }
        }
        queue.has_leader = true;
        let job;
        (queue, job) = lead(shared, queue);
        queue.has_leader = false;
        queue.begins(&job.member.group);
        if queue.spare > 0 {
            shared.spare.notify_one();
        } else if queue.threads < THREADS_MAX {
            queue.threads += 1;
            let shared = shared.clone();
            thread::spawn(move || serve(&shared));
        }
        let ends = queue.ends;
        drop(queue);
        let group = job.member.group.clone();
        let next = run(shared, &job, ends);
        queue = locked(&shared.queue);
        queue.has_ended(&group);
        match next {
            Some(next) if !queue.ends => queue.put(next, job),
            // The last step is still to come.
            Some(_) if job.merge.is_none() => queue.put(Instant::now(), job),
            Some(_) => {}
            None if job.merge.is_none() => shared.has_ended(&mut queue, &job.member),
            None => {}
        }
        shared.due.notify_one();
    }
}

/// Waits for a database that is due and not at rest.
fn lead<'a>(shared: &'a FleetShared, mut queue: MutexGuard<'a, FleetQueue>) -> (MutexGuard<'a, FleetQueue>, FleetJob) {
    loop {
        let job = match queue.next() {
            Ok(job) => job,
            Err(Some(at)) => {
                let nap = at.saturating_duration_since(Instant::now());
                queue = shared.due.wait_timeout(queue, nap).unwrap_or_else(PoisonError::into_inner).0;
                continue;
            }
            Err(None) => {
                queue = shared.due.wait(queue).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
        };
        if job.merge.is_some() || queue.ends {
            return (queue, job);
        }
        drop(queue);
        let is_at_rest = job.member.is_at_rest();
        queue = locked(&shared.queue);
        if !is_at_rest || queue.ends {
            return (queue, job);
        }
        if let Some(work) = job.member.merge_due() {
            queue.put(Instant::now(), FleetJob { member: job.member.clone(), merge: Some(work) });
        }
        queue.put(shared.tick(Instant::now() + job.member.interval), job);
    }
}

/// Does the job, and returns when it is due again; `None`: never.
fn run(shared: &Arc<FleetShared>, job: &FleetJob, ends: bool) -> Option<Instant> {
    if let Some(work) = &job.merge {
        if catch_unwind(AssertUnwindSafe(|| job.member.merge(work))).is_err() {
            let _next = job.member.begin_anew(false);
        }
        return None;
    }
    let next = run_whole(&job.member, ends);
    if let Some(work) = job.member.merge_due().filter(|_| !ends) {
        locked(&shared.queue).put(Instant::now(), FleetJob { member: job.member.clone(), merge: Some(work) });
    }
    next.map(|next| if job.member.interval < TICK { next } else { shared.tick(next) })
}

/// A panic ends no database: it begins anew.
fn run_whole(member: &FleetMember, ends: bool) -> Option<Instant> {
    let done = catch_unwind(AssertUnwindSafe(|| member.run(ends)));
    done.unwrap_or_else(|_| member.begin_anew(ends))
}

fn serve_waiting(shared: &Arc<FleetShared>, member: &Arc<FleetMember>) {
    loop {
        let ends = locked(&shared.queue).ends;
        match run_whole(member, ends) {
            Some(next) => member.wait(next),
            None => break,
        }
    }
    shared.has_ended(&mut locked(&shared.queue), member);
}

impl FleetShared {
    /// The next tick at this time or later.
    fn tick(&self, at: Instant) -> Instant {
        let since = at.saturating_duration_since(self.began).as_millis();
        let ticks = since.div_ceil(TICK.as_millis());
        u32::try_from(ticks).ok().and_then(|ticks| self.began.checked_add(TICK.checked_mul(ticks)?)).unwrap_or(at)
    }

    /// Has a database looked at now.
    fn hasten(&self, member: &Arc<FleetMember>) {
        let mut queue = locked(&self.queue);
        let is_its = |job: &FleetJob| job.merge.is_none() && Arc::ptr_eq(&job.member, member);
        let at = queue.due.iter().find(|(_, job)| is_its(job)).map(|(at, _)| *at);
        if let Some(job) = at.and_then(|at| queue.due.remove(&at)) {
            queue.put(Instant::now(), job);
            self.due.notify_one();
        }
    }

    fn has_ended(&self, queue: &mut FleetQueue, member: &Arc<FleetMember>) {
        queue.open = queue.open.saturating_sub(1);
        if member.news().stopped == Some(Stopped::Gone) {
            locked(&self.members).retain(|other| !Arc::ptr_eq(other, member));
        }
        self.ended.notify_all();
    }
}

fn page(path: &str, members: &[Arc<FleetMember>]) -> HttpPage {
    match path {
        "/metrics" => (200, COUNTED, COUNTERS.text_of_all() + &text(members)),
        "/healthz" => {
            let troubles: String = members
                .iter()
                .filter_map(|member| Some(format!("{}: {}\n", member.file.display(), member.news().error?)))
                .collect();
            match troubles.is_empty() {
                true => (200, PLAIN, "ok\n".to_owned()),
                false => (503, PLAIN, crate::secrets::scrubbed(&troubles)),
            }
        }
        "/replicas" => {
            let all: Vec<_> = members.iter().map(|member| member.object()).collect();
            (200, "application/json", crate::secrets::scrubbed(&serde_json::Value::from(all).to_string()))
        }
        _ => (404, PLAIN, "there are /metrics, /healthz and /replicas\n".to_owned()),
    }
}

/// Metrics of each database, under Litestream's names where these mean the same.
fn text(members: &[Arc<FleetMember>]) -> String {
    let now_ms = now_ms();
    let all: Vec<(String, MemberNews, u64)> = members
        .iter()
        .map(|member| {
            let label =
                member.file.display().to_string().replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            let bytes = member.file.metadata().map_or(0, |data| data.len());
            (format!("{{db=\"{label}\"}}"), member.news(), bytes)
        })
        .collect();
    let values = |of: &dyn Fn(&MemberNews, u64) -> String| -> Vec<(String, String)> {
        all.iter().map(|(label, news, bytes)| (label.clone(), of(news, *bytes))).collect()
    };
    let lag = |news: &MemberNews| {
        news.lag_ms(now_ms).map_or_else(|| "NaN".to_owned(), |ms| format!("{}.{:03}", ms / 1000, ms % 1000))
    };
    let seconds = |news: &MemberNews| format!("{:.6}", news.time.as_secs_f64());
    [
        metric_text(
            "onewrite_lag_seconds",
            "gauge",
            "Time since both sides were seen to have the same state.",
            &values(&|n, _| lag(n)),
        ),
        metric_text(
            "onewrite_healthy",
            "gauge",
            "1 while the last look ended without an error.",
            &values(&|n, _| u8::from(n.error.is_none()).to_string()),
        ),
        metric_text(
            "litestream_txid",
            "gauge",
            "Transaction that both sides have.",
            &values(&|n, _| n.txid.to_string()),
        ),
        metric_text(
            "litestream_db_size",
            "gauge",
            "Bytes of the database's file.",
            &values(&|_, bytes| bytes.to_string()),
        ),
        metric_text(
            "litestream_sync_count",
            "counter",
            "Looks at the database, in which it was opened.",
            &values(&|n, _| n.looks.to_string()),
        ),
        metric_text(
            "litestream_sync_error_count",
            "counter",
            "Those that ended with an error.",
            &values(&|n, _| n.errors.to_string()),
        ),
        metric_text("litestream_sync_seconds", "counter", "Time that they took.", &values(&|n, _| seconds(n))),
        metric_text(
            "litestream_replica_operation_total",
            "counter",
            "Requests to buckets, tries counted.",
            &COUNTERS.bucket_requests(),
        ),
    ]
    .concat()
}
