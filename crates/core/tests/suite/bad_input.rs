//! Bad input on the real disk: any bytes beside a database give the right class of error and a
//! helpful message, and nothing is written (invariants I6, I7).

use crate::common;

use std::path::{Path, PathBuf};

use common::{PAGE, Pair, TX, commit, crashed, crashed_with, ends_with_all, engine, lock, page, plain, write};
use onewrite_core::disk::real::RealDisk;
use onewrite_core::disk::{Disk, OpenMode};
use onewrite_core::inspect::LogFile;
use onewrite_core::inspect::Slot;
use onewrite_core::{Error, LockLevel};

fn refused(pair: &Pair, words: &[&str]) -> Error {
    let before = pair.bytes();
    let error = lock(&pair.home).expect_err("refused");
    let message = error.to_string();
    for word in words {
        assert!(message.contains(word), "{word:?} is missing in: {message}");
    }
    assert!(message.contains("db"), "the message names the file: {message}");
    assert_eq!(pair.bytes(), before, "a refused database changes");
    error
}

fn flip(path: &Path, at: usize) {
    let mut bytes = std::fs::read(path).unwrap();
    bytes[at] ^= 0x10;
    std::fs::write(path, bytes).unwrap();
}

#[test]
fn a_crashed_database_comes_back_whole() {
    let pair = crashed(TX);
    ends_with_all(&pair.home, TX);
}

#[test]
fn a_marked_file_without_its_log() {
    let pair = crashed(TX);
    std::fs::remove_file(pair.log()).unwrap();
    assert!(matches!(refused(&pair, &["mark", "log", "missing", "--without-log"]), Error::CantOpen(_)));
}

#[test]
fn the_log_of_another_database() {
    let (pair, other) = (crashed(TX), crashed(TX));
    std::fs::copy(other.log(), pair.log()).unwrap();
    assert!(matches!(refused(&pair, &["another database", "put the right log back"]), Error::CantOpen(_)));
}

#[test]
fn the_log_of_an_older_session() {
    let pair = crashed(TX);
    let old = std::fs::read(pair.log()).unwrap();
    ends_with_all(&pair.home, TX); // Recovered and closed in order.
    let pair = pair.again(TX, 2);
    std::fs::write(pair.log(), old).unwrap();
    assert!(matches!(refused(&pair, &["older state"]), Error::CantOpen(_)));
}

#[test]
fn a_log_closed_in_order_beside_an_older_home() {
    let pair = crashed(TX);
    let home = std::fs::read(&pair.home).unwrap();
    ends_with_all(&pair.home, TX);
    std::fs::write(&pair.home, home).unwrap();
    refused(&pair, &["log"]);
}

#[test]
fn a_zeroed_log() {
    let pair = crashed(TX);
    let n = std::fs::metadata(pair.log()).unwrap().len();
    std::fs::write(pair.log(), vec![0; n as usize]).unwrap();
    assert!(matches!(refused(&pair, &["no valid header slot", "--without-log"]), Error::Corrupt(_)));
}

#[test]
fn a_truncated_log() {
    let n = std::fs::metadata(crashed(TX).log()).unwrap().len();
    for len in [0, 1, 4096, 4097, 8192, 12288, n / 2, n - 1] {
        let pair = crashed(TX);
        let file = std::fs::OpenOptions::new().write(true).open(pair.log()).unwrap();
        file.set_len(len).unwrap();
        assert!(matches!(refused(&pair, &["cut short"]), Error::Corrupt(_)), "{len}");
    }
}

#[test]
fn a_flipped_bit_in_a_record_that_was_durable() {
    let whole = crashed(TX);
    let starts = whole.records();
    assert_eq!(starts.len() as u64, TX);
    // Salt, TID, durable TID, previous checksum, length, counter, body, checksum.
    for in_record in [0, 8, 16, 24, 28, 36, 60, 80] {
        for victim in [0, starts.len() / 2, starts.len() - 2] {
            let pair = whole.copy();
            flip(&pair.log(), starts[victim] + in_record);
            let error = refused(&pair, &["damaged", "--accept-loss", "Nothing was changed"]);
            assert!(matches!(error, Error::Corrupt(_)), "byte {in_record} of record {victim}: {error}");
        }
    }
}

