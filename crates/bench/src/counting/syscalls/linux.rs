//! Counting the write and the sync system calls of an engine, and, for the card, those that wake
//! threads.
//!
//! Each section is done once more, in a child process that this one traces (ptrace). Every call
//! between the child's two marks is counted at the kernel's door. That is slow, so nothing is timed
//! there. But it sees every engine alike, with any call and from any thread, and needs no
//! privileges and no help from the engine. Where tracing is forbidden, the columns say so.

use super::Calls;
use crate::numbers::measure::INTERRUPTED;
use anyhow::{Context, Result};
use nix::libc;
use nix::sys::ptrace;
use nix::sys::signal::{Signal, kill, raise};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use std::fs;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::process::{Command, Stdio};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// The card's words for the two columns.
pub const METHOD: &str = "counted with ptrace in an extra, untimed section per engine and workload; a write that is \
                          also a flush (RWF_DSYNC, O_DSYNC) counts as a write and as a sync";

/// In the child: a signal that only the tracer sees.
pub fn mark() -> Result<()> {
    raise(Signal::SIGUSR1).context("marking a transaction")
}

/// In the child, before anything else: lets the parent trace, and waits until it does.
pub fn offer_to_be_traced() -> Result<()> {
    ptrace::traceme().context("tracing is not allowed here")?;
    raise(Signal::SIGSTOP).context("waiting for the tracer")
}

/// Runs `child` (this program, told to do one section) and counts. The child prints the number of
/// its transactions.
pub fn count(child: Command) -> Result<Calls, String> {
    count_within(child, Duration::MAX)?.ok_or_else(|| "it takes too long".to_owned())
}

/// The same; `None` if it took longer than `limit`.
pub fn count_within(child: Command, limit: Duration) -> Result<Option<Calls>, String> {
    let mut calls = Calls::default();
    let mut begun = None;
    let mut is_over = false;
    let said = follow(child, Before::Stopping, |pid| {
        is_over = begun.get_or_insert_with(Instant::now).elapsed() > limit;
        if !is_over {
            look(pid, &mut calls);
        }
        !is_over
    })?;
    if is_over {
        return Ok(None);
    }
    calls.transactions = said.0.trim().parse().map_err(|_| format!("the traced section failed: {}", said.1.trim()))?;
    Ok(Some(calls))
}

/// Runs `child` and kills it when it is about to make this write call, counted from 1, between its
/// marks. Returns how many it made or was about to make.
pub fn kill_before_write(child: Command, number: Option<u64>) -> Result<u64, String> {
    let mut writes = 0;
    let said = follow(child, Before::Free, |pid| {
        writes += u64::from(is_write(pid));
        number != Some(writes)
    })?;
    match number {
        Some(number) if writes < number => Err(format!("the traced section ended early: {}", said.1.trim())),
        _ => Ok(writes),
    }
}

/// Runs `child`, and shows each thread that is about to make a call between the marks to `seen`.
/// Kills it if that returns false. Returns the output of `child`.
fn follow(mut child: Command, before: Before, seen: impl FnMut(Pid) -> bool) -> Result<(String, String), String> {
    if !cfg!(target_env = "gnu") {
        return Err("this build, not being for glibc, cannot trace".to_owned());
    }
    let spawned = child.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut child = spawned.map_err(|e| format!("no child process to trace: {e}"))?;
    let pid = Pid::from_raw(child.id() as libc::pid_t);
    let traced = trace(pid, before, seen);
    let mut said = (String::new(), String::new());
    if traced.is_err() {
        let _ = child.kill();
        let _ = child.wait();
    }
    // The tracer has reaped the child; the pipes hold its few lines.
    if let Some(mut out) = child.stdout.take() {
        let _ = out.read_to_string(&mut said.0);
    }
    if let Some(mut err) = child.stderr.take() {
        let _ = err.read_to_string(&mut said.1);
    }
    traced.map_err(|e| if said.1.is_empty() { e } else { said.1.trim().to_owned() })?;
    Ok(said)
}

/// The treatment of calls before the first mark.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Before {
    /// They stop: one that runs on across the mark must stop at its next call.
    Stopping,
    /// They run on, at their full speed: only the calls of the thread that makes the mark are of
    /// interest.
    Free,
}

