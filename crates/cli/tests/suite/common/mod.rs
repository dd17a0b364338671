//! Real databases, made by stock SQLite, committed through the engine, and left as a crash leaves
//! them.

#![allow(dead_code)]

use onewrite_core::disk::OpenMode;
use onewrite_core::disk::real::RealDisk;
use onewrite_core::inspect::{LogFile, log_path};
use onewrite_core::{Connection, Engine, LockLevel};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;

/// Page size in bytes.
pub const PAGE: usize = 4096;
/// Rows in a new database.
pub const ROWS: u32 = 200;

/// A database in a directory of its own.
pub struct Db {
    pub dir: tempfile::TempDir,
    pub home: PathBuf,
}

impl Db {
    pub fn new() -> Db {
        let dir = tempfile::tempdir().unwrap();
        Db { home: dir.path().join("app.db"), dir }
    }

    pub fn log(&self) -> PathBuf {
        log_path(&self.home)
    }

    pub fn beside(&self, suffix: &str) -> PathBuf {
        let mut name = self.home.as_os_str().to_owned();
        name.push(suffix);
        PathBuf::from(name)
    }

    /// Every file of the directory with its bytes.
    pub fn files(&self) -> Vec<(PathBuf, Vec<u8>)> {
        let entries = std::fs::read_dir(self.dir.path()).unwrap();
        let mut files: Vec<_> =
            entries.map(|e| e.unwrap().path()).map(|p| (p.clone(), std::fs::read(p).unwrap())).collect();
        files.sort();
        files
    }

    /// The same files elsewhere.
    pub fn copy(&self) -> Db {
        let db = Db::new();
        for (path, bytes) in self.files() {
            std::fs::write(db.dir.path().join(path.file_name().unwrap()), bytes).unwrap();
        }
        db
    }

    /// Changes a bit of the log.
    pub fn flip_log(&self, at: usize) {
        let mut bytes = std::fs::read(self.log()).unwrap();
        bytes[at] ^= 4;
        std::fs::write(self.log(), bytes).unwrap();
    }

    /// Changes bytes of home.
    pub fn patch_home(&self, at: usize, new: &[u8]) {
        let mut bytes = std::fs::read(&self.home).unwrap();
        bytes[at..at + new.len()].copy_from_slice(new);
        std::fs::write(&self.home, bytes).unwrap();
    }

    /// A transaction of SQLite without onewrite, once and `more` times.
    pub fn write_without_onewrite(&self, more: u32) {
        let stock = rusqlite::Connection::open(&self.home).unwrap();
        for n in 0..=more {
            stock.execute("INSERT INTO t VALUES(?1, 'stock')", [100_000 + n]).unwrap();
        }
        stock.close().unwrap();
    }

    /// A transaction through onewrite, and a close.
    pub fn write_through_onewrite(&self) {
        let mut c = engine().open(&self.home, OpenMode::ReadWrite, &[]).unwrap();
        let old = std::fs::read(&self.home).unwrap();
        let mut new = old.clone();
        new[60..64].copy_from_slice(&7u32.to_be_bytes()); // PRAGMA user_version
        commit(&mut c, &old, &new);
        c.close().unwrap();
    }

    /// The log's name if another session sets it aside.
    pub fn log_aside(&self) -> PathBuf {
        let log = LogFile::open(&RealDisk::new(), &self.log(), OpenMode::ReadOnly).unwrap().unwrap();
        self.beside(&format!("-onewrite-{:016x}", log.slots().unwrap()[0].session))
    }

    /// Where in the log file each live record begins.
    pub fn records(&self) -> Vec<usize> {
        let log = LogFile::open(&RealDisk::new(), &self.log(), OpenMode::ReadOnly).unwrap().unwrap();
        let slot = log.slots().unwrap().remove(0);
        let mut at = 3 * slot.block_bytes as usize + slot.start.0 as usize;
        let mut starts = Vec::new();
        log.scan(&slot, |record| {
            starts.push(at);
            at += record.bytes() as usize;
            Ok(())
        })
        .unwrap();
        starts
    }

    /// Stock SQLite finds a sound file, with this many rows more than a new database has.
    pub fn assert_sound_with(&self, added: u32) {
        let c = rusqlite::Connection::open(&self.home).unwrap();
        let sound: String = c.query_row("PRAGMA integrity_check", [], |r| r.get(0)).unwrap();
        assert_eq!(sound, "ok");
        let rows: u32 = c.query_row("SELECT count(*) FROM t", [], |r| r.get(0)).unwrap();
        assert_eq!(rows, ROWS + added);
    }
}

