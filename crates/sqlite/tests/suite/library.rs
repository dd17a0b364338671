//! The library as programs meet it: its symbols, its options, onewrite inside.

use crate::common;

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::{env, fs};

use common::{built, drop_in, has_program, output_of, python, with_library, with_system_library};

/// Options of Debian's library that an amalgamation cannot have: its parser is ready made.
const NOT_IN_AN_AMALGAMATION: [&str; 1] = ["ENABLE_UPDATE_DELETE_LIMIT"];

/// The functions and variables of SQLite's interface in a library.
fn interface(library: &Path) -> BTreeSet<String> {
    let listed = output_of(Command::new("nm").args(["-D", "--defined-only"]).arg(library));
    let prefixes = ["sqlite3_", "sqlite3session_", "sqlite3change", "sqlite3rebaser_"];
    let names = listed.lines().filter_map(|line| line.split_whitespace().nth(2));
    names.filter(|name| prefixes.iter().any(|prefix| name.starts_with(prefix))).map(str::to_owned).collect()
}

/// The library the loader finds by itself.
fn system_library() -> Option<std::path::PathBuf> {
    let directories = ["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib"];
    let found = directories.iter().map(|dir| Path::new(dir).join("libsqlite3.so.0")).find(|path| path.exists());
    if found.is_none() {
        println!("skipped: the system has no libsqlite3.so.0");
    }
    found
}

