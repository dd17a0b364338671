//! Every offset and size of every format; `docs/format.md` has the same as text.
//!
//! The log is little-endian, the SQLite header big-endian (SQLite file format, section 1.3).
//! [`le_u32`] and its kin answer `None` past the end (invariant I6).

#![deny(clippy::indexing_slicing, clippy::unwrap_used, clippy::expect_used, clippy::arithmetic_side_effects)]

/// Suffix of the log.
pub const LOG_SUFFIX: &str = "-onewrite";
/// Suffix of kept images.
pub const KEPT_SUFFIX: &str = "-onewrite-kept";
/// Of the file with slots for the processes that find none in the log, with the session.
pub const SLOTS_SUFFIX: &str = "-onewrite-slots";
/// Suffix of the rollback journal.
pub const JOURNAL_SUFFIX: &str = "-journal";

/// Suffix of the file which says that commits wait for the store.
pub const SYNC_SUFFIX: &str = "-onewrite-sync";

/// Suffix of a scheme's second file.
pub const SECOND_SUFFIX: &str = "-onewrite-shadow";

/// Longest file name in bytes.
pub const NAME_BYTES_MAX: usize = 255;
/// Bytes kept of a longer name, so that every suffix fits.
pub const SHORT_NAME_BYTES: usize = 200;

/// Smallest block; large atomic units need larger ones.
pub const BLOCK_BYTES_MIN: u32 = 4096;
/// Largest block.
pub const BLOCK_BYTES_MAX: u32 = 65536;
/// Length of a new log, and of the longest beside a closed database.
pub const SMALL_LOG_BYTES: u64 = 64 << 10;
/// The same for large blocks: two slots, shared memory, the smallest ring.
pub const SMALL_LOG_BLOCKS: u64 = 7;
/// Unit of the positions of streamed images, in bytes.
pub const STREAM_UNIT: u64 = 512;
/// No device tears a sector of this size.
pub const SECTOR_BYTES: usize = STREAM_UNIT as usize;

/// Block 0 of the log.
pub mod shared {
    /// Inode of the log's last home, u64; 0: unknown.
    pub const AT_HOME_FILE: usize = 3968;
    /// Stamp of the names' last flush, four u64; zeros: unknown.
    pub const AT_NAMES: usize = 3976;
    /// The log's seal, two u64; zeros: never closed; all ones: the file system makes none.
    pub const AT_SEAL: usize = 4008;
}

/// Shared words in block 0 of the log, by number: 64 bits each.
#[allow(missing_docs)]
pub mod words {
    /// Attached at once.
    pub const PROCESSES: usize = 1024;
    /// Slots in block 0, and in each block of the file of further slots.
    pub const SLOTS_HERE: usize = 38;
    pub const SLOTS_A_BLOCK: usize = 56;
    pub const MORE_BLOCKS: usize = (PROCESSES - SLOTS_HERE).div_ceil(SLOTS_A_BLOCK);

    pub const MAGIC: u64 = u64::from_le_bytes(*b"onewritC");

