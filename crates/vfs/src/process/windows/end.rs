//! A library that stays until its process ends, on Windows.

#![allow(unsafe_code)]

use windows_sys::Win32::System::LibraryLoader::{
    GET_MODULE_HANDLE_EX_FLAG_FROM_ADDRESS, GET_MODULE_HANDLE_EX_FLAG_PIN, GetModuleHandleExW,
};

/// Nothing: a library learns of the end when its process has no other thread, and may wait for
/// none. The next connection finds the database as a killed process leaves it.
pub(crate) fn at_exit(_handler: extern "C" fn()) {}

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
