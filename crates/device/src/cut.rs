//! Power cuts: the images that a power cut after some event of a trace may leave.
//!
//! A flush makes the requests durable that were answered before it arrived. Of the rest, each
//! atomic unit independently has its content at the last flush or any content written since: a
//! cache may hold requests back, reorder them and lose power within one.

use std::collections::BTreeMap;
use std::ops::Range;

use onewrite_core::disk::sim::SplitMix64;

use crate::image::Image;
use crate::trace::{Event, Operation, Trace};

/// The choice of unflushed requests. Units drawn one by one are nearly never whole, so whole,
/// ordered and nearly whole outcomes have their own ways.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    /// Nothing arrived.
    Nothing,
    /// Everything arrived.
    Everything,
    /// The first requests arrived, and the beginning of one more.
    Prefix,
    /// Each request arrived or did not.
    Requests,
    /// All requests but one arrived.
    AllButOne,
    /// One request alone arrived.
    OneOnly,
    /// Each atomic unit has one of its contents since the flush.
    Units,
}

impl Kept {
    const ALL: [Kept; 7] =
        [Kept::Nothing, Kept::Everything, Kept::Prefix, Kept::Requests, Kept::AllButOne, Kept::OneOnly, Kept::Units];

    /// Draws ways with more outcomes more often.
    pub fn draw(random: &mut SplitMix64) -> Kept {
        let choice = random.below(12);
        Kept::ALL.get(choice).copied().unwrap_or(if choice < 9 { Kept::Requests } else { Kept::Units })
    }
}

/// A trace, cut at ascending positions.
pub struct PowerCuts<'t> {
    trace: &'t Trace,
    durable: Image,
    /// Requests before `position` that are not durable, in order.
    unflushed: Vec<&'t Event>,
    position: usize,
    atomic_unit: u64,
    /// Ascending.
    whole: Vec<Range<u64>>,
}

impl<'t> PowerCuts<'t> {
    /// `base` is the content before the recording.
    pub fn new(base: Image, trace: &'t Trace, atomic_unit: u32) -> PowerCuts<'t> {
        let atomic_unit = u64::from(atomic_unit.max(512));
        PowerCuts { trace, durable: base, unflushed: Vec::new(), position: 0, atomic_unit, whole: Vec::new() }
    }

    /// Never tears these ranges of whole atomic units, which ascend.
    pub fn keeping_whole(self, whole: Vec<Range<u64>>) -> PowerCuts<'t> {
        PowerCuts { whole, ..self }
    }

    /// Advances to the moment before event `position`, for good.
    pub fn advance(&mut self, position: usize) {
        let passed = self.trace.events.get(self.position..position.min(self.trace.events.len()));
        for event in passed.unwrap_or_default() {
            self.position += 1;
            if matches!(event.operation, Operation::Flush) {
                // A flush covers only requests answered before it arrived.
                let all = std::mem::take(&mut self.unflushed);
                let (done, rest) = all.into_iter().partition(|e| e.done_ns <= event.arrived_ns);
                self.unflushed = rest;
                let done: Vec<&Event> = done;
                done.into_iter().for_each(|e| apply(&mut self.durable, e, 0, u64::MAX));
            } else {
                self.unflushed.push(event);
            }
        }
    }

    /// Requests that no flush covers yet.
    pub fn unflushed(&self) -> &[&'t Event] {
        &self.unflushed
    }

    /// An image that a power cut may leave here.
    pub fn image(&self, kept: Kept, random: &mut SplitMix64) -> Image {
        let mut image = self.durable.clone();
        let requests = self.unflushed.as_slice();
        let one = random.below(requests.len().max(1));
        match kept {
            Kept::Nothing => {}
            Kept::Everything => requests.iter().for_each(|e| apply(&mut image, e, 0, u64::MAX)),
            Kept::Prefix => {
                requests.iter().take(one).for_each(|e| apply(&mut image, e, 0, u64::MAX));
                if let Some(torn) = requests.get(one) {
                    let (offset, len) = span(torn);
                    let units = usize::try_from(len / self.atomic_unit).unwrap_or(0);
                    let end = self.atom(offset + random.below(units + 1) as u64 * self.atomic_unit).start;
                    apply(&mut image, torn, 0, end.saturating_sub(offset));
                }
            }
            Kept::Requests => {
                let tenths = 1 + random.below(9);
                let arrived: Vec<_> = requests.iter().filter(|_| random.below(10) < tenths).collect();
                arrived.into_iter().for_each(|e| apply(&mut image, e, 0, u64::MAX));
            }
            Kept::AllButOne | Kept::OneOnly => {
                for (i, event) in requests.iter().enumerate() {
                    if (i == one) == (kept == Kept::OneOnly) {
                        apply(&mut image, event, 0, u64::MAX);
                    }
                }
            }
            Kept::Units => self.units(&mut image, requests, random),
        }
        image
    }

    fn atom(&self, address: u64) -> Range<u64> {
        let before = self.whole.partition_point(|range| range.end <= address);
        if let Some(range) = self.whole.get(before).filter(|range| range.contains(&address)) {
            return range.clone();
        }
        let start = address / self.atomic_unit * self.atomic_unit;
        start..start + self.atomic_unit
    }

