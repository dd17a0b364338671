//! An open file of a simulated disk: how calls and faults change the cache.

use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::SimState;
use super::faults::{CallFate, Op};
use crate::disk::mapped::MappedFile;
use crate::disk::sync::Mutex;
use crate::disk::{DiskFile, FileId, FileSeal, LockKind, SharedWords, lock_range};

/// Page of the cache in bytes.
const PAGE_BYTES: u64 = 4096;
/// Smallest sector in bytes.
const SECTOR_BYTES: usize = 512;
/// `EBADF` of Linux.
const BAD_DESCRIPTOR: i32 = 9;

#[derive(Debug)]
pub(super) struct SimFile {
    state: Arc<Mutex<SimState>>,
    ino: u64,
    handle: u64,
    writable: bool,
    /// Failed flushes of the file that this handle was told of.
    told: AtomicU64,
}

impl SimFile {
    /// The caller counts `handle` in the inode, of which so many flushes have failed.
    pub fn new(state: Arc<Mutex<SimState>>, ino: u64, handle: u64, writable: bool, failures: u64) -> Self {
        Self { state, ino, handle, writable, told: AtomicU64::new(failures) }
    }

    /// Behind a flush: an error if another handle's failed since the last one.
    fn tell_failure(&self, state: &mut SimState, fate: CallFate) -> io::Result<()> {
        let tells_each = state.config.tells_each;
        let inode = state.inode(self.ino);
        inode.failures += u64::from(matches!(fate, CallFate::Fail(_)));
        let told = self.told.swap(inode.failures, Ordering::Relaxed);
        if tells_each && fate == CallFate::Run && told < inode.failures {
            return Err(io::Error::other("injected fault in a flush of another"));
        }
        Ok(())
    }

    fn check_writable(&self) -> io::Result<()> {
        if self.writable { Ok(()) } else { Err(io::Error::from_raw_os_error(BAD_DESCRIPTOR)) }
    }

    fn write(&self, op: Op, buf: &[u8], offset: u64) -> io::Result<()> {
        self.check_writable()?;
        let mut state = self.state.lock();
        if buf.is_empty() {
            return state.powered();
        }
        let end = offset.checked_add(buf.len() as u64).ok_or(ErrorKind::InvalidInput)?;
        let fate = state.begin_on(op, self.ino, offset, buf.len() as u64)?;
        if let (Op::Write, CallFate::Fail(_)) = (op, fate) {
            // The kernel copies the bytes of one page at once.
            let one_page = offset / PAGE_BYTES == (end - 1) / PAGE_BYTES;
            let half = &buf[..if one_page && buf.len() < SECTOR_BYTES { 0 } else { buf.len() / 2 }];
            if state.room_to(self.ino, offset + half.len() as u64) {
                state.inode(self.ino).write(half, offset);
            }
            return fate.error();
        }
        if !state.room_to(self.ino, end) {
            // File systems give room by the sector at least.
            let room = state.reach_max(self.ino) / SECTOR_BYTES as u64 * SECTOR_BYTES as u64;
            let fits = room.saturating_sub(offset).min(buf.len() as u64);
            state.inode(self.ino).write(&buf[..fits as usize], offset);
            fate.error()?;
            return Err(ErrorKind::StorageFull.into());
        }
        let inode = state.inode(self.ino);
        inode.write(buf, offset);
        let data = &mut inode.data;
        match (op, fate) {
            (Op::WriteDurable, CallFate::Run | CallFate::Short(_)) => data.flush_range(offset as usize, end as usize),
            (Op::WriteDurable, CallFate::Fail(_)) => data.fail_flush_range(offset as usize, end as usize),
            _ => {}
        }
        if op == Op::WriteDurable {
            state.end_flush(fate);
            self.tell_failure(&mut state, fate)?;
        }
        fate.error()
    }
}

impl DiskFile for SimFile {
    fn id(&self) -> io::Result<FileId> {
        self.state.lock().powered()?;
        Ok(FileId { dev: 0, ino: self.ino })
    }

    fn made(&self) -> io::Result<Option<u64>> {
        // Numbers are never reused.
        Ok(Some(self.id()?.ino))
    }

    fn is_unlinked(&self) -> io::Result<bool> {
        let state = self.state.lock();
        state.powered()?;
        Ok(!state.names.shows(self.ino))
    }

    fn len(&self) -> io::Result<u64> {
        let mut state = self.state.lock();
        state.powered()?;
        Ok(state.inode(self.ino).data.view().len() as u64)
    }

