//! The SQLite database header, and the mark that keeps stock SQLite out.

#![deny(clippy::indexing_slicing, clippy::unwrap_used, clippy::expect_used)]

use crate::base::layout::{be_u16, be_u32, home as at, le_u32, le_u64, put, trailer};
use crate::base::types::Tid;

/// The first bytes of page 1.
pub type DatabaseHeader = [u8; at::HEADER_BYTES];

/// The kind of file that home is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    /// No bytes yet.
    Empty,
    /// With a rollback journal: onewrite commits to it.
    Database,
    /// In WAL mode: passed through.
    Wal,
    /// It is no database, or shorter than stated; SQLite reports it.
    Foreign,
}

/// A mark's fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HomeMark {
    /// As in slots.
    pub session: u64,
    /// Newest transaction with pages at home; 0: unknown (schemes without checkpoints).
    pub tid: Tid,
    /// The newest one that is, with all before, wholly at home; below `tid` during a checkpoint.
    pub whole: Tid,
    /// Number of the streamed pages of the next transaction that are behind home's end, if not 0;
    /// `whole` is `tid` then.
    pub streamed: u32,
    /// The slot may not be durable yet, and nothing else of the session is (rule
    /// SlotWithFirstRecord).
    pub tentative: bool,
}

/// The session may have left nothing in the log.
const TENTATIVE: u32 = 1;
/// The number above the flags is that of streamed pages, else how far `whole` is behind.
const STREAMED: u32 = 2;
const NUMBER_SHIFT: u32 = 2;
/// The greatest number.
pub const NUMBER_MAX: u32 = u32::MAX >> NUMBER_SHIFT;

impl HomeMark {
    /// With a durable slot and complete checkpoints.
    pub fn new(session: u64, tid: Tid) -> HomeMark {
        HomeMark { session, tid, whole: tid, streamed: 0, tentative: false }
    }

    /// From [`at::SESSION`] on.
    pub fn encode(&self) -> [u8; at::MARK_BYTES] {
        let mut b = [0; at::MARK_BYTES];
        put(&mut b, 0, &self.session.to_le_bytes());
        put(&mut b, at::TID - at::SESSION, &self.tid.0.to_le_bytes());
        let number = match self.streamed {
            0 => self.tid.0.saturating_sub(self.whole.0).min(NUMBER_MAX.into()) as u32,
            streamed => streamed.min(NUMBER_MAX),
        };
        let flags = if self.tentative { TENTATIVE } else { 0 } | if self.streamed > 0 { STREAMED } else { 0 };
        let flags = flags | number << NUMBER_SHIFT;
        put(&mut b, at::FLAGS - at::SESSION, &flags.to_le_bytes());
        b
    }
}

/// A state that a snapshot can pin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    /// [`Tid::HOME`]: home at attach.
    pub tid: Tid,
    /// File kind.
    pub kind: FileKind,
    /// In bytes; 0 while empty.
    pub page_bytes: u32,
    /// In pages.
    pub page_count: u32,
    /// Change counter.
    pub change_counter: u32,
    /// For connections: without the mark.
    pub header: DatabaseHeader,
}

impl State {
    /// A database without a page.
    pub fn empty(tid: Tid) -> State {
        State {
            tid,
            kind: FileKind::Empty,
            page_bytes: 0,
            page_count: 0,
            change_counter: 0,
            header: [0; at::HEADER_BYTES],
        }
    }

    /// The state of a marked home.
    pub fn without_mark(mut first: DatabaseHeader, bytes: u64) -> State {
        let counter = be_u32(&first, at::CHANGE_COUNTER).unwrap_or(0);
        unmark(&mut first);
        // The marked header is one ahead (format.md, home).
        put_counter(&mut first, counter.wrapping_sub(1));
        State::of_home(&first, bytes)
    }

