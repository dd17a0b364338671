//! Ships a database that is used through onewrite to a store, in Litestream's format, and brings it back.
//!
//! [`ltx`] is the format of one file, [`store`] where files are kept, [`plan`] which of them make a state, [`times`] which are of
//! before a time, [`state`] what is known of one. [`source`] reads the database, [`ship`] sends what has changed, [`compact`] says what is merged and removed,
//! [`restore`], [`follow`] and [`verify`] are the way back, and [`fetch`] reads for them. [`fence`] is who may write into a store,
//! [`promote`] how that changes.

pub mod compact;
pub mod fence;
pub mod fetch;
pub mod follow;
pub mod local;
pub mod ltx;
pub mod metrics;
pub mod plan;
pub mod promote;
pub mod report;
pub mod restore;
mod rules;
pub mod ship;
pub mod source;
pub mod state;
pub mod store;
pub mod times;
pub mod verify;
