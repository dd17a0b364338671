//! A state of the database: the files of the store that make it, and where each page lies in them.

use anyhow::{Context, Result, bail, ensure};
use onewrite_replicate::fetch::Damaged;
use onewrite_replicate::ltx::{Frame, HEADER_BYTES, Header, LtxError, Reader, TailIndex, lock_page, read_tail};
use onewrite_replicate::store::{Entry, Name, Store};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

/// Files of at most so many bytes are read whole, of larger ones so many last bytes with the index.
pub const WHOLE_BYTES: u64 = 256 << 10;
/// Indexes that are read at a time.
const THREADS: usize = 8;

/// Pages of a verified file, with their numbers.
pub type Images = Vec<(u32, Arc<[u8]>)>;

/// A file of the store, and where its pages lie.
#[derive(Debug)]
pub struct FileIndex {
    /// Another one each time that it is read: a name may be another file's later.
    pub id: u64,
    /// Its name, length, and time as listed; 0 as long as it was not listed.
    pub entry: Entry,
    /// Its header.
    pub header: Header,
    /// In the order of their pages, one behind the other.
    pub frames: Vec<Frame>,
}

impl FileIndex {
    /// Reads the index of a listed file; a small one is read whole, and verified.
    pub fn load(store: &dyn Store, entry: &Entry) -> Result<(FileIndex, Images)> {
        let name = entry.name;
        let from = entry.bytes.saturating_sub(WHOLE_BYTES);
        let mut tail = store.read_part(name, from, WHOLE_BYTES)?;
        if from == 0 {
            return FileIndex::verify(&tail, *entry);
        }
        // A store that does not answer has told nothing about the file.
        let damaged = |e: LtxError| anyhow::Error::new(e).context(Damaged(name));
        let head = store.read_part(name, 0, HEADER_BYTES as u64)?;
        let header = *Reader::open(head.as_slice()).map_err(damaged)?.header();
        check_name(name, &header)?;
        let frames = loop {
            ensure!(tail.len() as u64 <= entry.bytes, "{name} is longer than the listing says");
            match read_tail(&header, &tail, entry.bytes).map_err(damaged)? {
                TailIndex::Whole(frames) => break frames,
                TailIndex::Needs(bytes) => {
                    ensure!(bytes > tail.len() as u64, "{name} is shorter than the listing says");
                    tail = store.read_part(name, entry.bytes.saturating_sub(bytes), bytes)?;
                }
            }
        };
        Ok((FileIndex { id: next_id(), entry: *entry, header, frames }, Images::new()))
    }

    /// Verifies a whole file.
    pub fn verify(bytes: &[u8], entry: Entry) -> Result<(FileIndex, Images)> {
        let what = || Damaged(entry.name);
        let mut reader = Reader::open(bytes).with_context(what)?;
        let header = *reader.header();
        check_name(entry.name, &header).with_context(what)?;
        let (mut images, mut image) = (Images::new(), Vec::new());
        while let Some(page) = reader.page(&mut image).with_context(what)? {
            images.push((page, Arc::from(image.as_slice())));
        }
        reader.check_end().with_context(what)?;
        Ok((FileIndex { id: next_id(), entry, header, frames: reader.frames().to_vec() }, images))
    }

    /// Whether it is read whole, and so is verified.
    pub fn is_small(&self) -> bool {
        self.entry.bytes <= WHOLE_BYTES
    }

    /// Whether its name is still that of the file that was read. One that was read without a
    /// listing has no time, and is read again at the next one.
    fn is(&self, listed: &Entry) -> bool {
        self.entry == *listed
    }
}

fn next_id() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

fn check_name(name: Name, header: &Header) -> Result<()> {
    ensure!((header.min, header.max) == (name.min, name.max), "{name} holds other transactions");
    Ok(())
}

/// Where a page of a state is.
pub enum Place<'a> {
    /// In this frame of a file.
    Frame(&'a Arc<FileIndex>, usize),
    /// Nowhere: it is all zeros.
    Zeros,
}

