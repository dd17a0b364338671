//!
//! A device writes a *unit* all or nothing. A write makes new versions of whole units, as the page
//! cache does; until a flush the medium may hold any. Lengths move in order, like a metadata
//! journal; a truncation that arrives zeroes older data. A version may arrive before an earlier
//! length.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::bytes::Bytes;
use super::pick;

#[derive(Clone, Debug)]
struct UnitVersion {
    at: u64,
    bytes: Arc<[u8]>,
    /// After a failed flush the cache calls it clean, so no later one writes it.
    limbo: bool,
    /// The device has it in its cache.
    sent: bool,
}

#[derive(Clone, Debug, Default)]
struct Unit {
    /// When the medium's content was written, if since the file's last flush.
    medium_at: u64,
    versions: Vec<UnitVersion>,
}

#[derive(Clone, Debug)]
struct Length {
    at: u64,
    len: usize,
    shrinks: bool,
}

#[derive(Clone, Debug)]
pub(super) struct CachedFile {
    unit: usize,
    clock: u64,
    view: Bytes,
    /// Longer than `medium_len` if a unit came before its length.
    medium: Bytes,
    medium_len: usize,
    units: BTreeMap<usize, Unit>,
    lengths: Vec<Length>,
    seal: Option<u64>,
}

impl CachedFile {
    pub fn at_rest(unit: usize, bytes: Bytes) -> Self {
        Self {
            unit,
            clock: 0,
            medium: bytes.clone(),
            medium_len: bytes.len(),
            view: bytes,
            units: BTreeMap::new(),
            lengths: Vec::new(),
            seal: None,
        }
    }

    pub fn at_rest_with(&self, bytes: Bytes) -> Self {
        Self { seal: self.seal, ..Self::at_rest(self.unit, bytes) }
    }

    pub fn view(&self) -> &Bytes {
        &self.view
    }

    pub fn write(&mut self, buf: &[u8], offset: usize) {
        if buf.is_empty() {
            return;
        }
        self.clock += 1;
        let end = offset + buf.len();
        let mut len = self.view.len().max(offset);
        if end > self.view.len() {
            self.seal = None;
            // A long write raises the length step by step.
            while len < end {
                len = end.min((len / self.unit + 1) * self.unit);
                self.lengths.push(Length { at: self.clock, len, shrinks: false });
            }
        }
        self.view.write(buf, offset);
        for index in self.units_of(offset, end) {
            let version =
                UnitVersion { at: self.clock, bytes: self.unit_in(&self.view, index), limbo: false, sent: false };
            self.units.entry(index).or_default().versions.push(version);
        }
    }

    /// Units are as cached, and pending lengths let the medium reach `end` in any case.
    pub fn flush_range(&mut self, start: usize, end: usize) {
        let options = std::iter::once(self.medium_len).chain(self.lengths.iter().map(|length| length.len));
        let short = options.enumerate().filter(|(_, len)| *len < end).last();
        self.commit_lengths(short.map_or(0, |(index, _)| index + 1));
        for index in self.units_of(start, end) {
            self.put_on_medium(index, &self.unit_in(&self.view, index));
            self.units.insert(index, Unit { medium_at: self.clock, versions: Vec::new() });
        }
    }

    pub fn set_len(&mut self, len: usize) {
        if len == self.view.len() {
            return;
        }
        self.clock += 1;
        self.seal = None;
        self.lengths.push(Length { at: self.clock, len, shrinks: len < self.view.len() });
        self.view.resize(len);
    }

    /// From the unit of `from` on, with every length.
    pub fn flush(&mut self, from: usize) {
        self.commit_lengths(self.lengths.len());
        let flushed = self.units.split_off(&(from / self.unit));
        for (index, unit) in flushed {
            match unit.versions.last() {
                Some(last) if !last.limbo => self.put_on_medium(index, &last.bytes),
                Some(_) => {
                    self.units.insert(index, unit);
                }
                None => {}
            }
        }
    }

    pub fn send(&mut self, from: usize) {
        let newest = self.units.range_mut(from / self.unit..).filter_map(|(_, unit)| unit.versions.last_mut());
        newest.filter(|version| !version.limbo).for_each(|version| version.sent = true);
    }

    /// Sent versions reach the medium, where it has a place for them.
    pub fn flush_sent(&mut self) {
        let mut arrived = Vec::new();
        for (&index, unit) in self.units.range_mut(..self.medium_len.div_ceil(self.unit)) {
            if let Some(last) = unit.versions.iter().rposition(|version| version.sent) {
                let sent = unit.versions.drain(..=last).next_back();
                arrived.extend(sent.map(|version| (index, version)));
            }
        }
        for (index, version) in arrived {
            self.put_on_medium(index, &version.bytes);
            if let Some(unit) = self.units.get_mut(&index) {
                unit.medium_at = version.at;
            }
        }
    }

