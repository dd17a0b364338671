//! `onewrite check`: whether a database and its log are what they should be. Looks only.

use crate::live;
use crate::look::{Behind, Log, Look, SlotFound, counted, grouped};
use anyhow::{Context, Result};
use indicatif::{ProgressBar, ProgressStyle};
use onewrite_core::Error;
use onewrite_core::inspect::home::{self, Kind, State};
use onewrite_core::inspect::layout::{be_u32, home as at};
use onewrite_core::inspect::{Leftover, Slot, Whose};
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Check a database and its onewrite log: structure, checksums, and whether the two belong together
///
/// Nothing is written. Others may use it through onewrite meanwhile. One line per finding; the last line
/// is the verdict. The status is 0 if all is sound (transactions that wait in the log after a crash are),
/// 1 if something is damaged, 2 if a file could not be checked.
///
/// A database without onewrite's mark beside a log that holds transactions is told by file and change counter: sound, if it is
/// the file that the log was used for and as new as the last of them, or newer, for then it has them all; damaged, if it is older,
/// as a copy that somebody put back; and 2, if it is another file and newer, since that may have them or not.
///
/// What is checked is what onewrite knows: the database header, every byte's readability, the log's
/// slots, records and streamed images, and that recovery would succeed. For the tables inside, ask
/// SQLite: PRAGMA integrity_check.
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Args {
    /// The databases
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
}

/// Prints the findings; the verdict is the status.
pub fn run(args: &Args) -> Result<ExitCode> {
    let (mut damaged, mut unchecked) = (false, false);
    for file in &args.files {
        match check_file(file)? {
            Some(sound) => damaged |= !sound,
            None => unchecked = true,
        }
    }
    Ok(if damaged { ExitCode::FAILURE } else { ExitCode::from(if unchecked { 2 } else { 0 }) })
}

/// So often one is looked at that others use, through onewrite and it cannot be read, or in SQLite's WAL mode and it looks damaged.
const LOOKS: u32 = 3;

fn in_wal_mode(look: &Look) -> bool {
    look.first.get(at::WRITE_VERSION) == Some(&2) || look.state.kind == Kind::Wal
}

/// Whether the database is sound; `None` if it could not be checked.
fn check_file(file: &Path) -> Result<Option<bool>> {
    let mut looks = 0;
    let looked = Look::with(file, |look| {
        let mut findings = Findings::default();
        check(look, &mut findings);
        looks += 1;
        match findings.unread.take() {
            // Those that used it may have ended, and others may have come since.
            Some(why) if looks < LOOKS => return Err(Error::Busy(why)),
            Some(why) => findings.damage(why),
            // Checkpoints of SQLite may have come between two reads: the lock keeps those out of no file in WAL mode.
            None if looks < LOOKS && findings.damaged() > 0 && in_wal_mode(look) => {
                return Err(Error::Busy("it looks damaged, and others may use it in WAL mode".into()));
            }
            None => {}
        }
        Ok(findings)
    });
    let (_, findings) = match looked {
        Ok(looked) => looked,
        Err(e) => {
            let _nobody_reads = writeln!(std::io::stderr(), "onewrite: not checked: {e}");
            return Ok(None);
        }
    };
    let mut out = String::new();
    for (grade, text) in &findings.list {
        let _ = writeln!(out, "{:<8}{text}", grade.word());
    }
    let damaged = findings.damaged();
    let verdict = match (damaged, findings.waiting) {
        (0, _) if findings.untold => "sound by itself; whether it lacks what its log holds cannot be told".to_owned(),
        (0, _) if findings.in_use => "sound, and in use".to_owned(),
        (0, 0) => "sound".to_owned(),
        (0, n) => format!("sound; recovery waits ({} in the log)", counted(n, "transaction")),
        (n, _) => format!("DAMAGED: {} above", counted(n, "finding")),
    };
    let _ = writeln!(out, "{}: {verdict}", file.display());
    std::io::stdout().lock().write_all(out.as_bytes()).context("printing")?;
    Ok((damaged > 0 || !findings.untold).then_some(damaged == 0))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Grade {
    Ok,
    Note,
    Damage,
}

impl Grade {
    fn word(self) -> &'static str {
        match self {
            Grade::Ok => "ok",
            Grade::Note => "note",
            Grade::Damage => "DAMAGE",
        }
    }
}

