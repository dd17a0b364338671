//! Memory for what is as large as the data: pages, records, runs of pages, lists with an item for each page. Where
//! there is none, the call fails with [`Error::NoMemory`] and the process lives; what is small is taken as everywhere
//! in Rust, after [`headroom`] where a transaction begins to write and where it commits.
//!
//! An operation takes what it needs before it changes anything that it cannot try again. What comes after publication
//! was reserved before (rule MemoryBeforePublication of `docs/commit.md`).

use std::collections::HashMap;
use std::collections::TryReserveError;
use std::hash::{BuildHasher, Hash};

use crate::error::{Error, Result};

/// Something that can be given room for more items.
pub trait Room {
    /// Makes room for `more` items, so that adding them takes no memory.
    fn room(&mut self, more: usize) -> Result<()>;
}

impl<T> Room for Vec<T> {
    fn room(&mut self, more: usize) -> Result<()> {
        self.try_reserve(more).map_err(no_memory)
    }
}

impl<K: Eq + Hash, V, S: BuildHasher> Room for HashMap<K, V, S> {
    fn room(&mut self, more: usize) -> Result<()> {
        self.try_reserve(more).map_err(no_memory)
    }
}

fn no_memory(_: TryReserveError) -> Error {
    Error::NoMemory
}

/// What a transaction takes in small pieces.
const HEADROOM_BYTES: usize = 32 << 10;

/// Fails where there is no room for the small things of a transaction: the allocator has what is given back here for the
/// calling thread.
pub fn headroom() -> Result<()> {
    list::<u8>(HEADROOM_BYTES).map(drop)
}

/// An empty list with room for `capacity` items.
pub fn list<T>(capacity: usize) -> Result<Vec<T>> {
    let mut list = Vec::new();
    list.try_reserve_exact(capacity).map_err(no_memory)?;
    Ok(list)
}

/// So many zeros.
pub fn zeros(len: usize) -> Result<Vec<u8>> {
    let mut zeros = list(len)?;
    zeros.resize(len, 0);
    Ok(zeros)
}

/// The same where the number is of bytes in a file.
pub fn zeros_of(len: u64) -> Result<Vec<u8>> {
    zeros(usize::try_from(len).map_err(|_| Error::NoMemory)?)
}

/// A copy of `bytes`.
pub fn copy(bytes: &[u8]) -> Result<Vec<u8>> {
    let mut copy = list(bytes.len())?;
    copy.extend_from_slice(bytes);
    Ok(copy)
}
