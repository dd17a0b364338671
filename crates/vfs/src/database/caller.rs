//! The connection of SQLite's that a file belongs to: in which transaction it is, and its busy
//! handler. SQLite tells both when it opens the file, and they are asked at its locks.

#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::ptr;

use crate::sqlite::api::Api;
use crate::sqlite::ffi::{BusyFn, Opaque};

/// `SQLITE_TXN_NONE`.
const NO_TRANSACTION: c_int = 0;

#[derive(Default)]
pub(crate) struct Caller {
    connection: Option<*const *mut Opaque>,
    busy: Option<BusyHandler>,
}

#[derive(Clone, Copy)]
pub(crate) struct BusyHandler {
    function: BusyFn,
    argument: *mut c_void,
}

// SAFETY: SQLite calls the file, and so this, from one thread at a time, with the connection's
// mutex.
unsafe impl Send for Caller {}

impl Caller {
    /// `SQLITE_FCNTL_PDB`.
    ///
    /// # Safety
    /// The address is of SQLite's pager or b-tree, which outlives the file. It holds the connection
    /// that uses the file now, also where several share its cache.
    pub(crate) unsafe fn set_connection(&mut self, at: *const *mut Opaque) {
        self.connection = Some(at).filter(|at| !at.is_null());
    }

    /// `SQLITE_FCNTL_BUSYHANDLER`.
    ///
    /// # Safety
    /// The argument of that control: a function and what it is called with, for as long as the file
    /// is open.
    pub(crate) unsafe fn set_busy(&mut self, pair: *const *mut c_void) {
        // SAFETY: as promised by the caller; a null function is none.
        let (function, argument) = unsafe { (pair.cast::<Option<BusyFn>>().read(), pair.add(1).read()) };
        self.busy = function.map(|function| BusyHandler { function, argument });
    }

    pub(crate) fn busy(&self) -> Option<BusyHandler> {
        self.busy
    }

    /// Whether the application began the transaction itself, and whether SQLite has read in one. To
    /// be called within a call of SQLite's for this file.
    pub(crate) fn transaction(&self, api: &Api) -> (bool, bool) {
        let Some(connection) = self.connection() else { return (false, false) };
        // SAFETY: the connection makes the call that this is part of.
        unsafe {
            let is_explicit = (api.get_autocommit)(connection) == 0;
            (is_explicit, is_explicit && (api.txn_state)(connection, ptr::null()) > NO_TRANSACTION)
        }
    }

    /// Whether the connection that makes this call is in a transaction, and not another one that
    /// shares its cache. An unknown one is.
    pub(crate) fn is_in_transaction(&self, api: &Api) -> bool {
        // SAFETY: the connection makes the call that this is part of.
        self.connection().is_none_or(|connection| unsafe {
            (api.get_autocommit)(connection) == 0 || (api.txn_state)(connection, ptr::null()) > NO_TRANSACTION
        })
    }

    /// The one that uses the file now. To be called within a call of SQLite's for this file.
    fn connection(&self) -> Option<*mut Opaque> {
        // SAFETY: the address is valid as long as the file is.
        self.connection.map(|at| unsafe { at.read() }).filter(|connection| !connection.is_null())
    }
}

impl BusyHandler {
    /// Whether to try again. It may sleep, and run code of the application's.
    ///
    /// # Safety
    /// Within a call of SQLite's for the file, and without a lock that the application's code may
    /// ask for.
    pub(crate) unsafe fn waits(self) -> bool {
        // SAFETY: as promised by SQLite and the caller.
        unsafe { (self.function)(self.argument) != 0 }
    }
}
