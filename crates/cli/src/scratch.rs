//! A disk for looking: reads are those of the real files, and writes go to temporary files that no
//! other process sees.
//!
//! `check` opens a database through onewrite on this disk. The open recovers, rolls a journal back
//! or ends WAL mode as any open does, and no byte beside the database changes.

use onewrite_core::disk::real::RealDisk;
use onewrite_core::disk::shared::SharedWords;
use onewrite_core::disk::{Access, Disk, DiskFile, FileId, LockKind, OpenMode};
use onewrite_core::environment;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes that are copied before a part of them is written.
const BLOCK: u64 = 4096;

/// The disk.
#[derive(Default)]
pub struct Scratch {
    real: RealDisk,
    /// Files that were opened, made or (`None`) removed here.
    names: Mutex<HashMap<PathBuf, Option<Arc<Inode>>>>,
    made: AtomicU64,
}

impl Scratch {
    /// Forgets every file and its written blocks.
    pub fn clear(&self) {
        self.names.lock().clear();
    }

    /// Bytes of the file at `path` that were read, each counted once.
    pub fn bytes_read(&self, path: &Path) -> u64 {
        let inode = self.names.lock().get(path).cloned().flatten();
        inode.map_or(0, |inode| inode.content.lock().blocks_read * BLOCK)
    }

    fn inode(
        &self,
        path: &Path,
        mode: OpenMode,
        open: impl FnOnce() -> io::Result<Arc<dyn DiskFile>>,
    ) -> io::Result<Arc<dyn DiskFile>> {
        let mut names = self.names.lock();
        if let Some(Some(inode)) = names.get(path) {
            return Ok(Arc::new(ScratchFile(inode.clone())));
        }
        let real = match names.get(path) {
            Some(_) => Err(ErrorKind::NotFound.into()),
            None => open(),
        };
        let inode = match real {
            Ok(real) => Inode::over(real)?,
            Err(e) if e.kind() == ErrorKind::NotFound && mode == OpenMode::Create => self.new_inode(),
            Err(e) => return Err(e),
        };
        let inode = Arc::new(inode);
        names.insert(path.to_owned(), Some(inode.clone()));
        Ok(Arc::new(ScratchFile(inode)))
    }

    fn new_inode(&self) -> Inode {
        let ino = u64::MAX - self.made.fetch_add(1, Ordering::Relaxed);
        Inode { id: FileId { dev: 0, ino }, real: None, words: Arc::default(), content: Mutex::default() }
    }
}

impl Disk for Scratch {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn DiskFile>> {
        self.inode(path, mode, || self.real.open(path, OpenMode::ReadOnly))
    }

    fn open_beside(&self, path: &Path, mode: OpenMode, _: Option<Access>) -> io::Result<Arc<dyn DiskFile>> {
        self.inode(path, mode, || self.real.open_beside(path, OpenMode::ReadOnly, None))
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        if !self.exists(path)? {
            return Err(ErrorKind::NotFound.into());
        }
        self.names.lock().insert(path.to_owned(), None);
        Ok(())
    }

    fn identify(&self, path: &Path) -> io::Result<Option<FileId>> {
        match self.names.lock().get(path) {
            Some(known) => Ok(known.as_ref().map(|inode| inode.id)),
            None => self.real.identify(path),
        }
    }

    fn resolve(&self, path: &Path) -> io::Result<PathBuf> {
        self.real.resolve(path)
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        match self.names.lock().get(path) {
            Some(known) => Ok(known.is_some()),
            None => self.real.exists(path),
        }
    }

    fn exchange(&self, _: &Path, _: &Path) -> io::Result<()> {
        Err(ErrorKind::Unsupported.into())
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        if self.exists(to)? {
            return Err(ErrorKind::AlreadyExists.into());
        }
        self.open(from, OpenMode::ReadOnly)?;
        let mut names = self.names.lock();
        let inode = names.insert(from.to_owned(), None).flatten();
        names.insert(to.to_owned(), inode);
        Ok(())
    }

    fn names_beside(&self, path: &Path) -> io::Result<Vec<PathBuf>> {
        let mut beside = self.real.names_beside(path)?;
        for (name, inode) in &*self.names.lock() {
            beside.retain(|other| other != name);
            if inode.is_some() && name.parent() == path.parent() {
                beside.push(name.clone());
            }
        }
        Ok(beside)
    }

    fn sync_dir_of(&self, _: &Path) -> io::Result<()> {
        Ok(())
    }

    fn sync_all_beside(&self, _: &Path) -> io::Result<()> {
        Ok(())
    }

    fn temp_file(&self, _: &Path) -> io::Result<Arc<dyn DiskFile>> {
        Ok(Arc::new(ScratchFile(Arc::new(self.new_inode()))))
    }
}

/// A file, under any name.
struct Inode {
    id: FileId,
    real: Option<Arc<dyn DiskFile>>,
    words: Arc<SharedWords>,
    content: Mutex<Content>,
}

