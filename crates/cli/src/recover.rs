//! `onewrite recover`: brings the transactions that a crash left in the log home and takes the mark
//! off, or says why not.

use crate::answer::{Clock, failed, print_json};
use crate::look::{counted, disk, grouped, wal_beside};
use crate::remains;
use anyhow::{Context, Result, bail, ensure};
use indicatif::{ProgressBar, ProgressStyle};
use onewrite_core::Error;
use onewrite_core::Repair;
use onewrite_core::Report;
use onewrite_core::disk::OpenMode;
use onewrite_core::inspect::home::FileKind;
use onewrite_core::text::Printable;
use serde_json::{Value, json};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// Bring what a crash left in the log into the database, and take onewrite's mark off
///
/// Opening the database through onewrite does the same by itself. This is for a database that
/// onewrite is not at hand for, and for a log that is damaged or lost. The database must not be in
/// use. Transactions of the log that cannot be kept are named, and the log set aside as
/// FILE-onewrite.lost.
///
/// With --json the answer is one object: file, status and, where the status is not 0, error. Else:
///
///     result                  recovered, log_given_up, log_set_aside or nothing
///     dry_run                 whether nothing was changed, and the rest says what would be done
///     transactions, pages     that come from the log, and that differ for it; null without a log
///     first_tid, last_tid     of these transactions
///     lost_tid                the first transaction that is given up
///     log_kept                the name under which a log that is given up is kept
///     message, seconds        the same in words, and the time that it took
///
///     onewrite recover app.db --dry-run
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Args {
    /// The database
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Say what would be done, and change nothing
    #[arg(long)]
    dry_run: bool,
    /// Where a record is damaged, give up that transaction and all behind it
    #[arg(long, conflicts_with = "without_log")]
    accept_loss: bool,
    /// The log is lost, or another's: give up every transaction that only it held
    #[arg(long)]
    without_log: bool,
    /// Confirm --without-log
    #[arg(long, requires = "without_log")]
    yes: bool,
    /// For machines: one JSON object
    #[arg(long)]
    json: bool,
}

/// The work that was done, or that would be.
struct RecoverAnswer {
    said: String,
    result: &'static str,
    report: Option<Report>,
    log_kept: Option<PathBuf>,
}

impl RecoverAnswer {
    fn nothing(said: String) -> RecoverAnswer {
        RecoverAnswer { said, result: "nothing", report: None, log_kept: None }
    }

    fn json(&self, args: &Args, clock: &Clock) -> Value {
        let report = self.report.as_ref();
        let tids = report.and_then(|report| report.tids);
        json!({
            "file": args.file.to_string_lossy(),
            "status": 0,
            "result": self.result,
            "dry_run": args.dry_run,
            "transactions": report.map(|report| report.transactions),
            "pages": report.map(|report| report.pages),
            "first_tid": tids.map(|(first, _)| first.0),
            "last_tid": tids.map(|(_, last)| last.0),
            "lost_tid": report.and_then(|report| report.lost).map(|(lost, _)| lost.0),
            "log_kept": self.log_kept.as_ref().map(|path| path.to_string_lossy()),
            "message": self.said,
            "seconds": clock.seconds(),
        })
    }
}

/// Recovers, and prints the result.
pub fn run(args: &Args) -> Result<ExitCode> {
    let clock = Clock::start();
    let bar = ProgressBar::new_spinner();
    if let Ok(style) = ProgressStyle::with_template("recovering {spinner} {elapsed}") {
        bar.set_style(style);
    }
    bar.enable_steady_tick(Duration::from_millis(200));
    let done = work(args);
    bar.finish_and_clear();
    match done {
        Ok(done) if args.json => print_json(&done.json(args, &clock)).context("done, but printing failed")?,
        Ok(done) => {
            let said = Printable(format!("{}: {}{}", args.file.display(), done.said, clock.took()));
            writeln!(std::io::stdout(), "{said}").context("done, but printing failed")?;
        }
        Err(e) if args.json => {
            print_json(&failed(&args.file, &e))?;
            return Err(e);
        }
        Err(e) => return Err(e),
    }
    Ok(ExitCode::SUCCESS)
}

