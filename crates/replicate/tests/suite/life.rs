//! The life of a database around its store: it is not there yet, is restored before an application
//! starts, is replaced, and is checked, with the real program.

use crate::place::{Killed, Place, rows, said, until};
use onewrite_rusqlite::STOCK_VFS;
use rusqlite::Connection;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::Output;

impl Place {
    fn restores(&self, args: &[&str], dest: &Path) -> Output {
        self.program(&["restore"]).args(args).arg(self.url()).arg(dest).output().unwrap()
    }
}

fn begins(command: &mut std::process::Command, with: &str) -> (Killed, String) {
    let mut child = Killed(command.spawn().unwrap());
    let mut all = String::new();
    let mut said = BufReader::new(child.0.stderr.take().unwrap());
    while !all.contains(with) {
        assert!(said.read_line(&mut all).unwrap() > 0, "{all}");
    }
    std::thread::spawn(move || _ = std::io::copy(&mut said, &mut std::io::sink()));
    (child, all)
}

#[test]
fn a_database_that_is_not_there_is_waited_for() {
    let place = Place::new(10);
    let later = place.dir.path().join("later.db");
    fs::rename(&place.file, &later).unwrap();
    let (_shipper, _) = begins(&mut place.replicate(&["--interval", "50ms"]), "it is waited for");
    assert!(!place.store().exists() && !place.file.exists());
    fs::rename(&later, &place.file).unwrap();
    until("it is shipped", || place.names(0).len() == 1);
    let output = place.program(&["replicate", "--once"]).arg(&later).arg(place.url()).output().unwrap();
    assert!(!output.status.success() && said(&output).contains("there is no database"), "{}", said(&output));
}

/// With `--sync` commits wait from the first one on, and systemd is told when the application may
/// start.
#[test]
fn where_commits_wait_a_database_that_is_not_there_is_made() {
    let place = Place::new(1);
    for entry in fs::read_dir(place.dir.path()).unwrap() {
        fs::remove_file(entry.unwrap().path()).unwrap();
    }
    let manager = place.dir.path().join("manager");
    let hears = UnixDatagram::bind(&manager).unwrap();
    let (_shipper, all) = begins(place.replicate(&["--sync"]).env("NOTIFY_SOCKET", &manager), "commits wait for it");
    assert!(all.contains("is an empty database now"), "{all}");
    let mut told = [0; 100];
    let bytes = hears.recv(&mut told).unwrap();
    assert_eq!(told[..bytes].trim_ascii(), b"READY=1");
    place.sql("CREATE TABLE t(n INTEGER PRIMARY KEY, x)");
    for n in 1..4 {
        place.sql(&format!("INSERT INTO t VALUES ({n}, 'x')"));
        assert_eq!(rows(&place.restore(&[])).split(' ').next(), Some(&*n.to_string()));
    }
}

#[test]
fn a_database_that_is_gone_is_restored_before_it_is_shipped() {
    let place = Place::new(10);
    let ships =
        |more: &[&str]| place.replicate(&[&["--once", "--restore-if-db-not-exists"], more].concat()).output().unwrap();
    let first = ships(&[]);
    assert!(first.status.success() && !said(&first).contains("has the state"), "{}", said(&first));
    let before = rows(&place.restore(&[]));
    fs::remove_file(&place.file).unwrap();
    let _ = fs::remove_file(place.dir.path().join("app.db-onewrite"));
    let again = ships(&[]);
    assert!(again.status.success() && said(&again).contains("has the state of transaction"), "{}", said(&again));
    assert_eq!(rows(&place.file), before);
    // On another machine the store has an owner already.
    let other = place.dir.path().join("other.db");
    let refused =
        place.program(&["replicate", "--once", "--restore-if-db-not-exists"]).arg(&other).arg(place.url()).output();
    let refused = refused.unwrap();
    assert_eq!(refused.status.code(), Some(3), "{}", said(&refused));
    assert!(said(&refused).contains("onewrite promote") && !other.exists(), "{}", said(&refused));
}

