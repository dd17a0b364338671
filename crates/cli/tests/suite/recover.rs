//! `onewrite recover`: the transactions of the log come home. Those that cannot be kept are given
//! up only when asked for, by name. A refusal changes nothing.

use crate::common;

use common::{Db, commit, crashed, engine, expect, plain, versions};
use onewrite_core::LockLevel;
use onewrite_core::disk::real::RealDisk;
use onewrite_core::disk::{Disk, LockKind, OpenMode};

/// Runs it, and asserts that no byte of any file changed.
fn changes_nothing(status: i32, args: &[&str], db: &Db, words: &[&str]) {
    let before = db.files();
    expect(status, args, &db.home, words);
    assert_eq!(db.files(), before, "{args:?} changed a file");
}

/// As a program has that is about to be started by one that has just closed the file.
#[test]
fn a_holder_that_is_soon_gone_is_waited_for() {
    let db = crashed(5);
    let home = RealDisk::new().open(&db.home, OpenMode::ReadWrite).unwrap();
    assert!(home.try_lock(0x4000_0000, 512, LockKind::Exclusive).unwrap());
    let holder = std::thread::spawn(move || {
        std::thread::sleep(std::time::Duration::from_millis(100));
        drop(home);
    });
    expect(0, &["recover"], &db.home, &["recovered: 5 transactions"]);
    holder.join().unwrap();
}

#[test]
fn a_crashed_database_comes_back_whole() {
    let db = crashed(15);
    changes_nothing(0, &["recover", "--dry-run"], &db, &["would recover: 15 transactions", "Nothing was changed"]);
    expect(0, &["recover"], &db.home, &["recovered: 15 transactions from the log (TID 2 to 16)", "mark is off"]);
    db.assert_sound_with(15);
    changes_nothing(0, &["recover"], &db, &["carries no mark", "nothing to recover"]);
    expect(0, &["check"], &db.home, &[": sound. Checked"]);
    // And onewrite goes on with it.
    let mut c = engine().open(&db.home, OpenMode::ReadWrite, &[]).unwrap();
    let old = std::fs::read(&db.home).unwrap();
    let mut new = old.clone();
    new[4096 + 4000] ^= 1;
    common::commit(&mut c, &old, &new);
    c.close().unwrap();
}

#[test]
fn a_damaged_record() {
    let db = crashed(9);
    db.flip_log(db.records()[4] + 60);
    changes_nothing(1, &["recover"], &db, &["transaction 6 was durable", "--accept-loss", "Nothing was changed"]);
    changes_nothing(1, &["recover", "--without-log", "--yes"], &db, &["4 transactions in it can be kept"]);
    changes_nothing(0, &["recover", "--accept-loss", "--dry-run"], &db, &["4 transactions", "given up: transaction 6"]);
    let log = std::fs::read(db.log()).unwrap();
    let said = expect(0, &["recover", "--accept-loss"], &db.home, &["TID 2 to 5", "given up: transaction 6", ".lost"]);
    assert!(said.contains("app.db-onewrite.lost"), "{said}");
    assert_eq!(std::fs::read(db.beside("-onewrite.lost")).unwrap(), log, "the damaged log is kept");
    db.assert_sound_with(4);
}

