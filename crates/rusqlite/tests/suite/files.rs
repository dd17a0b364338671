//! The files beside a database: their names, the users who may read and write them, and files that
//! another user has put in their place.

use crate::support;

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};

use rusqlite::ffi;
use support::remote::Remote;
use tempfile::TempDir;

/// A directory that all users may look into and write, and the path of a database in it.
fn shared() -> (TempDir, PathBuf) {
    let dir = TempDir::new().unwrap();
    fs::set_permissions(dir.path(), Permissions::from_mode(0o777)).unwrap();
    let path = dir.path().join("a.db");
    (dir, path)
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    path.with_file_name(format!("{}{suffix}", path.file_name().unwrap().to_str().unwrap()))
}

/// An empty database of an owner, or `None` where this process cannot give files away.
fn owned(path: &Path, owner: u32, mode: u32) -> Option<()> {
    fs::write(path, b"").unwrap();
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    let given = chown(path, Some(owner), Some(owner));
    if given.is_err() {
        println!("skipped: this process is not root");
    }
    given.ok()
}

fn access(path: &Path) -> (u32, u32, u32) {
    let found = fs::metadata(path).unwrap();
    (found.uid(), found.gid(), found.mode() & 0o777)
}

/// Every file of the directory that begins with the name.
fn files(path: &Path) -> Vec<PathBuf> {
    let name = path.file_name().unwrap().to_str().unwrap();
    let all = fs::read_dir(path.parent().unwrap()).unwrap().map(|entry| entry.unwrap().path());
    let mut found: Vec<_> = all.filter(|path| path.file_name().unwrap().to_string_lossy().starts_with(name)).collect();
    found.sort();
    found
}

const PAGES: &str = "WITH RECURSIVE n(i) AS (VALUES(1) UNION ALL SELECT i + 1 FROM n WHERE i < 300) \
                     INSERT INTO t SELECT i, randomblob(2000) FROM n";

/// Log, kept images and the journal of a transaction over two files.
#[test]
fn files_beside_a_private_database_are_as_private() {
    let (_dir, path) = shared();
    let Some(()) = owned(&path, 1000, 0o600) else { return };
    let other = beside(&path, ".two");
    owned(&other, 1000, 0o640).unwrap();
    let mut ours = Remote::ours(&path);
    ours.sql("CREATE TABLE t(a, b)").unwrap();
    ours.sql(PAGES).unwrap();
    let mut reader = Remote::ours(&path);
    reader.sql("BEGIN").unwrap();
    reader.sql("SELECT count(*) FROM t").unwrap();
    for _ in 0..2 {
        ours.sql("UPDATE t SET b = randomblob(2000)").unwrap();
        ours.sql("PRAGMA onewrite_checkpoint").unwrap();
    }
    assert!(files(&path).iter().any(|file| file.to_string_lossy().contains("-onewrite-kept")), "images are kept");
    for file in files(&path).into_iter().filter(|file| *file != other) {
        assert_eq!(access(&file), (1000, 1000, 0o600), "{}", file.display());
    }
    reader.close();
    ours.sql(&format!("ATTACH 'file:{}?vfs=onewrite' AS two", other.display())).unwrap();
    ours.sql("CREATE TABLE two.t(a)").unwrap();
    assert_eq!(access(&beside(&other, "-onewrite")), (1000, 1000, 0o640));
    // A connection that stepped aside keeps its journal, and is killed with it.
    ours.sql("PRAGMA journal_mode=PERSIST").unwrap();
    ours.sql("PRAGMA page_size=1024").unwrap();
    ours.sql("VACUUM").unwrap();
    ours.close();
    // The service's own user gets at all of it.
    let mut service = Remote::start_as(Some(1000)).unwrap();
    service.ask(&format!("ours {}", path.display())).unwrap();
    service.sql("DELETE FROM t").unwrap();
    service.close();
}

