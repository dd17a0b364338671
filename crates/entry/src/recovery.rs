//! Opens and recovers a database and a log of arbitrary bytes.
//!
//! Asserted: a refusal changes nothing; recovery does as foretold without writing; another recovery
//! after a crash gives the same (invariant I8); a clean close takes the mark off and keeps every
//! page; a recovered database takes a commit.

use std::path::Path;
use std::sync::Arc;

use onewrite_core::Repair;
use onewrite_core::disk::OpenMode;
use onewrite_core::disk::sim::SimDisk;
use onewrite_core::inspect::home;
use onewrite_core::inspect::layout::slot::PAGE_COUNT_IN_HOME;
use onewrite_core::{Connection, Engine, Error, LockLevel, Result};

use crate::Reach;
use crate::files::{Files, HOME};

const READ_BYTES_MAX: u64 = 128 << 10;

/// Opens the files that the input encodes.
pub fn run(input: &[u8]) -> Reach {
    let files = Files::parse(input);
    let disk = files.disk();
    let foreseen = foresee(&disk);
    assert_eq!(Files::of(&disk, files.atomic_unit), files, "looking changed something");
    let mut db = open(&disk);
    if let Err(e) = db.lock(LockLevel::Shared) {
        drop(db);
        refused(&e, &disk, &files);
        assert!(!matches!(foreseen, Some(Ok(_))) || is_full(&e), "recovery was to succeed, and: {e}");
        return Reach { accepted: 0, refused: 1 };
    }
    if let Some(Err(e)) = foreseen {
        panic!("recovery was to fail, and did not: {e}");
    }
    let seen = match content(&mut db) {
        Ok(seen) => seen,
        Err(e) => {
            // Home is shorter than its header says, and no log says its length: a read of a missing
            // page is an error (invariant I7).
            let short = (files.home.len() as u64) < db.size().expect("size");
            let unsaid = foreseen.is_none() || leaves_size_to_home(&files);
            assert!(short && matches!(e, Error::Corrupt(_)) && unsaid, "read: {e}");
            return Reach { accepted: 0, refused: 1 };
        }
    };
    let died = disk.survive();
    same(&mut open(&died), &seen, "after a crash behind the recovery");
    db.unlock(LockLevel::None).expect("unlock");
    if let Err(e) = db.close() {
        assert!(is_full(&e), "close: {e}");
        return Reach { accepted: 0, refused: 1 };
    }
    let mut again = open(&disk);
    let marked = home::mark(&Files::of(&disk, 512).home).is_some();
    assert!(!marked, "the mark is on after a close");
    same(&mut again, &seen, "after a close");
    let written = write(&mut again);
    if let Err(e) = &written {
        assert!(
            is_full(e) || matches!(e, Error::NotADatabase(_) | Error::CantOpen(_) | Error::Misuse(_)),
            "a commit on top: {e}"
        );
    }
    let transactions = foreseen.and_then(Result::ok).unwrap_or(0);
    Reach { accepted: transactions, refused: u64::from(written.is_err()) }
}

/// Transactions that recovery would replay; `None` without a mark.
fn foresee(disk: &SimDisk) -> Option<Result<u64>> {
    let repair = Repair::open(Arc::new(disk.clone()), Path::new(HOME), OpenMode::ReadOnly).expect("nobody has it open");
    let session = repair.mark().expect("home can be read")?;
    let foreseen = repair.preview(session, false).map(|(report, _)| report.transactions);
    if let Ok(transactions) = foreseen {
        let anyway = repair.preview(session, true).map(|(report, _)| report.transactions);
        assert_eq!(anyway.ok(), Some(transactions), "accepting losses changes what a sound log gives");
    }
    Some(foreseen)
}

/// Whether a slot leaves home's length to home's header.
fn leaves_size_to_home(before: &Files) -> bool {
    let disk = before.disk();
    let repair = Repair::open(Arc::new(disk), Path::new(HOME), OpenMode::ReadOnly).expect("nobody has it open");
    let log = repair.lock_log().expect("nobody has it open");
    log.is_some_and(|log| {
        log.slots().expect("the log can be read").iter().any(|slot| slot.page_count == PAGE_COUNT_IN_HOME)
    })
}

fn open(disk: &SimDisk) -> Connection {
    let options = [("busy_ms".to_owned(), "0".to_owned()), ("log_size".to_owned(), "256k".to_owned())];
    Engine::new(Arc::new(disk.clone()))
        .open(Path::new(HOME), OpenMode::ReadWrite, &options)
        .expect("open reads nothing")
}

fn is_full(e: &Error) -> bool {
    matches!(e, Error::Full(_)) || matches!(e, Error::Poisoned(why) if why.contains("room") || why.contains("full"))
}

/// Arbitrary bytes can cause only these errors, and only a full disk may have been written.
fn refused(e: &Error, disk: &SimDisk, before: &Files) {
    match e {
        Error::Corrupt(_) | Error::CantOpen(_) | Error::NotADatabase(_) => {
            assert_eq!(&Files::of(disk, before.atomic_unit), before, "a refusal changed something: {e}");
        }
        e if is_full(e) => {}
        other => panic!("not an error that bytes can cause: {other}"),
    }
}

fn content(db: &mut Connection) -> Result<(u64, Vec<u8>)> {
    let bytes = db.size().expect("size");
    let mut content = vec![0; usize::try_from(bytes.min(READ_BYTES_MAX)).unwrap_or(0)];
    let read = db.read_at(&mut content, 0)?;
    content.truncate(read);
    // Each recovery is a new transaction for warm caches, so the counters differ.
    for counter in [24..28, 92..96] {
        content.get_mut(counter).unwrap_or_default().fill(0);
    }
    Ok((bytes, content))
}

fn same(db: &mut Connection, seen: &(u64, Vec<u8>), when: &str) {
    match db.lock(LockLevel::Shared) {
        Ok(()) => {}
        Err(e) if is_full(&e) => return,
        Err(e) => panic!("{when}: {e}"),
    }
    assert_eq!(&content(db).expect("read"), seen, "{when}");
    db.unlock(LockLevel::None).expect("unlock");
}

fn write(db: &mut Connection) -> Result<()> {
    db.lock(LockLevel::Shared)?;
    db.lock(LockLevel::Reserved)?;
    let size = db.size()?;
    if size >= 1024 {
        let last = size / 512 * 512 - 512;
        db.write_at(&[0x5a; 512], last)?;
        db.prepare(None)?;
        db.sync()?;
        db.commit()?;
        db.unlock(LockLevel::None)?;
        db.lock(LockLevel::Shared)?;
        let mut back = [0; 512];
        assert_eq!(db.read_at(&mut back, last)?, 512);
        assert_eq!(back, [0x5a; 512], "what was committed is read");
    }
    db.unlock(LockLevel::None)
}
