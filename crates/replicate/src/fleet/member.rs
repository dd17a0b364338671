//! One database of many: it is waited for, begun, and shipped step by step, by any thread.

use crate::begin::{self, Beginning};
use crate::config::ConfiguredDatabases;
use crate::fence::Fenced;
use crate::local::{is_there, locked};
use crate::report::{COUNTERS, Level, about, is_verbose, now_ms, say};
use crate::ship::{MergeWork, Shipped, Shipper, Taken};
use crate::store::{self, Away, StoreKeys};
use anyhow::{Result, bail};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

/// Pauses before a start that failed is tried again: the first, doubled each time, and the last.
const AGAIN: Duration = Duration::from_secs(1);
const AGAIN_MAX: Duration = Duration::from_secs(60);
/// With commits that wait: pause after an error, and between two looks for the end.
const RETRY: Duration = Duration::from_millis(200);
const LOOK: Duration = Duration::from_millis(100);

/// One database of many.
pub struct FleetMember {
    /// The database.
    pub file: PathBuf,
    /// Its store.
    pub url: String,
    /// Time between two looks.
    pub interval: Duration,
    /// The place of its store: databases of one place share threads.
    pub(super) group: String,
    name: Arc<str>,
    keys: Option<StoreKeys>,
    settings: crate::ship::Settings,
    restores: bool,
    /// The directory that stores lie below, where the database was found in one.
    found_below: Option<String>,
    stage: Mutex<Stage>,
    news: Mutex<MemberNews>,
    merge_at: Mutex<Instant>,
}

enum Stage {
    Begins { pause: Duration },
    Ships(Box<Shipper>),
    Ended,
}

/// Why a database is not shipped any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stopped {
    /// The process ends, and all is shipped.
    Done,
    /// The process ends, and not all is shipped.
    Left,
    /// The store belongs to another process.
    Fenced,
    /// It was found in a directory, and is gone.
    Gone,
}

/// What is known of a database.
#[derive(Clone, Debug, Default)]
pub struct MemberNews {
    /// The newest transaction of the store.
    pub txid: u64,
    /// When both sides had the same state, in milliseconds since 1970.
    pub same_ms: Option<i64>,
    /// The error of the last look.
    pub error: Option<String>,
    /// When that error came first.
    pub since_ms: Option<i64>,
    /// Looks, those with an error, and their time.
    pub looks: u64,
    /// See `looks`.
    pub errors: u64,
    /// See `looks`.
    pub time: Duration,
    /// Why it is not shipped any more.
    pub stopped: Option<Stopped>,
    is_ready: bool,
    waits_for_it: bool,
}

impl MemberNews {
    /// Time since both sides had the same state.
    pub fn lag_ms(&self, now_ms: i64) -> Option<u64> {
        Some(u64::try_from(now_ms.saturating_sub(self.same_ms?)).unwrap_or(0))
    }

    /// The state in a word.
    pub fn word(&self) -> &'static str {
        match (self.stopped, &self.error, self.same_ms) {
            (Some(Stopped::Fenced), ..) => "fenced",
            (Some(Stopped::Gone), ..) => "gone",
            (Some(Stopped::Done | Stopped::Left), ..) => "ended",
            (None, Some(_), _) => "error",
            (None, None, Some(_)) => "ok",
            (None, None, None) if self.waits_for_it => "waiting",
            (None, None, None) => "begins",
        }
    }
}

/// Reports trouble that is of no database.
pub(super) fn tell_once(message: &str) {
    static TOLD: Mutex<String> = Mutex::new(String::new());
    let mut told = locked(&TOLD);
    if *told != message {
        say(Level::Warning, "not_shipped", &[], message);
        message.clone_into(&mut told);
    }
}

/// The place of a store: that of others which are away when it is.
fn group_of(url: &str) -> String {
    let (base, parameters) = url.split_once('?').unwrap_or((url, ""));
    match base.split_once("://") {
        Some((scheme, path)) if scheme != "file" => {
            format!("{scheme}://{}?{parameters}", path.split('/').next().unwrap_or_default())
        }
        _ => base.rsplit_once('/').map_or(base, |(parent, _)| parent).to_owned(),
    }
}

impl FleetMember {
    pub(super) fn new(file: &Path, of: &ConfiguredDatabases) -> FleetMember {
        let url = of.url_of(file);
        FleetMember {
            file: file.to_owned(),
            group: group_of(&url),
            interval: of.interval,
            name: file.display().to_string().into(),
            keys: of.keys.clone(),
            settings: of.settings.clone(),
            restores: of.restores,
            found_below: matches!(of.place, crate::config::DatabasesPlace::Directory { .. }).then(|| of.url.clone()),
            stage: Mutex::new(Stage::Begins { pause: AGAIN }),
            news: Mutex::default(),
            merge_at: Mutex::new(Instant::now()),
            url,
        }
    }

