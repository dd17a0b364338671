//! Notices that this process is the child of a fork. Connections opened before belong to the
//! parent: a child that used them would write into the parent's transactions. The child gives up
//! their files ([`onewrite_core::disk::forked`]).

#![allow(unsafe_code)]

use std::sync::atomic::{AtomicU32, Ordering};

#[cfg(unix)]
use onewrite_core::disk::forked;

/// How many forks lie between the first use of this library and this process.
static GENERATION: AtomicU32 = AtomicU32::new(0);

/// A number that differs between a process and every process it is forked from; of forks before
/// [`watch`] it does not know.
#[inline]
pub(crate) fn generation() -> u32 {
    GENERATION.load(Ordering::Relaxed)
}

/// From here on forks are noticed.
pub(crate) fn watch() {
    #[cfg(unix)]
    static WATCH: std::sync::Once = std::sync::Once::new();
    #[cfg(unix)]
    WATCH.call_once(|| {
        // SAFETY: the handler in the child adds to an atomic and calls the system, both of which is
        // safe there. Without memory for the handlers the number stays 0: forks are then not
        // noticed, nothing else changes.
        unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) };
    });
}

#[cfg(unix)]
extern "C" fn before() {
    forked::before();
}

#[cfg(unix)]
extern "C" fn in_parent() {
    forked::in_parent();
}

#[cfg(unix)]
extern "C" fn in_child() {
    forked::in_child();
    GENERATION.fetch_add(1, Ordering::Relaxed);
}
