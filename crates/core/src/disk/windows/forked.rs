//! Windows has no fork: files and mappings need no list.

use std::fs::File;
use std::io;
use std::ops::Deref;

pub(super) struct NoFork(());

impl NoFork {
    pub(super) fn new() -> NoFork {
        NoFork(())
    }

    pub(super) fn mapped(&mut self, _at: usize, _len: usize) {}

    pub(super) fn unmapped(&mut self, _at: usize, _len: usize) {}
}

#[derive(Debug)]
pub(super) struct ForkSafeFile(File);

impl ForkSafeFile {
    pub(super) fn by(open: impl FnOnce() -> io::Result<File>) -> io::Result<ForkSafeFile> {
        open().map(ForkSafeFile)
    }
}

impl Deref for ForkSafeFile {
    type Target = File;

    fn deref(&self) -> &File {
        &self.0
    }
}
