//! The model of a database: whole states in memory, and plans that lead from one to the next.

use std::sync::Arc;

use onewrite_core::disk::sim::SplitMix64;
use onewrite_core::inspect::PageNo;
use onewrite_core::inspect::Shape;
use onewrite_core::inspect::layout::home as at;
use onewrite_core::inspect::layout::{put, trailer};

/// The reserved bytes of each page, for the in-page schemes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    /// None.
    No,
    /// A trailer.
    Trailer,
    /// A trailer and a reserve, as in new databases.
    Reserve,
}

impl Room {
    /// Fills the reserved bytes. The bytes before them belong to SQLite, except the gap and the
    /// free blocks of a b-tree page.
    const FILLS: [(Room, u8); 2] = [(Room::Trailer, 0xa5), (Room::Reserve, 0xa6)];

    fn of(page: &[u8]) -> Room {
        let found = Room::FILLS.into_iter().find(|(_, fill)| page.ends_with(&[*fill; trailer::BYTES]));
        found.map_or(Room::No, |(room, _)| room)
    }

    /// Whether pages are b-tree pages.
    pub fn b_trees(self) -> bool {
        self != Room::No
    }

    fn bytes(self, page_bytes: usize) -> usize {
        match self {
            Room::No => 0,
            Room::Trailer => trailer::BYTES,
            Room::Reserve => usize::from(trailer::reserved_bytes(page_bytes as u32)),
        }
    }

    fn shape(self, page_bytes: usize) -> Shape {
        let reserved_bytes = self.bytes(page_bytes) as u32;
        Shape { page_bytes: page_bytes as u32, page_count: 0, pointer_maps: false, reserved_bytes }
    }

    fn put(self, page: &mut [u8]) {
        let usable = page.len() - self.bytes(page.len());
        let found = Room::FILLS.into_iter().find(|(room, _)| *room == self);
        page[usable..].fill(found.map_or(0, |(_, fill)| fill));
    }
}

/// Every page of one committed state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// In bytes; 0 without a page.
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

    /// Whether SQLite cannot tell them apart.
    pub fn same(&self, other: &State) -> bool {
        let pages = self.pages.iter().zip(&other.pages);
        self.page_bytes == other.page_bytes
            && self.count() == other.count()
            && (1..).zip(pages).all(|(number, (a, b))| Arc::ptr_eq(a, b) || same(number, a, b))
    }

    /// Number of pages.
    pub fn count(&self) -> u32 {
        self.pages.len() as u32
    }

    /// All pages, concatenated.
    pub fn flat(&self) -> Vec<u8> {
        self.pages.iter().flat_map(|page| page.iter().copied()).collect()
    }
}

/// Core assigns these fields of page 1 (and SQLite's version beside the second).
pub const ASSIGNED: [std::ops::Range<usize>; 2] = [24..28, 92..100];

/// Whether `read` is `page`, except core's counters on page 1.
pub fn same(number: u32, read: &[u8], page: &[u8]) -> bool {
    if Room::of(page).b_trees() && read.len() == page.len() {
        let mut read = read.to_vec();
        if number == 1 {
            ASSIGNED.into_iter().for_each(|range| read[range.clone()].copy_from_slice(&page[range]));
        }
        return Room::of(page).shape(page.len()).same(PageNo(number), &read, page);
    }
    if number != 1 {
        return read == page;
    }
    let [a, b] = ASSIGNED;
    read.len() == page.len()
        && read[..a.start] == page[..a.start]
        && read[a.end..b.start] == page[a.end..b.start]
        && read[b.end..] == page[b.end..]
}

/// A transaction's change of a state.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The state afterwards.
    pub next: Arc<State>,
    /// Pages to write, in order. Pages of `next` that are neither here nor in the base are zeros
    /// that SQLite never writes.
    pub writes: Vec<u32>,
    /// Pages that spilled before the transaction cut them off.
    pub lost: Vec<u32>,
}

/// The kind of a history's transactions.
#[derive(Clone, Copy, Debug)]
pub struct Taste {
    /// Page size of new databases, in bytes.
    pub page_bytes: usize,
    /// Pages that no transaction grows the database beyond.
    pub pages_max: usize,
    /// Pages of a big transaction.
    pub big: usize,
    /// Reserved bytes of new databases.
    pub room: Room,
}

impl Plan {
    /// Draws a transaction.
    pub fn draw(base: &State, taste: Taste, rng: &mut SplitMix64) -> Plan {
        let size = if base.pages.is_empty() { taste.page_bytes } else { base.page_bytes };
        let b_trees = taste.room.b_trees();
        let fresh =
            |size, rng: &mut SplitMix64| if b_trees { node(taste.room, size, 0, rng) } else { fresh(size, rng) };
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
            *page = if b_trees { edited_node(number, page, rng) } else { edited(number, page, rng) };
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
                        let mut zeros = vec![0; size];
                        taste.room.put(&mut zeros);
                        next.pages.push(zeros.into());
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
        let first =
            if b_trees && base.pages.is_empty() { node(taste.room, size, 100, rng) } else { next.pages[0].clone() };
        next.pages[0] = with_header(&first, size, next.count());
        Plan { next: Arc::new(next), writes, lost }
    }

    /// A transaction that changes only page 1's header.
    pub fn nothing(base: &Arc<State>) -> Plan {
        Plan { next: base.clone(), writes: vec![1], lost: Vec::new() }
    }

