//! Places and names of files.

#[cfg(any(feature = "sftp", feature = "webdav"))]
mod directory;
mod file;
mod http;
mod keys;
#[cfg(test)]
pub(crate) mod memory;
#[cfg(feature = "nats")]
mod nats;
#[cfg(feature = "objects")]
mod objects;
#[cfg(any(feature = "nats", feature = "objects", feature = "sftp"))]
mod runtime;
mod s3;
#[cfg(feature = "sftp")]
mod sftp;
mod spool;
#[cfg(feature = "webdav")]
mod webdav;

use crate::host;
use crate::secrets::hide_user;
use anyhow::{Context, Result, bail, ensure};
use percent_encoding::percent_decode_str;
use std::fmt;
use std::io::{self, Read, Write};
use std::path::PathBuf;
use std::time::Duration;

/// The name of a batch or of merged batches: level and transactions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Name {
    /// 0: batches; 1 to 8: merged files; 9: snapshots.
    pub level: u8,
    /// First transaction.
    pub min: u64,
    /// Last transaction.
    pub max: u64,
}

/// Batches as they were shipped.
pub const BATCHES: u8 = 0;
/// Whole databases.
pub const SNAPSHOTS: u8 = 9;
/// Name of the owner's record.
pub const OWNER: &str = "owner.json";

/// An object that tries whether the server heeds conditions.
const PROBE: &str = "onewrite-probe";
/// Prefix of a file that is not whole yet.
const UNFINISHED: &str = ".onewrite-unfinished-";
/// Longest record of the owner.
const OWNER_BYTES_MAX: u64 = 64 << 10;
/// Most files of a level: half a year of one batch a second without merging.
const FILES_MAX: usize = 1 << 24;

/// Ends an endless listing, which would take all memory.
fn check_count(files: usize) -> Result<()> {
    ensure!(files <= FILES_MAX, "it tells of more than {FILES_MAX} files");
    Ok(())
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ltx/{}/{:016x}-{:016x}.ltx", self.level, self.min, self.max)
    }
}

impl Name {
    /// Parses the name of a file of `level`; `None` if it is no name of an LTX file.
    pub fn parse(level: u8, name: &str) -> Option<Name> {
        let number = |digits: &str| {
            let plain = digits.len() == 16 && digits.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
            plain.then(|| u64::from_str_radix(digits, 16).ok()).flatten()
        };
        let (min, max) = name.strip_suffix(".ltx")?.split_once('-')?;
        let name = Name { level, min: number(min)?, max: number(max)? };
        (name.min > 0 && name.min <= name.max).then_some(name)
    }
}

/// A file of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Entry {
    /// Its name.
    pub name: Name,
    /// When the state was read, in milliseconds since 1970, as listed: perhaps in whole seconds, or
    /// the later time at which the file was made. The file's header has the exact time.
    pub time_ms: i64,
    /// Its length.
    pub bytes: u64,
}

/// The conditions that a store heeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conditions {
    /// Creates a file only where there is none.
    pub create: bool,
    /// Replaces the owner's record only if it is the one that was read.
    pub replace: bool,
}

/// Identifies the owner's record that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version(pub String);

/// The store does not answer now, or says that it cannot: nothing is wrong with the request.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the store is away")]
pub struct Away;

/// Whether the store, or a disk on the way to it, cannot now: a file that was to be made is
/// missing, or comes late.
pub fn is_away_or_full(error: &anyhow::Error) -> bool {
    let is_full = |e: &io::Error| matches!(e.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded);
    error.is::<Away>() || error.chain().any(|e| e.downcast_ref().is_some_and(is_full))
}

/// Writes the contents of a file.
pub type Fill<'a> = &'a mut dyn FnMut(&mut dyn Write) -> Result<()>;

