//! A store in a directory, laid out as Litestream's `file` replicas: a file's time is that of its
//! state.

use super::{
    BATCHES, Conditions, Entry, Fill, Name, OWNER, OWNER_BYTES_MAX, SNAPSHOTS, Store, UNFINISHED, Version, check_count,
};
use crate::local::{is_there, open_regular, read_small, sync};
use crate::report::{COUNTERS, Request};
use anyhow::{Context, Result, bail, ensure};
use std::fs::{self, File, TryLockError};
use std::io::{BufReader, BufWriter, ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Held while the owner's record is replaced; others wait up to `PATIENCE`.
const OWNER_LOCK: &str = "owner.lock";
const PATIENCE: Duration = Duration::from_secs(10);

pub(super) struct FileStore {
    dir: PathBuf,
    lock: Option<File>,
}

impl FileStore {
    pub(super) fn new(dir: PathBuf) -> FileStore {
        FileStore { dir, lock: None }
    }

    fn level_dir(&self, level: u8) -> PathBuf {
        self.dir.join("ltx").join(level.to_string())
    }

    fn path(&self, name: Name) -> PathBuf {
        self.dir.join(name.to_string())
    }

    fn lock_file(&self, path: &Path) -> Result<File> {
        let lock = open_regular(path, File::options().create(true).append(true));
        lock.with_context(|| format!("cannot open {}", path.display()))
    }

    /// The directory of a level, made if need be. The store's directory must be there.
    fn make_level_dir(&self, level: u8) -> Result<PathBuf> {
        make_dir(&self.dir.join("ltx"))?;
        let dir = self.level_dir(level);
        make_dir(&dir)?;
        Ok(dir)
    }
}

fn make_dir(dir: &Path) -> Result<()> {
    match fs::create_dir(dir) {
        Ok(()) => {
            let parent = dir.parent().unwrap_or(Path::new("/"));
            sync(parent)
        }
        Err(e) if e.kind() == ErrorKind::AlreadyExists && dir.is_dir() => Ok(()),
        Err(e) if e.kind() == ErrorKind::NotFound => bail!(
            "there is no directory {}: make it, or mount what belongs there",
            dir.parent().unwrap_or(dir).display()
        ),
        Err(e) => Err(e).with_context(|| format!("cannot make the directory {}", dir.display())),
    }
}

fn time(time_ms: i64) -> SystemTime {
    UNIX_EPOCH + Duration::from_millis(u64::try_from(time_ms).unwrap_or(0))
}

impl Store for FileStore {
    fn begin(&mut self, node: u64) -> Result<Conditions> {
        make_dir(&self.dir)?;
        let path = self.dir.join(format!("onewrite-{node:016x}.lock"));
        let lock = self.lock_file(&path)?;
        match lock.try_lock() {
            Ok(()) => self.lock = Some(lock),
            Err(TryLockError::WouldBlock) => bail!(
                "another process ships into {}: one database and one process have a store to themselves",
                self.dir.display()
            ),
            Err(TryLockError::Error(e)) => return Err(e).with_context(|| format!("cannot lock {}", path.display())),
        }
        for level in [BATCHES, SNAPSHOTS] {
            self.make_level_dir(level)?;
        }
        Ok(Conditions { create: true, replace: true })
    }

    fn tidy(&self) -> Result<()> {
        for dir in (BATCHES..=SNAPSHOTS).map(|level| self.level_dir(level)).chain([self.dir.clone()]) {
            if !dir.is_dir() {
                continue;
            }
            let what = || format!("cannot read the directory {}", dir.display());
            for found in fs::read_dir(&dir).with_context(what)? {
                let found = found.with_context(what)?;
                if found.file_name().as_encoded_bytes().starts_with(UNFINISHED.as_bytes()) {
                    let path = found.path();
                    fs::remove_file(&path).with_context(|| format!("cannot remove {}", path.display()))?;
                }
            }
        }
        Ok(())
    }

    fn owner(&self) -> Result<Option<(Vec<u8>, Version)>> {
        COUNTERS.request(Request::Get);
        let path = self.dir.join(OWNER);
        let record = read_small(&path, OWNER_BYTES_MAX).with_context(|| format!("cannot read {}", path.display()))?;
        let Some(record) = record else {
            ensure!(self.dir.is_dir(), "there is no directory {}", self.dir.display());
            return Ok(None);
        };
        let version = Version(String::from_utf8_lossy(&record).into_owned());
        Ok(Some((record, version)))
    }

    fn set_owner(&self, was: Option<&Version>, record: &[u8]) -> Result<bool> {
        COUNTERS.request(Request::Put);
        let path = self.dir.join(OWNER);
        let what = || format!("cannot write {}", path.display());
        let lock_path = self.dir.join(OWNER_LOCK);
        let lock = self.lock_file(&lock_path)?;
        let begun = Instant::now();
        loop {
            match lock.try_lock() {
                Ok(()) => break,
                Err(TryLockError::WouldBlock) if begun.elapsed() < PATIENCE => thread::sleep(Duration::from_millis(5)),
                Err(TryLockError::WouldBlock) => {
                    bail!("another process holds {}: has it been stopped?", lock_path.display())
                }
                Err(TryLockError::Error(e)) => return Err(e).with_context(what),
            }
        }
        if self.owner()?.map(|(_, version)| version).as_ref() != was {
            return Ok(false);
        }
        let mut file = tempfile::Builder::new().prefix(UNFINISHED).tempfile_in(&self.dir).with_context(what)?;
        file.write_all(record).with_context(what)?;
        file.as_file().sync_all().with_context(what)?;
        file.persist(&path).map_err(|e| e.error).with_context(what)?;
        sync(&self.dir)?;
        Ok(true)
    }

    fn list_from(&self, level: u8, first: u64) -> Result<Vec<Entry>> {
        COUNTERS.request(Request::List);
        let dir = self.level_dir(level);
        let what = || format!("cannot read the directory {}", dir.display());
        let found = match fs::read_dir(&dir) {
            Ok(found) => found,
            Err(e) if e.kind() == ErrorKind::NotFound => {
                // A store that is not mounted is not an empty one.
                ensure!(self.dir.is_dir(), "there is no directory {}", self.dir.display());
                return Ok(Vec::new());
            }
            Err(e) => return Err(e).with_context(what),
        };
        let mut entries = Vec::new();
        for file in found {
            let file = file.with_context(what)?;
            let name = file.file_name().to_str().and_then(|name| Name::parse(level, name));
            let Some(name) = name.filter(|name| name.min >= first) else { continue };
            let Ok(data) = file.metadata() else { continue };
            let since = data.modified().with_context(what)?.duration_since(UNIX_EPOCH).unwrap_or_default();
            let time_ms = i64::try_from(since.as_millis()).unwrap_or(i64::MAX);
            // So that a pipe is opened, and the error names its kind.
            let bytes = if data.is_file() { data.len() } else { data.len().max(1) };
            entries.push(Entry { name, time_ms, bytes });
            check_count(entries.len()).with_context(what)?;
        }
        entries.sort_unstable();
        Ok(entries)
    }

    fn has(&self, name: Name) -> Result<bool> {
        COUNTERS.request(Request::Head);
        is_there(&self.path(name))
    }

    fn open(&self, name: Name) -> Result<Box<dyn Read>> {
        COUNTERS.request(Request::Get);
        let path = self.path(name);
        let file = open_regular(&path, File::options().read(true));
        let file = file.with_context(|| format!("cannot open {}", path.display()))?;
        Ok(Box::new(BufReader::with_capacity(1 << 18, file)))
    }

    fn read_part(&self, name: Name, offset: u64, bytes: u64) -> Result<Vec<u8>> {
        COUNTERS.request(Request::Get);
        let path = self.path(name);
        let what = || format!("cannot read {}", path.display());
        let mut file = open_regular(&path, File::options().read(true)).with_context(what)?;
        file.seek(SeekFrom::Start(offset)).with_context(what)?;
        let mut part = Vec::with_capacity(usize::try_from(bytes)?);
        file.take(bytes).read_to_end(&mut part).with_context(what)?;
        Ok(part)
    }

    fn create(&self, name: Name, time_ms: i64, fill: Fill<'_>) -> Result<bool> {
        COUNTERS.request(Request::Put);
        let path = self.path(name);
        let dir = self.make_level_dir(name.level)?;
        let what = || format!("cannot write {}", path.display());
        let file = tempfile::Builder::new().prefix(UNFINISHED).tempfile_in(&dir).with_context(what)?;
        // Errors of tempfile's own writer contain a random name.
        let mut to = BufWriter::with_capacity(1 << 18, file.as_file());
        fill(&mut to).with_context(what)?;
        to.into_inner().map_err(|e| e.into_error()).with_context(what)?;
        file.as_file().set_modified(time(time_ms)).with_context(what)?;
        file.as_file().sync_all().with_context(what)?;
        match file.persist_noclobber(&path) {
            Ok(_) => {}
            Err(e) if e.error.kind() == ErrorKind::AlreadyExists => return Ok(false),
            Err(e) => return Err(e.error).with_context(what),
        }
        sync(&dir)?;
        Ok(true)
    }

    fn remove(&self, name: Name) -> Result<()> {
        COUNTERS.request(Request::Delete);
        let path = self.path(name);
        // Not flushed: a file that a crash brings back is removed again.
        match fs::remove_file(&path) {
            Err(e) if e.kind() != ErrorKind::NotFound => {
                Err(e).with_context(|| format!("cannot remove {}", path.display()))
            }
            _ => Ok(()),
        }
    }
}
