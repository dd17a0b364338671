//! `onewrite check`: every kind of damage is found, a sound database is called so, and no byte
//! changes.

use crate::common;

use common::{Db, PAGE, crashed, crashed_with, died_unmarked, engine, expect, plain, versions};
use onewrite_core::LockLevel;
use onewrite_core::disk::OpenMode;

/// Checks without changing a byte, and returns the output.
fn check(db: &Db, status: i32, words: &[&str]) -> String {
    let before = db.files();
    let said = expect(status, &["check"], &db.home, words);
    assert_eq!(db.files(), before, "check changed a file");
    said
}

fn damaged(db: &Db, words: &[&str]) {
    let said = check(db, 1, words);
    assert!(said.contains("DAMAGE  ") && said.trim_end().lines().last().unwrap().contains("DAMAGED: "), "{said}");
}

#[test]
fn sound_files() {
    check(&plain(), 0, &["plain SQLite database", "app.db: sound. Checked"]);
    check(
        &crashed(12),
        0,
        &["12 records", "recovery would bring", "sound; recovery waits (12 transactions in the log)"],
    );
    let db = crashed(3);
    expect(0, &["recover"], &db.home, &[]);
    check(&db, 0, &["closed in order", "app.db: sound. Checked"]);
    std::fs::write(&db.home, []).unwrap();
    std::fs::remove_file(db.log()).unwrap();
    check(&db, 0, &["is empty", "sound"]);
}

/// A database is not whole without its WAL, whichever mode the header states.
#[test]
fn a_wal_beside_the_file() {
    let db = plain();
    let stock = rusqlite::Connection::open(&db.home).unwrap();
    stock.execute_batch("PRAGMA journal_mode=WAL; CREATE TABLE beside(a)").unwrap();
    let wal = db.beside("-wal");
    let copy = std::fs::read(&wal).unwrap();
    drop(stock);
    std::fs::write(&wal, copy).unwrap();
    check(&db, 0, &["a write-ahead log of SQLite lies beside it", "app.db-wal", "app.db: sound. Checked"]);
    expect(0, &["inspect"], &db.home, &["  WAL  ", "app.db-wal"]);
}

/// The second file of database shadowing is named, and goes with the recovery.
#[cfg_attr(any(feature = "portable", target_os = "android"), ignore = "POSIX exchanges no names")]
#[test]
fn a_crash_leaves_two_files_that_take_turns() {
    for count in 3..5 {
        let db = crashed_with(count, &[("scheme", "dash")]);
        let second = db.beside("-onewrite-shadow");
        assert!(second.exists());
        check(&db, 0, &["a second file of scheme=dash is there", "-onewrite-shadow", "app.db: sound"]);
        expect(0, &["inspect"], &db.home, &["second file", "the next write removes it"]);
        expect(0, &["recover"], &db.home, &[]);
        assert!(!second.exists());
        db.assert_sound_with(count);
    }
}

#[test]
fn a_home_that_is_damaged() {
    let db = plain();
    let cases: [(usize, &[u8], &str); 8] = [
        (0, b"not", "not a SQLite database"),
        (16, &[3, 3], "page size"),
        (18, &[9, 9], "versions 9 and 9"),
        (20, &[255, 0], "payload"),
        (36, &[9, 9, 9, 9], "freelist"),
        (44, &[9, 9, 9, 9], "schema format"),
        (72, b"sessions", "byte 19 was changed"),
        (100, &[0], "root of a table"),
    ];
    for (at, bytes, word) in cases {
        let db = db.copy();
        db.patch_home(at, bytes);
        damaged(&db, &[word]);
    }
    let bytes = std::fs::read(&db.home).unwrap();
    std::fs::write(&db.home, &bytes[..bytes.len() - PAGE]).unwrap();
    damaged(&db, &["shorter than its header states"]);
    std::fs::write(&db.home, &bytes[..60]).unwrap();
    damaged(&db, &["ends within the header"]);
    std::fs::write(&db.home, "hello").unwrap();
    damaged(&db, &["not a SQLite database"]);
}

/// Byte 18 remembers that WAL mode was asked for, also in a file that is marked or cut short.
#[test]
fn a_file_that_remembers_wal_mode_and_is_shorter_than_it_states() {
    for db in [plain(), crashed(3)] {
        let mut home = std::fs::read(&db.home).unwrap();
        home[18] = 2;
        home.truncate(home.len() - PAGE);
        std::fs::write(&db.home, home).unwrap();
        let said = check(&db, 1, &["shorter"]);
        assert!(!said.contains("mean nothing"), "{said}");
    }
}

