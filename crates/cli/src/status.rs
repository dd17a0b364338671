//! `onewrite status`: whether onewrite is in effect for a database, and the state that it is in.

use crate::answer::print_json;
use crate::check::in_wal_mode;
use crate::look::{Look, counted};
use crate::{live, tables};
use anyhow::{Context, Result, ensure};
use onewrite_core::text::Printable;
use rusqlite::Connection;
use serde_json::{Map, Value};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Say whether onewrite is in effect for a database, and the state that it is in
///
/// Nothing is written. The status is 0 if a connection through onewrite would be served by it, and
/// 1 if SQLite's own modes would serve it, or there is an error; the first line says why.
///
/// Lines with the files follow, and those of `PRAGMA onewrite_status` as such a connection has
/// them. With --json all is one object: file, status, in_effect, why, in_use (by other processes),
/// recovery_waits (a crash left transactions in the log), bytes, log_bytes, and these lines.
///
///     onewrite status app.db
///     onewrite status --json app.db | jq .in_effect
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Args {
    /// The database
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// For machines: one JSON object
    #[arg(long)]
    json: bool,
}

/// Prints the state.
pub fn run(args: &Args) -> Result<ExitCode> {
    let answer = Effect::of(&args.file);
    match args.json {
        true => print_json(&answer.json(&args.file))?,
        false => {
            let text = answer.text(&args.file);
            std::io::stdout().lock().write_all(text.as_bytes()).context("printing")?;
        }
    }
    Ok(if answer.why_not.is_none() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The answer for one database.
struct Effect {
    /// The reason why onewrite is not in effect.
    why_not: Option<String>,
    /// `None`: they cannot be looked at.
    files: Option<FilePair>,
    /// The lines of the pragma, name and value.
    lines: Vec<(String, String)>,
}

/// The database and its log.
struct FilePair {
    in_use: bool,
    recovery_waits: bool,
    bytes: u64,
    log_bytes: Option<u64>,
}

impl Effect {
    fn of(file: &Path) -> Effect {
        let look = Look::open(file);
        let files = look.as_ref().ok().map(|look| FilePair {
            in_use: look.in_use,
            recovery_waits: look.mark.is_some() && !look.in_use,
            bytes: look.home_bytes,
            log_bytes: look.log.as_ref().map(|log| log.bytes),
        });
        let mut lines = Vec::new();
        let why_not = match asked(file, look) {
            Ok(text) => {
                let pairs = text.lines().filter_map(|line| line.split_once('='));
                lines.extend(pairs.map(|(name, value)| (name.to_owned(), value.to_owned())));
                text.lines().find_map(|line| Some(line.strip_prefix("in_effect=no: ")?.to_owned()))
            }
            Err(e) => Some(format!("{e:#}")),
        };
        lines.retain(|(name, _)| name != "in_effect");
        Effect { why_not, files, lines }
    }

    fn text(&self, file: &Path) -> String {
        let file = Printable(file.display());
        let mut text = match &self.why_not {
            None => format!("{file}: onewrite is in effect\n"),
            Some(why) => format!("{file}: onewrite is not in effect: {}\n", Printable(why)),
        };
        let mut line = |name: &str, value: &str| text += &format!("  {name:<16}{}\n", Printable(value));
        if let Some(files) = &self.files {
            line("in use", if files.in_use { "by other processes, through onewrite" } else { "by no other process" });
            if files.recovery_waits {
                line("after a crash", "the next open for writing recovers, see `onewrite check`");
            }
            line("file", &counted(files.bytes, "byte"));
            line("log", &files.log_bytes.map_or("none".to_owned(), |bytes| counted(bytes, "byte")));
        }
        self.lines.iter().for_each(|(name, value)| line(name, value));
        text
    }

    fn json(&self, file: &Path) -> Value {
        let mut all = Map::new();
        let mut put = |name: &str, value: Value| _ = all.insert(name.to_owned(), value);
        put("file", file.to_string_lossy().into());
        put("status", u8::from(self.why_not.is_some()).into());
        put("in_effect", self.why_not.is_none().into());
        put("why", self.why_not.clone().into());
        let files = self.files.as_ref();
        put("in_use", files.map(|files| files.in_use).into());
        put("recovery_waits", files.map(|files| files.recovery_waits).into());
        put("bytes", files.map(|files| files.bytes).into());
        put("log_bytes", files.and_then(|files| files.log_bytes).into());
        for (name, value) in &self.lines {
            put(name, value.parse::<u64>().map_or_else(|_| value.clone().into(), Value::from));
        }
        all.into()
    }
}

/// The text of the pragma: where others use the database as its reader gets it, else as a
/// connection that writes.
fn asked(file: &Path, look: onewrite_core::Result<Look>) -> Result<String> {
    let ask = |db: &Connection| {
        // A pragma alone does not look at the file.
        db.query_row("SELECT count(*) FROM sqlite_schema", [], |_| Ok(()))?;
        db.query_row("PRAGMA onewrite_status", [], |row| row.get(0))
    };
    let look = look?;
    ensure!(
        look.in_use || !in_wal_mode(&look) || !look.repair.has_others()?,
        "the database is in WAL mode, which is SQLite's own: other processes have it open in that mode"
    );
    if !look.in_use {
        return tables::ask_locked(&look, ask);
    }
    // Its locks would be in the way of the reader.
    drop(look);
    ask(&live::open(file)?).map_err(|e| live::explain(file, e))
}
