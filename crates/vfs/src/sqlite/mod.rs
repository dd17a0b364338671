//! SQLite's C interface: its declarations, its functions as pointers, and text as C has it.

pub(crate) mod api;
#[doc(hidden)]
#[allow(missing_docs)]
pub mod ffi;