/// Follows every thread of `main` until it exits.
fn trace(main: Pid, before: Before, mut seen: impl FnMut(Pid) -> bool) -> Result<(), String> {
    let mut counting = false;
    let mut set_up = false;
    loop {
        let status = match waitpid(None, Some(WaitPidFlag::__WALL)) {
            Err(nix::Error::EINTR) => continue,
            other => other.map_err(|e| format!("tracing: {e}"))?,
        };
        let (pid, signal) = match status {
            WaitStatus::Exited(pid, _) | WaitStatus::Signaled(pid, ..) if pid == main => {
                return if set_up { Ok(()) } else { Err("tracing is not allowed here".to_owned()) };
            }
            WaitStatus::Stopped(pid, Signal::SIGSTOP) if !set_up => {
                use ptrace::Options;
                let options =
                    Options::PTRACE_O_TRACESYSGOOD | Options::PTRACE_O_TRACECLONE | Options::PTRACE_O_EXITKILL;
                ptrace::setoptions(pid, options).map_err(|e| format!("tracing: {e}"))?;
                set_up = true;
                (pid, None)
            }
            WaitStatus::Stopped(pid, Signal::SIGUSR1) => {
                counting = !counting;
                (pid, None)
            }
            // A new thread starts stopped.
            WaitStatus::Stopped(pid, Signal::SIGSTOP) => (pid, None),
            WaitStatus::Stopped(pid, signal) => (pid, Some(signal)),
            WaitStatus::PtraceSyscall(pid) => {
                if counting && entering(pid) && !seen(pid) {
                    kill(main, Signal::SIGKILL).map_err(|e| format!("killing: {e}"))?;
                    continue;
                }
                (pid, None)
            }
            WaitStatus::PtraceEvent(pid, ..) => (pid, None),
            _ => continue,
        };
        if INTERRUPTED.load(Ordering::Relaxed) {
            return Err("interrupted".to_owned());
        }
        let resumed = if counting || before == Before::Stopping {
            ptrace::syscall(pid, signal)
        } else {
            ptrace::cont(pid, signal)
        };
        match resumed {
            Ok(()) | Err(nix::Error::ESRCH) => {}
            Err(e) => return Err(format!("tracing: {e}")),
        }
    }
}

/// Whether the thread stopped on its way into the kernel rather than out.
#[cfg(target_env = "gnu")]
fn entering(pid: Pid) -> bool {
    ptrace::syscall_info(pid).is_ok_and(|info| info.op == libc::PTRACE_SYSCALL_INFO_ENTRY)
}

#[cfg(not(target_env = "gnu"))]
fn entering(_: Pid) -> bool {
    false
}

/// Whether the call the thread is about to make writes.
fn is_write(pid: Pid) -> bool {
    let call = fs::read_to_string(format!("/proc/{pid}/syscall")).ok().and_then(|s| parse(&s));
    let writes = |(n, _, kind): &(libc::c_long, &str, SyscallKind)| {
        call.is_some_and(|(number, _)| *n == number) && matches!(kind, SyscallKind::Write | SyscallKind::WriteWithFlags)
    };
    CALLS.iter().any(writes)
}

/// Counts the call the thread is about to make.
fn look(pid: Pid, calls: &mut Calls) {
    let Some((number, args)) = fs::read_to_string(format!("/proc/{pid}/syscall")).ok().and_then(|s| parse(&s)) else {
        return;
    };
    let Some((name, kind)) = CALLS.iter().find(|(n, ..)| *n == number).map(|(_, name, kind)| (*name, *kind)) else {
        return;
    };
    let also_flushes = match kind {
        SyscallKind::Sync => true,
        SyscallKind::Write => opened_dsync(pid, args[0]),
        SyscallKind::WriteWithFlags => {
            args[5] & (libc::RWF_DSYNC | libc::RWF_SYNC) as u64 != 0 || opened_dsync(pid, args[0])
        }
        SyscallKind::Msync => args[2] & libc::MS_SYNC as u64 != 0,
        // Waiting for a wake is not counted.
        SyscallKind::Futex if args[1] & libc::FUTEX_CMD_MASK as u64 == libc::FUTEX_WAKE as u64 => false,
        SyscallKind::Futex => return,
    };
    calls.writes += u64::from(matches!(kind, SyscallKind::Write | SyscallKind::WriteWithFlags));
    calls.syncs += u64::from(also_flushes);
    if matches!(kind, SyscallKind::Write | SyscallKind::WriteWithFlags) {
        let bytes = bytes(pid, name, args);
        if is_log(pid, args[0]) { calls.log_bytes += bytes } else { calls.database_bytes += bytes }
    }
    let name = match kind {
        SyscallKind::Write | SyscallKind::WriteWithFlags if also_flushes => format!("{name} (flushing)"),
        _ => name.to_owned(),
    };
    *calls.by_name.entry(name).or_default() += 1;
}