#[derive(Default)]
struct Content {
    /// Length in bytes.
    len: u64,
    /// Bytes up to here are those of the real file, where nothing was written.
    real_len: u64,
    /// Which block of `store` holds a block that was written.
    written: HashMap<u64, u64>,
    /// The blocks that were written, in a file without a name.
    store: Option<Arc<dyn DiskFile>>,
    /// One bit for each block of the real file that was read.
    seen: Vec<u64>,
    blocks_read: u64,
}

impl Inode {
    fn over(real: Arc<dyn DiskFile>) -> io::Result<Inode> {
        let len = real.len()?;
        let content = Content { len, real_len: len, ..Content::default() };
        Ok(Inode { id: real.id()?, real: Some(real), words: Arc::default(), content: Mutex::new(content) })
    }

    /// Fills `buf` with the bytes from `offset` on: zeros behind the end.
    fn read(&self, content: &mut Content, buf: &mut [u8], offset: u64) -> io::Result<()> {
        let (mut rest, mut at) = (buf, offset);
        while !rest.is_empty() {
            let (block, within) = (at / BLOCK, at % BLOCK);
            let mut bytes = (BLOCK - within).min(rest.len() as u64);
            let stored = content.written.get(&block).copied();
            while stored.is_none()
                && bytes < rest.len() as u64
                && !content.written.contains_key(&((at + bytes) / BLOCK))
            {
                bytes += BLOCK.min(rest.len() as u64 - bytes);
            }
            let (part, others) = rest.split_at_mut(usize::try_from(bytes).unwrap_or(usize::MAX));
            match (stored, &content.store) {
                (Some(stored), Some(store)) => {
                    if store.read_at(part, stored * BLOCK + within)? < part.len() {
                        return Err(ErrorKind::UnexpectedEof.into());
                    }
                }
                _ => self.read_real(content, part, at)?,
            }
            (rest, at) = (others, at + bytes);
        }
        Ok(())
    }

    fn read_real(&self, content: &mut Content, buf: &mut [u8], at: u64) -> io::Result<()> {
        let bytes = usize::try_from(content.real_len.saturating_sub(at)).unwrap_or(usize::MAX).min(buf.len());
        let (part, beyond) = buf.split_at_mut(bytes);
        beyond.fill(0);
        if let Some(real) = self.real.as_ref().filter(|_| bytes > 0) {
            if real.read_at(part, at)? < bytes {
                return Err(io::Error::new(ErrorKind::UnexpectedEof, "the file became shorter while it was read"));
            }
            content.note_read(at / BLOCK, (at + bytes as u64 - 1) / BLOCK);
        }
        Ok(())
    }

    fn write(&self, content: &mut Content, buf: &[u8], offset: u64) -> io::Result<()> {
        let (mut rest, mut at) = (buf, offset);
        while !rest.is_empty() {
            let (block, within) = (at / BLOCK, at % BLOCK);
            let bytes = (BLOCK - within).min(rest.len() as u64);
            let (part, others) = rest.split_at(usize::try_from(bytes).unwrap_or(usize::MAX));
            let mut image = [0; BLOCK as usize];
            if bytes < BLOCK {
                self.read(content, &mut image, block * BLOCK)?;
            }
            if let Some(place) =
                image.get_mut(usize::try_from(within).unwrap_or(0)..).and_then(|to| to.get_mut(..part.len()))
            {
                place.copy_from_slice(part);
            }
            let next = content.written.len() as u64;
            let stored = content.written.get(&block).copied().unwrap_or(next);
            content.store()?.write_at(&image, stored * BLOCK)?;
            content.written.insert(block, stored);
            (rest, at) = (others, at + bytes);
        }
        content.len = content.len.max(at);
        Ok(())
    }

    fn set_len(&self, content: &mut Content, len: u64) -> io::Result<()> {
        let (block, within) = (len / BLOCK, len % BLOCK);
        if len < content.len && within > 0 && content.written.contains_key(&block) {
            let zeros = [0; BLOCK as usize];
            let behind = zeros.get(usize::try_from(within).unwrap_or(0)..).unwrap_or_default();
            self.write(content, behind, len)?;
        }
        content.real_len = content.real_len.min(len);
        // A block of the store stays in use. If the file grows again, it must read as zeros there.
        let cut: Vec<u64> = content.written.keys().copied().filter(|at| at * BLOCK >= len).collect();
        for at in cut {
            self.write(content, &[0; BLOCK as usize], at * BLOCK)?;
        }
        content.len = len;
        Ok(())
    }
}

impl Content {
    fn store(&mut self) -> io::Result<&Arc<dyn DiskFile>> {
        let store = match self.store.take() {
            Some(store) => store,
            None => temporary()?,
        };
        Ok(self.store.insert(store))
    }

    fn note_read(&mut self, first: u64, last: u64) {
        for block in first..=last {
            let (word, bit) = (usize::try_from(block / 64).unwrap_or(usize::MAX), 1 << (block % 64));
            if self.seen.len() <= word {
                self.seen.resize(word + 1, 0);
            }
            if let Some(seen) = self.seen.get_mut(word).filter(|seen| **seen & bit == 0) {
                *seen |= bit;
                self.blocks_read += 1;
            }
        }
    }
}

