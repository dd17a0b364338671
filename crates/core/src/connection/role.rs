//! The role of a connection between two calls, and its invariants.
//!
//! ```text
//!                    pin                     begin_write
//!          Idle ───────────────▶ Reader ───────────────────▶ Writer
//!           │ │                   │  ▲ ◀──── drop_txn ──────── │
//!           │ │                   │  │                         │ step_aside
//!           │ └─ hot journal ──┐  │  └──── come_back ────┐     │
//!           │                  ▼  │                      │     │
//!           │ pin           Aside ┼──────────────────────┘ ◀───┘
//!           │                  │  │ goes_on_in_wal_mode,
//!           │                  │  │ leaves_foreign_file
//!           ▼                  │  ▼
//!         Below ◀── come_back ─┘  Below ─── hand_over ──▶ Below without a snapshot
//!
//!  unlock to None: all become Idle.    A step back that fails: Lost, until then.
//! ```
//!
//! ```text
//!         SQLite's lock     writer's place                snapshot                     others
//! Idle    NONE              none                          none
//! Reader  SHARED (1)        none, tentative; firm in      pinned
//!                           exclusive mode
//! Writer  RESERVED or more  firm, or given with the       pinned                       others
//!                           commit; none while apart                                   wait
//! Aside   SHARED or more    firm; as before if it found   the one before, if any       get BUSY
//!                           a hot journal
//! Below   SHARED or more    none                          pinned until the VFS below   use it
//!                                                         has its own lock
//! Lost    SHARED or more    as before                     none: reads are plain,
//!                                                         writes are refused
//!
//! (1) more after stepping aside failed
//! ```

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::looked::{self, ReadSet};
use super::{Connection, LockLevel};
use crate::base::types::PageNo;
use crate::database::Phase;
use crate::disk::DiskFile;
use crate::pages::txn::Txn;
use crate::sqlite_format::home::{FileKind, State};

/// See the module's diagram.
// A box could not be allocated when memory is short.
#[allow(clippy::large_enum_variant)]
pub(super) enum Role {
    Idle,
    Reader(ReadTransaction),
    Writer(WriteTransaction),
    Aside(Passthrough),
    Below(Option<ReadTransaction>),
    Lost,
}

pub(super) struct ReadTransaction {
    pub(super) state: Arc<State>,
    /// It is newer than the visible state: nothing of it may reach the application yet.
    pub(super) unsettled: bool,
    /// Pages read without the writer's place.
    pub(super) looked: Option<ReadSet>,
    /// SQLite has page 1 as it was in an older state, with other counters.
    pub(super) has_moved: bool,
}

impl ReadTransaction {
    /// The page of an ordinary database that is asked for; none of page 1, which is made from the
    /// state, and none of a transaction of `concurrent=1`.
    pub(super) fn whole_page(&self, offset: u64, len: usize) -> Option<PageNo> {
        let state = &*self.state;
        let size = u64::from(state.page_bytes);
        let is_page = len as u64 == size && offset > 0 && offset.is_multiple_of(size);
        let is_within = offset.saturating_add(size) <= state.bytes();
        if !is_page || !is_within || state.kind != FileKind::Database || self.looked.is_some() {
            return None;
        }
        PageNo::containing(offset, state.page_bytes)
    }

    pub(super) fn runs_apart(&self) -> bool {
        matches!(&self.looked, Some(ReadSet { stage: looked::OptimisticStage::Apart, .. }))
    }
}

pub(super) struct WriteTransaction {
    pub(super) reader: ReadTransaction,
    pub(super) txn: Txn,
    /// Nothing happened under its lock yet.
    pub(super) has_just_begun: bool,
}

pub(super) struct Passthrough {
    /// There is none where it found a hot journal.
    pub(super) reader: Option<ReadTransaction>,
    pub(super) journal: Option<RealJournal>,
}

pub(super) struct RealJournal {
    pub(super) file: Arc<dyn DiskFile>,
    /// SQLite made it, and its name is not flushed yet.
    pub(super) is_new: bool,
}

/// The place in this process and, with the turn, among the processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum WriterTurn {
    #[default]
    None,
    /// It was taken before the snapshot, for a probable write; the turn is leased.
    Tentative {
        /// It read only pages that a write begins with.
        doubtless: bool,
    },
    Firm,
    /// The commit passed it on; SQLite still has its lock (rule OneWriter).
    Given {
        /// The turn ends with SQLite's lock.
        in_turn: bool,
    },
}

