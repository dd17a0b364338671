//! A bit for each process in the words: a look at all costs the same, however many are silent.

use std::iter;
use std::sync::atomic::Ordering::SeqCst;

use super::pinning::PinBits;
use super::words::{Pins, ProcessWords};
use crate::base::layout::words::{AT_CLEARING, BIT_WORDS, PROCESSES};

/// A bit for each process, in block 0.
#[derive(Clone, Copy)]
pub struct ProcessBits<'a> {
    words: &'a ProcessWords,
    at: usize,
}

impl<'a> ProcessBits<'a> {
    pub(super) fn at(words: &'a ProcessWords, at: usize) -> ProcessBits<'a> {
        ProcessBits { words, at }
    }

    fn word(&self, n: usize) -> u64 {
        self.words.long(self.at + n).load(SeqCst)
    }

    pub fn has(&self, process: usize) -> bool {
        self.word(process / 64) & (1 << (process % 64)) != 0
    }

    pub fn set(&self, process: usize) {
        self.words.cell(self.at + process / 64).fetch_or(1 << (process % 64), SeqCst);
    }

    pub fn clear(&self, process: usize) {
        self.words.cell(self.at + process / 64).fetch_and(!(1 << (process % 64)), SeqCst);
    }

    /// From `first` on, once round.
    pub fn from(self, first: usize) -> impl Iterator<Item = usize> + use<'a> {
        let (word, bit) = (first / 64 % BIT_WORDS, first % 64);
        let parts = iter::once((word, u64::MAX << bit))
            .chain((1..BIT_WORDS).map(move |n| ((word + n) % BIT_WORDS, u64::MAX)))
            .chain(iter::once((word, !(u64::MAX << bit))));
        parts.flat_map(move |(n, mask)| ones(self.word(n) & mask).map(move |bit| n * 64 + bit))
    }

    /// Those without.
    pub fn free(self) -> impl Iterator<Item = usize> + use<'a> {
        (0..BIT_WORDS).flat_map(move |n| ones(!self.word(n)).map(move |bit| n * 64 + bit))
    }

    pub fn has_others(&self, me: usize) -> bool {
        // Without a branch for each word: it is asked twice in a commit.
        let all = self.words.longs(self.at, BIT_WORDS).iter().fold(0, |all, word| all | word.load(SeqCst));
        all != 0 && self.from(0).any(|process| process != me)
    }

    pub fn are_in(&self, other: &ProcessBits<'_>) -> bool {
        (0..BIT_WORDS).all(|n| self.word(n) & !other.word(n) == 0)
    }

    pub fn copy(&self, from: &ProcessBits<'_>) {
        (0..BIT_WORDS).for_each(|n| self.words.cell(self.at + n).store(from.word(n), SeqCst));
    }
}

fn ones(word: u64) -> impl Iterator<Item = usize> {
    let more = |word: &u64| Some(word & word.wrapping_sub(1));
    iter::successors(Some(word), more).take_while(|word| *word != 0).map(|word| word.trailing_zeros() as usize)
}

impl PinBits for ProcessWords {
    fn has(&self, process: usize) -> bool {
        self.pinning().has(process)
    }

    fn set(&self, process: usize) {
        self.pinning().set(process);
    }

    fn unset(&self, process: usize) {
        self.pinning().clear(process);
    }

    fn clearing(&self) -> Option<usize> {
        let process = usize::try_from(self.long(AT_CLEARING).load(SeqCst)).ok()?.checked_sub(1)?;
        (process < PROCESSES).then_some(process)
    }

    fn set_clearing(&self, process: Option<usize>) {
        self.cell(AT_CLEARING).store(process.map_or(0, |process| process as u64 + 1), SeqCst);
    }

    fn is_pinned(&self, process: usize) -> bool {
        self.pins(process) != Pins::default()
    }

    fn all(&self) -> impl Iterator<Item = usize> {
        self.pinning().from(0)
    }
}
