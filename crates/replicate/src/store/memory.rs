//! A store in memory, for models: requests fail before or after their effect, are refused because
//! of another request, take effect after their error, and are delayed. The model checker's seed
//! decides.

use super::{Away, Conditions, Entry, Fill, Name, Store, Version};
use crate::rules::{Rule, keeps, model};
use anyhow::{Context, Error, Result, anyhow, bail, ensure};
use shuttle::rand::Rng;
use shuttle::thread;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io::{Cursor, Read};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

#[derive(Default)]
pub(crate) struct Contents {
    /// Bytes, and the time of their state.
    files: BTreeMap<Name, (Vec<u8>, i64)>,
    owner: Option<(Vec<u8>, u64)>,
    versions: u64,
    /// Failed requests that are still to take effect.
    late: usize,
    log: Vec<String>,
    check: Option<fn(&[Entry])>,
}

impl Contents {
    fn entries(&self) -> Vec<Entry> {
        let entry = |(name, (bytes, time_ms)): (&Name, &(Vec<u8>, i64))| Entry {
            name: *name,
            time_ms: *time_ms,
            bytes: bytes.len() as u64,
        };
        self.files.iter().map(entry).collect()
    }
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Faults {
    /// One in this many requests to change something; 0: none.
    pub(crate) changes: u32,
    /// One in this many requests to read; 0: none.
    pub(crate) reads: u32,
    /// Failed requests may take effect later.
    pub(crate) late: bool,
    /// Some requests and answers wait while others get up to this many turns.
    pub(crate) stall: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Done,
    /// Not done, with an error.
    Refused,
    /// Done, with an error.
    AnswerLost,
    /// Done later, with an error.
    Late,
    /// Not done, since another request is under way.
    Conflict,
}

pub(crate) struct Process {
    left: AtomicI64,
    tidied: AtomicU64,
}

#[derive(Clone)]
pub(crate) struct Memory {
    contents: Arc<Mutex<Contents>>,
    /// Locked where another task may run.
    turn: Arc<shuttle::sync::Mutex<()>>,
    process: Arc<Process>,
    faults: Faults,
}

/// One in this many reads, and changes, is delayed; so is one in this many answers.
const STALLED_READS: u32 = 24;
const STALLED_CHANGES: u32 = 4;

thread_local! {
    static NAMED: RefCell<BTreeMap<String, Memory>> = const { RefCell::new(BTreeMap::new()) };
}

pub(super) fn named(name: &str) -> Result<Memory> {
    NAMED.with_borrow(|all| all.get(name).cloned()).context("there is no such store")
}

/// An error that is the store's, or may be any.
fn failed(why: &str) -> Error {
    let is_away = model::is_on() && shuttle::rand::thread_rng().gen_bool(0.5);
    if is_away { anyhow!("{why}").context(Away) } else { anyhow!("{why}") }
}

/// Prints the events, for one run of a seed that failed, with `ONEWRITE_MODEL_TRACE`.
macro_rules! trace {
    ($($what:tt)*) => {
        if std::env::var_os("ONEWRITE_MODEL_TRACE").is_some() {
            println!($($what)*);
        }
    };
}
pub(crate) use trace;

impl Memory {
    pub(crate) fn new(faults: Faults) -> Memory {
        NAMED.take();
        let process = Arc::new(Process { left: AtomicI64::new(i64::MAX), tidied: AtomicU64::new(0) });
        Memory { contents: Arc::default(), turn: Arc::default(), process, faults }
    }

    pub(crate) fn with(&self, faults: Faults) -> Memory {
        Memory { faults, ..self.clone() }
    }

    /// The same store as `memory://name`, for another process that is killed after so many
    /// requests.
    pub(crate) fn process(&self, name: &str, requests: i64) -> Memory {
        let process = Arc::new(Process { left: AtomicI64::new(requests), tidied: AtomicU64::new(0) });
        let memory = Memory { process, ..self.clone() };
        NAMED.with_borrow_mut(|all| all.insert(name.to_owned(), memory.clone()));
        memory
    }