/// The object of `recover --json`.
fn json(db: &Db, args: &[&str], status: i32) -> serde_json::Value {
    let output = common::onewrite(&[&["recover", "--json"], args].concat(), &db.home);
    assert_eq!(output.status.code(), Some(status), "{}", common::said(&output));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn for_machines() {
    let db = crashed(15);
    for (args, dry_run) in [(&["--dry-run"][..], true), (&[], false)] {
        let found = json(&db, args, 0);
        assert_eq!((&found["result"], &found["dry_run"]), (&"recovered".into(), &dry_run.into()), "{found}");
        let of = |name: &str| found[name].as_u64();
        assert_eq!((of("transactions"), of("first_tid"), of("last_tid")), (Some(15), Some(2), Some(16)), "{found}");
        assert!(of("pages") > Some(0) && found["lost_tid"].is_null() && found["seconds"].is_number(), "{found}");
        assert_eq!(found["file"], db.home.to_str().unwrap());
    }
    let found = json(&db, &[], 0);
    assert_eq!((&found["result"], &found["transactions"]), (&"nothing".into(), &serde_json::Value::Null));

    let db = crashed(9);
    db.flip_log(db.records()[4] + 60);
    let found = json(&db, &[], 1);
    assert!(found["status"] == 1 && found["error"].as_str().unwrap().contains("--accept-loss"), "{found}");
    let found = json(&db, &["--accept-loss"], 0);
    assert_eq!((found["lost_tid"].as_u64(), found["transactions"].as_u64()), (Some(6), Some(4)), "{found}");
    assert_eq!(found["log_kept"], db.beside("-onewrite.lost").to_str().unwrap());

    let db = crashed(5);
    std::fs::remove_file(db.log()).unwrap();
    let found = json(&db, &["--without-log", "--yes"], 0);
    assert_eq!((&found["result"], &found["log_kept"]), (&"log_given_up".into(), &serde_json::Value::Null), "{found}");

    let db = crashed(5);
    std::fs::copy(plain().home, &db.home).unwrap();
    assert_eq!(json(&db, &["--without-log", "--yes"], 0)["result"], "log_set_aside");
}

#[test]
fn accepting_a_loss_where_there_is_none_loses_nothing() {
    let db = crashed(3);
    expect(0, &["recover", "--accept-loss"], &db.home, &["3 transactions"]);
    assert!(!db.beside("-onewrite.lost").exists());
    db.assert_sound_with(3);
}

#[test]
fn a_log_that_is_missing() {
    let db = crashed(5);
    std::fs::remove_file(db.log()).unwrap();
    changes_nothing(1, &["recover"], &db, &["app.db-onewrite is missing", "--without-log"]);
    let remains = "pages of 4,096 bytes, with 1 table: t (200 rows)";
    changes_nothing(
        1,
        &["recover", "--without-log"],
        &db,
        &["gives up", "What remains: ", remains, "--yes", "Nothing was changed"],
    );
    changes_nothing(0, &["recover", "--without-log", "--dry-run"], &db, &["would take the mark off", remains]);
    expect(
        0,
        &["recover", "--without-log", "--yes"],
        &db.home,
        &["mark is off", "Given up", remains, "integrity_check"],
    );
    db.assert_sound_with(0); // There was no checkpoint, so home is as it was.
}

#[test]
fn a_log_of_another_database() {
    let db = crashed(5);
    let other = std::fs::read(crashed(2).log()).unwrap();
    std::fs::write(db.log(), &other).unwrap();
    std::fs::write(db.beside("-onewrite.lost"), "an earlier one").unwrap();
    changes_nothing(1, &["recover"], &db, &["another database", "put the right log back"]);
    changes_nothing(1, &["recover", "--accept-loss"], &db, &["another database"]);
    changes_nothing(1, &["recover", "--without-log"], &db, &["--yes"]);
    expect(0, &["recover", "--without-log", "--yes"], &db.home, &["kept as", "app.db-onewrite.lost2"]);
    assert_eq!(std::fs::read(db.beside("-onewrite.lost2")).unwrap(), other);
    assert_eq!(std::fs::read(db.beside("-onewrite.lost")).unwrap(), b"an earlier one");
    assert!(!db.log().exists());
    db.assert_sound_with(0);
}

#[test]
fn a_zeroed_and_a_truncated_log() {
    for len in [0, 6000, 1_060_864] {
        let db = crashed(5);
        std::fs::write(db.log(), vec![0; len]).unwrap();
        changes_nothing(1, &["recover"], &db, &["no valid header slot", "--without-log"]);
        expect(0, &["recover", "--without-log", "--yes"], &db.home, &["mark is off"]);
        db.assert_sound_with(0);
    }
}

#[test]
fn a_whole_log_is_not_given_up() {
    let db = crashed(5);
    changes_nothing(1, &["recover", "--without-log", "--yes"], &db, &["there and whole", "without --without-log"]);
}

#[test]
fn a_plain_database_beside_a_live_log() {
    let db = crashed(5);
    std::fs::copy(plain().home, &db.home).unwrap();
    changes_nothing(0, &["recover"], &db, &["holds 5 transactions", "carries no mark", "--without-log"]);
    changes_nothing(1, &["recover", "--without-log"], &db, &["--yes", "Nothing was changed"]);
    let home = std::fs::read(&db.home).unwrap();
    expect(0, &["recover", "--without-log", "--yes"], &db.home, &["kept as", "The database itself was not changed"]);
    assert_eq!(std::fs::read(&db.home).unwrap(), home);
    assert!(db.beside("-onewrite.lost").exists() && !db.log().exists());
}

#[test]
fn files_that_are_no_database_and_databases_in_use_are_refused() {
    let db = Db::new();
    std::fs::write(&db.home, "hello, this is no database").unwrap();
    changes_nothing(1, &["recover"], &db, &["app.db", "not a SQLite database", "nothing was changed"]);
    std::fs::write(&db.home, []).unwrap();
    changes_nothing(0, &["recover"], &db, &["carries no mark"]);
    expect(1, &["recover"], &db.beside("x"), &["app.dbx", "No such file"]);
    changes_nothing(2, &["recover", "--colour"], &db, &["--colour"]);
    changes_nothing(2, &["recover", "--yes"], &db, &["--without-log"]);
    changes_nothing(2, &["recover", "--without-log", "--accept-loss"], &db, &["cannot be used with"]);

    let db = crashed(3);
    let mut c = engine().open(&db.home, OpenMode::ReadWrite, &[]).unwrap();
    c.lock(LockLevel::Shared).unwrap();
    for args in [&["recover"][..], &["recover", "--dry-run"], &["recover", "--without-log", "--yes"]] {
        changes_nothing(1, args, &db, &["app.db", "another process"]);
    }
    c.close().unwrap();
    db.assert_sound_with(3);

    let reader = rusqlite::Connection::open(&db.home).unwrap();
    reader.execute_batch("BEGIN; SELECT * FROM t").unwrap();
    let mut rows = reader.prepare("SELECT * FROM t").unwrap();
    let _row = rows.query([]).unwrap().next().unwrap().is_some();
    // Reading the file here would give the reader's POSIX locks back, so its bytes are not
    // compared.
    expect(1, &["recover"], &db.home, &["in use by another process", "close every program"]);
}

#[test]
fn a_rollback_journal() {
    let db = crashed(3);
    std::fs::write(db.beside("-journal"), [0xd9; 600]).unwrap();
    for args in [&["recover"][..], &["recover", "--accept-loss"], &["recover", "--without-log", "--yes"]] {
        changes_nothing(1, args, &db, &["rollback journal", "another copy"]);
    }
    let db = plain();
    std::fs::write(db.beside("-journal"), [0xd9; 600]).unwrap();
    changes_nothing(0, &["recover"], &db, &["SQLite rolls its journal"]);
}

#[test]
fn without_permission_nothing_happens_and_the_message_names_the_file() {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::process::CommandExt;
    let db = crashed(3);
    let before = db.files();
    let permit =
        |path: &std::path::Path, mode| std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
    let run = |args: &[&str]| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_onewrite"));
        command.args(args).arg(&db.home);
        if std::fs::File::options().write(true).open(&db.home).is_ok() {
            command.uid(65534).gid(65534); // The superuser may do anything: run as nobody.
        }
        command.output()
    };
    permit(db.dir.path(), 0o555);
    permit(&db.home, 0o444);
    permit(&db.log(), 0o444);
    let checked = run(&["check"]);
    let recovered = run(&["recover"]);
    permit(db.dir.path(), 0o755);
    let (Ok(checked), Ok(recovered)) = (checked, recovered) else {
        return eprintln!("skipped: nobody may not run the command here");
    };
    let said = common::said(&checked);
    assert_eq!(checked.status.code(), Some(0), "checking needs no permission to write: {said}");
    let said = common::said(&recovered);
    assert_eq!(recovered.status.code(), Some(1), "{said}");
    assert!(said.contains("app.db") && said.contains("Permission denied"), "{said}");
    assert_eq!(db.files(), before);
}

