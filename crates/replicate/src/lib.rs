//! Ships a database that is used through onewrite to a store, in Litestream's format, and restores
//! it.
//!
//! Files have the format of [`ltx`] and lie in a [`store`]. [`plan`] chooses those of a state, and
//! [`times`] those before a time. [`state`] hashes pages.
//!
//! To the store: [`begin`] restores or makes a missing database. [`source`] reads the database,
//! [`ship`] sends its changes, and [`compact`] merges and removes files.
//!
//! From the store: [`fetch`] reads for [`restore`], [`follow`] and [`verify`]; [`lookout`] finds
//! newer files.
//!
//! [`fence`] tells the owner of a store, and [`promote`] changes it. [`config`] names many
//! databases, and [`fleet`] has their threads. [`ending`] handles signals, and [`secrets`] hides
//! keys in messages.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

pub mod begin;
pub mod compact;
pub mod config;
pub mod control;
pub mod ending;
pub mod fence;
pub mod fetch;
pub mod fleet;
pub mod follow;
pub mod host;
pub mod local;
pub mod lookout;
pub mod ltx;
pub mod metrics;
pub mod plan;
pub mod promote;
pub mod report;
pub mod restore;
mod rules;
pub mod secrets;
pub mod ship;
pub mod source;
pub mod state;
pub mod store;
pub mod times;
pub mod verify;
