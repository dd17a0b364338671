//! Slots of the processes that find none in block 0 of the log, in a file beside it.
//!
//! The first such process makes the file, and the last one removes it. Its blocks lie as block 0
//! does, with slots alone. Its length is that of all of them, but only those that were needed have
//! room. Nothing in it is durable; recovery does not read it.

#![deny(clippy::indexing_slicing, clippy::unwrap_used, clippy::expect_used)]

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use super::member::MemberFiles;
use crate::base::error::{Error, IoContext, Result};
use crate::base::layout::SLOTS_SUFFIX;
use crate::base::layout::words::MORE_BLOCKS;
use crate::disk::shared::{BYTES, SharedWords, Words};
use crate::disk::{Disk, DiskFile, OpenMode, beside};
use crate::log::file::base;

/// By session, as the kept images (rule LogFoundBySession).
pub fn slots_path(log: &Path, session: u64) -> PathBuf {
    beside::path(&base(log), &format!("{SLOTS_SUFFIX}-{session:016x}"))
}

struct SlotsSource {
    disk: Arc<dyn Disk>,
    home: Arc<dyn DiskFile>,
    path: PathBuf,
}

/// Mapped when a slot in it is looked at.
#[derive(Default)]
pub struct MoreSlots {
    source: Option<SlotsSource>,
    words: OnceLock<Arc<SharedWords>>,
}

impl fmt::Debug for MoreSlots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MoreSlots").field("words", &self.words.get().is_some()).finish_non_exhaustive()
    }
}

impl SlotsSource {
    fn what(&self, verb: &str) -> String {
        format!("cannot {verb} the file of processes {}", self.path.display())
    }

    fn open(&self, mode: OpenMode) -> Result<Arc<dyn DiskFile>> {
        beside::open(&*self.disk, &self.path, mode, &*self.home, || self.what("open"))
    }
}

fn made(file: &dyn DiskFile, what: impl FnOnce() -> String) -> Result<u64> {
    // Not 0 (`may_have_files`).
    Ok(file.made().context(what)?.unwrap_or(1))
}

impl MoreSlots {
    pub fn new(files: &MemberFiles, log: &Path, session: u64) -> MoreSlots {
        let (disk, home) = (files.disk.clone(), files.home.clone());
        MoreSlots { source: Some(SlotsSource { disk, home, path: slots_path(log, session) }), words: OnceLock::new() }
    }

    fn source(&self) -> Result<&SlotsSource> {
        self.source.as_ref().ok_or_else(|| Error::Busy("processes find no further slot here".into()))
    }

    pub fn block(&self, block: usize) -> Option<&Words> {
        self.words.get()?.blocks().get(block)
    }

    /// No process uses it.
    pub fn make(&self) -> Result<u64> {
        let source = self.source()?;
        let file = source.open(OpenMode::Create)?;
        // One that a crash left may be of any length.
        file.set_len(0).context(|| source.what("shorten"))?;
        file.set_len((MORE_BLOCKS * BYTES) as u64).context(|| source.what("lengthen"))?;
        made(&*file, || source.what("look at"))
    }

    /// A store to mapped memory cannot tell that the disk is full.
    pub fn make_block(&self, block: u64) -> Result<()> {
        let source = self.source()?;
        let file = source.open(OpenMode::ReadWrite)?;
        file.write_at(&[0; BYTES], block * BYTES as u64).context(|| source.what("write"))
    }

    pub fn map(&self, made_then: u64) -> Result<()> {
        if self.words.get().is_some() {
            return Ok(());
        }
        let source = self.source()?;
        let file = source.open(OpenMode::ReadWrite)?;
        if made(&*file, || source.what("look at"))? != made_then {
            return Err(Error::CantOpen(format!("{}: another file has its name", source.what("use"))));
        }
        let words = file.shared_words(MORE_BLOCKS).context(|| source.what("map"))?;
        self.words.get_or_init(|| words);
        Ok(())
    }
}
