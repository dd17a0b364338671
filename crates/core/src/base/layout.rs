//! Every offset and size of every format, in one place; `docs/format.md` tells the same as text.
//!
//! All integers of the log are little-endian; those of the SQLite header are big-endian (SQLite file
//! format, section 1.3). Bytes from files are read through [`le_u32`] and its kin, which answer
//! `None` past the end instead of panicking (invariant I6).

#![deny(clippy::indexing_slicing, clippy::unwrap_used, clippy::expect_used, clippy::arithmetic_side_effects)]

/// The log's name is the database's with this added.
pub const LOG_SUFFIX: &str = "-onewrite";
/// The name of the images kept for readers of other processes is the database's with this added.
pub const KEPT_SUFFIX: &str = "-onewrite-kept";
/// The rollback journal's name is the database's with this added.
pub const JOURNAL_SUFFIX: &str = "-journal";

/// The name of the file that says that commits wait for the store is the database's with this added.
pub const SYNC_SUFFIX: &str = "-onewrite-sync";

/// The name of the second file of a scheme that has two is the database's with this added.
pub const SECOND_SUFFIX: &str = "-onewrite-shadow";

/// Longest name of a file in bytes.
pub const NAME_BYTES_MAX: usize = 255;
/// What is left of a longer one, before the number: with the longest suffix it fits.
pub const SHORT_NAME_BYTES: usize = 200;

/// Smallest block of the log; a device with a larger atomic unit gets blocks of that size.
pub const BLOCK_BYTES_MIN: u32 = 4096;
/// Largest block of the log.
pub const BLOCK_BYTES_MAX: u32 = 65536;
/// A log begins no longer than this, and is no longer beside a closed database.
pub const SMALL_LOG_BYTES: u64 = 64 << 10;
/// The same in blocks, where those are so large that this is more: two slots, the shared memory and the smallest ring.
pub const SMALL_LOG_BLOCKS: u64 = 7;
/// Unit in which positions of streamed images are counted.
pub const STREAM_UNIT: u64 = 512;
/// The smallest sector: no device writes one in part.
pub const SECTOR_BYTES: usize = STREAM_UNIT as usize;

/// Block 0 of the log.
pub mod shared {
    /// Number of the file (inode) that the log was last used for, u64; 0: not known.
    pub const AT_HOME_FILE: usize = 3968;
    /// The names beside the database when they were flushed last, four u64; zeros: not known.
    pub const AT_NAMES: usize = 3976;
    /// The seal of the log, two u64; zeros: it has none.
    pub const AT_SEAL: usize = 4008;
}

/// The words that processes share, in block 0 of the log while they use it, by their number: 64 bits each.
#[allow(missing_docs)]
pub mod words {
    /// How many processes may use one database.
    pub const PROCESSES: usize = 48;

    /// Name and version of the layout.
    pub const MAGIC: u64 = u64::from_le_bytes(*b"onewrit8");

