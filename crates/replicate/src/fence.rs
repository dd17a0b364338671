//! The owner of a store: the only process that may write into it.
//!
//! Each shipper claims the store: it replaces the owner's record by one of the next epoch, if the
//! record is still the one that it has read. So an epoch has one winner. A process of the same node
//! may claim, any other only by a promotion. The model leaves out each of these rules once:
//!
//! - A file has its name once: of two creators, one finds that out.
//! - *Check the position*: between reading the store's position and writing behind it, the own
//!   record is read and found. So the position has all files of earlier owners, except one for each
//!   that is under way.
//! - *The first file stays*: the first batch of a claim is never removed, and its name is recorded
//!   before it is made. An earlier owner finds its next name taken, however long it was stopped. So
//!   its files count without another look at the record.
//! - *Check the slot*: the first file of a claim counts when no merged file reaches as far. It
//!   shuts out earlier owners: their files under way have this name or an earlier one.
//! - Only the owner merges and removes.

use crate::host;
use crate::local::{beside, directory, open_regular, read_small, sync};
use crate::ltx::{Header, LtxError, Reader, Writer};
use crate::rules::{Rule, keeps};
use crate::store::{BATCHES, Fill, Name, SNAPSHOTS, Store};
use anyhow::{Context, Result, bail};
use onewrite_core::disk::look;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::fs::File;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

#[cfg(test)]
mod model;

/// Attempts at a claim that the store refuses although no other process has it.
const TRIES: u32 = 20;
const PAUSE: Duration = Duration::from_millis(50);
/// Files of earlier owners that may come between a promotion and its first file, and the time in
/// which such an owner sees that it has lost the store.
const BEATEN: u32 = 16;
const SEEN: Duration = if cfg!(test) { Duration::ZERO } else { Duration::from_secs(20) };
/// A number has 17 bytes; a longer file is not ours.
const ID_BYTES_MAX: u64 = 4096;
/// First files that stay; there is one for each promotion and each start of the machine.
const FIRSTS_MAX: usize = 1000;
/// Permissions that a record may give: no set-user-ID.
const MODE_MAX: u32 = 0o777;

/// The place of one database: a random number that is kept beside it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// The number.
    pub id: u64,
    /// For messages: the machine, and the database's path there.
    pub host: String,
    /// See `host`.
    pub file: String,
    /// Permissions of the database, if it is there.
    pub mode: Option<u32>,
    /// Its commits wait for the store.
    pub sync: bool,
    /// The lock of the node's file, if this process has it.
    pub lock: Option<NodeLock>,
}

/// A lock that a process has as long as it lives. Its text names the machine's start and the inode,
/// which no other file gets while a process has it open.
#[derive(Clone, Debug)]
pub struct NodeLock {
    text: String,
    _file: Arc<File>,
}

impl PartialEq for NodeLock {
    fn eq(&self, other: &NodeLock) -> bool {
        self.text == other.text
    }
}

impl Eq for NodeLock {}

impl NodeLock {
    /// `None`: another process has it, or the system has no such locks.
    fn take(path: &Path) -> Option<NodeLock> {
        let start = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
        let file = open_regular(path, File::options().read(true)).ok()?;
        file.try_lock().ok()?;
        let found = look::at(&file).ok()?;
        let text = format!("{} {:x} {:x}", start.trim(), found.dev, found.ino);
        Some(NodeLock { text, _file: Arc::new(file) })
    }
}

/// Permissions of the file, if it is there.
pub fn mode_of(file: &Path) -> Option<u32> {
    file.metadata().ok().map(|data| host::mode_of(&data) & MODE_MAX)
}

impl Node {
    /// The node of the database at `file`, which need not exist; draws a number if there is none.
    pub fn of(file: &Path) -> Result<Node> {
        let full = std::path::absolute(file).with_context(|| format!("cannot find {}", file.display()))?;
        let full = host::resolved(&full).unwrap_or(full);
        let path = node_path(&full);
        let id = match read_id(&path)? {
            Some(id) => id,
            None => {
                draw_id(&path, &full)?;
                read_id(&path)?.with_context(|| format!("{} is gone", path.display()))?
            }
        };
        let host = host::computer_name();
        let host = if host.trim().is_empty() { "a machine without a name" } else { host.trim() };
        let lock = NodeLock::take(&path);
        Ok(Node {
            id,
            host: host.to_owned(),
            file: full.display().to_string(),
            mode: mode_of(&full),
            sync: false,
            lock,
        })
    }
}

