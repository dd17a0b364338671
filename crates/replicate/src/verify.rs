//! Compares a database with its store.

use crate::plan::{Target, look_at, newest, plan};
use crate::source::Source;
use crate::state::{HashedState, byte_bar, page_bar};
use crate::store::Store;
use anyhow::{Result, bail};
use std::path::Path;
use std::time::{Duration, Instant};

/// Result of the comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Every page is equal.
    Same {
        /// The store's transaction.
        txid: u64,
        /// Pages of the database.
        pages: u32,
    },
    /// Both have the same state by page 1, and pages differ.
    Differ {
        /// The store's transaction.
        txid: u64,
        /// Pages that differ.
        pages: u32,
    },
    /// The store has another state than the database.
    Behind {
        /// The store's transaction.
        txid: u64,
    },
}

/// Compares the database with the store, which gets `patience` to catch up.
pub fn verify(store: &dyn Store, file: &Path, patience: Duration) -> Result<Verdict> {
    let deadline = Instant::now() + patience;
    loop {
        let Some((source, _)) = Source::pin(file)? else { bail!("{} has no page", file.display()) };
        let bar = page_bar("comparing");
        let ours = HashedState { page_bytes: source.page_bytes, hashes: source.hashes(&bar)? };
        bar.finish_and_clear();
        drop(source);
        let mut looked = 0;
        // The shipper may be behind; a newer state of the store needs a newer snapshot.
        loop {
            let (entries, plan) = look_at(store, |entries| plan(entries, Target::Newest))?;
            let txid = newest(&entries);
            if txid != looked || txid == 0 {
                let bar = byte_bar("reading the store");
                let theirs = plan.and_then(|plan| HashedState::read(store, &plan, &bar));
                bar.finish_and_clear();
                let theirs = theirs?;
                if theirs == ours {
                    return Ok(Verdict::Same { txid, pages: u32::try_from(ours.hashes.len())? });
                }
                if theirs.page_bytes == ours.page_bytes && theirs.hashes.first() == ours.hashes.first() {
                    let all = 0..ours.hashes.len().max(theirs.hashes.len());
                    let pages = all.filter(|n| ours.hashes.get(*n) != theirs.hashes.get(*n)).count();
                    return Ok(Verdict::Differ { txid, pages: u32::try_from(pages)? });
                }
                if Instant::now() >= deadline {
                    return Ok(Verdict::Behind { txid });
                }
                if looked != 0 {
                    break;
                }
                looked = txid;
            }
            if Instant::now() >= deadline {
                return Ok(Verdict::Behind { txid });
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}