#[test]
fn the_systems_symbols_are_all_there() {
    let Some(system) = system_library().filter(|_| has_program("nm")) else { return };
    let ours = interface(&built("libsqlite3.so"));
    let missing: Vec<_> = interface(&system).into_iter().filter(|name| !ours.contains(name)).collect();
    assert!(ours.len() > 300, "only {} symbols", ours.len());
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn no_entry_point_of_an_extension_is_exported() {
    if has_program("nm") {
        let listed = output_of(Command::new("nm").args(["-D", "--defined-only"]).arg(built("libsqlite3.so")));
        assert!(listed.contains(" onewrite_version"), "{listed}");
        for name in [
            "sqlite3_extension_init",
            "_onewrite_init",
            "_onewrite_default_init",
            "onewrite_sqlite_init",
            "onewrite_sqlite_connect",
        ] {
            assert!(!listed.contains(name), "{name}");
        }
    }
}

#[test]
fn the_systems_options_are_all_there() {
    let Some(python) = python() else { return };
    let dir = drop_in();
    let script = "import sqlite3\nfor (o,) in sqlite3.connect(':memory:').execute('PRAGMA compile_options'): print(o)";
    let options = |command: &mut Command| -> BTreeSet<String> {
        // Limits have values that grew over the years.
        let name = |line: &str| line.split('=').next().unwrap_or(line).to_owned();
        output_of(command.args(["-c", script])).lines().map(name).collect()
    };
    let ours = options(&mut with_library(python, dir.path()));
    let missing: Vec<_> = options(&mut with_system_library(python)).difference(&ours).cloned().collect();
    assert_eq!(missing, NOT_IN_AN_AMALGAMATION);
}

#[test]
fn onewrite_is_inside_and_says_how_pages_are_split() {
    let Some(python) = python() else { return };
    let dir = drop_in();
    let script = r#"
import sqlite3
def one(db, sql): return db.execute(sql).fetchone()[0]
def uri(parameters): return sqlite3.connect("file:x.db?vfs=onewrite" + parameters, uri=True)
db = uri("")
print(one(db, "PRAGMA onewrite_split"), one(db, "PRAGMA onewrite_reserve_cells"))
db.execute("CREATE TABLE t(a INTEGER PRIMARY KEY, b)")
rows = 0
for how in ["lazy", "legacy", "stock"]:
    print(one(db, f"PRAGMA onewrite_split={how}"))
    db.executemany("INSERT OR IGNORE INTO t VALUES (?, zeroblob(128))", [(i * 2654435761 % 65521,) for i in range(rows, rows + 2000)])
    rows += 2000
    db.commit()
    print(one(db, "PRAGMA integrity_check"), one(db, "SELECT count(*) FROM t"))
try: db.execute("PRAGMA onewrite_split=eager")
except sqlite3.OperationalError as e: print(e)
db.close()
db = uri("&split=legacy&reserve_cells=1")
print(one(db, "PRAGMA onewrite_split"), one(db, "PRAGMA onewrite_reserve_cells"))
db.close()
print(one(uri("&scheme=wal-opt"), "PRAGMA onewrite_split"))
plain = sqlite3.connect("x.db")
print(plain.execute("PRAGMA onewrite_split").fetchall())
"#;
    let out = output_of(with_library(python, dir.path()).args(["-c", script]).current_dir(dir.path()));
    let expected = "lazy 0\nlazy\nok 2000\nlegacy\nok 4000\nstock\nok 6000\n\
        split=eager: not a value of this option; the choices are lazy, legacy, stock\nlegacy 1\nstock\n[]\n";
    assert_eq!(out, expected);
}

/// Programs take the answer from a row by its name.
#[test]
fn an_answer_of_the_vfs_to_a_pragma_of_sqlites_has_the_name_of_the_pragma() {
    let Some(python) = python() else { return };
    let dir = drop_in();
    let script = r#"
import sqlite3
db = sqlite3.connect("x.db")
for sql in ["journal_mode=wal", "JOURNAL_MODE", "journal_mode=delete", "onewrite_scheme"]:
    done = db.execute("PRAGMA " + sql)
    print(done.description[0][0], done.fetchone()[0])
"#;
    let mut command = with_library(python, dir.path());
    let out = output_of(command.args(["-c", script]).env("ONEWRITE_DEFAULT", "1").current_dir(dir.path()));
    assert_eq!(out, "journal_mode wal\njournal_mode wal\njournal_mode delete\nlog log\n");
}

/// Bytes 18 and 19 of the file, and the answers, of programs with either library.
#[test]
fn wal_mode_that_was_asked_for_is_remembered() {
    let Some(python) = python() else { return };
    let dir = drop_in();
    let script = r#"
import sqlite3, sys, time
def mode(db, value=""): return db.execute("PRAGMA journal_mode" + value).fetchone()[0]
def versions(): return open("x.db", "rb").read(20)[18:]
def becomes(wanted):
    end = time.monotonic() + 20
    while versions() != wanted:
        assert time.monotonic() < end, versions()
        time.sleep(0.01)
def connect(parameters=""): return sqlite3.connect("file:x.db" + parameters, uri=True, isolation_level=None)
who = sys.argv[1]
db, other = connect("?idle=20ms" if who == "onewrite" else ""), connect()
if len(sys.argv) > 2: mode(db, "=" + sys.argv[2])
if who == "onewrite": print(db.execute("PRAGMA onewrite_scheme").fetchone()[0], end=" ")
db.execute("CREATE TABLE IF NOT EXISTS t(a)")
db.execute("BEGIN IMMEDIATE")
db.execute("INSERT INTO t VALUES (1)")
written = versions()
db.execute("COMMIT")
print(mode(db), mode(other), other.execute("SELECT count(*) FROM t").fetchone()[0], *written, end=" ")
if who == "onewrite": becomes(bytes([written[0], 1]))
db.close()
other.close()
print(*versions())
"#;
    let run = |who: &str, asked: &str| {
        let mut command = match who {
            "onewrite" => with_library(python, dir.path()),
            _ => with_system_library(python),
        };
        if who == "onewrite" {
            command.env("ONEWRITE_DEFAULT", "1");
        }
        output_of(command.args(["-c", script, who]).args(asked.split_whitespace()).current_dir(dir.path()))
    };
    assert_eq!(run("onewrite", "wal"), "log wal wal 1 2 87 2 2\n");
    assert_eq!(run("stock", ""), "wal wal 2 2 2 2 2\n");
    assert_eq!(run("onewrite", ""), "log wal wal 3 2 87 2 2\n");
    assert_eq!(run("onewrite", "delete"), "log delete delete 4 1 87 1 1\n");
    assert_eq!(run("stock", ""), "delete delete 5 1 1 1 1\n");
    assert_eq!(run("stock", "wal"), "wal wal 6 2 2 2 2\n");
    assert_eq!(run("onewrite", ""), "log wal wal 7 2 87 2 2\n");
}

#[test]
fn it_is_the_default_vfs_only_when_asked() {
    let Some(python) = python() else { return };
    let dir = drop_in();
    let script = "import sqlite3; print(sqlite3.connect('d.db').execute('PRAGMA onewrite_scheme').fetchone())";
    let answer = |value: Option<&str>| {
        let mut command = with_library(python, dir.path());
        command.args(["-c", script]).current_dir(dir.path());
        if let Some(value) = value {
            command.env("ONEWRITE_DEFAULT", value);
        }
        let done = command.output().unwrap();
        String::from_utf8_lossy(&done.stdout).into_owned()
    };
    assert_eq!(answer(None), "None\n");
    assert_eq!(answer(Some("0")), "None\n");
    assert_eq!(answer(Some("1")), "('log',)\n");
    assert_eq!(answer(Some("yes")), "", "an impossible value opens nothing");
    let mut command = with_library(python, dir.path());
    let done = command.args(["-c", script]).current_dir(dir.path()).env("ONEWRITE_DEFAULT", "yes").output().unwrap();
    let told = String::from_utf8_lossy(&done.stderr).into_owned();
    assert!(told.contains("ONEWRITE_DEFAULT=yes") && told.contains("the choices are 1"), "{told}");
}

#[test]
fn loading_the_extension_into_it_is_no_error() {
    let probe = "import sqlite3; sqlite3.connect(':memory:').enable_load_extension(True)";
    let loads = |python: &&str| Command::new(python).args(["-c", probe]).output().is_ok_and(|out| out.status.success());
    let Some(python) = ["/usr/bin/python3", "python3"].into_iter().find(loads) else {
        println!("skipped: no python3 whose sqlite3 module loads extensions");
        return;
    };
    let dir = drop_in();
    let script = r#"
import sqlite3, sys
def load(entry):
    db = sqlite3.connect(":memory:")
    db.enable_load_extension(True)
    if entry is None: db.load_extension(sys.argv[1])
    else: db.execute("SELECT load_extension(?, ?)", (sys.argv[1], entry))
    return db
def one(db, sql): return db.execute(sql).fetchone()[0]
print(one(load(None), "SELECT onewrite_version()"))
try: sqlite3.connect("file:x.db?vfs=onewrite&logsize=8m", uri=True)
except sqlite3.OperationalError: print("logsize" in one(sqlite3.connect(":memory:"), "SELECT onewrite_last_error()"))
print(one(sqlite3.connect("stock.db"), "SELECT onewrite_status()"))
load("sqlite3_onewrite_default_init")
print(one(sqlite3.connect("y.db"), "PRAGMA onewrite_split"))
"#;
    let version = env!("CARGO_PKG_VERSION");
    let mut command = with_library(python, dir.path());
    let out = output_of(command.args(["-c", script]).arg(built("libonewrite.so")).current_dir(dir.path()));
    let stock = "in_effect=no: this database was opened through the VFS \"unix\"";
    assert_eq!(out, format!("{version}\nTrue\n{stock}\nlazy\n"));
}

#[test]
fn a_c_program_links_the_static_library() {
    if !has_program("cc") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let source = r#"
#include <stdio.h>
#include <onewrite.h>
static int row(void *p, int n, char **a, char **b){ (void)p; (void)n; (void)b; printf("%s\n", a[0]); return 0; }
int main(void){
  sqlite3 *db;
  char *error = 0;
  if( sqlite3_open_v2("file:c.db?vfs=onewrite", &db, SQLITE_OPEN_READWRITE|SQLITE_OPEN_CREATE|SQLITE_OPEN_URI, 0) ) return 1;
  if( sqlite3_exec(db, "CREATE TABLE t(a); INSERT INTO t VALUES('from C'); SELECT a FROM t; PRAGMA onewrite_split", row, 0, &error) ){
    printf("%s\n", error);
    return 2;
  }
  printf("%d\n", sqlite3_libversion_number()==SQLITE_VERSION_NUMBER);
  return sqlite3_close(db);
}
"#;
    let path = dir.path().join("c.c");
    fs::write(&path, source).unwrap();
    let include = Path::new(env!("CARGO_MANIFEST_DIR")).join("../vfs/include");
    let program = dir.path().join("c");
    let mut cc = Command::new("cc");
    cc.args(["-Wall", "-Wextra", "-Werror", "-I"]).arg(include).arg("-I").arg(env!("OUT_DIR"));
    cc.arg(&path).arg(built("libsqlite3.a")).arg("-o").arg(&program).args(["-lpthread", "-ldl", "-lm"]);
    output_of(&mut cc);
    assert_eq!(output_of(Command::new(&program).current_dir(dir.path())), "from C\nlazy\n1\n");
}

/// The distribution's shell refuses any library but the one it was built with, by its source id. A
/// copy of the shell that names ours as that one is the shell as linked against ours. Makes a
/// temporary file, and tells its directory and the default VFS.
const PRIVILEGED: &str = r#"
#include <dirent.h>
#include <sqlite3.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
int main(void){
  sqlite3 *db = 0;
  struct dirent *entry;
  DIR *open;
  char link[300], target[4096];
  if( sqlite3_open(":memory:", &db) || sqlite3_exec(db, "PRAGMA temp_store=FILE; PRAGMA temp.cache_size=1;"
      "BEGIN; CREATE TEMP TABLE t(a); WITH RECURSIVE n(i) AS (VALUES(1) UNION ALL SELECT i+1 FROM n WHERE i<5000) INSERT INTO t SELECT randomblob(1000) FROM n", 0, 0, 0) ) return 1;
  open = opendir("/proc/self/fd");
  while( open && (entry = readdir(open))!=0 ){
    ssize_t n;
    snprintf(link, sizeof link, "/proc/self/fd/%s", entry->d_name);
    n = readlink(link, target, sizeof target - 1);
    target[n>0 ? n : 0] = 0;
    if( strstr(target, "(deleted)") ) printf("temporary %s\n", target);
  }
  printf("default %s\n", sqlite3_vfs_find(0)->zName);
  return 0;
}
"#;

#[test]
fn a_privileged_program_takes_no_directory_and_no_default_from_the_environment() {
    use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
    use std::os::unix::process::CommandExt;
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let (source, program, own) = (dir.path().join("p.c"), dir.path().join("p"), dir.path().join("own"));
    fs::create_dir(&own).unwrap();
    if !has_program("cc") || fs::metadata(&own).unwrap().uid() != 0 || chown(&own, Some(1000), Some(1000)).is_err() {
        println!("skipped: no cc, or this process is not root");
        return;
    }
    fs::write(&source, PRIVILEGED).unwrap();
    let mut cc = Command::new("cc");
    cc.args(["-D_GNU_SOURCE", "-I", env!("OUT_DIR"), "-o"]).arg(&program).arg(&source).arg(built("libsqlite3.a"));
    output_of(cc.args(["-lpthread", "-ldl", "-lm"]));
    let run = |mode: u32| {
        fs::set_permissions(&program, fs::Permissions::from_mode(mode)).unwrap();
        let mut command = Command::new(&program);
        command.env("SQLITE_TMPDIR", &own).env("TMPDIR", &own).env("ONEWRITE_DEFAULT", "1").uid(1000).gid(1000);
        output_of(&mut command)
    };
    let own = format!("temporary {}/", own.display());
    let usual = run(0o755);
    assert!(usual.contains(&own) && usual.contains("default onewrite"), "{usual}");
    let privileged = run(0o4755);
    assert!(!privileged.contains(&own) && privileged.contains("temporary /"), "{privileged}");
    assert!(privileged.contains("default unix"), "{privileged}");
}

#[test]
fn the_sqlite3_shell_works_with_it() {
    if !has_program("sqlite3") {
        return;
    }
    let dir = drop_in();
    let Some(shell) = env::split_paths(&env::var_os("PATH").unwrap()).map(|p| p.join("sqlite3")).find(|p| p.exists())
    else {
        return;
    };
    let first_line = |command: &mut Command| output_of(command).lines().next().unwrap_or_default().to_owned();
    let source_id = "SELECT sqlite_source_id()";
    let theirs = first_line(with_system_library(&shell).args([":memory:", source_id]));
    let header = fs::read_to_string(Path::new(env!("OUT_DIR")).join("sqlite3.h")).unwrap();
    let ours = header.split("#define SQLITE_SOURCE_ID").nth(1).unwrap().split('"').nth(1).unwrap().to_owned();
    let mut bytes = fs::read(&shell).unwrap();
    let places: Vec<usize> =
        bytes.windows(theirs.len()).enumerate().filter(|(_, w)| *w == theirs.as_bytes()).map(|(at, _)| at).collect();
    if places.is_empty() || ours.len() > theirs.len() {
        println!("skipped: this sqlite3 shell does not name the library it was built with");
        return;
    }
    for at in places {
        bytes[at..at + ours.len()].copy_from_slice(ours.as_bytes());
    }
    let copy = dir.path().join("shell");
    fs::write(&copy, bytes).unwrap();
    fs::set_permissions(&copy, fs::metadata(&shell).unwrap().permissions()).unwrap();
    let sql = "CREATE TABLE t(a, b); CREATE INDEX i ON t(b);
        WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x+1 FROM n WHERE x<5000)
            INSERT INTO t SELECT x, x*2654435761%65521 FROM n;
        SELECT count(*), sum(a) FROM t WHERE b<30000; PRAGMA onewrite_split; PRAGMA integrity_check;";
    let mut command = with_library(&copy, dir.path());
    let out = output_of(command.args(["file:s.db?vfs=onewrite", sql]).current_dir(dir.path()));
    let same = output_of(
        with_system_library(&shell).args(["s.db", &sql[sql.find("SELECT count").unwrap()..]]).current_dir(dir.path()),
    );
    assert_eq!(out.lines().skip(1).collect::<Vec<_>>(), ["lazy", "ok"]);
    // The system's SQLite reads the same rows and finds the file sound.
    assert_eq!(same.lines().next(), out.lines().next());
    assert_eq!(same.lines().last(), Some("ok"));
}

