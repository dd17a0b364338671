//! `onewrite convert`: makes room for the trailers that the in-page schemes write into each page.
//!
//! SQLite itself writes the new file (`VACUUM INTO` with reserved bytes); it takes the place of the old one, in one
//! step, when it is whole, checked and durable. Until then the old one is only read.

use crate::look::{disk, grouped};
use anyhow::{Context, Result, bail, ensure};
use indicatif::{ProgressBar, ProgressStyle};
use onewrite_core::disk::OpenMode;
use onewrite_core::home::{Kind, State, reserved};
use onewrite_core::layout::trailer;
use onewrite_core::repair::Repair;
use rusqlite::{Connection, OpenFlags};
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::mpsc;
use std::time::Duration;

/// Give each page of a database the 32 reserved bytes that the in-page schemes need
///
/// For scheme=dhl-cc, dhl-tc, lsmvbt, mvbt and mvbt-opt. The database must not be in use. The new file is written
/// beside the old one, checked, synced, and renamed over it; the old one stays as it is if anything fails. Any SQLite
/// reads and writes the result, and every other scheme works on it.
///
///     onewrite convert app.db
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Args {
    /// The database
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

/// Removes the new file unless it has taken the old one's place.
struct Draft(PathBuf);

impl Drop for Draft {
    fn drop(&mut self) {
        // It may not be there, or be the database by now.
        let _ = fs::remove_file(&self.0);
    }
}

/// Converts, and says what was done.
pub fn run(args: &Args) -> Result<ExitCode> {
    let file = args.file.display();
    // Keeps everybody out until the new file has its name.
    let repair = Repair::open(disk(), &args.file, OpenMode::ReadWrite)?;
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
        Kind::Database => {}
        Kind::Empty => bail!("{file} has no page yet: an in-page scheme makes room by itself in a new database"),
        Kind::Wal => bail!("{file} is in WAL mode: run PRAGMA journal_mode=DELETE first"),
        Kind::Foreign => bail!("{file} is not a database, or shorter than its header states"),
    }
    let said = if reserved(&state.header).map(usize::from) == Some(trailer::BYTES) {
        "has the room already; nothing was changed".to_owned()
    } else {
        let pages = convert(repair.path(), &state)?;
        format!(
            "converted: {} pages of {} bytes, {} of them reserved",
            grouped(pages),
            state.page_bytes,
            trailer::BYTES
        )
    };
    drop(repair);
    writeln!(std::io::stdout(), "{file}: {said}").context("done, but printing failed")?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the size of the new file in pages.
fn convert(path: &Path, state: &State) -> Result<u64> {
    let draft = Draft(beside(path, "-onewrite-convert"));
    match fs::remove_file(&draft.0) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
            return Err(e).with_context(|| format!("removing {}, which an earlier run left", draft.0.display()));
        }
        _ => {}
    }
    write_draft(path, &draft.0, state)?;
    let pages = check(&draft.0, state)?;
    let permissions = fs::metadata(path)?.permissions();
    fs::set_permissions(&draft.0, permissions).context("giving the new file the permissions of the old one")?;
    File::open(&draft.0)?.sync_all().with_context(|| format!("flushing {}", draft.0.display()))?;
    fs::rename(&draft.0, path).context("putting the new file in place of the old one")?;
    disk().sync_dir_of(path).context("the new file is in place, but its name could not be flushed")?;
    Ok(pages)
}

/// Reads the old file without locks: they are all held.
fn write_draft(path: &Path, draft: &Path, state: &State) -> Result<()> {
    let from = open(path)?;
    onewrite_rusqlite::reserve_bytes(&from, trailer::BYTES as u8).context("asking for reserved bytes")?;
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
        let name = draft.to_str().context("the path is not UTF-8")?;
        let written = from.execute("VACUUM INTO ?1", [name]);
        drop(done);
        written.with_context(|| format!("writing {}", draft.display()))?;
        Ok(())
    })
}

fn check(draft: &Path, state: &State) -> Result<u64> {
    let new = open(draft)?;
    let found: String = new.query_row("PRAGMA integrity_check", [], |row| row.get(0))?;
    ensure!(found == "ok", "the new file is not in order ({found}); the old one was left as it is");
    let mut header = [0; 100];
    File::open(draft)?.read_exact(&mut header)?;
    let bytes = reserved(&header);
    ensure!(bytes.map(usize::from) == Some(trailer::BYTES), "SQLite did not reserve bytes in the new file");
    let pages: i64 = new.query_row("PRAGMA page_count", [], |row| row.get(0))?;
    let size: u32 = new.query_row("PRAGMA page_size", [], |row| row.get(0))?;
    ensure!(size == state.page_bytes, "SQLite changed the page size from {} to {size}", state.page_bytes);
    Ok(u64::try_from(pages).unwrap_or(0))
}

fn open(path: &Path) -> Result<Connection> {
    let name = path.to_str().context("the path is not UTF-8")?;
    let escaped: String = name
        .chars()
        .map(|c| match c {
            '%' | '?' | '#' => format!("%{:02x}", u32::from(c)),
            c => c.to_string(),
        })
        .collect();
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_URI | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    Connection::open_with_flags_and_vfs(format!("file:{escaped}?immutable=1"), flags, c"unix")
        .with_context(|| format!("opening {name}"))
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = OsString::from(path.as_os_str());
    name.push(suffix);
    name.into()
}
