//! A simulated file's bytes for those that map it: they map a nameless file of the system, which
//! gets each change.

use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};

use super::bytes::Bytes;
use crate::disk::environment::temp_dir;
use crate::disk::mapped::MappedFile;

/// Stands behind the end of a file that became shorter, where a look would kill a process.
const BEHIND_END: u8 = 0xdb;

#[derive(Debug)]
pub(super) struct Mapped(File);

impl Mapped {
    pub fn of(view: &Bytes) -> io::Result<Mapped> {
        let mapped = Mapped(tempfile::tempfile_in(temp_dir())?);
        mapped.change(view, 0, view.len())?;
        Ok(mapped)
    }

    /// The first `bytes`.
    pub fn map(&self, bytes: u64) -> io::Result<Option<MappedFile>> {
        MappedFile::of(&self.0, bytes)
    }

    /// From `from` to `to` the file has changed, or ended.
    pub fn change(&self, view: &Bytes, from: usize, to: usize) -> io::Result<()> {
        let mut changed = vec![0; to.saturating_sub(from)];
        view.read(&mut changed, from);
        let left = view.len().saturating_sub(from).min(changed.len());
        changed[left..].fill(BEHIND_END);
        let mut file = &self.0;
        file.seek(SeekFrom::Start(from as u64))?;
        file.write_all(&changed)
    }
}
