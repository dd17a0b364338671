//! The parts of the command line that `onewrite` and `onewrite-replicate` share: the arguments of
//! the commands for replication, the manual pages of all commands, and the order of arguments.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

pub mod manual;
mod notes;
pub mod order;
pub mod replicate;
