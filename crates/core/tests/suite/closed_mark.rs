//! The last close takes the mark off without a flush (rule CloseProven).

use crate::common;

use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;

use common::{PAGE, filled, try_fill};
use onewrite_core::disk::sim::{Op, SimConfig, SimDisk};
use onewrite_core::disk::{Disk, LockKind, OpenMode};
use onewrite_core::inspect::LogFile;
use onewrite_core::inspect::home::mark;
use onewrite_core::{Connection, Engine, Error, LockLevel, Repair};

const DB: &str = "/db";
const OLD: &str = "/old";

fn try_open(disk: &SimDisk, path: &str) -> Result<Connection, Error> {
    Engine::new(Arc::new(disk.clone())).open(Path::new(path), OpenMode::Create, &[])
}

fn open(disk: &SimDisk, path: &str) -> Connection {
    try_open(disk, path).unwrap()
}

fn write(c: &mut Connection, pages: u32, byte: u8) {
    try_fill(c, pages, byte).unwrap();
}

fn session(disk: &SimDisk, path: &str, times: u8, pages: u32, byte: u8) {
    let mut c = open(disk, path);
    (0..times).for_each(|n| write(&mut c, pages, byte.wrapping_add(times - 1 - n)));
    c.close().unwrap();
}

fn is_marked(disk: &SimDisk, path: &str) -> bool {
    mark(&disk.snapshot_file(Path::new(path)).unwrap()).is_some()
}

fn found(disk: &SimDisk, path: &str, case: &str) -> u8 {
    let mut c = open(disk, path);
    let mut page = vec![0; PAGE];
    c.lock(LockLevel::Shared).unwrap_or_else(|e| panic!("{case}: {e}"));
    c.read_at(&mut page, PAGE as u64).unwrap();
    assert!(page.iter().all(|byte| *byte == page[0]), "{case}");
    c.unlock(LockLevel::None).unwrap();
    c.close().unwrap_or_else(|e| panic!("{case}: {e}"));
    page[0]
}

/// So many that draw which writes survive, and the one whose choices are all the first.
fn crashes(disk: &SimDisk, drawn: u64) -> impl Iterator<Item = SimDisk> {
    (0..drawn).map(|seed| disk.crash(seed)).chain([disk.crash_by(&mut |_| 0)])
}

const SESSIONS: [(u8, u32); 3] = [(1, 2), (9, 3), (40, 9)];

#[test]
fn a_power_cut_behind_the_close() {
    for (times, pages) in SESSIONS {
        let disk = SimDisk::new(SimConfig::default());
        session(&disk, DB, 1, 2, 1);
        session(&disk, DB, times, pages, 7);
        let (mut marked, mut cases) = (0, 0);
        for after in crashes(&disk, 200) {
            cases += 1;
            marked += usize::from(is_marked(&after, DB));
            let case = format!("{times} times {pages} pages, case {cases}");
            assert_eq!(found(&after, DB, &case), 7, "{case}");
            let again = after.crash(cases as u64);
            assert_eq!(found(&again, DB, &case), 7, "{case}, again");
            session(&again, DB, 2, 2, 9);
            assert_eq!(found(&again.crash(cases as u64), DB, &case), 9, "{case}, another session");
        }
        assert!(marked > 10 && marked < cases, "{marked} of {cases}");
    }
}

#[test]
fn a_power_cut_anywhere_in_the_session_that_follows() {
    for (times, pages) in SESSIONS {
        for (next, next_pages) in [(1, 2), (9, 3)] {
            let run = |stop: Option<u64>| {
                let disk = SimDisk::new(SimConfig::default());
                session(&disk, DB, times, pages, 7);
                let before = disk.ops();
                stop.iter().for_each(|ops| disk.stop_after(*ops));
                let mut c = open(&disk, DB);
                let mut told = 7;
                for n in 0..next {
                    if try_fill(&mut c, next_pages, 100 + n).is_err() {
                        break;
                    }
                    told = 100 + n;
                }
                let _ = c.close();
                (disk.ops() - before, told, disk)
            };
            let (ops, ..) = run(None);
            for stop in (0..ops).step_by(1 + ops as usize / 40) {
                let (_, told, disk) = run(Some(stop));
                for seed in 0..4 {
                    let case =
                        format!("{times} times {pages}, then {next} times {next_pages}; operation {stop}, seed {seed}");
                    let n = found(&disk.crash(seed), DB, &case);
                    assert!(n == told || n == if told == 7 { 100 } else { told + 1 }, "{case}: {n} behind {told}");
                }
            }
        }
    }
}

