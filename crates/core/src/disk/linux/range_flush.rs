//! The flush of a part of a file. `fdatasync` flushes all of it; `msync` flushes what a mapping
//! shows of it, by the same steps of the kernel and the file system.

use std::fs::File;
use std::io;
use std::sync::Arc;

use memmap2::MmapOptions;
use rustix::fs::SeekFrom;

use crate::disk::real::KeptMap;
use crate::disk::shared::ForkSafeMap;

/// Also flushes what lies before `from` in a page of the system, and all where files are not
/// mapped. The mapping, never read, is `kept`.
pub fn flush_from(file: &File, kept: &KeptMap, from: u64) -> io::Result<()> {
    let len = rustix::fs::seek(file, SeekFrom::End(0))?;
    let (Some(map), Ok(from)) = (map(file, kept, len), usize::try_from(from)) else {
        return Ok(super::flush(file)?);
    };
    // A failed flush is told by this call or by the next `fdatasync`, whichever comes first.
    map.flush_range(from, map.len().saturating_sub(from))
}

/// Of at least `len` bytes; `None`: it fails.
fn map(file: &File, kept: &KeptMap, len: u64) -> Option<Arc<ForkSafeMap>> {
    let len = usize::try_from(len).ok().filter(|len| *len > 0)?;
    let mut kept = kept.lock();
    if kept.as_ref().is_none_or(|map| map.len() < len) {
        *kept = Some(Arc::new(ForkSafeMap::by(|| MmapOptions::new().len(len).map_raw_read_only(file)).ok()?));
    }
    kept.clone()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;

    #[test]
    fn a_file_that_grows_is_flushed_to_its_end() {
        let file = tempfile::tempfile().unwrap();
        let kept = KeptMap::default();
        flush_from(&file, &kept, 4096).unwrap();
        assert!(kept.lock().is_none(), "nothing to map");
        for blocks in [1, 3, 2, 5] {
            file.write_all_at(&[7; 4096], (blocks - 1) * 4096).unwrap();
            flush_from(&file, &kept, 4096).unwrap();
            let mapped = kept.lock().as_ref().unwrap().len() as u64;
            assert_eq!(mapped, file.metadata().unwrap().len());
        }
        // A mapping that is longer than the file is no error.
        file.set_len(4096).unwrap();
        flush_from(&file, &kept, 4096).unwrap();
    }
}