impl Node {
    fn has(&self, lock: &str) -> bool {
        self.lock.as_ref().is_some_and(|own| own.text == lock)
    }
}

/// The file of the node's number.
pub fn node_path(file: &Path) -> PathBuf {
    beside(file, "-node")
}

fn read_id(path: &Path) -> Result<Option<u64>> {
    let text = read_small(path, ID_BYTES_MAX).with_context(|| format!("cannot read {}", path.display()))?;
    let Some(text) = text else { return Ok(None) };
    let text = String::from_utf8_lossy(&text);
    match u64::from_str_radix(text.trim_end(), 16) {
        Ok(id) if id > 0 && text.len() == 17 => Ok(Some(id)),
        _ => bail!("{} holds no number: remove it, and this is another node from then on", path.display()),
    }
}

/// Draws a number for the database at `of`; the file gets that database's owner.
fn draw_id(path: &Path, of: &Path) -> Result<()> {
    let what = || format!("cannot write {}", path.display());
    let dir = directory(path);
    let mut named = tempfile::Builder::new();
    let mut file = host::with_mode(named.prefix(".onewrite-node-"), 0o644).tempfile_in(dir).with_context(what)?;
    if let Ok(data) = of.metadata() {
        host::give_file(file.as_file(), &data).with_context(what)?;
    }
    // Some programs cannot read numbers above 2^63.
    let id = (getrandom::u64().with_context(what)? >> 1).max(1);
    writeln!(file, "{id:016x}").with_context(what)?;
    file.as_file().sync_all().with_context(what)?;
    match file.persist_noclobber(path) {
        Err(e) if e.error.kind() != ErrorKind::AlreadyExists => return Err(e.error).with_context(what),
        _ => {}
    }
    sync(dir).with_context(what)
}

/// The store's record of the process that may write into it. Two records of one claim are equal.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Owner {
    /// Raised by each claim.
    pub epoch: u64,
    /// The place, as 16 hexadecimal digits.
    pub node: String,
    /// The process of this node, so that no two records are the same.
    pub process: String,
    /// The machine.
    pub host: String,
    /// The database's path there.
    pub file: String,
    /// When it was claimed, as RFC 3339 writes it.
    pub since: String,
    /// Permissions of the database, in octal digits, for files that are restored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
    /// Commits wait for the store: a promotion keeps it so.
    #[serde(default, skip_serializing_if = "is_false")]
    pub sync: bool,
    /// Transactions whose batches stay: the first ones of claims.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub firsts: Vec<u64>,
    /// The lock that the owner's process has. Each earlier process has ended, or finds its next
    /// name taken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lock: Option<String>,
}

fn is_false(sync: &bool) -> bool {
    !sync
}

impl PartialEq for Owner {
    fn eq(&self, other: &Owner) -> bool {
        (self.epoch, &self.node, &self.process) == (other.epoch, &other.node, &other.process)
    }
}

impl Eq for Owner {}

impl Owner {
    /// Permissions of the database, if the record has them.
    pub fn mode(&self) -> Option<u32> {
        let mode = u32::from_str_radix(self.mode.as_deref()?, 8).ok()?;
        (mode <= MODE_MAX).then_some(mode)
    }

    fn is(&self, node: &Node) -> bool {
        self.node == format!("{:016x}", node.id)
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Owner { epoch, host, file, since, .. } = self;
        write!(f, "{file} on {host} since {since}, epoch {epoch}")
    }
}

/// The store belongs to another process: write nothing more. Unshipped commits are not part of its
/// history.
#[derive(Debug, thiserror::Error)]
pub struct Fenced {
    /// The owner.
    pub owner: Owner,
    /// The owner ships the same database.
    pub same_node: bool,
}