#[test]
fn a_log_that_does_not_fit() {
    let whole = crashed(4);
    let db = whole.copy();
    std::fs::remove_file(db.log()).unwrap();
    damaged(&db, &["missing", "--without-log"]);

    let db = whole.copy();
    std::fs::copy(crashed(4).log(), db.log()).unwrap();
    damaged(&db, &["another database"]);

    let db = whole.copy();
    expect(0, &["recover"], &db.home, &[]);
    std::fs::copy(&whole.home, &db.home).unwrap();
    damaged(&db, &["older"]);

    let db = whole.copy();
    std::fs::copy(&plain().home, &db.home).unwrap();
    check(
        &db,
        2,
        &[
            "holds 4 transactions that this database lacks",
            "app.db: sound by itself; it lacks what its log holds. Checked",
        ],
    );

    let db = whole.copy();
    std::fs::write(db.beside("-journal"), [0xd9; 600]).unwrap();
    damaged(&db, &["rollback journal", "another copy"]);

    let db = plain();
    std::fs::write(db.beside("-journal"), [0xd9; 600]).unwrap();
    check(&db, 0, &["rolls it back", "sound"]);
}

/// A process of SQLite without onewrite that is killed in a commit leaves a header that states more
/// pages than the file has, and the journal that mends it.
#[test]
fn a_commit_of_sqlite_that_was_killed() {
    let db = plain();
    let stock = rusqlite::Connection::open(&db.home).unwrap();
    let inserts = "INSERT INTO t SELECT k + 10000, randomblob(129) FROM t";
    stock.execute_batch(&format!("PRAGMA synchronous=OFF; PRAGMA cache_size=2; BEGIN; {inserts}")).unwrap();
    let journal = std::fs::read(db.beside("-journal")).unwrap();
    stock.execute_batch("ROLLBACK").unwrap();
    drop(stock);
    std::fs::write(db.beside("-journal"), journal).unwrap();
    let pages = u32::from_be_bytes(std::fs::read(&db.home).unwrap()[28..32].try_into().unwrap());
    db.patch_home(28, &(pages + 20).to_be_bytes());
    check(&db, 0, &["note    the file is shorter than its header states", "rolls it back", "app.db: sound. Checked"]);
    expect(0, &["recover"], &db.home, &["nothing to recover", "rolls its journal"]);
    db.assert_sound_with(0);
    check(&db, 0, &["app.db: sound. Checked"]);
}

/// The same in a checkpoint of its write-ahead log.
#[test]
fn a_checkpoint_of_sqlite_that_was_killed() {
    let db = plain();
    let stock = rusqlite::Connection::open(&db.home).unwrap();
    stock.execute_batch("PRAGMA journal_mode=WAL; INSERT INTO t SELECT k + 10000, randomblob(129) FROM t").unwrap();
    let wal = std::fs::read(db.beside("-wal")).unwrap();
    let bytes = std::fs::metadata(&db.home).unwrap().len();
    stock.execute_batch("PRAGMA wal_checkpoint(TRUNCATE)").unwrap();
    // The pages behind the old end did not arrive.
    std::fs::File::options().write(true).open(&db.home).unwrap().set_len(bytes).unwrap();
    std::fs::write(db.beside("-wal"), wal).unwrap();
    let killed = db.copy();
    drop(stock);
    check(
        &killed,
        0,
        &["note    the file is shorter than its header states", "write-ahead log", "app.db: sound. Checked"],
    );
    expect(0, &["recover"], &killed.home, &["nothing to recover"]);
    killed.assert_sound_with(common::ROWS);
}