#[derive(Default)]
struct Findings {
    list: Vec<(Grade, String)>,
    /// Transactions that only the log holds.
    waiting: u64,
    /// Whether the database has what the log holds cannot be told.
    untold: bool,
    /// Others use it.
    in_use: bool,
    /// Why it could not be read as one of those.
    unread: Option<String>,
}

impl Findings {
    fn ok(&mut self, text: impl Into<String>) {
        self.list.push((Grade::Ok, text.into()));
    }

    fn note(&mut self, text: impl Into<String>) {
        self.list.push((Grade::Note, text.into()));
    }

    fn damage(&mut self, text: impl Into<String>) {
        self.list.push((Grade::Damage, text.into()));
    }

    /// What looked like damage until now is a note, for this reason.
    fn excuse(&mut self, why: &str) {
        for (grade, text) in self.list.iter_mut().filter(|(grade, _)| *grade == Grade::Damage) {
            *grade = Grade::Note;
            text.push_str(why);
        }
    }

    fn damaged(&self) -> u64 {
        self.list.iter().filter(|(grade, _)| *grade == Grade::Damage).count() as u64
    }
}

fn check(look: &Look, f: &mut Findings) {
    f.in_use = look.in_use;
    let is_database = check_kind(look, f);
    if is_database {
        check_header(look, f);
    }
    let waits = match (&look.hot_journal, &look.wal) {
        _ if look.mark.is_some() => None,
        (Some(_), _) => Some("rollback journal"),
        (None, Some(_)) => Some("write-ahead log"),
        (None, None) => None,
    };
    if let Some(waits) = waits {
        // A process that died in a commit, or in a checkpoint of SQLite's, left the header of more pages than it had written.
        f.excuse(&format!("; so is the file of a process that died as it wrote, and the {waits} beside it mends that"));
    }
    check_readable(look, f);
    check_journal(look, f);
    if let Some((wal, bytes)) = &look.wal {
        f.note(format!(
            "a write-ahead log of SQLite lies beside it ({}, {}), which SQLite reads with it: what it has is not checked. Keep the two \
             together",
            wal.display(),
            counted(*bytes, "byte")
        ));
    }
    if let Some(second) = &look.second {
        f.note(format!(
            "a second file of scheme=dash is there ({}): it means nothing while this one has the name; the next write \
             removes it",
            second.display()
        ));
    }
    for aside in look.repair.logs_aside() {
        f.note(format!(
            "{} is the log of another database that had this name before, and finds it by its session: it means nothing \
             to this one, and nothing at all once that database is gone",
            aside.display()
        ));
    }
    match (&look.log, look.mark) {
        (Some(log), _) => check_log(look, log, f),
        (None, Some(_)) => f.damage(format!(
            "the mark is on, but the log {} is missing: the newest transactions are in it. Put it back; if it is lost \
             for good, see `onewrite recover --without-log`",
            look.repair.log_path().display()
        )),
        (None, None) if is_database => f.ok("no mark and no log: a plain SQLite database"),
        (None, None) => {}
    }
}

/// Whether the rest of the header means anything.
fn check_kind(look: &Look, f: &mut Findings) -> bool {
    let file = look.repair.path().display();
    match look.state.kind {
        Kind::Empty if look.mark.is_some() => f.ok(format!("{file} carries the mark and has no page yet")),
        Kind::Empty => f.ok(format!("{file} is empty: a database that has no table yet")),
        Kind::Database => return true,
        Kind::Wal => {
            f.note(format!("{file} is in WAL mode: the next open through onewrite takes it out of it"));
            return true;
        }
        Kind::Foreign if !look.first.starts_with(at::MAGIC) => {
            f.damage(format!("{file} is not a SQLite database: it does not begin with \"SQLite format 3\""));
        }
        Kind::Foreign if look.first.len() < at::HEADER_BYTES => {
            f.damage(format!("{file} ends within the header: {} bytes of {}", look.first.len(), at::HEADER_BYTES));
        }
        Kind::Foreign => {
            let version = |i: usize| look.first.get(i).copied().unwrap_or(0);
            let (write, read) = (version(at::WRITE_VERSION), version(at::READ_VERSION));
            if home::page_bytes(&look.first).is_none() {
                f.damage(format!("{file} states a page size that is none"));
            } else if write != 1 || !matches!(read, 1 | at::MARK) {
                f.damage(format!("{file} states versions {write} and {read} (bytes 18 and 19), which mean nothing"));
            } else {
                return true; // Shorter than the header states; the sizes say how.
            }
        }
    }
    false
}