/// A slot of the longer ring goes before the rest of the log (rule SlotBeforeReuse).
#[test]
fn a_power_cut_behind_the_recovery_of_a_close_that_gives_the_log_back() {
    let (times, pages) = SESSIONS[2];
    let run = |stop: Option<u64>| {
        let disk = SimDisk::new(SimConfig::default());
        let mut c = open(&disk, DB);
        (0..times).for_each(|n| write(&mut c, pages, 7 + times - 1 - n));
        let before = disk.ops();
        stop.iter().for_each(|ops| disk.stop_after(*ops));
        let _ = c.close();
        (disk.ops() - before, disk)
    };
    let log_bytes = |disk: &SimDisk| disk.snapshot_file(Path::new("/db-onewrite")).map_or(0, |log| log.len());
    let mut given_back = 0;
    for stop in 0..run(None).0 {
        let (_, stopped) = run(Some(stop));
        for seed in 0..4 {
            let cut = stopped.crash(seed);
            let long = log_bytes(&cut);
            assert_eq!(found(&cut, DB, "recovered"), 7, "operation {stop}, seed {seed}");
            given_back += usize::from(log_bytes(&cut) < long);
            for (next, seed) in (4..9).flat_map(|next| (0..3).map(move |seed| (next, seed))) {
                let disk = cut.survive();
                disk.stop_after(next);
                let told = try_open(&disk, DB).and_then(|mut c| try_fill(&mut c, 2, 9)).is_ok();
                let case = format!("operation {stop}, then {next}, seed {seed}");
                let n = found(&disk.crash(seed), DB, &case);
                assert!(n == 9 || (n == 7 && !told), "{case}: {n}");
            }
        }
    }
    assert!(given_back > 5, "{given_back} recoveries gave the log back");
}

#[test]
fn a_file_that_is_renamed_behind_its_close_and_replaced() {
    for stop in 0..40 {
        for seed in 0..8 {
            let disk = SimDisk::new(SimConfig::default());
            session(&disk, DB, 3, 2, 7);
            disk.rename(Path::new(DB), Path::new(OLD)).unwrap();
            disk.sync_dir_of(Path::new(DB)).unwrap();
            disk.stop_after(stop);
            let wrote = try_open(&disk, DB).and_then(|mut c| try_fill(&mut c, 2, 50));
            let after = disk.crash(seed);
            let case = format!("operation {stop}, seed {seed}");
            assert_eq!(found(&after, OLD, &case), 7, "{case}");
            if wrote.is_ok() {
                assert_eq!(found(&after, DB, &case), 50, "{case}");
            }
        }
    }
}

#[test]
fn extra_flushes_the_removal_of_the_mark() {
    let disk = SimDisk::new(SimConfig::default());
    session(&disk, DB, 1, 2, 1);
    let mut c = open(&disk, DB);
    c.note_synchronous("extra");
    write(&mut c, 2, 2);
    c.close().unwrap();
    assert!((0..50).all(|seed| !is_marked(&disk.crash(seed), DB)));
    let mut c = open(&disk, DB);
    c.note_synchronous("full");
    write(&mut c, 2, 3);
    c.close().unwrap();
    assert!((0..50).any(|seed| is_marked(&disk.crash(seed), DB)));
}

