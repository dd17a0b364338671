//! SQLite in another process: the test program starts itself again and takes commands.
//!
//! The test program has `#[test] fn child() { support::remote::serve() }` at its root.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use rusqlite::Connection;
use rusqlite::types::Value;

#[cfg(unix)]
use super::posix;
use super::{add_noise, explain, open};

const VARIABLE: &str = "ONEWRITE_TEST_CHILD";
const REPLY: &str = "@ ";

/// The other process's answer.
pub type Reply = Result<String, (i32, String)>;

/// A child process with at most one connection.
pub struct Remote {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Remote {
    /// Starts one, as another user if `uid` says so; `None` where that user cannot run it.
    pub fn start_as(uid: Option<u32>) -> Option<Remote> {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "child", "--nocapture"]).env(VARIABLE, "1");
        #[cfg(unix)]
        if let Some(uid) = uid {
            use std::os::unix::process::CommandExt;
            command.uid(uid).gid(uid);
        }
        #[cfg(windows)]
        assert_eq!(uid, None);
        Remote::spawn(command).ok()
    }

    /// Starts one by a command that ends as the test program.
    pub fn start_by(mut command: Command) -> Remote {
        command.env(VARIABLE, "1");
        Remote::spawn(command).unwrap()
    }

    fn spawn(mut command: Command) -> std::io::Result<Remote> {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let (to, from) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        Ok(Remote { child, to, from })
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal to the process.
    #[cfg(unix)]
    #[allow(unsafe_code)]
    pub fn signal(&self, signal: i32) {
        // SAFETY: takes numbers; the process is a child that was not waited for.
        assert_eq!(unsafe { libc::kill(self.child.id().cast_signed(), signal) }, 0);
    }

    /// Starts one.
    pub fn start() -> Remote {
        Remote::start_as(None).unwrap()
    }

    /// Starts one with the database open through onewrite.
    pub fn ours(path: &Path) -> Remote {
        let mut remote = Remote::start();
        remote.ask(&format!("ours {}?busy_ms=0", path.display())).unwrap();
        remote
    }

    /// The same, attached to the log until it closes.
    pub fn attached(path: &Path) -> Remote {
        let mut remote = Remote::start();
        remote.ask(&format!("ours {}?busy_ms=0&idle=0", path.display())).unwrap();
        remote
    }

    /// Starts one with the database open through stock SQLite.
    pub fn stock(path: &Path) -> Remote {
        let mut remote = Remote::start();
        remote.ask(&format!("stock {}", path.display())).unwrap();
        remote
    }

    /// Sends a line and waits for its answer: the first column of the last row, or code and
    /// message.
    pub fn ask(&mut self, line: &str) -> Reply {
        writeln!(self.to, "{}", line.replace('\n', " ")).unwrap();
        let mut reply = String::new();
        loop {
            reply.clear();
            assert_ne!(self.from.read_line(&mut reply).unwrap(), 0, "the other process ended at {line}");
            if let Some(reply) = reply.trim_end_matches('\n').strip_prefix(REPLY) {
                return match reply.strip_prefix("error ").and_then(|r| r.split_once(' ')) {
                    Some((code, message)) => Err((code.parse().unwrap(), message.to_owned())),
                    None => Ok(reply.to_owned()),
                };
            }
        }
    }

    /// Runs one statement.
    pub fn sql(&mut self, sql: &str) -> Reply {
        self.ask(&format!("sql {sql}"))
    }

    /// Closes the connection and ends the process.
    pub fn close(mut self) {
        self.ask("close").unwrap();
        drop(self.to);
        assert!(self.child.wait().unwrap().success());
    }

    /// Ends the process by a return from its `main`, without closing the connection.
    pub fn leave(mut self) {
        self.ask("leave").unwrap();
        drop(self.to);
        assert!(self.child.wait().unwrap().success());
    }

    /// Ends the process without a word.
    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Peak resident memory of the process in KiB.
    pub fn peak_kib(&mut self) -> u64 {
        self.ask("peak").unwrap().parse().unwrap()
    }
}

/// The work of the child process; in the test program itself it does nothing.
pub fn serve() {
    if std::env::var_os(VARIABLE).is_none() {
        return;
    }
    let mut db: Option<Connection> = None;
    let mut reader: Option<Connection> = None;
    let mut is_to_end = false;
    for line in std::io::stdin().lines() {
        let line = line.unwrap();
        let (word, rest) = line.split_once(' ').unwrap_or((&line, ""));
        is_to_end = ["close", "leave"].contains(&word);
        let reply = match word {
            "ours" => {
                let (path, parameters) = rest.split_once('?').unwrap_or((rest, ""));
                keep(&mut db, open(Path::new(path), parameters))
            }
            "stock" => {
                keep(&mut db, Connection::open_with_flags_and_vfs(rest, rusqlite::OpenFlags::default(), super::STOCK))
            }
            "sql" => last_value(db.as_ref().unwrap(), rest),
            "reader" => {
                let path = db.as_ref().and_then(Connection::path).unwrap().to_owned();
                let opened = keep(&mut reader, open(Path::new(&path), ""));
                opened
                    .and_then(|_| reader.as_ref().unwrap().execute_batch("BEGIN; SELECT * FROM sqlite_schema"))
                    .map(|()| String::new())
            }
            "leave" => {
                std::mem::forget(db.take());
                Ok(String::new())
            }
            "close" => db.take().map_or(Ok(()), |db| db.close().map_err(|(_, e)| e)).map(|()| String::new()),
            #[cfg(unix)]
            other => posix::command(other, rest),
            #[cfg(windows)]
            other => panic!("no such command: {other}"),
        };
        let reply = reply.unwrap_or_else(|e| {
            let (code, message) = explain(&e);
            let said = onewrite_rusqlite::last_error().unwrap_or_default();
            format!("error {code} {message}; {said}").replace('\n', " ")
        });
        // The test harness may have left a line unfinished.
        println!("\n{REPLY}{reply}");
        std::io::stdout().flush().unwrap();
    }
    if !is_to_end {
        // The asking process is gone: the test program could not print its report.
        drop((db, reader));
        std::process::exit(0);
    }
}

fn keep(place: &mut Option<Connection>, opened: rusqlite::Result<Connection>) -> rusqlite::Result<String> {
    let db = opened?;
    db.busy_timeout(std::time::Duration::ZERO)?;
    add_noise(&db);
    *place = Some(db);
    Ok(String::new())
}

fn last_value(db: &Connection, sql: &str) -> rusqlite::Result<String> {
    let mut statement = db.prepare(sql)?;
    let mut rows = statement.query([])?;
    let mut last = String::new();
    while let Some(row) = rows.next()? {
        last = match row.get(0)? {
            Value::Text(text) => text,
            Value::Integer(n) => n.to_string(),
            other => format!("{other:?}"),
        };
    }
    Ok(last)
}
