//! Taking a store over, and giving way: [`promote`] makes a database the one that is shipped, [`rejoin`] puts a database that
//! another was promoted over aside, and what the store has in its place.

use crate::fence::{self, Claim, Fenced, How, Node, Owner, Tip, shut_out};
use crate::follow::{self, Follower};
use crate::local::{Passing, beside, directory, is_there, sync};
use crate::plan::{Target, newest, plan};
use crate::report::now_ms;
use crate::restore::{check_dest, restore};
use crate::source::{Source, unsign};
use crate::state::{State, byte_bar, page_bar};
use crate::store::{self, Store, list_all};
use anyhow::{Context, Result, bail, ensure};
use onewrite_core::Repair;
use onewrite_core::disk::real::RealDisk;
use onewrite_core::disk::{Disk, OpenMode};
use onewrite_core::inspect::log_path;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::fs::{FileExt, MetadataExt, chown};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What a promotion has done.
#[derive(Clone, Debug)]
pub struct Promoted {
    /// Of which epoch the claim is.
    pub epoch: u64,
    /// The newest transaction, which shuts out earlier owners.
    pub txid: u64,
    /// Whose the store was.
    pub before: Option<Owner>,
    /// What the database was.
    pub was: Was,
    /// The store heeds the conditions of requests.
    pub heeds: bool,
}

/// What a database was before it was promoted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Was {
    /// It was not there, and has been restored.
    Missing,
    /// A replica, which has been brought up to date.
    Replica,
    /// There, and as the store has it.
    Same,
}

