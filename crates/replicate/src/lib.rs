//! Ships a database that is used through onewrite to a store, in Litestream's format, and restores
//! it.
//!
//! - Files: [`ltx`] (format), [`store`] (places), [`plan`] (files of a state), [`times`] (files
//!   before a time), [`state`] (pages' hashes).
//! - To the store: [`begin`] restores or makes a database that is not there, [`source`] reads it,
//!   [`ship`] sends changes, [`compact`] merges and removes.
//! - From the store: [`restore`], [`follow`] and [`verify`], which [`fetch`] reads for.
//! - Ownership: [`fence`], and [`promote`] to change it.
//! - Many databases: [`config`] (their file), [`fleet`] (their threads).
//! - The command: [`ending`] (signals), [`secrets`] (hidden in messages).

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

pub mod begin;
pub mod compact;
pub mod config;
pub mod ending;
pub mod fence;
pub mod fetch;
pub mod fleet;
pub mod follow;
pub mod local;
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
