//! `onewrite backup`: a copy of a database, also while others write it.

use crate::answer::{Clock, failed, print_json};
use crate::live;
use crate::look::{Look, counted};
use anyhow::{Context, Result, bail, ensure};
use indicatif::{ProgressBar, ProgressStyle};
use onewrite_core::disk::Disk;
use onewrite_core::disk::real::RealDisk;
use onewrite_core::inspect::log_path;
use onewrite_core::text::Printable;
use onewrite_rusqlite::STOCK_VFS;
use rusqlite::backup::{Backup, StepResult};
use rusqlite::{Connection, OpenFlags};
use serde_json::json;
use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// Copy a database to a plain SQLite file, also while others use it
///
/// The copy is one snapshot: the newest state when it begins. Writers through onewrite are not kept
/// waiting. It is written beside DEST under another name, flushed, and renamed: in every case DEST
/// is as it was or the whole copy. It gets the permissions of the database, and in a directory DEST
/// its name. Stopped with Ctrl-C or SIGTERM, nothing is left of it.
///
/// With --json the answer is one object: file, status and, where the status is 0, dest, pages,
/// page_bytes, bytes, vacuumed and seconds, else error.
///
///     onewrite backup app.db /backup/app.db
///     onewrite backup --vacuum --force app.db /backup/app.db
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Args {
    /// The database
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// The copy, or the directory that it goes into
    #[arg(value_name = "DEST")]
    dest: PathBuf,
    /// Make the copy as small as it can be, its tables in order
    #[arg(long)]
    vacuum: bool,
    /// Replace DEST if it is there
    #[arg(long)]
    force: bool,
    /// For machines: one JSON object
    #[arg(long)]
    json: bool,
}

/// Pages copied between two looks at the progress bar.
const STEP_PAGES: i32 = 2000;

/// The size of the copy.
struct Copied {
    pages: u64,
    page_bytes: u64,
}

/// Makes the copy, and prints its size.
pub fn run(args: &Args) -> Result<ExitCode> {
    let clock = Clock::start();
    let made = destination(args).and_then(|dest| Ok((make(args, &dest)?, dest)));
    let (Copied { pages, page_bytes }, dest) = match made {
        Ok(made) => made,
        Err(e) if args.json => {
            print_json(&failed(&args.file, &e))?;
            return Err(e);
        }
        Err(e) => return Err(e),
    };
    let bytes = pages * page_bytes;
    if args.json {
        print_json(&json!({
            "file": args.file.to_string_lossy(), "status": 0, "dest": dest.to_string_lossy(), "pages": pages,
            "page_bytes": page_bytes, "bytes": bytes, "vacuumed": args.vacuum, "seconds": clock.seconds(),
        }))?;
    } else {
        let copied = format!("{} is the copy: {}, {}", dest.display(), counted(pages, "page"), counted(bytes, "byte"));
        let said = Printable(format!("{}: {copied}{}", args.file.display(), clock.took()));
        writeln!(std::io::stdout(), "{said}").context("done, but printing failed")?;
    }
    Ok(ExitCode::SUCCESS)
}

fn make(args: &Args, dest: &Path) -> Result<Copied> {
    let Args { file, .. } = args;
    let source = live::open(file)?;
    check_dest(args, dest)?;
    let dir = match dest.parent() {
        Some(dir) if !dir.as_os_str().is_empty() => dir,
        _ => Path::new("."),
    };
    let what = || format!("cannot write in {}", dir.display());
    let temporary = tempfile::Builder::new().prefix(".onewrite-backup-").tempfile_in(dir).with_context(what)?;
    let path = temporary.path().to_owned();
    ctrlc::set_handler(move || {
        let _ = std::fs::remove_file(&path);
        std::process::exit(130);
    })?;
    let copied = copy(&source, file, temporary.path(), args.vacuum)?;
    let permissions =
        std::fs::metadata(file).with_context(|| format!("cannot look at {}", file.display()))?.permissions();
    temporary.as_file().set_permissions(permissions).with_context(what)?;
    temporary.as_file().sync_all().with_context(|| format!("cannot flush the copy in {}", dir.display()))?;
    let named = if args.force { temporary.persist(dest) } else { temporary.persist_noclobber(dest) };
    named.map_err(|e| e.error).with_context(|| format!("cannot give the copy the name {}", dest.display()))?;
    RealDisk::new().sync_dir_of(dest).with_context(|| format!("cannot flush {}", dir.display()))?;
    Ok(copied)
}

