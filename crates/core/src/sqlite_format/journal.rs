//! The virtual journal: SQLite's rollback journal, in memory.
//!
//! ROLLBACK and savepoints read it; only stepping aside writes it to disk. Its syncs and writes
//! show SQLite's `synchronous`.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::base::error::{Error, IoContext, Result};
use crate::base::memory::{Room, give_back, spare};
use crate::disk::image_file::in_memory;
use crate::disk::{DiskFile, system};

/// The rest goes to a temporary file, in writes of so many bytes: SQLite's have a third of a page.
const MEMORY_BYTES: u64 = 1 << 20;
const SPILL_BYTES: usize = 64 << 10;
/// SQLite completes a header before a sync: magic and count.
const HEADER_WRITE_BYTES: usize = 12;
const NAME_BYTES_MAX: u32 = 4096;
/// Begins a journal, and ends a super-journal's name (SQLite file format, section 3).
pub const MAGIC: [u8; 8] = [0xd9, 0xd5, 0x05, 0xf9, 0x20, 0xa1, 0x63, 0xd7];

pub struct VirtualJournal {
    memory: Vec<u8>,
    /// More goes to a file.
    memory_bytes: usize,
    spill: Option<Spill>,
    len: u64,
    last_write_was_header: bool,
    /// Records were synced before their header, as under FULL and EXTRA.
    full_sync: bool,
    synced: bool,
    /// SQLite has read the number of records in its first header, as only a rollback does. Since
    /// then it has only read on here, and written the database.
    rolls_back: bool,
}

impl Default for VirtualJournal {
    fn default() -> VirtualJournal {
        VirtualJournal {
            memory: Vec::new(),
            memory_bytes: in_memory(MEMORY_BYTES) as usize,
            spill: None,
            len: 0,
            last_write_was_header: false,
            full_sync: false,
            synced: false,
            rolls_back: false,
        }
    }
}

impl VirtualJournal {
    pub fn len(&self) -> u64 {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Fewer bytes at the end.
    pub fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        let want = usize::try_from(self.len.saturating_sub(offset)).unwrap_or(usize::MAX).min(buf.len());
        let mut done = 0;
        if let Some(part) = usize::try_from(offset).ok().and_then(|o| self.memory.get(o..)) {
            done = part.len().min(want);
            if let (Some(to), Some(from)) = (buf.get_mut(..done), part.get(..done)) {
                to.copy_from_slice(from);
            }
        }
        if done < want
            && let (Some(spill), Some(rest)) = (&self.spill, buf.get_mut(done..want))
        {
            done += spill.read_at(rest, offset + done as u64 - self.memory_bytes as u64)?;
        }
        Ok(done)
    }

    pub fn write_at(
        &mut self,
        data: &[u8],
        offset: u64,
        temp: impl FnOnce() -> Result<Arc<dyn DiskFile>>,
    ) -> Result<()> {
        self.rolls_back = false;
        self.last_write_was_header = data.len() == HEADER_WRITE_BYTES && data.starts_with(&MAGIC);
        // SQLite mostly appends, and there is room.
        let at_end = offset == self.len && self.len == self.memory.len() as u64;
        if at_end && data.len() <= self.memory.capacity().min(self.memory_bytes).saturating_sub(self.memory.len()) {
            self.memory.extend_from_slice(data);
            self.len += data.len() as u64;
            return Ok(());
        }
        self.put(data, offset, temp)
    }

