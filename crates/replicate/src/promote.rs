//! Taking a store over, and giving way: [`promote`] makes a database the shipped one; [`rejoin`]
//! replaces a database that lost the store by the store's state.

use crate::fence::{self, ClaimMode, Fenced, Node, Owner, StoreClaim, Tip, shut_out};
use crate::follow::{self, Follower};
use crate::host;
use crate::local::{Passing, beside, directory, is_there, open_regular, sync};
use crate::plan::{Target, look_at, newest, plan};
use crate::report::now_ms;
use crate::restore::{PRIVATE, check_dest, restore_as};
use crate::source::{Signed, Source, is_signed, sign_before, sign_replica, sign_waiting, unsign};
use crate::state::{HashedState, byte_bar, page_bar};
use crate::store::{self, Store, list_all};
use anyhow::{Context, Result, bail, ensure};
use onewrite_core::Repair;
use onewrite_core::disk::look;
use onewrite_core::disk::real::RealDisk;
use onewrite_core::disk::{Disk, OpenMode};
use onewrite_core::inspect::log_path;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// How long commits wait for the store, and then fail, until a shipper begins.
const PATIENCE: Duration = Duration::from_secs(30);

/// The result of a promotion.
#[derive(Clone, Debug)]
pub struct Promoted {
    /// The claim's epoch.
    pub epoch: u64,
    /// The newest transaction, which shuts out earlier owners.
    pub txid: u64,
    /// The owner before.
    pub before: Option<Owner>,
    /// The database's state before.
    pub was: Was,
    /// The store heeds the conditions of requests.
    pub heeds: bool,
    /// Commits wait for the store, and for its shipper to begin.
    pub sync: bool,
}

/// A database before its promotion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Was {
    /// Not there; restored.
    Missing,
    /// A replica; brought up to date.
    Replica,
    /// There, and equal to the store's state.
    Same,
}

/// Makes the database at `file` the one that is shipped to the store at `url`: restores it if it is
/// not there, and brings a replica up to date; any other database must equal the store's state.
pub fn promote(url: &str, file: &Path) -> Result<Promoted> {
    let store = &mut *store::open(url)?;
    ensure!(!list_all(store)?.is_empty(), "the store is empty: `onewrite replicate` begins one");
    let was = match (is_there(file)?, follow::is_replica(file)?) {
        (false, _) => Was::Missing,
        (true, true) => Was::Replica,
        (true, false) => Was::Same,
    };
    // First, so that a refusal changes nothing, and most work is done while the store has its
    // owner.
    match was {
        Was::Missing => check_dest(file)?,
        Was::Replica => _ = catch_up(url, file)?,
        Was::Same => _ = compare(store, file)?,
    }
    let is_signed = was != Was::Missing && is_signed(file)?;
    let node = Node { sync: is_signed, ..Node::of(file)? };
    let conditions = store.begin(node.id)?;
    let before = fence::owner(store)?;
    begin(file)?;
    let mut claim = StoreClaim::take(store, &node, ClaimMode::Promote).or_else(|e| {
        if e.is::<Fenced>() {
            end(file)?;
        }
        Err(e)
    })?;
    let epoch = claim.epoch();
    let taken = take_over(store, &mut claim, url, file, was);
    let txid = taken.map_err(|e| match e.is::<Fenced>() {
        true => e,
        false => e.context(format!(
            "the store is this node's since a moment ago (epoch {epoch}), and nobody ships into it: promote again, here or elsewhere"
        )),
    })?;
    end(file)?;
    let heeds = conditions.create && conditions.replace;
    Ok(Promoted { epoch, txid, before, was, heeds, sync: claim.is_sync() })
}

/// A file beside the database from before the claim until the database equals the store's state.
fn mark(file: &Path) -> PathBuf {
    beside(file, "-promoting")
}

fn begin(file: &Path) -> Result<()> {
    let mark = mark(file);
    open_regular(&mark, File::options().create(true).append(true))
        .with_context(|| format!("cannot write {}", mark.display()))?;
    sync(directory(file))
}

fn end(file: &Path) -> Result<()> {
    let mark = mark(file);
    match fs::remove_file(&mark) {
        Err(e) if e.kind() != ErrorKind::NotFound => {
            Err(e).with_context(|| format!("cannot remove {}", mark.display()))
        }
        _ => sync(directory(file)),
    }
}

/// Refuses a database that lacks some of the store's transactions, since shipping it would take
/// them back: a replica, or a database whose promotion did not end.
pub(crate) fn check_ended(file: &Path) -> Result<()> {
    let path = file.display();
    ensure!(
        !is_there(&mark(file))?,
        "{path} was being promoted, and that has not come to its end: `onewrite promote` it again"
    );
    ensure!(
        !follow::is_replica(file)?,
        "{path} is a replica: `onewrite promote` makes it the database that is shipped"
    );
    Ok(())
}