impl Role {
    pub(super) fn pinned_now(reader: ReadTransaction) -> Role {
        match reader.state.kind {
            FileKind::Wal => Role::Below(Some(reader)),
            _ => Role::Reader(reader),
        }
    }

    pub(super) fn pinned(&self) -> Option<&ReadTransaction> {
        match self {
            Role::Reader(reader) | Role::Writer(WriteTransaction { reader, .. }) => Some(reader),
            Role::Aside(Passthrough { reader, .. }) | Role::Below(reader) => reader.as_ref(),
            Role::Idle | Role::Lost => None,
        }
    }

    pub(super) fn pinned_mut(&mut self) -> Option<&mut ReadTransaction> {
        match self {
            Role::Reader(reader) | Role::Writer(WriteTransaction { reader, .. }) => Some(reader),
            Role::Aside(Passthrough { reader, .. }) | Role::Below(reader) => reader.as_mut(),
            Role::Idle | Role::Lost => None,
        }
    }

    pub(super) fn snapshot(&self) -> Option<&Arc<State>> {
        self.pinned().filter(|_| !self.is_aside()).map(|reader| &reader.state)
    }

    pub(super) fn txn(&self) -> Option<&Txn> {
        match self {
            Role::Writer(writer) => Some(&writer.txn),
            _ => None,
        }
    }

    pub(super) fn txn_mut(&mut self) -> Option<&mut Txn> {
        self.writer_mut().map(|writer| &mut writer.txn)
    }

    pub(super) fn writer_mut(&mut self) -> Option<&mut WriteTransaction> {
        match self {
            Role::Writer(writer) => Some(writer),
            _ => None,
        }
    }

    pub(super) fn is_aside(&self) -> bool {
        matches!(self, Role::Aside(_))
    }

    pub(super) fn is_below(&self) -> bool {
        matches!(self, Role::Below(_))
    }

    pub(super) fn is_doomed(&self) -> bool {
        self.txn().is_some_and(|txn| txn.doomed)
    }

    pub(super) fn real_journal(&mut self) -> Option<&mut RealJournal> {
        match self {
            Role::Aside(aside) => aside.journal.as_mut(),
            _ => None,
        }
    }

    pub(super) fn write(&mut self, txn: Txn) {
        match self {
            Role::Writer(writer) => (writer.txn, writer.has_just_begun) = (txn, false),
            Role::Reader(_) => {
                if let Some(reader) = self.take_reader() {
                    *self = Role::Writer(WriteTransaction { reader, txn, has_just_begun: false });
                }
            }
            other => debug_assert!(false, "one that is {} does not begin to write", other.name()),
        }
    }

    pub(super) fn end_txn(&mut self) -> Option<Txn> {
        let Role::Writer(WriteTransaction { reader, .. }) = self else { return None };
        let reader = ReadTransaction { state: reader.state.clone(), looked: reader.looked.take(), ..*reader };
        match std::mem::replace(self, Role::Reader(reader)) {
            Role::Writer(WriteTransaction { txn, .. }) => Some(txn),
            _ => None,
        }
    }

    pub(super) fn step_aside(&mut self, file: Arc<dyn DiskFile>) {
        let journal = Some(RealJournal { file, is_new: false });
        *self = Role::Aside(Passthrough { reader: self.take_reader(), journal });
    }

    pub(super) fn give_up(&mut self) {
        if matches!(self, Role::Writer(_) | Role::Aside(_)) {
            *self = self.take_reader().map_or(Role::Lost, Role::Reader);
        }
    }

    pub(super) fn go_below(&mut self) {
        *self = Role::Below(self.take_reader());
    }

    /// It is lost until the caller sets another role.
    pub(super) fn take_reader(&mut self) -> Option<ReadTransaction> {
        match std::mem::replace(self, Role::Lost) {
            Role::Reader(reader) | Role::Writer(WriteTransaction { reader, .. }) => Some(reader),
            Role::Aside(Passthrough { reader, .. }) | Role::Below(reader) => reader,
            Role::Idle | Role::Lost => None,
        }
    }

    fn name(&self) -> &'static str {
        match self {
            Role::Idle => "idle",
            Role::Reader(_) => "reader",
            Role::Writer(_) => "writer",
            Role::Aside(_) => "aside",
            Role::Below(_) => "below",
            Role::Lost => "lost",
        }
    }
}

