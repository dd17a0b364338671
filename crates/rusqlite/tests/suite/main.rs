//! onewrite under the SQLite that rusqlite bundles. One binary, for a build links each of them
//! anew.

mod bad_input;
mod concurrent;
mod corpus;
// Under Wine stock SQLite fails to remove its journals.
#[cfg(unix)]
mod differential;
#[cfg(unix)]
mod files;
mod formats;
mod found;
mod living;
mod lost;
#[cfg(target_os = "linux")]
mod mapped;
#[cfg(unix)]
mod memory;
mod processes;
mod support;

/// The process that `Remote` starts.
#[test]
fn child() {
    support::remote::serve();
}
