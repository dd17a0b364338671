//! Numbers: timing, medians and how well they are known, random draws.

pub mod measure;
pub mod random;
pub mod stats;
