//! Databases and logs as each version of the log's format left them, closed and after a crash: they
//! are read, recovered and written. `docs/versions.md` promises it.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::support::{explain, one, open, open_stock};

const LOG: &str = "-onewrite";
/// Of blocks of 4 KiB the second holds a slot; its version is behind the magic.
const SLOT: usize = 4096;
/// No released version has written an earlier one.
const FIRST: u32 = 5;
const NOTES: i64 = 60;
/// What `make` leaves.
const EXPECTED: (i64, i64, i64) = (52, 11, 1_578);

fn kept() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/formats")
}

fn version(log: &Path) -> u32 {
    let bytes = fs::read(log).unwrap();
    assert_eq!(&bytes[SLOT..][..8], b"onewrite", "{}", log.display());
    u32::from_le_bytes(bytes[SLOT + 8..][..4].try_into().unwrap())
}

/// Two sessions: pages lie in home, and changes to them in the log.
fn make(path: &Path) -> rusqlite::Connection {
    let db = open(path, "idle=0").unwrap();
    db.execute_batch("PRAGMA page_size=1024; CREATE TABLE note(n INTEGER PRIMARY KEY, text TEXT)").unwrap();
    db.execute_batch("CREATE INDEX texts ON note(text)").unwrap();
    for n in 1..=NOTES {
        db.execute("INSERT INTO note VALUES (?1, ?2)", (n, format!("note {n} ").repeat(8))).unwrap();
    }
    drop(db);
    let db = open(path, "idle=0").unwrap();
    db.execute_batch("DELETE FROM note WHERE n % 7 = 0; UPDATE note SET text = 'changed' WHERE n % 5 = 0").unwrap();
    db
}

fn contents(db: &rusqlite::Connection) -> (i64, i64, i64) {
    assert_eq!(one::<String>(db, "PRAGMA integrity_check"), "ok");
    let count = |condition: &str| one::<i64>(db, &format!("SELECT count(*) FROM note {condition}"));
    (count(""), count("WHERE text = 'changed'"), one(db, "SELECT sum(n) FROM note"))
}

/// Files are kept as text: their length, and each row of 32 bytes that are not all zeros, behind
/// its offset.
const ROW: usize = 32;

fn unpack(from: &Path, to: &Path) {
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap().path();
        let text = fs::read_to_string(&entry).unwrap();
        let (length, rows) = text.split_once('\n').unwrap();
        let mut bytes = vec![0; length.strip_prefix("length ").unwrap().parse().unwrap()];
        for row in rows.lines() {
            let (offset, row) = row.split_once(' ').unwrap();
            let digits = |at: usize| u8::from_str_radix(&row[at..at + 2], 16).unwrap();
            let row: Vec<u8> = (0..row.len()).step_by(2).map(digits).collect();
            bytes[usize::from_str_radix(offset, 16).unwrap()..][..row.len()].copy_from_slice(&row);
        }
        fs::write(to.join(entry.file_stem().unwrap()), bytes).unwrap();
    }
}

fn pack(from: &Path, name: &str, to: &Path) {
    let bytes = fs::read(from.join(name)).unwrap();
    let mut text = format!("length {}\n", bytes.len());
    for (n, row) in bytes.chunks(ROW).enumerate().filter(|(_, row)| row.iter().any(|&byte| byte != 0)) {
        let digits: String = row.iter().map(|byte| format!("{byte:02x}")).collect();
        text.push_str(&format!("{:06x} {digits}\n", n * ROW));
    }
    fs::write(to.join(format!("{name}.hex")), text).unwrap();
}

#[test]
fn files_of_every_version_are_read_and_written() {
    let mut seen = BTreeSet::new();
    for entry in fs::read_dir(kept()).unwrap() {
        let from = entry.unwrap().path();
        let dir = tempfile::tempdir().unwrap();
        unpack(&from, dir.path());
        for name in ["closed.db", "crashed.db"] {
            let path = dir.path().join(name);
            seen.insert(version(&dir.path().join(format!("{name}{LOG}"))));
            let marked = fs::read(&path).unwrap()[19] == 87;
            assert_eq!(marked, name == "crashed.db", "the mark of {} in {}", name, from.display());
            let db = open(&path, "require=1").unwrap();
            assert_eq!(contents(&db), EXPECTED, "{} in {}", name, from.display());
            db.execute_batch("INSERT INTO note VALUES (1000, 'of a later version')").unwrap();
            drop(db);
            let (count, changed, sum) = EXPECTED;
            assert_eq!(contents(&open_stock(&path)), (count + 1, changed, sum + 1000), "{}", from.display());
        }
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("new.db");
    let _db = make(&path);
    let newest = version(&dir.path().join(format!("new.db{LOG}")));
    let all: BTreeSet<u32> = (FIRST..=newest).collect();
    assert_eq!(seen, all, "tests/formats has files of each version: `cargo test keep -- --ignored` makes the newest");
}

/// A database that was closed needs none of it, and one that crashed stays as it is.
#[test]
fn a_log_of_another_version_is_set_aside_or_refused_by_its_number() {
    let dir = tempfile::tempdir().unwrap();
    unpack(&kept().join(format!("log-{FIRST}")), dir.path());
    let of_version_4 = |name: &str| {
        let log = dir.path().join(format!("{name}{LOG}"));
        let mut bytes = fs::read(&log).unwrap();
        for slot in [SLOT, 2 * SLOT] {
            bytes[slot + 8] = 4;
        }
        fs::write(&log, &bytes).unwrap();
        (dir.path().join(name), log, bytes)
    };
    let (crashed, log, bytes) = of_version_4("crashed.db");
    let home = fs::read(&crashed).unwrap();
    let why = explain(&open(&crashed, "require=1").unwrap_err()).1;
    assert!(why.contains("has version 4 of its format"), "{why}");
    assert!(fs::read(&crashed).unwrap() == home && fs::read(&log).unwrap() == bytes, "they have changed");

    let (closed, log, bytes) = of_version_4("closed.db");
    let db = open(&closed, "require=1").unwrap();
    db.execute_batch("INSERT INTO note VALUES (1000, 'of a later version')").unwrap();
    drop(db);
    assert_eq!(contents(&open_stock(&closed)).0, EXPECTED.0 + 1);
    assert_eq!(version(&log), FIRST);
    let aside = |path: &Path| path != log && path.to_str().unwrap().starts_with(log.to_str().unwrap());
    let kept: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
    let kept: Vec<_> = kept.iter().filter(|path| aside(path)).map(|path| fs::read(path).unwrap()).collect();
    assert!(kept == [bytes], "{} logs are set aside", kept.len());
}

/// Makes the files of this version, when the log has a new one.
#[test]
#[ignore = "writes tests/formats"]
fn keep() {
    let dir = tempfile::tempdir().unwrap();
    let crashed = make(&dir.path().join("crashed.db"));
    let to = kept().join(format!("log-{}", version(&dir.path().join(format!("crashed.db{LOG}")))));
    fs::create_dir(&to).expect("the files of a version are kept as they are");
    drop(make(&dir.path().join("closed.db")));
    for name in ["closed.db", "crashed.db"] {
        for suffix in ["", LOG] {
            pack(dir.path(), &format!("{name}{suffix}"), &to);
        }
    }
    drop(crashed);
}