#[test]
fn cpythons_own_tests_pass_as_with_the_systems_library() {
    let Some(python) = python() else { return };
    if !with_system_library(python).args(["-c", "import test.test_sqlite3"]).output().is_ok_and(|o| o.status.success())
    {
        println!("skipped: {python} comes without its tests");
        return;
    }
    let dir = drop_in();
    // The summary: how many ran, failed and were skipped.
    let summary = |command: &mut Command| {
        let done = command.args(["-m", "test", "test_sqlite3"]).current_dir(dir.path()).output().unwrap();
        let out = String::from_utf8_lossy(&done.stdout).into_owned();
        let lines: Vec<_> = out.lines().filter(|l| l.starts_with("Total tests") || l.starts_with("Result")).collect();
        assert!(!lines.is_empty() && done.status.success(), "{out}{}", String::from_utf8_lossy(&done.stderr));
        lines.join("\n")
    };
    let ours = summary(&mut with_library(python, dir.path()));
    assert_eq!(ours, summary(&mut with_system_library(python)));
    println!("{ours}");
}

/// Connections keep the pages that others did not change: each looks at all of them, by the table
/// and by the index.
#[test]
fn pages_that_are_kept_beside_other_writers_are_the_right_ones() {
    let Some(python) = python() else { return };
    let dir = drop_in();
    let script = r#"
import random, sqlite3, sys, threading
def connect():
    db = sqlite3.connect("file:kept.db?vfs=onewrite", uri=True, isolation_level=None, timeout=60)
    db.execute("PRAGMA cache_size=-8000")
    return db
def one(db, sql): return db.execute(sql).fetchone()
setup = connect()
setup.execute("CREATE TABLE t(k INTEGER PRIMARY KEY, n INT, v BLOB)")
setup.execute("CREATE INDEX i ON t(n)")
setup.execute("BEGIN")
for k in range(4000): setup.execute("INSERT INTO t VALUES (?, ?, zeroblob(100))", (k * 7919 % 65521, k))
setup.execute("COMMIT")
wrong = []
def look(db):
    db.execute("BEGIN")
    table, index = one(db, "SELECT sum(n), count(*) FROM t NOT INDEXED"), one(db, "SELECT sum(n), count(n) FROM t INDEXED BY i")
    check = one(db, "PRAGMA integrity_check")[0]
    db.execute("COMMIT")
    if table != index or check != "ok": wrong.append((table, index, check))
def work(seed):
    r, db = random.Random(seed), connect()
    for turn in range(int(sys.argv[1])):
        what = r.randrange(12)
        if what < 5: db.execute("INSERT OR REPLACE INTO t VALUES (?, ?, zeroblob(?))", (r.randrange(65521), r.randrange(10**6), r.choice([10, 100, 6000])))
        elif what < 8: db.execute("DELETE FROM t WHERE k = ?", (r.randrange(65521),))
        elif what < 10: db.execute("UPDATE t SET n = n + 1 WHERE k % 1009 = ?", (r.randrange(1009),))
        elif what == 10:
            db.execute("BEGIN IMMEDIATE")
            db.execute("DELETE FROM t WHERE n % 97 = ?", (r.randrange(97),))
            db.execute(r.choice(["COMMIT", "ROLLBACK"]))
        if turn % 20 == 0: look(db)
        if turn % 150 == 149 and seed == 0: db.execute("PRAGMA onewrite_checkpoint")
    db.close()
threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
for t in threads: t.start()
for t in threads: t.join()
look(setup)
print("ok" if not wrong else wrong[:3])
"#;
    let done = output_of(with_library(python, dir.path()).args(["-c", script, "300"]).current_dir(dir.path()));
    assert_eq!(done, "ok\n");
}
