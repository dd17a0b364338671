//! Who may write into a store: its owner, which a record in it names, and nobody else.
//!
//! Each process that ships claims the store: it replaces the record by one of the next epoch, on the condition that it is
//! still the one it has read, so that of those that race for an epoch one wins. A process of the same node may claim, any
//! other only by a promotion. The rules, each of which the model beside this tries by leaving it out:
//!
//! - A file has its name once: of two that create it, one finds that out.
//! - *Check the position*: between reading the store's position and writing behind it, the record is read, and is still the
//!   own one. So what was read is all there is of earlier owners, but for one file of each that is on its way.
//! - *Check the claim*: a file counts as shipped when the record, read after that, is still the own one. A process that was
//!   stopped for long may create a file that had been merged and removed.
//! - *Check the slot*: the first file of a claim counts when, besides, nothing merged reaches as far. It shuts out earlier
//!   owners: what they may have on its way has this name, or one before.
//! - Only the owner merges and removes.

use crate::local::{beside, directory, sync};
use crate::ltx::{Error, Header, Reader, Writer};
use crate::rules::{Rule, keeps};
use crate::store::{BATCHES, Fill, Name, SNAPSHOTS, Store};
use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::fs::Permissions;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};
use std::time::Duration;

#[cfg(test)]
mod model;

/// How often a claim is tried where the store says no and nobody else has it.
const TRIES: u32 = 20;
const PAUSE: Duration = Duration::from_millis(50);
/// How many files of earlier owners may come between a promotion and its first file.
const BEATEN: u32 = 16;

/// The place of one database: a number that is drawn once and kept beside it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// The number.
    pub id: u64,
    /// For messages: the machine, and the database's path there.
    pub host: String,
    /// See `host`.
    pub file: String,
}

impl Node {
    /// That of the database at `file`, which need not be there; drawn if there is none.
    pub fn of(file: &Path) -> Result<Node> {
        let full = std::path::absolute(file).with_context(|| format!("cannot find {}", file.display()))?;
        let full = full.canonicalize().unwrap_or(full);
        let path = node_path(&full);
        let id = match read_id(&path)? {
            Some(id) => id,
            None => {
                draw_id(&path, &full)?;
                read_id(&path)?.with_context(|| format!("{} is gone", path.display()))?
            }
        };
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let host = if host.trim().is_empty() { "a machine without a name" } else { host.trim() };
        Ok(Node { id, host: host.to_owned(), file: full.display().to_string() })
    }
}

/// Where the number of a database's place is kept.
pub fn node_path(file: &Path) -> PathBuf {
    beside(file, "-node")
}

fn read_id(path: &Path) -> Result<Option<u64>> {
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(e).with_context(|| format!("cannot read {}", path.display())),
    };
    match u64::from_str_radix(text.trim_end(), 16) {
        Ok(id) if id > 0 && text.len() == 17 => Ok(Some(id)),
        _ => bail!("{} holds no number: remove it, and this is another node from then on", path.display()),
    }
}

/// Draws one for the database at `of`, whose owner it gets.
fn draw_id(path: &Path, of: &Path) -> Result<()> {
    let what = || format!("cannot write {}", path.display());
    let dir = directory(path);
    let access = Permissions::from_mode(0o644);
    let mut file =
        tempfile::Builder::new().prefix(".onewrite-node-").permissions(access).tempfile_in(dir).with_context(what)?;
    if let Ok(data) = of.metadata() {
        fchown(file.as_file(), Some(data.uid()), Some(data.gid())).with_context(what)?;
    }
    // Above 2^63 there are programs that cannot read it.
    let id = (getrandom::u64().with_context(what)? >> 1).max(1);
    writeln!(file, "{id:016x}").with_context(what)?;
    file.as_file().sync_all().with_context(what)?;
    match file.persist_noclobber(path) {
        Err(e) if e.error.kind() != ErrorKind::AlreadyExists => return Err(e.error).with_context(what),
        _ => {}
    }
    sync(dir).with_context(what)
}

/// The record of a store that says who may write into it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    /// Raised by each claim.
    pub epoch: u64,
    /// The place, as 16 hexadecimal digits.
    pub node: String,
    /// Which of its processes, so that no two records are the same.
    pub process: String,
    /// The machine.
    pub host: String,
    /// The database's path there.
    pub file: String,
    /// When it was claimed, as RFC 3339 writes it.
    pub since: String,
}

impl Owner {
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

/// The store belongs to another process: nothing more may be written, and what was not shipped is not part of its history.
#[derive(Debug, thiserror::Error)]
pub struct Fenced {
    /// Whose it is.
    pub owner: Owner,
    /// By another process that ships the same database.
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

/// Whose store may be claimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// Nobody's, or the own node's.
    Resume,
    /// Anybody's.
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

/// That the store is nobody's or this node's.
pub fn check_is_free(owner: Option<&Owner>, node: &Node) -> Result<()> {
    match owner {
        Some(owner) if !owner.is(node) => Err(Fenced { owner: owner.clone(), same_node: false }.into()),
        _ => Ok(()),
    }
}

/// What makes this process the one that may write.
#[derive(Clone, Debug)]
pub struct Claim {
    node: Node,
    owner: Owner,
    /// A file of this claim counts: no file of an earlier one comes behind it.
    first_is_in: bool,
}

/// What became of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Put {
    /// It is in the store, and counts.
    Shipped,
    /// The name was taken, or had been: the position is another one than was thought.
    Beaten,
    /// The name was taken by one that keeps to no rules.
    Foreign,
}

impl Claim {
    /// Claims the store for this process.
    pub fn take(store: &dyn Store, node: &Node, how: How) -> Result<Claim> {
        Self::take_above(store, node, how, 0)
    }

