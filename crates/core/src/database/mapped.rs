//! Pages that SQLite reads in mapped memory (`xFetch`).
//!
//! A page is fetched while home rests: it is plain, and this process has SHARED, so that no process
//! writes it. SQLite may hold a page for longer, as under a SELECT whose connection writes
//! meanwhile. So fetched pages become private copies before home is marked: as the images of a
//! snapshot (rule OldImageKept), they stay as they are.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use crate::disk::DiskFile;
use crate::disk::mapped::MappedFile;
use crate::disk::sync::Mutex;

/// SQLite may read so many bytes behind a damaged page.
const OVERREAD_BYTES: usize = 256;

#[derive(Default)]
struct Fetched {
    /// Offset and length of each page that SQLite holds, in bytes; one held twice is there twice.
    pages: Vec<(u64, usize)>,
    has_kept: bool,
}

/// Home in the memory of one connection.
pub struct Mapping {
    memory: MappedFile,
    fetched: Mutex<Fetched>,
}

impl Mapping {
    pub fn bytes(&self) -> u64 {
        self.memory.bytes()
    }

    pub fn is_in_use(&self) -> bool {
        !self.fetched.lock().pages.is_empty()
    }

    /// Whether SQLite held a page from `offset` on. It holds it no longer.
    pub fn give_back(&self, offset: u64) -> bool {
        let mut fetched = self.fetched.lock();
        let found = fetched.pages.iter().rposition(|(at, _)| *at == offset);
        found.map(|n| fetched.pages.swap_remove(n)).is_some()
    }

    fn keep(&self) {
        let mut fetched = self.fetched.lock();
        for (offset, len) in &fetched.pages {
            self.memory.keep(*offset, *len + OVERREAD_BYTES);
        }
        fetched.has_kept |= !fetched.pages.is_empty();
    }
}

/// The mappings of home in this process.
#[derive(Default)]
pub struct Mappings {
    /// Home is plain, and this process has SHARED.
    rests: AtomicBool,
    all: Mutex<Vec<Weak<Mapping>>>,
}

impl Mappings {
    /// `None` where the disk maps no file, or memory is short.
    pub fn map(&self, home: &dyn DiskFile, bytes: u64) -> Option<Arc<Mapping>> {
        let memory = home.map(bytes).ok().flatten()?;
        let mapping = Arc::new(Mapping { memory, fetched: Mutex::default() });
        let mut all = self.all.lock();
        all.retain(|other| other.strong_count() > 0);
        all.try_reserve(1).ok()?;
        all.push(Arc::downgrade(&mapping));
        Some(mapping)
    }

    /// Home is plain, and no process writes it: it has each page of each snapshot of this process.
    pub fn home_rests(&self) -> bool {
        self.rests.load(Ordering::SeqCst)
    }

    /// The caller has looked at home under SHARED, and has no snapshot yet.
    pub fn begin(&self) {
        self.rests.store(true, Ordering::SeqCst);
    }

    /// Precedes the mark, and the end of SHARED.
    pub fn end(&self) {
        if self.rests.swap(false, Ordering::SeqCst) {
            // A page fetched later sees the end under the mapping's lock.
            self.all.lock().iter().filter_map(Weak::upgrade).for_each(|mapping| mapping.keep());
        }
    }

    /// Where SQLite finds the page, until it gives it back. `None`: it has to be read.
    pub fn fetch(&self, mapping: &Mapping, offset: u64, len: usize) -> Option<*const u8> {
        let at = mapping.memory.at(offset, len + OVERREAD_BYTES)?;
        let mut fetched = mapping.fetched.lock();
        if !self.home_rests() {
            return None;
        }
        if fetched.has_kept {
            if !fetched.pages.is_empty() || mapping.memory.forget().is_err() {
                return None;
            }
            fetched.has_kept = false;
        }
        fetched.pages.try_reserve(1).ok()?;
        fetched.pages.push((offset, len));
        Some(at)
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use crate::disk::mapped::peek;
    use crate::disk::real::RealDisk;
    use crate::disk::{Disk, OpenMode};

    const PAGE: usize = 4096;

    #[test]
    fn a_page_stays_while_it_is_held_and_is_the_files_again_afterwards() {
        let dir = tempfile::tempdir().unwrap();
        let home = RealDisk::default().open(&dir.path().join("home"), OpenMode::Create).unwrap();
        let write = |byte: u8| home.write_at(&[byte; 4 * PAGE], 0).unwrap();
        let (one, two) = (PAGE as u64, 2 * PAGE as u64);
        write(1);
        let mappings = Mappings::default();
        let mapping = mappings.map(&*home, 4 * PAGE as u64).unwrap();
        assert_eq!(mappings.fetch(&mapping, one, PAGE), None, "home may change");
        mappings.begin();
        assert_eq!(mappings.fetch(&mapping, 3 * PAGE as u64, PAGE), None, "SQLite may read behind the page");
        let held = mappings.fetch(&mapping, one, PAGE).unwrap();
        assert!(mapping.is_in_use() && !mapping.give_back(two));
        mappings.end();
        write(2);
        assert_eq!((peek(held), mappings.fetch(&mapping, two, PAGE)), (1, None));
        mappings.begin();
        assert_eq!(mappings.fetch(&mapping, two, PAGE), None, "a page is held as it was");
        assert!(mapping.give_back(one) && !mapping.is_in_use());
        let again = mappings.fetch(&mapping, one, PAGE).unwrap();
        assert_eq!((again, peek(again)), (held, 2));
    }
}
