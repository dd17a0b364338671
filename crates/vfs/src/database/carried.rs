//! A database that a fork carried into this process, open. The parent's connection to it is left
//! alone. Where SQLite had no lock, the next call opens a connection of this process in its place.

#![allow(unsafe_code)]

use std::ffi::c_int;

use onewrite_core::disk::{FileId, OpenMode};
use onewrite_core::{Connection, LockLevel};

use super::state::{MainFileState, level_from};
use crate::host::fault::{Fault, Outcome};
use crate::process::fork;
use crate::sqlite::ffi::{code, open as flag};

/// The error of a transaction that was the parent's.
const IN_TRANSACTION: &str = "this connection was inside a transaction when the process forked, and that transaction is the \
     parent's: roll it back, then the connection works in this process. If it keeps its lock between transactions \
     (locking_mode=exclusive, or WAL mode by wal=stock), open a new one";

impl MainFileState {
    /// Whether it was opened before the process forked, and is the parent's.
    #[inline]
    pub(super) fn is_carried(&self) -> bool {
        self.generation != fork::generation()
    }

    /// Opens a connection of this process in the place of the parent's. MISUSE inside a
    /// transaction: of the codes whose text SQLite shows, it alone tells that the program is at
    /// fault and no disk.
    pub(super) fn open_anew(&mut self) -> Outcome {
        if self.level > LockLevel::None || self.base_level > LockLevel::None {
            return Err(Fault::Own(code::MISUSE, IN_TRANSACTION.to_owned()));
        }
        if let Some(before) = &self.conn {
            let conn = self.open_like(before)?;
            if let Some(before) = self.conn.replace(conn)
                && let Some(conn) = &mut self.conn
            {
                conn.take_place_of(before);
            }
        }
        self.moved = None;
        self.named_at = None;
        self.generation = fork::generation();
        Ok(())
    }

    fn open_like(&self, before: &Connection) -> Outcome<Connection> {
        // The file exists since the parent opened it, so it is not made again.
        let writes = self.flags & flag::READWRITE != 0;
        let mode = if writes { OpenMode::ReadWrite } else { OpenMode::ReadOnly };
        let given = self.given()?;
        let settings = before.settings().unwrap_or_else(|| given.clone());
        let conn = self.open_with(mode, &settings, &given)?;
        if self.identity.is_none_or(|(dev, ino)| conn.has_file(FileId { dev, ino })) {
            return Ok(conn);
        }
        conn.close()?;
        let message = format!(
            "{} is not the file any more that was opened before the process forked: open it again",
            self.path.display()
        );
        Err(Fault::Own(code::CANTOPEN, message))
    }

    /// `xUnlock` of a transaction that was the parent's, whose locks are not this process's to give
    /// back.
    pub(super) fn unlock_carried(&mut self, number: c_int) -> Outcome<c_int> {
        let level = level_from(number, code::IOERR_UNLOCK)?;
        self.level = self.level.min(level);
        if level < LockLevel::Reserved {
            self.siblings.set_writes(false);
        }
        if self.base_level > level
            && let Some(base) = &mut self.base
        {
            // The VFS underneath has locks of processes, and this one none.
            let _none_to_give_back = base.unlock(number);
            self.base_level = level;
        }
        Ok(code::OK)
    }
}
