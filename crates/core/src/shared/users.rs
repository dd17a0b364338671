//! The processes that use a database: by the shared words, the kernel's locks, and the open files.
//! It takes no lock.

use std::collections::BTreeMap;
use std::time::Duration;

use super::member::MemberFiles;
use super::slots::MoreSlots;
use super::words::{Pins, ProcessWords};
use crate::base::error::{IoContext, Result};
use crate::base::layout::lock_bytes::{ATTACH, OBSERVED, SLOTS};
use crate::base::text::printable;
use crate::base::types::Tid;
use crate::disk::processes::{self, FileUser, HeldLock, ProcessLife, ProcessTag};
use crate::disk::system::clock_s;
use crate::disk::{LockKind, locks};
use crate::log::file::LogFile;

const WORTH_A_LOOK: Duration = Duration::from_millis(100);

/// A process at a database.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DatabaseUser {
    /// In its own PID namespace.
    pub pid: Option<u32>,
    /// Program and arguments, as the process has them.
    pub command: Option<String>,
    /// Whether it goes on.
    pub life: ProcessLife,
    /// It uses the log. Else it has the file open, or is one of stock SQLite.
    pub is_attached: bool,
    /// Since it attached.
    pub attached: Option<Duration>,
    /// It has had the writer's place for so long.
    pub writing: Option<Duration>,
    /// Its open snapshots, as far as they are counted (8).
    pub snapshots: u64,
    /// Since it took the oldest one.
    pub snapshot: Option<Duration>,
    /// Transactions that the oldest one does not see.
    pub behind: Option<u64>,
    /// It sends commits to the store.
    pub ships: bool,
    /// It lets no other process use the log.
    pub is_alone: bool,
    /// Its locks on the database file, in SQLite's words.
    pub locks: Vec<&'static str>,
}

impl DatabaseUser {
    /// One word: `writing`, `reading`, `shipping`, `alone`, `idle`, and of a process that is not
    /// attached `locking` or `open`.
    pub fn activity(&self) -> &'static str {
        match self {
            DatabaseUser { writing: Some(_), .. } => "writing",
            DatabaseUser { snapshots: 1.., .. } => "reading",
            DatabaseUser { ships: true, .. } => "shipping",
            DatabaseUser { is_alone: true, .. } => "alone",
            DatabaseUser { is_attached: true, .. } => "idle",
            DatabaseUser { locks, .. } if !locks.is_empty() => "locking",
            _ => "open",
        }
    }

    /// Whether it may keep the file from being plain, or keep another process waiting.
    pub fn is_in_the_way(&self) -> bool {
        !matches!(self.activity(), "idle" | "open")
    }

    /// Name and value of each fact, for `PRAGMA onewrite_who`.
    pub fn facts(&self) -> Vec<(&'static str, String)> {
        let seconds = |time: Option<Duration>| time.map_or(String::new(), |time| format!("{:.1}", time.as_secs_f64()));
        let number = |number: Option<u64>| number.map_or(String::new(), |number| number.to_string());
        vec![
            ("pid", number(self.pid.map(u64::from))),
            ("command", printable(self.command.as_deref().unwrap_or_default()).into_owned()),
            ("state", self.life.word().to_owned()),
            ("activity", self.activity().to_owned()),
            ("attached_s", number(self.attached.map(|time| time.as_secs()))),
            ("writing_s", seconds(self.writing)),
            ("snapshots", self.snapshots.to_string()),
            ("snapshot_s", number(self.snapshot.map(|time| time.as_secs()))),
            ("behind", number(self.behind)),
            ("ships", u8::from(self.ships).to_string()),
            ("locks", self.locks.join(" ")),
        ]
    }
}

/// Those with the writer's place first. `log` is that of its session, if it has a mark.
pub fn users(files: &MemberFiles, log: Option<(&LogFile, u64)>) -> Result<Vec<DatabaseUser>> {
    let home = &*files.home;
    let home_id = home.id().context(|| "cannot look at the database file".into())?;
    let log_id = log.map(|(log, _)| log.file.id().context(|| log.what("cannot look at"))).transpose()?;
    let looked_at: Vec<_> = [Some(home_id), log_id].into_iter().flatten().collect();
    let opened = processes::users_of(&looked_at);
    let mut found = FoundUsers::of(&opened);
    if let Some((pid, lock)) = locks::posix_owner(home) {
        let user = found.user(pid);
        if user.locks.is_empty() {
            user.locks.push(lock);
        }
    }
    if let Some((log, session)) = log {
        found.add_slots(files, log, session)?;
    }
    Ok(found.finish())
}

#[derive(Default)]
struct FoundUsers {
    known: BTreeMap<u32, DatabaseUser>,
    slots: BTreeMap<usize, u32>,
    others: Vec<DatabaseUser>,
}

impl FoundUsers {
    fn of(opened: &[FileUser]) -> FoundUsers {
        let mut found = FoundUsers::default();
        let mut held: BTreeMap<u32, Vec<HeldLock>> = BTreeMap::new();
        for user in opened {
            match user.file {
                0 => {
                    found.user(user.pid);
                    held.entry(user.pid).or_default().extend(&user.locks);
                }
                _ => user.locks.iter().for_each(|lock| found.add_log_lock(user.pid, lock)),
            }
        }
        for (pid, held) in held {
            found.user(pid).locks = locks::names(&held);
        }
        found
    }

    fn user(&mut self, pid: u32) -> &mut DatabaseUser {
        self.known.entry(pid).or_default()
    }