fn check_header(look: &Look, f: &mut Findings) {
    let before = f.damaged();
    let (page_bytes, page_count) = (look.state.page_bytes, look.state.page_count);
    let byte = |i: usize| look.first.get(i).copied().unwrap_or(0);
    let field = |i: usize| be_u32(&look.first, i).unwrap_or(0);
    if page_bytes.saturating_sub(u32::from(byte(at::RESERVED))) < 480 {
        f.damage(format!("the header reserves {} of {page_bytes} bytes of each page", byte(at::RESERVED)));
    }
    if [byte(21), byte(22), byte(23)] != [64, 32, 32] {
        f.damage("the payload fractions in the header (bytes 21 to 23) are not 64, 32, 32");
    }
    if field(44) > 4 || field(56) > 3 {
        f.damage(format!("the header states schema format {} and text encoding {}", field(44), field(56)));
    }
    if look.mark.is_none() && look.first.get(at::SESSION..at::SESSION + 8).is_some_and(|s| s != [0; 8]) {
        f.damage(
            "the mark is off, but bytes 72 to 79 of the header, where its session id goes, are not zeros: perhaps \
             byte 19 was changed",
        );
    }
    let trunk = field(32);
    if trunk > page_count || field(36) >= page_count.max(1) {
        f.damage(format!(
            "the freelist begins at page {trunk} and has {}, in a database of {}",
            counted(field(36).into(), "page"),
            counted(page_count.into(), "page")
        ));
    }
    if page_count > 0 && look.home_bytes > at::HEADER_BYTES as u64 && !matches!(byte(100), 5 | 13) {
        f.damage(format!("page 1 is not the root of a table: its type is {}", byte(100)));
    }
    if look.mark.is_none() {
        check_size(look, f);
    }
    if f.damaged() == before {
        f.ok(format!(
            "the header: {} of {} bytes, change counter {}",
            counted(page_count.into(), "page"),
            grouped(page_bytes.into()),
            look.state.change_counter
        ));
    }
}

fn check_size(look: &Look, f: &mut Findings) {
    let (stated, bytes) = (look.state.bytes(), look.home_bytes);
    if bytes < stated {
        f.damage(format!(
            "the file is shorter than its header states: {} of {} bytes. It was cut short or copied in part",
            grouped(bytes),
            grouped(stated)
        ));
    } else if bytes > stated {
        f.note(format!("{} behind the last page; SQLite does not read them", counted(bytes - stated, "byte")));
    }
}

/// Reads every byte: what a disk cannot read any more is found now and not in a year.
fn check_readable(look: &Look, f: &mut Findings) {
    const STEP: usize = 1 << 20;
    let bar = progress(look.home_bytes, "reading the database");
    let mut buf = vec![0; STEP];
    let mut at = 0;
    let mut bad: Option<(u64, String)> = None;
    let mut bad_bytes = 0;
    while at < look.home_bytes {
        let want = usize::try_from(look.home_bytes - at).unwrap_or(STEP).min(STEP);
        let read = look.repair.home().read_at(buf.get_mut(..want).unwrap_or_default(), at);
        if let Err(e) = read {
            bad.get_or_insert((at, e.to_string()));
            bad_bytes += want as u64;
        }
        at += want as u64;
        bar.set_position(at);
    }
    bar.finish_and_clear();
    match bad {
        Some((at, e)) => f.damage(format!(
            "up to {} cannot be read, the first in the megabyte at offset {}: {e}",
            counted(bad_bytes, "byte"),
            grouped(at)
        )),
        None if at > 0 => f.ok(format!("{} of the database can be read", counted(at, "byte"))),
        None => {}
    }
}

fn progress(bytes: u64, what: &'static str) -> ProgressBar {
    const LONG: u64 = 64 << 20;
    if bytes < LONG {
        return ProgressBar::hidden();
    }
    // On standard error, and only where that is a terminal.
    let bar = ProgressBar::new(bytes).with_message(what);
    let style = ProgressStyle::with_template("{msg} {wide_bar} {binary_bytes}/{binary_total_bytes} {eta}");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar
}

