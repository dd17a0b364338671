//! Read-only views of a database and its log: paths, the formats of `docs/format.md`, records.
//!
//! For `check`, `inspect`, the simulators and the fuzzers.

pub use crate::base::types::{LogOffset, PageNo, Tid};
pub use crate::database::ship::{REPLICA, sync_path};
pub use crate::disk::beside::{path as path_beside, second_path};
pub use crate::disk::processes::ProcessLife;
pub use crate::log::decision::Decision;
pub use crate::log::file::{LiveRecords, LogFile, ScanEnd, log_path, next_places};
pub use crate::log::record::{PageChange, Peek, Record};
pub use crate::log::slot::{Slot, follows_session};
pub use crate::pairing::{Left, Pairing, before_recovery};
pub use crate::recovery::repair::Judgement;
pub use crate::shared::users::DatabaseUser;
pub use crate::sqlite_format::home::has_room;
pub use crate::sqlite_format::node::Shape;

/// Every offset and size of every format.
pub mod layout {
    pub use crate::base::layout::*;
}

/// The header of a database file, and the mark in it.
pub mod home {
    pub use crate::sqlite_format::home::{
        DatabaseHeader, FileKind, HomeMark, State, asks_for_wal, mark, page_bytes, page_count, put_counter,
        put_page_count, reserved, unmark,
    };
}

/// SQLite's rollback journal.
pub mod journal {
    pub use crate::sqlite_format::journal::MAGIC;
}

/// SQLite's write-ahead log.
pub mod wal {
    pub use crate::sqlite_format::wal::WalHead;
}