    fn read_once_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut state = self.state.lock();
        let fate = state.begin_on(Op::Read, self.ino, offset, buf.len() as u64)?;
        fate.error()?;
        let view = state.inode(self.ino).data.view();
        let start = usize::try_from(offset).unwrap_or(usize::MAX).min(view.len());
        let mut count = buf.len().min(view.len() - start);
        if let CallFate::Short(len) = fate {
            count = count.min(len);
        }
        Ok(view.read(&mut buf[..count], start))
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        self.write(Op::Write, buf, offset)
    }

    fn write_durable_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        self.write(Op::WriteDurable, buf, offset)
    }

    fn sync(&self) -> io::Result<()> {
        self.sync_from(0)
    }

    fn sync_from(&self, from: u64) -> io::Result<()> {
        let mut state = self.state.lock();
        let fate = state.begin_on(Op::Sync, self.ino, 0, 0)?;
        state.inode(self.ino).flush(fate, from);
        state.end_flush(fate);
        self.tell_failure(&mut state, fate)?;
        fate.error()?;
        if state.config.sync_covers_creation {
            state.names.sync_creation_of(self.ino);
        }
        Ok(())
    }

    fn finish_write_back(&self, from: u64) -> io::Result<()> {
        let mut state = self.state.lock();
        let fate = state.begin_on(Op::Send, self.ino, 0, 0)?;
        let data = &mut state.inode(self.ino).data;
        match fate {
            CallFate::Run | CallFate::Short(_) => data.send(from as usize),
            CallFate::Fail(_) => data.fail_flush(),
            CallFate::Cut => {}
        }
        state.has_sent = true;
        self.tell_failure(&mut state, fate)?;
        fate.error()
    }

    fn seal(&self) -> io::Result<Option<FileSeal>> {
        let mut state = self.state.lock();
        state.powered()?;
        let number = state.next_number();
        state.inode(self.ino).data.put_seal(number);
        Ok(Some(FileSeal([number, self.ino])))
    }

    fn has_seal(&self, seal: FileSeal) -> io::Result<bool> {
        let mut state = self.state.lock();
        state.powered()?;
        let FileSeal([number, ino]) = seal;
        Ok(ino == self.ino && state.inode(ino).data.seal() == Some(number))
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.check_writable()?;
        let mut state = self.state.lock();
        let fate = state.begin_on(Op::SetLen, self.ino, 0, len)?;
        if let CallFate::Fail(_) = fate {
            fate.error()?;
        }
        if !state.room_to(self.ino, len) {
            return Err(ErrorKind::StorageFull.into());
        }
        let stays_long = state.config.as_windows;
        let inode = state.inode(self.ino);
        if len < inode.data.view().len() as u64 {
            if stays_long && Arc::strong_count(&inode.words) > 1 {
                return Err(ErrorKind::ResourceBusy.into());
            }
            inode.reserved = 0; // ftruncate gives blocks past the new end back.
        }
        inode.set_len(len);
        fate.error()
    }

    fn reserve(&self, len: u64) -> io::Result<()> {
        self.check_writable()?;
        let mut state = self.state.lock();
        state.begin_on(Op::Reserve, self.ino, 0, len)?.error()?;
        if !state.room_to(self.ino, len) {
            return Err(ErrorKind::StorageFull.into());
        }
        let inode = state.inode(self.ino);
        inode.reserved = inode.reserved.max(len);
        Ok(())
    }

    fn try_lock(&self, offset: u64, len: u64, kind: LockKind) -> io::Result<bool> {
        let range = lock_range(offset, len)?;
        let mut state = self.state.lock();
        state.begin_on(Op::Lock, self.ino, offset, len)?.error()?;
        if kind == LockKind::Exclusive {
            self.check_writable()?;
        }
        Ok(state.inode(self.ino).locks.try_lock(self.handle, range, kind))
    }

    fn unlock(&self, offset: u64, len: u64) -> io::Result<()> {
        let range = lock_range(offset, len)?;
        let mut state = self.state.lock();
        state.powered()?;
        state.inode(self.ino).locks.unlock(self.handle, range);
        Ok(())
    }

    fn conflicts(&self, offset: u64, len: u64, kind: LockKind) -> io::Result<bool> {
        let range = lock_range(offset, len)?;
        let mut state = self.state.lock();
        state.begin_on(Op::Lock, self.ino, offset, len)?.error()?;
        Ok(state.inode(self.ino).locks.conflicts(self.handle, range, kind))
    }

    fn shared_words(&self, blocks: usize) -> io::Result<Arc<SharedWords>> {
        let mut state = self.state.lock();
        state.powered()?;
        let inode = state.inode(self.ino);
        if inode.words.blocks().len() < blocks {
            inode.words = Arc::new(SharedWords::in_memory(blocks));
        }
        Ok(inode.words.clone())
    }

    fn map(&self, bytes: u64) -> io::Result<Option<MappedFile>> {
        let mut state = self.state.lock();
        state.powered()?;
        state.inode(self.ino).map(bytes)
    }

    fn atomic_unit_bytes(&self) -> u32 {
        self.state.lock().config.atomic_unit
    }
}

impl Drop for SimFile {
    fn drop(&mut self) {
        let mut state = self.state.lock();
        let inode = state.inode(self.ino);
        inode.handles -= 1;
        inode.locks.release(self.handle);
        if inode.handles == 0 {
            state.collect();
        }
    }
}
