//! `onewrite check`: whether a database and its log are sound and fit each other. It only reads.

use crate::answer::{Clock, json_line};
use crate::look::{Behind, Log, Look, SlotFound, counted, grouped};
use crate::tables::{self, Tables, progress};
use crate::verdict::{Findings, Part, not_checked};
use anyhow::{Context, Result};
use onewrite_core::inspect::home::{self, FileKind, State};
use onewrite_core::inspect::layout::wal::SUFFIX as WAL_SUFFIX;
use onewrite_core::inspect::layout::{be_u32, home as at};
use onewrite_core::inspect::path_beside;
use onewrite_core::inspect::{Judgement, Left, LiveRecords, Pairing, Slot};
use onewrite_core::text::Printable;
use onewrite_core::{Error, Report};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Check a database and its log: structure, checksums, tables, and whether the two belong together
///
/// Nothing is written. Others may use it through onewrite meanwhile. One line per finding; the last
/// line is the verdict, and names the parts that were checked. The status is 0 if all is sound
/// (transactions that wait in the log after a crash are), 1 if something is damaged, 2 if not all
/// could be checked.
///
/// A database without onewrite's mark may lie beside a log that holds transactions. It is sound if
/// it is the file that the log was used for, and as new as the last of them: then it has them all.
/// Else it is sound by itself, and the status is 2: a backup that was put back lacks them, and
/// another file may. The next write through onewrite sets such a log aside, and keeps it.
///
/// Three parts are checked:
///
///     file     its header, and that every byte can be read
///     log      slots, records, streamed images, and that recovery would succeed
///     tables   SQLite's integrity check, on the state that the next open finds
///
/// Where recovery waits, or SQLite's journal or write-ahead log lies beside the file, that state is
/// made in temporary files (TMPDIR).
///
/// With --json each database gets one object, on a line of its own:
///
///     file, verdict           sound, damaged, apart (from the log's transactions), incomplete or
///                             not_checked
///     status                  0, 1 or 2, as above
///     in_use                  whether others use it
///     transactions_waiting    transactions that only the log holds
///     checked                 the parts that were checked
///     not_checked             the others: part and why
///     findings                grade (ok, note or damage) and text
///     seconds                 time that the check took
///
///     onewrite check app.db
///     onewrite check --quick *.db
///     onewrite check --json app.db | jq .verdict
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Args {
    /// The databases
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// Leave the tables out
    #[arg(long)]
    quick: bool,
    /// For machines: one JSON object for each database
    #[arg(long)]
    json: bool,
}

/// Prints the findings; the verdict is the status.
pub fn run(args: &Args) -> Result<ExitCode> {
    let mut worst = 0;
    for file in &args.files {
        let clock = Clock::start();
        let (text, status) = match check_file(file, args.quick) {
            Ok(findings) if args.json => (json_line(&findings.json(file, &clock)), findings.status()),
            Ok(findings) => (findings.text(file, &clock), findings.status()),
            Err(e) => {
                let _nobody_reads = writeln!(std::io::stderr(), "onewrite: not checked: {}", Printable(&e));
                (if args.json { json_line(&not_checked(file, &e.to_string())) } else { String::new() }, 2)
            }
        };
        std::io::stdout().lock().write_all(text.as_bytes()).context("printing")?;
        // Damage of one counts for more than another that could not be checked.
        worst = if worst == 1 || status == 1 { 1 } else { worst.max(status) };
    }
    Ok(ExitCode::from(worst))
}

/// So often a database is looked at that others use, and that cannot be read or looks damaged.
const LOOKS: u32 = 3;

pub fn in_wal_mode(look: &Look) -> bool {
    look.first.get(at::READ_VERSION) == Some(&2) || look.state.kind == FileKind::Wal || look.wal.is_some()
}

/// Checks a database, again where others were in the way.
fn check_file(file: &Path, quick: bool) -> onewrite_core::Result<Findings> {
    let mut looks = 0;
    // SQLite's files are beside the file that a link leads to.
    let path = file.canonicalize().unwrap_or_else(|_| file.into());
    loop {
        looks += 1;
        // Header and length are read one after the other.
        let before = Stamps::of(&path);
        let (look, mut findings) = Look::with(file, |look| {
            let mut findings = Findings::default();
            check(look, &mut findings);
            Ok(findings)
        })?;
        check_readable(&look, &mut findings);
        findings.checked(Part::File);
        if look.log.is_some() {
            findings.checked(Part::Log);
        }
        let looks_damaged = findings.damaged() > 0;
        let by_reader = look.in_use || (in_wal_mode(&look) && look.repair.has_others()?);
        let unread = check_tables(&look, by_reader, quick, &mut findings);
        // The lock does not keep SQLite's checkpoints out of a file in WAL mode: one may have come
        // between two reads.
        let moves = in_wal_mode(&look) && (look.repair.has_others()? || Stamps::of(&path) != before);
        let again = match unread {
            // Those that used it may have ended, and others may have come since.
            Some(why) => why,
            None if moves && (looks_damaged || !(by_reader || quick)) => {
                "it is in use by another process in WAL mode, which changes it while it is checked".into()
            }
            None => return Ok(findings),
        };
        if looks == LOOKS {
            return if findings.is_incomplete { Ok(findings) } else { Err(Error::Busy(again)) };
        }
    }
}

