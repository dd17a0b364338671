//! Numbers, errors, settings, byte offsets: no I/O, no state.

pub mod deadline;
pub mod error;
pub mod layout;
pub mod memory;
pub mod options;
#[cfg_attr(not(feature = "research"), path = "without_research.rs")]
pub mod research;
pub mod rules;
pub mod text;
pub mod types;
