//! The log: a file with two header slots, a ring of records and, behind it, images streamed by big
//! transactions.

pub mod decision;
pub mod delta;
pub mod facts;
pub mod file;
pub mod frontier;
pub mod group;
#[cfg(test)]
mod group_tests;
pub mod record;
pub mod ring;
pub mod several;
pub mod slot;