/// Makes the database at `file` the one that is shipped to the store at `url`. It is restored if it is not there, and brought up to
/// date if it is a replica; else it must be what the store has.
pub fn promote(url: &str, file: &Path) -> Result<Promoted> {
    let store = &mut *store::open(url)?;
    ensure!(!list_all(store)?.is_empty(), "the store is empty: `onewrite replicate` begins one");
    let was = match (is_there(file)?, follow::is_replica(file)?) {
        (false, _) => Was::Missing,
        (true, true) => Was::Replica,
        (true, false) => Was::Same,
    };
    // Before anything is changed, and most of the work while the store has its owner.
    match was {
        Was::Missing => check_dest(file)?,
        Was::Replica => _ = catch_up(url, file)?,
        Was::Same => _ = compare(store, file)?,
    }
    let node = Node::of(file)?;
    let conditions = store.begin(node.id)?;
    let before = fence::owner(store)?;
    begin(file)?;
    let mut claim = Claim::take(store, &node, How::Promote).or_else(|e| {
        if e.is::<Fenced>() {
            // Nothing has begun.
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
    Ok(Promoted { epoch, txid, before, was, heeds })
}

/// Lies beside a database from before it is claimed for until it is what the store has.
fn mark(file: &Path) -> PathBuf {
    beside(file, "-promoting")
}

fn begin(file: &Path) -> Result<()> {
    let mark = mark(file);
    File::create(&mark).with_context(|| format!("cannot write {}", mark.display()))?;
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

/// That the database at `file` may be shipped. What the store has and it lacks would be taken back by what it has instead: so it is
/// no replica, and a promotion of it came to its end.
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

fn take_over(store: &dyn Store, claim: &mut Claim, url: &str, file: &Path, was: Was) -> Result<u64> {
    let aside = Aside::beside(file)?;
    let txid = shut_out(store, claim, now_ms(), &mut |store| match was {
        Was::Replica => catch_up(url, file),
        Was::Same => compare(store, file),
        Was::Missing => {
            aside.clear()?;
            let txid = restore(store, &aside.database, Target::Newest)?;
            tip_of_file(&aside.database, txid)
        }
    })?;
    match was {
        Was::Missing => aside.name(file)?,
        Was::Replica => follow::forget(file)?,
        Was::Same => {}
    }
    Ok(txid)
}

/// Brings a replica up to date.
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

/// The store's newest state, if the database at `file` is the same.
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

/// The same; else how many pages differ.
fn compared(store: &dyn Store, file: &Path) -> Result<Result<Tip, u64>> {
    let Some((source, _)) = Source::pin(file)? else { bail!("{} has no page", file.display()) };
    let bar = page_bar("comparing");
    let ours = State { page_bytes: source.page_bytes, hashes: source.hashes(&bar)? };
    bar.finish_and_clear();
    let entries = list_all(store)?;
    let bar = byte_bar("reading the store");
    let theirs = State::read(store, &plan(&entries, Target::Newest)?, &bar);
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
    open.read_exact_at(&mut size, 16).with_context(what)?;
    let page_bytes = match u16::from_be_bytes(size) {
        1 => 65536,
        bytes => u32::from(bytes),
    };
    ensure!(page_bytes >= 512, "the store has no database of SQLite");
    let pages = u32::try_from(open.metadata().with_context(what)?.len() / u64::from(page_bytes))?;
    let mut first = vec![0; usize::try_from(page_bytes)?];
    open.read_exact_at(&mut first, 0).with_context(what)?;
    Ok(Tip { txid, page_bytes, pages, first })
}

/// A database that is being made, in the directory of the one it will be.
struct Aside {
    dir: tempfile::TempDir,
    database: PathBuf,
    _passing: Passing,
}

impl Aside {
    fn beside(file: &Path) -> Result<Aside> {
        let dir = directory(file);
        let what = || format!("cannot write in {}", dir.display());
        let make = || tempfile::Builder::new().prefix(".onewrite-promote-").tempdir_in(dir);
        let (_passing, dir) = Passing::make(make).with_context(what)?;
        let database = dir.path().join("database");
        Ok(Aside { dir, database, _passing })
    }

    fn clear(&self) -> Result<()> {
        match fs::remove_file(&self.database) {
            Err(e) if e.kind() != ErrorKind::NotFound => Err(e).context("cannot remove what was restored first"),
            _ => Ok(()),
        }
    }

    /// Gives it its name, which nothing has.
    fn name(self, file: &Path) -> Result<()> {
        fs::hard_link(&self.database, file)
            .with_context(|| format!("cannot give the database the name {}", file.display()))?;
        self.dir.close().context("cannot remove a temporary directory")?;
        sync(directory(file))
    }
}

/// What has become of a database that another was promoted over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rejoined {
    /// It is the same as the store has, and was left.
    Same {
        /// The state of the store.
        txid: u64,
    },
    /// The store's state is in its place.
    Replaced {
        /// The state of the store.
        txid: u64,
        /// Pages that differed.
        pages: u64,
        /// What it is called now.
        kept: PathBuf,
    },
}

/// Puts a replica of what the store at `url` has in the place of the database at `file`, which is kept as `<file>.diverged`.
pub fn rejoin(url: &str, file: &Path) -> Result<Rejoined> {
    let store = &*store::open(url)?;
    let file = &file.canonicalize().with_context(|| format!("there is no database {}", file.display()))?;
    Source::look(file)?;
    if let Some(owner) = fence::owner(store)? {
        let node = Node::of(file)?;
        // A promotion that has not come to its end has shipped nothing of what is here.
        ensure!(
            owner.node != format!("{:016x}", node.id) || is_there(&mark(file))?,
            "the store belongs to this database ({owner}): what is here and not shipped yet would be lost. `onewrite replicate` ships it"
        );
    }
    // Commits here wait for the store no more: what there may be is put aside.
    unsign(file)?;
    let kept = beside(file, ".diverged");
    let what = || format!("cannot look at {}", file.display());
    let inode = |path: &Path| path.symlink_metadata().map(|data| (data.dev(), data.ino()));
    // What was begun before is gone on with.
    let begun = is_there(&kept)? && inode(&kept).with_context(what)? == inode(file).with_context(what)?;
    // Recovers it, if need be, and closes it: then it is one plain file.
    let pages = match compared(store, file)? {
        Ok(tip) => return Ok(Rejoined::Same { txid: tip.txid }),
        Err(pages) => pages,
    };
    ensure!(begun || !is_there(&kept)?, "{} is there already: move it away", kept.display());
    let aside = Aside::beside(file)?;
    let txid = restore(store, &aside.database, Target::Newest)?;
    let data = file.metadata().with_context(what)?;
    fs::set_permissions(&aside.database, data.permissions())
        .and_then(|()| chown(&aside.database, Some(data.uid()), Some(data.gid())))
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
