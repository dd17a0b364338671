//! Commits that wait for a store: one process, the shipper, sends flushed records, and readers see
//! a state when the store has it.
//!
//! ```text
//! commit     flush.rs: written, flushed by one for all: FLUSHED; then waits until all may see it
//! shipper    sends what is flushed and not SHIPPED, one batch at a time; SHIPPED, so VISIBLE
//! ```
//!
//! A file beside the database demands it: while it is there, only the shipper begins a session, and
//! all others join. The word SHIP says how the store does.

use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use crate::base::error::{Error, IoContext, Result};
use crate::base::layout::SYNC_SUFFIX;
use crate::base::types::Tid;
use crate::database::{Database, DatabaseState};
use crate::disk::beside;
use crate::disk::system;
use crate::log::group::Durability;
use crate::shared::member::Member;
use crate::shared::words::{Ship, reached};

/// How often a waiting commit looks whether the database still works.
const LOOK: Duration = Duration::from_millis(50);
/// The shipper may set another time.
const PATIENCE_MS: u64 = 30_000;

impl Database {
    pub fn is_signed(&self) -> Result<bool> {
        let sign = beside::path(&self.path, SYNC_SUFFIX);
        self.disk.exists(&sign).context(|| format!("cannot look for {}", sign.display()))
    }

    /// Rule StoreHasIt.
    pub fn check_begins(&self, inner: &DatabaseState, ships: bool) -> Result<()> {
        if !self.is_signed()? {
            return Ok(());
        }
        let path = self.path.display();
        if !ships {
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

    pub fn begin_signed(&self, member: Option<&Member>) -> Result<()> {
        let Some(member) = member else {
            return Err(Error::CantOpen(format!(
                "commits to {} wait for a store, and its processes cannot share memory here to know of it",
                self.path.display()
            )));
        };
        member.words.begin_unshipped(PATIENCE_MS);
        Ok(())
    }

    pub fn is_shipped(&self) -> bool {
        self.inner.lock().ships()
    }

    /// Everything is flushed before. The caller has the writer's place.
    pub fn wait_all_shipped(&self) -> Result<()> {
        let (member, tid) = {
            let inner = self.inner.lock();
            (inner.member.clone().filter(|_| inner.ships()), inner.published.tid)
        };
        member.map_or(Ok(()), |member| self.wait_shipped(&member, tid, None))?;
        self.inner.lock().advance();
        Ok(())
    }

    /// Rule StoreHasIt: `tid` is flushed, and visible after this. `Busy` after the `deadline`.
    pub fn wait_shipped(&self, member: &Member, tid: Tid, deadline: Option<Instant>) -> Result<()> {
        let words = &member.words;
        let began = Instant::now();
        let patience = Duration::from_millis(words.ship_ms());
        let path = self.path.display();
        loop {
            let rung = words.flush_bell().load(SeqCst);
            words.show();
            // Those shipped before another shipper took the store count.
            if reached(words, tid, Durability::Written) {
                return self.inner.lock().check();
            }
            self.inner.lock().check()?;
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
            system::wait(words.flush_bell(), rung, LOOK.min(until - now));
        }
    }
}

impl DatabaseState {
    pub fn ships(&self) -> bool {
        self.ship() != Ship::Off
    }

    pub fn ship(&self) -> Ship {
        self.member.as_ref().map_or(Ship::Off, |member| member.words.ship())
    }
}
