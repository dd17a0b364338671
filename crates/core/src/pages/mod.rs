//! Versions of pages in memory: the newest images, old ones for snapshots, the overlay of a transaction.

pub mod ahead;
pub mod apply;
pub mod chains;
pub mod snapshots;
pub mod table;
pub mod txn;
