//! What a database should hold: whole states in memory, and plans that lead from one to the next.

use std::sync::Arc;

use onewrite_core::disk::sim::SplitMix64;
use onewrite_core::layout::home as at;
use onewrite_core::layout::put;

/// Every page of one committed state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// Page size in bytes; 0 while there is no page.
    pub page_bytes: usize,
    /// Page 1 first.
    pub pages: Vec<Arc<[u8]>>,
}

impl State {
    /// Size in bytes.
    pub fn bytes(&self) -> usize {
        self.page_bytes * self.pages.len()
    }

    /// Page `number`, counted from 1.
    pub fn page(&self, number: u32) -> Option<&Arc<[u8]>> {
        self.pages.get(number as usize - 1)
    }

    /// Number of pages.
    pub fn count(&self) -> u32 {
        self.pages.len() as u32
    }

    /// All pages, one behind the other.
    pub fn flat(&self) -> Vec<u8> {
        self.pages.iter().flat_map(|page| page.iter().copied()).collect()
    }
}

/// The fields of page 1 that core assigns (and the version of SQLite next to the second).
pub const ASSIGNED: [std::ops::Range<usize>; 2] = [24..28, 92..100];

/// Whether `read` is what `page` should hold; on page 1 the counters are core's.
pub fn same(number: u32, read: &[u8], page: &[u8]) -> bool {
    if number != 1 {
        return read == page;
    }
    let [a, b] = ASSIGNED;
    read.len() == page.len()
        && read[..a.start] == page[..a.start]
        && read[a.end..b.start] == page[a.end..b.start]
        && read[b.end..] == page[b.end..]
}

/// How a transaction changes a state.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The state after it.
    pub next: Arc<State>,
    /// Pages to write, in order. Pages of `next` that are neither here nor in the base are zeros
    /// that SQLite never writes.
    pub writes: Vec<u32>,
    /// Pages written (spilled) before the transaction cut them off.
    pub lost: Vec<u32>,
}

/// Which transactions a history makes.
#[derive(Clone, Copy, Debug)]
pub struct Taste {
    /// Page size of a new database.
    pub page_bytes: usize,
    /// Size that a transaction does not grow the database beyond, in pages.
    pub pages_max: usize,
    /// Pages a big transaction changes.
    pub big: usize,
}

impl Plan {
    /// A transaction on `base`, drawn from `rng`.
    pub fn draw(base: &State, taste: Taste, rng: &mut SplitMix64) -> Plan {
        let size = if base.pages.is_empty() { taste.page_bytes } else { base.page_bytes };
        let mut next = State { page_bytes: size, pages: base.pages.clone() };
        let mut writes = Vec::new();
        let mut lost = Vec::new();
        if base.pages.is_empty() {
            for number in 0..1 + rng.below(6) {
                next.pages.push(fresh(size, rng));
                writes.push(number as u32 + 1);
            }
        }
        let edits = match rng.below(16) {
            0 => 0,
            1 => taste.big.min(next.pages.len()),
            2..5 => 2 + rng.below(6),
            _ => 1,
        };
        for _ in 0..edits {
            let number = 1 + rng.below(next.pages.len()) as u32;
            let page = &mut next.pages[number as usize - 1];
            *page = edited(number, page, rng);
            writes.push(number);
        }
        match rng.below(12) {
            0..3 => {
                let room = taste.pages_max.saturating_sub(next.pages.len());
                let most = if rng.below(6) == 0 { taste.big } else { 4 };
                let more = (1 + rng.below(most)).min(room);
                let unwritten = rng.below(4) == 0;
                for _ in 0..more {
                    if unwritten && rng.below(2) == 0 {
                        next.pages.push(Arc::from(vec![0; size]));
                    } else {
                        next.pages.push(fresh(size, rng));
                        writes.push(next.count());
                    }
                }
            }
            3 => {
                let keep = 1 + rng.below(next.pages.len());
                lost = (keep as u32 + 1..=next.count()).filter(|_| rng.below(3) == 0).collect();
                next.pages.truncate(keep);
                writes.retain(|number| *number <= keep as u32);
            }
            _ => {}
        }
        // SQLite writes page 1 with each commit.
        writes.push(1);
        writes.sort_unstable();
        writes.dedup();
        let first = with_header(&next.pages[0], size, next.count());
        next.pages[0] = first;
        Plan { next: Arc::new(next), writes, lost }
    }

    /// The same bytes of content in pages of another size, as a VACUUM leaves them.
    pub fn resized(base: &State, page_bytes: usize, rng: &mut SplitMix64) -> Plan {
        let count = base.bytes().div_ceil(page_bytes).max(1);
        let mut next = State { page_bytes, pages: (0..count).map(|_| fresh(page_bytes, rng)).collect() };
        next.pages[0] = with_header(&next.pages[0], page_bytes, count as u32);
        Plan { next: Arc::new(next), writes: Vec::new(), lost: Vec::new() }
    }
}

/// A page with some bytes in front and at the end, as a b-tree page has.
fn fresh(size: usize, rng: &mut SplitMix64) -> Arc<[u8]> {
    let mut page = vec![0; size];
    let (front, back) = (1 + rng.below(size / 8), 1 + rng.below(size / 2));
    fill(&mut page[..front], rng);
    fill(&mut page[size - back..], rng);
    page.into()
}

fn edited(number: u32, page: &[u8], rng: &mut SplitMix64) -> Arc<[u8]> {
    let mut page = page.to_vec();
    let from = if number == 1 { 100 } else { 0 };
    if rng.below(12) == 0 {
        fill(&mut page[from..], rng);
    }
    for _ in 0..1 + rng.below(3) {
        let start = from + rng.below(page.len() - from);
        let end = (start + 1 + rng.below(40)).min(page.len());
        fill(&mut page[start..end], rng);
    }
    page.into()
}

fn fill(bytes: &mut [u8], rng: &mut SplitMix64) {
    for part in bytes.chunks_mut(8) {
        let word = rng.next_u64().to_le_bytes();
        part.copy_from_slice(&word[..part.len()]);
    }
}

/// Page 1 with a valid header; the counters are zero here, and whatever the pager makes them on disk.
fn with_header(page: &[u8], page_bytes: usize, count: u32) -> Arc<[u8]> {
    let mut page = page.to_vec();
    page[..100].fill(0);
    put(&mut page, 0, at::MAGIC);
    let size = u16::try_from(page_bytes).unwrap_or(1);
    put(&mut page, at::PAGE_SIZE, &size.to_be_bytes());
    put(&mut page, at::WRITE_VERSION, &[1, 1, 0, 64, 32, 32]);
    put(&mut page, at::PAGE_COUNT, &count.to_be_bytes());
    put(&mut page, 44, &4u32.to_be_bytes());
    put(&mut page, 56, &1u32.to_be_bytes());
    page.into()
}
