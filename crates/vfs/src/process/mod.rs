//! The library and its process: forks, other copies of itself, the log of errors, a lock of
//! threads.

pub(crate) mod fork;
pub(crate) mod log;
pub(crate) mod taken;
pub(crate) mod version;