    /// The state of an unmarked home.
    pub fn of_home(first: &[u8], file_bytes: u64) -> State {
        if file_bytes <= at::HEADER_BYTES as u64 && is_cut_short(first) {
            return State::empty(Tid::HOME);
        }
        let Some(header) = first.get(..at::HEADER_BYTES).and_then(|h| DatabaseHeader::try_from(h).ok()) else {
            let mut state = State::empty(Tid::HOME);
            if file_bytes > 0 {
                state.kind = FileKind::Foreign;
            }
            return state;
        };
        let mut state = State::empty(Tid::HOME);
        state.header = header;
        let page_bytes = page_bytes(&header);
        let version = |i| header.get(i).copied().unwrap_or(0);
        let (write, read) = (version(at::WRITE_VERSION), version(at::READ_VERSION));
        let Some(page_bytes) = page_bytes.filter(|_| header.starts_with(at::MAGIC)) else {
            state.kind = FileKind::Foreign;
            return state;
        };
        state.page_bytes = page_bytes;
        state.kind = match (write, read) {
            (1 | ASKED, 1) => FileKind::Database,
            (_, WAL) => FileKind::Wal,
            _ => FileKind::Foreign,
        };
        let counter = be_u32(&header, at::CHANGE_COUNTER).unwrap_or(0);
        let said = be_u32(&header, at::PAGE_COUNT).unwrap_or(0);
        let by_size = u32::try_from(file_bytes / u64::from(page_bytes)).unwrap_or(u32::MAX);
        state.page_count = if states_its_size(&header) { said } else { by_size.max(1) };
        state.change_counter = counter;
        if state.kind == FileKind::Database && by_size < state.page_count {
            // SQLite must see the real length.
            state.kind = FileKind::Foreign;
        }
        if state.kind == FileKind::Database {
            state.show();
        }
        state
    }

    /// `header`: from page 1, if changed.
    pub fn after(
        &self,
        tid: Tid,
        page_bytes: u32,
        page_count: u32,
        change_counter: u32,
        header: Option<DatabaseHeader>,
    ) -> State {
        let mut state = State {
            tid,
            kind: if page_count == 0 { FileKind::Empty } else { FileKind::Database },
            page_bytes,
            page_count,
            change_counter,
            header: header.unwrap_or(self.header),
        };
        state.show();
        state
    }

    fn show(&mut self) {
        unmark(&mut self.header);
        if mode(&self.header) == Some([ASKED, 1]) {
            put(&mut self.header, at::WRITE_VERSION, &[1]);
        }
        put_counter(&mut self.header, self.change_counter);
        put(&mut self.header, at::PAGE_COUNT, &self.page_count.to_be_bytes());
    }

    /// In bytes.
    pub fn bytes(&self) -> u64 {
        u64::from(self.page_count) * u64::from(self.page_bytes)
    }

    /// Its counter is one ahead, so that stock SQLite drops its cache.
    pub fn marked_header(&self, mark: HomeMark) -> DatabaseHeader {
        let mut h = self.header;
        put(&mut h, at::READ_VERSION, &[at::MARK]);
        put(&mut h, at::SESSION, &mark.encode());
        with_counter(h, self.change_counter.wrapping_add(1))
    }

    /// The same for a home that may have no page yet.
    pub fn marked_or_empty(&self, mark: HomeMark) -> DatabaseHeader {
        match self.kind {
            FileKind::Empty => empty_marked(4096, mark),
            _ => self.marked_header(mark),
        }
    }

    /// Its counter is unlike any that home had while marked, so that stock SQLite drops its cache
    /// (rule OneNumberOneState).
    pub fn final_header(&self) -> DatabaseHeader {
        with_counter(self.header, self.change_counter.wrapping_add(2))
    }
}

/// Whether the marking of an empty file was cut short: its length alone, or a part of that header,
/// for any session. Fewer zeros are no database, as with stock SQLite.
fn is_cut_short(first: &[u8]) -> bool {
    let whole = empty_marked(4096, HomeMark::new(0, Tid(0)));
    let mark = at::SESSION..at::SESSION + at::MARK_BYTES;
    let may_differ = |n: usize, byte| mark.contains(&n) || (n == at::WRITE_VERSION && byte == ASKED);
    let begins = first.iter().zip(&whole).enumerate().all(|(at, (a, b))| a == b || may_differ(at, *a));
    (first.len() == at::HEADER_BYTES && first.iter().all(|b| *b == 0)) || (first.len() <= whole.len() && begins)
}

fn with_counter(mut h: DatabaseHeader, counter: u32) -> DatabaseHeader {
    put_counter(&mut h, counter);
    h
}

/// The header's page count then holds for that counter.
pub fn put_counter(header: &mut [u8], counter: u32) {
    for field in [at::CHANGE_COUNTER, at::VERSION_VALID_FOR] {
        put(header, field, &counter.to_be_bytes());
    }
}

/// `None` unless valid.
pub fn page_bytes(header: &[u8]) -> Option<u32> {
    let size = match be_u16(header, at::PAGE_SIZE)? {
        1 => 65536,
        n => u32::from(n),
    };
    (size.is_power_of_two() && size >= 512).then_some(size)
}