#[test]
fn an_older_copy_of_home_is_refused() {
    let disk = SimDisk::new(SimConfig::default());
    session(&disk, DB, 1, 2, 1);
    let mut c = open(&disk, DB);
    write(&mut c, 2, 2);
    c.pragma("checkpoint", None);
    let older = disk.snapshot_file(Path::new(DB)).unwrap();
    assert!(mark(&older).is_some());
    write(&mut c, 2, 3);
    c.close().unwrap();
    disk.put_file(Path::new(DB), &older);
    let mut c = open(&disk, DB);
    let error = c.lock(LockLevel::Shared).unwrap_err();
    assert!(error.to_string().contains("older copy"), "{error}");
}

#[test]
fn repair_takes_the_mark_off() {
    let disk = SimDisk::new(SimConfig::default());
    session(&disk, DB, 9, 3, 7);
    let mut marked = 0;
    for seed in 0..60 {
        let after = disk.crash(seed);
        let repair = || Repair::open(Arc::new(after.clone()), Path::new(DB), OpenMode::ReadWrite).unwrap();
        let Some(session) = repair().mark().unwrap() else { continue };
        marked += 1;
        let (_, state) = repair().preview(session, false).unwrap();
        assert_eq!(state.page_count, 3);
        repair().recover(session, false).unwrap();
        assert!(!is_marked(&after, DB));
        assert_eq!(found(&after, DB, "recovered"), 7);
    }
    assert!(marked > 5, "{marked}");
}

fn session_with_records(disk: &SimDisk) -> Option<u64> {
    let log = LogFile::open(disk, Path::new("/db-onewrite"), OpenMode::ReadOnly).unwrap()?;
    let newest = log.slots().unwrap().into_iter().next().filter(|slot| slot.live)?;
    (log.scan(&newest, |_| Ok(())).unwrap().records > 0).then_some(newest.session)
}

/// One for log, slot, mark and record; one to bring everything home.
#[test]
fn a_session_that_follows_another_flushes_twice() {
    let disk = SimDisk::new(SimConfig::default());
    session(&disk, DB, 1, 2, 1);
    for byte in 2..30 {
        disk.reset_counters();
        session(&disk, DB, 1, 2, byte);
        assert_eq!(disk.counters().flushes(), 2, "session {byte}");
    }
}

#[test]
fn a_power_cut_anywhere_in_many_short_sessions() {
    let (mut beside_plain, mut beside_older) = (0, 0);
    for round in 1..16u8 {
        let run = |stop: Option<u64>| {
            let disk = SimDisk::new(SimConfig::default());
            (0..round).for_each(|byte| session(&disk, DB, 1, 2, byte));
            let before = disk.ops();
            stop.iter().for_each(|ops| disk.stop_after(*ops));
            let told = try_open(&disk, DB).and_then(|mut c| {
                try_fill(&mut c, 2, 200)?;
                let _ = c.close();
                Ok(())
            });
            (disk.ops() - before, told.is_ok(), disk)
        };
        let (ops, ..) = run(None);
        for stop in 0..ops {
            let (_, told, disk) = run(Some(stop));
            for seed in 0..24 {
                let case = format!("{round} sessions, operation {stop}, seed {seed}");
                let after = disk.crash(seed);
                let home = mark(&after.snapshot_file(Path::new(DB)).unwrap());
                if let Some(session) = session_with_records(&after) {
                    beside_plain += usize::from(home.is_none());
                    beside_older += usize::from(home.is_some_and(|mark| mark.session != session));
                }
                let n = found(&after, DB, &case);
                assert!(n == 200 || (!told && n == round - 1), "{case}: {n}");
            }
        }
    }
    assert!(beside_plain > 5 && beside_older > 5, "{beside_plain} and {beside_older} of the cases it is about");
}