/// SQLite's checkpoints run beside a check. The header may be of one and the length from before it,
/// and its log gone by the next look.
#[test]
fn checkpoints_of_sqlite_beside_a_check() {
    use std::sync::atomic::{AtomicBool, Ordering};
    let db = plain();
    let stock = rusqlite::Connection::open(&db.home).unwrap();
    stock.execute_batch("PRAGMA journal_mode=WAL; PRAGMA synchronous=OFF; CREATE TABLE more(a)").unwrap();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let over = &over;
        scope.spawn(move || {
            // The file grows by 80 KiB each time: to 40 MiB at most.
            for _ in 0..500 {
                let rows = "WITH n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 20) INSERT INTO more SELECT zeroblob(4000) FROM n";
                stock.execute_batch(&format!("{rows}; PRAGMA wal_checkpoint(TRUNCATE)")).unwrap();
                if over.load(Ordering::Relaxed) {
                    break;
                }
            }
        });
        let checked: Vec<_> = (0..60).map(|_| common::onewrite(&["check"], &db.home)).collect();
        over.store(true, Ordering::Relaxed);
        for output in checked {
            assert_ne!(output.status.code(), Some(1), "{}", common::said(&output));
        }
    });
}

/// A process that dies between the mark and the end of the log leaves a whole database, though the
/// log holds transactions (rule CloseWithoutSlot). SQLite without onewrite may write to it then.
#[test]
fn a_log_whose_session_ended() {
    let over = "All that it may still hold (4 transactions) is in the database";
    let db = died_unmarked(4);
    check(&db, 0, &["no mark", "ended in order", over, "app.db: sound. Checked"]);
    expect(0, &["recover"], &db.home, &["nothing to recover"]);
    db.write_through_onewrite();
    assert!(!db.log_aside().exists());
    db.assert_sound_with(4);

    for more in [0, 1, 2, 9] {
        let db = died_unmarked(4);
        db.write_without_onewrite(more);
        let aside = db.log_aside();
        let said = check(&db, 0, &["no mark", "app.db: sound. Checked"]);
        expect(0, &["recover"], &db.home, &["nothing to recover"]);
        let is_told = said.contains(&format!("sets the log aside as {}", aside.display()));
        assert!(is_told || said.contains("the next session begins it anew"), "{said}");
        db.write_through_onewrite();
        assert_eq!(aside.exists(), is_told, "{said}");
        db.assert_sound_with(5 + more);
        check(&db, 0, &["app.db: sound. Checked"]);
    }

    // The new file has other counters.
    for more in [None, Some(7)] {
        let db = died_unmarked(4);
        more.inspect(|more| db.write_without_onewrite(*more));
        expect(0, &["research", "convert"], &db.home, &["converted"]);
        check(&db, 0, &["app.db: sound. Checked"]);
        db.assert_sound_with(4 + more.map_or(0, |more| more + 1));
    }
}

/// Put back under the name, or over the bytes of the file that the log was used for.
#[test]
fn another_database_file_beside_a_log() {
    let old = versions(0).remove(0);
    let rename = |db: &Db, bytes: &[u8]| {
        std::fs::write(db.beside("-copy"), bytes).unwrap();
        std::fs::rename(db.beside("-copy"), &db.home).unwrap();
    };
    let overwrite = |db: &Db, bytes: &[u8]| std::fs::write(&db.home, bytes).unwrap();
    for put in [&rename as &dyn Fn(&Db, &[u8]), &overwrite] {
        for db in [died_unmarked(4), crashed(4)] {
            put(&db, &old);
            let said = check(&db, 2, &["holds 4 transactions that this database lacks", "sets the log aside as"]);
            assert!(!said.contains("DAMAGE"), "{said}");
            expect(0, &["recover"], &db.home, &["holds 4 transactions", "--without-log"]);
        }
    }
    // A newer one may have them all.
    let db = died_unmarked(4);
    let newer = db.copy();
    newer.write_without_onewrite(5);
    rename(&db, &std::fs::read(&newer.home).unwrap());
    let said = check(
        &db,
        2,
        &["may hold what this database lacks", "4 transactions", "cannot be told", "sets the log aside as"],
    );
    assert!(!said.contains("DAMAGE"), "{said}");
    let aside = db.log_aside();
    assert!(said.contains(&aside.display().to_string()), "{said}");
    db.write_through_onewrite();
    assert!(aside.exists());
    // As with every log that another file had.
    check(&db, 0, &["is the log of another database", "app.db: sound. Checked"]);
}