/// The bytes of a new database, and after each of `count` transactions that insert a row.
pub fn versions(count: u32) -> Vec<Vec<u8>> {
    let db = Db::new();
    let c = rusqlite::Connection::open(&db.home).unwrap();
    c.execute_batch("CREATE TABLE t(k INTEGER PRIMARY KEY, v BLOB)").unwrap();
    for k in 1..=ROWS {
        c.execute("INSERT INTO t VALUES(?1 * 10, zeroblob(128))", [k]).unwrap();
    }
    let mut versions = vec![std::fs::read(&db.home).unwrap()];
    for n in 0..count {
        c.execute("INSERT INTO t VALUES(?1 * 37 % 200 * 10 + 5, randomblob(128))", [n]).unwrap();
        versions.push(std::fs::read(&db.home).unwrap());
    }
    versions
}

/// Commits the pages that differ between two versions.
pub fn commit(c: &mut Connection, old: &[u8], new: &[u8]) {
    c.lock(LockLevel::Shared).unwrap();
    c.lock(LockLevel::Reserved).unwrap();
    for (n, page) in new.chunks(PAGE).enumerate() {
        if old.get(n * PAGE..(n + 1) * PAGE) != Some(page) {
            c.write_at(page, (n * PAGE) as u64).unwrap();
        }
    }
    c.prepare(None).unwrap();
    c.sync().unwrap();
    c.commit().unwrap();
    c.unlock(LockLevel::None).unwrap();
}

pub fn engine() -> Arc<Engine> {
    Engine::new(Arc::new(RealDisk::new()))
}

/// A plain database.
pub fn plain() -> Db {
    let db = Db::new();
    std::fs::write(&db.home, versions(0).remove(0)).unwrap();
    db
}

/// A database that crashed with `count` transactions in its log.
pub fn crashed(count: u32) -> Db {
    crashed_with(count, &[])
}

/// The same, through a connection with these options.
pub fn crashed_with(count: u32, options: &[(&str, &str)]) -> Db {
    let db = Db::new();
    let versions = versions(count);
    std::fs::write(&db.home, &versions[0]).unwrap();
    let options: Vec<_> = options.iter().map(|(n, v)| (n.to_string(), v.to_string())).collect();
    let mut c = engine().open(&db.home, OpenMode::ReadWrite, &options).unwrap();
    for pair in versions.windows(2) {
        commit(&mut c, &pair[0], &pair[1]);
    }
    // The files before the close are those that a crash leaves.
    db.copy()
}

/// A database whose last process took the mark off, behind `count` transactions, and died before it
/// ended the log. These are the files themselves, for the log notes the number of its database
/// file.
pub fn died_unmarked(count: u32) -> Db {
    let db = Db::new();
    let versions = versions(count);
    std::fs::write(&db.home, &versions[0]).unwrap();
    let mut c = engine().open(&db.home, OpenMode::ReadWrite, &[]).unwrap();
    for pair in versions.windows(2) {
        commit(&mut c, &pair[0], &pair[1]);
    }
    let log = std::fs::read(db.log()).unwrap();
    c.close().unwrap();
    std::fs::write(db.log(), log).unwrap();
    db
}

/// A database that was new when it crashed: home has its mark and no page, the log has everything.
pub fn crashed_new() -> Db {
    let db = Db::new();
    let mut c = engine().open(&db.home, OpenMode::Create, &[]).unwrap();
    commit(&mut c, &[], &versions(0)[0]);
    let crashed = db.copy();
    assert_eq!(std::fs::metadata(&crashed.home).unwrap().len(), 100);
    crashed
}

/// Runs the command.
pub fn onewrite(args: &[&str], file: &Path) -> Output {
    Command::new(env!("CARGO_BIN_EXE_onewrite")).args(args).arg(file).output().unwrap()
}

/// Everything it printed.
pub fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// Runs it and asserts its status and that it says each of `words`.
pub fn expect(status: i32, args: &[&str], file: &Path, words: &[&str]) -> String {
    let output = onewrite(args, file);
    let said = said(&output);
    assert_eq!(output.status.code(), Some(status), "{args:?}: {said}");
    for word in words {
        assert!(said.contains(word), "{args:?}: {word:?} is missing in: {said}");
    }
    said
}
