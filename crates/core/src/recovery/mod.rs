//! After a crash, log and home become the newest committed state.

pub mod recover;
pub mod repair;
