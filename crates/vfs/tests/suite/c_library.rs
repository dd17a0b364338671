//! The C library: a program compiled against `onewrite.h` and the system's SQLite, with the static
//! and the dynamic library, also under valgrind.

use crate::common;

use std::path::{Path, PathBuf};
use std::process::Command;

use common::{built, has_program, setup};

const PROGRAM: &str = r#"
#include <onewrite.h>
#include <stdio.h>
#include <string.h>

static int fail(const char *what, sqlite3 *db){
  const char *why = onewrite_last_error();
  printf("%s: %s (%s)\n", what, db ? sqlite3_errmsg(db) : "", why ? why : "");
  return 1;
}

static int print(void *unused, int columns, char **values, char **names){
  (void)unused; (void)columns; (void)names;
  printf("%s\n", values[0]);
  return 0;
}

int main(int argc, char **argv){
  sqlite3 *db = 0;
  if( argc!=2 ) return 2;
  if( onewrite_register(0)!=SQLITE_OK ) return fail("register", 0);
  if( onewrite_register(0)!=SQLITE_OK ) return fail("register again", 0);
  if( sqlite3_open_v2(argv[1], &db, SQLITE_OPEN_READWRITE|SQLITE_OPEN_CREATE, "onewrite")!=SQLITE_OK ){
    return fail("open", db);
  }
  if( sqlite3_exec(db, "CREATE TABLE t(x); INSERT INTO t VALUES ('from C')", 0, 0, 0)!=SQLITE_OK ){
    return fail("exec", db);
  }
  if( sqlite3_exec(db, "SELECT x FROM t; PRAGMA onewrite_scheme", print, 0, 0)!=SQLITE_OK ){
    return fail("select", db);
  }
  sqlite3_close(db);
  if( onewrite_register(1)!=SQLITE_OK ) return fail("register as default", 0);
  if( sqlite3_open_v2("file:bad.db?scheme=fast", &db, SQLITE_OPEN_READWRITE|SQLITE_OPEN_URI, 0)!=SQLITE_CANTOPEN
   || onewrite_last_error()==0 || strstr(onewrite_last_error(), "scheme=fast")==0
  ){
    return fail("an impossible value", db);
  }
  sqlite3_close(db);
  printf("%s\n", onewrite_version());
  return 0;
}
"#;

/// Opens, writes, reads, rolls back, fails and closes as often as it is told.
const ROUNDS: &str = r#"
#include <onewrite.h>
#include <stdlib.h>

int main(int argc, char **argv){
  int i;
  if( argc!=3 || onewrite_register(0)!=SQLITE_OK ) return 2;
  for(i=0; i<atoi(argv[2]); i++){
    sqlite3 *one = 0, *two = 0;
    if( sqlite3_open_v2(argv[1], &one, SQLITE_OPEN_READWRITE|SQLITE_OPEN_CREATE, "onewrite")!=SQLITE_OK ) return 3;
    if( sqlite3_open_v2(argv[1], &two, SQLITE_OPEN_READWRITE, "onewrite")!=SQLITE_OK ) return 4;
    if( sqlite3_exec(one, "CREATE TABLE IF NOT EXISTS t(x); INSERT INTO t VALUES (zeroblob(3000));"
        "PRAGMA onewrite_checkpoint; BEGIN; DELETE FROM t; ROLLBACK", 0, 0, 0)!=SQLITE_OK ) return 5;
    if( sqlite3_exec(two, "SELECT * FROM t; DELETE FROM t; PRAGMA onewrite_nothing", 0, 0, 0)!=SQLITE_ERROR ) return 6;
    sqlite3_close(one);
    sqlite3_close(two);
  }
  sqlite3_shutdown();
  return 0;
}
"#;

/// Compiles a program; `link` are the arguments that link onewrite. `None` where there is no
/// compiler or no SQLite.
fn compile(dir: &Path, source: &str, link: &[String]) -> Option<PathBuf> {
    if !has_program("cc") {
        println!("skipped: no cc");
        return None;
    }
    let probe = Command::new("cc").args(["-E", "-include", "sqlite3.h", "-x", "c", "/dev/null"]).output().unwrap();
    if !probe.status.success() {
        println!("skipped: no sqlite3.h");
        return None;
    }
    let (text, program) = (dir.join("program.c"), dir.join("program"));
    std::fs::write(&text, source).unwrap();
    let include = Path::new(env!("CARGO_MANIFEST_DIR")).join("include");
    let mut cc = Command::new("cc");
    cc.args(["-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic", "-I"]).arg(include);
    cc.arg(&text).arg("-o").arg(&program).args(link).args(["-lsqlite3", "-lpthread", "-ldl", "-lm"]);
    let compiled = cc.output().unwrap();
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    Some(program)
}

fn compile_and_run(link: &[String]) {
    let dir = setup();
    let Some(program) = compile(dir.path(), PROGRAM, link) else { return };
    let done = Command::new(&program).arg("c.db").current_dir(dir.path()).output().unwrap();
    let out = String::from_utf8_lossy(&done.stdout).into_owned();
    assert!(done.status.success(), "{out}{}", String::from_utf8_lossy(&done.stderr));
    assert_eq!(out, format!("from C\nlog\n{}\n", env!("CARGO_PKG_VERSION")));
}

fn dynamic() -> [String; 2] {
    let library = built("libonewrite.so");
    let dir = library.parent().unwrap().display().to_string();
    [library.display().to_string(), format!("-Wl,-rpath,{dir}")]
}

#[test]
fn the_static_library_links_and_works() {
    compile_and_run(&[built("libonewrite.a").display().to_string()]);
}

#[test]
fn the_dynamic_library_links_and_works() {
    compile_and_run(&dynamic());
}

#[test]
fn valgrind_finds_no_leak_and_no_error() {
    let dir = setup();
    // On x86 with 32 bits rustix reads a part of the vDSO that valgrind does not show.
    if !has_program("valgrind") || cfg!(target_arch = "x86") {
        println!("skipped: no valgrind for this processor");
        return;
    }
    let Some(program) = compile(dir.path(), ROUNDS, &dynamic()) else { return };
    let done = Command::new("valgrind")
        .args(["-q", "--leak-check=full", "--errors-for-leak-kinds=definite,indirect", "--error-exitcode=99"])
        .args(["--show-leak-kinds=definite,indirect"])
        .arg(&program)
        .args(["c.db", "50"])
        .current_dir(dir.path())
        .output()
        .unwrap();
    assert!(done.status.success(), "{}: {}", done.status, String::from_utf8_lossy(&done.stderr));
}

#[test]
fn the_libraries_ask_for_no_symbol_of_sqlite() {
    setup();
    if !has_program("nm") {
        println!("skipped: no nm");
        return;
    }
    for (library, arguments) in [("libonewrite.so", ["-D", "-u"]), ("libonewrite.a", ["-u", "-A"])] {
        let out = Command::new("nm").args(arguments).arg(built(library)).output().unwrap();
        let out = String::from_utf8_lossy(&out.stdout).into_owned();
        let undefined: Vec<_> = out.lines().filter(|line| line.contains(" sqlite3_")).collect();
        assert!(undefined.is_empty(), "{library}: {undefined:?}");
    }
}