/// Length and time of the last change of the file and of the write-ahead log beside it.
#[derive(PartialEq)]
struct Stamps([Option<(u64, std::time::SystemTime)>; 2]);

impl Stamps {
    fn of(path: &Path) -> Stamps {
        let stamp = |path: &Path| {
            let found = std::fs::metadata(path).ok()?;
            Some((found.len(), found.modified().ok()?))
        };
        Stamps([stamp(path), stamp(&path_beside(path, WAL_SUFFIX))])
    }
}

/// Checks the tables, on the state that the next open finds; `by_reader` where others use the
/// database. If others were in the way, the answer is a reason to look again.
fn check_tables(look: &Look, by_reader: bool, quick: bool, f: &mut Findings) -> Option<String> {
    let why = match quick {
        true => Some("--quick"),
        false if f.damaged() > 0 => Some("see the damage above"),
        false => None,
    };
    why.inspect(|why| f.unchecked(Part::Tables, *why));
    let path = look.repair.path();
    let found = match by_reader {
        true if f.damaged() > 0 => return None,
        true => tables::check_live(path, quick),
        false if why.is_some() => return None,
        false => tables::check_locked(look),
    };
    if look.in_use && matches!(found, Tables::Left | Tables::Sound) {
        f.ok("in use: a snapshot of the newest state can be read");
    }
    match found {
        Tables::Left => {}
        Tables::Sound => {
            f.checked(Part::Tables);
            f.ok("the tables: SQLite's integrity check finds no damage");
        }
        Tables::Damaged(problems) => {
            f.checked(Part::Tables);
            problems.iter().for_each(|problem| f.damage(format!("the tables: {problem}")));
        }
        Tables::Unchecked(why) => {
            f.is_incomplete = true;
            f.unchecked(Part::Tables, &why);
            return Some(why).filter(|_| by_reader);
        }
        Tables::Busy(why) => return Some(why),
    }
    None
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
        // A process that died in a commit, or in a checkpoint of SQLite, left a header with more
        // pages than it wrote.
        f.excuse(&format!("; so is the file of a process that died as it wrote, and the {waits} beside it mends that"));
    }
    // A log in use changes while it is read; it was judged when it was opened.
    let judged = look.log.as_ref().filter(|_| !look.in_use).map(|log| look.repair.judge(&log.file)).transpose();
    let judged = judged.unwrap_or_else(|e| {
        f.damage(e.to_string());
        None
    });
    check_journal(look, judged.as_ref(), f);
    if let Some((wal, bytes)) = &look.wal {
        f.note(format!(
            "a write-ahead log of SQLite lies beside it ({}, {}), which SQLite reads with it: keep the two together",
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
        (Some(log), _) => check_log(look, log, judged, f),
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
        FileKind::Empty if look.mark.is_some() => f.ok(format!("{file} carries the mark and has no page yet")),
        FileKind::Empty => f.ok(format!("{file} is empty: a database that has no table yet")),
        FileKind::Database => return true,
        FileKind::Wal => {
            f.note(format!("{file} is in WAL mode: the next open through onewrite takes it out of it"));
            return true;
        }
        FileKind::Foreign if !look.first.starts_with(at::MAGIC) => {
            f.damage(format!(
                "{file} is not a SQLite database, or it is encrypted: it does not begin with \"SQLite format 3\""
            ));
        }
        FileKind::Foreign if look.first.len() < at::HEADER_BYTES => {
            f.damage(format!("{file} ends within the header: {} bytes of {}", look.first.len(), at::HEADER_BYTES));
        }
        FileKind::Foreign => {
            let version = |i: usize| look.first.get(i).copied().unwrap_or(0);
            let (write, read) = (version(at::WRITE_VERSION), version(at::READ_VERSION));
            if home::page_bytes(&look.first).is_none() {
                f.damage(format!("{file} states a page size that is none"));
            } else if !matches!((write, read), (1, 1 | at::MARK)) && !home::asks_for_wal(&look.first) {
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

/// Reads every byte, so that a bad block of the device is found now and not in a year.
fn check_readable(look: &Look, f: &mut Findings) {
    const STEP: usize = 1 << 20;
    let bar = progress(look.home_bytes, "reading the database");
    let mut buf = vec![0; STEP];
    let mut at = 0;
    let mut bad: Option<(u64, String)> = None;
    let mut bad_bytes = 0;
    while at < look.home_bytes {
        // Holes are on no disk, and a file that was lengthened has any number of them.
        at = match look.repair.home().next_data(at) {
            Ok(data) => data.unwrap_or(look.home_bytes).min(look.home_bytes),
            Err(_) => at,
        };
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

fn check_journal(look: &Look, judged: Option<&Judgement>, f: &mut Findings) {
    let Some(journal) = &look.hot_journal else { return };
    let journal = journal.display();
    if look.mark.is_some() && judged.is_none_or(|judged| judged.pairing != Pairing::ClosedMarkBack) {
        f.damage(format!(
            "the mark is on and a rollback journal is there as well ({journal}): one of the two belongs to another copy. \
             Move the journal away if the database was last used through onewrite"
        ));
    } else {
        f.note(format!("a rollback journal waits ({journal}): SQLite rolls it back when it opens the database next"));
    }
}

fn check_log(look: &Look, log: &Log, judged: Option<Judgement>, f: &mut Findings) {
    let path = log.file.path.display();
    for (n, slot) in (1..).zip(&log.slots) {
        if matches!(slot, SlotFound::Damaged) && log.newest.is_some() {
            let text = format!("header slot {n} of the log {path} is damaged; the other one is valid");
            if look.mark.is_some() { f.damage(text) } else { f.note(text) }
        }
    }
    match (judged, look.mark) {
        (Some(judged), Some(session)) => check_marked(look, log, session, judged, f),
        (Some(judged), None) => check_unmarked(look, log, &judged, f),
        (None, _) => {
            if let Ok(Some(slot)) = log.slot_for(look.mark) {
                check_records(log, slot, f);
            }
        }
    }
}

fn check_marked(look: &Look, log: &Log, session: u64, judged: Judgement, f: &mut Findings) {
    match judged.pairing {
        Pairing::ClosedMarkBack => f.ok(
            "the database was closed in order, and a power cut brought the mark back: the next connection through onewrite takes it \
             off, or `onewrite recover`",
        ),
        Pairing::NeverBegun => f.ok(format!(
            "the session of the mark ({session:016x}) left nothing in the log: the power went before its first commit"
        )),
        Pairing::Fits(slot) => {
            f.ok(format!("the mark and the newest slot of the log belong together (session {session:016x})"));
            if check_records(log, &slot, f)
                && let Some((report, state)) = &judged.recovered
            {
                check_recovered(report, state, f);
            }
        }
        // The journal was reported already.
        _ if look.hot_journal.is_some() => {}
        _ => {
            let before = f.damaged();
            if judged.pairing == Pairing::Damaged
                && let Ok(Some(slot)) = log.slot_for(look.mark)
            {
                check_records(log, slot, f);
            }
            if let Some(refusal) = judged.refusal.filter(|_| f.damaged() == before) {
                f.damage(refusal.to_string());
            }
        }
    }
}

/// Tells for the log of a database without a mark whether the database has the log's transactions.
fn check_unmarked(look: &Look, log: &Log, judged: &Judgement, f: &mut Findings) {
    let path = log.file.path.display();
    let Some(Left { records: LiveRecords { count: records, counter, .. }, .. }) = judged.left else {
        return match judged.pairing {
            Pairing::Damaged => {
                f.note(format!("the log {path} has no valid header slot; without the mark nothing needs it"))
            }
            _ => f.ok("no mark; the log was closed in order and holds nothing"),
        };
    };
    let of = counted(records, "transaction");
    let counters = format!("up to change counter {counter}, and this one has {}", look.state.change_counter);
    let aside = look.repair.path_aside(log.newest.as_ref().map_or(0, |slot| slot.session));
    let aside = aside.display();
    let apart = "This one carries no mark and was replaced, restored or copied. The next write through onewrite sets the log aside as";
    match judged.pairing {
        _ if records == 0 => f.ok("no mark; the log holds no record"),
        Pairing::Closed => f.ok(format!(
            "no mark; the log {path} is of a session that ended in order, though it does not say so: the process died, or the power \
             went, before that. All that it may still hold ({of}) is in the database, and the next session begins it anew"
        )),
        Pairing::HomeNewer => f.note(format!(
            "no mark; the log {path} holds {of} of a session that is over, {counters}: it was used for this file, which has all of \
             them, and may have been written without onewrite since. The next write through onewrite sets the log aside as {aside}, where \
             nothing needs it"
        )),
        Pairing::HomeOlder => {
            f.apart = Some("it lacks what its log holds");
            f.note(format!(
                "the log {path} holds {of} that this database lacks, {counters}. {apart} {aside}. If its own database is still there, put \
                 that back beside it"
            ));
        }
        _ => {
            f.apart = Some("whether it lacks what its log holds cannot be told");
            f.note(format!(
                "the log {path} may hold what this database lacks: it has {of}, {counters}, and was used for another file. {apart} \
                 {aside}. If its own database is still there, put that back beside it"
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

/// The state that recovery would leave.
fn check_recovered(report: &Report, state: &State, f: &mut Findings) {
    if report.transactions == 0 {
        return f.ok("home holds everything");
    }
    match state_problem(state) {
        None => f.ok(format!(
            "recovery would bring {} home and leave {}",
            counted(report.pages, "page"),
            counted(state.page_count.into(), "page")
        )),
        Some(problem) => f.damage(format!("after recovery, {problem}")),
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
