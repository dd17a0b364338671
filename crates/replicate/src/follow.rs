//! Following: keeps a replica of the database up to date from the store. Each file is one
//! transaction of onewrite, so readers of the replica through onewrite keep their snapshots.
//!
//! A record beside the replica has its transaction and its content: the sum of its pages' hashes.
//! Each commit writes it first, with the contents before and after. So a start that reads the
//! replica finds its position, and finds changes by another program.

use crate::ending::{is_ending, moved};
use crate::fence;
use crate::host::{read_exact_at, write_all_at};
use crate::local::{beside, directory, read_small, sync};
use crate::lookout::{Lookout, Seen};
use crate::ltx::{Header, Reader, lock_page};
use crate::plan::{self, Target};
use crate::report::{COUNTERS, now_ms};
use crate::restore;
use crate::source::{Signed, is_signed, patiently, sign_before};
use crate::state::page_bar;
use crate::store::{Name, Store};
use anyhow::{Context, Result, bail, ensure};
use onewrite_core::disk::OpenMode;
use onewrite_core::disk::real::RealDisk;
use onewrite_core::{Connection, Engine, LockLevel, Mode};
use serde_json::{Value, json};
use std::collections::{BTreeSet, VecDeque};
use std::fs::{self, File};
use std::io::{ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use xxhash_rust::xxh3::xxh3_128_with_seed;

const RECORD_BYTES_MAX: u64 = 64 << 10;

/// Bytes of page 1 by which SQLite distinguishes states.
const VERSION: std::ops::Range<usize> = 24..40;
type StateVersion = [u8; 16];
/// Bytes of page 1 that opening and closing may change: file format (WAL mode), change counter,
/// version.
const VOLATILE: [std::ops::Range<usize>; 3] = [18..20, 24..28, 92..100];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ReplicaPosition {
    txid: u64,
    /// Sum of the hashes of all pages.
    content: u128,
}

/// The replica cannot go on from its state.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct ReplicaEnded(String);

/// A file that was applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Applied {
    /// The file.
    pub name: Name,
    /// Pages that it changed.
    pub pages: u32,
    /// Age of its state.
    pub lag: Duration,
}

/// A replica that is kept up to date.
pub struct Follower {
    store: Box<dyn Store>,
    file: PathBuf,
    url: String,
    db: Connection,
    page_bytes: u32,
    at: ReplicaPosition,
    version: StateVersion,
    lookout: Lookout,
    /// The time of its state, in milliseconds since 1970.
    state_ms: i64,
    /// Listed files that are still to be applied.
    ahead: VecDeque<Name>,
}

fn hash(page: u32, image: &mut [u8]) -> u128 {
    if page == 1 {
        for range in VOLATILE {
            image.get_mut(range).unwrap_or_default().fill(0);
        }
    }
    xxh3_128_with_seed(image, page.into())
}

/// Takes page 1 of a database in WAL mode out of it: replicas are not in WAL mode.
fn leave_wal_mode(image: &mut [u8]) {
    image.get_mut(18..20).unwrap_or_default().fill(1);
}

fn place(value: &Value) -> Option<ReplicaPosition> {
    let txid = u64::from_str_radix(value["txid"].as_str()?, 16).ok()?;
    let content = u128::from_str_radix(value["content"].as_str()?, 16).ok()?;
    Some(ReplicaPosition { txid, content })
}

fn told(place: ReplicaPosition) -> Value {
    json!({"txid": format!("{:016x}", place.txid), "content": format!("{:032x}", place.content)})
}

/// Writes the record, durably, whole or not at all.
fn write_record(file: &Path, url: &str, at: ReplicaPosition, next: ReplicaPosition) -> Result<()> {
    let path = beside(file, "-follow");
    let what = || format!("cannot write {}", path.display());
    let dir = directory(&path);
    let mut new = tempfile::NamedTempFile::new_in(dir).with_context(what)?;
    writeln!(new, "{}", json!({"url": url, "at": told(at), "next": told(next)})).with_context(what)?;
    new.as_file().sync_all().with_context(what)?;
    new.persist(&path).map_err(|e| e.error).with_context(what)?;
    sync(dir)
}