    pub const AT_MAGIC: usize = 0;
    pub const AT_SESSION: usize = 1;
    pub const AT_SETTINGS: usize = 2;
    /// In the settings: the processes share `psow=1`.
    pub const PSOW: u64 = 1;
    pub const AT_POISON: usize = 3;
    /// Poison: a write or flush failed.
    pub const FAILED: u64 = 1;
    /// Poison: home was overwritten.
    pub const OVERWRITTEN: u64 = 2;
    pub const AT_GENERATION: usize = 4;
    pub const AT_HOME_FLOOR: usize = 5;
    pub const AT_KEPT: usize = 6;
    pub const AT_KEPT_UNTIL: usize = 7;
    pub const AT_EPOCH: usize = 8;
    pub const AT_ALONE: usize = 9;
    /// In its place: the database has another log.
    pub const REPLACED: u64 = u64::MAX;
    pub const AT_UNTOLD: usize = 10;
    pub const AT_START: usize = 11;
    pub const AT_MADE: usize = 12;
    pub const AT_STAYED: usize = 13;
    pub const AT_TURN: usize = 16;
    pub const AT_TURNS: usize = 17;
    pub const AT_WANTING: usize = 18;
    pub const AT_VISIBLE: usize = 24;
    pub const AT_FLUSHED: usize = 25;
    pub const AT_WRITTEN: usize = 26;
    pub const AT_WANTED: usize = 27;
    pub const AT_FLUSHER: usize = 28;
    pub const AT_AWAITING: usize = 29;
    pub const AT_COVERED: usize = 30;
    pub const AT_FLUSH_ENDED: usize = 31;
    pub const AT_FLUSH_US: usize = 32;
    pub const AT_SHIP: usize = 40;
    pub const AT_SHIPPED: usize = 41;
    pub const AT_SHIP_MS: usize = 42;
    /// The short that who waits for a flush sleeps on, behind the bells.
    pub const FLUSH_BELL: usize = PROCESSES;
    /// The one that the shipper sleeps on.
    pub const SHIP_BELL: usize = FLUSH_BELL + 1;
    /// The first process slot; each is a cache line.
    pub const AT_SLOTS: usize = 64;
    pub const SLOT_WORDS: usize = 8;
    /// Within a slot: in use or not, snapshots pinned, and the oldest of those that found no word of their own.
    pub const IN_SLOT_USED: usize = 0;
    pub const IN_SLOT_PINS: usize = 1;
    /// Snapshots of one process that have a word of their own.
    pub const PINS: usize = 6;
    pub const IN_SLOT_FLOOR: usize = IN_SLOT_PINS + PINS;
}

/// Bytes of block 0 of the log that are locked; what they hold does not matter.
#[allow(missing_docs)]
pub mod lock_bytes {
    use super::words::PROCESSES;

    /// Shared by every attached process, exclusive by one that found itself alone.
    pub const ATTACH: u64 = 0;
    /// Exclusive while a process attaches or leaves.
    pub const ADMIN: u64 = 1;
    /// The first of those held by the process in each slot.
    pub const SLOTS: u64 = 2;
    /// All of them.
    pub const BYTES: u64 = SLOTS + PROCESSES as u64;
    /// The byte of the snapshot [`Tid::HOME`](crate::base::types::Tid::HOME) of an observer; those of later ones follow.
    pub const OBSERVED: u64 = 1 << 32;
    pub const OBSERVED_BYTES: u64 = 1 << 62;
}

/// The SQLite database header (SQLite file format, section 1.3): the fields onewrite knows.
pub mod home {
    /// Length of the header.
    pub const HEADER_BYTES: usize = 100;
    /// "SQLite format 3" and a zero.
    pub const MAGIC: &[u8; 16] = b"SQLite format 3\0";
    /// Page size, u16; 1 stands for 65536.
    pub const PAGE_SIZE: usize = 16;
    /// File format write version: 1 rollback journal, 2 WAL.
    pub const WRITE_VERSION: usize = 18;
    /// File format read version: 1, 2, or [`MARK`].
    pub const READ_VERSION: usize = 19;
    /// Bytes of reserved space at the end of each page.
    pub const RESERVED: usize = 20;
    /// File change counter, u32.
    pub const CHANGE_COUNTER: usize = 24;
    /// Size of the database in pages, u32.
    pub const PAGE_COUNT: usize = 28;
    /// Reserved for expansion: the session id while the mark is on, u64; else zeros.
    pub const SESSION: usize = 72;
    /// While the mark is on: the transaction that the newest checkpoint brought home, u64; 0: it is not told.
    pub const TID: usize = SESSION + 8;
    /// While the mark is on, bits of a u32: 1 until that checkpoint has written all of its pages, 2 while the session may have
    /// left nothing in the log.
    pub const FLAGS: usize = TID + 8;
    /// Length of what the mark needs from [`SESSION`] on: all that SQLite reserves there.
    pub const MARK_BYTES: usize = FLAGS + 4 - SESSION;
    const _: () = assert!(SESSION + MARK_BYTES == VERSION_VALID_FOR);
    /// The change counter for which [`PAGE_COUNT`] holds, u32.
    pub const VERSION_VALID_FOR: usize = 92;
    /// Read version of a database in use through onewrite: stock SQLite answers NOTADB.
    pub const MARK: u8 = 87;
}