impl fmt::Display for Fenced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let owner = &self.owner;
        if self.same_node {
            return write!(f, "fenced: another process ships this database into the store: {owner}");
        }
        write!(
            f,
            "fenced: the store belongs to {owner}. What is committed here is not shipped any more. To follow that one, \
             `onewrite rejoin`; if it is gone for good, `onewrite promote`"
        )
    }
}

/// Which stores may be claimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClaimMode {
    /// A store without an owner, or the own node's.
    Resume,
    /// Any store.
    Promote,
}

/// The owner of a store; `None` if it has none.
pub fn owner(store: &dyn Store) -> Result<Option<Owner>> {
    Ok(read(store)?.map(|(owner, _)| owner))
}

fn read(store: &dyn Store) -> Result<Option<(Owner, crate::store::Version)>> {
    let Some((record, version)) = store.owner()? else { return Ok(None) };
    let owner = serde_json::from_slice(&record).context("owner.json in the store does not tell its owner")?;
    Ok(Some((owner, version)))
}

/// Refuses a store of another node with [`Fenced`].
pub fn check_is_free(owner: Option<&Owner>, node: &Node) -> Result<()> {
    match owner {
        Some(owner) if !owner.is(node) => Err(Fenced { owner: owner.clone(), same_node: false }.into()),
        _ => Ok(()),
    }
}

/// This process's right to write into a store.
#[derive(Clone, Debug)]
pub struct StoreClaim {
    node: Node,
    owner: Owner,
    /// A file of this claim counts, so no earlier owner's file comes behind it.
    first_is_in: bool,
}

/// Outcome of writing a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Put {
    /// It is in the store, and counts.
    Shipped,
    /// The name is or was taken: the position is not the expected one.
    Beaten,
    /// A program that ignores the owner took the name.
    Foreign,
}

impl StoreClaim {
    /// Claims the store for this process.
    pub fn take(store: &dyn Store, node: &Node, how: ClaimMode) -> Result<StoreClaim> {
        Self::take_above(store, node, how, 0)
    }

    fn take_above(store: &dyn Store, node: &Node, how: ClaimMode, floor: u64) -> Result<StoreClaim> {
        let process = format!("{:016x}", getrandom::u64().context("no random numbers")?);
        for _ in 0..TRIES {
            let was = read(store)?;
            let (before, version) = was.map_or((None, None), |(owner, version)| (Some(owner), Some(version)));
            if how == ClaimMode::Resume {
                check_is_free(before.as_ref(), node)?;
            }
            let owner = Owner {
                epoch: before.as_ref().map_or(floor, |owner| owner.epoch).saturating_add(1),
                node: format!("{:016x}", node.id),
                process: process.clone(),
                host: node.host.clone(),
                file: node.file.clone(),
                since: humantime::format_rfc3339_seconds(std::time::SystemTime::now()).to_string(),
                sync: match how {
                    ClaimMode::Resume => node.sync,
                    ClaimMode::Promote => node.sync || before.as_ref().is_some_and(|owner| owner.sync),
                },
                mode: node.mode.map(octal).or_else(|| before.as_ref().and_then(|owner| owner.mode.clone())),
                firsts: before.as_ref().map_or_else(Vec::new, |owner| owner.firsts.clone()),
                // The process before has ended, since this one has its lock.
                lock: before.as_ref().and_then(|owner| owner.lock.clone()).filter(|lock| node.has(lock)),
            };
            let record = serde_json::to_vec_pretty(&owner)?;
            let claim = StoreClaim { node: node.clone(), owner, first_is_in: false };
            if store.set_owner(version.as_ref(), &record)? {
                return Ok(claim);
            }
            match read(store)? {
                // The claim had succeeded and its answer was lost.
                Some((now, _)) if now == claim.owner => return Ok(claim),
                now if now.as_ref().map(|(now, _)| now) == before.as_ref() => {}
                Some((now, _)) => return Err(claim.fenced(now)),
                None => {}
            }
            pause();
        }
        bail!("the store refuses to replace owner.json, though nobody else has: try again")
    }