    fn units(&self, image: &mut Image, requests: &[&Event], random: &mut SplitMix64) {
        let mut versions: BTreeMap<u64, Vec<&Event>> = BTreeMap::new();
        for event in requests {
            let (offset, len) = span(event);
            let mut at = offset;
            while at < offset + len {
                let atom = self.atom(at);
                versions.entry(atom.start).or_default().push(event);
                at = atom.end;
            }
        }
        let tenths = 1 + random.below(9);
        for (start, contents) in versions {
            // The newest content overwrites the others.
            let count = if random.below(10) < tenths { 1 + random.below(contents.len()) } else { 0 };
            for event in contents.into_iter().take(count) {
                let (offset, len) = span(event);
                let atom = self.atom(start);
                let (from, to) = (atom.start.max(offset), atom.end.min(offset + len));
                apply(image, event, from - offset, to - from);
            }
        }
    }
}

fn span(event: &Event) -> (u64, u64) {
    match event.operation {
        Operation::Write { offset, len, .. } | Operation::Zero { offset, len } => (offset, len),
        Operation::Flush => (0, 0),
    }
}

/// Applies `len` bytes from `skip` on, if they were kept.
fn apply(image: &mut Image, event: &Event, skip: u64, len: u64) {
    match &event.operation {
        Operation::Write { offset, data: Some(data), .. } => {
            let from = usize::try_from(skip).unwrap_or(usize::MAX).min(data.len());
            let to = from.saturating_add(usize::try_from(len).unwrap_or(usize::MAX)).min(data.len());
            image.write(offset + skip, &data[from..to]);
        }
        Operation::Zero { offset, len: all } => image.zero(offset + skip, len.min(all.saturating_sub(skip))),
        Operation::Write { data: None, .. } | Operation::Flush => {}
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Arc;

    use super::*;

    fn event(operation: Operation) -> Event {
        Event { arrived_ns: 0, done_ns: 0, operation }
    }

    fn flush(arrived_ns: u64) -> Event {
        Event { arrived_ns, done_ns: arrived_ns + 1, operation: Operation::Flush }
    }

    fn write(offset: u64, fill: u8, len: usize) -> Event {
        let data: Arc<[u8]> = vec![fill; len].into();
        event(Operation::Write { offset, len: len as u64, data: Some(data) })
    }

    /// First bytes of the first four sectors, over many draws.
    fn outcomes(trace: &Trace, position: usize, whole: &[Range<u64>]) -> BTreeSet<[u8; 4]> {
        let mut base = Image::new(1 << 20);
        base.write(0, &[9; 2048]);
        let mut cuts = PowerCuts::new(base, trace, 512).keeping_whole(whole.to_vec());
        cuts.advance(position);
        let mut random = SplitMix64::new(1);
        let mut seen = BTreeSet::new();
        for kept in Kept::ALL {
            for _ in 0..500 {
                let image = cuts.image(kept, &mut random);
                let mut bytes = [0; 2048];
                image.read(0, &mut bytes);
                assert!(bytes.chunks(512).all(|s| s.iter().all(|b| *b == s[0])), "a torn atomic unit");
                seen.insert([bytes[0], bytes[512], bytes[1024], bytes[1536]]);
            }
        }
        seen
    }

    #[test]
    fn flushed_stays_and_every_combination_of_the_rest_is_met() {
        let events = vec![write(0, 1, 1024), flush(0), write(512, 2, 1024), write(1024, 3, 512)];
        let trace = Trace { events, reads: 0, read_bytes: 0 };
        let want: BTreeSet<[u8; 4]> = [1, 2].iter().flat_map(|b| [9, 2, 3].map(|c| [1, *b, c, 9])).collect();
        assert_eq!(outcomes(&trace, 4, &[]), want);
        assert_eq!(outcomes(&trace, 2, &[]), BTreeSet::from([[1, 1, 9, 9]]));
        assert_eq!(outcomes(&trace, 0, &[]), BTreeSet::from([[9, 9, 9, 9]]));
    }

    #[test]
    fn a_flush_covers_the_writes_answered_before_it_arrived_and_no_more() {
        let slow = Event { done_ns: 9, ..write(0, 1, 512) };
        let trace = Trace { events: vec![slow, write(512, 2, 512), flush(5), flush(9)], reads: 0, read_bytes: 0 };
        assert_eq!(outcomes(&trace, 3, &[]), BTreeSet::from([[9, 2, 9, 9], [1, 2, 9, 9]]));
        assert_eq!(outcomes(&trace, 4, &[]), BTreeSet::from([[1, 2, 9, 9]]));
    }

    #[test]
    fn a_whole_write_is_not_torn() {
        let events = vec![write(0, 1, 2048), write(512, 2, 512)];
        let trace = Trace { events, reads: 0, read_bytes: 0 };
        let seen = outcomes(&trace, 2, &[0..1024, 1536..2048]);
        let heads: BTreeSet<[u8; 2]> = seen.iter().map(|s| [s[0], s[1]]).collect();
        assert_eq!(heads, BTreeSet::from([[9, 9], [1, 1], [1, 2], [9, 2]]));
        assert!(seen.contains(&[9, 9, 1, 9]) && seen.contains(&[1, 1, 9, 1]));
    }

    #[test]
    fn zeroed_ranges_are_lost_like_writes() {
        let events = vec![event(Operation::Zero { offset: 0, len: 1024 })];
        let trace = Trace { events, reads: 0, read_bytes: 0 };
        let seen = outcomes(&trace, 1, &[]);
        assert!(seen.contains(&[0, 9, 9, 9]) && seen.contains(&[9, 0, 9, 9]) && seen.contains(&[0, 0, 9, 9]));
    }
}