    /// The kernel calls the lost versions clean.
    pub fn lose_sent(&mut self) {
        for version in self.units.values_mut().flat_map(|unit| &mut unit.versions).filter(|version| version.sent) {
            (version.sent, version.limbo) = (false, true);
        }
    }

    /// Seals the file until its length changes. Panics if a power cut could shorten it.
    pub fn put_seal(&mut self, seal: u64) {
        let len = self.view.len();
        let is_durable = self.medium_len >= len && self.lengths.iter().all(|length| length.len >= len);
        assert!(is_durable, "a seal for a file whose length is not durable");
        self.seal = Some(seal);
    }

    pub fn seal(&self) -> Option<u64> {
        self.seal
    }

    /// Lengths stay pending: the journal keeps metadata.
    pub fn fail_flush(&mut self) {
        for version in self.units.values_mut().flat_map(|unit| &mut unit.versions) {
            version.limbo = true;
        }
    }

    pub fn fail_flush_range(&mut self, start: usize, end: usize) {
        let range = self.units_of(start, end);
        for version in self.units.range_mut(range).flat_map(|(_, unit)| &mut unit.versions) {
            version.limbo = true;
        }
    }

    pub fn flip_bit(&mut self, offset: usize, bit: u8) -> bool {
        let (mask, index, within) = (1 << (bit % 8), offset / self.unit, offset % self.unit);
        if !self.view.flip(offset, mask) {
            return false;
        }
        self.medium.flip(offset, mask);
        for version in self.units.get_mut(&index).into_iter().flat_map(|unit| &mut unit.versions) {
            Arc::make_mut(&mut version.bytes)[within] ^= mask;
        }
        true
    }

    /// Counts of options above one, from the medium's state to the newest.
    pub fn choices(&self) -> impl Iterator<Item = usize> {
        let versions = self.units.values().map(|unit| unit.versions.len());
        std::iter::once(self.lengths.len()).chain(versions).filter(|&pending| pending > 0).map(|pending| pending + 1)
    }

    pub fn crash(&self, choose: &mut dyn FnMut(usize) -> usize) -> Bytes {
        if self.units.is_empty() && self.lengths.is_empty() && self.medium.len() == self.medium_len {
            return self.medium.clone();
        }
        let arrived = &self.lengths[..pick(self.lengths.len() + 1, choose)];
        let len = arrived.last().map_or(self.medium_len, |length| length.len);
        // Older data ends at the cut of a truncation that arrived.
        let cut = |at: u64| {
            let cuts = arrived.iter().filter(|length| length.shrinks && length.at > at);
            cuts.map(|length| length.len).min().unwrap_or(usize::MAX)
        };
        let mut bytes = self.medium.clone();
        bytes.zero(cut(0), bytes.len());
        bytes.resize(len.next_multiple_of(self.unit));
        for (&index, unit) in &self.units {
            let chosen = pick(unit.versions.len() + 1, choose);
            let version = chosen.checked_sub(1).and_then(|chosen| unit.versions.get(chosen));
            let (start, end) = (index * self.unit, (index + 1) * self.unit);
            if end > bytes.len() {
                continue;
            }
            match version {
                Some(version) => bytes.write(&version.bytes, start),
                None => bytes.write(&self.unit_in(&self.medium, index), start),
            }
            bytes.zero(cut(version.map_or(unit.medium_at, |version| version.at)).max(start), end);
        }
        bytes.resize(len);
        bytes
    }

    fn commit_lengths(&mut self, count: usize) {
        for length in self.lengths.drain(..count) {
            self.medium_len = length.len;
            if !length.shrinks {
                continue;
            }
            for index in length.len / self.unit..self.medium.len().div_ceil(self.unit) {
                if self.units.get(&index).is_none_or(|unit| unit.medium_at < length.at) {
                    self.medium.zero(length.len.max(index * self.unit), (index + 1) * self.unit);
                }
            }
            for (index, unit) in self.units.range_mut(length.len / self.unit..) {
                for version in unit.versions.iter_mut().filter(|version| version.at < length.at) {
                    zero_from(Arc::make_mut(&mut version.bytes), index * self.unit, length.len);
                }
            }
        }
    }

    fn put_on_medium(&mut self, index: usize, bytes: &[u8]) {
        if self.medium.len() < (index + 1) * self.unit {
            self.medium.resize((index + 1) * self.unit);
        }
        self.medium.write(bytes, index * self.unit);
    }

    fn unit_in(&self, bytes: &Bytes, index: usize) -> Arc<[u8]> {
        let mut unit: Arc<[u8]> = std::iter::repeat_n(0, self.unit).collect();
        if let Some(room) = Arc::get_mut(&mut unit) {
            bytes.read(room, index * self.unit);
        }
        unit
    }

    fn units_of(&self, start: usize, end: usize) -> std::ops::Range<usize> {
        start / self.unit..end.div_ceil(self.unit)
    }
}

fn zero_from(bytes: &mut [u8], start: usize, from: usize) {
    let kept = from.saturating_sub(start).min(bytes.len());
    bytes[kept..].fill(0);
}