/// A backup job of root, an administrator's shell: killed, it leaves nothing that locks the service
/// out.
#[test]
fn files_that_root_leaves_are_the_owners() {
    let (_dir, path) = shared();
    let Some(()) = owned(&path, 1000, 0o644) else { return };
    let mut root = Remote::ours(&path);
    root.sql("CREATE TABLE t(a)").unwrap();
    root.sql("INSERT INTO t VALUES (1)").unwrap();
    root.kill();
    let mut service = Remote::start_as(Some(1000)).unwrap();
    service.ask(&format!("ours {}", path.display())).unwrap();
    service.sql("INSERT INTO t VALUES (2)").unwrap();
    assert_eq!(service.sql("SELECT count(*) FROM t").unwrap(), "2");
    service.close();
}

/// In a setuid program the effective user's rights decide, as they do for stock SQLite.
#[test]
fn the_effective_user_decides_and_not_the_real_one() {
    let (dir, path) = shared();
    let Some(()) = owned(&path, 0, 0o600) else { return };
    fs::set_permissions(dir.path(), Permissions::from_mode(0o700)).unwrap();
    let mut setuid = Remote::start();
    setuid.ask("lend 1000").unwrap();
    setuid.ask(&format!("ours {}?busy_ms=0", path.display())).unwrap();
    setuid.sql("CREATE TABLE t(a)").unwrap();
    setuid.sql("PRAGMA journal_mode=WAL").unwrap();
    setuid.sql("INSERT INTO t VALUES (1)").unwrap();
    assert_eq!(setuid.sql("SELECT count(*) FROM t").unwrap(), "1");
    setuid.close();
}

/// A log of an earlier time that all users may read is shut with the next session.
#[test]
fn a_log_that_admits_more_than_the_database_is_shut() {
    let (_dir, path) = shared();
    let mut ours = Remote::ours(&path);
    ours.sql("CREATE TABLE t(a)").unwrap();
    ours.close();
    let log = beside(&path, "-onewrite");
    fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
    fs::set_permissions(&log, Permissions::from_mode(0o644)).unwrap();
    let mut ours = Remote::ours(&path);
    ours.sql("INSERT INTO t VALUES (1)").unwrap();
    assert_eq!(access(&log).2, 0o600);
    ours.close();
}

/// A file that another user has put under the name of a side file is not followed, and is named.
#[test]
fn planted_files_are_refused_by_name_and_keep_their_bytes() {
    let (dir, path) = shared();
    let victim = dir.path().join("victim");
    type Plant = fn(&Path, &Path);
    let kinds: [(&str, Plant); 3] = [
        ("symbolic link", |victim, at| symlink(victim, at).unwrap()),
        ("hard links", |victim, at| fs::hard_link(victim, at).unwrap()),
        ("regular file", |_, at| drop(std::os::unix::net::UnixListener::bind(at).unwrap())),
    ];
    for (what, plant) in kinds {
        for file in files(&path) {
            fs::remove_file(file).unwrap();
        }
        fs::write(&victim, vec![7; 5000]).unwrap();
        let log = beside(&path, "-onewrite");
        plant(&victim, &log);
        let mut ours = Remote::ours(&path);
        let (code, message) = ours.sql("CREATE TABLE t(a, b)").unwrap_err();
        assert_eq!(code & 0xff, ffi::SQLITE_CANTOPEN, "{message}");
        assert!(message.contains("a.db-onewrite") && message.contains(what), "{message}");
        fs::remove_file(&log).unwrap();
        ours.sql("CREATE TABLE t(a, b)").unwrap();
        ours.sql(PAGES).unwrap();
        // The journal of a transaction that steps aside.
        let journal = beside(&path, "-journal");
        plant(&victim, &journal);
        ours.sql("PRAGMA page_size=1024").unwrap();
        let (code, message) = ours.sql("VACUUM").unwrap_err();
        assert_eq!(code & 0xff, ffi::SQLITE_CANTOPEN, "{message}");
        let message = ours.sql("PRAGMA onewrite_error").unwrap();
        assert!(message.contains("journal") && message.contains(what), "{message}");
        assert_eq!(ours.sql("SELECT count(*) FROM t").unwrap(), "300");
        ours.kill();
        assert_eq!(fs::read(&victim).unwrap(), vec![7; 5000], "{what}");
    }
}