fn take_over(store: &dyn Store, claim: &mut StoreClaim, url: &str, file: &Path, was: Was) -> Result<u64> {
    let aside = DraftDatabase::beside(file)?;
    if claim.is_sync() {
        // First: a commit that does not wait is then part of what is compared.
        match was {
            Was::Same if !is_signed(file)? => sign_waiting(file, PATIENCE)?,
            Was::Same => {}
            Was::Replica => sign_replica(file)?,
            Was::Missing => {}
        }
    }
    let txid = shut_out(store, claim, now_ms(), &mut |store| match was {
        Was::Replica => catch_up(url, file),
        Was::Same => compare(store, file),
        Was::Missing => {
            aside.clear()?;
            let txid = restore_as(store, &aside.database, Target::Newest, &|| PRIVATE)?.txid;
            tip_of_file(&aside.database, txid)
        }
    })?;
    match was {
        Was::Missing => {
            let mode = claim.mode().unwrap_or(PRIVATE);
            if claim.is_sync() {
                sign_before(file, Signed::Waits, mode)?;
            }
            aside.name(file, mode)?;
        }
        Was::Replica => {
            if claim.is_sync() {
                sign_waiting(file, PATIENCE)?;
            }
            follow::forget(file)?;
        }
        Was::Same => {}
    }
    Ok(txid)
}

fn catch_up(url: &str, file: &Path) -> Result<Tip> {
    let mut follower = Follower::open(file, url, store::open(url)?)?;
    follower.step(&mut |_| ())?;
    let txid = follower.txid();
    follower.close()?;
    let Some((source, _)) = Source::pin(file)? else { bail!("{} has no page", file.display()) };
    let mut first = Vec::new();
    source.read(1, &mut first)?;
    Ok(Tip { txid, page_bytes: source.page_bytes, pages: source.pages, first })
}

/// The store's newest state, if the database at `file` equals it.
fn compare(store: &dyn Store, file: &Path) -> Result<Tip> {
    match compared(store, file)? {
        Ok(tip) => Ok(tip),
        Err(pages) => bail!(
            "{} is not what the store has, {pages} pages differ: stop what uses it, and `onewrite rejoin` (which keeps it under \
             another name), or move it away",
            file.display()
        ),
    }
}

/// The store's newest state if it is equal; else the number of pages that differ.
fn compared(store: &dyn Store, file: &Path) -> Result<Result<Tip, u64>> {
    let Some((source, _)) = Source::pin(file)? else { bail!("{} has no page", file.display()) };
    let bar = page_bar("comparing");
    let ours = HashedState { page_bytes: source.page_bytes, hashes: source.hashes(&bar)? };
    bar.finish_and_clear();
    let (entries, plan) = look_at(store, |entries| plan(entries, Target::Newest))?;
    let bar = byte_bar("reading the store");
    let theirs = plan.and_then(|plan| HashedState::read(store, &plan, &bar));
    bar.finish_and_clear();
    let theirs = theirs?;
    if theirs != ours {
        let all = 0..ours.hashes.len().max(theirs.hashes.len());
        let differ = all.filter(|n| ours.hashes.get(*n) != theirs.hashes.get(*n)).count();
        return Ok(Err(differ as u64));
    }
    let mut first = Vec::new();
    source.read(1, &mut first)?;
    Ok(Ok(Tip { txid: newest(&entries), page_bytes: source.page_bytes, pages: source.pages, first }))
}

fn tip_of_file(file: &Path, txid: u64) -> Result<Tip> {
    let what = || format!("cannot read {}", file.display());
    let open = File::open(file).with_context(what)?;
    let mut size = [0; 2];
    host::read_exact_at(&open, &mut size, 16).with_context(what)?;
    let page_bytes = match u16::from_be_bytes(size) {
        1 => 65536,
        bytes => u32::from(bytes),
    };
    ensure!(page_bytes >= 512, "the store has no database of SQLite");
    let pages = u32::try_from(open.metadata().with_context(what)?.len() / u64::from(page_bytes))?;
    let mut first = vec![0; usize::try_from(page_bytes)?];
    host::read_exact_at(&open, &mut first, 0).with_context(what)?;
    Ok(Tip { txid, page_bytes, pages, first })
}

/// A database in the making, in a temporary directory beside its later name.
struct DraftDatabase {
    dir: tempfile::TempDir,
    database: PathBuf,
    _passing: Passing,
}

impl DraftDatabase {
    fn beside(file: &Path) -> Result<DraftDatabase> {
        let dir = directory(file);
        let what = || format!("cannot write in {}", dir.display());
        let mut named = tempfile::Builder::new();
        host::with_mode(named.prefix(".onewrite-promote-"), 0o700);
        let make = || named.tempdir_in(dir);
        let (_passing, dir) = Passing::make(make).with_context(what)?;
        let database = dir.path().join("database");
        Ok(DraftDatabase { dir, database, _passing })
    }

