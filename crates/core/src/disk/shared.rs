//! Memory shared by processes: a file's first blocks.
//!
//! The mapping is sound because it is all atomics: every bit pattern is a value, from any process.

#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use memmap2::{MmapOptions, MmapRaw};

use super::forked::NoFork;
use super::look;

/// Number of [`Words::longs`].
pub const LONGS: usize = 448;
/// Number of [`Words::shorts`].
pub const SHORTS: usize = 128;

/// A block.
#[repr(C)]
#[derive(Debug)]
pub struct Words {
    /// Numbers.
    pub longs: [AtomicU64; LONGS],
    /// Words to sleep on.
    pub shorts: [AtomicU32; SHORTS],
}

/// Length of a block.
pub const BYTES: usize = size_of::<Words>();
const _: () = assert!(BYTES == 4096 && align_of::<Words>() <= 8, "the words are the smallest block of a log");

impl Default for Words {
    fn default() -> Self {
        Words { longs: std::array::from_fn(|_| AtomicU64::new(0)), shorts: std::array::from_fn(|_| AtomicU32::new(0)) }
    }
}

/// A mapping that no forked child has.
#[derive(Debug)]
pub(super) struct ForkSafeMap(ManuallyDrop<MmapRaw>);

impl ForkSafeMap {
    /// No fork happens during `map`.
    pub(super) fn by(map: impl FnOnce() -> io::Result<MmapRaw>) -> io::Result<ForkSafeMap> {
        let mut no_fork = NoFork::new();
        let map = map()?;
        no_fork.mapped(map.as_ptr().addr(), map.len());
        Ok(ForkSafeMap(ManuallyDrop::new(map)))
    }
}

impl Drop for ForkSafeMap {
    fn drop(&mut self) {
        let mut no_fork = NoFork::new();
        no_fork.unmapped(self.0.as_ptr().addr(), self.0.len());
        // SAFETY: this is its last use.
        unsafe { ManuallyDrop::drop(&mut self.0) };
    }
}

impl Deref for ForkSafeMap {
    type Target = MmapRaw;

    fn deref(&self) -> &MmapRaw {
        &self.0
    }
}

/// A file's first blocks, until it is dropped.
#[derive(Debug)]
struct MappedWords {
    at: NonNull<[Words]>,
    _map: ForkSafeMap,
}

fn new_blocks(blocks: usize) -> Arc<[Words]> {
    (0..blocks.max(1)).map(|_| Words::default()).collect()
}

/// The words of one file, at least a block.
#[derive(Debug)]
pub struct SharedWords {
    /// The blocks, within the map or else the words.
    at: NonNull<[Words]>,
    /// The first block, for stores.
    own: NonNull<Words>,
    living: Option<LivingProcess>,
    /// Pages of a file.
    _map: Option<MappedWords>,
    /// On a simulated disk, where mapping fails, and for stores beside a read-only map.
    _words: Option<Arc<[Words]>>,
}

/// A simulated process, which stores into `shared` until it is dead.
#[derive(Debug)]
struct LivingProcess {
    dead: Arc<AtomicBool>,
    shared: Arc<SharedWords>,
}

// SAFETY: the memory belongs to this value alone, is not tied to a thread, and holds atomics only.
unsafe impl Send for SharedWords {}
// SAFETY: as above.
unsafe impl Sync for SharedWords {}

impl Default for SharedWords {
    fn default() -> Self {
        SharedWords::in_memory(1)
    }
}

impl SharedWords {
    /// Not shared by other files.
    pub fn in_memory(blocks: usize) -> SharedWords {
        let words = new_blocks(blocks);
        let at = NonNull::from(&*words);
        SharedWords { at, own: at.cast(), living: None, _map: None, _words: Some(words) }
    }

    /// The first `blocks` of `file`. For a read-only one see [`SharedWords::to_write`].
    pub fn map(file: &File, blocks: usize) -> io::Result<SharedWords> {
        match MappedWords::of(file, blocks, |options, file| options.map_raw(file)) {
            Ok(map) => Ok(SharedWords { at: map.at, own: map.at.cast(), living: None, _map: Some(map), _words: None }),
            Err(e) if e.kind() == io::ErrorKind::PermissionDenied => {
                let map = MappedWords::of(file, blocks, |options, file| options.map_raw_read_only(file))?;
                Ok(SharedWords { at: map.at, _map: Some(map), ..SharedWords::in_memory(blocks) })
            }
            Err(e) => Err(e),
        }
    }

    /// Those that a living simulated process uses instead.
    #[inline]
    fn instead(&self) -> Option<&SharedWords> {
        let living = self.living.as_ref()?;
        (!living.dead.load(Ordering::SeqCst)).then_some(&*living.shared)
    }

    /// The words of each block.
    #[inline]
    pub fn blocks(&self) -> &[Words] {
        match self.instead() {
            Some(shared) => shared.blocks(),
            // SAFETY: `_map` or `_words` holds it, aligned, until `self` is dropped. It is all
            // atomics.
            None => unsafe { self.at.as_ref() },
        }
    }