/// The mark is on the medium before a page of home is overwritten (rule MarkWithFirstRecord).
#[test]
fn a_power_cut_in_a_recovery_that_brings_home_unflushed_records() {
    const PAGES: u32 = 3;
    let mut unmarked = 0;
    for stop in 0..16 {
        let disk = SimDisk::new(SimConfig::default());
        (6..8).for_each(|byte| session(&disk, DB, 1, PAGES, byte));
        let mut c = open(&disk, DB);
        c.lock(LockLevel::Shared).unwrap();
        c.lock(LockLevel::Reserved).unwrap();
        (0..PAGES.into()).for_each(|n| c.write_at(&filled(n, PAGES, 8), n * PAGE as u64).unwrap());
        c.prepare(None).unwrap();
        c.commit().unwrap();
        std::mem::forget(c);
        let killed = disk.survive();
        // No recovery keeps records beside those of a too big transaction.
        let log = killed.open(Path::new("/db-onewrite"), OpenMode::ReadWrite).unwrap();
        log.write_at(&[1; PAGE], log.len().unwrap()).unwrap();
        killed.stop_after(stop);
        let done = try_open(&killed, DB).and_then(|mut c| c.lock(LockLevel::Shared)).is_ok();
        for seed in 0..24 {
            let after = killed.crash(seed);
            let case = format!("operation {stop}, seed {seed}");
            unmarked += usize::from(!is_marked(&after, DB));
            let n = found(&after, DB, &case);
            assert!(n == 8 || (n == 7 && !done), "{case}: {n}");
            let home = after.snapshot_file(Path::new(DB)).unwrap();
            assert!(home[PAGE..].iter().all(|byte| *byte == n), "{case}: pages of several transactions");
        }
    }
    assert!(unmarked > 20, "{unmarked} cuts took the mark");
}

#[test]
fn a_log_without_its_seal_is_flushed_by_itself() {
    let disk = SimDisk::new(SimConfig::default());
    session(&disk, DB, 1, 2, 1);
    session(&disk, DB, 1, 2, 2);
    let log = Path::new("/db-onewrite");
    let bytes = disk.snapshot_file(log).unwrap();
    let file = disk.open(log, OpenMode::ReadWrite).unwrap();
    file.set_len(0).unwrap();
    file.write_at(&bytes, 0).unwrap();
    drop(file);
    let mut c = open(&disk, DB);
    write(&mut c, 2, 3);
    let after = disk.crash_by(&mut |_| 0);
    assert_eq!(found(&after, DB, "all that was not flushed is lost"), 3);
    c.close().unwrap();
}

/// The other process is about to look at home: the closing one keeps its file open, without its
/// locks.
#[test]
fn a_close_that_fails_leaves_the_database_to_the_next_process() {
    const COMMON: (u64, u64) = (0x4000_0002 + 509, 1);
    for op in [Op::Write, Op::Sync] {
        let mut failed = 0;
        for nth in 1.. {
            let disk = SimDisk::new(SimConfig::default());
            let engine = Engine::new(Arc::new(disk.clone()));
            let mut c = engine.open(Path::new(DB), OpenMode::Create, &[]).unwrap();
            (1..=9).for_each(|byte| write(&mut c, 9, byte));
            let comer = disk.open(Path::new(DB), OpenMode::ReadWrite).unwrap();
            assert!(comer.try_lock(COMMON.0, COMMON.1, LockKind::Shared).unwrap());
            disk.fail_nth(op, nth, ErrorKind::Other);
            let closed = c.close();
            comer.unlock(COMMON.0, COMMON.1).unwrap();
            if closed.is_ok() {
                break;
            }
            failed += 1;
            let case = format!("{op:?} {nth} of the close failed");
            assert_eq!(found(&disk, DB, &case), 9, "{case}");
            drop(engine);
        }
        assert!(failed > 0, "{op:?}");
    }
}

/// Another program copies the log and does not flush it.
fn copy_log(disk: &SimDisk, in_place: bool) {
    let log = Path::new("/db-onewrite");
    let bytes = disk.snapshot_file(log).unwrap();
    if !in_place {
        disk.remove(log).unwrap();
    }
    let copy = disk.open(log, OpenMode::Create).unwrap();
    copy.set_len(0).and_then(|()| copy.write_at(&bytes, 0)).unwrap();
}