fn work(args: &Args) -> Result<RecoverAnswer> {
    let mode = if args.dry_run { OpenMode::ReadOnly } else { OpenMode::ReadWrite };
    let repair = Repair::open(disk(), &args.file, mode)?;
    match repair.mark()? {
        Some(session) if args.without_log => give_up_log(args, repair, session),
        Some(session) => recover(args, repair, session),
        None => unmarked(args, &repair),
    }
}

fn recover(args: &Args, repair: Repair, session: u64) -> Result<RecoverAnswer> {
    let (report, _) = repair.preview(session, args.accept_loss)?;
    let mut said = if args.dry_run { "would recover: ".to_owned() } else { "recovered: ".to_owned() };
    said += &brought(&report);
    if let Some((lost, seen)) = report.lost {
        said += &format!(
            "; given up: transaction {} and all behind it (of these, transaction {} can be seen)",
            grouped(lost.0),
            grouped(seen.0)
        );
    }
    if args.dry_run {
        let said = said + ". Nothing was changed";
        return Ok(RecoverAnswer { said, result: "recovered", report: Some(report), log_kept: None });
    }
    let log = repair.log_path();
    let mut log_kept = None;
    if report.lost.is_some() {
        let copy = free_name(&log)?;
        copy_durably(&log, &copy).with_context(|| format!("keeping a copy of the log as {}", copy.display()))?;
        said += &format!("; the damaged log is kept as {}", copy.display());
        log_kept = Some(copy);
    }
    repair.recover(session, args.accept_loss)?;
    let said = said + ". The mark is off: any SQLite can open it";
    Ok(RecoverAnswer { said, result: "recovered", report: Some(report), log_kept })
}

fn brought(report: &Report) -> String {
    match report.tids {
        Some((first, last)) => format!(
            "{} from the log (TID {} to {}), which changed {}",
            counted(report.transactions, "transaction"),
            grouped(first.0),
            grouped(last.0),
            counted(report.pages, "page")
        ),
        None => match report.in_place {
            Some((tid, true)) => format!(
                "transaction {} had not reached the disk whole and was undone ({})",
                grouped(tid.0),
                counted(report.pages, "page")
            ),
            _ => "the database already held every transaction".into(),
        },
    }
}

fn give_up_log(args: &Args, repair: Repair, session: u64) -> Result<RecoverAnswer> {
    let file = args.file.display();
    let why = match repair.preview(session, false) {
        Ok(_) => bail!(
            "the log of {file} is there and whole: nothing needs to be given up. Run `onewrite recover {file}` without \
             --without-log"
        ),
        Err(e @ Error::Busy(_)) => return Err(e.into()),
        Err(e) => e,
    };
    if let Ok((report, _)) = repair.preview(session, true) {
        bail!(
            "the log of {file} is damaged, but {} can be kept: run `onewrite recover --accept-loss {file}`",
            counted(report.transactions, "transaction") + " in it"
        );
    }
    if let Some(journal) = repair.hot_journal()? {
        bail!(
            "{file} has a rollback journal beside it ({}), which belongs to another copy: move it away first",
            journal.display()
        );
    }
    let state = repair.state()?;
    ensure!(
        matches!(state.kind, FileKind::Database | FileKind::Empty),
        "{file} is shorter than its header states, so it stays marked: put a whole copy in its place"
    );
    let log = repair.lock_log()?;
    let aside = log.as_ref().map(|log| free_name(&log.path)).transpose()?;
    let remains = remains::of(&repair, &state)?;
    let what = format!(
        "every transaction since the last checkpoint, and, if a crash interrupted that checkpoint, whole pages of it \
         (session {session:016x})"
    );
    if args.dry_run {
        let and = aside.as_ref().map(|to| format!(" and set the log aside as {}", to.display())).unwrap_or_default();
        let said = format!(
            "would take the mark off{and}, which gives up {what}. What remains: {remains}. Nothing was changed. The reason: {why}"
        );
        return Ok(RecoverAnswer { said, result: "log_given_up", report: None, log_kept: aside });
    }
    ensure!(
        args.yes,
        "this gives up {what}. What remains: {remains}. Look for the right log first. The reason it is needed: {why}. To do it, add --yes. \
         Nothing was changed"
    );
    let mut said = format!("the mark is off. Given up: {what}. What remains: {remains}");
    if let (Some(log), Some(to)) = (log, &aside) {
        set_aside(&log.path, to)?;
        said += &format!(". The log is kept as {}", to.display());
    }
    repair.unmark()?;
    let said = said + ". Now let SQLite look at it: PRAGMA integrity_check";
    Ok(RecoverAnswer { said, result: "log_given_up", report: None, log_kept: aside })
}

