//! Memory for pages, records and long lists: its lack is [`Error::NoMemory`]. Small pieces are
//! taken as usual in Rust, after [`headroom`] at a first write and a commit.
//!
//! An operation allocates before changes it cannot redo; publication allocates nothing (rule
//! TableAndStateAtOnce).

use std::cell::RefCell;
use std::collections::HashMap;
use std::collections::{TryReserveError, VecDeque};
use std::hash::{BuildHasher, Hash};

use smallvec::SmallVec;

use crate::base::error::{Error, Result};

pub trait Room {
    /// Adding them then allocates nothing.
    fn room(&mut self, more: usize) -> Result<()>;
}

impl<T> Room for Vec<T> {
    fn room(&mut self, more: usize) -> Result<()> {
        self.try_reserve(more).map_err(no_memory)
    }
}

impl<T> Room for VecDeque<T> {
    fn room(&mut self, more: usize) -> Result<()> {
        self.try_reserve(more).map_err(no_memory)
    }
}

impl<K: Eq + Hash, V, S: BuildHasher> Room for HashMap<K, V, S> {
    fn room(&mut self, more: usize) -> Result<()> {
        self.try_reserve(more).map_err(no_memory)
    }
}

impl<A: smallvec::Array> Room for SmallVec<A> {
    fn room(&mut self, more: usize) -> Result<()> {
        self.try_reserve(more).map_err(|_| Error::NoMemory)
    }
}

fn no_memory(_: TryReserveError) -> Error {
    Error::NoMemory
}

/// Small pieces of a transaction.
const HEADROOM_BYTES: usize = 32 << 10;

/// Fails without memory for small pieces: the allocator keeps the bytes freed here for this thread.
pub fn headroom() -> Result<()> {
    list::<u8>(HEADROOM_BYTES).map(drop)
}

pub fn list<T>(capacity: usize) -> Result<Vec<T>> {
    let mut list = Vec::new();
    list.try_reserve_exact(capacity).map_err(no_memory)?;
    Ok(list)
}

pub fn zeros(len: usize) -> Result<Vec<u8>> {
    let mut zeros = bytes(len)?;
    zeros.resize(len, 0);
    Ok(zeros)
}

/// The length comes from a file.
pub fn zeros_of(len: u64) -> Result<Vec<u8>> {
    zeros(usize::try_from(len).map_err(|_| Error::NoMemory)?)
}

pub fn copy(of: &[u8]) -> Result<Vec<u8>> {
    let mut copy = bytes(of.len())?;
    copy.extend_from_slice(of);
    Ok(copy)
}

fn bytes(len: usize) -> Result<Vec<u8>> {
    let pooled = |pages: &RefCell<Vec<Vec<u8>>>| pages.borrow_mut().pop();
    let page = if len == POOLED_BYTES { PAGES.try_with(pooled).ok().flatten() } else { None };
    page.map_or_else(|| list(len), Ok)
}

/// Pages of SQLite's default size are pooled: allocators are slow with them.
const POOLED_BYTES: usize = 4096;
const POOLED: usize = 32;

/// Larger buffers are freed.
const SPARE_BYTES: usize = 64 << 10;

// Of each thread: what all share is fetched from the other processor at each commit.
thread_local! {
    static PAGES: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
    /// Unused buffers: of many open connections and databases, few write.
    static SPARES: RefCell<[Vec<u8>; 3]> = const { RefCell::new([const { Vec::new() }; 3]) };
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageBytes(pub Vec<u8>);

impl Drop for PageBytes {
    fn drop(&mut self) {
        if self.0.capacity() != POOLED_BYTES {
            return;
        }
        let mut page = std::mem::take(&mut self.0);
        // Freed where the thread ends.
        let _ = PAGES.try_with(|pages| {
            let mut pages = pages.borrow_mut();
            if pages.len() < POOLED && pages.try_reserve(1).is_ok() {
                page.clear();
                pages.push(page);
            }
        });
    }
}

/// An empty buffer, perhaps with the capacity of its last use.
pub fn spare() -> Vec<u8> {
    let used = |spares: &RefCell<[Vec<u8>; 3]>| {
        spares.borrow_mut().iter_mut().find(|spare| spare.capacity() > 0).map(std::mem::take)
    };
    SPARES.try_with(used).ok().flatten().unwrap_or_default()
}

pub fn give_back(buffer: &mut Vec<u8>) {
    if buffer.capacity() == 0 {
        return;
    }
    let mut buffer = std::mem::take(buffer);
    if buffer.capacity() > SPARE_BYTES {
        return;
    }
    buffer.clear();
    let _ = SPARES.try_with(|spares| {
        if let Some(place) = spares.borrow_mut().iter_mut().find(|spare| spare.capacity() == 0) {
            *place = buffer;
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_that_is_taken_again_has_nothing_of_before() {
        for n in 0..3 * POOLED {
            let pages: Vec<_> = (0..n).map(|_| PageBytes(copy(&[7; POOLED_BYTES]).unwrap())).collect();
            drop(pages);
            assert!(
                PAGES.with_borrow(|pages| pages.iter().all(|page| page.is_empty() && page.capacity() == POOLED_BYTES))
            );
            assert!(PAGES.with_borrow(Vec::len) <= POOLED);
            assert_eq!(zeros(POOLED_BYTES).unwrap(), [0; POOLED_BYTES]);
            assert_eq!(copy(&[8; POOLED_BYTES]).unwrap(), [8; POOLED_BYTES]);
        }
    }
}