fn check_journal(look: &Look, f: &mut Findings) {
    let Some(journal) = &look.hot_journal else { return };
    let journal = journal.display();
    if look.mark.is_some() && !was_closed(look) {
        f.damage(format!(
            "the mark is on and a rollback journal is there as well ({journal}): one of the two belongs to another copy. \
             Move the journal away if the database was last used through onewrite"
        ));
    } else {
        f.note(format!("a rollback journal waits ({journal}): SQLite rolls it back when it opens the database next"));
    }
}

/// Whether the log proves that the session of the mark was closed in order.
fn was_closed(look: &Look) -> bool {
    let (Some(log), Some(session)) = (&look.log, look.mark) else { return false };
    matches!(look.repair.was_closed(&log.file, session), Ok(true))
}

fn check_log(look: &Look, log: &Log, f: &mut Findings) {
    let path = log.file.path.display();
    for (n, slot) in (1..).zip(&log.slots) {
        if matches!(slot, SlotFound::Damaged) && log.newest.is_some() {
            f.damage(format!("header slot {n} of the log {path} is damaged; the other one is valid"));
        }
    }
    let slot = match log.slot_for(look.mark) {
        Ok(slot) => slot,
        Err(e) => return f.damage(e.to_string()),
    };
    if was_closed(look) {
        return f.ok(
            "the database was closed in order, and a power cut brought the mark back: the next connection through \
                     onewrite takes it off, or `onewrite recover`",
        );
    }
    let mark = home::mark(&look.first);
    let left_nothing =
        |newest: &Slot| mark.is_some_and(|mark| matches!(log.file.has_nothing_of(&mark, newest), Ok(true)));
    match (slot, look.mark) {
        (None, Some(_)) => f.damage(format!(
            "the log {path} has no valid header slot: it is damaged, cut short or not a log, and the marked database \
             needs it"
        )),
        (None, None) => f.note(format!("the log {path} has no valid header slot; without the mark nothing needs it")),
        (Some(slot), Some(session)) if slot.session != session && left_nothing(slot) => f.ok(format!(
            "the session of the mark ({session:016x}) left nothing in the log: the power went before its first commit"
        )),
        (Some(slot), Some(session)) if slot.session != session => f.damage(format!(
            "the log {path} belongs to another database or to an older state of this one (session {:016x}; the \
             database has {session:016x})",
            slot.session
        )),
        (Some(slot), Some(_)) if !slot.live => f.damage(format!(
            "the mark is on, but the log {path} was closed in order: the database file is an older copy"
        )),
        (Some(slot), Some(session)) => {
            f.ok(format!("the mark and the newest slot of the log belong together (session {session:016x})"));
            if check_records(log, slot, f) {
                check_replay(look, session, f);
            }
        }
        (Some(slot), None) if slot.live => check_leftover(look, log, slot, f),
        (Some(_), None) => f.ok("no mark; the log was closed in order and holds nothing"),
    }
}

/// A log of a session that did not end in it, beside a database without a mark: whether that has what the log holds.
fn check_leftover(look: &Look, log: &Log, slot: &Slot, f: &mut Findings) {
    let path = log.file.path.display();
    let left = match look.repair.leftover(&log.file, slot) {
        Ok(left) => left,
        Err(e) => return f.damage(e.to_string()),
    };
    let Leftover { records, change_counter, whose } = left;
    let of = counted(records, "transaction");
    let counters = format!("up to change counter {change_counter}, and this one has {}", look.state.change_counter);
    let aside = look.repair.path_aside(slot.session);
    let aside = aside.display();
    match whose {
        Whose::Ended | Whose::Later if records == 0 => f.ok("no mark; the log holds no record"),
        Whose::Ended => f.ok(format!(
            "no mark; the log {path} is of a session that ended in order, though it does not say so: the process died, or the power \
             went, before that. All that it may still hold ({of}) is in the database, and the next session begins it anew"
        )),
        Whose::Later => f.note(format!(
            "no mark; the log {path} holds {of} of a session that is over, {counters}: it was used for this file, which has all of \
             them, and may have been written without onewrite since. The next write through onewrite sets the log aside as {aside}, where \
             nothing needs it"
        )),
        Whose::Older | Whose::Unknown => {
            let before = f.damaged();
            check_records(log, slot, f);
            f.waiting = 0;
            if records == 0 && f.damaged() == before {
                return;
            }
            if whose == Whose::Older || f.damaged() > before {
                return f.damage(format!(
                    "the log {path} holds {of} of a marked database, {counters}. This one carries no mark: it was replaced or restored. \
                     Put the log's own database back beside it, or move the log away"
                ));
            }
            f.untold = true;
            f.note(format!(
                "the log {path} may hold what this database lacks: it has {of}, {counters}. This one carries no mark and is another \
                 file than the log was used for: it was replaced, restored or copied, and whether before or after them cannot be told. \
                 The next write through onewrite sets the log aside as {aside}. If its own database is still there, put that back \
                 beside it"
            ));
        }
    }
}

