//! The subcommands: each measures or compares in its own way.

pub mod advise;
pub mod compare;
pub mod images;
pub mod sweep;
