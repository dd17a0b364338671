//! Threads of one process, or of several, that run one at a time in an order drawn from a seed.
//! Any of them may be between two operations when the power is cut.

pub mod history;
pub mod process;