/// SQLite's own WAL (SQLite file format, section 4), of which onewrite reads what WAL mode left. All integers are big-endian.
#[allow(missing_docs)]
pub mod wal {
    /// The WAL's name is the database's with this added.
    pub const SUFFIX: &str = "-wal";
    /// The name of its index, which lives no longer than the connections.
    pub const INDEX_SUFFIX: &str = "-shm";
    /// What it begins with. The lowest bit says how checksums read their words: 1 big-endian, 0 little-endian.
    pub const MAGIC: u32 = 0x377f_0682;
    pub const VERSION: u32 = 3_007_000;
    pub const AT_MAGIC: usize = 0;
    pub const AT_VERSION: usize = AT_MAGIC + 4;
    pub const AT_PAGE_BYTES: usize = AT_VERSION + 4;
    pub const AT_CHECKPOINT: usize = AT_PAGE_BYTES + 4;
    pub const AT_SALT: usize = AT_CHECKPOINT + 4;
    pub const SALT_BYTES: usize = 8;
    pub const AT_CHECKSUM: usize = AT_SALT + SALT_BYTES;
    /// Length of the header; frames follow, each a head and a page.
    pub const HEADER_BYTES: usize = AT_CHECKSUM + 8;
    pub const AT_FRAME_PAGE: usize = 0;
    /// Size of the database in pages of a frame that ends a transaction; 0 of any other.
    pub const AT_FRAME_COMMIT: usize = AT_FRAME_PAGE + 4;
    pub const AT_FRAME_SALT: usize = AT_FRAME_COMMIT + 4;
    pub const AT_FRAME_CHECKSUM: usize = AT_FRAME_SALT + SALT_BYTES;
    pub const FRAME_HEAD_BYTES: usize = AT_FRAME_CHECKSUM + 8;
    const _: () = assert!(HEADER_BYTES == 32 && FRAME_HEAD_BYTES == 24);
}

/// A header slot of the log (blocks 1 and 2, written in turn): each `AT_` is the offset of the field of
/// that name in `docs/format.md`.
#[allow(missing_docs)]
pub mod slot {
    /// Block 0 and two slots lie before the ring.
    pub const BLOCKS_BEFORE_RING: u64 = 3;
    /// Name of the format.
    pub const MAGIC: u64 = u64::from_le_bytes(*b"onewrite");
    /// Version of the format.
    pub const VERSION: u32 = 2;
    /// The one before is read, too: its records tell pages with ranges instead of pieces.
    pub const VERSION_READ: u32 = 1;
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
    /// Page count of a slot whose scheme writes home in place: home's header says it.
    pub const PAGE_COUNT_IN_HOME: u32 = u32::MAX;
    /// Length of a slot.
    pub const BYTES: usize = AT_CRC + 4;
    /// The log holds nothing: home is complete and carries no mark.
    pub const STATE_CLEAN: u32 = 0;
    /// The log belongs to a marked home.
    pub const STATE_LIVE: u32 = 1;
    /// As live, and transactions behind the slot may have no record: their page was written in place.
    pub const STATE_LIVE_IN_PLACE: u32 = 2;
    /// Added to the state: the ring was zeros when the session began; of a clean log, is so again.
    pub const STATE_ZEROED: u32 = 4;
    const _: () = assert!(BYTES == 100 && BYTES <= super::STREAM_UNIT as usize, "a slot fits the smallest sector");
}

/// A sector of the ring that the last close has overwritten: each `AT_` is the offset of the field of that name in
/// `docs/format.md`. Zeros follow.
#[allow(missing_docs)]
pub mod tombstone {
    /// Name and version of the layout.
    pub const MAGIC: u64 = u64::from_le_bytes(*b"onewend1");
    pub const AT_MAGIC: usize = 0;
    pub const AT_SESSION: usize = AT_MAGIC + 8;
    pub const AT_TID: usize = AT_SESSION + 8;
    pub const AT_CRC: usize = AT_TID + 8;
    pub const BYTES: usize = AT_CRC + 4;
}