    /// The same content in other pages, as after a VACUUM.
    pub fn resized(base: &State, page_bytes: usize, rng: &mut SplitMix64) -> Plan {
        let count = base.bytes().div_ceil(page_bytes).max(1);
        let room = base.pages.first().map_or(Room::No, |page| Room::of(page));
        let fresh = |n, rng: &mut SplitMix64| match (room.b_trees(), n) {
            (true, 0) => node(room, page_bytes, 100, rng),
            (true, _) => node(room, page_bytes, 0, rng),
            (false, _) => fresh(page_bytes, rng),
        };
        let mut next = State { page_bytes, pages: (0..count).map(|n| fresh(n, rng)).collect() };
        next.pages[0] = with_header(&next.pages[0], page_bytes, count as u32);
        Plan { next: Arc::new(next), writes: Vec::new(), lost: Vec::new() }
    }
}

/// Bytes at the front and at the end, as in a b-tree page.
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

/// The pager sets the counters on disk; here they are zero.
fn with_header(page: &[u8], page_bytes: usize, count: u32) -> Arc<[u8]> {
    let mut page = page.to_vec();
    page[..100].fill(0);
    put(&mut page, 0, at::MAGIC);
    let size = u16::try_from(page_bytes).unwrap_or(1);
    put(&mut page, at::PAGE_SIZE, &size.to_be_bytes());
    let reserved = Room::of(&page).bytes(page_bytes) as u8;
    put(&mut page, at::WRITE_VERSION, &[1, 1, reserved, 64, 32, 32]);
    put(&mut page, at::PAGE_COUNT, &count.to_be_bytes());
    put(&mut page, 44, &4u32.to_be_bytes());
    put(&mut page, 56, &1u32.to_be_bytes());
    page.into()
}

/// A b-tree page with its header at `at`; now and then another page.
fn node(room: Room, size: usize, at: usize, rng: &mut SplitMix64) -> Arc<[u8]> {
    let mut page = vec![0; size];
    let usable = size - room.bytes(size);
    room.put(&mut page);
    if at == 0 && rng.below(6) == 0 {
        let from = 4 + rng.below(usable - 4);
        fill(&mut page[1..4], rng);
        fill(&mut page[from..usable], rng);
        return page.into();
    }
    page[at] = [2, 5, 10, 13][rng.below(4)];
    put(&mut page, at + 5, &(usable as u16).to_be_bytes());
    let number = if at == 0 { 2 } else { 1 };
    for _ in 0..rng.below(12) {
        edit_node(number, &mut page, 0, rng);
    }
    page.into()
}

fn edited_node(number: u32, page: &[u8], rng: &mut SplitMix64) -> Arc<[u8]> {
    if number > 1 && rng.below(16) == 0 {
        return node(Room::of(page), page.len(), 0, rng);
    }
    let mut page = page.to_vec();
    for _ in 0..1 + rng.below(3) {
        let kind = rng.below(6);
        edit_node(number, &mut page, kind, rng);
    }
    page.into()
}

/// On pages of other kinds, only overwrites content. With a reserve it also chains free blocks.
fn edit_node(number: u32, page: &mut [u8], kind: usize, rng: &mut SplitMix64) {
    let room = Room::of(page);
    let usable = page.len() - room.bytes(page.len());
    let Some(node) = room.shape(page.len()).node(PageNo(number), page) else {
        let from = 4 + rng.below(usable - 4);
        let end = (from + 1 + rng.below(40)).min(usable);
        return fill(&mut page[from..end], rng);
    };
    let cells = node.pointers.len() / 2;
    let (head, pointers) = (node.header_at, node.pointers);
    let bytes = 1 + rng.below(page.len() / 12);
    match kind {
        0..3 if pointers.end + 2 + bytes <= node.content_at => {
            let content_at = node.content_at - bytes;
            fill(&mut page[content_at..node.content_at], rng);
            let to = pointers.start + 2 * rng.below(cells + 1);
            page.copy_within(to..pointers.end, to + 2);
            put(page, to, &(content_at as u16).to_be_bytes());
            put(page, head + 3, &(cells as u16 + 1).to_be_bytes());
            put(page, head + 5, &(content_at as u16).to_be_bytes());
        }
        3 if cells > 0 => {
            let from = pointers.start + 2 * rng.below(cells);
            page.copy_within(from + 2..pointers.end, from);
            put(page, head + 3, &(cells as u16 - 1).to_be_bytes());
            let content_at = (node.content_at + rng.below(bytes)).min(usable);
            put(page, head + 5, &(content_at as u16).to_be_bytes());
        }
        5 if room == Room::Reserve => {
            let (mut before, mut from) = (head + 1, node.content_at + rng.below(page.len() / 8));
            put(page, before, &[0, 0]);
            for _ in 0..1 + rng.below(4) {
                let size = 4 + rng.below(page.len() / 8);
                if from + size > usable {
                    break;
                }
                page[from..from + size].fill(0);
                put(page, from + 2, &(size as u16).to_be_bytes());
                put(page, before, &(from as u16).to_be_bytes());
                (before, from) = (from, from + size + 4 + rng.below(60));
            }
        }
        _ => {
            let from = node.content_at + rng.below(usable - node.content_at + 1);
            let end = (from + 1 + rng.below(40)).min(usable);
            fill(&mut page[from.min(end)..end], rng);
        }
    }
}