#[test]
fn a_flipped_bit_in_the_last_record_ends_the_log_before_it() {
    // No later record proves that it was whole.
    let pair = crashed(TX);
    let starts = pair.records();
    flip(&pair.log(), starts[starts.len() - 1] + 60);
    ends_with_all(&pair.home, TX - 1);
}

#[test]
fn a_flipped_bit_in_a_slot() {
    let whole = crashed(TX);
    for at in 0..100 {
        for slot in [1, 2] {
            let pair = whole.copy();
            flip(&pair.log(), slot * 4096 + at);
            match lock(&pair.home) {
                Ok(()) => ends_with_all(&pair.home, TX),
                Err(Error::Corrupt(_) | Error::CantOpen(_)) => {}
                Err(e) => panic!("byte {at} of slot {slot}: {e}"),
            }
        }
    }
}

#[test]
fn files_that_are_no_database() {
    let dir = tempfile::tempdir().unwrap();
    for bytes in [&b"hello"[..], &[7; 5000], b"SQLite format 3\0 and then something else"] {
        let pair = Pair::at(dir.path());
        std::fs::write(&pair.home, bytes).unwrap();
        let mut c = engine().open(&pair.home, OpenMode::ReadWrite, &[]).unwrap();
        c.lock(LockLevel::Shared).unwrap();
        let mut back = vec![0; bytes.len()];
        assert_eq!(c.read_at(&mut back, 0).unwrap(), bytes.len(), "SQLite says what it thinks of the bytes");
        assert!(matches!(c.lock(LockLevel::Reserved), Err(Error::NotADatabase(_))));
        c.unlock(LockLevel::None).unwrap();
        c.close().unwrap();
        assert_eq!(std::fs::read(&pair.home).unwrap(), bytes);
        assert!(!pair.log().exists());
    }
}

#[test]
fn an_empty_file_is_a_new_database() {
    let dir = tempfile::tempdir().unwrap();
    let pair = Pair::at(dir.path());
    std::fs::write(&pair.home, []).unwrap();
    lock(&pair.home).unwrap();
    assert_eq!(std::fs::read(&pair.home).unwrap(), []);
    assert!(!pair.log().exists());
}

#[test]
fn an_unknown_option_names_itself_and_the_choices() {
    let pair = crashed(1);
    let before = pair.bytes();
    for (name, value, word) in [("colour", "red", "log_size"), ("scheme", "fast", "wal-opt"), ("log_size", "1", "1")] {
        let given = [(name.to_owned(), value.to_owned())];
        let error = engine().open(&pair.home, OpenMode::ReadWrite, &given).map(drop).unwrap_err();
        assert!(matches!(error, Error::Option(_)), "{error}");
        assert!(error.to_string().contains(name) && error.to_string().contains(word), "{error}");
    }
    assert_eq!(pair.bytes(), before);
}

