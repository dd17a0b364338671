//! The processes of this machine. Where there is no `/proc`, a process is a number.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use super::system::clock_s;
use super::{FileId, host};
use crate::base::text::printable;

const PID_BITS: u32 = 22;
const NAMESPACE_BITS: u32 = 12;
const SECONDS_BITS: u32 = 30;
const _: () = assert!(PID_BITS + NAMESPACE_BITS + SECONDS_BITS == u64::BITS);

const COMMAND_BYTES_MAX: u64 = 4096;
const SHORT_CHARS: usize = 80;

/// Number and PID namespace of a process, and when it attached, as one shared word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessTag(pub u64);

impl ProcessTag {
    /// Not zero.
    pub const UNKNOWN: ProcessTag = ProcessTag(1);

    /// The calling process, now.
    pub fn this() -> ProcessTag {
        let pid = u64::from(std::process::id()) & mask(PID_BITS);
        let rest = (namespace() << SECONDS_BITS) | (clock_s() & mask(SECONDS_BITS));
        ProcessTag((pid << (NAMESPACE_BITS + SECONDS_BITS)) | rest)
    }

    /// In its own PID namespace; `None`: unknown.
    pub fn pid(self) -> Option<u32> {
        let pid = u32::try_from(self.0 >> (NAMESPACE_BITS + SECONDS_BITS)).unwrap_or(0);
        (pid != 0).then_some(pid)
    }

    /// Whether its number means the same process here.
    pub fn is_here(self) -> bool {
        (self.0 >> SECONDS_BITS) & mask(NAMESPACE_BITS) == namespace()
    }

    /// Seconds since it attached.
    pub fn age_s(self) -> u64 {
        clock_s().saturating_sub(self.0 & mask(SECONDS_BITS)) & mask(SECONDS_BITS)
    }

    /// For a message.
    pub fn name(self) -> String {
        match self.pid() {
            None => "another process".to_owned(),
            Some(pid) if self.is_here() => name(pid),
            Some(pid) => format!("process {pid} (cannot be looked at)"),
        }
    }
}

fn mask(bits: u32) -> u64 {
    (1 << bits) - 1
}

/// 0: unknown.
fn namespace() -> u64 {
    // Behind the number of the process that looked: a child of a fork may be in another one.
    static LOOKED: AtomicU64 = AtomicU64::new(0);
    let (pid, looked) = (u64::from(std::process::id()), LOOKED.load(Relaxed));
    if looked >> NAMESPACE_BITS == pid {
        return looked & mask(NAMESPACE_BITS);
    }
    let found = host::namespace().map_or(0, |found| found & mask(NAMESPACE_BITS));
    LOOKED.store((pid << NAMESPACE_BITS) | found, Relaxed);
    found
}

/// Whether a process goes on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ProcessLife {
    /// It runs, or waits.
    Running,
    /// SIGSTOP.
    Stopped,
    /// A debugger has stopped it.
    Traced,
    /// It is gone.
    Ended,
    /// Another user's or namespace's.
    #[default]
    Unknown,
}

impl ProcessLife {
    /// One word.
    pub fn word(self) -> &'static str {
        match self {
            ProcessLife::Running => "running",
            ProcessLife::Stopped => "stopped",
            ProcessLife::Traced => "traced",
            ProcessLife::Ended => "ended",
            ProcessLife::Unknown => "unknown",
        }
    }
}

/// The state of a process of this namespace.
pub fn life(pid: u32) -> ProcessLife {
    look_at(pid).0
}

/// And whether it waits for a device: its command line might do so, too.
fn look_at(pid: u32) -> (ProcessLife, bool) {
    let Ok(stat) = host::process_text(pid, "stat", 1024) else {
        return (known_life(pid), false);
    };
    let state = stat.iter().rposition(|b| *b == b')').and_then(|at| stat.get(at + 2));
    let life = match state {
        Some(b'T') => ProcessLife::Stopped,
        Some(b't') => ProcessLife::Traced,
        Some(b'Z' | b'X') => ProcessLife::Ended,
        Some(_) => ProcessLife::Running,
        None => ProcessLife::Unknown,
    };
    (life, state == Some(&b'D'))
}

/// Without `/proc`.
#[cfg(unix)]
fn known_life(pid: u32) -> ProcessLife {
    let pid = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw);
    match pid.map(rustix::process::test_kill_process) {
        Some(Err(rustix::io::Errno::SRCH)) => ProcessLife::Ended,
        _ => ProcessLife::Unknown,
    }
}
#[cfg(windows)]
use host::known_life;

/// Program and arguments, or the kernel's name; `None`: neither can be read.
pub fn command(pid: u32) -> Option<String> {
    let arguments = arguments(pid);
    (!arguments.is_empty()).then(|| arguments.join(" ")).or_else(|| comm(pid))
}

fn arguments(pid: u32) -> Vec<String> {
    let line = host::process_text(pid, "cmdline", COMMAND_BYTES_MAX).unwrap_or_default();
    let line = String::from_utf8_lossy(&line).into_owned();
    let line = line.trim_end_matches('\0');
    if line.is_empty() { Vec::new() } else { line.split('\0').map(str::to_owned).collect() }
}

fn comm(pid: u32) -> Option<String> {
    let name = host::process_text(pid, "comm", 64).ok()?;
    Some(String::from_utf8_lossy(&name).trim_end_matches('\n').to_owned())
}

