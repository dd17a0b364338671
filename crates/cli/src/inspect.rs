//! `onewrite inspect`: the content of a database's header and its log, in words or as JSON. It only
//! reads.

use crate::look::{Behind, Entry, Log, Look, SlotFound, counted, grouped};
use anyhow::{Context, Result, bail};
use comfy_table::{Cell, CellAlignment, ContentArrangement, LineStyle, Table, TableStyle};
use onewrite_core::inspect::ScanEnd;
use onewrite_core::inspect::Slot;
use onewrite_core::inspect::home::{self, FileKind, HomeMark};
use onewrite_core::inspect::layout::home as at;
use onewrite_core::inspect::layout::slot::PAGE_COUNT_IN_HOME;
use onewrite_core::text::{printable, printable_json};
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

/// Show what a database and its onewrite log hold: mark, session, slots, records
///
/// Nothing is written. While others use the database through onewrite, it is shown as it is at the
/// moment.
///
///     onewrite inspect app.db
///     onewrite inspect app.db --limit 0 --json | jq .log.records
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Args {
    /// The database
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Show the newest N records; 0: all
    #[arg(long, value_name = "N", default_value_t = 20)]
    limit: usize,
    /// For machines: one JSON object
    #[arg(long)]
    json: bool,
}

/// Prints mark, session, slots and records.
pub fn run(args: &Args) -> Result<ExitCode> {
    let (look, live) = Look::with(&args.file, |look| match &look.log {
        Some(log) => Live::of(look, log, args.limit),
        None => Ok(None),
    })?;
    if look.state.kind == FileKind::Foreign && !look.first.starts_with(at::MAGIC) {
        bail!("{} is not a SQLite database: it does not begin with \"SQLite format 3\"", args.file.display());
    }
    let text = match args.json {
        true => printable_json(&format!("{:#}\n", json(&look, live.as_ref()))).into_owned(),
        false => text(&look, live.as_ref()),
    };
    std::io::stdout().lock().write_all(text.as_bytes()).context("printing")?;
    Ok(ExitCode::SUCCESS)
}

/// The records of a log that has a valid slot.
struct Live {
    slot: Slot,
    /// The newest of them.
    records: VecDeque<Entry>,
    end: ScanEnd,
    behind: Behind,
}

impl Live {
    fn of(look: &Look, log: &Log, limit: usize) -> onewrite_core::Result<Option<Live>> {
        let Some(slot) = log.slot_for(look.mark)?.cloned() else { return Ok(None) };
        let mut records = VecDeque::new();
        let (end, behind) = log.walk(&slot, |entry| {
            if limit > 0 && records.len() == limit {
                records.pop_front();
            }
            records.push_back(entry);
        })?;
        Ok(Some(Live { slot, records, end, behind }))
    }
}

fn text(look: &Look, live: Option<&Live>) -> String {
    let mut lines = vec![look.repair.path().display().to_string()];
    let mut line = |name: &str, value: String| lines.push(format!("  {name:<16}{value}"));
    line("file", home_text(look));
    line("mark", mark_text(look));
    if matches!(look.state.kind, FileKind::Database | FileKind::Wal) {
        line("change counter", look.state.change_counter.to_string());
    }
    if let Some(journal) = &look.hot_journal {
        line("journal", format!("{} waits to be rolled back", journal.display()));
    }
    if let Some((wal, bytes)) = &look.wal {
        line("WAL", format!("{}, {}, which SQLite reads with the file", wal.display(), counted(*bytes, "byte")));
    }
    if let Some(second) = &look.second {
        line(
            "second file",
            format!("{}, of scheme=dash: it means nothing, the next write removes it", second.display()),
        );
    }
    let Some(log) = &look.log else {
        line("log", format!("none ({})", look.repair.log_path().display()));
        return printed(&lines);
    };
    lines.push(String::new());
    lines.push(log.file.path.display().to_string());
    let mut line = |name: &str, value: String| lines.push(format!("  {name:<16}{value}"));
    line("file", counted(log.bytes, "byte"));
    for (n, slot) in (1..).zip(&log.slots) {
        line(&format!("slot {n}"), slot_text(slot, look.mark, live.is_some_and(|l| is(slot, &l.slot))));
    }
    let Some(live) = live else { return printed(&lines) };
    let used = live.end.tail.0 - live.slot.start.0;
    let percent = used as f64 * 100.0 / live.slot.ring_bytes as f64;
    line(
        "ring",
        format!(
            "{} in blocks of {}; {percent:.1} % in use, from position {} to {}",
            counted(live.slot.ring_bytes, "byte"),
            grouped(live.slot.block_bytes.into()),
            grouped(live.slot.start.0),
            grouped(live.end.tail.0)
        ),
    );
    line("records", records_text(live));
    line("behind them", behind_text(live));
    if !live.records.is_empty() {
        lines.push(String::new());
        lines.extend(table(live).to_string().lines().map(str::to_owned));
    }
    printed(&lines)
}