    pub const AT_MAGIC: usize = 0;
    pub const AT_SESSION: usize = 1;
    pub const AT_SETTINGS: usize = 2;
    /// In AT_SETTINGS.
    pub const PSOW: u64 = 1;
    pub const AT_POISON: usize = 3;
    /// In AT_POISON, as the next.
    pub const FAILED: u64 = 1;
    pub const OVERWRITTEN: u64 = 2;
    pub const AT_GENERATION: usize = 4;
    pub const AT_HOME_FLOOR: usize = 5;
    pub const AT_KEPT: usize = 6;
    pub const AT_KEPT_UNTIL: usize = 7;
    pub const AT_EPOCH: usize = 8;
    pub const AT_ALONE: usize = 9;
    /// In AT_ALONE: another log.
    pub const REPLACED: u64 = u64::MAX;
    pub const AT_UNTOLD: usize = 10;
    pub const AT_START: usize = 11;
    pub const AT_MADE: usize = 12;
    pub const AT_STAYED: usize = 13;
    pub const AT_MORE: usize = 14;
    pub const AT_MORE_MADE: usize = 15;
    pub const AT_TURN: usize = 16;
    pub const AT_TURNS: usize = 17;
    pub const AT_CLEARING: usize = 18;
    pub const AT_LOOKED: usize = 19;
    /// Whether explicit transactions usually write.
    pub const AT_TENDS: usize = 20;
    pub const AT_VISIBLE: usize = 24;
    pub const AT_FLUSHED: usize = 25;
    pub const AT_WRITTEN: usize = 26;
    pub const AT_WANTED: usize = 27;
    pub const AT_FLUSHER: usize = 28;
    /// The newest TID that the flush under way covers, or else the last one; in bit 0 its bell.
    pub const AT_FLUSHING: usize = 29;
    pub const AT_GATHERER: usize = 30;
    pub const AT_FLUSH_ENDED: usize = 31;
    pub const AT_FLUSH_US: usize = 32;
    pub const AT_SHIP: usize = 40;
    pub const AT_SHIPPED: usize = 41;
    pub const AT_SHIP_MS: usize = 42;
    pub const AT_SHIP_LATE: usize = 43;
    pub const AT_SHIPPER: usize = 44;
    /// The shorts behind the bells: for flushes in turn, for what others show, for the shipper.
    pub const FLUSH_BELLS: usize = SLOTS_HERE;
    pub const SHOWN_BELL: usize = FLUSH_BELLS + 2;
    pub const SHIP_BELL: usize = SHOWN_BELL + 1;
    /// And a short for each process; in the file of further slots it lies behind the bells.
    pub const SNAPSHOT_SINCE: usize = SHIP_BELL + 1;
    /// A bit for each process.
    pub const BIT_WORDS: usize = PROCESSES / 64;
    pub const AT_USED: usize = 64;
    pub const AT_WANTING: usize = AT_USED + BIT_WORDS;
    pub const AT_AWAITING: usize = AT_WANTING + BIT_WORDS;
    pub const AT_COVERED: usize = AT_AWAITING + BIT_WORDS;
    pub const AT_PINNING: usize = AT_COVERED + BIT_WORDS;
    /// One cache line per process.
    pub const AT_SLOTS: usize = AT_PINNING + BIT_WORDS;
    pub const SLOT_WORDS: usize = 8;
    /// Within a slot: its process, pinned snapshots, the oldest of those without a word of their
    /// own.
    pub const IN_SLOT_TAG: usize = 0;
    pub const IN_SLOT_PINS: usize = 1;
    /// Snapshots of a process with a word of their own.
    pub const PINS: usize = 6;
    pub const IN_SLOT_FLOOR: usize = IN_SLOT_PINS + PINS;
}

/// Locked bytes, behind all that a log holds: Windows refuses to read and write locked ones.
#[allow(missing_docs)]
pub mod lock_bytes {
    use super::words::PROCESSES;

    /// Shared by attached processes, exclusive by one that is alone.
    pub const ATTACH: u64 = 1 << 60;
    /// Exclusive while a process attaches or leaves.
    pub const ADMIN: u64 = ATTACH + 1;
    pub const SLOTS: u64 = ATTACH + 2;
    pub const BYTES: u64 = 2 + PROCESSES as u64;
    /// Shared by attached observers.
    pub const LET_IN: u64 = ATTACH + BYTES;
    /// An observer's [`Tid::HOME`](crate::base::types::Tid::HOME); later TIDs follow.
    pub const OBSERVED: u64 = 1 << 61;
    pub const OBSERVED_BYTES: u64 = 1 << 62;
}