#[test]
fn an_unmarked_home_beside_a_live_log_sets_it_aside() {
    for damaged in [false, true] {
        let pair = crashed(TX);
        if damaged {
            flip(&pair.log(), pair.records()[0] + 60);
        }
        let (marked, log) = pair.bytes();
        std::fs::write(&pair.home, common::plain(1)).unwrap();
        let mut c = engine().open(&pair.home, OpenMode::ReadWrite, &[]).unwrap();
        c.lock(LockLevel::Shared).unwrap();
        c.unlock(LockLevel::None).unwrap();
        assert_eq!(pair.bytes().1, log, "a reader needs no log");
        commit(&mut c, 2);
        c.close().unwrap();
        ends_with_all(&pair.home, 2);
        let is_aside = |path: &PathBuf| path.to_string_lossy().contains("db-onewrite-");
        let beside = || RealDisk::new().names_beside(&pair.home).unwrap();
        let aside = beside().into_iter().find(is_aside).unwrap();
        assert_eq!(std::fs::read(aside).ok(), log);
        std::fs::write(&pair.home, marked.unwrap()).unwrap();
        match lock(&pair.home) {
            Ok(()) => ends_with_all(&pair.home, TX),
            Err(e) => assert!(damaged && matches!(e, Error::Corrupt(_)), "{e}"),
        }
        assert_eq!(beside().iter().any(is_aside), damaged, "what was brought home is not kept");
    }
}

#[test]
fn a_rollback_journal_beside_a_marked_home() {
    let pair = crashed(TX);
    let mut journal = pair.home.as_os_str().to_owned();
    journal.push("-journal");
    std::fs::write(&journal, [0xd9; 1024]).unwrap();
    assert!(matches!(refused(&pair, &["rollback journal", "Move the journal away"]), Error::CantOpen(_)));
    assert_eq!(std::fs::read(&journal).unwrap(), [0xd9; 1024]);
}

#[cfg(unix)]
#[test]
fn a_directory_without_write_permission() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let pair = Pair::at(dir.path());
    std::fs::write(&pair.home, common::plain(3)).unwrap();
    let permit = |mode| std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(mode)).unwrap();
    permit(0o555);
    if std::fs::write(dir.path().join("probe"), "").is_ok() {
        eprintln!("skipped: this user may write in a directory without write permission");
        return permit(0o755);
    }
    let mut c = engine().open(&pair.home, OpenMode::ReadWrite, &[]).unwrap();
    c.lock(LockLevel::Shared).unwrap();
    let mut first = vec![0; PAGE];
    assert_eq!(c.read_at(&mut first, 0).unwrap(), PAGE, "reading needs no log");
    let error = c.lock(LockLevel::Reserved).unwrap_err();
    assert!(matches!(error, Error::CantOpen(_)), "{error}");
    assert!(error.to_string().contains("write in the directory"), "{error}");
    c.unlock(LockLevel::None).unwrap();
    c.close().unwrap();
    permit(0o755);
    assert_eq!(std::fs::read(&pair.home).unwrap(), common::plain(3));
    assert!(!pair.log().exists());
}

#[test]
fn a_second_process_joins_and_one_that_wants_the_file_for_itself_is_refused() {
    let pair = crashed(TX);
    let mut first = engine().open(&pair.home, OpenMode::ReadWrite, &[]).unwrap();
    first.lock(LockLevel::Shared).unwrap();
    // Locks belong to open files: this acts as another process.
    let mut second = engine().open(&pair.home, OpenMode::ReadWrite, &[]).unwrap();
    second.lock(LockLevel::Shared).unwrap();
    for process in [&mut first, &mut second] {
        let mut seen = vec![0; PAGE];
        process.read_at(&mut seen, PAGE as u64).unwrap();
        assert_eq!(seen, page(TX));
    }
    let alone = [("scheme".to_owned(), "off".to_owned()), ("busy_ms".to_owned(), "0".to_owned())];
    let mut third = engine().open(&pair.home, OpenMode::ReadWrite, &alone).unwrap();
    let error = third.lock(LockLevel::Shared).unwrap_err();
    assert!(matches!(error, Error::Busy(_)) && error.to_string().contains("scheme=off needs it alone"), "{error}");
    let other = [("psow".to_owned(), "0".to_owned())];
    let mut fourth = engine().open(&pair.home, OpenMode::ReadWrite, &other).unwrap();
    let error = fourth.lock(LockLevel::Shared).unwrap_err();
    assert!(matches!(error, Error::Option(_)) && error.to_string().contains("psow=1"), "{error}");
    let engine = engine();
    for _ in 0..2 {
        let mut reader = engine.open(&pair.home, OpenMode::ReadOnly, &other).unwrap();
        reader.lock(LockLevel::Shared).unwrap();
        let mut seen = vec![0; PAGE];
        reader.read_at(&mut seen, PAGE as u64).unwrap();
        assert_eq!(seen, page(TX));
        assert!(reader.psow());
        std::mem::forget(reader);
    }
}

