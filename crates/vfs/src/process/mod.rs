//! What the library knows of its process: forks, other copies of itself, the log of errors, a lock between threads.

pub(crate) mod fork;
pub(crate) mod log;
pub(crate) mod taken;
pub(crate) mod version;
