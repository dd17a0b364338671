//! Images of home that readers of other processes still need: a file beside the log, written by whoever checkpoints.
//!
//! Before home's image of a page is overwritten by that of transaction `until`, it is appended here if a snapshot
//! older than `until` may read it. A reader that finds a page at home looks here first: the entry with the
//! smallest `until` above its snapshot is the image, and home only where there is none. Nothing here is durable,
//! and no recovery reads it.

#![deny(clippy::indexing_slicing, clippy::unwrap_used, clippy::expect_used)]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use rustc_hash::FxHashMap;

use super::words::ProcessWords;
use crate::beside;
use crate::disk::{Disk, DiskFile, OpenMode};
use crate::error::{Error, IoContext, Result};
use crate::layout::{KEPT_SUFFIX, le_u32, le_u64, put};
use crate::log::file::base;
use crate::types::{PageNo, Tid};

/// Length of the head of an entry: page number u32, length of the image u32, until u64, crc32c of these u32, zeros.
const HEAD_BYTES: usize = 32;
/// Entries written with one call, in bytes.
const RUN_BYTES: usize = 256 << 10;

/// The path of the images kept for a session, which is the same for all that use the `log` (rule KeptFileNamesSession):
/// two files may have had the name of the database one after the other, both in use.
pub fn kept_path(log: &Path, session: u64) -> PathBuf {
    beside::path(&base(log), &format!("{KEPT_SUFFIX}-{session:016x}"))
}

/// Removes the images kept for a session, if there are any.
pub fn remove(disk: &dyn Disk, log: &Path, session: u64) -> Result<()> {
    let path = kept_path(log, session);
    beside::remove(disk, &path).context(|| format!("cannot remove the old images {}", path.display()))
}

#[derive(Default)]
struct Index {
    file: Option<Arc<dyn DiskFile>>,
    generation: u64,
    /// Entries up to here are known.
    len: u64,
    /// Page → until → where the image is.
    pages: FxHashMap<PageNo, BTreeMap<Tid, u64>>,
}

/// The kept images, as one process knows them.
pub struct Kept {
    disk: Arc<dyn Disk>,
    home: Arc<dyn DiskFile>,
    path: PathBuf,
    words: ProcessWords,
    mode: OpenMode,
    index: Mutex<Index>,
}

/// Entries being written.
pub struct Run {
    generation: u64,
    /// Where the next write goes.
    at: u64,
    buf: Vec<u8>,
    file: Arc<dyn DiskFile>,
}

impl Kept {
    /// The kept images of a database; with `read_only`, of other processes alone.
    pub fn new(
        disk: Arc<dyn Disk>,
        home: Arc<dyn DiskFile>,
        path: PathBuf,
        words: ProcessWords,
        read_only: bool,
    ) -> Kept {
        let mode = if read_only { OpenMode::ReadOnly } else { OpenMode::Create };
        Kept { disk, home, path, words, mode, index: Mutex::default() }
    }

    fn what(&self, verb: &str) -> String {
        format!("cannot {verb} the old images {}", self.path.display())
    }

    fn open(&self, index: &mut Index) -> Result<Arc<dyn DiskFile>> {
        if let Some(file) = &index.file {
            return Ok(file.clone());
        }
        let file = beside::open(&*self.disk, &self.path, self.mode, &*self.home, || self.what("open"))?;
        index.file = Some(file.clone());
        Ok(file)
    }

    /// The image of `page` that the snapshot `tid` reads instead of home's: the file and the position in bytes.
    /// No more than a load while nothing is kept.
    pub fn find(&self, page: PageNo, tid: Tid) -> Result<Option<(Arc<dyn DiskFile>, u64)>> {
        if self.words.kept().1 == 0 || tid >= self.words.kept_until() {
            return Ok(None);
        }
        let mut index = self.index.lock();
        self.refresh(&mut index)?;
        let newer = (std::ops::Bound::Excluded(tid), std::ops::Bound::Unbounded);
        let at = index.pages.get(&page).and_then(|images| images.range(newer).next()).map(|(_, at)| *at);
        let Some(at) = at else { return Ok(None) };
        Ok(Some((self.open(&mut index)?, at)))
    }

    /// Reads the entries that others added.
    fn refresh(&self, index: &mut Index) -> Result<()> {
        let (generation, len) = self.words.kept();
        if index.generation != generation {
            index.generation = generation;
            index.len = 0;
            index.pages.clear();
        }
        if index.len >= len {
            return Ok(());
        }
        let file = self.open(index)?;
        let mut head = [0; HEAD_BYTES];
        while index.len < len {
            file.read_at(&mut head, index.len).context(|| self.what("read"))?;
            let field = |at| le_u32(&head, at).unwrap_or(0);
            let crc = crc32c::crc32c(head.get(..16).unwrap_or_default());
            if field(16) != crc || field(4) == 0 {
                return Err(Error::Corrupt(format!("the old images {} are damaged", self.path.display())));
            }
            let until = Tid(le_u64(&head, 8).unwrap_or(0));
            index.pages.entry(PageNo(field(0))).or_default().insert(until, index.len + HEAD_BYTES as u64);
            index.len += HEAD_BYTES as u64 + u64::from(field(4));
        }
        Ok(())
    }