    /// Private ones of the first block if the shared are read-only.
    #[inline]
    pub fn to_write(&self) -> &Words {
        match self.instead() {
            Some(shared) => shared.to_write(),
            // SAFETY: as above; each backing has at least a block.
            None => unsafe { self.own.as_ref() },
        }
    }

    /// For a simulated process: stores have no effect once it is `dead`.
    pub fn until(self: Arc<Self>, dead: Arc<AtomicBool>) -> SharedWords {
        let own = SharedWords::in_memory(self.blocks().len());
        SharedWords { living: Some(LivingProcess { dead, shared: self }), ..own }
    }

    /// A private copy.
    pub fn copy(&self) -> SharedWords {
        let copy = SharedWords::in_memory(self.blocks().len());
        for (to, from) in copy.blocks().iter().zip(self.blocks()) {
            for (to, from) in to.longs.iter().zip(&from.longs) {
                to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
            }
            for (to, from) in to.shorts.iter().zip(&from.shorts) {
                to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
            }
        }
        copy
    }
}

impl MappedWords {
    fn of(
        file: &File,
        blocks: usize,
        map: impl FnOnce(&MmapOptions, &File) -> io::Result<MmapRaw>,
    ) -> io::Result<MappedWords> {
        let blocks = blocks.max(1);
        let len = blocks * BYTES;
        // Windows would lengthen the file.
        if look::at(file)?.bytes < len as u64 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let map = ForkSafeMap::by(|| map(MmapOptions::new().len(len), file))?;
        let at = NonNull::new(map.as_mut_ptr().cast::<Words>()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(MappedWords { at: NonNull::slice_from_raw_parts(at, blocks), _map: map })
    }
}

impl Deref for SharedWords {
    type Target = Words;

    #[inline]
    fn deref(&self) -> &Words {
        match self.instead() {
            Some(shared) => shared,
            // SAFETY: as in `blocks`; each backing has at least a block.
            None => unsafe { self.at.cast::<Words>().as_ref() },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::real::RealDisk;
    use crate::disk::sim::{SimConfig, SimDisk};
    use crate::disk::{Disk, OpenMode};

    fn shared_between_opens(disk: &dyn Disk, path: &std::path::Path) {
        let (a, b) = (disk.open(path, OpenMode::Create).unwrap(), disk.open(path, OpenMode::ReadWrite).unwrap());
        a.write_at(&[0; 8192], 0).unwrap();
        let (one, other) = (a.shared_words(1).unwrap(), b.shared_words(1).unwrap());
        one.longs[7].store(5, Ordering::SeqCst);
        other.shorts[3].store(6, Ordering::SeqCst);
        assert_eq!((other.longs[7].load(Ordering::SeqCst), one.shorts[3].load(Ordering::SeqCst)), (5, 6));
    }

    #[test]
    fn two_opens_of_one_file_see_each_others_words() {
        let dir = tempfile::tempdir().unwrap();
        shared_between_opens(&RealDisk::new(), &dir.path().join("file"));
        shared_between_opens(&SimDisk::new(SimConfig::default()), std::path::Path::new("/file"));
    }

    #[test]
    fn a_read_only_process_sees_words_of_others_and_stores_for_itself() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let writer = RealDisk::new().open(&path, OpenMode::Create).unwrap();
        writer.write_at(&[0; 8192], 0).unwrap();
        let reader = RealDisk::new().open(&path, OpenMode::ReadOnly).unwrap();
        let (written, read) = (writer.shared_words(1).unwrap(), reader.shared_words(1).unwrap());
        written.to_write().longs[7].store(5, Ordering::SeqCst);
        read.to_write().longs[7].store(6, Ordering::SeqCst);
        assert_eq!((written.longs[7].load(Ordering::SeqCst), read.longs[7].load(Ordering::SeqCst)), (5, 5));
    }

    #[test]
    fn a_file_too_short_is_an_error_and_not_a_fault() {
        let dir = tempfile::tempdir().unwrap();
        let file = RealDisk::new().open(&dir.path().join("file"), OpenMode::Create).unwrap();
        file.write_at(&[0; 100], 0).unwrap();
        assert!(file.shared_words(1).is_err());
    }

    #[test]
    fn the_words_of_a_dead_process_are_its_own() {
        let disk = SimDisk::new(SimConfig::default());
        let open = |disk: &SimDisk| disk.open(std::path::Path::new("/file"), OpenMode::Create).unwrap();
        let before = open(&disk).shared_words(1).unwrap();
        before.longs[1].store(1, Ordering::SeqCst);
        let after = open(&disk.survive()).shared_words(1).unwrap();
        before.longs[1].store(2, Ordering::SeqCst);
        assert_eq!(after.longs[1].load(Ordering::SeqCst), 1);
    }
}
