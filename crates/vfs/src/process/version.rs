//! The version of this library, and how one copy of it in a process knows another.

#![allow(unsafe_code)]

use std::ffi::{CStr, c_char};

/// The system call by which one copy of this library knows another.
pub(crate) const VERSION_CALL: &CStr = c"onewrite_version";

/// `onewrite_version` of `onewrite.h`: the version of this library, as text that stays valid.
#[unsafe(no_mangle)]
pub extern "C" fn onewrite_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}
