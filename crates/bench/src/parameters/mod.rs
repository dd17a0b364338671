//! The parameters of a measurement: the options that were given, and the card of all that changes a
//! result.

pub mod card;
pub mod given;
pub mod options;
pub mod suite;
