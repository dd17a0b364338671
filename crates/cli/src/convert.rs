//! `onewrite research convert`: makes room for the trailers that the in-page schemes write into
//! each page, or gives it back.
//!
//! SQLite itself writes the new file: `VACUUM INTO` with reserved bytes, `convert_back` without
//! them. The new file takes the place of the old one in one step when it is whole, checked and
//! durable. Until then the old one is only read.

use crate::answer::Clock;
use crate::convert_back;
use crate::look::{counted, disk, grouped, wal_beside};
use anyhow::{Context, Result, bail, ensure};
use indicatif::{ProgressBar, ProgressStyle};
use onewrite_core::Repair;
use onewrite_core::disk::OpenMode;
use onewrite_core::inspect::Judgement;
use onewrite_core::inspect::has_room;
use onewrite_core::inspect::home::{FileKind, State, reserved};
use onewrite_core::inspect::layout::trailer;
use onewrite_core::inspect::path_beside;
use onewrite_core::text::Printable;
use onewrite_core::{Engine, LockLevel, Mode};
use onewrite_rusqlite::STOCK_VFS;
use rusqlite::{Connection, OpenFlags};
use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::mpsc;
use std::time::Duration;

/// Give each page of a database the reserved bytes that the in-page schemes need (248 of 4096)
///
/// For scheme=dhl-cc, dhl-tc, lsmvbt, mvbt and mvbt-opt. The database must not be in use. The new
/// file is written beside the old one, checked, synced, and renamed over it; the old one stays as
/// it is if anything fails, but that it leaves SQLite's WAL mode first. Any SQLite reads and writes
/// the result, and every other scheme works on it.
///
///     onewrite research convert app.db
///
/// Take the bytes out again, for more room in each page under the other schemes:
///
///     onewrite research convert app.db --to plain
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Args {
    /// The database
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// What its pages are to have: trailers (room for them) or plain (none)
    #[arg(long, value_name = "FORM", value_enum, default_value_t = Form::Trailers)]
    to: Form,
}

/// The reserved bytes of the new file's pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Form {
    /// Room for trailers
    Trailers,
    /// Nothing but SQLite's own
    Plain,
}

impl Form {
    fn reserved_bytes(self, page_bytes: u32) -> u8 {
        match self {
            Form::Trailers => trailer::reserved_bytes(page_bytes),
            Form::Plain => 0,
        }
    }
}

/// Removes the new file unless it has taken the old one's place.
struct Draft(PathBuf);

impl Drop for Draft {
    fn drop(&mut self) {
        // It may not be there, or be the database by now.
        let _ = fs::remove_file(&self.0);
    }
}

/// Converts, and prints the result.
pub fn run(args: &Args) -> Result<ExitCode> {
    let clock = Clock::start();
    let file = args.file.display();
    // Its locks keep all other processes out until the new file has its name.
    let mut repair = Repair::open(disk(), &args.file, OpenMode::ReadWrite)?;
    // A process that died as it took the database out of WAL mode leaves a WAL beside a header that
    // does not say so.
    if repair.state()?.kind == FileKind::Wal || wal_beside(repair.path()).is_some() {
        drop(repair);
        leave_wal_mode(&args.file)?;
        repair = Repair::open(disk(), &args.file, OpenMode::ReadWrite)?;
    }
    // SQLite would write the content of the WAL over the new file.
    if let Some((wal, _)) = wal_beside(repair.path()) {
        bail!(
            "{file} has a write-ahead log beside it ({}): open it with SQLite once, to bring that home",
            wal.display()
        );
    }
    ensure!(
        repair.mark()?.is_none(),
        "{file} carries onewrite's mark: it is in use, or a crash left it so. Run `onewrite recover {file}` first"
    );
    if let Some(journal) = repair.hot_journal()? {
        bail!(
            "{file} has a rollback journal beside it ({}): open it with SQLite once, to roll back",
            journal.display()
        );
    }
    let state = repair.state()?;
    match state.kind {
        FileKind::Database => {}
        FileKind::Empty => bail!("{file} has no page yet: an in-page scheme makes room by itself in a new database"),
        FileKind::Wal => bail!("{file} was changed to WAL mode meanwhile"),
        FileKind::Foreign => bail!("{file} is not a database, or shorter than its header states"),
    }
    let (has, wanted) = (reserved(&state.header).unwrap_or(0), args.to.reserved_bytes(state.page_bytes));
    let said = if has == wanted {
        match args.to {
            Form::Trailers => "has the room already; nothing was changed".to_owned(),
            Form::Plain => "has no reserved bytes; nothing was changed".to_owned(),
        }
    } else {
        ensure!(
            args.to == Form::Trailers || has_room(&state.header),
            "{file} has {has} reserved bytes, which are not onewrite's: another extension may need them"
        );
        let pages = convert(&repair, &state, args.to)?;
        let (page_bytes, bytes) = (state.page_bytes, pages * u64::from(state.page_bytes));
        format!(
            "converted: {} pages of {page_bytes} bytes, {wanted} of them reserved: {}{}",
            grouped(pages),
            counted(bytes, "byte"),
            clock.took()
        )
    };
    drop(repair);
    writeln!(std::io::stdout(), "{}", Printable(format!("{file}: {said}"))).context("done, but printing failed")?;
    Ok(ExitCode::SUCCESS)
}