fn printed(lines: &[String]) -> String {
    lines.iter().map(|line| printable(line).into_owned() + "\n").collect()
}

fn home_text(look: &Look) -> String {
    let state = &look.state;
    let bytes = counted(look.home_bytes, "byte");
    let size = || format!("{} of {} bytes", counted(state.page_count.into(), "page"), grouped(state.page_bytes.into()));
    match state.kind {
        FileKind::Empty if look.mark.is_some() => format!("{bytes}: the mark, and no page yet"),
        FileKind::Empty => format!("{bytes}: a database without a table"),
        FileKind::Database => format!("{bytes}: {}{}", size(), rest_text(look)),
        FileKind::Wal => {
            format!("{bytes}: {}, in WAL mode (the next open through onewrite takes it out of it)", size())
        }
        FileKind::Foreign => format!("{bytes}: not a SQLite database, or cut short (see `onewrite check`)"),
    }
}

/// Big transactions write new pages there, and checkpoints may be cut short.
fn rest_text(look: &Look) -> String {
    match look.home_bytes.checked_sub(look.state.bytes()) {
        None | Some(0) => String::new(),
        Some(rest) => format!(
            ", and {} behind them, as a transaction or a checkpoint leaves that did not end",
            counted(rest, "byte")
        ),
    }
}

fn mark_text(look: &Look) -> String {
    match home::mark(&look.first) {
        Some(HomeMark { session, tid, whole, .. }) => {
            let told = match (tid.0, whole.0) {
                (0, _) => String::new(),
                (tid, whole) if whole == tid => format!(", home has TID {}", grouped(tid)),
                (tid, whole) => format!(", home has TID {} and pages up to TID {}", grouped(whole), grouped(tid)),
            };
            if look.in_use {
                format!("on, session {session:016x}{told}: in use")
            } else {
                format!("on, session {session:016x}{told}: a crash left it, or it was closed with sticky=1")
            }
        }
        None => "off: any SQLite can open the file".into(),
    }
}

fn is(found: &SlotFound, slot: &Slot) -> bool {
    matches!(found, SlotFound::Valid(valid) if valid == slot)
}

fn slot_text(found: &SlotFound, mark: Option<u64>, current: bool) -> String {
    let slot = match found {
        SlotFound::Empty => return "empty".into(),
        SlotFound::Damaged => return "damaged".into(),
        SlotFound::Valid(slot) => slot,
    };
    let whose = match mark {
        Some(session) if session == slot.session => "that of the database",
        Some(_) => "not that of the database",
        None => "over",
    };
    let pages = match slot.page_count {
        PAGE_COUNT_IN_HOME => "as many pages as it states".into(),
        n => counted(n.into(), "page"),
    };
    format!(
        "{}sequence {}, {}; session {:016x} ({whose}); home has TID {} and {pages}",
        if current { "newest: " } else { "" },
        slot.sequence,
        if slot.live { "live" } else { "closed in order" },
        slot.session,
        grouped(slot.base_tid.0),
    )
}

fn records_text(live: &Live) -> String {
    if live.end.records == 0 {
        return "none: home holds everything".into();
    }
    let shown = live.records.len() as u64;
    let hint = if shown < live.end.records { format!("; the newest {} below", grouped(shown)) } else { String::new() };
    format!(
        "{}, TID {} to {}{hint}",
        grouped(live.end.records),
        grouped(live.slot.base_tid.0 + 1),
        grouped(live.end.last_tid.0)
    )
}

fn behind_text(live: &Live) -> String {
    match (live.end.rot, live.behind) {
        (Some((lost, seen)), _) => format!(
            "DAMAGE: transaction {} was durable and cannot be read; transaction {} can",
            grouped(lost.0),
            grouped(seen.0)
        ),
        (None, Behind::Nothing) => "nothing".into(),
        (None, Behind::RecordInPart(tid)) => {
            format!("transaction {} in part: not committed, or damaged", grouped(tid.0))
        }
        (None, Behind::StreamInPart(tid)) => {
            format!("transaction {} without all of its streamed images: not committed, or damaged", grouped(tid.0))
        }
    }
}