/// The decision over a transaction that spans several files: sectors behind a slot, in that one's block. Each `AT_` is the offset
/// of the field of that name in `docs/format.md`.
#[allow(missing_docs)]
pub mod decision {
    /// Name and version of the layout.
    pub const MAGIC: u64 = u64::from_le_bytes(*b"onewdec1");
    /// Unit of its position and length.
    pub use super::SECTOR_BYTES;
    /// How many sectors there are for decisions behind each of the two slots.
    pub const SECTORS: usize = super::BLOCK_BYTES_MIN as usize / SECTOR_BYTES - 1;
    pub const AT_MAGIC: usize = 0;
    pub const AT_TOKEN: usize = AT_MAGIC + 8;
    pub const AT_FLAGS: usize = AT_TOKEN + 8;
    pub const AT_COUNT: usize = AT_FLAGS + 4;
    pub const AT_LEN: usize = AT_COUNT + 4;
    /// The files, one behind the other: session u64, TID u64, length of the path u16, path. Then the checksum.
    pub const AT_FILES: usize = AT_LEN + 4;
    pub const FILE_BYTES: usize = 8 + 8 + 2;
    pub const CRC_BYTES: usize = 4;
    /// Flag: the transaction was flushed in every file.
    pub const FLUSHED: u32 = 1;
}

/// A record of the ring: each `AT_` is the offset of the field of that name in `docs/format.md`.
#[allow(missing_docs)]
pub mod record {
    pub const AT_SALT: usize = 0;
    pub const AT_TID: usize = AT_SALT + 8;
    pub const AT_DURABLE_TID: usize = AT_TID + 8;
    pub const AT_PREV_CRC: usize = AT_DURABLE_TID + 8;
    pub const AT_LEN: usize = AT_PREV_CRC + 4;
    pub const AT_PAGE_COUNT: usize = AT_LEN + 4;
    pub const AT_CHANGE_COUNTER: usize = AT_PAGE_COUNT + 4;
    pub const AT_ENTRY_COUNT: usize = AT_CHANGE_COUNTER + 4;
    pub const AT_STREAM_COUNT: usize = AT_ENTRY_COUNT + 4;
    pub const AT_STREAM_INDEX: usize = AT_STREAM_COUNT + 4;
    pub const AT_STREAM_CRC: usize = AT_STREAM_INDEX + 4;
    /// Length of the header; the entries follow.
    pub const HEADER_BYTES: usize = AT_STREAM_CRC + 4;
    /// The crc32c that ends a record.
    pub const CRC_BYTES: usize = 4;
    /// Records begin at and are padded to multiples of this.
    pub const ALIGN: usize = 8;
    /// Length of an entry's head: page number u32, kind u16, count u16.
    pub const ENTRY_BYTES: usize = 8;
    /// Length of a range's head in version 1: offset u16, length minus one u16.
    pub const RANGE_BYTES: usize = 4;
    /// Length of one item of a stream index: page number, position, crc32c, each u32.
    pub const STREAM_ITEM_BYTES: usize = 12;
    /// Ranges over the page's previous image, in version 1.
    pub const KIND_DELTA: u16 = 1;
    /// The same over zeros.
    pub const KIND_FRESH: u16 = 2;
    /// Whole images, aligned to blocks.
    pub const KIND_FRAMES: u16 = 3;
    /// What decides a transaction that spans several files: token u64, session u64, path of a database.
    pub const KIND_DECIDER: u16 = 4;
    /// Pieces over the page's previous image.
    pub const KIND_COMPACT_DELTA: u16 = 5;
    /// Pieces over zeros: the page was beyond the end of the database.
    pub const KIND_COMPACT_FRESH: u16 = 6;
    /// The lowest bits of a piece's length say what it is made of.
    pub const PIECE_BITS: u32 = 2;
    /// Bytes.
    pub const PIECE_BYTES: u32 = 0;
    /// Zeros.
    pub const PIECE_ZEROS: u32 = 1;
    /// Numbers of 16 bits, big-endian: the smallest, a step, and how many steps each is above the smallest.
    pub const PIECE_NUMBERS: u32 = 2;
    /// What says how numbers are told: smallest u16, step u16, bits of each count of steps u8.
    pub const NUMBERS_HEAD_BYTES: usize = 5;
    pub const AT_DECIDER_TOKEN: usize = 0;
    pub const AT_DECIDER_SESSION: usize = AT_DECIDER_TOKEN + 8;
    pub const AT_DECIDER_PATH: usize = AT_DECIDER_SESSION + 8;
    /// Longest such entry in bytes.
    pub const DECIDER_BYTES_MAX: usize = 4096;
    const _: () = assert!(HEADER_BYTES == 56 && HEADER_BYTES.is_multiple_of(ALIGN));
}