/// The record: the store's URL, and the replica's place before and after a commit.
fn read_record(file: &Path) -> Result<Option<(String, [ReplicaPosition; 2])>> {
    let path = beside(file, "-follow");
    let text = read_small(&path, RECORD_BYTES_MAX).with_context(|| format!("cannot read {}", path.display()))?;
    let Some(text) = text else { return Ok(None) };
    let record: Option<Value> = serde_json::from_slice(&text).ok();
    let parts = record.as_ref().and_then(|r| Some((r["url"].as_str()?, place(&r["at"])?, place(&r["next"])?)));
    let (url, at, next) = parts.with_context(|| format!("{} is damaged", path.display()))?;
    Ok(Some((url.to_owned(), [at, next])))
}

fn anew(file: &Path) -> String {
    let path = file.display();
    format!("move {path} and what else begins with {path}- away, and it is made anew")
}

impl Follower {
    /// Opens the replica `file` of the database in the store at `url`, or makes it.
    pub fn open(file: &Path, url: &str, store: Box<dyn Store>) -> Result<Follower> {
        let path = file.display();
        if !file.try_exists().with_context(|| format!("cannot look at {path}"))? {
            begin(file, url, &*store)?;
        }
        let Some((of, places)) = read_record(file)? else {
            bail!(
                "{path} is there, and is no replica, of which {path}-follow would tell: move it away, or choose another name"
            );
        };
        ensure!(of == url, "{path} is a replica of what {of} has: name that, or {}", anew(file));
        // Beside `-onewrite-sync` no other connection may commit.
        let given = if is_signed(file)? { vec![("shipper".to_owned(), "1".to_owned())] } else { Vec::new() };
        let mut db = Engine::new(Arc::new(RealDisk::new())).open(file, OpenMode::ReadWrite, &given)?;
        patiently(|| db.lock(LockLevel::Shared))?;
        let found = read_all(&mut db);
        db.unlock(LockLevel::None)?;
        let (page_bytes, version, content) = found?;
        let [at, next] = places;
        let Some(at) = [next, at].into_iter().find(|place| place.content == content) else {
            bail!(
                "{path} has been written to by others since it had transaction {:x} of {url}: {}",
                at.txid,
                anew(file)
            );
        };
        let (file, url) = (file.to_owned(), url.to_owned());
        Ok(Follower {
            store,
            file,
            url,
            db,
            page_bytes,
            at,
            version,
            lookout: Lookout::default(),
            state_ms: 0,
            ahead: VecDeque::new(),
        })
    }

    /// The transaction that the replica has.
    pub fn txid(&self) -> u64 {
        self.at.txid
    }

    /// Applies all files of the store that are due. After an [`ReplicaEnded`] it cannot go on.
    pub fn step(&mut self, said: &mut dyn FnMut(&Applied)) -> Result<()> {
        let stepped = self.try_step(said);
        if stepped.is_err() {
            self.lookout.forget();
            self.ahead.clear();
        }
        stepped
    }

    fn try_step(&mut self, said: &mut dyn FnMut(&Applied)) -> Result<()> {
        loop {
            if is_ending() {
                return Ok(());
            }
            let looked_ms = now_ms();
            let Some(name) = self.next()? else {
                COUNTERS.same(self.at.txid, 0, looked_ms);
                return Ok(());
            };
            said(&self.apply(name)?);
        }
    }

    /// Closes the replica.
    pub fn close(self) -> Result<()> {
        Ok(self.db.close()?)
    }

    fn next(&mut self) -> Result<Option<Name>> {
        if let Some(name) = self.ahead.pop_front() {
            return Ok(Some(name));
        }
        match self.lookout.look(&*self.store, self.at.txid, self.state_ms)? {
            Seen::Nothing => return Ok(None),
            Seen::Batch(name) => return Ok(Some(name)),
            Seen::Unknown => {}
        }
        let txid = self.at.txid;
        let (newest, ahead) = plan::look(&*self.store, |entries| {
            let (newest, mut at, mut ahead) = (plan::newest(entries), txid, VecDeque::new());
            while at < newest {
                let name = plan::onward(entries, at)?.name;
                ahead.push_back(name);
                at = name.max;
            }
            Ok((newest, ahead))
        })?;
        if newest < self.at.txid {
            let (url, path, txid) = (&self.url, self.file.display(), self.at.txid);
            let what =
                format!("{path} has transaction {txid:x}, and the newest of {url} is {newest:x}: was it emptied?");
            return Err(ReplicaEnded(format!("{what} If so, {}", anew(&self.file))).into());
        }
        self.ahead = ahead;
        self.lookout.listed(txid);
        Ok(self.ahead.pop_front())
    }

