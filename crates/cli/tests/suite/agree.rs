//! A database file and a log that may be of two moments, or of two databases: open, `check` and
//! `recover` agree on whether the two belong together. Open and `recover` lead to the same rows.

use crate::common;

use common::{Db, PAGE, commit, engine, onewrite, plain, said, versions};
use onewrite_core::disk::OpenMode;
use onewrite_core::{Connection, LockLevel};
use std::path::Path;

/// Files of one database, as they were at moments of its life.
struct Life {
    db: Db,
    /// The file of a close, two transactions in.
    backup: Vec<u8>,
    /// The marked file of the session before.
    marked_before: Vec<u8>,
    /// The file and the log of a crash, five transactions in, two of them behind a checkpoint.
    crashed: Files,
    closed: Files,
    /// After a recovery that left the records in the log; and between the slot and the mark of one
    /// that began a new session.
    recovering: [Files; 2],
    /// The file of a close, one transaction later.
    newer: Vec<u8>,
}

/// The database file and its log.
type Files = (Vec<u8>, Vec<u8>);

fn open(db: &Db, options: &[(&str, &str)]) -> Connection {
    let options: Vec<_> = options.iter().map(|(n, v)| (n.to_string(), v.to_string())).collect();
    let mut c = engine().open(&db.home, OpenMode::ReadWrite, &options).unwrap();
    c.lock(LockLevel::Shared).unwrap();
    c.unlock(LockLevel::None).unwrap();
    c
}

impl Life {
    fn new() -> Life {
        let db = Db::new();
        let all = versions(6);
        std::fs::write(&db.home, &all[0]).unwrap();
        let home = || std::fs::read(&db.home).unwrap();
        let files = || (home(), std::fs::read(db.log()).unwrap());
        let next = |c: &mut Connection, n: usize| commit(c, &all[n - 1], &all[n]);
        let mut c = open(&db, &[]);
        (1..3).for_each(|n| next(&mut c, n));
        let marked_before = home();
        c.close().unwrap();
        let backup = home();
        let mut c = open(&db, &[]);
        next(&mut c, 3);
        c.pragma("checkpoint", None).unwrap().unwrap();
        (4..6).for_each(|n| next(&mut c, n));
        let crashed = files();
        c.close().unwrap();
        let closed = files();
        let recovering = [&[][..], &[("scheme", "dash")]].map(|options| {
            put(&db, &crashed);
            let c = open(&db, options);
            let found = files();
            c.close().unwrap();
            if options.is_empty() { found } else { (crashed.0.clone(), found.1) }
        });
        put(&db, &crashed);
        let mut c = open(&db, &[]);
        next(&mut c, 6);
        c.close().unwrap();
        let newer = home();
        Life { db, backup, marked_before, crashed, closed, recovering, newer }
    }
}

/// Into the same files: the log notes which one it is used for.
fn put(db: &Db, (home, log): &Files) {
    for (path, _) in db.files() {
        if path != db.home && path != db.log() {
            std::fs::remove_file(path).unwrap();
        }
    }
    std::fs::write(&db.home, home).unwrap();
    std::fs::write(db.log(), log).unwrap();
}

/// Another file under the name.
fn rename(db: &Db, bytes: &[u8]) {
    std::fs::write(db.beside("-copy"), bytes).unwrap();
    std::fs::rename(db.beside("-copy"), &db.home).unwrap();
}

/// The rows that a writing connection finds. An error is one of the open, of the first read or of
/// the write.
fn rows(home: &Path) -> Result<String, rusqlite::Error> {
    let db = onewrite_rusqlite::open(home)?;
    let has_table: bool = db.query_row("SELECT count(*) FROM sqlite_schema WHERE name = 't'", [], |row| row.get(0))?;
    let rows = match has_table {
        true => db.query_row("SELECT count(*) || ' ' || sum(k) FROM t", [], |row| row.get(0))?,
        false => "no table".to_owned(),
    };
    let sound: String = db.query_row("PRAGMA integrity_check", [], |row| row.get(0))?;
    assert_eq!(sound, "ok");
    db.execute_batch("PRAGMA user_version = 7")?;
    Ok(rows)
}

/// How open, `check` and `recover` disagree on the files that `make` makes, if they do.
fn disagreement(db: &Db, case: &str, make: &dyn Fn()) -> Option<String> {
    let status = |args: &[&str]| {
        let output = onewrite(args, &db.home);
        (output.status.code().unwrap(), said(&output))
    };
    make();
    let before = db.files();
    let (checked, check_said) = status(&["check"]);
    let (previewed, preview_said) = status(&["recover", "--dry-run"]);
    assert_eq!(db.files(), before, "{case}: a look changed a file");
    let opened = rows(&db.home);
    make();
    let (recovered, recover_said) = status(&["recover"]);
    let all = format!("{case}:\nopen: {opened:?}\n{check_said}\ndry: {preview_said}\nrecover: {recover_said}");
    let agree = (checked != 1, previewed, recovered) == (opened.is_ok(), recovered, i32::from(opened.is_err()))
        && opened.is_ok_and(|opened| rows(&db.home).is_ok_and(|rows| rows == opened)) == (recovered == 0);
    (!agree).then_some(all)
}

#[test]
fn open_check_and_recover_agree() {
    let life = Life::new();
    let db = &life.db;
    let other = std::fs::read(&plain().home).unwrap();
    let mut later = other.clone();
    // Its change counter is far ahead.
    for at in [24, 92] {
        later[at..at + 4].copy_from_slice(&100_000u32.to_be_bytes());
    }
    let states = [
        ("crashed", &life.crashed),
        ("closed", &life.closed),
        ("recovering", &life.recovering[0]),
        ("between slot and mark", &life.recovering[1]),
    ];
    type Change<'a> = Box<dyn Fn() + 'a>;
    let over = |bytes: Vec<u8>| -> Change<'_> { Box::new(move || std::fs::write(&db.home, &bytes).unwrap()) };
    let under = |bytes: Vec<u8>| -> Change<'_> { Box::new(move || rename(db, &bytes)) };
    let cut = |keep: u64| -> Change<'_> {
        Box::new(move || std::fs::File::options().write(true).open(&db.home).unwrap().set_len(keep).unwrap())
    };
    let changes: Vec<(&str, Change<'_>)> = vec![
        ("as it is", Box::new(|| {})),
        ("its older backup, copied over it", over(life.backup.clone())),
        ("its older backup, renamed", under(life.backup.clone())),
        ("its newer copy, copied over it", over(life.newer.clone())),
        ("its newer copy, renamed", under(life.newer.clone())),
        ("its marked file of the session before", over(life.marked_before.clone())),
        ("another file", over(other.clone())),
        ("another file, renamed", under(other)),
        ("another file with a larger counter", over(later.clone())),
        ("another file with a larger counter, renamed", under(later)),
        ("cut short", cut(3 * PAGE as u64)),
        ("cut within the header", cut(60)),
        ("empty", cut(0)),
        ("without its log", Box::new(|| std::fs::remove_file(db.log()).unwrap())),
    ];
    let mut disagreements = Vec::new();
    for (state, files) in states {
        for (change, make) in &changes {
            let case = format!("{state}, {change}");
            disagreements.extend(disagreement(db, &case, &|| {
                put(db, files);
                make();
            }));
        }
    }
    assert!(disagreements.is_empty(), "{}", disagreements.join("\n"));
}
