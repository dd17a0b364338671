//! The campaigns, at smoke size, in one binary, because a build links each anew.

mod in_place;
mod one_write;
mod processes;
mod smoke;
mod sql;
mod threads;
mod wal_mode;
