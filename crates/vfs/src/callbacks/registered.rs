//! One registered VFS, and whose journals and WAL files the names are that SQLite passes.

#![allow(unsafe_code)]

use std::ffi::{c_char, c_int};
use std::sync::Arc;

use onewrite_core::disk::RwLock;
use rustc_hash::FxHashMap;

use crate::database::{self, Main};
use crate::host::Host;
use crate::host::fault::Outcome;

/// One registered VFS. Lives as long as the process: SQLite may call it at any time.
pub(crate) struct Onewrite {
    pub(crate) host: Host,
    /// Names of journals and WAL files of open databases. Each connection to a file has a virtual
    /// journal of its own, under the same text; SQLite passes one pointer for it in all calls, so
    /// the pointer tells them apart.
    names: RwLock<FxHashMap<usize, (NameOf, Arc<Main>)>>,
}

/// The kind of file that a pointer names.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum NameOf {
    Journal,
    Wal,
}

impl Onewrite {
    pub(crate) fn new(host: Host) -> Onewrite {
        Onewrite { host, names: RwLock::default() }
    }

    /// Opens a main database.
    ///
    /// # Safety
    /// `name` is the name SQLite passed to `xOpen` with the flag for a main database.
    pub(super) unsafe fn open_main(
        &'static self,
        name: *const c_char,
        flags: c_int,
        out_flags: &mut c_int,
    ) -> Outcome<Arc<Main>> {
        // SAFETY: as promised by the caller.
        let main = unsafe { database::open(&self.host, name, flags, out_flags)? };
        // SAFETY: as promised by the caller; both answer with a pointer behind the name, or null.
        let (journal, wal) = unsafe { ((self.host.api.filename_journal)(name), (self.host.api.filename_wal)(name)) };
        self.remember_name(journal, NameOf::Journal, &main);
        self.remember_name(wal, NameOf::Wal, &main);
        Ok(main)
    }

    /// Whose journal or WAL file the pointer names.
    pub(super) fn owner(&self, name: *const c_char) -> Option<(NameOf, Arc<Main>)> {
        self.names.read().get(&(name as usize)).cloned()
    }

    fn remember_name(&self, name: *const c_char, what: NameOf, main: &Arc<Main>) {
        if !name.is_null() {
            self.names.write().insert(name as usize, (what, Arc::clone(main)));
        }
    }

    pub(super) fn forget_names(&self, main: &Arc<Main>) {
        self.names.write().retain(|_, (_, owner)| !Arc::ptr_eq(owner, main));
    }
}
