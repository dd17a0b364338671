//! Entry points for arbitrary bytes: whatever they are, nothing panics, loops, reads out of bounds or
//! allocates without bound (invariant I6), and what can be said of any outcome is asserted.
//!
//! The `cargo fuzz` targets in `fuzz/` and the property tests of this crate call the same functions.
//! [`files`] says how bytes become a database and a log.

pub mod calls;
pub mod decoders;
pub mod files;
pub mod recovery;
pub mod walk;

/// What an entry point did, so that a test can tell whether a corpus gets anywhere.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reach {
    /// Slots, records or transactions that were accepted.
    pub accepted: u64,
    /// Inputs or calls that were refused.
    pub refused: u64,
}

/// An entry point.
pub type Entry = fn(&[u8]) -> Reach;

/// Every entry point by the name of its fuzz target and corpus.
pub const ALL: [(&str, Entry); 4] =
    [("decoders", decoders::run), ("recovery", recovery::run), ("walk", walk::run), ("calls", calls::run)];
