//! Before a database is shipped: it is restored or made, and its store's directory is.

use crate::fence::{self, Node};
use crate::plan::{Empty, Target};
use crate::report::{Level, say};
use crate::restore::{PRIVATE, RestoreOptions, Restored, restore};
use crate::ship::Shipped;
use crate::source::{Signed, is_signed, sign_before};
use crate::store::{self, StoreKeys};
use anyhow::{Context, Result, ensure};
use std::fs::{self, File};
use std::path::Path;

/// A database that is to be shipped.
#[derive(Clone, Copy, Debug)]
pub struct Beginning<'a> {
    /// The database.
    pub file: &'a Path,
    /// Its store.
    pub url: &'a str,
    /// Keys of the bucket, if they are not those that AWS's tools find.
    pub keys: Option<&'a StoreKeys>,
    /// Its commits are to wait for the store.
    pub sync: bool,
    /// It is restored first.
    pub restores: bool,
}

/// Restores the database that is not there, or makes it. `false`: it is to be waited for.
pub fn begin_database(of: &Beginning<'_>) -> Result<bool> {
    let (file, url) = (of.file, of.url);
    if of.restores
        && let Some(Restored { txid, .. }) = restore_own(of)?
    {
        let fields = [("txid", format!("{txid:016x}").into())];
        let message = format!("{} has the state of transaction {txid:016x} of {url}", file.display());
        say(Level::Info, "restored", &fields, &message);
        return Ok(true);
    }
    if of.sync {
        // Commits wait from the first one on, so the application must find a database.
        File::create_new(file).with_context(|| format!("cannot make the database {}", file.display()))?;
        say(Level::Info, "made", &[], &format!("{} was not there, and is an empty database now", file.display()));
    }
    Ok(of.sync)
}

/// Restores the database from its own store; `None`: that is empty.
fn restore_own(of: &Beginning<'_>) -> Result<Option<Restored>> {
    let (file, url) = (of.file, of.url);
    let store = &*store::open_with(url, of.keys)?;
    let owner = fence::owner(store)?;
    let waits = owner.as_ref().is_some_and(|owner| owner.sync);
    ensure!(!waits || of.sync, "commits to {} wait for {url}: add --sync, or sync: true", file.display());
    fence::check_is_free(owner.as_ref(), &Node::of(file)?)?;
    if waits {
        sign_before(file, Signed::Waits, owner.and_then(|owner| owner.mode()).unwrap_or(PRIVATE))?;
    }
    match restore(store, file, Target::Newest, RestoreOptions::default()) {
        Ok(restored) => Ok(Some(restored)),
        Err(e) if e.is::<Empty>() => Ok(None),
        Err(e) => Err(e).with_context(|| format!("cannot restore {url}")),
    }
}

/// Refuses to ship without `sync` a database whose commits wait.
pub fn check_mode(file: &Path, sync: bool) -> Result<()> {
    ensure!(
        sync || !is_signed(file)?,
        "commits to {} wait for a store: add --sync, or sync: true. Where they are to wait no more, stop what uses the database, and \
         `onewrite unsync {0}` first",
        file.display()
    );
    Ok(())
}

/// Makes the directory `base`, whose parent must be there, and those between it and the store at
/// `url`, which lies below.
pub fn make_below(base: &str, url: &str) -> Result<()> {
    let (Some(base), Some(store)) = (store::path_of(base), store::path_of(url)) else { return Ok(()) };
    if !base.is_dir() {
        let made = fs::create_dir(&base);
        made.with_context(|| {
            format!("cannot make the directory {}: make its parent, or mount what belongs there", base.display())
        })?;
    }
    let dir = crate::local::directory(&store);
    fs::create_dir_all(dir).with_context(|| format!("cannot make the directory {}", dir.display()))
}

/// Tells of a file that was shipped: of snapshots, or of each if `verbose`.
pub fn tell_shipped(shipped: &Shipped, verbose: bool) {
    if verbose || shipped.name.min == 1 {
        let name = shipped.name;
        let fields = [
            ("level_of_file", name.level.into()),
            ("txid", format!("{:016x}", name.max).into()),
            ("pages", shipped.pages.into()),
            ("bytes", shipped.bytes.into()),
        ];
        say(Level::Info, "shipped", &fields, &shipped.to_string());
    }
}
