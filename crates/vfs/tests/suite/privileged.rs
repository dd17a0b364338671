//! A user, against a program that runs with more rights than the user has; and the reader of a log,
//! against the program that writes it. The program is C, linked to the system's SQLite, and loads
//! the extension.

use crate::common;

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use common::{built, has_program, setup};

/// Loads the extension, then opens a database as often as it is told, each time after a line of
/// input.
const PROGRAM: &str = r#"
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/auxv.h>
int main(int argc, char **argv){
  sqlite3 *db = 0;
  char *why = 0, line[8];
  int i, rc;
  if( argc!=4 || sqlite3_open(":memory:", &db) || sqlite3_enable_load_extension(db, 1) ) return 2;
  rc = sqlite3_load_extension(db, argv[1], 0, &why);
  printf("secure %d load %d %s\n", getauxval(AT_SECURE)!=0, rc, why ? why : "");
  fflush(stdout);
  for(i=0; i<atoi(argv[3]); i++){
    sqlite3_vfs *vfs = 0;
    sqlite3_stmt *asks = 0;
    const unsigned char *said = 0;
    if( !fgets(line, sizeof line, stdin) ) line[0] = 0;
    rc = sqlite3_open_v2(argv[2], &db, SQLITE_OPEN_READWRITE|SQLITE_OPEN_CREATE|SQLITE_OPEN_URI, 0);
    sqlite3_file_control(db, "main", SQLITE_FCNTL_VFS_POINTER, &vfs);
    if( rc==0 ) rc = sqlite3_exec(db, "CREATE TABLE IF NOT EXISTS t(a); INSERT INTO t VALUES (1)", 0, 0, 0);
    sqlite3_close(db);
    sqlite3_open(":memory:", &db);
    if( sqlite3_prepare_v2(db, "SELECT onewrite_last_error()", -1, &asks, 0)==0 && sqlite3_step(asks)==SQLITE_ROW ){
      said = sqlite3_column_text(asks, 0);
    }
    printf("open %d vfs %s said %s\n", rc, vfs ? vfs->zName : "none", said ? (const char*)said : "nothing");
    fflush(stdout);
    sqlite3_finalize(asks);
    sqlite3_close(db);
  }
  return 0;
}
"#;

/// The compiled program; `None` where it cannot be made.
fn program(dir: &Path) -> Option<PathBuf> {
    fs::set_permissions(dir, Permissions::from_mode(0o755)).unwrap();
    let (text, program) = (dir.join("program.c"), dir.join("program"));
    fs::write(&text, PROGRAM).unwrap();
    let made = has_program("cc")
        && Command::new("cc")
            .args(["-D_GNU_SOURCE", "-o"])
            .arg(&program)
            .arg(&text)
            .arg("-lsqlite3")
            .status()
            .unwrap()
            .success();
    if !made {
        println!("skipped: no cc, or no sqlite3.h");
    }
    made.then_some(program)
}

fn run(program: &Path, uri: &str, rounds: u32) -> Command {
    // Ends by itself: a program that waits for its log is stopped.
    let mut command = Command::new("timeout");
    command.arg("60").arg(program).arg(built("libonewrite.so")).arg(uri).arg(rounds.to_string());
    command.env_remove("ONEWRITE_DEFAULT").env_remove("ONEWRITE_LOG").stdin(Stdio::null());
    command
}

fn out(command: &mut Command) -> String {
    let done = command.output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    assert!(done.status.success(), "{:?}: {out}{err}", done.status);
    format!("{out}{err}")
}

