//! Offsets and short reads, as SQLite's calls have them.

use std::ffi::c_int;

use super::fault::{Fault, Outcome};
use crate::sqlite::ffi::code;

pub(crate) fn offset_from(offset: i64, io_code: c_int) -> Outcome<u64> {
    u64::try_from(offset).map_err(|_| Fault::Own(io_code, format!("negative offset {offset}")))
}

/// Zero-fills the part that a read did not reach, with the result code for it.
pub(crate) fn fill_short(buf: &mut [u8], got: usize) -> c_int {
    match buf.get_mut(got..) {
        Some(rest) if !rest.is_empty() => {
            rest.fill(0);
            code::IOERR_SHORT_READ
        }
        _ => code::OK,
    }
}