/// `copied`: its log is a copy, made in place or not.
fn closed(config: SimConfig, copied: Option<bool>) -> SimDisk {
    let disk = SimDisk::new(config);
    session(&disk, DB, 2, 2, 7);
    session(&disk, DB, 2, 2, 7);
    if let Some(in_place) = copied {
        disk.open(Path::new(DB), OpenMode::ReadWrite).unwrap().sync().unwrap();
        copy_log(&disk, in_place);
    }
    disk
}

/// The mark reaches the medium, and no record.
#[test]
fn a_power_cut_behind_the_mark_beside_a_log_that_was_copied() {
    for in_place in [false, true] {
        let disk = closed(SimConfig::default(), Some(in_place));
        let mut c = open(&disk, DB);
        c.lock(LockLevel::Shared).unwrap();
        c.lock(LockLevel::Reserved).unwrap();
        for (n, after) in crashes(&disk, 100).enumerate() {
            assert_eq!(found(&after, DB, &format!("in place: {in_place}, case {n}")), 7);
        }
    }
}

/// A session without a commit, whose end is cut short or fails, and the beginning of the next one.
#[test]
fn a_power_cut_behind_a_close_without_a_commit_that_failed_or_was_killed() {
    let begin = |disk: &SimDisk| {
        let mut c = open(disk, DB);
        c.lock(LockLevel::Shared).and_then(|()| c.lock(LockLevel::Reserved)).map(|_| c)
    };
    let run = |troubled: &dyn Fn(&SimDisk)| {
        let disk = SimDisk::new(SimConfig::default());
        (6..8).for_each(|byte| session(&disk, DB, 2, 2, byte));
        let mut c = begin(&disk).unwrap();
        c.unlock(LockLevel::None).unwrap();
        troubled(&disk);
        (c.close().is_ok(), disk.survive())
    };
    let after = |killed: &SimDisk, case: &str| {
        let c = begin(killed).unwrap_or_else(|e| panic!("{case}: {e}"));
        for (n, cut) in crashes(killed, 30).enumerate() {
            assert_eq!(found(&cut, DB, &format!("{case}, cut {n}")), 7);
        }
        drop(c);
    };
    let stopped = (1..).find(|stop| {
        let (closed, killed) = run(&|disk| disk.stop_after(*stop));
        after(&killed, &format!("stopped behind {stop} operations"));
        closed
    });
    let failed = (1..).find(|nth| {
        let (closed, killed) = run(&|disk| disk.fail_nth(Op::Sync, *nth, ErrorKind::Other));
        after(&killed, &format!("flush {nth} failed"));
        closed
    });
    assert!(stopped > Some(3) && failed > Some(2), "{stopped:?} operations, {failed:?} flushes");
}

/// Its first process was killed before it had marked home.
#[test]
fn a_power_cut_beside_a_log_that_was_copied_before_its_first_close() {
    let mut copied = 0;
    for stop in 0.. {
        let disk = SimDisk::new(SimConfig::default());
        disk.stop_after(stop);
        let mut c = try_open(&disk, DB);
        let done = c.as_mut().is_ok_and(|c| try_fill(c, 2, 7).is_ok());
        std::mem::forget(c);
        let killed = disk.survive();
        let home = killed.snapshot_file(Path::new(DB)).unwrap_or_default();
        if mark(&home).is_none() && killed.snapshot_file(Path::new("/db-onewrite")).is_some() {
            copied += 1;
            copy_log(&killed, true);
            let mut c = open(&killed, DB);
            write(&mut c, 2, 8);
            for (n, after) in crashes(&killed, 20).enumerate() {
                assert_eq!(found(&after, DB, &format!("operation {stop}, case {n}")), 8);
            }
            c.close().unwrap();
        }
        if done {
            break;
        }
    }
    assert!(copied > 3, "{copied}");
}

