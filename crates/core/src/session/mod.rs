//! How a file comes into use and out of it.

pub mod aside;
pub mod asked;
pub mod lifecycle;
pub mod lost;
pub mod mark;
pub mod rest;
pub mod wal;