/// Whether every record that must be there is.
fn check_records(log: &Log, slot: &Slot, f: &mut Findings) -> bool {
    let path = log.file.path.display();
    let (mut bytes, mut streamed, mut outside) = (0u64, 0u64, None);
    let bar = progress(slot.ring_bytes, "reading the log");
    let walked = log.walk(slot, |entry| {
        bytes += entry.bytes;
        streamed += u64::from(entry.streamed);
        if entry.pages.last() > entry.page_count {
            outside.get_or_insert((entry.tid, entry.pages.last(), entry.page_count));
        }
        bar.set_position(bytes);
    });
    bar.finish_and_clear();
    let (end, behind) = match walked {
        Ok(walked) => walked,
        Err(e) => {
            f.damage(e.to_string());
            return false;
        }
    };
    f.waiting = end.records;
    if end.records == 0 {
        f.ok("the log holds no record");
    } else {
        let images = if streamed > 0 { format!(" and {}", counted(streamed, "streamed image")) } else { String::new() };
        f.ok(format!(
            "{}{images}, TID {} to {}, {}: checksums, chain and order are right",
            counted(end.records, "record"),
            slot.base_tid.next(),
            end.last_tid,
            counted(bytes, "byte")
        ));
    }
    if let Some((tid, page, page_count)) = outside {
        f.damage(format!("transaction {tid} changes page {page} of a database of {page_count}"));
    }
    if let Some((lost, seen)) = end.rot {
        f.damage(format!(
            "transaction {lost} was durable and its record in the log {path} is damaged: transaction {seen}, behind it, \
             is whole. Restore the log, or see `onewrite recover --accept-loss`"
        ));
        return false;
    }
    match behind {
        Behind::Nothing => {}
        Behind::RecordInPart(_) | Behind::StreamInPart(_) if f.in_use => f.note("a transaction is being written"),
        Behind::RecordInPart(tid) => f.note(format!(
            "transaction {tid} is in the log in part: a commit that a crash cut short, or damage to the newest \
             transaction. Recovery leaves it out"
        )),
        Behind::StreamInPart(tid) => f.note(format!(
            "transaction {tid} is in the log, but not all of its streamed images: a commit that a crash cut short, or \
             damage to the newest transaction. Recovery leaves it out"
        )),
    }
    true
}

/// Replays in memory, and looks at the state that recovery would leave.
fn check_replay(look: &Look, session: u64, f: &mut Findings) {
    if look.in_use {
        match live::open(look.repair.path()) {
            Ok(_) => f.ok("in use: a snapshot of the newest state can be read"),
            Err(e) => f.unread = Some(format!("in use, and {e:#}")),
        }
        return;
    }
    match look.repair.preview(session, false) {
        Ok((report, state)) if report.transactions > 0 => match state_problem(&state) {
            None => f.ok(format!(
                "recovery would bring {} home and leave {}",
                counted(report.pages, "page"),
                counted(state.page_count.into(), "page")
            )),
            Some(problem) => f.damage(format!("after recovery, {problem}")),
        },
        Ok(_) => f.ok("home holds everything"),
        // The journal was reported already.
        Err(_) if look.hot_journal.is_some() => {}
        Err(e) => f.damage(e.to_string()),
    }
}

fn state_problem(state: &State) -> Option<String> {
    if !state.header.starts_with(at::MAGIC) {
        return Some("the file would not begin with \"SQLite format 3\"".into());
    }
    let stated = home::page_bytes(&state.header);
    (stated != Some(state.page_bytes))
        .then(|| format!("the header would state another page size than the log's {} bytes", state.page_bytes))
}