/// The SQLite database header (SQLite file format, section 1.3).
pub mod home {
    /// In bytes.
    pub const HEADER_BYTES: usize = 100;
    /// First bytes of the file.
    pub const MAGIC: &[u8; 16] = b"SQLite format 3\0";
    /// Page size, u16; 1 stands for 65536.
    pub const PAGE_SIZE: usize = 16;
    /// File format write version: 1 rollback journal, 2 WAL.
    pub const WRITE_VERSION: usize = 18;
    /// File format read version: 1, 2, or [`MARK`].
    pub const READ_VERSION: usize = 19;
    /// Reserved bytes per page.
    pub const RESERVED: usize = 20;
    /// File change counter, u32.
    pub const CHANGE_COUNTER: usize = 24;
    /// Bytes from [`CHANGE_COUNTER`] on by which SQLite knows whether its cache is current
    /// (`sqlite3PagerSharedLock`).
    pub const VERSION_BYTES: usize = 16;
    /// Database size in pages, u32.
    pub const PAGE_COUNT: usize = 28;
    /// Reserved for expansion: session id, u64; unmarked: zeros.
    pub const SESSION: usize = 72;
    /// While marked: the newest checkpoint's TID, u64; 0: unknown.
    pub const TID: usize = SESSION + 8;
    /// While marked, u32: bit 0 while the log may be empty. Above bit 1: if that is set, the number
    /// of streamed pages, else how many TIDs up to [`TID`] may have pages that are not at home.
    pub const FLAGS: usize = TID + 8;
    /// Bytes of the mark from [`SESSION`] on: all that SQLite reserves.
    pub const MARK_BYTES: usize = FLAGS + 4 - SESSION;
    const _: () = assert!(SESSION + MARK_BYTES == VERSION_VALID_FOR);
    /// Change counter of [`PAGE_COUNT`], u32.
    pub const VERSION_VALID_FOR: usize = 92;
    /// Read version of a database in use: stock SQLite answers NOTADB.
    pub const MARK: u8 = 87;
}

/// SQLite's own WAL (SQLite file format, section 4), big-endian.
#[allow(missing_docs)]
pub mod wal {
    pub const SUFFIX: &str = "-wal";
    pub const INDEX_SUFFIX: &str = "-shm";
    /// The lowest bit is 1 if checksums are big-endian.
    pub const MAGIC: u32 = 0x377f_0682;
    pub const VERSION: u32 = 3_007_000;
    pub const AT_MAGIC: usize = 0;
    pub const AT_VERSION: usize = AT_MAGIC + 4;
    pub const AT_PAGE_BYTES: usize = AT_VERSION + 4;
    pub const AT_CHECKPOINT: usize = AT_PAGE_BYTES + 4;
    pub const AT_SALT: usize = AT_CHECKPOINT + 4;
    pub const SALT_BYTES: usize = 8;
    pub const AT_CHECKSUM: usize = AT_SALT + SALT_BYTES;
    /// Frames follow: head, page.
    pub const HEADER_BYTES: usize = AT_CHECKSUM + 8;
    pub const AT_FRAME_PAGE: usize = 0;
    /// Database size behind a transaction's last frame; else 0.
    pub const AT_FRAME_COMMIT: usize = AT_FRAME_PAGE + 4;
    pub const AT_FRAME_SALT: usize = AT_FRAME_COMMIT + 4;
    pub const AT_FRAME_CHECKSUM: usize = AT_FRAME_SALT + SALT_BYTES;
    pub const FRAME_HEAD_BYTES: usize = AT_FRAME_CHECKSUM + 8;
    const _: () = assert!(HEADER_BYTES == 32 && FRAME_HEAD_BYTES == 24);
}

/// A header slot (blocks 1 and 2, in turn), as in `docs/format.md`.
#[allow(missing_docs)]
pub mod slot {
    /// Block 0 and two slots.
    pub const BLOCKS_BEFORE_RING: u64 = 3;
    pub const MAGIC: u64 = u64::from_le_bytes(*b"onewrite");
    pub const VERSION: u32 = 5;
    pub const AT_MAGIC: usize = 0;
    pub const AT_VERSION: usize = AT_MAGIC + 8;
    pub const AT_BLOCK_BYTES: usize = AT_VERSION + 4;
    pub const AT_SEQUENCE: usize = AT_BLOCK_BYTES + 4;
    pub const AT_SESSION: usize = AT_SEQUENCE + 8;
    pub const AT_SALT: usize = AT_SESSION + 8;
    pub const AT_START: usize = AT_SALT + 8;
    pub const AT_RING_BYTES: usize = AT_START + 8;
    pub const AT_BASE_TID: usize = AT_RING_BYTES + 8;
    pub const AT_TID_CEILING: usize = AT_BASE_TID + 8;
    pub const AT_PREV_CRC: usize = AT_TID_CEILING + 8;
    pub const AT_PAGE_BYTES: usize = AT_PREV_CRC + 4;
    pub const AT_PAGE_COUNT: usize = AT_PAGE_BYTES + 4;
    pub const AT_CHANGE_COUNTER: usize = AT_PAGE_COUNT + 4;
    pub const AT_COUNTER_CEILING: usize = AT_CHANGE_COUNTER + 4;
    pub const AT_STATE: usize = AT_COUNTER_CEILING + 4;
    pub const AT_CRC: usize = AT_STATE + 4;
    /// Page count of a scheme in place: home's header has it.
    pub const PAGE_COUNT_IN_HOME: u32 = u32::MAX;
    pub const BYTES: usize = AT_CRC + 4;
    /// Empty; home is complete and unmarked.
    pub const STATE_CLEAN: u32 = 0;
    pub const STATE_LIVE: u32 = 1;
    /// As live, but pages may be written in place without a record.
    pub const STATE_LIVE_IN_PLACE: u32 = 2;
    const _: () = assert!(BYTES == 100 && BYTES <= super::STREAM_UNIT as usize, "a slot fits the smallest sector");
}

