//! A simulated disk's counters, trace and faults.

use std::fmt;
use std::io::{self, ErrorKind};
use std::ops::AddAssign;
use std::path::PathBuf;

/// A kind of call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Existing.
    Open,
    /// New.
    Create,
    /// `remove`.
    Remove,
    /// `exchange` and `rename`.
    Exchange,
    /// `sync_dir_of`.
    SyncDir,
    /// `temp_file`.
    TempFile,
    /// `read_at`.
    Read,
    /// `write_at`.
    Write,
    /// `write_durable_at`.
    WriteDurable,
    /// `sync`.
    Sync,
    /// `finish_write_back`.
    Send,
    /// `set_len`.
    SetLen,
    /// `reserve`.
    Reserve,
    /// `try_lock`.
    Lock,
}

impl Op {
    /// Whether it is a crash point.
    pub fn mutates(self) -> bool {
        use Op::*;
        matches!(self, Create | Remove | Exchange | SyncDir | Write | WriteDurable | Sync | Send | SetLen)
    }
}

/// Failed calls included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallCounters {
    /// Calls of `read_at`.
    pub reads: u64,
    /// Calls of `write_at`.
    pub writes: u64,
    /// One write and one flush each.
    pub durable_writes: u64,
    /// Calls of `sync`.
    pub syncs: u64,
    /// Calls of `sync_dir_of`.
    pub dir_syncs: u64,
    /// Calls of `set_len`.
    pub set_lens: u64,
    /// Asked for.
    pub bytes_read: u64,
    /// By both kinds.
    pub bytes_written: u64,
}

impl CallCounters {
    /// Of files and directories.
    pub fn flushes(&self) -> u64 {
        self.durable_writes + self.syncs + self.dir_syncs
    }

    pub(super) fn count(&mut self, op: Op, len: u64) {
        match op {
            Op::Read => (self.reads, self.bytes_read) = (self.reads + 1, self.bytes_read + len),
            Op::Write => (self.writes, self.bytes_written) = (self.writes + 1, self.bytes_written + len),
            Op::WriteDurable => {
                (self.durable_writes, self.bytes_written) = (self.durable_writes + 1, self.bytes_written + len);
            }
            Op::Sync => self.syncs += 1,
            Op::SyncDir => self.dir_syncs += 1,
            Op::SetLen => self.set_lens += 1,
            _ => {}
        }
    }
}

impl AddAssign<&CallCounters> for CallCounters {
    fn add_assign(&mut self, other: &CallCounters) {
        self.reads += other.reads;
        self.writes += other.writes;
        self.durable_writes += other.durable_writes;
        self.syncs += other.syncs;
        self.dir_syncs += other.dir_syncs;
        self.set_lens += other.set_lens;
        self.bytes_read += other.bytes_read;
        self.bytes_written += other.bytes_written;
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CallFate {
    Run,
    Short(usize),
    Fail(ErrorKind),
    Cut,
}

impl CallFate {
    /// The call's error, if any.
    pub fn error(self) -> io::Result<()> {
        match self {
            CallFate::Run | CallFate::Short(_) => Ok(()),
            CallFate::Fail(kind) => Err(io::Error::new(kind, "injected fault")),
            CallFate::Cut => Err(power_off()),
        }
    }
}

pub(super) fn power_off() -> io::Error {
    io::Error::other("power is off")
}

#[derive(Clone, Debug)]
struct PlannedFault {
    op: Op,
    /// 1 is the next.
    countdown: u64,
    fate: CallFate,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Faults {
    faults: Vec<PlannedFault>,
    ops: u64,
    ops_left: Option<u64>,
    off: bool,
}

impl Faults {
    pub fn add(&mut self, op: Op, nth: u64, fate: CallFate) {
        self.faults.push(PlannedFault { op, countdown: nth, fate });
    }

    pub fn stop_after(&mut self, ops: u64) {
        self.ops_left = Some(ops);
    }

    /// Mutating operations so far.
    pub fn ops(&self) -> u64 {
        self.ops
    }

    pub fn is_off(&self) -> bool {
        self.off
    }

    pub fn fate(&mut self, op: Op) -> io::Result<CallFate> {
        if self.off {
            return Err(power_off());
        }
        if op.mutates() {
            match &mut self.ops_left {
                Some(0) => {
                    self.off = true;
                    return Ok(CallFate::Cut);
                }
                Some(left) => *left -= 1,
                None => {}
            }
            self.ops += 1;
        }
        let mut fate = CallFate::Run;
        self.faults.retain_mut(|fault| {
            if fault.op != op {
                return true;
            }
            fault.countdown = fault.countdown.saturating_sub(1);
            if fault.countdown == 0 {
                fate = fault.fate;
            }
            fault.countdown > 0
        });
        Ok(fate)
    }
}

/// An event of a disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TraceEntry {
    /// A call.
    Call {
        /// Earlier mutating operations.
        number: u64,
        /// Its kind.
        op: Op,
        /// Its file; empty if nameless.
        path: PathBuf,
        /// Byte offset, if any.
        offset: u64,
        /// Bytes, or the new length.
        len: u64,
        /// By fault or power cut.
        failure: Option<String>,
    },
    /// A crash, with choices, or a kill.
    End(String),
}

impl fmt::Display for TraceEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TraceEntry::Call { number, op, path, offset, len, failure } => {
                write!(f, "{number:>6} {op:<12} {} {offset}+{len}", path.display(), op = format!("{op:?}"))?;
                failure.as_ref().map_or(Ok(()), |failure| write!(f, "  FAILS: {failure}"))
            }
            TraceEntry::End(what) => write!(f, "------ {what}"),
        }
    }
}
