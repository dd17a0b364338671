//! Where files are kept, and what they are called.

mod file;
#[cfg(test)]
pub(crate) mod memory;
mod s3;

use anyhow::{Result, bail, ensure};
use percent_encoding::percent_decode_str;
use std::ffi::OsString;
use std::fmt;
use std::io::{Read, Write};
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

/// What the file of one batch, or of several that were merged, is called: level and transactions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Name {
    /// 0: batches as they were shipped; 1 to 8: merged ones; 9: snapshots.
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
/// What the record of the owner is called.
pub const OWNER: &str = "owner.json";

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ltx/{}/{:016x}-{:016x}.ltx", self.level, self.min, self.max)
    }
}

impl Name {
    /// A file called `name` among those of `level`; `None` if no LTX file is called so.
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
    /// What it is called.
    pub name: Name,
    /// When the state in it was read, in milliseconds since 1970.
    pub time_ms: i64,
    /// Its length.
    pub bytes: u64,
}

/// Which conditions a store keeps when it is asked to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conditions {
    /// It creates a file only where there is none.
    pub create: bool,
    /// It replaces the record of the owner only if that is the one that was read.
    pub replace: bool,
}

/// Which record of the owner was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version(pub String);

/// Writes the contents of a file.
pub type Fill<'a> = &'a mut dyn FnMut(&mut dyn Write) -> Result<()>;

/// A place for the files of one database.
pub trait Store: Send + Sync {
    /// Prepares to write into it, and tries what it answers to conditions. A second process of the same `node` is refused
    /// where it is seen, until the store is dropped.
    fn begin(&mut self, node: u64) -> Result<Conditions>;
    /// Removes what a process that died had begun to write. For the owner alone.
    fn tidy(&self) -> Result<()> {
        Ok(())
    }
    /// The record that says who may write, and which one it is.
    fn owner(&self) -> Result<Option<(Vec<u8>, Version)>>;
    /// Replaces that record, durably, if it is still `was`, or makes it if there was none. `true`: it did. `false`: it was
    /// another, or this one since a request that failed before. After an error it may have or not, also later.
    fn set_owner(&self, was: Option<&Version>, record: &[u8]) -> Result<bool>;
    /// The files of a level, in the order of their names.
    fn list(&self, level: u8) -> Result<Vec<Entry>>;
    /// Where a listing does not tell exact times: those of `entries`, in the order of their names, as far as it takes to tell
    /// which are of before `before_ms`.
    fn tell_times(&self, _entries: &mut [Entry], _before_ms: i64) -> Result<()> {
        Ok(())
    }
    /// Whether there is a file of this name.
    fn has(&self, name: Name) -> Result<bool>;
    /// Reads a file.
    fn open(&self, name: Name) -> Result<Box<dyn Read>>;
    /// Reads `bytes` bytes of a file from `offset` on, or less where it ends.
    fn read_part(&self, name: Name, offset: u64, bytes: u64) -> Result<Vec<u8>>;
    /// Makes a file whole, durable, and with this time, or not at all. `false` if there is one of this name.
    /// After an error there may be a file or none.
    fn create(&self, name: Name, time_ms: i64, fill: Fill<'_>) -> Result<bool>;
    /// Removes a file, which may be gone already. After an error it may be there or not.
    fn remove(&self, name: Name) -> Result<()>;
}

/// The store that `url` names. Looks at nothing yet.
pub fn open(url: &str) -> Result<Box<dyn Store>> {
    const EXAMPLE: &str = "name a directory as file:///backup/app, or a bucket as s3://bucket/app";
    let Some((scheme, rest)) = url.split_once("://") else { bail!("{url} is no URL: {EXAMPLE}") };
    if scheme == "s3" {
        return Ok(Box::new(s3::S3Store::new(url)?));
    }
    #[cfg(test)]
    if scheme == "memory" {
        return Ok(Box::new(memory::named(rest)?));
    }
    ensure!(scheme == "file", "stores of the kind {scheme}:// are not supported: {EXAMPLE}");
    ensure!(!rest.contains(['?', '#']), "{url} has a ? or a #: in a name, write %3F or %23");
    let path = rest.strip_prefix("localhost").unwrap_or(rest);
    let path = PathBuf::from(OsString::from_vec(percent_decode_str(path).collect()));
    ensure!(path.is_absolute(), "{url} names no directory of this machine: {EXAMPLE}");
    Ok(Box::new(file::FileStore::new(path)))
}

/// All files that make states, of all levels.
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
    fn urls() {
        assert!(open("file:///tmp/a%20b").is_ok());
        assert!(open("file://localhost/tmp/a").is_ok());
        for wrong in ["/tmp/a", "file://host/a", "file:///a?b", "http://x/a"] {
            let error = open(wrong).err().map(|e| format!("{e:#}")).unwrap_or_default();
            assert!(error.contains("file:///backup/app") || error.contains("%3F"), "{wrong}: {error}");
        }
    }
}