/// The name of the copy: in a directory that of the database, as `cp` has it.
fn destination(args: &Args) -> Result<PathBuf> {
    let dest = &args.dest;
    if !dest.is_dir() {
        let last = dest.as_os_str().as_encoded_bytes().last().copied().unwrap_or_default();
        ensure!(!std::path::is_separator(last.into()), "there is no directory {}", dest.display());
        return Ok(dest.clone());
    }
    let name =
        args.file.file_name().with_context(|| format!("{} is not the name of a database", args.file.display()))?;
    Ok(dest.join(name))
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name: OsString = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// Refuses a DEST beside which a journal or a log lies: SQLite would roll the journal back into the
/// copy, and the log would refuse the copy.
fn check_dest(args: &Args, dest: &Path) -> Result<()> {
    let there = dest.try_exists().with_context(|| format!("cannot look at {}", dest.display()))?;
    ensure!(!there || args.force, "{} is there already; --force replaces it", dest.display());
    if there {
        let is_file = std::fs::metadata(dest).is_ok_and(|found| found.is_file());
        ensure!(is_file, "{} is not a regular file, and is not replaced: choose another name", dest.display());
        let same = |path: &Path| path.canonicalize().with_context(|| format!("cannot look at {}", path.display()));
        ensure!(same(&args.file)? != same(dest)?, "{} is the database itself", dest.display());
    }
    for suffix in ["-journal", "-wal"] {
        let other = beside(dest, suffix);
        ensure!(
            !std::fs::metadata(&other).is_ok_and(|found| found.len() > 0),
            "{} lies beside the copy and belongs to another database, which would be read with it: move it away",
            other.display()
        );
    }
    if log_path(dest).exists() {
        // Left beside a database that was closed in order, it holds nothing.
        let is_over = there && {
            let look = Look::open(dest)?;
            let slot = look.log.as_ref().and_then(|log| log.newest.as_ref());
            look.mark.is_none() && slot.is_none_or(|slot| !slot.live)
        };
        if !is_over {
            bail!(
                "{} belongs to a database that is in use, was not closed, or is gone: move both away, or choose another name",
                log_path(dest).display()
            );
        }
    }
    Ok(())
}

fn copy(source: &Connection, file: &Path, to: &Path, vacuum: bool) -> Result<Copied> {
    let what = || format!("cannot write the copy {}", to.display());
    // After a crash no process needs the file under its temporary name: no journal, one flush at
    // the end.
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE;
    let mut copy = Connection::open_with_flags_and_vfs(to, flags, STOCK_VFS).with_context(what)?;
    copy.execute_batch("PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF").with_context(what)?;
    let bar = ProgressBar::new(0).with_message("copying");
    let style = ProgressStyle::with_template("{msg} {wide_bar} {pos}/{len} pages {eta}");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    let backup = Backup::new(source, &mut copy).map_err(|e| live::explain(file, e))?;
    loop {
        match backup.step(STEP_PAGES).map_err(|e| live::explain(file, e))? {
            StepResult::Done => break,
            StepResult::More => {}
            // The snapshot is there already: another process looks at the copy.
            _ => std::thread::sleep(Duration::from_millis(20)),
        }
        let progress = backup.progress();
        bar.set_length(u64::try_from(progress.pagecount).unwrap_or(0));
        bar.set_position(u64::try_from(progress.pagecount - progress.remaining).unwrap_or(0));
    }
    drop(backup);
    if vacuum {
        bar.set_message("vacuuming");
        bar.tick();
        copy.execute_batch("VACUUM").with_context(what)?;
    }
    bar.finish_and_clear();
    let number = |pragma: &str| copy.query_row(&format!("PRAGMA {pragma}"), [], |row| row.get::<_, u32>(0));
    let copied = Copied {
        pages: number("page_count").with_context(what)?.into(),
        page_bytes: number("page_size").with_context(what)?.into(),
    };
    copy.close().map_err(|(_, e)| e).with_context(what)?;
    Ok(copied)
}
