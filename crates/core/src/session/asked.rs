//! WAL mode that was asked for is remembered in home's header, while onewrite serves the database
//! without it.
//!
//! ```text
//! bytes 18, 19
//! 2, 87   marked
//! 2, 1    at rest, while this process may come back: every program uses a rollback journal
//! 2, 2    behind the last close: SQLite without onewrite goes on in WAL mode
//! ```

#![deny(clippy::indexing_slicing, clippy::unwrap_used, clippy::expect_used)]

use std::sync::atomic::Ordering::Relaxed;

use super::mark::MarkRemoval;
use super::wal;
use crate::base::error::{IoContext, Result};
use crate::base::layout::{be_u32, home as at};
use crate::base::options::Wal;
use crate::database::{Database, DatabaseState, LiveDatabase, Phase, state_of};
use crate::disk::{locks, read_part};
use crate::sqlite_format::home::{self, DatabaseHeader, FileKind};

/// In [`Database::wal_asked`], besides the answers: home's header says it.
const IN_HEADER: u8 = 0;

fn answer(asked: bool) -> u8 {
    1 + u8::from(asked)
}

impl Database {
    /// Whether WAL mode was asked for.
    pub fn asks_for_wal(&self) -> Result<bool> {
        match self.wal_asked.load(Relaxed) {
            IN_HEADER => self.header_asks_for_wal(),
            said => Ok(said == answer(true)),
        }
    }

    fn header_asks_for_wal(&self) -> Result<bool> {
        let mut first = [0; at::RESERVED];
        let first = read_part(&*self.home, &mut first, 0).context(|| self.what("cannot read"))?;
        Ok(home::asks_for_wal(first))
    }

    /// Counts in this process until the header has it.
    pub fn ask_for_wal(&self, asked: bool) {
        self.wal_asked.store(answer(asked), Relaxed);
    }

    /// `header` reached home.
    pub fn note_header(&self, header: &[u8]) {
        let written = answer(home::asks_for_wal(header));
        // A later answer stays.
        let _ = self.wal_asked.compare_exchange(written, IN_HEADER, Relaxed, Relaxed);
    }

    pub fn with_asked(&self, mut header: DatabaseHeader) -> Result<DatabaseHeader> {
        home::put_asked(&mut header, self.asks_for_wal()?);
        Ok(header)
    }

    /// Tells the other processes. Unflushed: no power cut leaves a header that does not fit. The
    /// caller has the writer's turn.
    pub fn tell_asked(&self, live: &LiveDatabase) -> Result<()> {
        if self.wal_asked.load(Relaxed) == IN_HEADER || !live.scheme.facts().all_in_log() {
            return Ok(());
        }
        self.check_mark(live)?;
        let mut first = [0; at::RESERVED];
        if self.home.read_at(&mut first, 0).context(|| self.what("cannot write the header of"))? == first.len() {
            home::put_asked(&mut first, self.asks_for_wal()?);
            self.write_header_unflushed(&first)?;
            self.note_header(&first);
        }
        Ok(())
    }

    /// How the mark comes off by the last close: durable before a WAL, whose commits flush nothing
    /// else (rule WalBeforeHome).
    pub(super) fn closed(&self, inner: &DatabaseState) -> MarkRemoval {
        match self.turns_to_wal(inner) {
            true => MarkRemoval::IntoWal,
            false => self.ended(),
        }
    }

    fn turns_to_wal(&self, inner: &DatabaseState) -> bool {
        inner.options.wal == Wal::Absorb && matches!(self.asks_for_wal(), Ok(true))
    }

    /// The last close behind a rest, or without a write, where no process uses home now.
    pub fn end_plain(&self) -> Result<()> {
        let _writer = self.writer.lock();
        let mut inner = self.inner.lock();
        let is_due = inner.left_wal.is_some() || self.wal_asked.load(Relaxed) != IN_HEADER;
        let is_plain = inner.phase == Phase::Unmarked && inner.snapshots.is_empty() && inner.reserved.is_none();
        if !is_due || !is_plain || self.read_only || !locks::shared(&*self.home)? {
            return Ok(());
        }
        let to_wal = self.turns_to_wal(&inner);
        let turned = self.change_plain(&mut inner, to_wal);
        self.unlock_home(&mut inner)?;
        turned
    }

    /// UNMARKED, with SHARED. Others may hinder it.
    pub fn change_plain(&self, inner: &mut DatabaseState, to_wal: bool) -> Result<()> {
        if !locks::exclusive(&*self.home)? {
            return Ok(());
        }
        let changed = self.change_alone(inner, to_wal);
        locks::downgrade(&*self.home)?;
        changed
    }

    /// The counter is a new one, as SQLite changes the mode (rule OneNumberOneState).
    fn change_alone(&self, inner: &mut DatabaseState, to_wal: bool) -> Result<()> {
        let mut first = [0; at::HEADER_BYTES];
        let (read, bytes) = self.read_first(&mut first)?;
        let (state, mark) = state_of(read, bytes);
        if mark.is_some() || state.kind != FileKind::Database || self.has_hot_journal()? || wal::is_beside(self)? {
            return Ok(());
        }
        let mut header = self.with_asked(first)?;
        if to_wal {
            home::put_wal(&mut header);
        }
        if header == first {
            return Ok(());
        }
        home::put_counter(&mut header, be_u32(&first, at::CHANGE_COUNTER).unwrap_or(0).wrapping_add(1));
        home::put_page_count(&mut header, state.page_count);
        // Nothing was written since it was durable, or all must be before a WAL is.
        match to_wal && inner.left_wal.as_deref() != Some(&first) {
            true => self.write_header(&header)?,
            false => self.write_header_unflushed(&header)?,
        }
        self.note_header(&header);
        inner.left_wal = (!to_wal).then(|| Box::new(header));
        inner.set_state(std::sync::Arc::new(self.read_state()?.0));
        Ok(())
    }
}
