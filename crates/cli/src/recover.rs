//! `onewrite recover`: brings the transactions that a crash left in the log home and takes the mark
//! off, or says why not.

use crate::look::{counted, disk, grouped, wal_beside};
use crate::remains;
use anyhow::{Context, Result, bail, ensure};
use onewrite_core::Error;
use onewrite_core::Repair;
use onewrite_core::Report;
use onewrite_core::disk::OpenMode;
use onewrite_core::inspect::home::FileKind;
use onewrite_core::text::Printable;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Bring what a crash left in the log into the database, and take onewrite's mark off
///
/// Opening the database through onewrite does the same by itself. This is for a database that
/// onewrite is not at hand for, and for a log that is damaged or lost. The database must not be in
/// use. Transactions of the log that cannot be kept are named, and the log set aside as
/// FILE-onewrite.lost.
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
}

/// Recovers, and prints the result.
pub fn run(args: &Args) -> Result<ExitCode> {
    let file = args.file.display();
    let mode = if args.dry_run { OpenMode::ReadOnly } else { OpenMode::ReadWrite };
    let repair = Repair::open(disk(), &args.file, mode)?;
    let said = match repair.mark()? {
        Some(session) if args.without_log => give_up_log(args, repair, session)?,
        Some(session) => recover(args, repair, session)?,
        None => unmarked(args, &repair)?,
    };
    writeln!(std::io::stdout(), "{}", Printable(format!("{file}: {said}"))).context("done, but printing failed")?;
    Ok(ExitCode::SUCCESS)
}

fn recover(args: &Args, repair: Repair, session: u64) -> Result<String> {
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
        return Ok(said + ". Nothing was changed");
    }
    let log = repair.log_path();
    if report.lost.is_some() {
        let copy = free_name(&log)?;
        copy_durably(&log, &copy).with_context(|| format!("keeping a copy of the log as {}", copy.display()))?;
        said += &format!("; the damaged log is kept as {}", copy.display());
    }
    repair.recover(session, args.accept_loss)?;
    Ok(said + ". The mark is off: any SQLite can open it")
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

fn give_up_log(args: &Args, repair: Repair, session: u64) -> Result<String> {
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
        let and = aside.map(|to| format!(" and set the log aside as {}", to.display())).unwrap_or_default();
        return Ok(format!(
            "would take the mark off{and}, which gives up {what}. What remains: {remains}. Nothing was changed. The reason: {why}"
        ));
    }
    ensure!(
        args.yes,
        "this gives up {what}. What remains: {remains}. Look for the right log first. The reason it is needed: {why}. To do it, add --yes. \
         Nothing was changed"
    );
    let mut said = format!("the mark is off. Given up: {what}. What remains: {remains}");
    if let (Some(log), Some(to)) = (log, aside) {
        set_aside(&log.path, &to)?;
        said += &format!(". The log is kept as {}", to.display());
    }
    repair.unmark()?;
    Ok(said + ". Now let SQLite look at it: PRAGMA integrity_check")
}

fn unmarked(args: &Args, repair: &Repair) -> Result<String> {
    let file = args.file.display();
    let kind = repair.state()?.kind;
    let journal = repair.hot_journal()?.map(|path| path.display().to_string());
    // A process that died as it wrote left the header of more pages than the file has.
    let is_mended = journal.is_some() || wal_beside(repair.path()).is_some();
    let is_whole = kind != FileKind::Foreign || is_mended;
    ensure!(is_whole, "{file} is not a SQLite database, or it is cut short: nothing was changed");
    let log = repair.lock_log()?;
    let judged = log.as_ref().map(|log| repair.judge(log)).transpose()?;
    let left = judged.as_ref().and_then(|judged| judged.left).filter(|left| left.records > 0);
    let (Some(log), Some(left), Some(judged)) = (log, left, judged) else { return Ok(nothing(journal.as_deref())) };
    let holds =
        format!("the log {} holds {} of a marked database", log.path.display(), counted(left.records, "transaction"));
    if !args.without_log {
        return Ok(match judged.pairing.has_all() {
            true => nothing(journal.as_deref()),
            false => format!(
                "{}. It was replaced or restored: {holds}, which this one lacks or may lack. The next write through onewrite sets the \
                 log aside; to do so now, add --without-log. If the log's own database is still there, put that back beside it",
                nothing(journal.as_deref())
            ),
        });
    }
    let to = free_name(&log.path)?;
    if args.dry_run {
        return Ok(format!("would set the log aside as {}: {holds}. Nothing was changed", to.display()));
    }
    ensure!(
        args.yes,
        "{holds}, which {file} would lose for good: to set the log aside, add --yes. Nothing was changed"
    );
    set_aside(&log.path, &to)?;
    Ok(format!("{holds}, and is kept as {}. The database itself was not changed", to.display()))
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