#[test]
fn a_log_that_is_damaged() {
    let whole = crashed(8);
    let starts = whole.records();
    let case = |change: &dyn Fn(&Db), words: &[&str]| {
        let db = whole.copy();
        change(&db);
        damaged(&db, words);
    };
    case(&|db| db.flip_log(2 * 4096 + 40), &["no valid header slot"]);
    for in_record in [0, 8, 24, 28, 60] {
        case(&|db| db.flip_log(starts[3] + in_record), &["was durable", "--accept-loss"]);
    }
    let len = std::fs::metadata(whole.log()).unwrap().len();
    case(&|db| std::fs::write(db.log(), vec![0; len as usize]).unwrap(), &["no valid header slot"]);
    for keep in [0, 5000, len - 1] {
        let cut = |db: &Db| std::fs::File::options().write(true).open(db.log()).unwrap().set_len(keep).unwrap();
        case(&cut, &["no valid header slot", "cut short"]);
    }
    let cut = |db: &Db| std::fs::File::options().write(true).open(&db.home).unwrap().set_len(9000).unwrap();
    case(&cut, &["shorter than its log says"]);

    let db = whole.copy();
    db.flip_log(starts[7] + 60);
    check(&db, 0, &["note", "in the log in part", "7 transactions in the log"]);
}

#[test]
fn one_slot_of_two_that_is_damaged() {
    let db = crashed_with(30, &[("table_size", "65536"), ("log_size", "262144")]);
    let twice = db.copy();
    let mut c = engine().open(&twice.home, OpenMode::ReadWrite, &[]).unwrap();
    c.lock(LockLevel::Shared).unwrap();
    c.unlock(LockLevel::None).unwrap();
    c.pragma("checkpoint", None).unwrap().unwrap();
    let twice = twice.copy(); // Both slots are written.
    drop(c);
    check(&twice, 0, &["belong together"]);
    for slot in [1, 2] {
        let db = twice.copy();
        db.flip_log(slot * 4096 + 40);
        damaged(&db, &[&format!("header slot {slot}"), "is damaged"]);
    }
}

#[test]
fn files_that_cannot_be_checked() {
    let db = crashed(2);
    let mut c = engine().open(&db.home, OpenMode::ReadWrite, &[]).unwrap();
    c.lock(LockLevel::Shared).unwrap();
    expect(0, &["check"], &db.home, &["sound, and in use"]);
    drop(c);
    let stock = rusqlite::Connection::open(&db.home).unwrap();
    stock.execute_batch("BEGIN EXCLUSIVE").unwrap();
    expect(2, &["check"], &db.home, &["not checked", "in use by another process"]);
    drop(stock);
    expect(2, &["check"], &db.beside("-nothing"), &["not checked", "app.db-nothing", "No such file"]);
    expect(2, &["check", "--colour"], &db.home, &["--colour"]);
    expect(2, &["check"], db.dir.path(), &["not checked"]);
}

#[test]
fn a_new_database_that_crashed_before_its_first_checkpoint() {
    let db = common::crashed_new();
    check(&db, 0, &["no page yet", "recovery would bring", "sound; recovery waits"]);
    expect(0, &["inspect"], &db.home, &["no page yet"]);
    std::fs::remove_file(db.log()).unwrap();
    damaged(&db, &["missing"]);
}

/// Of 256 GiB of holes no byte is read.
#[test]
fn a_database_that_was_lengthened() {
    for (db, words) in [(plain(), "bytes behind the last page"), (crashed(3), "recovery waits (3 transactions")] {
        std::fs::OpenOptions::new().write(true).open(&db.home).unwrap().set_len(256 << 30).unwrap();
        let begun = std::time::Instant::now();
        expect(0, &["check"], &db.home, &["274,877,906,944 bytes of the database can be read", words]);
        assert!(begun.elapsed().as_secs() < 20, "{:?}", begun.elapsed());
    }
}

#[test]
fn a_name_commands_no_terminal_in_json_either() {
    let db = plain();
    let odd = db.beside("\u{9b}2J\u{7f}\u{202e}");
    std::fs::rename(&db.home, &odd).unwrap();
    for args in [&["check", "--json"], &["inspect", "--json"]] {
        let said = expect(0, args, &odd, &["\\u009b2J\\u007f\\u202e"]);
        let found: serde_json::Value = serde_json::from_str(&said).unwrap();
        assert!(found["file"].as_str().unwrap().ends_with("app.db\u{9b}2J\u{7f}\u{202e}"), "{said}");
    }
}

/// The findings and the verdict of `check --json`, and its status.
fn json(db: &Db, args: &[&str]) -> serde_json::Value {
    let before = db.files();
    let args: Vec<_> = ["check", "--json"].iter().chain(args).copied().collect();
    let output = common::onewrite(&args, &db.home);
    assert_eq!(db.files(), before, "check changed a file");
    let found: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(found["status"].as_i64(), output.status.code().map(i64::from), "{found}");
    found
}