#[test]
fn a_new_database_that_crashed_before_its_first_checkpoint() {
    let db = common::crashed_new();
    let lost = db.copy();
    expect(0, &["recover"], &db.home, &["1 transaction from the log"]);
    db.assert_sound_with(0);
    std::fs::remove_file(lost.log()).unwrap();
    let remains = "What remains: an empty database, without a page or a table";
    changes_nothing(1, &["recover", "--without-log"], &lost, &[remains, "--yes"]);
    expect(0, &["recover", "--without-log", "--yes"], &lost.home, &["mark is off", remains]);
    assert!(std::fs::read(&lost.home).unwrap().is_empty(), "an empty database, as before its first transaction");
}

/// Its log is found by the session, under the name that it was made with or one of its own.
#[test]
fn a_database_that_was_renamed_finds_its_log() {
    for replaced in [false, true] {
        let db = crashed(5);
        let renamed = db.dir.path().join("new.db");
        std::fs::rename(&db.home, &renamed).unwrap();
        if replaced {
            let versions = versions(1);
            std::fs::write(&db.home, &versions[0]).unwrap();
            let mut c = engine().open(&db.home, OpenMode::ReadWrite, &[]).unwrap();
            commit(&mut c, &versions[0], &versions[1]);
            c.close().unwrap();
            expect(0, &["check"], &db.home, &["log of another database", "app.db: sound"]);
            db.assert_sound_with(1);
        }
        expect(0, &["check"], &renamed, &["recovery waits (5 transactions"]);
        expect(0, &["inspect"], &renamed, &["app.db-onewrite", "records         5,"]);
        expect(0, &["recover"], &renamed, &["recovered: 5 transactions"]);
        Db { home: renamed, dir: db.dir }.assert_sound_with(5);
    }
}