/// The second flush answers that all is on the medium, though the first one failed.
#[test]
fn a_power_cut_behind_a_failed_flush_of_a_log_that_was_copied() {
    for (in_place, other, failures) in [(false, false, 1), (true, false, 2), (false, true, 2), (true, true, 1)] {
        let disk = closed(SimConfig::default(), Some(in_place));
        let mut c = open(&disk, DB);
        for _ in 0..failures {
            disk.fail_nth(Op::Sync, 1, ErrorKind::Other);
            try_fill(&mut c, 2, 8).unwrap_err();
        }
        if other {
            c = open(&disk, DB);
        }
        for written in [7, 9] {
            if written == 9 {
                write(&mut c, 2, 9);
            } else {
                c.lock(LockLevel::Shared).unwrap();
                c.lock(LockLevel::Reserved).unwrap();
            }
            for (n, after) in crashes(&disk, 100).enumerate() {
                let case = format!("in place: {in_place}, by another: {other}, {written}, case {n}");
                assert_eq!(found(&after, DB, &case), written, "{case}");
            }
            c.unlock(LockLevel::None).unwrap();
        }
    }
}

/// `stop`: power goes after so many operations of the next try.
fn fails_once(
    options: &[(&str, &str)],
    copied: bool,
    (op, nth): (Op, u64),
    as_windows: bool,
    stop: Option<u64>,
) -> bool {
    let disk = closed(SimConfig { as_windows, ..SimConfig::default() }, copied.then_some(false));
    let options: Vec<_> = options.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    let open = || Engine::new(Arc::new(disk.clone())).open(Path::new(DB), OpenMode::ReadWrite, &options).unwrap();
    let mut c = open();
    disk.fail_nth(op, nth, ErrorKind::Other);
    if try_fill(&mut c, 2, 8).is_ok() {
        return false;
    }
    let case = format!("{options:?}, copied: {copied}, as Windows: {as_windows}, {op:?} {nth}");
    for (n, after) in crashes(&disk, 50).enumerate() {
        let byte = found(&after, DB, &format!("{case}, crash {n} behind the failure"));
        assert!([7, 8].contains(&byte), "{case}: {byte}");
    }
    if let Some(operations) = stop {
        disk.stop_after(operations);
        let written = try_fill(&mut c, 2, 9);
        for (n, after) in crashes(&disk, 50).enumerate() {
            let byte = found(&after, DB, &format!("{case}, stopped at {operations}, crash {n}"));
            assert!(byte == 9 || (written.is_err() && [7, 8].contains(&byte)), "{case}: {byte}");
        }
        return disk.is_off();
    }
    if try_fill(&mut c, 2, 9).is_err() {
        drop(c);
        c = open();
        try_fill(&mut c, 2, 9).unwrap_or_else(|e| panic!("{case}: {e}"));
    }
    for (n, after) in crashes(&disk, 50).enumerate() {
        assert_eq!(found(&after, DB, &format!("{case}, crash {n}")), 9, "{case}");
    }
    true
}

/// Where a call of the first commit fails, the next try finds its bytes in the cache alone.
#[test]
fn a_power_cut_behind_a_first_commit_that_failed_once() {
    type Options = &'static [(&'static str, &'static str)];
    let next: [(Options, bool); 6] = [
        (&[("scheme", "off")], false),
        (&[("scheme", "off-opt")], true),
        (&[], false),
        (&[], true),
        (&[("scheme", "wal-opt")], false),
        (&[("psow", "0"), ("atomic_unit", "512")], false),
    ];
    let ops = [Op::Sync, Op::SyncDir, Op::WriteDurable, Op::Write, Op::SetLen, Op::Reserve, Op::Remove, Op::Create];
    let mut failed = 0;
    for (options, copied) in next {
        for (op, nth) in ops.into_iter().flat_map(|op| (1..8).map(move |nth| (op, nth))) {
            for as_windows in [false, true] {
                let once = |stop| fails_once(options, copied, (op, nth), as_windows, stop);
                if once(None) {
                    failed += 1;
                    let _ = (0..).find(|operations| !once(Some(*operations)));
                }
            }
        }
    }
    assert!(failed > 20, "{failed}");
}
