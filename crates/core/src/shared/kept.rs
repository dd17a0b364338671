//! Images of home for readers of other processes, in a file beside the log.
//!
//! Before a checkpoint overwrites an image that older snapshots may read with that of `until`, it
//! is appended here. A reader of home uses the entry with the smallest `until` above its snapshot.
//! Nothing is durable; recovery does not read it.

#![deny(clippy::indexing_slicing, clippy::unwrap_used, clippy::expect_used)]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::slots::slots_path;
use super::words::ProcessWords;
use crate::base::error::{Error, IoContext, Result};
use crate::base::layout::{KEPT_SUFFIX, le_u32, le_u64, put};
use crate::base::types::{PageNo, Tid};
use crate::disk::beside;
use crate::disk::sync::Mutex;
use crate::disk::{Disk, DiskFile, OpenMode};
use crate::log::file::base;

/// Page number u32, image length u32, until u64, crc32c of these u32, zeros.
const HEAD_BYTES: usize = 32;
const RUN_BYTES: usize = 256 << 10;

/// Two files that had one name in turn may both be in use (rule LogFoundBySession).
pub fn kept_path(log: &Path, session: u64) -> PathBuf {
    beside::path(&base(log), &format!("{KEPT_SUFFIX}-{session:016x}"))
}

pub fn remove(disk: &dyn Disk, log: &Path, session: u64) -> Result<()> {
    for path in [slots_path(log, session), kept_path(log, session)] {
        beside::remove(disk, &path).context(|| format!("cannot remove {}", path.display()))?;
    }
    Ok(())
}

#[derive(Default)]
struct Index {
    file: Option<Arc<dyn DiskFile>>,
    generation: u64,
    /// Entries up to here are known.
    len: u64,
    pages: FxHashMap<PageNo, BTreeMap<Tid, u64>>,
}

pub struct KeptImages {
    disk: Arc<dyn Disk>,
    home: Arc<dyn DiskFile>,
    path: PathBuf,
    words: ProcessWords,
    mode: OpenMode,
    index: Mutex<Index>,
}

struct KeptImage {
    generation: u64,
    file: Arc<dyn DiskFile>,
    at: u64,
}

pub struct EntryBatch {
    generation: u64,
    at: u64,
    buf: Vec<u8>,
    file: Arc<dyn DiskFile>,
}

