//! Commits that wait for a store: one process, the shipper, sends flushed records, and readers see
//! a state when the store has it.
//!
//! ```text
//! commit     flush.rs: written, flushed by one for all: FLUSHED; then waits until all may see it
//! shipper    sends what is flushed and not SHIPPED, one batch at a time; SHIPPED, so VISIBLE
//! ```
//!
//! A file beside the database demands it (rule StoreHasIt). The word SHIP says how the store does.

use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use crate::base::clock::Instant;
use crate::base::error::{Error, IoContext, Result};
use crate::base::layout::SYNC_SUFFIX;
use crate::base::types::Tid;
use crate::database::{Database, DatabaseState};
use crate::disk::beside;
use crate::disk::{OpenMode, system};
use crate::log::group::Durability;
use crate::shared::member::Member;
use crate::shared::words::{Ship, reached};

/// How often a waiting commit looks whether the database still works.
const LOOK: Duration = Duration::from_millis(50);
/// The shipper may set another time.
const PATIENCE_MS: u64 = 30_000;
/// Contents of the file beside a replica. Other contents, or none, make commits wait.
pub const REPLICA: &[u8] = b"replica\n";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sign {
    /// Commits wait for a store.
    Waits,
    /// They would, and the database is a replica now: the follower alone commits.
    Replica,
}

/// The file by which commits wait for a store.
pub fn sync_path(home: &Path) -> PathBuf {
    beside::path(home, SYNC_SUFFIX)
}

impl Database {
    /// `None`: there is no such file, and commits do not wait for a store.
    pub fn sign(&self) -> Result<Option<Sign>> {
        let sign = sync_path(&self.path);
        if !self.disk.exists(&sign).context(|| format!("cannot look for {}", sign.display()))? {
            return Ok(None);
        }
        let what = || format!("cannot read {}", sign.display());
        let file = beside::open(&*self.disk, &sign, OpenMode::ReadOnly, &*self.home, what)?;
        let mut text = [0; REPLICA.len()];
        let read = file.read_at(&mut text, 0).context(what)?;
        Ok(Some(if text.get(..read) == Some(REPLICA) { Sign::Replica } else { Sign::Waits }))
    }

    pub fn is_signed(&self) -> Result<bool> {
        Ok(self.sign()?.is_some())
    }

    pub fn is_replica(&self) -> Error {
        Error::ReadOnly(format!(
            "{} is a replica, or is to become one: nothing else is committed here. `onewrite promote` makes it the database that \
             is shipped",
            self.path.display()
        ))
    }

    /// `writes`: the session is begun to commit, not to recover (rule StoreHasIt).
    pub fn check_begins(&self, inner: &DatabaseState, ships: bool, writes: bool) -> Result<()> {
        let sign = self.sign()?;
        match sign {
            None => return Ok(()),
            Some(Sign::Replica) if writes && !ships => return Err(self.is_replica()),
            Some(_) => {}
        }
        let path = self.path.display();
        if !ships && sign == Some(Sign::Waits) {
            return Err(Error::Busy(format!(
                "commits to {path} wait for a store, and nobody ships it there: start `onewrite replicate --sync`"
            )));
        }
        if !self.facts().all_in_log() || inner.options.concurrent {
            return Err(Error::Option(format!(
                "commits to {path} wait for a store, which goes with scheme=log or wal-opt, and not with concurrent=1"
            )));
        }
        Ok(())
    }

    /// The transaction would build on a state that the store does not take now.
    pub fn store_is_away(&self) -> Error {
        let member = self.member();
        let words = member.as_ref().map(|member| &member.words);
        let late = words.map_or(Duration::ZERO, |words| words.late_for());
        let patience = words.map_or(0, |words| words.ship_ms());
        Error::Busy(format!(
            "the store of {} has taken nothing for {} s: roll back, and try again when it is back. `onewrite replicate --sync` goes \
             on trying, and a commit that waits for it gives up after {} s",
            self.path.display(),
            late.as_secs(),
            seconds(patience)
        ))
    }

    pub fn begin_signed(&self, member: Option<&Member>, sign: Sign) -> Result<()> {
        let Some(member) = member else {
            return Err(Error::CantOpen(format!(
                "commits to {} wait for a store, and its processes cannot share memory here to know of it",
                self.path.display()
            )));
        };
        match sign {
            Sign::Waits => member.words.begin_unshipped(PATIENCE_MS),
            Sign::Replica => member.words.begin_replica(),
        }
        Ok(())
    }

    pub fn is_shipped(&self) -> bool {
        self.ship().waits()
    }

    pub fn ship(&self) -> Ship {
        self.member().as_ref().map_or(Ship::Off, |member| member.words.ship())
    }

    /// The caller has the writer's place.
    pub fn wait_all_shipped(&self) -> Result<()> {
        let (member, tid) = {
            let inner = self.inner.lock();
            (inner.member.clone().filter(|_| inner.ships()), inner.published.tid)
        };
        member.map_or(Ok(()), |member| self.wait_shipped(&member, tid, None))?;
        self.inner.lock().advance();
        Ok(())
    }

    /// `tid` is flushed, and visible after this (rule StoreHasIt). `Busy` after the `deadline`.
    pub fn wait_shipped(&self, member: &Member, tid: Tid, deadline: Option<Instant>) -> Result<()> {
        let words = &member.words;
        let began = Instant::now();
        let patience = Duration::from_millis(words.ship_ms());
        let path = self.path.display();
        loop {
            let rung = words.shown_bell().load(SeqCst);
            words.show();
            // Those shipped before another shipper took the store count.
            if reached(words, tid, Durability::Written) {
                return self.check(Some(member));
            }
            self.check(Some(member))?;
            if words.ship() == Ship::Fenced {
                return Err(Error::Unshipped(format!(
                    "{path} is fenced: its store belongs to another database, which may have this transaction or not. \
                     Nothing more is committed here"
                )));
            }
            let now = Instant::now();
            if deadline.is_some_and(|deadline| now >= deadline) {
                return Err(Error::Busy(format!("the store of {path} takes long")));
            }
            if now - began >= patience {
                words.note_late();
                return Err(Error::Unshipped(format!(
                    "the store of {path} did not take this transaction within {} ms: whether it is committed is not known \
                     until `onewrite replicate --sync` goes on",
                    patience.as_millis()
                )));
            }
            let until = deadline.map_or(began + patience, |deadline| deadline.min(began + patience));
            system::wait(words.shown_bell(), rung, LOOK.min(until - now));
        }
    }
}

fn seconds(ms: u64) -> String {
    if ms.is_multiple_of(1000) { format!("{}", ms / 1000) } else { format!("{}.{:03}", ms / 1000, ms % 1000) }
}

impl DatabaseState {
    pub fn ships(&self) -> bool {
        self.ship().waits()
    }

    pub fn ship(&self) -> Ship {
        self.member.as_ref().map_or(Ship::Off, |member| member.words.ship())
    }
}
