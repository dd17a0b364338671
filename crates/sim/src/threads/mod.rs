//! Threads of one process, or of several, that run one at a time in an order drawn from a seed.
//! Any of them may be between two operations when the power is cut.

pub mod history;
pub mod process;
pub mod store;

use std::io::ErrorKind;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::time::Duration;

use onewrite_core::disk::sim::{Op, SimDisk, SplitMix64, under};
use parking_lot::Mutex;

use self::process::Death;
use crate::baton::{self, GoesOn, Program};
use crate::check::Violation;

/// The steps of a history, where it is traced, each with the operation of the disk it stands at.
#[derive(Clone)]
pub struct Notes {
    lines: Option<Arc<Mutex<Vec<String>>>>,
    sim: SimDisk,
}

impl Notes {
    /// Of a history on `sim`.
    pub fn new(is_traced: bool, sim: SimDisk) -> Notes {
        Notes { lines: is_traced.then(Arc::default), sim }
    }

    /// The history goes on with another disk.
    pub fn go_on(&mut self, sim: SimDisk) {
        self.sim = sim;
    }

    /// Adds a step. The order of threads does not change by it.
    pub fn add(&self, line: impl FnOnce() -> String) {
        if let Some(lines) = &self.lines {
            let operations = under(None, || self.sim.ops());
            lines.lock().push(format!("{operations:>6} {}", line()));
        }
    }

    /// All steps.
    pub fn lines(&self) -> Vec<String> {
        self.lines.as_ref().map(|lines| lines.lock().clone()).unwrap_or_default()
    }
}

/// The first violation of a round.
pub type Found = Arc<Mutex<Option<Violation>>>;

/// A kill or a power cut left `disk` so that `check` failed.
pub fn report(found: &Found, notes: &Notes, killed: bool, disk: &SimDisk, mut v: Violation) {
    v.what = format!("{}: {}", if killed { "after a kill" } else { "after a crash" }, v.what);
    notes.add(|| v.what.clone());
    v.trace.splice(0..0, disk.trace().iter().map(ToString::to_string));
    *found.lock() = Some(v);
}

/// As a kill or a power cut leaves it.
pub fn left_by(disk: &SimDisk, killed: bool, rng: &mut SplitMix64) -> SimDisk {
    if killed { disk.survive() } else { disk.crash(rng.next_u64()) }
}

/// One of the next writes or flushes fails. Returns a note.
pub fn draw_fault(sim: &SimDisk, rng: &mut SplitMix64) -> String {
    let op = [Op::Write, Op::WriteDurable, Op::Sync, Op::Sync][rng.below(4)];
    let nth = 1 + rng.below(30) as u64;
    sim.fail_nth(op, nth, ErrorKind::Other);
    format!("{op:?} {nth} from here fails")
}

/// The violation that a round on `disk` met: one that its threads found, or the error of
/// [`run_each`].
pub fn outcome(found: &Found, ended: Result<(), String>, disk: &SimDisk) -> Result<(), Violation> {
    match found.lock().take() {
        Some(found) if found.trace.is_empty() => Err(Violation::on(disk, found.what)),
        Some(found) => Err(found),
        None => ended.map_err(|what| Violation::on(disk, what)),
    }
}

/// Each worker acts on a thread of its own, in an order of `seed`; one whose process dies ends.
/// Returns the workers. An error: see [`baton::run`].
pub fn run_each<W: Send + 'static>(
    seed: u64,
    now: &mut Duration,
    workers: Vec<W>,
    goes_on: impl Fn(&W) -> GoesOn,
    act: impl Fn(&mut W) + Clone + Send + 'static,
) -> (Vec<W>, Result<(), String>) {
    let (seats, programs): (Vec<_>, Vec<_>) = workers
        .into_iter()
        .map(|worker| {
            let goes_on = goes_on(&worker);
            let seat = Arc::new(Mutex::new(Some(worker)));
            let (own_seat, act) = (seat.clone(), act.clone());
            let program: Program = Box::new(move || {
                let Some(mut own) = own_seat.lock().take() else { return };
                let ended = catch_unwind(AssertUnwindSafe(|| act(&mut own)));
                *own_seat.lock() = Some(own);
                match ended {
                    Err(panic) if !panic.is::<Death>() => resume_unwind(panic),
                    _ => {}
                }
            });
            (seat, (program, goes_on))
        })
        .unzip();
    let ended = baton::run(seed, now, programs);
    (seats.iter().filter_map(|seat| seat.lock().take()).collect(), ended)
}