impl KeptImages {
    pub fn new(
        disk: Arc<dyn Disk>,
        home: Arc<dyn DiskFile>,
        path: PathBuf,
        words: ProcessWords,
        read_only: bool,
    ) -> KeptImages {
        let mode = if read_only { OpenMode::ReadOnly } else { OpenMode::Create };
        KeptImages { disk, home, path, words, mode, index: Mutex::default() }
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

    /// Reads the image from its byte `from` on; returns the bytes read. `None`: home's counts. One
    /// load while the file is empty.
    pub fn read(&self, page: PageNo, tid: Tid, from: usize, buf: &mut [u8]) -> Result<Option<usize>> {
        loop {
            let Some(KeptImage { generation, file, at }) = self.find(page, tid)? else { return Ok(None) };
            let read = file.read_at(buf, at + from as u64).context(|| self.what("read"))?;
            // Else a checkpoint may have restarted the file during the read.
            if self.words.same_kept(generation) {
                return Ok(Some(read));
            }
        }
    }

    pub fn has(&self, page: PageNo, tid: Tid) -> Result<bool> {
        Ok(self.find(page, tid)?.is_some())
    }

    fn find(&self, page: PageNo, tid: Tid) -> Result<Option<KeptImage>> {
        if self.words.kept().1 == 0 || tid >= self.words.kept_until() {
            return Ok(None);
        }
        let mut index = self.index.lock();
        self.refresh(&mut index)?;
        let newer = (std::ops::Bound::Excluded(tid), std::ops::Bound::Unbounded);
        let at = index.pages.get(&page).and_then(|images| images.range(newer).next()).map(|(_, at)| *at);
        let Some(at) = at else { return Ok(None) };
        let file = self.open(&mut index)?;
        Ok(Some(KeptImage { generation: index.generation, file, at }))
    }

    fn refresh(&self, index: &mut Index) -> Result<()> {
        loop {
            let (generation, len) = self.words.kept();
            if index.generation != generation {
                index.generation = generation;
                index.len = 0;
                index.pages.clear();
            }
            let is_sound = self.read_entries(index, len)?;
            if self.words.same_kept(generation) {
                let damaged = || Error::Corrupt(format!("the old images {} are damaged", self.path.display()));
                return if is_sound { Ok(()) } else { Err(damaged()) };
            }
        }
    }

    /// False if an entry is missing.
    fn read_entries(&self, index: &mut Index, len: u64) -> Result<bool> {
        if index.len >= len {
            return Ok(true);
        }
        let file = self.open(index)?;
        let mut head = [0; HEAD_BYTES];
        while index.len < len {
            let read = file.read_at(&mut head, index.len).context(|| self.what("read"))?;
            let field = |at| le_u32(&head, at).unwrap_or(0);
            let crc = crc32c::crc32c(head.get(..16).unwrap_or_default());
            if read < HEAD_BYTES || field(16) != crc || field(4) == 0 {
                return Ok(false);
            }
            let until = Tid(le_u64(&head, 8).unwrap_or(0));
            index.pages.entry(PageNo(field(0))).or_default().insert(until, index.len + HEAD_BYTES as u64);
            index.len += HEAD_BYTES as u64 + u64::from(field(4));
        }
        Ok(true)
    }

    /// The caller has the writer's place.
    pub fn covers(&self, page: PageNo, tid: Tid) -> bool {
        let newer = (std::ops::Bound::Excluded(tid), std::ops::Bound::Unbounded);
        self.index.lock().pages.get(&page).is_some_and(|images| images.range(newer).next().is_some())
    }

    /// `afresh`: the present images are not needed.
    pub fn begin(&self, afresh: bool) -> Result<EntryBatch> {
        let mut index = self.index.lock();
        let (generation, len) = self.words.kept();
        // Not 0: the session's end looks for the file (`may_have_files`).
        if generation == 0 && len == 0 || afresh && len > 0 {
            self.words.set_kept(generation + 1, 0);
        }
        if afresh && len > 0 {
            let file = self.open(&mut index)?;
            file.set_len(0).context(|| self.what("shorten"))?;
        }
        self.refresh(&mut index)?;
        let file = self.open(&mut index)?;
        let (generation, at) = self.words.kept();
        Ok(EntryBatch { generation, at, buf: Vec::new(), file })
    }

    pub fn add(&self, run: &mut EntryBatch, page: PageNo, until: Tid, image: &[u8]) -> Result<()> {
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

    fn write(&self, run: &mut EntryBatch) -> Result<()> {
        run.file.write_at(&run.buf, run.at).context(|| self.what("write"))?;
        run.at += run.buf.len() as u64;
        run.buf.clear();
        Ok(())
    }

    pub fn finish(&self, mut run: EntryBatch) -> Result<()> {
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
    use std::io;

    /// Acts as another process before a first read.
    struct Overtaken<F> {
        file: Arc<dyn DiskFile>,
        act: Mutex<Option<F>>,
    }

    impl<F: FnOnce() + Send> DiskFile for Overtaken<F> {
        fn read_once_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
            let act = self.act.lock().take();
            act.into_iter().for_each(|act| act());
            self.file.read_once_at(buf, offset)
        }

        crate::forward_disk_file!(
        this => this.file;
        id, len, write_at, write_durable_at, sync, set_len, reserve, try_lock, unlock, atomic_unit_bytes
        );
    }

    struct Both {
        writer: Arc<KeptImages>,
        reader: KeptImages,
    }

    impl Both {
        fn new() -> Both {
            let disk: Arc<dyn Disk> = Arc::new(SimDisk::new(SimConfig::default()));
            let words = ProcessWords::new(Arc::default());
            words.found(1, false, 1, Tid(0));
            let path = Path::new("/db");
            let home = disk.open(path, OpenMode::Create).unwrap();
            let open = || KeptImages::new(disk.clone(), home.clone(), kept_path(path, 1), words.clone(), false);
            Both { writer: Arc::new(open()), reader: open() }
        }

        /// For snapshots before `until`.
        fn keep(kept: &KeptImages, afresh: bool, until: u64, pages: [(u32, u8); 2]) {
            let mut run = kept.begin(afresh).unwrap();
            for (page, byte) in pages {
                kept.add(&mut run, PageNo(page), Tid(until), &[byte; 512]).unwrap();
            }
            kept.finish(run).unwrap();
        }

        fn overtake(&self, pages: Option<[(u32, u8); 2]>) {
            let (writer, mut index) = (self.writer.clone(), self.reader.index.lock());
            let act = move || match pages {
                Some(pages) => Both::keep(&writer, true, 9, pages),
                None => writer.finish(writer.begin(true).unwrap()).unwrap(),
            };
            let file = self.reader.open(&mut index).unwrap();
            index.file = Some(Arc::new(Overtaken { file, act: Mutex::new(Some(act)) }));
        }

        fn read(&self, page: u32) -> Option<u8> {
            let mut byte = [0];
            let read = self.reader.read(PageNo(page), Tid(1), 0, &mut byte).unwrap()?;
            assert_eq!(read, 1);
            Some(byte[0])
        }
    }

    #[test]
    fn an_image_that_is_overwritten_while_it_is_read_is_not_taken() {
        for pages in [None, Some([(7, 70), (3, 30)])] {
            let both = Both::new();
            Both::keep(&both.writer, false, 5, [(3, 50), (4, 1)]);
            assert_eq!(both.read(3), Some(50));
            both.overtake(pages);
            assert_eq!(both.read(3), pages.map(|_| 30));
        }
    }

    #[test]
    fn entries_that_are_overwritten_while_they_are_read_are_no_damage() {
        for pages in [None, Some([(7, 70), (3, 30)])] {
            let both = Both::new();
            Both::keep(&both.writer, false, 5, [(3, 50), (4, 1)]);
            both.overtake(pages);
            assert_eq!(both.read(4), None);
            assert_eq!(both.read(3), pages.map(|_| 30));
        }
    }

    #[test]
    fn a_snapshot_reads_the_image_that_was_overwritten_first_after_it() {
        let Both { writer, reader } = Both::new();
        let read = |kept: &KeptImages, tid| {
            let mut byte = [0];
            kept.read(PageNo(3), Tid(tid), 0, &mut byte).unwrap().map(|_| byte[0])
        };
        assert_eq!(read(&reader, 1), None);
        for (until, byte) in [(5, 50), (9, 90)] {
            Both::keep(&writer, false, until, [(3, byte), (4, 1)]);
        }
        let seen: Vec<_> = [1, 4, 5, 8, 9].map(|tid| read(&reader, tid)).to_vec();
        assert_eq!(seen, [Some(50), Some(50), Some(90), Some(90), None]);
        writer.begin(false).unwrap();
        assert!(writer.covers(PageNo(3), Tid(8)) && !writer.covers(PageNo(3), Tid(9)));
        let run = writer.begin(true).unwrap();
        writer.finish(run).unwrap();
        assert_eq!(read(&reader, 1), None);
        assert!(!writer.covers(PageNo(3), Tid(1)));
    }
}
