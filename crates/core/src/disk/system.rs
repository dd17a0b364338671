//! The operating system besides files, for one list of ports (`docs/platforms.md`).

use std::cell::Cell;
use std::ffi::OsStr;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use super::host;
use crate::base::clock::{self, Instant};

/// Sleeps until another process [wakes](wake) waiters at `word`, `nap` at most; not if `word` is no
/// longer `seen`. May return early: the caller checks its condition.
pub fn wait(word: &AtomicU32, seen: u32, nap: Duration) {
    if clock::is_scheduled() {
        return clock::wait_until(Instant::now() + nap);
    }
    host::wait(word, seen, nap);
}

/// One waiter, or all, after a change of `word`.
pub fn wake(word: &AtomicU32, all: bool) {
    host::wake(word, all);
}

/// Monotonic, for all processes.
pub fn clock() -> Duration {
    clock::scheduled().unwrap_or_else(host::clock)
}

/// The same clock in microseconds.
pub fn clock_us() -> u64 {
    clock().as_micros() as u64
}

/// The same clock as of its last tick, 10 ms ago at most: a look costs a quarter.
pub fn clock_rough() -> Duration {
    clock::scheduled().unwrap_or_else(host::clock_rough)
}

/// The same clock in whole seconds.
pub fn clock_s() -> u64 {
    clock_rough().as_secs()
}

/// Of the calling thread; `None` if unknown.
pub fn processor() -> Option<usize> {
    if clock::is_scheduled() { None } else { host::processor() }
}

/// A thread, if it has a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Task(Option<u32>);

impl Task {
    /// The calling thread.
    pub fn current() -> Task {
        thread_local!(static TASK: Cell<Option<u32>> = const { Cell::new(None) });
        let known = TASK.get().or_else(host::thread_number);
        TASK.set(known);
        Task(known)
    }

    /// Ready to run, and processor time in ticks of 10 ms; `None` if unknown.
    pub fn look(self) -> Option<(bool, u64)> {
        self.0.filter(|_| !clock::is_scheduled()).and_then(host::thread_state)
    }
}

/// A random number.
pub fn random() -> io::Result<u64> {
    clock::random().map_or_else(|| getrandom::u64().map_err(|e| io::Error::other(e.to_string())), Ok)
}

/// Any but the separator and zero; on Windows UTF-8.
pub fn bytes_of(name: &OsStr) -> &[u8] {
    name.as_encoded_bytes()
}

/// From bytes.
#[cfg(unix)]
pub fn name_of(bytes: &[u8]) -> &OsStr {
    std::os::unix::ffi::OsStrExt::from_bytes(bytes)
}

/// From UTF-8; else a name that no file has.
#[cfg(windows)]
pub fn name_of(bytes: &[u8]) -> &OsStr {
    OsStr::new(std::str::from_utf8(bytes).unwrap_or("?"))
}

/// From bytes, as a name.
pub fn path_of(bytes: &[u8]) -> PathBuf {
    PathBuf::from(name_of(bytes))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    const SYSTEM: [&str; 7] = ["rustix", "nix::", "libc", "std::os::", "getrandom", "\"/proc", "\"/sys"];

    const TIME: [&str; 4] = ["time::Instant", "Instant}", "thread::sleep", "thread::yield_now"];

    /// The lines of `dir` that have one of `names`.
    fn lines_with(names: &[&str], dir: &Path, found: &mut Vec<String>) {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                lines_with(names, &path, found);
                continue;
            }
            let text = fs::read_to_string(&path).unwrap();
            // Tests behind the code may use them.
            let code = text.split("\nmod tests {").next().unwrap_or_default();
            let lines = code.lines().filter(|line| !line.trim_start().starts_with("//"));
            let lines = lines.filter(|line| names.iter().any(|name| line.contains(name)));
            found.extend(lines.map(|line| format!("{}: {line}", path.display())));
        }
    }

    fn src() -> std::path::PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
    }

    #[test]
    fn only_the_disk_knows_the_operating_system() {
        let (mut all, mut disk) = (Vec::new(), Vec::new());
        lines_with(&SYSTEM, &src(), &mut all);
        lines_with(&SYSTEM, &src().join("disk"), &mut disk);
        assert!(disk.len() > 20, "the disk does: {disk:?}");
        let elsewhere: Vec<_> = all.iter().filter(|line| !disk.contains(line)).collect();
        assert!(elsewhere.is_empty(), "{elsewhere:#?}");
    }

    /// Else a schedule would wait for it.
    #[test]
    fn time_passes_in_one_place() {
        let mut all = Vec::new();
        lines_with(&TIME, &src(), &mut all);
        let knows = |line: &&String| ["clock.rs", "schedule.rs", "_tests.rs"].iter().any(|f| line.contains(f));
        assert!(all.iter().any(|line| knows(&line)));
        all.retain(|line| !knows(&line) && !line.contains("base::clock::"));
        assert!(all.is_empty(), "{all:#?}");
    }
}