/// A decision over several files, in a slot's block (`docs/format.md`).
#[allow(missing_docs)]
pub mod decision {
    pub const MAGIC: u64 = u64::from_le_bytes(*b"onewdec1");
    /// Unit of position and length.
    pub use super::SECTOR_BYTES;
    /// Sectors for decisions behind each slot.
    pub const SECTORS: usize = super::BLOCK_BYTES_MIN as usize / SECTOR_BYTES - 1;
    pub const AT_MAGIC: usize = 0;
    pub const AT_TOKEN: usize = AT_MAGIC + 8;
    pub const AT_FLAGS: usize = AT_TOKEN + 8;
    pub const AT_COUNT: usize = AT_FLAGS + 4;
    pub const AT_LEN: usize = AT_COUNT + 4;
    /// Per file: session u64, TID u64, path length u16, path. Then the checksum.
    pub const AT_FILES: usize = AT_LEN + 4;
    pub const FILE_BYTES: usize = 8 + 8 + 2;
    pub const CRC_BYTES: usize = 4;
    /// Flag: flushed in every file.
    pub const FLUSHED: u32 = 1;
}

/// A record (`docs/format.md`).
#[allow(missing_docs)]
pub mod record {
    pub const AT_SALT: usize = 0;
    pub const AT_TID: usize = AT_SALT + 8;
    pub const AT_DURABLE_TID: usize = AT_TID + 8;
    pub const AT_PREV_CRC: usize = AT_DURABLE_TID + 8;
    pub const AT_LEN: usize = AT_PREV_CRC + 4;
    pub const AT_PAGE_COUNT: usize = AT_LEN + 4;
    pub const AT_CHANGE_COUNTER: usize = AT_PAGE_COUNT + 4;
    /// Entries follow, each with its kind first, then zeros.
    pub const HEADER_BYTES: usize = AT_CHANGE_COUNTER + 4;
    pub const CRC_BYTES: usize = 4;
    /// Alignment of a record's start and length.
    pub const ALIGN: usize = 8;
    /// Pieces over the previous image: length u16, page, pieces.
    pub const KIND_DELTA: u8 = 1;
    /// Pieces over zeros, as the page was beyond the database's end.
    pub const KIND_FRESH: u8 = 2;
    /// Whole images, aligned to blocks: count u16, padding u32, pages.
    pub const KIND_FRAMES: u8 = 3;
    /// Length u16, token u64, session u64, path of a database.
    pub const KIND_DECIDER: u8 = 4;
    /// Streamed images: count, position and crc32c of their index, number of those at home, each
    /// u32.
    pub const KIND_STREAM: u8 = 5;
    /// Before pages, images or a path: kind, a number u16, and padding or a page number.
    pub const ENTRY_HEAD_BYTES_MAX: usize = 3 + 5;
    pub const STREAM_BYTES: usize = 16;
    /// Page, position, crc32c, each u32.
    pub const STREAM_ITEM_BYTES: usize = 12;
    /// The lowest bits of a piece's length are its kind.
    pub const PIECE_BITS: u32 = 2;
    pub const PIECE_BYTES: u32 = 0;
    pub const PIECE_ZEROS: u32 = 1;
    /// Numbers of 16 bits, big-endian: the smallest, a step, counts of steps.
    pub const PIECE_NUMBERS: u32 = 2;
    /// Smallest u16, step u16, bits per count u8.
    pub const NUMBERS_HEAD_BYTES: usize = 5;
    pub const AT_DECIDER_TOKEN: usize = 0;
    pub const AT_DECIDER_SESSION: usize = AT_DECIDER_TOKEN + 8;
    pub const AT_DECIDER_PATH: usize = AT_DECIDER_SESSION + 8;
    pub const DECIDER_BYTES_MAX: usize = 4096;
    const _: () = assert!(HEADER_BYTES == 40);
}