const LINE: LineStyle = LineStyle::new('─', '─', '─', '─');
const STYLE: TableStyle = TableStyle::new().top_border(LINE).header_separator(LINE).bottom_border(LINE);

fn table(live: &Live) -> Table {
    let mut t = Table::new();
    t.load_style(STYLE);
    t.set_content_arrangement(ContentArrangement::Disabled);
    let heads = ["TID", "bytes", "changed", "added", "whole", "streamed", "pages", "counter", "durable", "which pages"];
    t.set_header(heads);
    for e in &live.records {
        let number = |n: u64| Cell::new(if n == 0 { "·".to_owned() } else { grouped(n) });
        t.add_row(vec![
            Cell::new(grouped(e.tid.0)),
            number(e.bytes),
            number(e.deltas.into()),
            number(e.fresh.into()),
            number(e.images.into()),
            number(e.streamed.into()),
            number(e.page_count.into()),
            Cell::new(e.change_counter),
            Cell::new(grouped(e.durable_tid.0)),
            Cell::new(e.pages.summary(32)),
        ]);
    }
    for column in t.column_iter_mut().take(heads.len() - 1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    t
}

fn json(look: &Look, live: Option<&Live>) -> Value {
    let state = &look.state;
    let kind = match state.kind {
        FileKind::Empty => "empty",
        FileKind::Database => "database",
        FileKind::Wal => "wal",
        FileKind::Foreign => "foreign",
    };
    let log = look.log.as_ref().map(|log| {
        let slots: Vec<Value> = log.slots.iter().map(slot_json).collect();
        json!({
            "file": log.file.path,
            "bytes": log.bytes,
            "slots": slots,
            "records_total": live.map(|l| l.end.records),
            "last_tid": live.map(|l| l.end.last_tid.0),
            "lost_tid": live.and_then(|l| l.end.rot).map(|(lost, _)| lost.0),
            "seen_tid": live.and_then(|l| l.end.rot).map(|(_, seen)| seen.0),
            "incomplete_tid": live.and_then(|l| match l.behind {
                Behind::Nothing => None,
                Behind::RecordInPart(tid) | Behind::StreamInPart(tid) => Some(tid.0),
            }),
            "records": live.map(|l| l.records.iter().map(record_json).collect::<Vec<_>>()),
        })
    });
    json!({
        "file": look.repair.path(),
        "bytes": look.home_bytes,
        "kind": kind,
        "in_use": look.in_use,
        "page_bytes": state.page_bytes,
        "page_count": state.page_count,
        "change_counter": state.change_counter,
        "session": look.mark.map(|s| format!("{s:016x}")),
        "hot_journal": look.hot_journal,
        "wal": look.wal.as_ref().map(|(path, _)| path),
        "second_file": look.second,
        "log": log,
    })
}

fn slot_json(found: &SlotFound) -> Value {
    let SlotFound::Valid(s) = found else {
        return json!({ "state": if matches!(found, SlotFound::Empty) { "empty" } else { "damaged" } });
    };
    json!({
        "state": if s.live { "live" } else { "clean" },
        "sequence": s.sequence,
        "session": format!("{:016x}", s.session),
        "salt": format!("{:016x}", s.salt),
        "block_bytes": s.block_bytes,
        "ring_bytes": s.ring_bytes,
        "start": s.start.0,
        "base_tid": s.base_tid.0,
        "tid_ceiling": s.tid_ceiling.0,
        "page_bytes": s.page_bytes,
        "page_count": Some(s.page_count).filter(|n| *n != PAGE_COUNT_IN_HOME),
        "change_counter": s.change_counter,
        "counter_ceiling": s.counter_ceiling,
    })
}

fn record_json(e: &Entry) -> Value {
    json!({
        "tid": e.tid.0,
        "bytes": e.bytes,
        "deltas": e.deltas,
        "fresh": e.fresh,
        "images": e.images,
        "streamed": e.streamed,
        "page_count": e.page_count,
        "change_counter": e.change_counter,
        "durable_tid": e.durable_tid.0,
        "page_runs": e.pages.runs,
    })
}