    fn apply(&mut self, name: Name) -> Result<Applied> {
        let what = || format!("cannot use {name}");
        let mut reader = Reader::open(self.store.open(name)?).with_context(what)?;
        let header = *reader.header();
        ensure!((header.min, header.max) == (name.min, name.max), "{name} holds other transactions");
        if header.page_bytes != self.page_bytes {
            let bytes = header.page_bytes;
            return Err(
                ReplicaEnded(format!("the database has pages of {bytes} bytes now: {}", anew(&self.file))).into()
            );
        }
        let written = self.write(&mut reader, &header);
        let unlocked = self.db.unlock(LockLevel::None);
        let (next, version, pages) = written.with_context(what)?;
        unlocked?;
        (self.at, self.version, self.state_ms) = (next, version, header.time_ms);
        COUNTERS.file(name.level, reader.bytes(), pages);
        // The shipper's clock may be ahead.
        let now_ms = now_ms();
        COUNTERS.same(next.txid, 0, header.time_ms.min(now_ms));
        let lag_ms = now_ms.saturating_sub(header.time_ms);
        Ok(Applied { name, pages, lag: Duration::from_millis(u64::try_from(lag_ms).unwrap_or(0)) })
    }

    /// Commits a file. After an error, the lock's end drops the transaction.
    fn write(
        &mut self,
        reader: &mut Reader<Box<dyn Read>>,
        header: &Header,
    ) -> Result<(ReplicaPosition, StateVersion, u32)> {
        let db = &mut self.db;
        patiently(|| {
            // Begins a new snapshot: this one may not be the newest any more.
            db.unlock(LockLevel::None)?;
            db.lock(LockLevel::Shared)?;
            db.lock(LockLevel::Reserved)
        })?;
        let (size, page_bytes) = (usize::try_from(self.page_bytes)?, u64::from(self.page_bytes));
        let offset = |page: u32| u64::from(page.saturating_sub(1)).saturating_mul(page_bytes);
        let is_page = |page: &u32| *page != lock_page(self.page_bytes);
        let (mut image, mut old) = (Vec::new(), vec![0; size]);
        db.read_at(&mut old, 0)?;
        if old.get(VERSION) != Some(&self.version[..]) {
            let path = self.file.display();
            let what = format!("{path} has been written to by others, and a replica is for reading");
            return Err(ReplicaEnded(format!("{what}: {}", anew(&self.file))).into());
        }
        let pages_before = u32::try_from(db.size()?.div_euclid(page_bytes))?;
        patiently(|| db.lock(LockLevel::Exclusive))?;
        let (mut content, mut pages, mut grown) = (self.at.content, 0u32, BTreeSet::new());
        while let Some(page) = reader.page(&mut image)? {
            moved();
            if page == 1 {
                leave_wal_mode(&mut image);
            }
            if page <= pages_before {
                db.read_at(&mut old, offset(page))?;
                if old == image {
                    continue;
                }
                content = content.wrapping_sub(hash(page, &mut old));
            } else {
                grown.insert(page);
            }
            db.write_at(&image, offset(page))?;
            content = content.wrapping_add(hash(page, &mut image));
            pages = pages.saturating_add(1);
        }
        reader.check_end()?;
        let behind = (pages_before.saturating_add(1)..=header.pages).filter(|page| !grown.contains(page));
        for page in behind.filter(is_page) {
            let mut zeros = vec![0; size];
            db.write_at(&zeros, offset(page))?;
            content = content.wrapping_add(hash(page, &mut zeros));
        }
        for page in (header.pages.saturating_add(1)..=pages_before).filter(is_page) {
            db.read_at(&mut old, offset(page))?;
            content = content.wrapping_sub(hash(page, &mut old));
        }
        if header.pages < pages_before {
            db.truncate(u64::from(header.pages).saturating_mul(page_bytes))?;
        }
        db.prepare(None)?;
        let next = ReplicaPosition { txid: header.max, content };
        write_record(&self.file, &self.url, self.at, next)?;
        // After an error only the next start finds whether it was committed.
        let committed = db.sync().and_then(|()| db.commit()).and_then(|()| db.read_at(&mut old, 0));
        committed.map_err(|e| ReplicaEnded(format!("the commit of transaction {:x} failed: {e}", header.max)))?;
        // The replica has a change counter of its own.
        Ok((next, version_of(&old)?, pages))
    }
}