fn crashed_twice() -> (Pair, Pair) {
    let first = crashed(TX);
    let second = first.copy().again(TX, 2);
    (first, second)
}

#[test]
fn the_log_of_before_a_recovery() {
    let (first, second) = crashed_twice();
    std::fs::copy(first.log(), second.log()).unwrap();
    assert!(matches!(refused(&second, &["newer", "different moments"]), Error::CantOpen(_)));
}

#[test]
fn the_home_of_before_a_recovery() {
    let (first, second) = crashed_twice();
    std::fs::copy(&first.home, &second.home).unwrap();
    ends_with_all(&second.copy().home, TX + 2);
    let mut c = engine().open(&second.home, OpenMode::ReadWrite, &[]).unwrap();
    commit(&mut c, TX + 3);
    c.pragma("checkpoint", None).unwrap().unwrap();
    let third = second.copy();
    std::fs::copy(&first.home, &third.home).unwrap();
    assert!(matches!(refused(&third, &["older", "different moments"]), Error::CantOpen(_)));
}

#[test]
fn two_recoveries_of_one_crash() {
    let first = crashed(TX);
    let sides = [1, 9].map(|count| {
        let pair = first.copy();
        let mut c = engine().open(&pair.home, OpenMode::ReadWrite, &[]).unwrap();
        (1..=count).for_each(|n| commit(&mut c, TX + n));
        let log_only = pair.copy();
        c.pragma("checkpoint", None).unwrap().unwrap();
        (log_only, pair.copy())
    });
    for (home, log) in [(&sides[0].1, &sides[1].0), (&sides[1].1, &sides[0].0)] {
        let pair = home.copy();
        std::fs::copy(log.log(), pair.log()).unwrap();
        assert!(matches!(refused(&pair, &["different moments"]), Error::CantOpen(_)));
    }
}

#[test]
fn a_flipped_bit_in_a_slot_after_a_recovery() {
    let (_, second) = crashed_twice();
    for slot in [1, 2] {
        let pair = second.copy();
        flip(&pair.log(), slot * 4096 + 40);
        match lock(&pair.home) {
            Ok(()) => ends_with_all(&pair.home, TX + 2),
            Err(Error::Corrupt(_) | Error::CantOpen(_)) => {}
            Err(e) => panic!("slot {slot}: {e}"),
        }
    }
}

#[test]
fn a_flipped_bit_in_a_slot_behind_a_big_transaction() {
    // The older slot must not count on cut-off images.
    let whole = crashed(TX);
    let options = [("stream_size", "64k"), ("log_size", "256k")].map(|(n, v)| (n.to_owned(), v.to_owned()));
    let mut c = engine().open(&whole.home, OpenMode::ReadWrite, &options).unwrap();
    commit(&mut c, TX + 1);
    let mut first = plain(TX + 2)[..PAGE].to_vec();
    first[28..32].copy_from_slice(&40u32.to_be_bytes());
    // The first one's pages stream home, those of the second behind the ring.
    for tx in [TX + 1, TX + 50] {
        let pages = (0..40).map(|n| (n, if n == 0 { first.clone() } else { page(tx + n) }));
        write(&mut c, &pages.collect::<Vec<_>>());
        let crashed = whole.copy();
        for slot in [1, 2] {
            let pair = crashed.copy();
            flip(&pair.log(), slot * 4096 + 40);
            lock(&pair.home).unwrap_or_else(|e| panic!("slot {slot}: either slot leads to the whole log: {e}"));
            let bytes = std::fs::read(&pair.home).unwrap();
            assert_eq!(bytes.len(), 40 * PAGE, "slot {slot}: the big transaction is lost");
            assert!((1..40).all(|n| bytes[n * PAGE..][..PAGE] == page(tx + n as u64)), "slot {slot}");
        }
    }
    drop(c);
}