    /// Whether commits wait for its store.
    pub(super) fn waits(&self) -> bool {
        self.settings.sync.is_some()
    }

    /// What is known of it.
    pub fn news(&self) -> MemberNews {
        locked(&self.news).clone()
    }

    /// The same, for programs.
    pub fn object(&self) -> Value {
        let news = self.news();
        json!({
            "db": self.file.display().to_string(),
            "replica": self.url,
            "status": news.word(),
            "txid": format!("{:016x}", news.txid),
            "lag_ms": news.lag_ms(now_ms()),
            "sync": self.waits(),
            "error": news.error,
            "since_ms": news.since_ms,
        })
    }

    /// The same under the names of Litestream's `/list`.
    pub fn summary(&self) -> Value {
        let news = self.news();
        let status = match news.word() {
            "ok" | "error" => "replicating",
            "begins" | "waiting" => "open",
            _ => "stopped",
        };
        let mut summary = json!({ "path": self.file.display().to_string(), "status": status });
        if let (Some(members), Some(same_ms)) = (summary.as_object_mut(), news.same_ms) {
            members.insert("last_sync_at".to_owned(), crate::times::shown(same_ms).into());
        }
        summary
    }

    /// Whether an application may begin to use it.
    pub fn is_ready(&self) -> bool {
        let news = locked(&self.news);
        news.is_ready || news.stopped.is_some()
    }

    /// Whether a look would find no change.
    pub(super) fn is_at_rest(&self) -> bool {
        let stage = locked(&self.stage);
        let is = matches!(&*stage, Stage::Ships(shipper) if shipper.is_at_rest());
        if is {
            locked(&self.news).same_ms = Some(now_ms());
        }
        is
    }

    /// Files that are to be merged now.
    pub(super) fn merge_due(&self) -> Option<MergeWork> {
        let stage = locked(&self.stage);
        let Stage::Ships(shipper) = &*stage else { return None };
        let mut at = locked(&self.merge_at);
        if *at > Instant::now() {
            return None;
        }
        let work = shipper.merge_work()?;
        // Until the round has ended.
        *at = Instant::now() + AGAIN_MAX;
        Some(work)
    }

    pub(super) fn merge(&self, work: &MergeWork) {
        let _about = about(&self.name);
        let pause = work.round().unwrap_or(AGAIN);
        *locked(&self.merge_at) = Instant::now() + pause;
    }

    /// Waits for a commit that waits for the store, until `next` at most.
    pub(super) fn wait(&self, next: Instant) {
        let nap = next.saturating_duration_since(Instant::now());
        if !nap.is_zero() {
            thread::sleep(nap.min(LOOK));
            return;
        }
        let stage = locked(&self.stage);
        if let Stage::Ships(shipper) = &*stage
            && shipper.wait(LOOK).is_err()
        {
            // The next step finds the error.
            thread::sleep(RETRY);
        }
    }

    /// Takes the next step, the last one if it `ends`. Returns when another is due.
    pub(super) fn run(&self, ends: bool) -> Option<Instant> {
        let _about = about(&self.name);
        let begun = Instant::now();
        let mut stage = locked(&self.stage);
        if self.found_below.is_some() && !ends && is_there(&self.file).is_ok_and(|is| !is) {
            say(Level::Info, "gone", &[], "the database is gone: its store is left as it is");
            return self.stop(&mut stage, Stopped::Gone);
        }
        match &mut *stage {
            Stage::Ended => None,
            Stage::Begins { .. } if ends => self.stop(&mut stage, Stopped::Done),
            Stage::Begins { pause } => {
                let next = *pause;
                *pause = pause.saturating_mul(2).min(AGAIN_MAX);
                match self.begin() {
                    Ok(Some(shipper)) => {
                        *stage = Stage::Ships(Box::new(shipper));
                        Some(begun)
                    }
                    Ok(None) => {
                        *stage = Stage::Begins { pause: AGAIN };
                        Some(begun + self.interval.min(AGAIN))
                    }
                    Err(e) => {
                        let next = if e.is::<Away>() { AGAIN } else { next };
                        if self.failed(&e, false) { self.stop(&mut stage, Stopped::Fenced) } else { Some(begun + next) }
                    }
                }
            }
            Stage::Ships(shipper) => {
                let before_ms = now_ms();
                let mut tell = |shipped: &Shipped| begin::tell_shipped(shipped, is_verbose());
                let done = if ends { shipper.last_step(&mut tell) } else { shipper.step(&mut tell) };
                self.looked(shipper, begun, done.is_ok().then_some(before_ms));
                match done {
                    Ok(()) if ends => self.stop(&mut stage, Stopped::Done),
                    Ok(()) if self.waits() => Some(Instant::now()),
                    Ok(()) => Some((begun + self.interval).max(Instant::now())),
                    Err(e) if self.failed(&e, ends) => self.stop(&mut stage, Stopped::Fenced),
                    Err(_) if ends => self.stop(&mut stage, Stopped::Left),
                    Err(_) => Some(Instant::now() + if self.waits() { RETRY } else { self.interval }),
                }
            }
        }
    }