/// SQLite itself takes names of up to 247 bytes.
#[test]
fn names_may_be_as_long_as_sqlite_takes_them() {
    for bytes in [229, 230, 240, 241, 242, 246, 247] {
        let (_dir, path) = shared();
        let path = path.with_file_name("n".repeat(bytes));
        let mut ours = Remote::ours(&path);
        ours.sql("CREATE TABLE t(a, b)").unwrap();
        ours.sql(PAGES).unwrap();
        let mut reader = Remote::ours(&path);
        reader.sql("BEGIN").unwrap();
        assert_eq!(reader.sql("SELECT count(*) FROM t").unwrap(), "300");
        ours.sql("UPDATE t SET b = zeroblob(2001)").unwrap();
        ours.sql("PRAGMA onewrite_checkpoint").unwrap();
        ours.sql("UPDATE t SET b = zeroblob(2001)").unwrap();
        ours.sql("PRAGMA onewrite_checkpoint").unwrap();
        assert_eq!(reader.sql("SELECT sum(length(b)) FROM t").unwrap(), "600000");
        reader.close();
        ours.kill();
        let mut next = Remote::ours(&path);
        assert_eq!(next.sql("SELECT sum(length(b)) FROM t").unwrap(), "600300");
        next.close();
        assert_eq!(Remote::stock(&path).sql("PRAGMA integrity_check").unwrap(), "ok");
    }
}

/// Stock SQLite does not flush such a directory; the names of this one are durable all the same.
#[test]
fn a_directory_may_be_written_and_not_read() {
    let (dir, path) = shared();
    let Some(()) = owned(&path, 1000, 0o644) else { return };
    chown(dir.path(), Some(1000), Some(1000)).unwrap();
    fs::set_permissions(dir.path(), Permissions::from_mode(0o333)).unwrap();
    let mut user = Remote::start_as(Some(1000)).unwrap();
    user.ask(&format!("ours {}", path.display())).unwrap();
    user.sql("CREATE TABLE t(a)").unwrap();
    user.sql("INSERT INTO t VALUES (1)").unwrap();
    assert_eq!(user.sql("SELECT count(*) FROM t").unwrap(), "1");
    user.close();
}

/// A child that was forked before has nothing of its parent's: a clean close frees the database.
#[test]
fn a_child_keeps_no_lock_of_a_parent_that_closes() {
    let (_dir, path) = shared();
    let mut master = Remote::ours(&path);
    master.sql("CREATE TABLE t(a)").unwrap();
    let child = master.ask("fork").unwrap();
    master.ask("close").unwrap();
    let mut stock = Remote::stock(&path);
    stock.sql("INSERT INTO t VALUES (1)").unwrap();
    stock.close();
    let mut next = Remote::ours(&path);
    next.sql("INSERT INTO t VALUES (2)").unwrap();
    assert_eq!(next.sql("SELECT count(*) FROM t").unwrap(), "2");
    next.close();
    end(&child);
}

/// Nor does it keep the death of its parent from being noticed.
#[test]
fn a_child_does_not_stand_for_a_parent_that_died() {
    let (_dir, path) = shared();
    let mut master = Remote::ours(&path);
    master.sql("CREATE TABLE t(a)").unwrap();
    let child = master.ask("fork").unwrap();
    master.sql("BEGIN IMMEDIATE").unwrap();
    master.sql("INSERT INTO t VALUES (1)").unwrap();
    master.kill();
    let mut next = Remote::ours(&path);
    next.sql("INSERT INTO t VALUES (2)").unwrap();
    assert_eq!(next.sql("SELECT count(*) FROM t").unwrap(), "1");
    next.close();
    end(&child);
}