/// A place for the files of one database.
pub trait Store: Send + Sync {
    /// Commits wait for the store, so long at most: a request without an answer is sent again well
    /// before that.
    fn hurry(&mut self, _patience: Duration) {}
    /// Prepares to write, and tries whether conditions are heeded. Refuses a second process of the
    /// same `node`, where it can, until the store is dropped.
    fn begin(&mut self, node: u64) -> Result<Conditions>;
    /// Removes unfinished files of dead processes. For the owner alone.
    fn tidy(&self) -> Result<()> {
        Ok(())
    }
    /// The owner's record, and its version.
    fn owner(&self) -> Result<Option<(Vec<u8>, Version)>>;
    /// Replaces the record, durably, if it is still `was`; `None`: makes the first one. `false`:
    /// the record is another, or this one by an earlier attempt. After an error it may be replaced,
    /// now or later.
    fn set_owner(&self, was: Option<&Version>, record: &[u8]) -> Result<bool>;
    /// The files of a level, in the order of their names.
    fn list(&self, level: u8) -> Result<Vec<Entry>> {
        self.list_from(level, 0)
    }
    /// The same, perhaps without files that begin before transaction `first`.
    fn list_from(&self, level: u8, first: u64) -> Result<Vec<Entry>>;
    /// Whether there is a file of this name.
    fn has(&self, name: Name) -> Result<bool>;
    /// Reads a file.
    fn open(&self, name: Name) -> Result<Box<dyn Read>>;
    /// Reads `bytes` bytes of a file from `offset` on, fewer at its end.
    fn read_part(&self, name: Name, offset: u64, bytes: u64) -> Result<Vec<u8>>;
    /// Makes a file whole, durable, and with this time, or not at all. `false`: the name is taken.
    /// After an error the file may be there.
    fn create(&self, name: Name, time_ms: i64, fill: Fill<'_>) -> Result<bool>;
    /// Removes a file, which may be gone already. After an error it may be there.
    fn remove(&self, name: Name) -> Result<()>;
}

/// Keys of a bucket, as a configuration names them.
#[derive(Clone, PartialEq, Eq)]
pub enum StoreKeys {
    /// An access key and its secret; Azure's account and its key.
    Pair {
        /// The access key.
        id: String,
        /// Its secret.
        secret: String,
    },
    /// Azure's shared access signature.
    Token(String),
}

impl fmt::Debug for StoreKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StoreKeys::Pair { id, .. } => f.debug_struct("StoreKeys").field("id", id).finish_non_exhaustive(),
            StoreKeys::Token(_) => f.write_str("StoreKeys::Token"),
        }
    }
}

/// The store at `url`, with keys from where AWS's tools take them. Sends it no request.
pub fn open(url: &str) -> Result<Box<dyn Store>> {
    open_with(url, None)
}

/// The store at `url`, with these keys if some are given. Sends it no request.
pub fn open_with(url: &str, keys: Option<&StoreKeys>) -> Result<Box<dyn Store>> {
    const OTHERS: [&str; 6] = ["gs", "abs", "nats", "sftp", "webdav", "webdavs"];
    const EXAMPLE: &str = "name a directory as file:///backup/app, or a bucket as s3://bucket/app, gs://bucket/app or \
                           abs://account@container/app, or a server as sftp://user@host/app, \
                           webdavs://user@host/app or nats://host/bucket";
    hide_user(url);
    let Some((scheme, rest)) = url.split_once("://") else {
        // A password may stand before it.
        let shown = url.rsplit('@').next().unwrap_or_default();
        bail!("{shown} is no URL: {EXAMPLE}")
    };
    match scheme {
        "s3" => return Ok(Box::new(s3::S3Store::new(url, keys)?)),
        #[cfg(feature = "objects")]
        "gs" => return Ok(Box::new(objects::Objects::google(url)?)),
        #[cfg(feature = "nats")]
        "nats" => return Ok(Box::new(nats::Nats::new(url)?)),
        #[cfg(feature = "sftp")]
        "sftp" => return Ok(Box::new(sftp::Sftp::new(url)?)),
        #[cfg(feature = "webdav")]
        "webdav" | "webdavs" => return Ok(Box::new(webdav::WebDav::new(url)?)),
        #[cfg(feature = "objects")]
        "abs" => return Ok(Box::new(objects::Objects::azure(url, keys)?)),
        _ if OTHERS.contains(&scheme) => {
            bail!(
                "this program was built without stores of the kind {scheme}://: docs/replication.md names their features"
            )
        }
        _ => {}
    }
    #[cfg(test)]
    if scheme == "memory" {
        return Ok(Box::new(memory::named(rest)?));
    }
    ensure!(scheme == "file", "stores of the kind {scheme}:// are not supported: {EXAMPLE}");
    ensure!(!rest.contains(['?', '#']), "{url} has a ? or a #: in a name, write %3F or %23");
    let path = path_of(url).filter(|path| path.is_absolute());
    let path = path.with_context(|| format!("{url} names no directory of this machine: {EXAMPLE}"))?;
    Ok(Box::new(file::FileStore::new(path)))
}

