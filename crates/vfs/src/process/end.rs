//! A library that stays until its process ends, by POSIX.

#![allow(unsafe_code)]

use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Condvar};
use std::time::Duration;

use onewrite_core::disk::Mutex;

/// A call into this library.
pub(crate) struct InsideCall;

impl InsideCall {
    #[inline]
    pub fn enter() -> InsideCall {
        InsideCall
    }
}

/// Runs the work of the end on a thread of its own, which is not waited for where a lock was left
/// by a thread that died.
pub(crate) fn rest_within(wait: Duration, rest: impl FnOnce() + Send + 'static) {
    let ended = Arc::new((Mutex::new(false), Condvar::new()));
    let ends = ended.clone();
    let rest = move || {
        rest();
        *ends.0.lock() = true;
        ends.1.notify_one();
    };
    let _ = std::panic::catch_unwind(AssertUnwindSafe(|| {
        if without_signals(|| std::thread::Builder::new().spawn(rest)).is_ok() {
            let _waited = ended.1.wait_timeout_while(ended.0.lock(), wait, |is_over| !*is_over);
        }
    }));
}

/// Calls `handler` when the process ends by `exit()`. It must catch panics.
pub(crate) fn at_exit(handler: extern "C" fn()) {
    // SAFETY: the library stays loaded ([`stay_loaded`]).
    unsafe { libc::atexit(handler) };
}

/// A program may unload the drop-in library, under the feet of the thread. From here on it stays.
pub(crate) fn stay_loaded() {
    let mut own = std::mem::MaybeUninit::<libc::Dl_info>::uninit();
    // SAFETY: the address is of this library, whose entry the call fills before it is read. The
    // library is loaded: nothing of it runs.
    unsafe {
        if libc::dladdr(stay_loaded as *const std::ffi::c_void, own.as_mut_ptr()) != 0 {
            libc::dlopen(own.assume_init().dli_fname, libc::RTLD_LAZY | libc::RTLD_NOLOAD | libc::RTLD_NODELETE);
        }
    }
}

/// Calls `f`, whose threads get none of the signals that are sent to this process.
pub(crate) fn without_signals<T>(f: impl FnOnce() -> T) -> T {
    // SAFETY: both sets are this frame's; without an old mask nothing is put back.
    unsafe {
        let (mut all, mut old) = (std::mem::zeroed(), std::mem::zeroed());
        libc::sigfillset(&raw mut all);
        let masked = libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut old) == 0;
        let made = f();
        if masked {
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const old, std::ptr::null_mut());
        }
        made
    }
}