    pub(crate) fn check_always(&self, check: fn(&[Entry])) {
        self.lock().check = Some(check);
    }

    pub(crate) fn is_killed(&self) -> bool {
        self.process.left.load(SeqCst) < 0
    }

    pub(crate) fn tidied(&self) -> u64 {
        self.process.tidied.load(SeqCst)
    }

    pub(crate) fn peek(&self) -> (Option<Vec<u8>>, Vec<Entry>) {
        let contents = self.lock();
        (contents.owner.as_ref().map(|(record, _)| record.clone()), contents.entries())
    }

    /// Removes a file as a user's hand would, if `may` agrees to the files that are left.
    pub(crate) fn vandalize(&self, name: Name, may: impl Fn(&[Entry]) -> bool) -> bool {
        let mut contents = self.lock();
        let mut left = contents.entries();
        left.retain(|entry| entry.name != name);
        if !may(&left) {
            return false;
        }
        trace!("removed by hand: {name}");
        contents.files.remove(&name).is_some()
    }

    pub(crate) fn settle(&self) {
        while self.lock().late > 0 {
            thread::yield_now();
        }
    }

    pub(crate) fn log(&self) -> Vec<String> {
        self.lock().log.clone()
    }

    fn lock(&self) -> MutexGuard<'_, Contents> {
        self.contents.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take_turn(&self) {
        drop(self.turn.lock().unwrap());
    }

    fn stall(&self, one_in: u32) {
        if self.faults.stall > 0 && shuttle::rand::thread_rng().gen_ratio(1, one_in) {
            // The exponent is random, so short and long delays are equally likely.
            let most = shuttle::rand::thread_rng().gen_range(0..=self.faults.stall.ilog2());
            for _ in 0..shuttle::rand::thread_rng().gen_range(0..=1 << most) {
                thread::yield_now();
            }
        }
    }

    /// Whether the process is killed at this request; an error if it was killed before.
    fn is_last(&self) -> Result<bool> {
        match self.process.left.fetch_sub(1, SeqCst) {
            1.. => Ok(false),
            0 => Ok(true),
            _ => Err(anyhow!("it was killed")),
        }
    }

    fn read<T>(&self, what: impl FnOnce(&Contents) -> T) -> Result<T> {
        if !model::is_on() {
            // A helper thread, whose starter waits.
            ensure!(!self.is_killed(), "it was killed");
            return Ok(what(&self.lock()));
        }
        self.stall(STALLED_READS);
        self.take_turn();
        ensure!(!self.is_last()?, "it was killed");
        let refused = self.faults.reads > 0 && shuttle::rand::thread_rng().gen_ratio(1, self.faults.reads);
        if refused {
            return Err(failed("refused"));
        }
        let read = what(&self.lock());
        self.stall(STALLED_READS);
        Ok(read)
    }

    /// Applies `what` at once, later or never, and returns the sender's answer.
    fn change(&self, named: &str, what: impl FnOnce(&mut Contents) -> bool + Send + 'static) -> Result<bool> {
        self.stall(STALLED_CHANGES);
        let mut fate = Fate::Done;
        if self.faults.changes > 0 && shuttle::rand::thread_rng().gen_ratio(1, self.faults.changes) {
            let late = if self.faults.late { Fate::Late } else { Fate::AnswerLost };
            let all = [Fate::Refused, Fate::AnswerLost, late, Fate::Conflict];
            fate = all[shuttle::rand::thread_rng().gen_range(0..all.len())];
        }
        if self.is_last()? {
            let all = [Fate::Refused, Fate::AnswerLost, if self.faults.late { Fate::Late } else { Fate::Refused }];
            fate = all[shuttle::rand::thread_rng().gen_range(0..all.len())];
        }
        let told = format!("{named}: {fate:?}");
        trace!("{told}");
        self.lock().log.push(told);
        let done = match fate {
            Fate::Done => Ok(self.apply(what)),
            Fate::Refused => Err(failed("refused")),
            Fate::AnswerLost => {
                self.apply(what);
                Err(failed("the answer was lost"))
            }
            Fate::Late => {
                self.lock().late += 1;
                let (memory, named, most) = (self.clone(), named.to_owned(), self.faults.stall.max(20));
                thread::spawn(move || {
                    for _ in 0..shuttle::rand::thread_rng().gen_range(0..most) {
                        thread::yield_now();
                    }
                    trace!("late: {named}");
                    memory.apply(what);
                    memory.lock().late -= 1;
                });
                Err(failed("no answer"))
            }
            Fate::Conflict => Ok(false),
        };
        self.stall(STALLED_CHANGES);
        done
    }