    fn add_log_lock(&mut self, pid: u32, lock: &HeldLock) {
        let user = self.user(pid);
        if lock.first == ATTACH {
            user.is_attached = true;
            user.is_alone |= lock.exclusive;
        }
        if lock.first >= OBSERVED {
            user.snapshots = user.snapshots.saturating_add(1);
        }
        if let Some(slot) = lock.first.checked_sub(SLOTS).filter(|_| lock.exclusive && lock.first == lock.last) {
            self.slots.insert(usize::try_from(slot).unwrap_or(usize::MAX), pid);
        }
    }

    /// The words count while a process is attached, and tell the dead until the system starts anew.
    fn add_slots(&mut self, files: &MemberFiles, log: &LogFile, session: u64) -> Result<()> {
        let Ok(words) = log.file.shared_words(1) else { return Ok(()) };
        let words = ProcessWords::with(words, MoreSlots::new(files, &log.path, session));
        if !words.fit(session) {
            return Ok(());
        }
        let tells_of_dead = words.end(session, files.disk.system_start().unwrap_or(0)).is_some();
        for slot in words.used().from(0) {
            let at = SLOTS.saturating_add(slot as u64);
            let lives =
                log.file.conflicts(at, 1, LockKind::Shared).context(|| log.what("cannot look at the locks of"))?;
            let user = told(&words, slot);
            let here = words.tag(slot).is_here().then_some(user.pid).flatten();
            match self.slots.get(&slot).copied().or(here).filter(|_| lives) {
                Some(pid) => {
                    let known = self.user(pid);
                    let (locks, is_alone) = (std::mem::take(&mut known.locks), known.is_alone);
                    *known = DatabaseUser { locks, is_alone, ..user };
                }
                None if lives => self.others.push(user),
                None if tells_of_dead => self.others.push(DatabaseUser { life: ProcessLife::Ended, ..user }),
                None => {}
            }
        }
        Ok(())
    }

    fn finish(self) -> Vec<DatabaseUser> {
        let looked_up = self.known.into_iter().map(|(pid, user)| DatabaseUser {
            pid: Some(pid),
            command: processes::command(pid),
            life: processes::life(pid),
            ..user
        });
        let mut all: Vec<_> = looked_up.chain(self.others).collect();
        let order = ["writing", "reading", "shipping", "alone", "locking", "idle", "open"];
        all.sort_by_key(|user| order.iter().position(|activity| *activity == user.activity()));
        all
    }
}

fn told(words: &ProcessWords, slot: usize) -> DatabaseUser {
    let tag = words.tag(slot);
    // The file of further slots may be closed to this user.
    let pins = words.reach(slot).map(|()| words.pins(slot)).unwrap_or_default();
    let oldest: Option<Tid> = pins.exact.iter().copied().chain(pins.floor).min();
    let since = u64::from(words.snapshot_since(slot));
    DatabaseUser {
        pid: tag.pid(),
        is_attached: true,
        attached: tag.pid().map(|_| Duration::from_secs(tag.age_s())),
        writing: words.busy_for().filter(|(owner, _)| *owner == slot).map(|(_, time)| time),
        snapshots: count(&pins),
        snapshot: oldest.map(|_| Duration::from_secs(clock_s().saturating_sub(since))),
        behind: oldest.map(|tid| words.visible().0.saturating_sub(tid.0)),
        ships: words.shipper() == Some(slot),
        ..DatabaseUser::default()
    }
}

fn count(pins: &Pins) -> u64 {
    (pins.exact.len() as u64).saturating_add(u64::from(pins.floor.is_some()))
}

/// For a message: those that the words of a log name, but for slot `me`.
pub fn named(words: &ProcessWords, me: Option<usize>) -> String {
    let others = words.used().from(0).filter(|slot| Some(*slot) != me);
    listed(others.map(|slot| words.tag(slot)).filter(|tag| tag.pid().is_some()).map(ProcessTag::name))
}

/// For a message: those that have lock `byte`, after a wait that makes the look worth it.
pub fn holders(log: &LogFile, byte: u64, waited: Duration) -> String {
    let id = log.file.id().ok().filter(|_| waited >= WORTH_A_LOOK);
    let users = id.map_or_else(Vec::new, |id| processes::users_of(&[id]));
    let holds = |user: &FileUser| user.locks.iter().any(|lock| lock.first <= byte && lock.last >= byte);
    listed(users.iter().filter(|user| holds(user)).map(|user| processes::name(user.pid)))
}

fn listed(names: impl Iterator<Item = String>) -> String {
    let names: Vec<String> = names.collect();
    match &names[..] {
        [] => String::new(),
        [name] => format!(": {name}"),
        [name, more @ ..] => format!(": {name}, and {} more", more.len()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::words::SnapshotCell;
    use std::sync::Arc;

    #[test]
    fn the_words_tell_the_holds_of_a_process() {
        let words = ProcessWords::new(Arc::default());
        words.found(1, false, 1, Tid(20));
        words.enter(3, ProcessTag::this());
        assert_eq!((told(&words, 3).activity(), told(&words, 3).pid), ("idle", Some(std::process::id())));
        words.set_shipper(3);
        assert_eq!(told(&words, 3).activity(), "shipping");
        words.set_pin(3, SnapshotCell::Own(1), Some(Tid(15)));
        words.set_pin(3, SnapshotCell::Floor, Some(Tid(12)));
        words.set_snapshot_since(3, u32::try_from(clock_s()).unwrap() - 5);
        let user = told(&words, 3);
        assert_eq!((user.activity(), user.snapshots, user.behind), ("reading", 2, Some(8)));
        assert!((5..60).contains(&user.snapshot.unwrap().as_secs()), "{user:?}");
        words.clear(3);
        assert!(words.shipper().is_none() && !words.used().has(3));
    }

    #[test]
    fn many_names_are_counted() {
        let names = |count: usize| listed((0..count).map(|n| n.to_string()));
        assert_eq!([names(0), names(1), names(3)], ["", ": 0", ": 0, and 2 more"]);
    }
}
