//! Decisions of transactions over several files: sectors of the log, behind its two slots.
//!
//! ```text
//!  block 1 or 2:  slot | decision | decision ... | free ...      whole sectors each
//! ```
//!
//! A whole decision says that each file's record with its token counts. It stays until each of them
//! has a durable successor (rule PreparedThenDecided).

#![deny(clippy::indexing_slicing, clippy::unwrap_used, clippy::expect_used, clippy::arithmetic_side_effects)]

use std::path::PathBuf;

use super::file::LogFile;
use super::slot::Slot;
use crate::base::error::{Error, IoContext, Result};
use crate::base::layout::{BLOCK_BYTES_MIN, decision as at, le_u16, le_u32, le_u64, put};
use crate::base::rules::{Case, keeps};
use crate::base::types::Tid;
use crate::disk::system;

/// A transaction's commit in several files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// As in the records.
    pub token: u64,
    /// False with `synchronous=OFF`: the page cache may be lost.
    pub flushed: bool,
    /// With their records.
    pub files: Vec<DecisionPart>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecisionPart {
    /// Relative to the directory of the log with the decision.
    pub path: PathBuf,
    /// Of its log.
    pub session: u64,
    /// Of its record.
    pub tid: Tid,
}

pub struct Sector {
    pub position: u64,
    /// Behind its slot.
    pub number: usize,
    pub decision: Option<(Decision, usize)>,
}

impl Decision {
    /// `None` if the files' names do not fit.
    pub fn encode(&self) -> Option<Vec<u8>> {
        let mut b = vec![0; at::AT_FILES];
        put(&mut b, at::AT_MAGIC, &at::MAGIC.to_le_bytes());
        put(&mut b, at::AT_TOKEN, &self.token.to_le_bytes());
        put(&mut b, at::AT_FLAGS, &if self.flushed { at::FLUSHED } else { 0 }.to_le_bytes());
        put(&mut b, at::AT_COUNT, &u32::try_from(self.files.len()).ok()?.to_le_bytes());
        for file in &self.files {
            let path = system::bytes_of(file.path.as_os_str());
            b.extend_from_slice(&file.session.to_le_bytes());
            b.extend_from_slice(&file.tid.0.to_le_bytes());
            b.extend_from_slice(&u16::try_from(path.len()).ok()?.to_le_bytes());
            b.extend_from_slice(path);
        }
        let len = u32::try_from(b.len()).ok()?;
        put(&mut b, at::AT_LEN, &len.to_le_bytes());
        let crc = crc32c::crc32c(&b);
        b.extend_from_slice(&crc.to_le_bytes());
        b.resize(b.len().next_multiple_of(at::SECTOR_BYTES), 0);
        (b.len() <= at::SECTORS.checked_mul(at::SECTOR_BYTES)?).then_some(b)
    }

    /// Returns its count of sectors, too; `None` unless whole.
    pub fn decode(b: &[u8]) -> Option<(Decision, usize)> {
        let len = usize::try_from(le_u32(b, at::AT_LEN)?).ok()?;
        let sealed = b.get(..len)?;
        if le_u64(b, at::AT_MAGIC)? != at::MAGIC || le_u32(b, len)? != crc32c::crc32c(sealed) {
            return None;
        }
        let mut files = Vec::new();
        let mut rest = sealed.get(at::AT_FILES..)?;
        for _ in 0..le_u32(b, at::AT_COUNT)? {
            let len = usize::from(le_u16(rest, 16)?);
            let end = at::FILE_BYTES.checked_add(len)?;
            let path = rest.get(at::FILE_BYTES..end)?;
            files.push(DecisionPart {
                path: system::path_of(path),
                session: le_u64(rest, 0)?,
                tid: Tid(le_u64(rest, 8)?),
            });
            rest = rest.get(end..)?;
        }
        let flushed = le_u32(b, at::AT_FLAGS)? & at::FLUSHED != 0;
        let sectors = len.checked_add(at::CRC_BYTES)?.div_ceil(at::SECTOR_BYTES);
        Some((Decision { token: le_u64(b, at::AT_TOKEN)?, flushed, files }, sectors))
    }
}

impl LogFile {
    /// Those behind the slot written next come first: less depends on their block.
    pub fn decisions(&self, slot: &Slot) -> Result<Vec<Sector>> {
        let mut sectors = Vec::new();
        let block = u64::from(slot.block_bytes);
        let newest_first = [slot.position(), block.saturating_mul(3).saturating_sub(slot.position())];
        for block_at in newest_first.into_iter().rev() {
            let mut b = [0; BLOCK_BYTES_MIN as usize];
            let read = self.file.read_at(&mut b, block_at).context(|| self.what("cannot read"))?;
            let read = b.get(..read).unwrap_or_default();
            sectors.extend((1..=at::SECTORS).map(|number| {
                let in_block = number.saturating_mul(at::SECTOR_BYTES);
                let decision = read.get(in_block..).and_then(Decision::decode);
                Sector { position: block_at.saturating_add(in_block as u64), number, decision }
            }));
        }
        Ok(sectors)
    }

    /// Another file may need one.
    pub fn has_decision(&self, slot: &Slot) -> Result<bool> {
        Ok(self.decisions(slot)?.iter().any(|sector| sector.decision.is_some()) && keeps(Case::DecisionKept))
    }