    /// The smallest `until` above `tid` among the images of `page`. The caller has the writer's place.
    pub fn covers(&self, page: PageNo, tid: Tid) -> bool {
        let newer = (std::ops::Bound::Excluded(tid), std::ops::Bound::Unbounded);
        self.index.lock().pages.get(&page).is_some_and(|images| images.range(newer).next().is_some())
    }

    /// Begins to keep images. With `afresh`, nobody needs those there are. The caller has the writer's place.
    pub fn begin(&self, afresh: bool) -> Result<Run> {
        let mut index = self.index.lock();
        let (generation, len) = self.words.kept();
        if afresh && len > 0 {
            self.words.set_kept(generation + 1, 0);
            let file = self.open(&mut index)?;
            file.set_len(0).context(|| self.what("shorten"))?;
        }
        self.refresh(&mut index)?;
        let file = self.open(&mut index)?;
        let (generation, at) = self.words.kept();
        Ok(Run { generation, at, buf: Vec::new(), file })
    }

    /// Adds an image to `run`.
    pub fn add(&self, run: &mut Run, page: PageNo, until: Tid, image: &[u8]) -> Result<()> {
        let from = run.buf.len();
        run.buf.resize(from + HEAD_BYTES, 0);
        put(&mut run.buf, from, &page.0.to_le_bytes());
        put(&mut run.buf, from + 4, &u32::try_from(image.len()).unwrap_or(0).to_le_bytes());
        put(&mut run.buf, from + 8, &until.0.to_le_bytes());
        let crc = crc32c::crc32c(run.buf.get(from..from + 16).unwrap_or_default());
        put(&mut run.buf, from + 16, &crc.to_le_bytes());
        run.buf.extend_from_slice(image);
        self.words.raise_kept_until(until);
        if run.buf.len() >= RUN_BYTES { self.write(run) } else { Ok(()) }
    }

    fn write(&self, run: &mut Run) -> Result<()> {
        run.file.write_at(&run.buf, run.at).context(|| self.what("write"))?;
        run.at += run.buf.len() as u64;
        run.buf.clear();
        Ok(())
    }

    /// Lets every process see the images of `run`.
    pub fn finish(&self, mut run: Run) -> Result<()> {
        self.write(&mut run)?;
        self.words.set_kept(run.generation, run.at);
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing)]
mod tests {
    use super::*;
    use crate::disk::sim::{SimConfig, SimDisk};

    #[test]
    fn a_snapshot_reads_the_image_that_was_overwritten_first_after_it() {
        let disk: Arc<dyn Disk> = Arc::new(SimDisk::new(SimConfig::default()));
        let words = ProcessWords::new(Arc::default());
        words.found(1, false, 1, Tid(0));
        let path = Path::new("/db");
        let home = disk.open(path, OpenMode::Create).unwrap();
        let open = || Kept::new(disk.clone(), home.clone(), kept_path(path, 1), words.clone(), false);
        let (writer, reader) = (open(), open());
        let read = |kept: &Kept, tid| {
            let (file, at) = kept.find(PageNo(3), Tid(tid)).unwrap()?;
            let mut byte = [0];
            file.read_at(&mut byte, at).unwrap();
            Some(byte[0])
        };
        assert_eq!(read(&reader, 1), None);
        for (until, byte) in [(5, 50), (9, 90)] {
            let mut run = writer.begin(false).unwrap();
            writer.add(&mut run, PageNo(3), Tid(until), &[byte; 512]).unwrap();
            writer.add(&mut run, PageNo(4), Tid(until), &[1; 512]).unwrap();
            writer.finish(run).unwrap();
        }
        let seen: Vec<_> = [1, 4, 5, 8, 9].map(|tid| read(&reader, tid)).to_vec();
        assert_eq!(seen, [Some(50), Some(50), Some(90), Some(90), None]);
        writer.begin(false).unwrap();
        assert!(writer.covers(PageNo(3), Tid(8)) && !writer.covers(PageNo(3), Tid(9)));
        // Begun afresh, nothing of before is found.
        let run = writer.begin(true).unwrap();
        writer.finish(run).unwrap();
        assert_eq!(read(&reader, 1), None);
        assert!(!writer.covers(PageNo(3), Tid(1)));
    }
}