/// After a power cut behind the mark, the session's slot is missing. A damaged slot is another case
/// (rule SlotWithFirstRecord).
#[test]
fn a_session_that_left_nothing_in_its_log() {
    let whole = crashed(TX);
    ends_with_all(&whole.home, TX);
    let before = std::fs::read(whole.log()).unwrap();
    let mut c = engine().open(&whole.home, OpenMode::ReadWrite, &[]).unwrap();
    commit(&mut c, TX + 1);
    let begun = whole.copy();
    commit(&mut c, TX + 2);
    let later = whole.copy();
    drop(c);
    ends_with_all(&begun.copy().home, TX + 1);
    let cut = begun.copy();
    std::fs::write(cut.log(), &before).unwrap();
    ends_with_all(&cut.copy().home, TX);
    for slot in [1, 2] {
        let damaged = cut.copy();
        flip(&damaged.log(), slot * 4096 + 40);
        refused(&damaged, &["older state"]);
        let damaged = begun.copy();
        flip(&damaged.log(), slot * 4096 + 40);
        match lock(&damaged.home) {
            Ok(()) => ends_with_all(&damaged.home, TX + 1),
            Err(e) => assert!(matches!(e, Error::CantOpen(_) | Error::Corrupt(_)), "{e}"),
        }
    }
    std::fs::write(later.log(), &before).unwrap();
    assert!(matches!(refused(&later, &["older state"]), Error::CantOpen(_)));
}

#[test]
fn the_slot_of_a_session_that_is_over_does_not_count() {
    // Only a recovery writes the very next number.
    let whole = crashed(TX);
    let log = LogFile::open(&RealDisk::new(), &whole.log(), OpenMode::ReadOnly).unwrap().unwrap();
    let slot = log.slots().unwrap().remove(0);
    for (ahead, counts) in [(1, true), (2, false), (3, false)] {
        let pair = whole.copy();
        let newer = Slot { session: 7, salt: 8, sequence: slot.sequence + ahead, ..slot.clone() };
        let mut bytes = std::fs::read(pair.log()).unwrap();
        // An even distance would overwrite the other slot.
        let at = (1 + (slot.sequence + 1) as usize % 2) * 4096;
        bytes[at..at + 100].copy_from_slice(&newer.encode());
        std::fs::write(pair.log(), bytes).unwrap();
        if counts {
            ends_with_all(&pair.home, TX);
        } else {
            assert!(matches!(refused(&pair, &["older state"]), Error::CantOpen(_)));
        }
    }
}

#[test]
fn a_flipped_bit_in_a_slot_behind_the_first_transaction() {
    let whole = crashed(TX);
    std::fs::remove_file(whole.log()).unwrap();
    std::fs::write(&whole.home, []).unwrap();
    let mut c = engine().open(&whole.home, OpenMode::ReadWrite, &[]).unwrap();
    write(&mut c, &plain(1).chunks(PAGE).map(<[u8]>::to_vec).zip(0..).map(|(page, n)| (n, page)).collect::<Vec<_>>());
    let crashed = whole.copy();
    drop(c);
    for slot in [1, 2] {
        let pair = crashed.copy();
        flip(&pair.log(), slot * 4096 + 40);
        match lock(&pair.home) {
            Ok(()) => ends_with_all(&pair.home, 1),
            Err(Error::Corrupt(_) | Error::CantOpen(_)) => {}
            Err(e) => panic!("slot {slot}: {e}"),
        }
    }
}