    fn clear(&self) -> Result<()> {
        match fs::remove_file(&self.database) {
            Err(e) if e.kind() != ErrorKind::NotFound => Err(e).context("cannot remove what was restored first"),
            _ => Ok(()),
        }
    }

    fn name(self, file: &Path, mode: u32) -> Result<()> {
        host::set_mode(&self.database, mode)
            .with_context(|| format!("cannot set the permissions of what becomes {}", file.display()))?;
        fs::hard_link(&self.database, file)
            .with_context(|| format!("cannot give the database the name {}", file.display()))?;
        self.dir.close().context("cannot remove a temporary directory")?;
        sync(directory(file))
    }
}

/// Commits to `file` wait for the store no more. `false`: they did not.
pub fn unsync(file: &Path) -> Result<bool> {
    ensure!(
        !follow::is_replica(file)?,
        "{} is a replica, to which nothing is committed: `onewrite promote` it first",
        file.display()
    );
    unsign(file)
}

/// Result of [`rejoin`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rejoined {
    /// The database equals the store's state, and was left.
    Same {
        /// The store's transaction.
        txid: u64,
    },
    /// The store's state is in its place.
    Replaced {
        /// The store's transaction.
        txid: u64,
        /// Pages that differed.
        pages: u64,
        /// The old database's new name.
        kept: PathBuf,
    },
}

/// Puts a replica of the store at `url` in the place of the database at `file`, kept as
/// `<file>.diverged`.
pub fn rejoin(url: &str, file: &Path) -> Result<Rejoined> {
    let store = &*store::open(url)?;
    let file = &host::resolved(file).with_context(|| format!("there is no database {}", file.display()))?;
    Source::look(file)?;
    if let Some(owner) = fence::owner(store)? {
        let node = Node::of(file)?;
        // A promotion that did not end has shipped none of this database's commits.
        ensure!(
            owner.node != format!("{:016x}", node.id) || is_there(&mark(file))?,
            "the store belongs to this database ({owner}): what is here and not shipped yet would be lost. `onewrite replicate` ships it"
        );
    }
    // Nothing more is committed here, and what commits waited for goes to `.diverged`.
    let is_sync = is_signed(file)? || fence::owner(store)?.is_some_and(|owner| owner.sync);
    if is_sync {
        sign_replica(file)?;
    }
    let kept = beside(file, ".diverged");
    let what = || format!("cannot look at {}", file.display());
    let inode = |path: &Path| look::at_name(path).map(|found| found.id());
    // Continues an interrupted rejoin, whose `.diverged` is the same inode.
    let begun = is_there(&kept)? && inode(&kept).with_context(what)? == inode(file).with_context(what)?;
    // Recovers the database if need be, and closes it, so that it is one plain file.
    let pages = match compared(store, file)? {
        Ok(tip) => {
            if is_sync {
                sign_waiting(file, PATIENCE)?;
            }
            return Ok(Rejoined::Same { txid: tip.txid });
        }
        Err(pages) => pages,
    };
    ensure!(begun || !is_there(&kept)?, "{} is there already: move it away", kept.display());
    let aside = DraftDatabase::beside(file)?;
    let txid = restore_as(store, &aside.database, Target::Newest, &|| PRIVATE)?.txid;
    let data = file.metadata().with_context(what)?;
    // The owner first, so that the right group gets the group's permissions.
    host::give(&aside.database, &data)
        .and_then(|()| fs::set_permissions(&aside.database, data.permissions()))
        .with_context(|| {
            format!("cannot give what was restored the owner and the permissions of {}", file.display())
        })?;
    let disk: Arc<dyn Disk> = Arc::new(RealDisk::new());
    let hold = Repair::open(disk, file, OpenMode::ReadWrite)?;
    ensure!(
        hold.mark()?.is_none() && hold.hot_journal()?.is_none(),
        "{} was opened meanwhile: try again",
        file.display()
    );
    let (log, kept_log) = (log_path(file), log_path(&kept));
    ensure!(begun || !is_there(&kept_log)?, "{} is there already: move it away", kept_log.display());
    let what = || format!("cannot give {} the name {}", file.display(), kept.display());
    if !begun {
        fs::hard_link(file, &kept).with_context(what)?;
    }
    if is_there(&log)? {
        fs::rename(&log, &kept_log).with_context(what)?;
    }
    follow::record(&aside.database, file, url, txid)?;
    fs::rename(&aside.database, file)
        .with_context(|| format!("cannot give what was restored the name {}", file.display()))?;
    sync(directory(file))?;
    drop(hold);
    Ok(Rejoined::Replaced { txid, pages, kept })
}
