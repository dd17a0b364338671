//! Numbers, errors, settings, byte offsets, time: no I/O, no state.

#[cfg_attr(feature = "simulation", path = "schedule.rs")]
pub mod clock;
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