#[test]
fn a_restore_may_depend_on_database_and_store() {
    let place = Place::new(10);
    let dest = place.dir.path().join("dest.db");
    fs::create_dir(place.store()).unwrap();
    let empty = place.restores(&["--if-replica-exists"], &dest);
    assert!(empty.status.success() && said(&empty).contains("is empty: nothing is restored"), "{}", said(&empty));
    assert!(!dest.exists() && !place.restores(&[], &dest).status.success());
    fs::remove_dir(place.store()).unwrap();
    let gone = place.restores(&["--if-replica-exists"], &dest);
    assert!(!gone.status.success() && said(&gone).contains("there is no directory"), "{}", said(&gone));
    place.once(&[]);
    let would = place.restores(&["--dry-run"], &dest);
    let text = said(&would);
    assert!(would.status.success() && text.contains("ltx/0/0000000000000001-0000000000000001.ltx"), "{text}");
    assert!(
        text.contains("would get the state of transaction 0000000000000001, from 1 files") && !dest.exists(),
        "{text}"
    );
    let made = place.restores(&["--if-db-not-exists", "--if-replica-exists"], &dest);
    assert!(made.status.success(), "{}", said(&made));
    let made = fs::read(&dest).unwrap();
    place.sql("DELETE FROM t");
    place.once(&[]);
    let left = place.restores(&["--if-db-not-exists"], &dest);
    assert!(left.status.success() && said(&left).contains("is there: nothing is restored"), "{}", said(&left));
    assert!(fs::read(&dest).unwrap() == made);
    assert!(!place.restores(&["--dry-run"], &dest).status.success());
}

#[test]
fn a_database_is_replaced_if_no_process_uses_it() {
    let place = Place::new(10);
    place.once(&[]);
    let before = rows(&place.restore(&[]));
    place.sql("DELETE FROM t");
    let refused = |words: &str| {
        let output = place.restores(&["--force"], &place.file);
        assert!(!output.status.success() && said(&output).contains(words), "{}", said(&output));
    };
    // In use through onewrite, and by stock SQLite.
    let db = place.open();
    db.execute_batch("INSERT INTO t VALUES (1000, 'x')").unwrap();
    refused("in use");
    drop(db);
    let stock = Connection::open_with_flags_and_vfs(&place.file, Default::default(), STOCK_VFS).unwrap();
    stock.execute_batch("BEGIN; SELECT count(*) FROM t").unwrap();
    refused("in use");
    drop(stock);
    let (journal, log) = (place.dir.path().join("app.db-journal"), place.dir.path().join("app.db-onewrite"));
    fs::write(&journal, "an old one").unwrap();
    assert!(log.exists());
    let replaced = place.restores(&["--force"], &place.file);
    assert!(replaced.status.success(), "{}", said(&replaced));
    assert_eq!(rows(&place.file), before);
    assert!(!journal.exists() && !log.exists());
    place.sql("INSERT INTO t VALUES (2000, 'x')");
}

#[test]
fn sqlite_checks_before_the_database_has_its_name() {
    let place = Place::new(10);
    place.once(&[]);
    let dest = place.dir.path().join("dest.db");
    for how in ["quick", "full"] {
        let made = place.restores(&["--integrity-check", how], &dest);
        assert!(made.status.success(), "{}", said(&made));
        fs::remove_file(&dest).unwrap();
    }
    // An index that lacks its rows: every checksum is right.
    place.sql(
        "CREATE INDEX i ON t(x); PRAGMA writable_schema=ON; UPDATE sqlite_schema SET sql = 'CREATE INDEX i ON t(n)' WHERE name = 'i'",
    );
    place.once(&[]);
    let wrong = place.restores(&["--integrity-check", "full"], &dest);
    assert!(!wrong.status.success() && said(&wrong).contains("integrity_check"), "{}", said(&wrong));
    assert!(!dest.exists());
    assert!(place.restores(&["--integrity-check", "quick"], &dest).status.success());
}