/// SQLite alone knows that a page of a table is no page.
#[test]
fn a_page_of_a_table_that_is_damaged() {
    let (closed, waiting) = (plain(), crashed(3));
    // Recovery mends pages that the log has whole, so the damage goes to one that no transaction
    // changes.
    let (old, new) = (std::fs::read(&waiting.home).unwrap(), versions(3).remove(3));
    let is_same = |n: &usize| old[n * PAGE..(n + 1) * PAGE] == new[n * PAGE..(n + 1) * PAGE];
    let leaf = (2..8).rev().find(is_same).unwrap();
    for (db, parts) in [(&closed, "file, tables"), (&waiting, "file, log, tables")] {
        db.patch_home(leaf * PAGE, &[0xff; PAGE]);
        damaged(db, &["DAMAGE  the tables: ", &format!("Tree 2 page {}", leaf + 1), &format!("Checked: {parts}\n")]);
        let before = db.files();
        expect(0, &["check", "--quick"], &db.home, &[": sound", ". Not checked: tables (--quick)\n"]);
        assert_eq!(db.files(), before);
    }
    let found = json(&closed, &[]);
    assert!(found["seconds"].is_number(), "{found}");
    assert_eq!((&found["verdict"], &found["status"]), (&"damaged".into(), &1.into()), "{found}");
    assert_eq!((&found["checked"], &found["not_checked"]), (&["file", "tables"][..].into(), &serde_json::json!([])));
    assert_eq!(found["findings"].as_array().unwrap().last().unwrap()["grade"], "damage");
    let found = json(&crashed(4), &["--quick"]);
    assert_eq!((&found["verdict"], &found["transactions_waiting"]), (&"sound".into(), &4.into()));
    assert_eq!(found["not_checked"], serde_json::json!([{"part": "tables", "why": "--quick"}]));
    assert_eq!(json(&Db::new(), &[])["verdict"], "not_checked");
}

/// The check is of the state that SQLite, or onewrite, would make of them. The files stay as they
/// are.
#[test]
fn the_tables_behind_a_journal_and_a_write_ahead_log() {
    let (rolled_back, in_wal) = (plain(), plain());
    let stock = rusqlite::Connection::open(&rolled_back.home).unwrap();
    let inserts = "INSERT INTO t SELECT k + 10000, randomblob(129) FROM t";
    stock.execute_batch(&format!("PRAGMA cache_size=2; BEGIN; {inserts}")).unwrap();
    // As a process leaves it that dies in the middle of a transaction that spilled.
    let killed = rolled_back.copy();
    drop(stock);
    assert!(std::fs::read(killed.beside("-journal")).unwrap()[..8] == [0xd9, 0xd5, 5, 0xf9, 0x20, 0xa1, 0x63, 0xd7]);
    check(&killed, 0, &["rolls it back", "the tables: SQLite's integrity check finds no damage", "sound"]);
    killed.patch_home(100, &[0; 8]);
    // The journal has the page as it was.
    check(&killed, 0, &["note    page 1 is not the root of a table", "sound"]);

    let stock = rusqlite::Connection::open(&in_wal.home).unwrap();
    stock.execute_batch(&format!("PRAGMA journal_mode=WAL; PRAGMA wal_autocheckpoint=0; {inserts}")).unwrap();
    let left = in_wal.copy();
    std::fs::remove_file(left.beside("-shm")).unwrap();
    let said = check(&left, 0, &["in WAL mode", "the tables: SQLite's integrity check finds no damage", "sound"]);
    // Others have it open: one more reader of theirs checks it.
    expect(0, &["check"], &in_wal.home, &["the tables: SQLite's integrity check finds no damage", "sound"]);
    assert!(!said.contains("DAMAGE"));
    // A page that the write-ahead log has not.
    let wal = std::fs::read(left.beside("-wal")).unwrap();
    let has = |page: usize| wal[32..].chunks(24 + PAGE).any(|frame| frame[..4] == (page as u32).to_be_bytes());
    let other = (3..9).find(|page| !has(*page)).unwrap();
    left.patch_home((other - 1) * PAGE, &[0xff; PAGE]);
    damaged(&left, &["the tables: "]);
}