/// A child that opens the database anew has its own files and no others, and its parent goes on.
#[test]
fn a_child_that_opens_anew_has_files_of_its_own() {
    let (_dir, path) = shared();
    let mut master = Remote::ours(&path);
    master.sql("CREATE TABLE t(a)").unwrap();
    for n in 1..4 {
        assert_eq!(master.ask(&format!("fork {}", path.display())).unwrap(), "2", "the database and its log");
        master.sql("INSERT INTO t VALUES (2)").unwrap();
        assert_eq!(master.sql("SELECT count(*) FROM t").unwrap(), (2 * n).to_string());
    }
    master.close();
    assert_eq!(Remote::stock(&path).sql("SELECT count(*) FROM t").unwrap(), "6");
}

#[allow(unsafe_code)]
fn end(process: &str) {
    // SAFETY: takes numbers.
    unsafe { libc::kill(process.parse().unwrap(), libc::SIGKILL) };
}

/// A limit on the size of files is a full disk, and not the end of the process.
#[test]
fn a_limit_on_the_size_of_files_is_a_full_disk() {
    // Less than the log, less than the transaction, less than its stream.
    for (bytes, makes) in [(32 << 10, false), (5 << 20, true)] {
        let (_dir, path) = shared();
        let mut ours = Remote::ours(&path);
        ours.sql("PRAGMA page_size=4096").unwrap();
        if makes {
            ours.sql("CREATE TABLE t(a, b)").unwrap();
        }
        ours.ask(&format!("limit {bytes}")).unwrap();
        let mut rows = 0;
        let refused = loop {
            let made = if makes { ours.sql(PAGES) } else { ours.sql("CREATE TABLE t(a, b)") };
            match made {
                Ok(_) => rows += 300,
                Err(refused) => break refused,
            }
        };
        assert_eq!(refused.0 & 0xff, ffi::SQLITE_FULL, "{}", refused.1);
        if makes {
            assert!(rows >= 600, "{rows}");
            assert_eq!(ours.sql("SELECT count(*) FROM t").unwrap(), rows.to_string());
            let large = "INSERT INTO t SELECT 1, zeroblob(8000000)";
            assert_eq!(ours.sql(large).unwrap_err().0 & 0xff, ffi::SQLITE_FULL);
            ours.sql("DELETE FROM t WHERE a > 1").unwrap();
        }
        ours.close();
        let rows = if makes { (rows / 300).to_string() } else { String::new() };
        let count = if makes { "SELECT count(*) FROM t" } else { "PRAGMA user_version=1" };
        assert_eq!(Remote::stock(&path).sql(count).unwrap(), rows);
    }
}

/// A test suite that removes its database and makes it anew while a pool keeps connections to the
/// old one.
#[test]
fn a_database_that_is_made_anew_does_not_wait_for_users_of_the_old_one() {
    let (_dir, path) = shared();
    let mut idle = Vec::new();
    for n in 0..8 {
        for file in files(&path).into_iter().filter(|file| n % 2 == 0 || *file == path) {
            fs::remove_file(file).unwrap();
        }
        let mut ours = Remote::ours(&path);
        ours.sql("CREATE TABLE t(a)").unwrap();
        ours.sql("INSERT INTO t VALUES (1)").unwrap();
        assert_eq!(ours.sql("SELECT count(*) FROM t").unwrap(), "1");
        let mut other = Remote::ours(&path);
        other.sql("INSERT INTO t VALUES (2)").unwrap();
        idle.push(ours);
        idle.push(other);
    }
    // Killed or closed: the newest state is left, with its log.
    for (n, mut process) in idle.into_iter().enumerate() {
        let count = if n < 14 { process.sql("SELECT count(*) FROM t").unwrap() } else { "2".into() };
        assert_eq!(count, "2");
        process.close();
    }
    assert_eq!(files(&path), [path.clone(), beside(&path, "-onewrite")]);
    assert_eq!(Remote::stock(&path).sql("SELECT count(*) FROM t").unwrap(), "2");
}

