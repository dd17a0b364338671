//! One open main database: how it is opened, and which of its calls are the engine's or the VFS's
//! underneath.

mod caller;
mod carried;
mod main;
mod open;
mod siblings;
mod state;

pub(crate) use main::Main;
pub(crate) use open::open;
pub(crate) use siblings::Siblings;
pub(crate) use state::MainFileState;
