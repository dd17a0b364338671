//! Windows has no fork: mappings need no list.

pub(super) struct NoFork(());

impl NoFork {
    pub(super) fn new() -> NoFork {
        NoFork(())
    }

    pub(super) fn mapped(&mut self, _at: usize, _len: usize) {}

    pub(super) fn unmapped(&mut self, _at: usize, _len: usize) {}
}