/// In the header.
pub fn page_count(header: &[u8]) -> Option<u32> {
    be_u32(header, at::PAGE_COUNT)
}

/// SQLite before 3.7.0 left the page count stale.
fn states_its_size(first: &[u8]) -> bool {
    let valid_for = be_u32(first, at::VERSION_VALID_FOR);
    first.starts_with(at::MAGIC)
        && first.len() >= at::HEADER_BYTES
        && page_count(first).is_some_and(|n| n != 0)
        && be_u32(first, at::CHANGE_COUNTER) == valid_for
}

/// Reserved bytes per page.
pub fn reserved(header: &[u8]) -> Option<u8> {
    header.get(at::RESERVED).copied()
}

/// Reserved bytes that onewrite did not make may have another use; a VACUUM to another page size
/// keeps them.
pub fn has_room(header: &[u8]) -> bool {
    let reserved = reserved(header);
    [512, 1024, 2048, 4096].map(trailer::reserved_bytes).into_iter().any(|ours| reserved == Some(ours))
}

pub fn wants_wal(header: &[u8]) -> bool {
    header.get(at::WRITE_VERSION) == Some(&ASKED) || header.get(at::READ_VERSION) == Some(&WAL)
}

/// [`at::WRITE_VERSION`] of a database that was asked for WAL mode, in whichever mode it is.
const ASKED: u8 = 2;
/// [`at::READ_VERSION`] of a file in WAL mode.
const WAL: u8 = 2;

fn mode(header: &[u8]) -> Option<[u8; 2]> {
    header.get(at::WRITE_VERSION..=at::READ_VERSION)?.try_into().ok()
}

/// Whether WAL mode was asked for, of a home that may carry the mark.
pub fn asks_for_wal(header: &[u8]) -> bool {
    matches!(mode(header), Some([ASKED, 1 | WAL | at::MARK])) && header.starts_with(at::MAGIC)
}

/// Sets whether WAL mode is asked for; the mode stays.
pub fn put_asked(header: &mut [u8], asked: bool) {
    put(header, at::WRITE_VERSION, &[if asked { ASKED } else { 1 }]);
}

/// Takes it out of WAL mode; whether that is asked for stays.
pub fn put_rollback(header: &mut [u8]) {
    put(header, at::READ_VERSION, &[1]);
}

/// Puts a file that was asked to into WAL mode.
pub fn put_wal(header: &mut [u8]) {
    put(header, at::WRITE_VERSION, &[ASKED, WAL]);
}

pub fn has_rollback_journal(header: &[u8]) -> bool {
    header.starts_with(at::MAGIC) && page_bytes(header).is_some() && matches!(mode(header), Some([1 | ASKED, 1]))
}

/// The mark in a header, if it is on.
pub fn mark(header: &[u8]) -> Option<HomeMark> {
    let marked = header.starts_with(at::MAGIC) && header.get(at::READ_VERSION) == Some(&at::MARK);
    let session = le_u64(header, at::SESSION).filter(|_| marked)?;
    // A cut-short header says nothing.
    let (tid, flags) = (le_u64(header, at::TID).unwrap_or(0), le_u32(header, at::FLAGS).unwrap_or(0));
    let number = flags >> NUMBER_SHIFT;
    let (streamed, behind) = if flags & STREAMED != 0 { (number, 0) } else { (0, number) };
    let whole = Tid(tid.saturating_sub(behind.into()));
    Some(HomeMark { session, tid: Tid(tid), whole, streamed, tentative: flags & TENTATIVE != 0 })
}

/// Removes the mark.
pub fn unmark(header: &mut [u8]) {
    if header.get(at::READ_VERSION) == Some(&at::MARK) {
        put(header, at::WRITE_VERSION, &[1, 1]);
        clear_mark_bytes(header);
    }
}

/// SQLite reserves the mark's bytes and has zeros there. Images of page 1 have, too: home loses
/// them with the next mark.
pub fn clear_mark_bytes(header: &mut [u8]) {
    put(header, at::SESSION, &[0; at::MARK_BYTES]);
}

/// Without a page.
pub fn empty_marked(page_bytes: u32, mark: HomeMark) -> DatabaseHeader {
    let mut h = [0; at::HEADER_BYTES];
    put(&mut h, 0, at::MAGIC);
    let size = u16::try_from(page_bytes).unwrap_or(1);
    put(&mut h, at::PAGE_SIZE, &size.to_be_bytes());
    put(&mut h, at::WRITE_VERSION, &[1, at::MARK]);
    put(&mut h, at::SESSION, &mark.encode());
    h
}

