//! onewrite under the SQLite that rusqlite bundles. One binary, for a build links each of them
//! anew.

mod bad_input;
mod concurrent;
mod corpus;
mod differential;
mod files;
mod formats;
mod found;
mod living;
mod lost;
mod memory;
mod processes;
mod support;

/// The process that `Remote` starts.
#[test]
fn child() {
    support::remote::serve();
}