impl Connection {
    /// Panics unless the module's table holds. Every call of debug builds ends with it; simulators
    /// call it in others.
    pub fn assert_state(&self) {
        let inner = self.db.inner.lock_to_check();
        let is_poisoned = matches!(inner.phase, Phase::Poisoned(_));
        let holds = |holds: bool, what: &str| {
            let (role, phase) = (self.role.name(), &inner.phase);
            assert!(holds, "{what}: {role} at {:?}, place {:?}, database {phase:?}", self.level, self.place);
        };
        let (none, reserved) = (LockLevel::None, LockLevel::Reserved);
        holds((self.level == none) == matches!(self.role, Role::Idle), "idle is who has no lock");
        let undo = self.shuts_out || self.reserves || self.has_no_wal;
        holds(
            self.level > none || (self.place == WriterTurn::None && !undo),
            "a lock that is given back leaves nothing",
        );
        match &self.role {
            Role::Writer(WriteTransaction { reader, .. }) => {
                holds(self.level >= reserved, "a writer has SQLite's write lock");
                let has_place = matches!(self.place, WriterTurn::Firm | WriterTurn::Given { .. });
                holds(has_place != reader.runs_apart(), "a writer has the place, unless it runs apart");
            }
            Role::Aside(_) => {
                holds(is_poisoned || inner.phase == Phase::Aside(self.id), "the file is that of who stepped aside");
            }
            Role::Below(_) => {
                holds(self.place == WriterTurn::None, "who leaves the file to the VFS below has no place")
            }
            Role::Idle | Role::Reader(_) | Role::Lost => {}
        }
        let is_tentative = matches!(self.place, WriterTurn::Tentative { .. });
        holds(!is_tentative || self.level < reserved || self.role.is_aside(), "one that writes has the place for good");
        holds(self.place != WriterTurn::Firm || self.db.queue.holds(self.id), "the queue knows who has the place");
        let pinned = self.role.pinned().is_none_or(|reader| inner.snapshots.has(reader.state.tid));
        holds(pinned, "a snapshot is pinned");
        let is_alone = self.db.alone.load(Ordering::SeqCst) == self.id.0;
        holds(!is_alone || self.shuts_out, "who shuts others out lets them in again");
        holds(inner.reserved != Some(self.id) || self.reserves, "who has the database alone gives it back");
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::path::Path;

    use crate::connection::Engine;
    use crate::disk::OpenMode;
    use crate::disk::sim::{SimConfig, SimDisk};

    fn locked(level: LockLevel) -> Connection {
        let engine = Engine::new(Arc::new(SimDisk::new(SimConfig::default())));
        let mut conn = engine.open(Path::new("/db"), OpenMode::Create, &[]).unwrap();
        conn.lock(LockLevel::Shared).unwrap();
        conn.lock(level).unwrap();
        conn.assert_state();
        conn
    }

    /// Whether the check fails. Then puts the state right, for the close.
    fn is_found(
        conn: &mut Connection,
        spoil: impl FnOnce(&mut Connection) -> Box<dyn FnOnce(&mut Connection)>,
    ) -> bool {
        let mend = spoil(conn);
        let found = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| conn.assert_state())).is_err();
        mend(conn);
        conn.assert_state();
        found
    }

    #[test]
    fn a_lock_that_does_not_fit_the_role_is_found() {
        let mut conn = locked(LockLevel::Reserved);
        for level in [LockLevel::None, LockLevel::Shared] {
            assert!(is_found(&mut conn, |conn| {
                let before = std::mem::replace(&mut conn.level, level);
                Box::new(move |conn| conn.level = before)
            }));
        }
    }

    #[test]
    fn a_place_without_a_holder_and_an_unpinned_snapshot_are_found() {
        let mut conn = locked(LockLevel::Reserved);
        assert!(is_found(&mut conn, |conn| {
            let before = std::mem::take(&mut conn.place);
            Box::new(move |conn| conn.place = before)
        }));
        assert!(is_found(&mut conn, |conn| {
            let reader = conn.role.pinned_mut().unwrap();
            let other = Arc::new(State::empty(reader.state.tid.next()));
            let before = std::mem::replace(&mut reader.state, other);
            Box::new(move |conn| conn.role.pinned_mut().unwrap().state = before)
        }));
        let mut conn = locked(LockLevel::Shared);
        assert!(is_found(&mut conn, |conn| {
            let before = std::mem::replace(&mut conn.place, WriterTurn::Firm);
            conn.db.queue.release(conn.id);
            Box::new(move |conn| conn.place = before)
        }));
    }
}
