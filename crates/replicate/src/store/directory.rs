//! Stores in a directory of a server, where a name is taken once and no file is replaced on a
//! condition. The owner's record has a number in its name, and the next one replaces it.

use super::{BATCHES, PROBE, SNAPSHOTS, UNFINISHED, Version};
use anyhow::{Context, Result, bail};

/// Records of owners that are kept.
const KEPT: u64 = 8;
/// Attempts to read the newest one, which another machine may be replacing.
const TRIES: u32 = 8;

/// The files of a store by their paths in it. The path of a directory is empty, or ends with a
/// slash.
pub(super) trait RemoteDirectory {
    /// Makes a directory, which may be there.
    fn make_dir(&self, dir: &str) -> Result<()>;
    /// Names in a directory, none if it is missing.
    fn names(&self, dir: &str) -> Result<Vec<String>>;
    /// Reads a small file, if it is there.
    fn read(&self, path: &str) -> Result<Option<Vec<u8>>>;
    /// Makes a file, whole. `false`: the name is taken, perhaps by an earlier attempt.
    fn make(&self, path: &str, bytes: &[u8]) -> Result<bool>;
    /// Removes a file, which may be gone.
    fn remove(&self, path: &str) -> Result<()>;
}

/// A path for a file that is to get the name `path`.
pub(super) fn unfinished(path: &str) -> Result<String> {
    let dir = path.rfind('/').and_then(|slash| path.get(..=slash)).unwrap_or_default();
    Ok(format!("{dir}{UNFINISHED}{:016x}", getrandom::u64().context("no random numbers")?))
}

/// Makes the directories, and tries whether a name is taken once.
pub(super) fn begin(of: &impl RemoteDirectory) -> Result<bool> {
    for dir in [String::new(), "ltx/".to_owned(), level_dir(BATCHES), level_dir(SNAPSHOTS)] {
        of.make_dir(&dir)?;
    }
    of.make(PROBE, b"1")?;
    Ok(!of.make(PROBE, b"2")?)
}

/// The directory of a level.
pub(super) fn level_dir(level: u8) -> String {
    format!("ltx/{level}/")
}

/// Makes the directory of a level that [`begin`] has not made.
pub(super) fn make_level(of: &impl RemoteDirectory, level: u8) -> Result<()> {
    if matches!(level, BATCHES | SNAPSHOTS) { Ok(()) } else { of.make_dir(&level_dir(level)) }
}

/// As [`super::Store::tidy`].
pub(super) fn tidy(of: &impl RemoteDirectory) -> Result<()> {
    for dir in (BATCHES..=SNAPSHOTS).map(level_dir).chain([String::new()]) {
        for name in of.names(&dir)?.into_iter().filter(|name| name.starts_with(UNFINISHED)) {
            of.remove(&format!("{dir}{name}"))?;
        }
    }
    Ok(())
}

fn name_of(number: u64) -> String {
    format!("owner-{number:016x}.json")
}

fn newest(of: &impl RemoteDirectory) -> Result<Option<u64>> {
    let numbers = of.names("")?.into_iter().filter_map(|name| {
        let digits = name.strip_prefix("owner-")?.strip_suffix(".json")?;
        u64::from_str_radix(digits, 16).ok().filter(|number| name_of(*number) == name)
    });
    Ok(numbers.max())
}

/// As [`super::Store::owner`].
pub(super) fn owner(of: &impl RemoteDirectory) -> Result<Option<(Vec<u8>, Version)>> {
    for _ in 0..TRIES {
        let Some(number) = newest(of)? else { return Ok(None) };
        if let Some(record) = of.read(&name_of(number))? {
            return Ok(Some((record, Version(number.to_string()))));
        }
    }
    bail!("the owner's record is replaced again and again")
}

/// As [`super::Store::set_owner`].
pub(super) fn set_owner(of: &impl RemoteDirectory, was: Option<&Version>, record: &[u8]) -> Result<bool> {
    let newest_now = newest(of)?;
    if newest_now.map(|number| number.to_string()) != was.map(|version| version.0.clone()) {
        return Ok(false);
    }
    let next = newest_now.unwrap_or(0).checked_add(1).context("there are no more numbers")?;
    // A number that was removed may have been taken again.
    if !of.make(&name_of(next), record)? || newest(of)? != Some(next) {
        return Ok(false);
    }
    if let Some(old) = next.checked_sub(KEPT).filter(|old| *old > 0) {
        of.remove(&name_of(old))?;
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use std::sync::Mutex;

    #[derive(Default)]
    struct Files(Mutex<BTreeMap<String, Vec<u8>>>);

    impl RemoteDirectory for Files {
        fn make_dir(&self, _dir: &str) -> Result<()> {
            Ok(())
        }

        fn names(&self, _dir: &str) -> Result<Vec<String>> {
            Ok(self.0.lock().unwrap().keys().cloned().collect())
        }

        fn read(&self, name: &str) -> Result<Option<Vec<u8>>> {
            Ok(self.0.lock().unwrap().get(name).cloned())
        }

        fn make(&self, name: &str, bytes: &[u8]) -> Result<bool> {
            Ok(self.0.lock().unwrap().insert(name.to_owned(), bytes.to_vec()).is_none())
        }

        fn remove(&self, name: &str) -> Result<()> {
            self.0.lock().unwrap().remove(name);
            Ok(())
        }
    }

    #[test]
    fn one_of_two_that_saw_the_same_owner_replaces_it() {
        let files = Files::default();
        assert!(owner(&files).unwrap().is_none());
        assert!(set_owner(&files, None, b"a").unwrap());
        assert!(!set_owner(&files, None, b"b").unwrap());
        let (record, version) = owner(&files).unwrap().unwrap();
        assert_eq!((record, version.0.as_str()), (b"a".to_vec(), "1"));
        assert!(set_owner(&files, Some(&version), b"b").unwrap());
        assert!(!set_owner(&files, Some(&version), b"c").unwrap());
        assert_eq!(owner(&files).unwrap().unwrap().0, b"b");
    }

    #[test]
    fn one_that_slept_takes_no_number_that_was_removed() {
        let files = Files::default();
        let mut versions = vec![None];
        for n in 0..20_u8 {
            let was = versions.last().unwrap();
            assert!(set_owner(&files, Option::as_ref(was), &[n]).unwrap());
            versions.push(owner(&files).unwrap().map(|(_, version)| version));
        }
        assert_eq!(files.0.lock().unwrap().len(), KEPT as usize);
        assert!(!set_owner(&files, versions[3].as_ref(), b"old").unwrap());
        // Made between its look and its attempt: it finds a newer one behind.
        assert!(files.make(&name_of(4), b"old").unwrap());
        assert_eq!(newest(&files).unwrap(), Some(20));
        assert_eq!(owner(&files).unwrap().unwrap().0, [19]);
    }
}
