//! The drop-in library. One binary, for a build links each of them anew.

mod common;
mod library;
mod patching;
mod proof;