/// The trailer in the reserved bytes of a page (in-page schemes): each `AT_` is an offset in these 32 bytes.
#[allow(missing_docs)]
pub mod trailer {
    pub const AT_TID: usize = 0;
    pub const AT_SESSION: usize = AT_TID + 8;
    pub const AT_CRC: usize = AT_SESSION + 8;
    pub const AT_TX_PAGES: usize = AT_CRC + 4;
    pub const AT_CHANGE_COUNTER: usize = AT_TX_PAGES + 4;
    pub const AT_UNDO_AT: usize = AT_CHANGE_COUNTER + 4;
    pub const AT_UNDO_LEN: usize = AT_UNDO_AT + 2;
    /// Length of a trailer: the last of the reserved bytes of each page.
    pub const BYTES: usize = AT_UNDO_LEN + 2;
    const _: () = assert!(BYTES == 32);

    /// Reserved bytes of a new database's pages of `page_bytes`: the trailer, and room in front of it for undo records.
    pub const fn reserved_bytes(page_bytes: u32) -> u8 {
        match page_bytes / 16 {
            0..=32 => 32,
            n @ 33..248 => n as u8,
            _ => 248,
        }
    }
}

/// An undo record in front of the trailer, or in the gap of a b-tree page (in-page schemes).
#[allow(missing_docs)]
pub mod undo {
    pub const AT_TRAILER: usize = 0;
    pub const AT_PREFIX: usize = AT_TRAILER + super::trailer::BYTES;
    pub const AT_SUFFIX: usize = AT_PREFIX + 2;
    pub const AT_MIDDLE: usize = AT_SUFFIX + 2;
    pub const AT_RANGES: usize = AT_MIDDLE + 2;
    pub const AT_HEADER: usize = AT_RANGES + 2;
    /// Bytes kept of the b-tree page header: the longer of its two forms.
    pub const HEADER_BYTES: usize = 12;
    /// Length of the fixed part; the old middle of the cell pointer array and the ranges follow.
    pub const FIXED_BYTES: usize = AT_HEADER + HEADER_BYTES;
    /// Length of a range's head: offset u16, length minus one u16.
    pub const RANGE_BYTES: usize = 4;
}

fn bytes_at<const N: usize>(b: &[u8], at: usize) -> Option<[u8; N]> {
    b.get(at..at.checked_add(N)?)?.try_into().ok()
}

/// The u16 at `at`, little-endian.
pub fn le_u16(b: &[u8], at: usize) -> Option<u16> {
    bytes_at(b, at).map(u16::from_le_bytes)
}

/// The u32 at `at`, little-endian.
pub fn le_u32(b: &[u8], at: usize) -> Option<u32> {
    bytes_at(b, at).map(u32::from_le_bytes)
}

/// The u64 at `at`, little-endian.
pub fn le_u64(b: &[u8], at: usize) -> Option<u64> {
    bytes_at(b, at).map(u64::from_le_bytes)
}

/// The u32 at `at`, big-endian.
pub fn be_u32(b: &[u8], at: usize) -> Option<u32> {
    bytes_at(b, at).map(u32::from_be_bytes)
}

/// The u16 at `at`, big-endian.
pub fn be_u16(b: &[u8], at: usize) -> Option<u16> {
    bytes_at(b, at).map(u16::from_be_bytes)
}

/// Copies `field` to `at`; bytes that do not fit are left out (the layouts above all fit).
pub fn put(b: &mut [u8], at: usize, field: &[u8]) {
    if let Some(to) = at.checked_add(field.len()).and_then(|end| b.get_mut(at..end)) {
        to.copy_from_slice(field);
    } else {
        debug_assert!(false, "a field of {} bytes at {at} does not fit", field.len());
    }
}