/// The path in a URL of the kind file://.
pub fn path_of(url: &str) -> Option<PathBuf> {
    let rest = url.strip_prefix("file://")?;
    let path = rest.strip_prefix("localhost").unwrap_or(rest);
    Some(host::path_of_url(percent_decode_str(path).collect()))
}

/// The files of all levels.
pub fn list_all(store: &dyn Store) -> Result<Vec<Entry>> {
    let mut all = Vec::new();
    for level in BATCHES..=SNAPSHOTS {
        all.extend(store.list(level)?);
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_litestreams() {
        let name = Name { level: 9, min: 1, max: 0xab };
        assert_eq!(name.to_string(), "ltx/9/0000000000000001-00000000000000ab.ltx");
        assert_eq!(Name::parse(9, "0000000000000001-00000000000000ab.ltx"), Some(name));
        for other in [
            "0000000000000001-00000000000000ab.ltx.tmp",
            "0000000000000001-00000000000000AB.ltx",
            "+000000000000001-00000000000000ab.ltx",
            "0000000000000000-00000000000000ab.ltx",
            "0000000000000002-0000000000000001.ltx",
            "1-2.ltx",
            "",
        ] {
            assert_eq!(Name::parse(9, other), None, "{other}");
        }
    }

    #[test]
    fn a_full_disk_passes_as_an_absence_does() {
        let full = || anyhow::Error::from(io::Error::from(io::ErrorKind::StorageFull)).context("cannot write a");
        assert!(is_away_or_full(&full()) && is_away_or_full(&anyhow::anyhow!("no answer").context(Away).context("b")));
        assert!(!is_away_or_full(&anyhow::Error::from(io::Error::from(io::ErrorKind::PermissionDenied)).context("c")));
    }

    #[test]
    fn urls() {
        let drive = if cfg!(windows) { "/C:" } else { "" };
        assert!(open(&format!("file://{drive}/tmp/a%20b")).is_ok());
        assert!(open(&format!("file://localhost{drive}/tmp/a")).is_ok());
        for wrong in ["/tmp/a", "file://host/a", "file:///a?b", "http://x/a"] {
            let error = open(wrong).err().map(|e| format!("{e:#}")).unwrap_or_default();
            assert!(error.contains("file:///backup/app") || error.contains("%3F"), "{wrong}: {error}");
        }
        #[cfg(all(feature = "objects", feature = "webdav"))]
        for (wrong, word) in [
            ("gs:///a", "gs://bucket/path"),
            ("gs://me@bucket/a", "has a user"),
            ("gs://bucket/a?region=x", "the parameter there is, is endpoint"),
            ("gs://bucket:1/a", "has a port"),
            ("gs://bucket/a//b", "no usable path"),
            ("webdav://h", "names no directory"),
            ("webdav:///a", "names no server"),
            ("webdavs://h/a?x=1", "has parameters"),
            ("abs://me:secret@box/a", "belong into the environment"),
            ("abs://me@box/a?endpoint=http://u:p@h", "belong into the environment"),
        ] {
            let error = open(wrong).err().map(|e| format!("{e:#}")).unwrap_or_default();
            assert!(error.contains(word), "{wrong}: {error}");
        }
    }
}