    fn put(&mut self, data: &[u8], offset: u64, temp: impl FnOnce() -> Result<Arc<dyn DiskFile>>) -> Result<()> {
        let end = offset.checked_add(data.len() as u64).ok_or_else(|| Error::Full("journal too long".into()))?;
        let in_memory = usize::try_from(end).unwrap_or(usize::MAX).min(self.memory_bytes);
        if self.memory.capacity() == 0 {
            self.memory = spare();
        }
        let start = usize::try_from(offset).unwrap_or(usize::MAX).min(self.memory_bytes);
        let here = data.get(..in_memory.saturating_sub(start)).unwrap_or_default();
        self.memory.room(in_memory.saturating_sub(self.memory.len()))?;
        if self.memory.len() < start {
            self.memory.resize(start, 0);
        }
        let (over, behind) = here.split_at(here.len().min(self.memory.len() - start));
        if let Some(to) = self.memory.get_mut(start..start + over.len()) {
            to.copy_from_slice(over);
        }
        self.memory.extend_from_slice(behind);
        let done = here.len();
        if done < data.len() {
            let spill = match &mut self.spill {
                Some(spill) => spill,
                None => self.spill.insert(Spill { file: temp()?, len: 0, tail: Vec::new() }),
            };
            spill.write_at(data.get(done..).unwrap_or_default(), offset + done as u64 - self.memory_bytes as u64)?;
        }
        self.len = self.len.max(end);
        Ok(())
    }

    pub fn truncate(&mut self, len: u64) {
        self.rolls_back = false;
        self.len = self.len.min(len);
        self.memory.truncate(usize::try_from(len).unwrap_or(usize::MAX));
        match len.checked_sub(self.memory_bytes as u64) {
            None | Some(0) => self.spill = None,
            Some(len) => self.spill.iter_mut().for_each(|spill| spill.truncate(len)),
        }
        if len == 0 {
            give_back(&mut self.memory);
        }
    }

    pub fn sync(&mut self) {
        self.synced = true;
        self.full_sync |= !self.last_write_was_header;
    }

    /// Whether SQLite synced it in this transaction: `synchronous` is not OFF.
    pub fn is_synced(&self) -> bool {
        self.synced
    }

    /// Whether only headers were synced: `synchronous=NORMAL`.
    pub fn syncs_are_normal(&self) -> bool {
        self.synced && !self.full_sync
    }

    /// Whether SQLite is rolling the transaction back.
    pub fn rolls_back(&self) -> bool {
        self.rolls_back
    }

    /// SQLite reads the database, or unlocks it: a rollback is over, or was broken off.
    pub fn end_rollback(&mut self) {
        self.rolls_back = false;
    }

    /// The transaction is over.
    pub fn forget_syncs(&mut self) {
        self.synced = false;
        self.full_sync = false;
    }

    /// Leaves out the name of a super-journal that is `gone`: SQLite would take the journal for
    /// stale and keep its cache. The first file's rollback removes the super-journal, as it cannot
    /// see the others' virtual journals. The name stays void: `journal_mode=PERSIST` would keep it
    /// (rule RollbackIsReal).
    pub fn read_to_roll_back(
        &mut self,
        buf: &mut [u8],
        offset: u64,
        gone: impl FnOnce(&Path) -> Result<bool>,
    ) -> Result<usize> {
        self.rolls_back |= offset < HEADER_WRITE_BYTES as u64 && buf.len() > 1;
        let magic_at = self.len.saturating_sub(MAGIC.len() as u64);
        if offset.saturating_add(buf.len() as u64) > magic_at
            && let Some(path) = self.super_journal()?
            && gone(&path)?
        {
            self.put(&[0; MAGIC.len()], magic_at, || Err(Error::Misuse("a journal without its end".into())))?;
        }
        self.read_at(buf, offset)
    }

    fn super_journal(&self) -> Result<Option<PathBuf>> {
        super_journal(self.len, |buf, offset| self.read_at(buf, offset))
    }

    /// The transaction then spans several files.
    pub fn names_super_journal(&self) -> Result<bool> {
        let mut tail = [0; 8];
        let Some(at) = self.len.checked_sub(8) else { return Ok(false) };
        Ok(self.read_at(&mut tail, at)? == 8 && tail == MAGIC && self.len > 512)
    }
}

struct Spill {
    file: Arc<dyn DiskFile>,
    /// So many bytes are in the file, and those of `tail` follow.
    len: u64,
    tail: Vec<u8>,
}