#[test]
fn a_marked_home_that_was_cut_short() {
    for len in [100, PAGE as u64, PAGE as u64 + 7, 3 * PAGE as u64 - 1] {
        let pair = crashed(TX);
        std::fs::OpenOptions::new().write(true).open(&pair.home).unwrap().set_len(len).unwrap();
        assert!(matches!(refused(&pair, &["shorter", "3 pages"]), Error::Corrupt(_)));
    }
}

#[test]
fn a_plain_home_that_was_cut_short_is_shown_as_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let pair = Pair::at(dir.path());
    std::fs::write(&pair.home, &common::plain(1)[..2 * PAGE]).unwrap();
    let mut c = engine().open(&pair.home, OpenMode::ReadWrite, &[]).unwrap();
    c.lock(LockLevel::Shared).unwrap();
    assert_eq!(c.size().unwrap(), 2 * PAGE as u64);
}

#[test]
fn a_log_made_to_keep_recovery_busy() {
    let pair = crashed(TX);
    let log = LogFile::open(&RealDisk::new(), &pair.log(), OpenMode::ReadOnly).unwrap().unwrap();
    let mut slot = log.slots().unwrap().remove(0);
    // Every eight bytes begin a record of half a megabyte with a large TID.
    slot.salt = (512 << 10) << 32 | 8;
    slot.sequence += 2;
    slot.ring_bytes = 4 << 20;
    let mut bytes = std::fs::read(pair.log()).unwrap();
    bytes.resize(3 * 4096 + (4 << 20), 0);
    for word in bytes[3 * 4096..].chunks_exact_mut(8) {
        word.copy_from_slice(&slot.salt.to_le_bytes());
    }
    for at in [4096, 8192] {
        bytes[at..at + 100].copy_from_slice(&slot.encode());
    }
    std::fs::write(pair.log(), bytes).unwrap();
    let begun = std::time::Instant::now();
    assert!(matches!(refused(&pair, &["damaged"]), Error::Corrupt(_)));
    assert!(begun.elapsed().as_secs() < 5, "{:?}", begun.elapsed());
}

#[test]
fn a_slot_that_states_an_impossible_ring() {
    let pair = crashed(TX);
    let log = LogFile::open(&RealDisk::new(), &pair.log(), OpenMode::ReadOnly).unwrap().unwrap();
    let mut slot = log.slots().unwrap().remove(0);
    slot.ring_bytes = 1 << 42;
    let file = RealDisk::new().open(&pair.log(), OpenMode::ReadWrite).unwrap();
    if file.set_len((1 << 42) + (1 << 20)).is_err() {
        return eprintln!("skipped: the file system has no files of 4 TiB");
    }
    for at in [4096, 8192] {
        file.write_at(&slot.encode(), at).unwrap();
    }
    let error = lock(&pair.home).unwrap_err();
    assert!(matches!(error, Error::Corrupt(_)) && error.to_string().contains("no valid header slot"), "{error}");
}

#[test]
fn records_that_begin_in_blocks_of_their_own_are_all_found() {
    for option in [("scheme", "wal-opt"), ("psow", "0")] {
        let pair = common::crashed_with(TX, &[option]);
        ends_with_all(&pair.home, TX);
    }
}

/// The log leaves the size to page 1 (rule DamageIsTold).
#[cfg_attr(windows, ignore = "Windows exchanges no names")]
#[test]
fn a_page_count_that_the_file_does_not_hold_is_not_believed() {
    // POSIX exchanges no names, as `dash` does.
    for scheme in ["dash", "off"].into_iter().skip(usize::from(cfg!(any(feature = "portable", target_os = "android"))))
    {
        let pair = crashed_with(TX, &[("scheme", scheme)]);
        flip(&pair.home, 28);
        assert!(matches!(refused(&pair, &["damaged", "268435459 pages"]), Error::Corrupt(_)), "{scheme}");
    }
}