    /// Permissions of the database, as in the record.
    pub fn mode(&self) -> Option<u32> {
        self.owner.mode()
    }

    /// Whether commits wait for the store, as in the record.
    pub fn is_sync(&self) -> bool {
        self.owner.sync
    }

    /// Records other permissions of the database. The claim and its files still count.
    pub fn set_mode(&mut self, store: &dyn Store, mode: u32) -> Result<()> {
        let Some((now, version)) = read(store)? else { return Ok(()) };
        if now != self.owner {
            return Err(self.fenced(now));
        }
        let owner = Owner { mode: Some(octal(mode)), ..now };
        if store.set_owner(Some(&version), &serde_json::to_vec_pretty(&owner)?)? {
            self.owner = owner;
        }
        Ok(())
    }

    /// Transactions whose batches stay, in the order of their claims.
    pub fn firsts(&self) -> &[u64] {
        &self.owner.firsts
    }

    /// The claim's epoch.
    pub fn epoch(&self) -> u64 {
        self.owner.epoch
    }

    /// The node's number, which the files bear.
    pub fn node(&self) -> u64 {
        self.node.id
    }

    fn fenced(&self, owner: Owner) -> anyhow::Error {
        let same_node = owner.is(&self.node);
        Fenced { owner, same_node }.into()
    }

    /// The own record as it is now. Refuses with [`Fenced`] if the store is another process's.
    /// Merging and removing check before.
    pub fn check(&self, store: &dyn Store) -> Result<Owner> {
        match owner(store)? {
            Some(owner) if owner == self.owner => Ok(owner),
            Some(owner) => Err(self.fenced(owner)),
            None => bail!("owner.json is gone from the store"),
        }
    }

    /// Check the position: call it after listing the store, whose newest transaction is `newest`,
    /// and before writing behind it. Claims a store that was emptied anew.
    pub fn check_position(&mut self, store: &dyn Store, newest: u64) -> Result<()> {
        let Some((now, version)) = read(store)? else {
            let floor = self.owner.epoch;
            *self = StoreClaim::take_above(store, &self.node, ClaimMode::Resume, floor)?;
            bail!("owner.json was gone from the store, and is there again: what is left there is looked at");
        };
        if now != self.owner {
            if keeps(Rule::CheckPosition) {
                return Err(self.fenced(now));
            }
            return Ok(());
        }
        self.owner = now;
        let first = newest.saturating_add(1);
        // Nothing comes before the store's first file.
        let is_shut = newest == 0 || self.first_is_in || self.owner.lock.is_some();
        if is_shut || self.owner.firsts.contains(&first) || !keeps(Rule::FirstStays) {
            return Ok(());
        }
        let mut owner = self.owner.clone();
        owner.firsts.push(first);
        let many = owner.firsts.len().saturating_sub(FIRSTS_MAX);
        owner.firsts.drain(..many);
        if !store.set_owner(Some(&version), &serde_json::to_vec_pretty(&owner)?)? {
            self.check(store)?;
            bail!("owner.json was replaced meanwhile: what is in the store is looked at again");
        }
        self.owner = owner;
        Ok(())
    }

    /// Records the lock, so that the next process here need not keep its first file. Else the
    /// record stays as it is, and that file stays.
    fn record_lock(&mut self, store: &dyn Store) {
        let Some(lock) = self.node.lock.as_ref().filter(|_| self.owner.lock.is_none()) else { return };
        let lock = Some(lock.text.clone());
        if let Ok(Some((now, version))) = read(store)
            && now == self.owner
        {
            let owner = Owner { lock, ..now };
            let replaced = serde_json::to_vec_pretty(&owner).map(|record| store.set_owner(Some(&version), &record));
            if matches!(replaced, Ok(Ok(true))) {
                self.owner = owner;
            }
        }
    }