#[test]
fn a_privileged_program_takes_no_word_of_its_users_environment() {
    let dir = setup();
    let Some(program) = program(dir.path()) else { return };
    if fs::metadata(&program).unwrap().uid() != 0 {
        println!("skipped: this process is not root");
        return;
    }
    let private = dir.path().join("private");
    fs::create_dir(&private).unwrap();
    fs::set_permissions(&private, Permissions::from_mode(0o700)).unwrap();
    let (victim, made) = (private.join("victim"), private.join("made"));
    fs::write(&victim, "original\n").unwrap();
    let bad = format!("file:{}/no/such\nevil::0:0::/root:/bin/sh\n?vfs=onewrite", dir.path().display());
    let ask = |uri: &str, log: &Path| {
        let mut command = run(&program, uri, 1);
        command.env("ONEWRITE_LOG", log).env("ONEWRITE_DEFAULT", "1");
        command
    };
    let database = private.join("a.db").display().to_string();

    // Without more rights than its user's, it does as the environment says, and lines stay lines.
    assert!(out(&mut ask(&database, &made)).contains("secure 0 load 0 \nopen 0 vfs onewrite"));
    out(&mut ask(&bad, &made));
    let lines = fs::read_to_string(&made).unwrap();
    assert!(lines.lines().count() == 1 && lines.contains("such\\nevil::0:0"), "{lines}");
    fs::remove_file(&made).unwrap();

    fs::set_permissions(&program, Permissions::from_mode(0o4755)).unwrap();
    for log in [&victim, &made] {
        let said = out(ask(&database, log).uid(1000).gid(1000));
        assert!(said.contains("secure 1 load 0 \nopen 0 vfs unix"), "{said}");
        let said = out(ask(&bad, log).uid(1000).gid(1000));
        assert!(said.contains("secure 1 load 0 \nopen 14") && said.contains("such\\nevil::0:0"), "{said}");
    }
    assert_eq!(fs::read_to_string(&victim).unwrap(), "original\n");
    assert!(!made.exists());
}

/// A wrong URI, of which each open writes a line.
fn wrong(dir: &Path) -> String {
    format!("file:{}?vfs=onewrite&scheme=fast", dir.join("a.db").display())
}

fn fifo(dir: &Path) -> Option<PathBuf> {
    let fifo = dir.join("fifo");
    Command::new("mkfifo").arg(&fifo).status().is_ok_and(|done| done.success()).then_some(fifo)
}

#[test]
fn a_log_that_is_a_pipe_without_a_reader_is_not_waited_for() {
    let dir = setup();
    let (Some(program), Some(fifo)) = (program(dir.path()), fifo(dir.path())) else { return };
    let said = out(run(&program, &wrong(dir.path()), 1).env("ONEWRITE_LOG", &fifo));
    assert!(said.contains("open 14") && said.contains(&format!("ONEWRITE_LOG={}", fifo.display())), "{said}");
}

#[test]
fn a_reader_of_the_log_that_goes_away_kills_no_program() {
    let dir = setup();
    let (Some(program), Some(fifo)) = (program(dir.path()), fifo(dir.path())) else { return };
    let mut reader = OpenOptions::new().read(true).custom_flags(0o4000).open(&fifo).unwrap();
    let mut command = run(&program, &wrong(dir.path()), 3);
    let mut child = command.env("ONEWRITE_LOG", &fifo).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let (mut to, mut from) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()).lines());
    assert!(from.next().unwrap().unwrap().starts_with("secure"));
    let mut round = || {
        writeln!(to).unwrap();
        assert!(from.next().unwrap().unwrap().starts_with("open 14"));
    };
    round();
    let mut told = [0; 4096];
    let bytes = reader.read(&mut told).unwrap();
    assert!(String::from_utf8_lossy(&told[..bytes]).contains("scheme=fast"));
    drop(reader);
    // A program that another test starts has it open until its `exec`.
    while OpenOptions::new().write(true).custom_flags(0o4000).open(&fifo).is_ok() {
        std::thread::yield_now();
    }
    round();
    // One that comes later is told again.
    let mut reader: File = OpenOptions::new().read(true).custom_flags(0o4000).open(&fifo).unwrap();
    round();
    let bytes = reader.read(&mut told).unwrap();
    assert_eq!(String::from_utf8_lossy(&told[..bytes]).matches("scheme=fast").count(), 1);
    assert!(child.wait().unwrap().success());
}

#[test]
fn a_log_without_a_reader_stops_no_program() {
    let dir = setup();
    let (Some(program), Some(fifo)) = (program(dir.path()), fifo(dir.path())) else { return };
    let _reader = OpenOptions::new().read(true).custom_flags(0o4000).open(&fifo).unwrap();
    // Each line has more than 500 bytes, and a pipe holds 65,536.
    let said = out(run(&program, &wrong(dir.path()), 400).env("ONEWRITE_LOG", &fifo));
    assert_eq!(said.matches("open 14").count(), 400);
    // Standard error, full and then closed.
    for close in [false, true] {
        let mut command = run(&program, &wrong(dir.path()), 400);
        command.env("ONEWRITE_LOG", "stderr").stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        if close {
            drop(child.stderr.take());
        }
        assert!(child.wait().unwrap().success());
    }
}