impl Spill {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        let in_file = usize::try_from(self.len.saturating_sub(offset)).unwrap_or(usize::MAX).min(buf.len());
        let (from_file, rest) = buf.split_at_mut(in_file);
        let read = self.file.read_at(from_file, offset).context(what)?;
        if read < in_file {
            return Ok(read);
        }
        let start = usize::try_from(offset.saturating_sub(self.len)).unwrap_or(usize::MAX);
        let tail = self.tail.get(start..).unwrap_or_default();
        let n = tail.len().min(rest.len());
        if let (Some(to), Some(from)) = (rest.get_mut(..n), tail.get(..n)) {
            to.copy_from_slice(from);
        }
        Ok(in_file + n)
    }

    /// A gap becomes zeros.
    fn write_at(&mut self, data: &[u8], offset: u64) -> Result<()> {
        let in_file = usize::try_from(self.len.saturating_sub(offset)).unwrap_or(usize::MAX).min(data.len());
        let (to_file, rest) = data.split_at(in_file);
        if !to_file.is_empty() {
            self.file.write_at(to_file, offset).context(what)?;
        }
        if rest.is_empty() {
            return Ok(());
        }
        let start = offset + in_file as u64 - self.len;
        if start + rest.len() as u64 > SPILL_BYTES as u64 {
            if !self.tail.is_empty() {
                self.file.write_at(&self.tail, self.len).context(what)?;
                self.len += self.tail.len() as u64;
                self.tail.clear();
                return self.write_at(rest, offset + in_file as u64);
            }
            // Cut-off bytes must not reappear.
            self.file.set_len(self.len).context(what)?;
            self.file.write_at(rest, self.len + start).context(what)?;
            self.len += start + rest.len() as u64;
            return Ok(());
        }
        let (start, end) = (start as usize, start as usize + rest.len());
        self.tail.room(SPILL_BYTES - self.tail.len())?;
        if self.tail.len() < end {
            self.tail.resize(end, 0);
        }
        if let Some(to) = self.tail.get_mut(start..end) {
            to.copy_from_slice(rest);
        }
        Ok(())
    }

    fn truncate(&mut self, len: u64) {
        self.tail.truncate(usize::try_from(len.saturating_sub(self.len)).unwrap_or(usize::MAX));
        self.len = self.len.min(len);
    }
}

/// At the journal's end: name, length u32, checksum u32, magic.
pub fn super_journal(len: u64, read: impl Fn(&mut [u8], u64) -> Result<usize>) -> Result<Option<PathBuf>> {
    let (mut name_bytes, mut tail) = ([0; 4], [0; 8]);
    let Some(end) = len.checked_sub(16).filter(|_| len > 512) else { return Ok(None) };
    if read(&mut name_bytes, end)? != 4 || read(&mut tail, end + 8)? != 8 || tail != MAGIC {
        return Ok(None);
    }
    let name_bytes = u32::from_be_bytes(name_bytes);
    let Some(at) = end.checked_sub(u64::from(name_bytes)).filter(|_| name_bytes <= NAME_BYTES_MAX) else {
        return Ok(None);
    };
    let mut name = vec![0; name_bytes as usize];
    let read = read(&mut name, at)?;
    Ok((read == name.len()).then(|| system::path_of(&name)))
}