/// A file without a name in TMPDIR, or else in a directory in which every user may make one.
fn temporary() -> io::Result<Arc<dyn DiskFile>> {
    let made_in = |dir: &Path| RealDisk::new().temp_file(&dir.join("onewrite"));
    made_in(&environment::temp_dir())
        .or_else(|e| ["/var/tmp", "/tmp"].iter().find_map(|dir| made_in(Path::new(dir)).ok()).ok_or(e))
}

struct ScratchFile(Arc<Inode>);

impl DiskFile for ScratchFile {
    fn id(&self) -> io::Result<FileId> {
        Ok(self.0.id)
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.0.content.lock().len)
    }

    fn read_once_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut content = self.0.content.lock();
        let bytes = usize::try_from(content.len.saturating_sub(offset)).unwrap_or(usize::MAX).min(buf.len());
        self.0.read(&mut content, buf.get_mut(..bytes).unwrap_or_default(), offset)?;
        Ok(bytes)
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        self.0.write(&mut self.0.content.lock(), buf, offset)
    }

    fn write_durable_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        self.write_at(buf, offset)
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.set_len(&mut self.0.content.lock(), len)
    }

    fn reserve(&self, _: u64) -> io::Result<()> {
        Ok(())
    }

    // `check` alone has this disk, and holds the locks of the real files.
    fn try_lock(&self, _: u64, _: u64, _: LockKind) -> io::Result<bool> {
        Ok(true)
    }

    fn unlock(&self, _: u64, _: u64) -> io::Result<()> {
        Ok(())
    }

    fn atomic_unit_bytes(&self) -> u32 {
        self.0.real.as_ref().map_or(512, |real| real.atomic_unit_bytes())
    }

    fn shared_words(&self, blocks: usize) -> io::Result<Arc<SharedWords>> {
        let words = &self.0.words;
        if words.blocks().len() < blocks { Err(io::ErrorKind::Unsupported.into()) } else { Ok(words.clone()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The same calls on a file of this disk and on one of the system give the same bytes.
    #[test]
    fn a_file_reads_as_one_of_the_system() {
        let dir = tempfile::tempdir().unwrap();
        let (base, model) = (dir.path().join("base"), dir.path().join("model"));
        let before: Vec<u8> = (0..30_000u32).map(|n| (n / 7) as u8).collect();
        std::fs::write(&base, &before).unwrap();
        std::fs::write(&model, &before).unwrap();
        let (scratch, real) = (Scratch::default(), RealDisk::new());
        let one = scratch.open(&base, OpenMode::ReadWrite).unwrap();
        let other = real.open(&model, OpenMode::ReadWrite).unwrap();
        let mut seed = 7u64;
        let mut draw = |below: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) % below
        };
        for round in 0..3000 {
            match draw(8) {
                0 => {
                    let len = draw(50_000);
                    assert!(one.set_len(len).is_ok() && other.set_len(len).is_ok());
                }
                1..4 => {
                    let (bytes, at) = (vec![round as u8; 1 + draw(9000) as usize], draw(50_000));
                    assert!(one.write_at(&bytes, at).is_ok() && other.write_at(&bytes, at).is_ok());
                }
                _ => {}
            }
            let (mut a, mut b, at) = (vec![1; 1 + draw(20_000) as usize], Vec::new(), draw(50_000));
            b.resize(a.len(), 1);
            assert_eq!(one.read_at(&mut a, at).unwrap(), other.read_at(&mut b, at).unwrap(), "round {round}");
            assert!(a == b && one.len().unwrap() == other.len().unwrap(), "round {round}");
        }
        assert_eq!(std::fs::read(&base).unwrap(), before, "the real file is as it was");
    }

    #[test]
    fn names_are_made_and_removed_here_alone() {
        let dir = tempfile::tempdir().unwrap();
        let [a, b, c] = ["a", "b", "c"].map(|name| dir.path().join(name));
        std::fs::write(&a, "whole").unwrap();
        let disk = Scratch::default();
        disk.rename(&a, &b).unwrap();
        disk.open(&c, OpenMode::Create).unwrap().write_at(b"new", 0).unwrap();
        assert!(!disk.exists(&a).unwrap() && disk.exists(&b).unwrap() && disk.exists(&c).unwrap());
        assert_eq!(disk.rename(&c, &b).unwrap_err().kind(), ErrorKind::AlreadyExists);
        disk.remove(&b).unwrap();
        assert_eq!(disk.open(&b, OpenMode::ReadOnly).err().unwrap().kind(), ErrorKind::NotFound);
        assert_eq!(disk.remove(&b).unwrap_err().kind(), ErrorKind::NotFound);
        assert_eq!(disk.names_beside(&a).unwrap(), std::slice::from_ref(&c));
        disk.clear();
        assert!(disk.exists(&a).unwrap() && !disk.exists(&c).unwrap());
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}