    /// Flushed if it says so (rule PreparedThenDecided).
    pub fn decide(&self, position: u64, decision: &Decision) -> Result<()> {
        let Some(bytes) = decision.encode() else {
            return Err(Error::Misuse("the names of the files of a transaction do not fit".into()));
        };
        let what = || self.what("cannot write a decision to");
        if decision.flushed && keeps(Case::DecisionFlushed) {
            self.file.write_durable_at(&bytes, position).context(what)
        } else {
            self.file.write_at(&bytes, position).context(what)
        }
    }
}

pub fn room(
    sectors: &[Sector],
    count: usize,
    mut is_free: impl FnMut(&Decision) -> Result<bool>,
) -> Result<Option<u64>> {
    // Sectors left of a decision; start and count of this free run.
    let (mut kept, mut from, mut free) = (0usize, 0, 0usize);
    for sector in sectors {
        if sector.number == 1 {
            (kept, free) = (0, 0);
        }
        if let Some((decision, long)) = sector.decision.as_ref().filter(|_| kept == 0)
            && !is_free(decision)?
        {
            kept = *long;
        }
        if kept > 0 {
            kept = kept.saturating_sub(1);
            free = 0;
            continue;
        }
        if free == 0 {
            from = sector.position;
        }
        free = free.saturating_add(1);
        if free == count {
            return Ok(Some(from));
        }
    }
    Ok(None)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::arithmetic_side_effects)]
mod tests {
    use super::*;

    fn decision(names: &[&str]) -> Decision {
        let part = |(n, path): (usize, &&str)| DecisionPart {
            path: path.into(),
            session: 7 + n as u64,
            tid: Tid(100 + n as u64),
        };
        Decision { token: 42, flushed: true, files: names.iter().enumerate().map(part).collect() }
    }

    #[test]
    fn a_decision_is_read_as_it_was_written() {
        let long = "x".repeat(400);
        let unflushed = Decision { flushed: false, ..decision(&["a"]) };
        let several = [decision(&["main.db", "side.db"]), decision(&[]), unflushed, decision(&[&long, &long, "y"])];
        for (decision, sectors) in several.into_iter().zip([1, 1, 1, 2]) {
            let mut b = decision.encode().unwrap();
            assert_eq!(b.len(), sectors * at::SECTOR_BYTES);
            assert_eq!(Decision::decode(&b), Some((decision.clone(), sectors)));
            b.extend_from_slice(&[7; 512]);
            assert_eq!(Decision::decode(&b), Some((decision, sectors)), "what is behind it does not matter");
        }
    }

    #[test]
    fn names_that_do_not_fit_are_no_decision() {
        let long = "x".repeat(1150);
        assert!(decision(&[&long, &long, &long]).encode().is_some());
        assert!(decision(&[&long, &long, &long, &long]).encode().is_none());
    }

    #[test]
    fn a_damaged_decision_is_none() {
        let whole = decision(&["main.db", "side.db"]).encode().unwrap();
        let len = le_u32(&whole, at::AT_LEN).unwrap() as usize;
        for at in 0..len + 4 {
            let mut b = whole.clone();
            b[at] ^= 1;
            assert_eq!(Decision::decode(&b), None, "byte {at}");
        }
        assert_eq!(Decision::decode(&whole[..len + 3]), None);
    }

    #[test]
    fn impossible_counts_and_lengths_are_no_decision() {
        let whole = decision(&["main.db"]).encode().unwrap();
        let len = le_u32(&whole, at::AT_LEN).unwrap() as usize;
        for at in [at::AT_COUNT, at::AT_FILES + 16] {
            let mut b = whole.clone();
            put(&mut b, at, &u16::MAX.to_le_bytes());
            let crc = crc32c::crc32c(&b[..len]);
            put(&mut b, len, &crc.to_le_bytes());
            assert_eq!(Decision::decode(&b), None);
        }
        let mut b = whole;
        put(&mut b, at::AT_LEN, &u32::MAX.to_le_bytes());
        assert_eq!(Decision::decode(&b), None);
    }

    #[test]
    fn room_is_within_one_block_and_beside_kept_decisions() {
        let sector = |n: usize, long: usize| Sector {
            position: n as u64,
            number: n % at::SECTORS + 1,
            decision: (long > 0).then(|| (decision(&[]), long)),
        };
        let sectors = |kept: &[(usize, usize)]| -> Vec<Sector> {
            let long = |n| kept.iter().find(|(at, _)| *at == n).map_or(0, |(_, long)| *long);
            (0..2 * at::SECTORS).map(|n| sector(n, long(n))).collect()
        };
        let find = |kept: &[(usize, usize)], count| room(&sectors(kept), count, |_| Ok(false)).unwrap();
        assert_eq!(find(&[], 7), Some(0));
        assert_eq!(find(&[(0, 1)], 1), Some(1));
        assert_eq!(find(&[(0, 2), (4, 1)], 2), Some(2));
        assert_eq!(
            find(&[(0, 2), (4, 1)], 3),
            Some(7),
            "what is free at the end of a block does not go on in the next"
        );
        assert_eq!(find(&[(0, 7), (7, 7)], 1), None);
        assert_eq!(find(&[(0, 7), (3, 1)], 1), Some(7), "what lies within one that stays is none of its own");
        assert_eq!(room(&sectors(&[(0, 7), (7, 7)]), 7, |_| Ok(true)).unwrap(), Some(0));
    }
}
