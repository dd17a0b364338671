//! Shared by tests of the real program: a database and a store in one directory.

// Not each of them uses all of it.
#![allow(dead_code)]

use onewrite_rusqlite::STOCK_VFS;
use rusqlite::Connection;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// A process that is killed when dropped.
pub struct Killed(pub Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        self.0.wait().unwrap();
    }
}

/// Both outputs.
pub fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// Waits a minute at most.
pub fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < deadline, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// SIGINT ends a program that waits for a silent server.
#[cfg(unix)]
pub fn assert_interruptible(command: &mut Command) {
    let mut waits = Killed(command.spawn().unwrap());
    std::thread::sleep(Duration::from_millis(300));
    let begun = Instant::now();
    assert!(Command::new("kill").args(["-INT", &waits.0.id().to_string()]).status().unwrap().success());
    let status = waits.0.wait().unwrap();
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    assert_eq!(status.code(), Some(130));
}

/// The program on the PATH, if it is there.
pub fn installed(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).map(|dir| dir.join(program)).find(|path| path.is_file());
    if found.is_none() {
        eprintln!("{program} is not installed: not compared with it");
    }
    found
}

pub struct Place {
    pub dir: tempfile::TempDir,
    pub file: PathBuf,
}

impl Place {
    /// With one table of `rows` rows.
    pub fn new(rows: u32) -> Place {
        let dir = tempfile::tempdir().unwrap();
        let place = Place { file: dir.path().join("app.db"), dir };
        place.sql(&format!(
            "CREATE TABLE t(n INTEGER PRIMARY KEY, x); WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE \
             i < {rows}) INSERT INTO t SELECT i, randomblob(200) FROM n"
        ));
        place
    }

    pub fn sql(&self, sql: &str) {
        self.open().execute_batch(sql).unwrap();
    }

    pub fn open(&self) -> Connection {
        let db = onewrite_rusqlite::open(&self.file).unwrap();
        db.busy_timeout(Duration::from_secs(20)).unwrap();
        db
    }

    pub fn store(&self) -> PathBuf {
        self.dir.path().join("store")
    }

    pub fn url(&self) -> String {
        format!("file://{}", self.store().display())
    }

    pub fn program(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_onewrite-replicate"));
        command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// `replicate` with these options.
    pub fn replicate(&self, more: &[&str]) -> Command {
        let mut command = self.program(&["replicate"]);
        command.args(more).arg(&self.file).arg(self.url());
        command
    }

    /// Ships once; returns the output.
    pub fn once(&self, more: &[&str]) -> String {
        let output = self.replicate(&[&["--once", "-v"], more].concat()).output().unwrap();
        assert!(output.status.success(), "{}", said(&output));
        said(&output)
    }

    /// Restores with these options, into a new file.
    pub fn restore(&self, more: &[&str]) -> PathBuf {
        let dest = self.new_name();
        let output = self.program(&["restore"]).args(more).arg(self.url()).arg(&dest).output().unwrap();
        assert!(output.status.success(), "{}", said(&output));
        dest
    }

    /// The same with stock Litestream, if installed.
    pub fn litestream_restore(&self, more: &[&str]) -> Option<PathBuf> {
        let dest = self.new_name();
        let mut command = Command::new(installed("litestream")?);
        let output = command.arg("restore").args(more).arg("-o").arg(&dest).arg(self.url()).output().unwrap();
        assert!(output.status.success(), "{}", said(&output));
        Some(dest)
    }

    fn new_name(&self) -> PathBuf {
        let mut names = (0..).map(|n| self.dir.path().join(format!("restored-{n}.db")));
        names.find(|name| !name.exists()).unwrap()
    }

    /// Names of the files of a level.
    pub fn names(&self, level: u8) -> Vec<String> {
        let files = fs::read_dir(self.store().join(format!("ltx/{level}"))).into_iter().flatten();
        let mut names: Vec<_> = files.map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
        names.retain(|name| name.ends_with(".ltx"));
        names.sort();
        names
    }
}

/// Number and sum of all rows of a plain file.
pub fn rows(file: &Path) -> String {
    let db = Connection::open_with_flags_and_vfs(file, Default::default(), STOCK_VFS).unwrap();
    db.query_row("SELECT count(*) || ' ' || total(n) || ' ' || group_concat(hex(x)) FROM t", [], |row| row.get(0))
        .unwrap()
}