/// Counters alone then do not change page 1 (metadata embedding of LS-MVBT).
pub fn embed_counters(new: &mut [u8], counters_of: &[u8]) {
    for field in [at::CHANGE_COUNTER, at::VERSION_VALID_FOR] {
        if let Some(old) = counters_of.get(field..field + 4) {
            put(new, field, old);
        }
    }
}

/// Bytes, from the change counter on, in which images may differ: the counter; the page count; the
/// freelist.
pub const COUNTERS: usize = 4;
pub const PAGE_COUNT: usize = 8;
pub const SIZES: usize = 16;

/// Whether two images of page 1 agree but for counters, and `but` bytes from the change counter on.
pub fn same_header(a: &[u8], b: &[u8], but: usize) -> bool {
    let from = at::CHANGE_COUNTER + but;
    let part = |range: std::ops::Range<usize>| a.get(range.clone()) == b.get(range);
    a.len() == b.len()
        && part(0..at::CHANGE_COUNTER)
        && part(from..at::VERSION_VALID_FOR)
        && part(at::VERSION_VALID_FOR + 4..a.len())
}

/// Sets the header's page count.
pub fn put_page_count(header: &mut [u8], page_count: u32) {
    put(header, at::PAGE_COUNT, &page_count.to_be_bytes());
}

#[cfg(test)]
#[allow(clippy::indexing_slicing, clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn header() -> DatabaseHeader {
        let mut h = [0; 100];
        put(&mut h, 0, at::MAGIC);
        put(&mut h, at::PAGE_SIZE, &4096u16.to_be_bytes());
        put(&mut h, at::WRITE_VERSION, &[1, 1]);
        put(&mut h, at::CHANGE_COUNTER, &7u32.to_be_bytes());
        put(&mut h, at::VERSION_VALID_FOR, &7u32.to_be_bytes());
        put(&mut h, at::PAGE_COUNT, &3u32.to_be_bytes());
        h
    }

    #[test]
    fn a_mark_comes_off_without_a_trace_and_each_header_on_home_has_another_counter() {
        let state = State::of_home(&header(), 3 * 4096);
        assert_eq!((state.kind, state.page_count, state.change_counter), (FileKind::Database, 3, 7));
        let on = HomeMark { whole: Tid(90), tentative: true, ..HomeMark::new(99, Tid(98)) };
        let mut marked = state.marked_header(on);
        assert_eq!(mark(&marked), Some(on));
        for streamed in [1, NUMBER_MAX] {
            let on = HomeMark { streamed, ..HomeMark::new(99, Tid(98)) };
            assert_eq!(mark(&state.marked_header(on)), Some(on));
        }
        assert_ne!(marked[24..28], state.header[24..28]);
        assert_ne!(marked[24..28], state.final_header()[24..28]);
        unmark(&mut marked);
        embed_counters(&mut marked, &header());
        assert_eq!(marked, header());
    }

    #[test]
    fn a_stale_size_gives_way_to_the_size_of_the_file() {
        let mut h = header();
        h[92] ^= 1;
        assert_eq!(State::of_home(&h, 9 * 4096).page_count, 9);
        assert_eq!(page_count(&State::of_home(&h, 9 * 4096).header), Some(9));
    }

    #[test]
    fn files_are_told_apart() {
        let kind = |h: &[u8], n| State::of_home(h, n).kind;
        assert_eq!(kind(&[], 0), FileKind::Empty);
        assert_eq!(kind(&[1, 2, 3], 3), FileKind::Foreign);
        assert_eq!(kind(&[0; 100], 4096), FileKind::Foreign);
        assert_eq!(kind(&[0; 100], 100), FileKind::Empty);
        assert_eq!(kind(&empty_marked(4096, HomeMark::new(7, Tid(6)))[..50], 50), FileKind::Empty);
        let mut wal = header();
        wal[18] = 2;
        wal[19] = 2;
        assert_eq!(kind(&wal, 4096), FileKind::Wal);
        let mut odd = header();
        odd[16] = 3;
        assert_eq!(kind(&odd, 4096), FileKind::Foreign);
    }

    proptest! {
    #[test]
    fn no_header_panics(h in proptest::collection::vec(any::<u8>(), 0..120), n: u64) {
    let state = State::of_home(&h, n);
    let mark = HomeMark::new(1, Tid(1));
    let _ = (state.marked_header(mark), state.final_header(), state.bytes());
    }
    }
}