/// The program and, unless it is an option, its first argument: others may hold secrets.
fn short_command(pid: u32, is_waiting: bool) -> Option<String> {
    let arguments = if is_waiting { Vec::new() } else { arguments(pid) };
    let Some((program, rest)) = arguments.split_first() else { return comm(pid).map(|comm| shown(&comm)) };
    let program = program.rsplit(['/', '\\']).next().unwrap_or(program);
    let first = rest.first().filter(|first| !first.starts_with('-'));
    Some(shown(&first.map_or(program.to_owned(), |first| format!("{program} {first}"))))
}

fn shown(command: &str) -> String {
    let text = printable(command);
    let mut short: String = text.chars().take(SHORT_CHARS).collect();
    if short.len() < text.len() {
        short.push('…');
    }
    short
}

/// A process of this namespace, for a message.
pub fn name(pid: u32) -> String {
    let (life, is_waiting) = look_at(pid);
    match (life, short_command(pid, is_waiting)) {
        (ProcessLife::Ended, _) => format!("process {pid} (which has ended)"),
        (_, None) => format!("process {pid} (cannot be looked at)"),
        (ProcessLife::Stopped, Some(command)) => format!("process {pid} ({command}), which is stopped (SIGSTOP)"),
        (ProcessLife::Traced, Some(command)) => format!("process {pid} ({command}), which a debugger has stopped"),
        (_, Some(command)) => format!("process {pid} ({command})"),
    }
}

/// A lock on a range of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldLock {
    /// Else shared.
    pub exclusive: bool,
    /// Its first byte.
    pub first: u64,
    /// Its last byte.
    pub last: u64,
}

/// A process that has one of several files open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileUser {
    /// In this namespace.
    pub pid: u32,
    /// Which of the files.
    pub file: usize,
    /// Its locks.
    pub locks: Vec<HeldLock>,
}

/// Those with `files` open or locked, as far as this user may look.
pub fn users_of(files: &[FileId]) -> Vec<FileUser> {
    host::users_of(files)
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(unix)]
    use std::os::unix::process::CommandExt;
    #[cfg(unix)]
    use std::process::{Child, Command, Stdio};

    #[cfg(unix)]
    struct Sleeper(Child);

    #[cfg(unix)]
    impl Sleeper {
        fn named(name: &str) -> Sleeper {
            let child = Command::new("sleep").arg0(name).arg("1000").stdin(Stdio::null()).spawn().unwrap();
            let sleeper = Sleeper(child);
            // Before `exec` it has this test's name, and behind it waits for the disk.
            let stat = || std::fs::read_to_string(format!("/proc/{}/stat", sleeper.0.id())).unwrap_or_default();
            let is_named = || command(sleeper.0.id()).is_some_and(|command| command.starts_with(name));
            while !is_named() || !stat().contains(") S ") {
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
            sleeper
        }
    }

    #[cfg(unix)]
    impl Drop for Sleeper {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    #[test]
    fn a_tag_names_this_process() {
        let tag = ProcessTag::this();
        assert_eq!((tag.pid(), tag.is_here()), (Some(std::process::id()), true));
        assert!(tag.age_s() < 60 && tag.name().starts_with(&format!("process {} (", std::process::id())), "{tag:?}");
        let elsewhere = ProcessTag(tag.0 ^ (1 << SECONDS_BITS));
        assert!(!elsewhere.is_here());
        assert_eq!(elsewhere.name(), format!("process {} (cannot be looked at)", std::process::id()));
        assert_eq!(ProcessTag(1).name(), "another process");
    }

    #[cfg(unix)]
    #[test]
    #[cfg_attr(any(feature = "portable", all(unix, not(target_os = "linux"))), ignore = "POSIX has no /proc")]
    fn a_hostile_name_stays_on_its_line() {
        let sleeper = Sleeper::named("a\n\u{1b}[2J\u{202e}b");
        let pid = sleeper.0.id();
        assert_eq!(name(pid), format!("process {pid} (a\\n\\u{{1b}}[2J\\u{{202e}}b 1000)"));
        assert_eq!(command(pid).unwrap(), "a\n\u{1b}[2J\u{202e}b 1000");
    }

    #[cfg(unix)]
    #[test]
    #[cfg_attr(any(feature = "portable", all(unix, not(target_os = "linux"))), ignore = "POSIX has no /proc")]
    fn options_and_arguments_are_not_in_a_message() {
        assert_eq!(shown(&"x".repeat(200)).chars().count(), SHORT_CHARS + 1);
        let mut sleeper =
            Command::new("sh").args(["-c", "read line; : --password=secret"]).stdin(Stdio::piped()).spawn().unwrap();
        while command(sleeper.id()).is_none_or(|command| !command.starts_with("sh")) {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        assert_eq!(name(sleeper.id()), format!("process {} (sh)", sleeper.id()));
        sleeper.kill().unwrap();
        sleeper.wait().unwrap();
    }

    #[cfg(unix)]
    #[test]
    #[cfg_attr(any(feature = "portable", all(unix, not(target_os = "linux"))), ignore = "POSIX has no /proc")]
    fn a_stopped_and_an_ended_process_are_said_so() {
        let mut sleeper = Sleeper::named("a");
        let pid = sleeper.0.id();
        assert_eq!(life(pid), ProcessLife::Running);
        let signal = |signal: &str| {
            assert!(Command::new("kill").args([signal, &pid.to_string()]).status().unwrap().success());
        };
        signal("-STOP");
        while life(pid) != ProcessLife::Stopped {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        assert!(name(pid).ends_with("(a 1000), which is stopped (SIGSTOP)"), "{}", name(pid));
        sleeper.0.kill().unwrap();
        while life(pid) != ProcessLife::Ended {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        sleeper.0.wait().unwrap();
        assert_eq!(life(pid), ProcessLife::Ended);
        assert_eq!(name(pid), format!("process {pid} (which has ended)"));
    }
}