    /// Writes a file behind the store's position.
    pub fn put(&mut self, store: &dyn Store, name: Name, time_ms: i64, fill: Fill<'_>) -> Result<Put> {
        let created = store.create(name, time_ms, fill)?;
        if !created && keeps(Rule::Beaten) {
            self.check(store)?;
            if !self.first_is_in || self.is_own_or_gone(store, name)? {
                return Ok(Put::Beaten);
            }
            // Else the next owner may have made it.
            self.check(store)?;
            return Ok(Put::Foreign);
        }
        if !self.first_is_in {
            if self.is_merged(store, name)? {
                return Ok(Put::Beaten);
            }
            self.first_is_in = true;
            self.record_lock(store);
        }
        Ok(Put::Shipped)
    }

    /// Whether this node wrote the file, or it is gone or never was: the store may refuse a request
    /// because of another one.
    fn is_own_or_gone(&self, store: &dyn Store, name: Name) -> Result<bool> {
        match self.is_of_node(store, name) {
            Err(_) if !store.has(name)? => Ok(true),
            is_own => is_own,
        }
    }

    /// Whether this claim's process made the file, by a request that passed for failed.
    pub fn is_own(&self, store: &dyn Store, name: Name) -> Result<bool> {
        Ok(self.first_is_in && self.is_of_node(store, name)?)
    }

    fn is_of_node(&self, store: &dyn Store, name: Name) -> Result<bool> {
        match Reader::open(store.open(name)?) {
            Ok(reader) => Ok(reader.header().node == self.node.id),
            Err(LtxError::Io(e)) => Err(e).with_context(|| format!("cannot read {name}")),
            Err(_) => Ok(false),
        }
    }

    /// Whether merged files, other than this one, reach as far.
    fn is_merged(&self, store: &dyn Store, name: Name) -> Result<bool> {
        if !keeps(Rule::CheckSlot) {
            return Ok(false);
        }
        // Upwards, the way files are merged, so that a file on its way is seen.
        for level in BATCHES.saturating_add(1)..=SNAPSHOTS {
            if store.list(level)?.iter().any(|entry| entry.name != name && entry.name.max >= name.max) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

fn octal(mode: u32) -> String {
    format!("{mode:04o}")
}

fn pause() {
    #[cfg(not(test))]
    std::thread::sleep(PAUSE);
    #[cfg(test)]
    if crate::rules::model::is_on() { shuttle::thread::yield_now() } else { std::thread::sleep(PAUSE) }
}

/// The newest state of a store: enough for a batch that changes nothing.
#[derive(Clone, Debug)]
pub struct Tip {
    /// Its transaction.
    pub txid: u64,
    /// Bytes of a page.
    pub page_bytes: u32,
    /// Number of pages.
    pub pages: u32,
    /// Page 1.
    pub first: Vec<u8>,
}

/// Shuts out every earlier owner: `read` reads the newest state, and a batch behind it changes
/// nothing. Returns the batch's transaction; the last `read` was of the one before.
pub fn shut_out(
    store: &dyn Store,
    claim: &mut StoreClaim,
    time_ms: i64,
    read: &mut dyn FnMut(&dyn Store) -> Result<Tip>,
) -> Result<u64> {
    let begun = Instant::now();
    let mut beaten = 0;
    while beaten < BEATEN || begun.elapsed() < SEEN {
        beaten = beaten.saturating_add(1);
        let tip = read(store)?;
        claim.check_position(store, tip.txid)?;
        if !keeps(Rule::ShutOut) {
            return Ok(tip.txid);
        }
        let txid = tip.txid.checked_add(1).context("no transaction comes behind the last one")?;
        let (min, max, node) = (txid, txid, claim.node());
        let header = Header { page_bytes: tip.page_bytes, pages: tip.pages, min, max, time_ms, node };
        let name = Name { level: BATCHES, min, max };
        let put = claim.put(store, name, time_ms, &mut |to| {
            let mut writer = Writer::begin(to, header)?;
            writer.page(1, &tip.first)?;
            writer.finish()?;
            Ok(())
        })?;
        match put {
            Put::Shipped => return Ok(txid),
            Put::Beaten => {}
            Put::Foreign => break,
        }
    }
    bail!("another process goes on shipping into the store, and does not ask who owns it: stop it first")
}
