//! A library that stays until its process ends, on Windows.

#![allow(unsafe_code)]

use std::ffi::c_int;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

use windows_sys::Win32::System::LibraryLoader::{
    GET_MODULE_HANDLE_EX_FLAG_FROM_ADDRESS, GET_MODULE_HANDLE_EX_FLAG_PIN, GetModuleHandleExW,
};

/// Calls that are inside this library, which may hold its locks.
static INSIDE: AtomicUsize = AtomicUsize::new(0);

/// A call into this library.
pub(crate) struct InsideCall(());

impl InsideCall {
    pub fn enter() -> InsideCall {
        INSIDE.fetch_add(1, SeqCst);
        InsideCall(())
    }
}

impl Drop for InsideCall {
    fn drop(&mut self) {
        INSIDE.fetch_sub(1, SeqCst);
    }
}

/// Does the work of the end here: a library learns of it when no other thread is left, and can
/// start none. Nothing is done where one ended inside, perhaps with a lock.
pub(crate) fn rest_within(wait: Duration, rest: impl FnOnce()) {
    let begun = Instant::now();
    while INSIDE.load(SeqCst) > 0 {
        if begun.elapsed() >= wait.min(LEAVES) {
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    let _ = std::panic::catch_unwind(AssertUnwindSafe(rest));
}

/// A thread that lives leaves this library within so long.
const LEAVES: Duration = Duration::from_millis(100);

unsafe extern "C" {
    fn atexit(handler: extern "C" fn()) -> c_int;
}

/// Calls `handler` when the process ends by `exit()`, or as `DllMain` hears of its end. It must
/// catch panics.
pub(crate) fn at_exit(handler: extern "C" fn()) {
    // SAFETY: the library stays loaded ([`stay_loaded`]).
    unsafe { atexit(handler) };
}

/// A program may unload the drop-in library, under the feet of the thread. From here on it stays.
pub(crate) fn stay_loaded() {
    let mut own = std::ptr::null_mut();
    let flags = GET_MODULE_HANDLE_EX_FLAG_FROM_ADDRESS | GET_MODULE_HANDLE_EX_FLAG_PIN;
    // SAFETY: the address is of this library, and `own` is this frame's.
    unsafe { GetModuleHandleExW(flags, stay_loaded as *const u16, &raw mut own) };
}

/// Windows has none.
pub(crate) fn without_signals<T>(f: impl FnOnce() -> T) -> T {
    f()
}