/// A state of the database.
#[derive(Clone, Debug)]
pub struct ReplicaState {
    /// The oldest first; each file goes on from those before it.
    files: Vec<Arc<FileIndex>>,
    last: Header,
    /// When the store was listed for it, in milliseconds since 1970.
    pub listed_ms: i64,
}

impl ReplicaState {
    /// The state of the files of a plan. Takes from `known` the files that it has, and gives the
    /// pages of others, if they were read, to `keep`.
    pub fn load(
        store: &dyn Store,
        plan: &[Entry],
        known: Option<&ReplicaState>,
        listed_ms: i64,
        keep: &mut dyn FnMut(u64, Images),
    ) -> Result<ReplicaState> {
        let known = |entry: &Entry| {
            let files = known.map_or(&[][..], |known| &known.files);
            files.iter().find(|file| file.is(entry)).cloned()
        };
        let mut files = Vec::with_capacity(plan.len());
        for entries in plan.chunks(THREADS) {
            let loaded: Vec<_> = thread::scope(|scope| {
                let begin = |entry| known(entry).ok_or_else(|| scope.spawn(move || FileIndex::load(store, entry)));
                let begun: Vec<_> = entries.iter().map(begin).collect();
                let ended = |begun: Result<_, thread::ScopedJoinHandle<'_, Result<_>>>| match begun {
                    Ok(known) => Ok((known, Images::new())),
                    Err(thread) => match thread.join() {
                        Ok(loaded) => loaded.map(|(file, images)| (Arc::new(file), images)),
                        Err(_) => bail!("a thread that read an index has ended"),
                    },
                };
                begun.into_iter().map(ended).collect()
            });
            for loaded in loaded {
                let (file, images) = loaded?;
                keep(file.id, images);
                files.push(file);
            }
        }
        let last = files.last().map(|file| file.header).context("the store has no state")?;
        check_sizes(&files)?;
        Ok(ReplicaState { files, last, listed_ms })
    }

    /// The state behind one more file.
    pub fn with(&self, file: FileIndex) -> Result<ReplicaState> {
        let mut files = self.files.clone();
        let last = file.header;
        files.push(Arc::new(file));
        check_sizes(&files)?;
        Ok(ReplicaState { files, last, listed_ms: self.listed_ms })
    }

    /// Its transaction.
    pub fn txid(&self) -> u64 {
        self.last.max
    }

    /// When the shipper read it, in milliseconds since 1970.
    pub fn time_ms(&self) -> i64 {
        self.last.time_ms
    }

    /// Bytes of a page.
    pub fn page_bytes(&self) -> u32 {
        self.last.page_bytes
    }

    /// Pages of the database.
    pub fn pages(&self) -> u32 {
        self.last.pages
    }

    /// Bytes of the database.
    pub fn bytes(&self) -> u64 {
        u64::from(self.last.pages).saturating_mul(self.last.page_bytes.into())
    }

    /// Files that make it.
    pub fn files(&self) -> &[Arc<FileIndex>] {
        &self.files
    }

    /// Where `page` is. Pages that a file cut off stay lost, even if the database grew again.
    pub fn place(&self, page: u32) -> Place<'_> {
        if page == lock_page(self.last.page_bytes) {
            return Place::Zeros;
        }
        for file in self.files.iter().rev() {
            if page > file.header.pages {
                return Place::Zeros;
            }
            if let Ok(at) = file.frames.binary_search_by_key(&page, |frame| frame.page) {
                return Place::Frame(file, at);
            }
        }
        Place::Zeros
    }
}

fn check_sizes(files: &[Arc<FileIndex>]) -> Result<()> {
    let mut sizes = files.iter().map(|file| file.header.page_bytes);
    let first = sizes.next();
    ensure!(
        sizes.all(|size| Some(size) == first),
        "the page size changed, and the store has no snapshot behind that yet"
    );
    Ok(())
}
