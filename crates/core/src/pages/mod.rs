//! Versions of pages in memory: newest images, old ones for snapshots, a transaction's overlay.

pub mod ahead;
pub mod apply;
pub mod chains;
pub mod image;
pub mod snapshots;
pub mod table;
pub mod txn;