    fn take_above(store: &dyn Store, node: &Node, how: How, floor: u64) -> Result<Claim> {
        let process = format!("{:016x}", getrandom::u64().context("no random numbers")?);
        for _ in 0..TRIES {
            let was = read(store)?;
            let (before, version) = was.map_or((None, None), |(owner, version)| (Some(owner), Some(version)));
            if how == How::Resume {
                check_is_free(before.as_ref(), node)?;
            }
            let owner = Owner {
                epoch: before.as_ref().map_or(floor, |owner| owner.epoch).saturating_add(1),
                node: format!("{:016x}", node.id),
                process: process.clone(),
                host: node.host.clone(),
                file: node.file.clone(),
                since: humantime::format_rfc3339_seconds(std::time::SystemTime::now()).to_string(),
            };
            let record = serde_json::to_vec_pretty(&owner)?;
            let claim = Claim { node: node.clone(), owner, first_is_in: false };
            if store.set_owner(version.as_ref(), &record)? {
                return Ok(claim);
            }
            match read(store)? {
                // A request whose answer was lost.
                Some((now, _)) if now == claim.owner => return Ok(claim),
                now if now.as_ref().map(|(now, _)| now) == before.as_ref() => {}
                Some((now, _)) => return Err(claim.fenced(now)),
                None => {}
            }
            pause();
        }
        bail!("the store refuses to replace owner.json, though nobody else has: try again")
    }

    /// Of which epoch.
    pub fn epoch(&self) -> u64 {
        self.owner.epoch
    }

    /// Whose number the files bear.
    pub fn node(&self) -> u64 {
        self.node.id
    }

    fn fenced(&self, owner: Owner) -> anyhow::Error {
        let same_node = owner.is(&self.node);
        Fenced { owner, same_node }.into()
    }

    /// That the store is still this process's; [`Fenced`] if it is another's. Before and after something is merged or removed,
    /// too.
    pub fn check(&self, store: &dyn Store) -> Result<()> {
        match owner(store)? {
            Some(owner) if owner == self.owner => Ok(()),
            Some(owner) => Err(self.fenced(owner)),
            None => bail!("owner.json is gone from the store"),
        }
    }

    /// Check the position: to be called between reading it from the store's listing, and writing behind it. A store that was
    /// emptied is claimed anew.
    pub fn check_position(&mut self, store: &dyn Store) -> Result<()> {
        if !keeps(Rule::CheckPosition) {
            return Ok(());
        }
        if owner(store)?.is_none() {
            let floor = self.owner.epoch;
            *self = Claim::take_above(store, &self.node, How::Resume, floor)?;
            bail!("owner.json was gone from the store, and is there again: what is left there is looked at");
        }
        self.check(store)
    }

    /// Writes a file that goes on behind the store's position.
    pub fn put(&mut self, store: &dyn Store, name: Name, time_ms: i64, fill: Fill<'_>) -> Result<Put> {
        let created = store.create(name, time_ms, fill)?;
        if keeps(Rule::CheckClaim) {
            self.check(store)?;
        }
        if !created && keeps(Rule::Beaten) {
            if !self.first_is_in || self.is_own_or_gone(store, name)? {
                return Ok(Put::Beaten);
            }
            // Else it may be the next owner's.
            self.check(store)?;
            return Ok(Put::Foreign);
        }
        if !self.first_is_in {
            if self.is_merged(store, name)? {
                return Ok(Put::Beaten);
            }
            self.first_is_in = true;
        }
        Ok(Put::Shipped)
    }

    /// Whether a file says that this node wrote it; or it is not there any more, or never was, as the store took a request for
    /// another's.
    fn is_own_or_gone(&self, store: &dyn Store, name: Name) -> Result<bool> {
        let file = match store.open(name) {
            Ok(file) => file,
            Err(_) if !store.has(name)? => return Ok(true),
            Err(e) => return Err(e),
        };
        match Reader::open(file) {
            Ok(reader) => Ok(reader.header().node == self.node.id),
            Err(Error::Io(e)) => Err(e).with_context(|| format!("cannot read {name}")),
            Err(_) => Ok(false),
        }
    }

    /// Whether merged files, other than this one, reach as far.
    fn is_merged(&self, store: &dyn Store, name: Name) -> Result<bool> {
        if !keeps(Rule::CheckSlot) {
            return Ok(false);
        }
        // Upwards, as files are merged: one that moves meanwhile is not missed.
        for level in BATCHES.saturating_add(1)..=SNAPSHOTS {
            if store.list(level)?.iter().any(|entry| entry.name != name && entry.name.max >= name.max) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

fn pause() {
    #[cfg(not(test))]
    std::thread::sleep(PAUSE);
    #[cfg(test)]
    if crate::rules::model::is_on() { shuttle::thread::yield_now() } else { std::thread::sleep(PAUSE) }
}

/// The newest state of a store, as far as it takes to write a batch that changes nothing.
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

/// Shuts out every earlier owner: reads the newest state by `read`, and writes a batch behind it that changes nothing. Answers
/// its transaction; `read` was called last for the one before.
pub fn shut_out(
    store: &dyn Store,
    claim: &mut Claim,
    time_ms: i64,
    read: &mut dyn FnMut(&dyn Store) -> Result<Tip>,
) -> Result<u64> {
    for _ in 0..BEATEN {
        let tip = read(store)?;
        claim.check_position(store)?;
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
