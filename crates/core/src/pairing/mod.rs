//! Which home and log belong together, and the state that the log leads to. Writes nothing.

pub mod evidence;
mod judge;
pub mod replay;

pub use judge::{Evidence, Lead, Left, Pairing, before_recovery, is_next, judge};
