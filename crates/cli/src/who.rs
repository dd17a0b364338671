//! `onewrite who`: the processes that use a database, as a table or as JSON. It takes no lock and
//! writes nothing.

use crate::answer::print_json;
use crate::look::{counted, disk, grouped};
use anyhow::{Context, Result};
use comfy_table::{CellAlignment, ContentArrangement, LineStyle, Table, TableStyle};
use onewrite_core::Repair;
use onewrite_core::inspect::{DatabaseUser, ProcessLife};
use onewrite_core::text::{Printable, printable};
use serde_json::{Value, json};
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

const LINE: LineStyle = LineStyle::new('─', '─', '─', '─');
const STYLE: TableStyle = TableStyle::new().top_border(LINE).header_separator(LINE).bottom_border(LINE);

/// Characters of a command in the table.
const COMMAND_CHARS: usize = 48;

/// Show which processes use a database, and what each of them holds
///
/// Processes that use it through onewrite are attached: they write, read a snapshot, ship to a
/// store, or are idle. Others lock it as stock SQLite does, or have it open. Processes of other
/// users are shown as far as this user may look at them: as root, all are. Nothing is written, and
/// no process waits.
///
/// The status is 0 if there are such processes, 2 if there are none, and 1 after an error.
///
///     onewrite who app.db
///     onewrite who --json app.db | jq '.processes[] | select(.activity == "writing").pid'
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

/// Prints the processes.
pub fn run(args: &Args) -> Result<ExitCode> {
    let seen = Seen::of(Repair::beside(disk(), &args.file)?)?;
    match args.json {
        true => print_json(&seen.json())?,
        false => std::io::stdout().lock().write_all(seen.text().as_bytes()).context("printing")?,
    }
    Ok(if seen.users.is_empty() { ExitCode::from(2) } else { ExitCode::SUCCESS })
}

struct Seen {
    path: PathBuf,
    is_marked: bool,
    log: PathBuf,
    log_bytes: Option<u64>,
    users: Vec<DatabaseUser>,
}

impl Seen {
    fn of(database: Repair) -> Result<Seen> {
        let log = database.log_path();
        let mut users = database.users()?;
        // This one has it open to look.
        users.retain(|user| user.pid != Some(std::process::id()));
        Ok(Seen {
            path: database.path().to_owned(),
            is_marked: database.mark()?.is_some(),
            log_bytes: std::fs::metadata(&log).ok().map(|found| found.len()),
            log,
            users,
        })
    }

    fn text(&self) -> String {
        let mut lines = vec![self.headline()];
        if !self.users.is_empty() {
            lines.push(table(&self.users).to_string());
        }
        lines.extend(self.hindrance());
        lines.join("\n") + "\n"
    }

    fn headline(&self) -> String {
        let path = Printable(self.path.display());
        let state = if self.is_marked { "marked, its newest transactions are in the log" } else { "a plain file" };
        let log = self.log_bytes.map_or(String::new(), |bytes| format!(" ({})", counted(bytes, "byte")));
        let users = match self.users.len() {
            0 => "no process uses it, as far as this user may look".to_owned(),
            1 => "1 process".to_owned(),
            n => format!("{} processes", grouped(n as u64)),
        };
        format!("{path}: {state}{}; {users}", if self.is_marked { log } else { String::new() })
    }

    /// Why the file is not plain.
    fn hindrance(&self) -> Option<String> {
        let living = || self.users.iter().filter(|user| user.is_attached && user.life != ProcessLife::Ended);
        if !self.is_marked {
            return None;
        }
        if living().next().is_none() {
            return Some(
                "No process is attached: the next open through onewrite recovers, and makes the file plain".into(),
            );
        }
        let holders: Vec<String> = living()
            .filter(|user| user.is_in_the_way() || user.life == ProcessLife::Stopped)
            .map(|user| format!("process {} ({})", number(user.pid), state(user)))
            .collect();
        Some(match holders.is_empty() {
            true => "The file becomes plain when the setting `idle` of these processes is over".to_owned(),
            false => format!("The file stays marked because of {}", holders.join(", ")),
        })
    }

    fn json(&self) -> Value {
        json!({
            "database": self.path.display().to_string(),
            "marked": self.is_marked,
            "log": { "path": self.log.display().to_string(), "bytes": self.log_bytes },
            "processes": self.users.iter().map(user_json).collect::<Vec<_>>(),
        })
    }
}

fn user_json(user: &DatabaseUser) -> Value {
    let seconds = |time: Option<Duration>| time.map(|time| (time.as_secs_f64() * 10.0).round() / 10.0);
    json!({
        "pid": user.pid,
        "command": user.command,
        "state": user.life.word(),
        "attached": user.is_attached,
        "activity": user.activity(),
        "attached_s": user.attached.map(|time| time.as_secs()),
        "writing_s": seconds(user.writing),
        "snapshots": user.snapshots,
        "snapshot_s": user.snapshot.map(|time| time.as_secs()),
        "behind": user.behind,
        "ships": user.ships,
        "locks": user.locks,
    })
}

fn table(users: &[DatabaseUser]) -> Table {
    let mut table = Table::new();
    table.load_style(STYLE).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(["PID", "COMMAND", "ATTACHED", "ACTIVITY", "HOLDS"]);
    for user in users {
        let attached = user.attached.map_or("-".to_owned(), |time| format!("{} s", grouped(time.as_secs())));
        table.add_row([number(user.pid), command(user), attached, state(user), holds(user)]);
    }
    for column in [0, 2] {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

fn number(pid: Option<u32>) -> String {
    pid.map_or("?".to_owned(), |pid| pid.to_string())
}

fn command(user: &DatabaseUser) -> String {
    let Some(command) = &user.command else {
        return if user.life == ProcessLife::Ended { "-" } else { "(cannot be looked at)" }.to_owned();
    };
    let text = printable(command);
    let mut short: String = text.chars().take(COMMAND_CHARS).collect();
    if short.len() < text.len() {
        short.push('…');
    }
    short
}

fn state(user: &DatabaseUser) -> String {
    let activity = match (user.activity(), user.writing) {
        ("writing", Some(time)) => format!("writing for {:.1} s", time.as_secs_f64()),
        ("locking", _) => "stock SQLite's lock".to_owned(),
        (activity, _) => activity.to_owned(),
    };
    match user.life {
        ProcessLife::Ended => "has ended without closing".to_owned(),
        ProcessLife::Stopped => format!("{activity}, stopped (SIGSTOP)"),
        ProcessLife::Traced => format!("{activity}, stopped by a debugger"),
        ProcessLife::Running | ProcessLife::Unknown => activity,
    }
}

fn holds(user: &DatabaseUser) -> String {
    let mut held = Vec::new();
    if user.writing.is_some() {
        held.push("the writer's place".to_owned());
    }
    match (user.snapshots, user.snapshot, user.behind) {
        (0, ..) => {}
        (n, Some(open), Some(behind)) => held.push(format!(
            "{} for {} s, {} behind",
            counted(n, "snapshot"),
            grouped(open.as_secs()),
            counted(behind, "transaction")
        )),
        (n, ..) => held.push(counted(n, "snapshot")),
    }
    if user.ships {
        held.push("the store's connection".to_owned());
    }
    if user.is_alone {
        held.push("the log for itself alone".to_owned());
    }
    if !user.is_attached {
        held.extend(user.locks.iter().map(|lock| (*lock).to_owned()));
    }
    if held.is_empty() { "-".to_owned() } else { held.join("; ") }
}