    fn apply(&self, what: impl FnOnce(&mut Contents) -> bool) -> bool {
        self.take_turn();
        let mut contents = self.lock();
        let done = what(&mut contents);
        let checked = contents.check.map(|check| (check, contents.entries()));
        drop(contents);
        if let Some((check, entries)) = checked {
            check(&entries);
        }
        done
    }
}

impl Store for Memory {
    fn begin(&mut self, _: u64) -> Result<Conditions> {
        Ok(Conditions { create: true, replace: true })
    }

    fn owner(&self) -> Result<Option<(Vec<u8>, Version)>> {
        let owner = self.read(|contents| contents.owner.clone())?;
        Ok(owner.map(|(record, version)| (record, Version(version.to_string()))))
    }

    fn set_owner(&self, was: Option<&Version>, record: &[u8]) -> Result<bool> {
        let blindly = !keeps(Rule::ReplaceIfRead);
        let (was, record) = (was.cloned(), record.to_owned());
        self.change("owner", move |contents| {
            let now = contents.owner.as_ref().map(|(_, version)| Version(version.to_string()));
            if now != was && !blindly {
                return false;
            }
            contents.versions += 1;
            contents.owner = Some((record, contents.versions));
            true
        })
    }

    fn list_from(&self, level: u8, first: u64) -> Result<Vec<Entry>> {
        let is_wanted = |name: Name| name.level == level && name.min >= first;
        self.read(|contents| contents.entries().into_iter().filter(|entry| is_wanted(entry.name)).collect())
    }

    fn has(&self, name: Name) -> Result<bool> {
        self.read(|contents| contents.files.contains_key(&name))
    }

    fn open(&self, name: Name) -> Result<Box<dyn Read>> {
        let file = self.read(|contents| contents.files.get(&name).cloned())?;
        Ok(Box::new(Cursor::new(file.context("there is none")?.0)))
    }

    fn read_part(&self, name: Name, offset: u64, bytes: u64) -> Result<Vec<u8>> {
        let part = self.read(|contents| {
            let (all, _) = contents.files.get(&name)?;
            let begin = usize::try_from(offset).ok()?.min(all.len());
            let end = begin.saturating_add(usize::try_from(bytes).ok()?).min(all.len());
            all.get(begin..end).map(<[u8]>::to_vec)
        })?;
        match part {
            Some(part) => Ok(part),
            None => bail!("there is none"),
        }
    }

    fn create(&self, name: Name, time_ms: i64, fill: Fill<'_>) -> Result<bool> {
        let replaces = !keeps(Rule::CreateOnce);
        let mut bytes = Vec::new();
        fill(&mut bytes)?;
        if name.level > super::BATCHES && name.level < super::SNAPSHOTS {
            self.process.tidied.fetch_add(1, SeqCst);
        }
        self.change(&name.to_string(), move |contents| {
            if contents.files.contains_key(&name) && !replaces {
                return false;
            }
            contents.files.insert(name, (bytes, time_ms));
            true
        })
    }

    fn remove(&self, name: Name) -> Result<()> {
        self.process.tidied.fetch_add(1, SeqCst);
        let done = self.change(&format!("removal of {name}"), move |contents| {
            contents.files.remove(&name);
            true
        });
        ensure!(done?, "another request is under way");
        Ok(())
    }
}
