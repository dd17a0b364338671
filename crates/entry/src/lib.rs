//! Entry points for arbitrary bytes: no input panics, loops, reads out of bounds or allocates
//! without bound (invariant I6).
//!
//! The `cargo fuzz` targets in `fuzz/` and this crate's property tests call the same functions.
//! [`files`] decodes bytes into a database and a log.

pub mod calls;
pub mod decoders;
pub mod files;
pub mod recovery;
pub mod walk;

/// Tells a test whether a corpus reaches anything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reach {
    /// Accepted slots, records or transactions.
    pub accepted: u64,
    /// Refused inputs or calls.
    pub refused: u64,
}

/// An entry point.
pub type Entry = fn(&[u8]) -> Reach;

/// Every entry point by the name of its fuzz target and corpus.
pub const ALL: [(&str, Entry); 4] =
    [("decoders", decoders::run), ("recovery", recovery::run), ("walk", walk::run), ("calls", calls::run)];