fn unmarked(args: &Args, repair: &Repair) -> Result<RecoverAnswer> {
    let file = args.file.display();
    let kind = repair.state()?.kind;
    let journal = repair.hot_journal()?.map(|path| path.display().to_string());
    // A process that died as it wrote left the header of more pages than the file has.
    let is_mended = journal.is_some() || wal_beside(repair.path()).is_some();
    let is_whole = kind != FileKind::Foreign || is_mended;
    ensure!(is_whole, "{file} is not a SQLite database, or it is cut short: nothing was changed");
    let log = repair.lock_log()?;
    let judged = log.as_ref().map(|log| repair.judge(log)).transpose()?;
    let left =
        judged.as_ref().and_then(|judged| judged.left).map(|left| left.records.count).filter(|records| *records > 0);
    let nothing = nothing(journal.as_deref());
    let (Some(log), Some(left), Some(judged)) = (log, left, judged) else { return Ok(RecoverAnswer::nothing(nothing)) };
    let holds = format!("the log {} holds {} of a marked database", log.path.display(), counted(left, "transaction"));
    if !args.without_log {
        return Ok(RecoverAnswer::nothing(match judged.pairing.has_all() {
            true => nothing,
            false => format!(
                "{nothing}. It was replaced or restored: {holds}, which this one lacks or may lack. The next write through onewrite sets the \
                 log aside; to do so now, add --without-log. If the log's own database is still there, put that back beside it"
            ),
        }));
    }
    let to = free_name(&log.path)?;
    if args.dry_run {
        let said = format!("would set the log aside as {}: {holds}. Nothing was changed", to.display());
        return Ok(RecoverAnswer { said, result: "log_set_aside", report: None, log_kept: Some(to) });
    }
    ensure!(
        args.yes,
        "{holds}, which {file} would lose for good: to set the log aside, add --yes. Nothing was changed"
    );
    set_aside(&log.path, &to)?;
    let said = format!("{holds}, and is kept as {}. The database itself was not changed", to.display());
    Ok(RecoverAnswer { said, result: "log_set_aside", report: None, log_kept: Some(to) })
}

fn nothing(journal: Option<&str>) -> String {
    match journal {
        Some(journal) => format!(
            "carries no mark, so there is nothing to recover from a log; SQLite rolls its journal {journal} back when it opens the \
             database next"
        ),
        None => "carries no mark: there is nothing to recover".into(),
    }
}

/// `LOG.lost`, or the first of `LOG.lost2`, `LOG.lost3`… that is free.
fn free_name(log: &Path) -> Result<PathBuf> {
    for n in 1..1000 {
        let mut name = log.as_os_str().to_owned();
        name.push(if n == 1 { ".lost".to_owned() } else { format!(".lost{n}") });
        let name = PathBuf::from(name);
        if !name.try_exists().with_context(|| name.display().to_string())? {
            return Ok(name);
        }
    }
    bail!("there are a thousand lost logs beside {}: remove some", log.display())
}

fn set_aside(log: &Path, to: &Path) -> Result<()> {
    let what = || format!("setting the log {} aside as {}", log.display(), to.display());
    std::fs::rename(log, to).with_context(what)?;
    disk().sync_dir_of(to).with_context(what)
}

fn copy_durably(from: &Path, to: &Path) -> Result<()> {
    let from = disk().open_beside(from, OpenMode::ReadOnly, None)?;
    let copy = disk().open_beside(to, OpenMode::Create, from.access()?)?;
    let (mut run, mut at) = (vec![0; 1 << 20], 0);
    loop {
        let read = from.read_at(&mut run, at)?;
        if read == 0 {
            break;
        }
        copy.write_at(run.get(..read).unwrap_or_default(), at)?;
        at += read as u64;
    }
    copy.sync()?;
    Ok(disk().sync_dir_of(to)?)
}