fn what() -> String {
    "cannot use the temporary file of the rollback journal".into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::Disk;
    use crate::disk::sim::{SimConfig, SimDisk};

    fn temp() -> Result<Arc<dyn DiskFile>> {
        Ok(SimDisk::new(SimConfig::default()).temp_file(std::path::Path::new("/db")).unwrap())
    }

    #[test]
    fn bytes_come_back_across_the_edge_of_memory() {
        let mut j = VirtualJournal::default();
        let data: Vec<u8> = (0..3000u32).map(|i| i as u8).collect();
        for at in [0, MEMORY_BYTES - 1000, 3 * MEMORY_BYTES] {
            j.write_at(&data, at, temp).unwrap();
            let mut back = vec![0; data.len()];
            assert_eq!(j.read_at(&mut back, at).unwrap(), data.len());
            assert_eq!(back, data);
        }
        assert_eq!(j.len(), 3 * MEMORY_BYTES + 3000);
        let mut short = [0; 10];
        assert_eq!(j.read_at(&mut short, j.len() - 4).unwrap(), 4);
        j.truncate(5);
        assert_eq!(j.read_at(&mut short, 0).unwrap(), 5);
        assert!(j.spill.is_none());
    }

    #[test]
    fn it_takes_writes_at_any_offset_as_a_file_does() {
        use proptest::prelude::*;
        let step = (0..5u8, 0..3u8, 0..200_000u64, 1..40_000usize, any::<u8>());
        let mut runner = proptest::test_runner::TestRunner::default();
        let run = runner.run(&prop::collection::vec(step, 1..24), |steps| {
            let (mut j, mut model) = (VirtualJournal::default(), Vec::new());
            for (cuts, whence, distance, len, byte) in steps {
                let at = match whence {
                    0 => distance,
                    1 => (MEMORY_BYTES + 150_000).saturating_sub(distance),
                    _ => model.len() as u64 + distance % 3 * 100,
                };
                if cuts == 0 {
                    j.truncate(at);
                    model.truncate(at as usize);
                } else {
                    j.write_at(&vec![byte; len], at, temp).unwrap();
                    model.resize(model.len().max(at as usize + len), 0);
                    model[at as usize..at as usize + len].fill(byte);
                }
                let mut back = vec![1; model.len() + 10];
                prop_assert_eq!(j.read_at(&mut back, 0).unwrap(), model.len());
                prop_assert!(back.starts_with(&model));
            }
            Ok(())
        });
        run.unwrap();
    }

    #[test]
    fn the_name_of_a_super_journal_that_is_gone_is_void_for_good() {
        for len in [1000, 3 * MEMORY_BYTES] {
            let mut j = VirtualJournal::default();
            let mut end = b"/db-mj".to_vec();
            end.extend(6u32.to_be_bytes());
            end.extend(0u32.to_be_bytes());
            end.extend(MAGIC);
            j.write_at(&end, len, temp).unwrap();
            let mut back = vec![0; end.len()];
            let named = |path: &Path| path == Path::new("/db-mj");
            assert_eq!(j.read_to_roll_back(&mut back, len, |path| Ok(!named(path))).unwrap(), end.len());
            assert_eq!(back, end);
            assert!(j.names_super_journal().unwrap());
            j.read_to_roll_back(&mut back, len, |path| Ok(named(path))).unwrap();
            assert_eq!(back[..end.len() - 8], end[..end.len() - 8]);
            assert!(!j.names_super_journal().unwrap() && back.ends_with(&[0; 8]));
        }
    }

    #[test]
    fn a_rollback_reads_the_first_header_and_ends_with_a_write() {
        let mut j = VirtualJournal::default();
        j.write_at(&[1; 600], 0, temp).unwrap();
        let read = |j: &mut VirtualJournal, len: usize, offset| {
            j.read_to_roll_back(&mut vec![0; len], offset, |_| Ok(false)).unwrap();
            j.rolls_back()
        };
        assert!(!read(&mut j, 1, 0), "a look whether it is hot");
        assert!(!read(&mut j, 4, 512), "a savepoint's records");
        assert!(read(&mut j, 4, 8) && read(&mut j, 4, 512));
        j.write_at(&[0; 28], 0, temp).unwrap();
        assert!(!j.rolls_back(), "PERSIST");
        assert!(read(&mut j, 8, 0));
        j.truncate(0);
        assert!(!j.rolls_back());
        j.write_at(&[1; 600], 0, temp).unwrap();
        assert!(read(&mut j, 8, 0));
        j.end_rollback();
        assert!(!j.rolls_back());
    }

    #[test]
    fn the_order_of_syncs_tells_full_from_normal() {
        let mut header = MAGIC.to_vec();
        header.extend([0, 0, 0, 1]);
        let mut j = VirtualJournal::default();
        assert!(!j.syncs_are_normal(), "no sync at all is not NORMAL: the journal is elsewhere");
        j.write_at(&[1; 600], 0, temp).unwrap();
        j.write_at(&header, 0, temp).unwrap();
        j.sync();
        assert!(j.syncs_are_normal());
        j.write_at(&[1; 600], 600, temp).unwrap();
        j.sync();
        assert!(!j.syncs_are_normal());
        j.forget_syncs();
        j.write_at(&header, 0, temp).unwrap();
        j.sync();
        assert!(j.syncs_are_normal());
    }
}