/// Invariant I6, rule DamageIsTold.
#[test]
fn a_page_count_of_a_record_is_not_believed_without_its_pages() {
    let pair = crashed(TX);
    let start = pair.records()[TX as usize - 1];
    let mut log = std::fs::read(pair.log()).unwrap();
    let len = u32::from_le_bytes(log[start + 28..start + 32].try_into().unwrap()) as usize;
    let state = |log: &mut [u8], pages: u32| {
        log[start + 32..start + 36].copy_from_slice(&pages.to_le_bytes());
        let crc = crc32c::crc32c(&log[start..start + len - 4]);
        log[start + len - 4..start + len].copy_from_slice(&crc.to_le_bytes());
    };
    state(&mut log, u32::MAX);
    std::fs::write(pair.log(), &log).unwrap();
    assert!(matches!(refused(&pair, &["size of 4294967295 pages", "Nothing was changed"]), Error::Corrupt(_)));
    state(&mut log, 3);
    std::fs::write(pair.log(), &log).unwrap();
    ends_with_all(&pair.home, TX);
}

#[test]
fn copies_of_two_moments_with_a_checkpoint_between() {
    let first = crashed(1);
    let mut c = engine().open(&first.home, OpenMode::ReadWrite, &[]).unwrap();
    let mut moments = Vec::new();
    for n in 2..6 {
        commit(&mut c, n);
        moments.push(first.copy());
        if n % 2 == 1 {
            c.pragma("checkpoint", None).unwrap().unwrap();
            moments.push(first.copy());
        }
    }
    // Newest transaction and checkpoints of each copy.
    let told = [(2, 0), (3, 0), (3, 1), (4, 1), (5, 1), (5, 2)];
    for (home, (_, brought)) in moments.iter().zip(told) {
        for (log, (newest, given_up)) in moments.iter().zip(told) {
            let pair = home.copy();
            std::fs::copy(log.log(), pair.log()).unwrap();
            if brought < given_up {
                assert!(matches!(refused(&pair, &["older", "different moments", "--without-log"]), Error::CantOpen(_)));
            } else if [0, 3, 5][brought] > newest {
                assert!(matches!(refused(&pair, &["newer", "different moments", "--without-log"]), Error::CantOpen(_)));
            } else {
                ends_with_all(&pair.home, newest);
            }
        }
    }
}

#[test]
fn a_mark_that_tells_only_its_session_is_recovered() {
    let pair = crashed(TX);
    let mut home = std::fs::read(&pair.home).unwrap();
    assert_ne!(home[80..88], [0; 8]);
    home[80..92].fill(0);
    std::fs::write(&pair.home, home).unwrap();
    ends_with_all(&pair.home, TX);
}

/// With own blocks, the records are lost one by one (`docs/faults.md`).
#[test]
fn a_damaged_last_block_loses_its_records_and_no_more() {
    for (psow, most) in [("1", TX), ("0", 1)] {
        let pair = crashed_with(TX, &[("psow", psow)]);
        let packed = pair.records();
        let starts = match psow {
            "1" => packed,
            _ => (0..TX as usize).map(|n| packed[0] + n * 4096).collect(),
        };
        let last_block = starts[TX as usize - 1] / 4096 * 4096;
        let in_last_block = starts.iter().filter(|at| **at >= last_block).count() as u64;
        assert_eq!(in_last_block, most, "psow={psow}");
        for (n, start) in (0..TX).zip(&starts).filter(|(_, at)| **at >= last_block) {
            let damaged = pair.copy();
            let mut log = std::fs::read(damaged.log()).unwrap();
            log[*start..last_block + 4096].fill(0xaa);
            std::fs::write(damaged.log(), log).unwrap();
            ends_with_all(&damaged.home, n);
            let damaged = pair.copy();
            flip(&damaged.log(), start + 60);
            match n + 1 == TX {
                true => ends_with_all(&damaged.home, n),
                false => drop(refused(&damaged, &["damaged", "--accept-loss"])),
            }
        }
    }
}