fn version_of(page: &[u8]) -> Result<StateVersion> {
    page.get(VERSION).and_then(|version| version.try_into().ok()).context("page 1 is too short")
}

fn read_all(db: &mut Connection) -> Result<(u32, StateVersion, u128)> {
    ensure!(db.mode() != Mode::Wal, "others have the replica open in WAL mode, which goes past onewrite: close them");
    let mut header = [0; 100];
    db.read_at(&mut header, 0)?;
    let (page_bytes, version) = (page_bytes(&header)?, version_of(&header)?);
    let pages = u32::try_from(db.size()?.div_euclid(page_bytes.into()))?;
    let bar = page_bar("reading the replica");
    bar.set_length(pages.into());
    let content = content(pages, page_bytes, |image, offset| {
        bar.inc(1);
        db.read_at(image, offset)?;
        Ok(())
    });
    bar.finish_and_clear();
    Ok((page_bytes, version, content?))
}

fn page_bytes(header: &[u8; 100]) -> Result<u32> {
    let [.., high, low] = header.first_chunk::<18>().copied().unwrap_or([0; 18]);
    match u16::from_be_bytes([high, low]) {
        1 => Ok(65_536),
        bytes if bytes >= 512 && bytes.is_power_of_two() => Ok(bytes.into()),
        bytes => bail!("the replica is no database: its page size is {bytes}"),
    }
}

fn content(pages: u32, page_bytes: u32, mut read: impl FnMut(&mut [u8], u64) -> Result<()>) -> Result<u128> {
    let mut image = vec![0; usize::try_from(page_bytes)?];
    let mut content = 0u128;
    for page in (1..=pages).filter(|page| *page != lock_page(page_bytes)) {
        read(&mut image, u64::from(page.saturating_sub(1)).saturating_mul(page_bytes.into()))?;
        content = content.wrapping_add(hash(page, &mut image));
    }
    Ok(content)
}

/// Makes the replica: restores under another name, records, and renames.
fn begin(file: &Path, url: &str, store: &dyn Store) -> Result<()> {
    let new = beside(file, "-follow-new");
    match fs::remove_file(&new) {
        Err(e) if e.kind() != ErrorKind::NotFound => {
            return Err(e).with_context(|| format!("cannot remove {}", new.display()));
        }
        _ => {}
    }
    restore::check_dest(file)?;
    // A follower must be able to write it.
    let mode = &|| restore::mode(store) | restore::PRIVATE;
    let restored = restore::restore_as(store, &new, Target::Newest, mode);
    let restored = restored.with_context(|| format!("cannot restore {url}"))?;
    record(&new, file, url, restored.txid)?;
    if fence::owner(store).is_ok_and(|owner| owner.is_some_and(|owner| owner.sync)) {
        sign_before(file, Signed::Replica, mode())?;
    }
    restore::name(&new, file)
}

/// Records that `file`, soon the name of `new`, is a replica of transaction `txid` of the store at
/// `url`.
pub(crate) fn record(new: &Path, file: &Path, url: &str, txid: u64) -> Result<()> {
    let what = || format!("cannot use {}", new.display());
    let restored = File::options().read(true).write(true).open(new).with_context(what)?;
    let mut header = [0; 100];
    read_exact_at(&restored, &mut header, 0).with_context(what)?;
    if header.get(18..20) != Some(&[1, 1]) {
        leave_wal_mode(&mut header);
        write_all_at(&restored, &header, 0).with_context(what)?;
        restored.sync_all().with_context(what)?;
    }
    let page_bytes = page_bytes(&header)?;
    let pages = u32::try_from(restored.metadata().with_context(what)?.len().div_euclid(page_bytes.into()))?;
    let read = |image: &mut [u8], offset| read_exact_at(&restored, image, offset).with_context(what);
    let at = ReplicaPosition { txid, content: content(pages, page_bytes, read)? };
    write_record(file, url, at, at)
}

/// Whether the database at `file` is a replica.
pub(crate) fn is_replica(file: &Path) -> Result<bool> {
    Ok(read_record(file)?.is_some())
}

/// Makes a plain database of a replica that is no longer followed.
pub(crate) fn forget(file: &Path) -> Result<()> {
    let path = beside(file, "-follow");
    match fs::remove_file(&path) {
        Err(e) if e.kind() != ErrorKind::NotFound => {
            Err(e).with_context(|| format!("cannot remove {}", path.display()))
        }
        _ => sync(directory(file)),
    }
}