    /// After a panic, which was printed.
    pub(super) fn begin_anew(&self, ends: bool) -> Option<Instant> {
        let _about = about(&self.name);
        self.failed(&anyhow::anyhow!("a fault of this program stopped it: it begins anew in a minute"), ends);
        let mut stage = locked(&self.stage);
        if ends {
            return self.stop(&mut stage, Stopped::Left);
        }
        *stage = Stage::Begins { pause: AGAIN };
        Some(Instant::now() + AGAIN_MAX)
    }

    fn stop(&self, stage: &mut Stage, why: Stopped) -> Option<Instant> {
        *stage = Stage::Ended;
        locked(&self.news).stopped = Some(why);
        None
    }

    fn begin(&self) -> Result<Option<Shipper>> {
        let keys = self.keys.as_ref();
        let of = Beginning { file: &self.file, url: &self.url, keys, sync: self.waits(), restores: self.restores };
        if !is_there(&self.file)? && !begin::begin_database(&of)? {
            let mut news = locked(&self.news);
            if !std::mem::replace(&mut news.waits_for_it, true) {
                say(Level::Info, "waiting", &[], "there is no such database yet: it is waited for");
            }
            (news.is_ready, news.error, news.since_ms) = (true, None, None);
            return Ok(None);
        }
        begin::check_mode(&self.file, self.waits())?;
        if let Some(base) = &self.found_below {
            begin::make_below(base, &self.url)?;
        }
        let shipper = Shipper::new(&self.file, store::open_with(&self.url, keys)?, self.settings.clone())?;
        let mode = if self.waits() { ", and commits will wait for it" } else { "" };
        let every = humantime::format_duration(self.interval);
        say(Level::Info, "began", &[], &format!("shipping to {} every {every}{mode}", self.url));
        Ok(Some(shipper))
    }

    /// Notes a step of the shipper; `same_ms`: both sides had the same state then.
    fn looked(&self, shipper: &Shipper, begun: Instant, same_ms: Option<i64>) {
        let mut news = locked(&self.news);
        news.looks += 1;
        news.time += begun.elapsed();
        let Some(same_ms) = same_ms else { return };
        news.txid = shipper.txid().unwrap_or(news.txid);
        news.same_ms = Some(same_ms);
        news.is_ready |= !self.waits() || shipper.makes_wait();
        if news.error.take().is_some() {
            news.since_ms = None;
            say(Level::Info, "goes_on", &[], "shipping goes on");
        }
    }

    /// Reports an error, once however often it comes. Whether the database cannot be shipped any
    /// more.
    fn failed(&self, error: &anyhow::Error, ends: bool) -> bool {
        let what = format!("{error:#}");
        let is_last = error.is::<Fenced>() || error.is::<Taken>();
        COUNTERS.error();
        let mut news = locked(&self.news);
        news.errors += 1;
        // Without commits that wait the application may begin; not before a restore.
        news.is_ready |= !self.waits() && is_there(&self.file).unwrap_or(true);
        let is_new = news.error.as_ref() != Some(&what);
        news.since_ms = news.since_ms.or_else(|| Some(now_ms()));
        news.error = Some(what.clone());
        drop(news);
        match (is_last, ends, is_new) {
            (true, ..) => say(Level::Error, if error.is::<Fenced>() { "fenced" } else { "failed" }, &[], &what),
            (_, true, _) => say(Level::Error, "failed", &[], &format!("not all is shipped: {what}")),
            (_, _, true) => say(Level::Warning, "not_shipped", &[], &format!("not shipped, trying again: {what}")),
            _ => {}
        }
        is_last
    }
}

/// The status of a process whose databases ended so: the worst of them.
pub fn worst(members: &[Arc<FleetMember>]) -> Result<Option<Stopped>> {
    let stopped: Vec<Stopped> = members.iter().filter_map(|member| member.news().stopped).collect();
    if stopped.contains(&Stopped::Fenced) {
        return Ok(Some(Stopped::Fenced));
    }
    if stopped.contains(&Stopped::Left) {
        bail!("not all databases are shipped");
    }
    Ok(None)
}
