//! How a command ends at SIGINT and SIGTERM: within a second, even while it waits.
//!
//! - One that does one thing, or has not begun: removes its temporary files, and ends with status
//!   130.
//! - One that goes on, once it has begun ([`finish_at_signals`]): finishes its work while that
//!   moves, and else ends with status 1.
//!
//! A second signal ends the process at once.

use crate::host::kill_self;
use crate::local::remove_passing;
use crate::report::{Level, say};
use anyhow::{Context, Result};
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::exit;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// A shell's status for SIGINT.
const BY_SIGNAL: i32 = 130;
/// Work that stands still for so long is given up.
const STILL: Duration = Duration::from_millis(700);
/// The same while a thread is in a call that no signal ends, such as a flush by a slow disk.
const STILL_ON_DISK: Duration = Duration::from_secs(5);
/// Work that moves is given up after this time, too.
const FINISH: Duration = Duration::from_secs(30);
/// Time for the last message.
const LAST: Duration = Duration::from_millis(200);
const REMOVE: Duration = Duration::from_millis(800);

static ENDING: AtomicBool = AtomicBool::new(false);
static MOVED: AtomicU64 = AtomicU64::new(0);
static FINISHES: Mutex<Option<Sender<()>>> = Mutex::new(None);

/// Notes progress: a page was read, bytes have passed, a request begins.
pub fn moved() {
    MOVED.fetch_add(1, SeqCst);
}

/// Whether a signal came: begin and repeat nothing.
pub fn is_ending() -> bool {
    ENDING.load(SeqCst)
}

/// From now on a signal ends the process.
pub fn end_at_signals() -> Result<()> {
    ctrlc::set_handler(|| {
        if ENDING.swap(true, SeqCst) {
            kill_self();
        }
        let finishes = FINISHES.lock().unwrap_or_else(PoisonError::into_inner).take();
        // This thread must receive the second signal.
        let started = thread::Builder::new().spawn(|| match finishes {
            None => end_by(REMOVE, BY_SIGNAL, remove_passing),
            Some(finishes) => {
                // The work may have ended by itself.
                let _ = finishes.send(());
                give_up_in_time();
            }
        });
        if started.is_err() {
            kill_self();
        }
    })
    .context("cannot wait for signals")
}

/// From now on the first signal is sent to this channel, and the process must end by itself in
/// time.
pub fn finish_at_signals() -> Receiver<()> {
    let (finishes, told) = channel();
    *FINISHES.lock().unwrap_or_else(PoisonError::into_inner) = Some(finishes);
    told
}

/// The process must end by itself in time from now on, as after a signal.
pub fn finish_in_time() {
    ENDING.store(true, SeqCst);
    let _started = thread::Builder::new().spawn(give_up_in_time);
}

fn give_up_in_time() {
    wait_while_it_moves();
    let message = "it did not end in time after a signal: its work is given up, and the next start goes on";
    end_by(LAST, 1, || say(Level::Error, "failed", &[], message));
}

fn wait_while_it_moves() {
    let begun = Instant::now();
    let (mut since, mut moved, mut before) = (begun, begun, MOVED.load(SeqCst));
    while begun.elapsed() < FINISH && since.elapsed() < STILL {
        thread::sleep(Duration::from_millis(20));
        let now = MOVED.load(SeqCst);
        if now != before {
            (since, moved, before) = (Instant::now(), Instant::now(), now);
        } else if moved.elapsed() < STILL_ON_DISK && waits_for_disk(Path::new("/proc/self/task")) {
            since = Instant::now();
        }
    }
}

/// Whether one of these threads is in a call that no signal ends (state D). Such a process does not
/// end by a signal either.
fn waits_for_disk(threads: &Path) -> bool {
    let state = |thread: PathBuf| {
        let stat = fs::read_to_string(thread.join("stat")).ok()?;
        // The name before it may have any characters.
        stat.rsplit_once(')')?.1.split_whitespace().next().map(|state| state == "D")
    };
    let all = fs::read_dir(threads).into_iter().flatten().flatten();
    all.filter_map(|thread| state(thread.path())).any(|is| is)
}

/// Ends the process after `last`, or after `within` if `last` takes longer.
fn end_by(within: Duration, status: i32, last: impl FnOnce()) {
    let _started = thread::Builder::new().spawn(move || {
        thread::sleep(within);
        kill_self();
    });
    last();
    exit(status);
}

/// A reader that notes progress.
pub struct Moving<R>(pub R);

impl<R: Read> Read for Moving<R> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        moved();
        self.0.read(to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_waits_for_the_disk_is_seen() {
        let dir = tempfile::tempdir().unwrap();
        let thread = |number: &str, stat: &str| {
            fs::create_dir_all(dir.path().join(number)).unwrap();
            fs::write(dir.path().join(number).join("stat"), stat).unwrap();
        };
        thread("7", "7 (a) D (b) S 1 7 7 0 -1");
        thread("8", "8 (x) R 1 7 7 0 -1");
        assert!(!waits_for_disk(dir.path()) && !waits_for_disk(Path::new("/not/there")));
        thread("9", "9 (y) D 1 7 7 0 -1");
        assert!(waits_for_disk(dir.path()));
    }
}
