//! The foundations of a registered VFS: SQLite's functions, the VFS underneath, disk, engine,
//! errors.

pub(crate) mod base;
pub(crate) mod fault;
mod keeper;
pub(crate) mod offsets;

use std::ffi::{CStr, CString, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use onewrite_core::Engine;
use onewrite_core::disk::{Disk, Mutex};

use crate::process::{end, fork};
use crate::sqlite::api::Api;
use crate::sqlite::ffi::code;
use base::Base;
use fault::{Fault, Outcome, panic_text};

/// The foundations of one registered VFS. They live as long as the process.
pub(crate) struct Host {
    pub(crate) api: Api,
    pub(crate) base: Base,
    pub(crate) name: CString,
    pub(crate) disk: Arc<dyn Disk>,
    /// Whether `disk` is the one the VFS underneath works on.
    passes_through: bool,
    /// The engine, and the [`fork::generation`] it belongs to.
    engine: Mutex<(u32, Arc<Engine>)>,
}

impl Host {
    /// Without an `engine` it makes one with a keeper.
    pub(crate) fn new(
        api: Api,
        base: Base,
        name: &CStr,
        disk: Arc<dyn Disk>,
        engine: Option<Arc<Engine>>,
        passes_through: bool,
    ) -> Host {
        fork::watch();
        let engine = engine.unwrap_or_else(|| engine_on(&disk));
        let engine = Mutex::new((fork::generation(), engine));
        Host { api, base, name: name.to_owned(), disk, passes_through, engine }
    }

    pub(crate) fn passes_through(&self) -> bool {
        self.passes_through
    }

    /// The engine of this process; a forked child gets a new one, and leaves the parent's alone.
    pub(crate) fn engine(&self) -> Arc<Engine> {
        let mut engine = self.engine.lock();
        let generation = fork::generation();
        if engine.0 != generation {
            let fresh = (generation, engine_on(&self.disk));
            std::mem::forget(std::mem::replace(&mut *engine, fresh));
        }
        Arc::clone(&engine.1)
    }

    /// Runs one callback, turning errors and panics into result codes.
    pub(crate) fn call(&self, subject: &CStr, io_code: c_int, f: impl FnOnce() -> Outcome<c_int>) -> c_int {
        let _inside = end::InsideCall::enter();
        let fault = match catch_unwind(AssertUnwindSafe(f)) {
            Ok(Ok(rc)) => return rc,
            Ok(Err(fault)) => fault,
            Err(panic) => Fault::Own(code::INTERNAL, format!("internal error: {}", panic_text(&*panic))),
        };
        fault.report(&self.api, &subject.to_string_lossy(), io_code)
    }
}

/// An engine of this process, whose idle databases are detached.
fn engine_on(disk: &Arc<dyn Disk>) -> Arc<Engine> {
    let engine = Engine::in_process(Arc::clone(disk), fork::generation);
    keeper::keep(&engine);
    engine
}