/// As with any first use of the file through onewrite.
fn leave_wal_mode(file: &Path) -> Result<()> {
    let mut connection = Engine::new(disk()).open(file, OpenMode::ReadWrite, &[])?;
    let mode = connection.look_ahead()?;
    ensure!(mode != Mode::Wal, "{}: {}", file.display(), connection.why_stock());
    connection.lock(LockLevel::Shared)?;
    connection.unlock(LockLevel::None)?;
    // Else the close would put it back.
    connection.ask_for_wal(false);
    Ok(connection.close()?)
}

/// Returns the size of the new file in pages.
fn convert(repair: &Repair, state: &State, to: Form) -> Result<u64> {
    let path = repair.path();
    let draft = Draft(path_beside(path, "-onewrite-convert"));
    match fs::remove_file(&draft.0) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
            return Err(e).with_context(|| format!("removing {}, which an earlier run left", draft.0.display()));
        }
        _ => {}
    }
    // Before a row is in it: a user that may not read the old file may not read the new one.
    let access = repair.home().access()?;
    disk().open_beside(&draft.0, OpenMode::Create, access).context("making the new file")?;
    write_draft(path, &draft.0, state, to)?;
    let pages = check(&draft.0, state, to)?;
    File::open(&draft.0)?.sync_all().with_context(|| format!("flushing {}", draft.0.display()))?;
    remove_ended_log(repair)?;
    fs::rename(&draft.0, path).context("putting the new file in place of the old one")?;
    disk().sync_dir_of(path).context("the new file is in place, but its name could not be flushed")?;
    Ok(pages)
}

/// Removes a log whose transactions are all in home. The change counter of the new file begins
/// anew, so beside it nothing would tell that it has them, too.
fn remove_ended_log(repair: &Repair) -> Result<()> {
    let Some(log) = repair.lock_log()? else { return Ok(()) };
    let what = || format!("removing the log {}, whose session has ended", log.path.display());
    let Judgement { pairing, left, .. } = repair.judge(&log)?;
    if left.is_some() && pairing.has_all() {
        // A power cut may bring the mark back, which needs the log.
        repair.home().sync().with_context(what)?;
        fs::remove_file(&log.path).with_context(what)?;
        disk().sync_dir_of(&log.path).with_context(what)?;
    }
    Ok(())
}

/// Reads the old file without locks: they are all held.
fn write_draft(path: &Path, draft: &Path, state: &State, to: Form) -> Result<()> {
    let bar = ProgressBar::new(state.bytes());
    if let Ok(style) = ProgressStyle::with_template("converting {bar:40} {bytes}/{total_bytes}  {elapsed}") {
        bar.set_style(style);
    }
    let (done, wait) = mpsc::channel::<()>();
    let bar = &bar;
    std::thread::scope(|scope| {
        scope.spawn(move || {
            while wait.recv_timeout(Duration::from_millis(200)) == Err(mpsc::RecvTimeoutError::Timeout) {
                bar.set_position(fs::metadata(draft).map_or(0, |m| m.len()).min(state.bytes()));
            }
            bar.finish_and_clear();
        });
        let written = match to {
            Form::Trailers => with_room(path, draft, to.reserved_bytes(state.page_bytes)),
            Form::Plain => without_room(path, draft),
        };
        drop(done);
        written.with_context(|| format!("writing {}", draft.display()))
    })
}

fn with_room(path: &Path, draft: &Path, bytes: u8) -> Result<()> {
    let from = open(path)?;
    onewrite_rusqlite::reserve_bytes(&from, bytes).context("asking for reserved bytes")?;
    from.execute("VACUUM INTO ?1", [draft.to_str().context("the path is not UTF-8")?])?;
    Ok(())
}

fn without_room(path: &Path, draft: &Path) -> Result<()> {
    let flags = OpenFlags::default() | OpenFlags::SQLITE_OPEN_URI;
    let to = Connection::open_with_flags_and_vfs(draft, flags, STOCK_VFS)?;
    to.execute("ATTACH ?1 AS old", [uri(path)?])?;
    convert_back::copy(&to)?;
    to.close().map_err(|(_, e)| e)?;
    Ok(())
}

fn check(draft: &Path, state: &State, to: Form) -> Result<u64> {
    let new = open(draft)?;
    let found: String = new.query_row("PRAGMA integrity_check", [], |row| row.get(0))?;
    ensure!(found == "ok", "the new file is not in order ({found}); the old one was left as it is");
    let mut header = [0; 100];
    File::open(draft)?.read_exact(&mut header)?;
    let bytes = reserved(&header);
    ensure!(bytes == Some(to.reserved_bytes(state.page_bytes)), "SQLite reserved {bytes:?} bytes in the new file");
    let pages: i64 = new.query_row("PRAGMA page_count", [], |row| row.get(0))?;
    let size: u32 = new.query_row("PRAGMA page_size", [], |row| row.get(0))?;
    ensure!(size == state.page_bytes, "SQLite changed the page size from {} to {size}", state.page_bytes);
    Ok(u64::try_from(pages).unwrap_or(0))
}

fn open(path: &Path) -> Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_URI | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    Connection::open_with_flags_and_vfs(uri(path)?, flags, STOCK_VFS)
        .with_context(|| format!("opening {}", path.display()))
}

/// Opens the file without locks.
fn uri(path: &Path) -> Result<String> {
    let name = path.to_str().context("the path is not UTF-8")?;
    let escaped: String = name
        .chars()
        .map(|c| match c {
            '%' | '?' | '#' => format!("%{:02x}", u32::from(c)),
            c => c.to_string(),
        })
        .collect();
    Ok(format!("file:{escaped}?immutable=1"))
}