/// A page's trailer (in-page schemes).
#[allow(missing_docs)]
pub mod trailer {
    pub const AT_TID: usize = 0;
    pub const AT_SESSION: usize = AT_TID + 8;
    pub const AT_CRC: usize = AT_SESSION + 8;
    pub const AT_TX_PAGES: usize = AT_CRC + 4;
    pub const AT_CHANGE_COUNTER: usize = AT_TX_PAGES + 4;
    pub const AT_UNDO_AT: usize = AT_CHANGE_COUNTER + 4;
    pub const AT_UNDO_LEN: usize = AT_UNDO_AT + 2;
    pub const BYTES: usize = AT_UNDO_LEN + 2;
    const _: () = assert!(BYTES == 32);

    /// Reserved bytes of a new database: the trailer, and room for undo records.
    pub const fn reserved_bytes(page_bytes: u32) -> u8 {
        match page_bytes / 16 {
            0..=32 => 32,
            n @ 33..248 => n as u8,
            _ => 248,
        }
    }
}

/// An undo record before the trailer, or in a b-tree page's gap.
#[allow(missing_docs)]
pub mod undo {
    pub const AT_TRAILER: usize = 0;
    pub const AT_PREFIX: usize = AT_TRAILER + super::trailer::BYTES;
    pub const AT_SUFFIX: usize = AT_PREFIX + 2;
    pub const AT_MIDDLE: usize = AT_SUFFIX + 2;
    pub const AT_RANGES: usize = AT_MIDDLE + 2;
    pub const AT_HEADER: usize = AT_RANGES + 2;
    /// Bytes kept of the b-tree page header, in its longer form.
    pub const HEADER_BYTES: usize = 12;
    /// Old cell pointers and ranges follow.
    pub const FIXED_BYTES: usize = AT_HEADER + HEADER_BYTES;
    /// Offset u16, length minus one u16.
    pub const RANGE_BYTES: usize = 4;
}

fn bytes_at<const N: usize>(b: &[u8], at: usize) -> Option<[u8; N]> {
    b.get(at..at.checked_add(N)?)?.try_into().ok()
}

/// Little-endian u16.
pub fn le_u16(b: &[u8], at: usize) -> Option<u16> {
    bytes_at(b, at).map(u16::from_le_bytes)
}

/// Little-endian u32.
pub fn le_u32(b: &[u8], at: usize) -> Option<u32> {
    bytes_at(b, at).map(u32::from_le_bytes)
}

/// Little-endian u64.
pub fn le_u64(b: &[u8], at: usize) -> Option<u64> {
    bytes_at(b, at).map(u64::from_le_bytes)
}

/// Big-endian u32.
pub fn be_u32(b: &[u8], at: usize) -> Option<u32> {
    bytes_at(b, at).map(u32::from_be_bytes)
}

/// Big-endian u16.
pub fn be_u16(b: &[u8], at: usize) -> Option<u16> {
    bytes_at(b, at).map(u16::from_be_bytes)
}

/// Writes `field` at `at`; the layouts above all fit.
pub fn put(b: &mut [u8], at: usize, field: &[u8]) {
    if let Some(to) = at.checked_add(field.len()).and_then(|end| b.get_mut(at..end)) {
        to.copy_from_slice(field);
    } else {
        debug_assert!(false, "a field of {} bytes at {at} does not fit", field.len());
    }
}