/// `/proc/PID/syscall`: the call's number in decimal, its six arguments in hexadecimal, two
/// registers.
fn parse(text: &str) -> Option<(libc::c_long, [u64; 6])> {
    let mut words = text.split_ascii_whitespace();
    let number = words.next()?.parse().ok()?;
    let mut args = [0; 6];
    for arg in &mut args {
        *arg = u64::from_str_radix(words.next()?.strip_prefix("0x")?, 16).ok()?;
    }
    Some((number, args))
}

/// How much a write call writes.
fn bytes(pid: Pid, name: &str, args: [u64; 6]) -> u64 {
    if !name.contains('v') {
        return args[2];
    }
    // An array of addresses and lengths, in the caller's memory.
    const WORD: usize = size_of::<usize>();
    let mut vectors = vec![0; args[2].min(1024) as usize * 2 * WORD];
    let read = fs::File::open(format!("/proc/{pid}/mem")).and_then(|m| m.read_exact_at(&mut vectors, args[1]));
    // Of this process's own byte order, which is the child's.
    #[allow(clippy::host_endian_bytes)]
    let length = |v: &[u8]| v.last_chunk().map_or(0, |n: &[u8; WORD]| usize::from_ne_bytes(*n) as u64);
    if read.is_ok() { vectors.chunks(2 * WORD).map(length).sum() } else { 0 }
}

/// Whether the descriptor is SQLite's journal or WAL, or onewrite's log.
fn is_log(pid: Pid, fd: u64) -> bool {
    let path = fs::read_link(format!("/proc/{pid}/fd/{fd}")).unwrap_or_default();
    let name = path.to_string_lossy();
    let name = name.trim_end_matches(" (deleted)");
    ["-journal", "-wal", "-onewrite"].iter().any(|suffix| name.ends_with(suffix))
}

fn opened_dsync(pid: Pid, fd: u64) -> bool {
    let info = fs::read_to_string(format!("/proc/{pid}/fdinfo/{fd}")).unwrap_or_default();
    let flags = info.lines().find_map(|l| l.strip_prefix("flags:")).map(str::trim);
    flags.and_then(|f| i32::from_str_radix(f, 8).ok()).is_some_and(|f| f & libc::O_DSYNC != 0)
}

#[derive(Clone, Copy)]
enum SyscallKind {
    Write,
    /// Has flags of its own, in the last argument.
    WriteWithFlags,
    Sync,
    Msync,
    Futex,
}

const CALLS: &[(libc::c_long, &str, SyscallKind)] = &[
    (libc::SYS_write, "write", SyscallKind::Write),
    (libc::SYS_pwrite64, "pwrite64", SyscallKind::Write),
    (libc::SYS_writev, "writev", SyscallKind::Write),
    (libc::SYS_pwritev, "pwritev", SyscallKind::Write),
    (libc::SYS_pwritev2, "pwritev2", SyscallKind::WriteWithFlags),
    (libc::SYS_fsync, "fsync", SyscallKind::Sync),
    (libc::SYS_fdatasync, "fdatasync", SyscallKind::Sync),
    (libc::SYS_syncfs, "syncfs", SyscallKind::Sync),
    (libc::SYS_sync, "sync", SyscallKind::Sync),
    (libc::SYS_msync, "msync", SyscallKind::Msync),
    (libc::SYS_futex, "futex (waking)", SyscallKind::Futex),
    // futex_time64 has this number on each processor.
    #[cfg(target_pointer_width = "32")]
    (422, "futex (waking)", SyscallKind::Futex),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_as_the_kernel_prints_them() {
        let line = "328 0x3 0x7ffd 0x1 0x1000 0x0 0x2 0x7ffd0000 0x7f00\n";
        assert_eq!(parse(line), Some((328, [3, 0x7ffd, 1, 0x1000, 0, 2])));
        assert_eq!(parse("running"), None);
        assert_eq!(parse("-1 0x7ffd 0x7f00"), None);
    }

    #[test]
    fn synchronous_descriptors_are_seen() {
        use std::os::fd::AsRawFd;
        use std::os::unix::fs::OpenOptionsExt;
        let dir = tempfile::tempdir().unwrap();
        let open = |flags| {
            let path = dir.path().join("f");
            fs::OpenOptions::new().write(true).create(true).truncate(false).custom_flags(flags).open(path).unwrap()
        };
        let (plain, dsync) = (open(0), open(libc::O_DSYNC));
        let me = Pid::this();
        assert!(!opened_dsync(me, plain.as_raw_fd() as u64));
        assert!(opened_dsync(me, dsync.as_raw_fd() as u64));
    }
}
