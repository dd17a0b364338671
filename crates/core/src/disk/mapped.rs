//! A file's bytes in memory, for reading pages without a call of the system.

#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::path::Path;

use memmap2::{MmapMut, MmapOptions};

/// Memory is made private in steps of the smallest page that a system maps.
const STEP_BYTES: usize = 4096;

/// The first bytes of a file, as any process writes them, but for parts that were kept. The file
/// must not become shorter than the parts in use: a look at bytes behind its end kills the process.
#[derive(Debug)]
pub struct MappedFile(MmapMut);

impl MappedFile {
    /// `None` where a private mapping is not known to show what is written to the file later, as on
    /// Linux: POSIX leaves that open.
    pub fn of(file: &File, bytes: u64) -> io::Result<Option<MappedFile>> {
        let Some(len) = usize::try_from(bytes).ok().filter(|len| *len > 0) else { return Ok(None) };
        if !cfg!(any(target_os = "linux", target_os = "android")) {
            return Ok(None);
        }
        // SAFETY: no reference is made to the memory: SQLite reads it through pointers, under the
        // lock of the file.
        unsafe { MmapOptions::new().len(len).no_reserve_swap().map_copy(file) }.map(|map| Some(MappedFile(map)))
    }

    /// Length in bytes.
    pub fn bytes(&self) -> u64 {
        self.0.len() as u64
    }

    /// Where `len` bytes from `offset` on are; `None` if they are not all mapped.
    pub fn at(&self, offset: u64, len: usize) -> Option<*const u8> {
        let at = usize::try_from(offset).ok()?;
        let end = at.checked_add(len)?;
        (end <= self.0.len()).then(|| self.0.as_ptr().wrapping_add(at))
    }

    /// From here on these bytes stay as they are, whatever the file gets, until
    /// [`MappedFile::forget`].
    pub fn keep(&self, offset: u64, len: usize) {
        let Some(from) = self.at(offset, len) else { return };
        let end = from.wrapping_add(len);
        let mut at = from.cast_mut();
        while at.cast_const() < end {
            // SAFETY: the byte is mapped, private and writable, and gets the value it has: a reader
            // on another thread sees the same. The write makes the system copy the page.
            unsafe { at.write_volatile(at.read_volatile()) };
            let into = at.addr() % STEP_BYTES;
            at = at.wrapping_add(STEP_BYTES - into);
        }
    }

    /// All is as in the file again. No pointer into it is in use.
    pub fn forget(&self) -> io::Result<()> {
        #[cfg(unix)]
        // SAFETY: no pointer is in use, as promised by the caller; private pages go, and the file's
        // come at the next look.
        return unsafe { self.0.unchecked_advise(memmap2::UncheckedAdvice::DontNeed) };
        #[cfg(not(unix))]
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// A byte that is mapped and within the file.
#[cfg(all(test, target_os = "linux"))]
pub(crate) fn peek(at: *const u8) -> u8 {
    // SAFETY: as the tests that call it promise.
    unsafe { at.read_volatile() }
}

/// Whether the first to open this file for writing gets a copy of it, as in a container whose image
/// has the file. What is mapped of a file that was opened for reading before stays the original.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub fn is_copied_to_write(path: &Path) -> bool {
    // OVERLAYFS_SUPER_MAGIC
    rustix::fs::statfs(path).is_ok_and(|system| system.f_type == 0x794c_7630)
}

/// No such file system is known.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub fn is_copied_to_write(_path: &Path) -> bool {
    false
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;

    fn read(map: &MappedFile, offset: u64, len: usize) -> Vec<u8> {
        let at = map.at(offset, len).unwrap();
        (0..len).map(|n| peek(at.wrapping_add(n))).collect()
    }

    #[test]
    fn it_shows_writes_but_for_kept_pages() {
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&[1; 5 * STEP_BYTES], 0).unwrap();
        let map = MappedFile::of(&file, 5 * STEP_BYTES as u64).unwrap().unwrap();
        file.write_all_at(&[2; STEP_BYTES], STEP_BYTES as u64).unwrap();
        assert_eq!(read(&map, 4095, 2), [1, 2]);
        // A part that begins and ends within a page of the system.
        map.keep(STEP_BYTES as u64 + 512, 2 * STEP_BYTES);
        file.write_all_at(&[3; 5 * STEP_BYTES], 0).unwrap();
        let first_of_each: Vec<u8> = (0..5).map(|n| read(&map, n * STEP_BYTES as u64 + 600, 1)[0]).collect();
        assert_eq!(first_of_each, [3, 2, 1, 1, 3]);
        map.forget().unwrap();
        assert_eq!(read(&map, 0, 5 * STEP_BYTES), [3; 5 * STEP_BYTES]);
    }

    #[test]
    fn nothing_is_behind_its_end() {
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&[1; 1000], 0).unwrap();
        let map = MappedFile::of(&file, 1000).unwrap().unwrap();
        assert_eq!((map.bytes(), map.at(1, 1000), map.at(u64::MAX, 2)), (1000, None, None));
        assert!(map.at(0, 1000).is_some());
        assert!(MappedFile::of(&file, 0).unwrap().is_none());
    }
}