/// The same for one that was renamed: it goes on, dies, and is found whole under its new name.
#[test]
fn a_renamed_database_and_a_new_one_under_its_name_lose_nothing() {
    for dies in [false, true] {
        let (dir, path) = shared();
        let renamed = dir.path().join("renamed.db");
        let mut old = Remote::ours(&path);
        old.sql("CREATE TABLE t(a)").unwrap();
        old.sql("INSERT INTO t VALUES (1)").unwrap();
        fs::rename(&path, &renamed).unwrap();
        let mut new = Remote::ours(&path);
        new.sql("CREATE TABLE t(a)").unwrap();
        new.sql("INSERT INTO t VALUES (1), (2), (3)").unwrap();
        // SQLite writes no file that has lost its name.
        assert_eq!(old.sql("INSERT INTO t VALUES (2)").unwrap_err().0, ffi::SQLITE_READONLY_DBMOVED);
        let mut joins = Remote::ours(&renamed);
        joins.sql("INSERT INTO t VALUES (2)").unwrap();
        assert_eq!(old.sql("SELECT count(*) FROM t").unwrap(), "2");
        let counts = [(&path, "3"), (&renamed, "2")];
        for process in [new, joins, old] {
            if dies { process.kill() } else { process.close() }
        }
        for (path, count) in counts {
            let mut next = Remote::ours(path);
            assert_eq!(next.sql("SELECT count(*) FROM t").unwrap(), count);
            next.close();
            assert_eq!(Remote::stock(path).sql("SELECT count(*) FROM t").unwrap(), count);
        }
    }
}

#[test]
fn the_file_is_read_as_a_transaction_sees_it() {
    use onewrite_rusqlite::read_file_at;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("app.db");
    let (reader, writer) = (onewrite_rusqlite::open(&path).unwrap(), onewrite_rusqlite::open(&path).unwrap());
    writer.execute_batch("CREATE TABLE t(x); INSERT INTO t VALUES ('before')").unwrap();
    let mut page = vec![0; 4096];
    let refused = |db: &rusqlite::Connection| {
        let error = read_file_at(db, &mut vec![0; 4096], 0).unwrap_err();
        assert_eq!(error.sqlite_error().unwrap().extended_code, rusqlite::ffi::SQLITE_MISUSE);
    };
    refused(&reader);
    reader.execute_batch("BEGIN").unwrap();
    refused(&reader);
    reader.query_row("SELECT count(*) FROM t", [], |_| Ok(())).unwrap();
    writer.execute_batch("UPDATE t SET x = 'behind'").unwrap();
    let holds = |page: &[u8], text: &str| page.windows(6).any(|bytes| bytes == text.as_bytes());
    read_file_at(&reader, &mut page, 4096).unwrap();
    assert!(holds(&page, "before") && !holds(&page, "behind"));
    // Page 1 as SQLite has it, without onewrite's mark.
    read_file_at(&reader, &mut page, 0).unwrap();
    assert_eq!((&page[..16], page[18], page[19]), (&b"SQLite format 3\0"[..], 1, 1));
    read_file_at(&reader, &mut page, 1 << 30).unwrap();
    assert!(page.iter().all(|byte| *byte == 0));
    reader.execute_batch("COMMIT; BEGIN").unwrap();
    reader.query_row("SELECT count(*) FROM t", [], |_| Ok(())).unwrap();
    read_file_at(&reader, &mut page, 4096).unwrap();
    assert!(holds(&page, "behind"));
    reader.execute_batch("COMMIT; BEGIN IMMEDIATE").unwrap();
    refused(&reader);
}
