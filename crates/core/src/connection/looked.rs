//! The stage of a transaction of `concurrent=1`.

use rustc_hash::FxHashMap;

use crate::base::types::PageNo;
use crate::pages::image::Image;

#[derive(Default)]
pub(super) struct ReadSet {
    pub(super) stage: OptimisticStage,
}

#[derive(Default)]
pub(super) enum OptimisticStage {
    /// On its snapshot.
    #[default]
    Apart,
    /// It has the place; no other committed since its snapshot.
    Ordinary,
    /// It has the place and builds on later commits. Until it unlocks, SQLite reads the snapshot
    /// and these pages of its own, as its cache has them.
    Merged(OwnPages),
    Committed(OwnPages),
}

pub(super) struct OwnPages {
    pub(super) pages: FxHashMap<PageNo, Image>,
    pub(super) file_bytes: u64,
}

impl ReadSet {
    /// The length for SQLite, if not the newest state's.
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

    pub(super) fn read(&self, page: PageNo) -> Option<&Image> {
        match &self.stage {
            OptimisticStage::Apart | OptimisticStage::Ordinary => None,
            OptimisticStage::Merged(own) | OptimisticStage::Committed(own) => own.pages.get(&page),
        }
    }
}
