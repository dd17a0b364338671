//! What a transaction of `concurrent=1` has looked at, and how far it is.

use rustc_hash::{FxHashMap, FxHashSet};

use crate::base::types::PageNo;
use crate::pages::table::Image;

/// What a transaction without the writer's place has looked at.
#[derive(Default)]
pub(super) struct ReadSet {
    /// Pages SQLite read since it got its lock.
    pub(super) pages: FxHashSet<PageNo>,
    pub(super) stage: OptimisticStage,
}

/// How far it is.
#[derive(Default)]
pub(super) enum OptimisticStage {
    /// On its snapshot.
    #[default]
    Apart,
    /// It has the writer's place, and others had committed nothing since its snapshot.
    Ordinary,
    /// It has the writer's place and builds on what others committed since its snapshot. SQLite's cache is of the snapshot and of these
    /// pages of its own, and so is what it reads, until it gives its lock back.
    Merged(OwnPages),
    /// Committed so.
    Committed(OwnPages),
}

/// The pages of a transaction as SQLite knows them, and how long the file is with them, in bytes.
pub(super) struct OwnPages {
    pub(super) pages: FxHashMap<PageNo, Image>,
    pub(super) file_bytes: u64,
}

impl ReadSet {
    /// How long the file is that SQLite reads, where its pages are not those of the newest state any more.
    pub(super) fn file_bytes(&self) -> Option<u64> {
        match &self.stage {
            OptimisticStage::Merged(own) | OptimisticStage::Committed(own) => Some(own.file_bytes),
            OptimisticStage::Apart | OptimisticStage::Ordinary => None,
        }
    }

    /// Merged → Committed.
    pub(super) fn commit(&mut self) {
        self.stage = match std::mem::take(&mut self.stage) {
            OptimisticStage::Merged(own) => OptimisticStage::Committed(own),
            other => other,
        };
    }

    /// Notes a page that SQLite reads; where the transaction has lined up behind others, what it is to read.
    pub(super) fn read(&mut self, page: PageNo) -> Option<&Image> {
        match &self.stage {
            OptimisticStage::Apart => {
                self.pages.insert(page);
                None
            }
            OptimisticStage::Ordinary => None,
            OptimisticStage::Merged(own) | OptimisticStage::Committed(own) => own.pages.get(&page),
        }
    }
}
