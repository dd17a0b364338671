//! What a transaction of `concurrent=1` has looked at, and how far it is.

use rustc_hash::{FxHashMap, FxHashSet};

use crate::table::Image;
use crate::types::PageNo;

/// What a transaction without the writer's place has looked at.
#[derive(Default)]
pub(super) struct Looked {
    /// Pages SQLite read since it got its lock.
    pub(super) pages: FxHashSet<PageNo>,
    pub(super) stage: Stage,
}

/// How far it is.
#[derive(Default)]
pub(super) enum Stage {
    /// On its snapshot.
    #[default]
    Apart,
    /// It has the writer's place, and others had committed nothing since its snapshot.
    Ordinary,
    /// It has the writer's place and builds on what others committed since its snapshot.
    Merged,
    /// Committed so. SQLite's cache is of the snapshot and of these pages of its own, and so is what it reads, until it
    /// gives its lock back.
    Committed(FxHashMap<PageNo, Image>),
}

impl Looked {
    /// Notes a page that SQLite reads; where the transaction has committed, what it is to read.
    pub(super) fn read(&mut self, page: PageNo) -> Option<&Image> {
        match &self.stage {
            Stage::Apart => {
                self.pages.insert(page);
                None
            }
            Stage::Ordinary | Stage::Merged => None,
            Stage::Committed(own) => own.get(&page),
        }
    }
}
