//! Small histories, exhaustively: every operation, every combination of writes that may have
//! reached the disk.

use std::sync::Arc;

use onewrite_core::disk::sim::{SimConfig, SimDisk, SplitMix64};
use parking_lot::Mutex;

use crate::check::{Counts, Oracle, Setting, Violation, check, connect};
use crate::history::in_page;
use crate::hook::{HookDisk, Operation};
use crate::model::{Plan, Room, State, Taste};
use crate::pager::{Course, JournalMode, Synchronous};

/// One small history.
#[derive(Clone, Copy, Debug)]
pub struct Small {
    /// Preset.
    pub scheme: &'static str,
    /// Atomic unit of the device in bytes.
    pub atomic_unit: u32,
    /// Page size.
    pub page_bytes: usize,
    /// Begins with a closed database and a log.
    pub warm: bool,
    /// `synchronous`.
    pub synchronous: Synchronous,
    /// The last transaction spans several files.
    pub aside: bool,
    /// Number of transactions.
    pub transactions: usize,
    /// Most crashes at one operation; beyond, they are drawn.
    pub crashes_max: usize,
    /// Seed of the content.
    pub seed: u64,
}

fn failure(small: &Small, disk: &HookDisk, what: String) -> Violation {
    Violation::on(disk.sim(), format!("{what} [{small:?}]"))
}

/// Commits a transaction and cuts the power: the state after it, and the disk.
fn warm(
    small: &Small,
    setting: &Setting,
    sim: &SimDisk,
    rng: &mut SplitMix64,
) -> Result<(Arc<State>, SimDisk), Violation> {
    let state: Arc<State> = Arc::default();
    let disk = HookDisk::new(sim.clone(), None);
    let fail = |what: String| failure(small, &disk, what);
    let mut client = connect(&disk, setting).map_err(fail)?;
    let plan = Plan::draw(&state, setting.taste, rng);
    client.begin().map_err(|e| fail(e.to_string()))?;
    client
        .write(&state, &plan, Course::COMMIT, &mut |_| {}, &mut || {})
        .and_then(|()| client.end())
        .and_then(|()| client.close())
        .map_err(|e| fail(e.to_string()))?;
    Ok((plan.next, sim.crash_by(&mut |count| count - 1)))
}

/// Runs it.
pub fn run(small: Small, trace: bool, counts: &Arc<Counts>) -> Result<(), Violation> {
    let room = if in_page(small.scheme) { Room::Reserve } else { Room::No };
    let taste = Taste { page_bytes: small.page_bytes, pages_max: 12, big: 3, room };
    let options = [("scheme", small.scheme), ("log_size", "256k"), ("busy_ms", "0")];
    let options = options.map(|(n, v)| (n.to_owned(), v.to_owned())).to_vec();
    let setting = Setting { options, taste, counts: counts.clone(), durable: true, wipes: false };
    let config = SimConfig { atomic_unit: small.atomic_unit, trace, ..SimConfig::default() };
    let mut rng = SplitMix64::new(small.seed);
    let mut sim = SimDisk::new(config);
    let mut state: Arc<State> = Arc::default();
    let simple = Course::COMMIT;
    let fail = |disk: &HookDisk, what: String| failure(&small, disk, what);
    if small.warm {
        (state, sim) = warm(&small, &setting, &sim, &mut rng)?;
    }
    let oracle = Arc::new(Mutex::new(Oracle::starting(state.clone())));
    let found: Arc<Mutex<Option<Violation>>> = Arc::default();
    let (at_oracle, at_found, at_setting) = (oracle.clone(), found.clone(), setting.clone());
    let mut point_rng = SplitMix64::new(small.seed ^ 0x5eed);
    let point = Box::new(move |_: Operation<'_>, inside: &dyn Fn() -> SimDisk| {
        if at_found.lock().is_some() {
            return;
        }
        let disk = inside();
        let crash = at_oracle.lock().after_crash();
        let kill = at_oracle.lock().after_kill();
        let mut verdict = check(&at_setting, &disk.survive(), &kill, &crash, &mut point_rng, 1);
        let choices = disk.crash_choices().into_iter().try_fold(1usize, |n, c| n.checked_mul(c));
        if choices.is_some_and(|n| n <= small.crashes_max) {
            for (_, crashed) in disk.crashes() {
                verdict = verdict.and_then(|()| check(&at_setting, &crashed, &crash, &crash, &mut point_rng, 1));
            }
        } else {
            for _ in 0..small.crashes_max {
                let crashed = disk.crash(point_rng.next_u64());
                verdict = verdict.and_then(|()| check(&at_setting, &crashed, &crash, &crash, &mut point_rng, 0));
            }
        }
        *at_found.lock() = verdict.err();
    });
    let disk = HookDisk::new(sim, Some(point));
    let mut client = connect(&disk, &setting).map_err(|e| fail(&disk, e))?;
    client.synchronous = small.synchronous;
    client.journal_mode = [JournalMode::Delete, JournalMode::Truncate, JournalMode::Persist][rng.below(3)];
    for n in 0..small.transactions {
        let plan = Plan::draw(&state, taste, &mut rng);
        let course = Course { super_journal: small.aside && n + 1 == small.transactions, ..simple };
        client
            .begin()
            .and_then(|_| {
                client.write(
                    &state,
                    &plan,
                    course,
                    &mut |aside| oracle.lock().attempt(plan.next.clone(), aside),
                    &mut || oracle.lock().acknowledge(small.synchronous == Synchronous::Full),
                )
            })
            .and_then(|()| client.end())
            .map_err(|e| fail(&disk, e.to_string()))?;
        state = plan.next;
    }
    client.close().map_err(|e| fail(&disk, e.to_string()))?;
    let found = found.lock().take();
    found.map_or(Ok(()), |mut v| {
        v.what = format!("{} [{small:?}]", v.what);
        Err(v)
    })
}

/// The small histories of `seed`.
pub fn all(seed: u64) -> Vec<Small> {
    let mut all = Vec::new();
    for scheme in ["log", "wal-opt", "dhl-cc", "dhl-tc", "mvbt"] {
        for (atomic_unit, page_bytes) in [(4096, 4096), (512, 512), (512, 1024), (4096, 512)] {
            if in_page(scheme) && page_bytes > atomic_unit as usize {
                continue;
            }
            for warm in [true, false] {
                for synchronous in [Synchronous::Full, Synchronous::Normal] {
                    for aside in [false, true] {
                        all.push(Small {
                            scheme,
                            atomic_unit,
                            page_bytes,
                            warm,
                            synchronous,
                            aside,
                            transactions: 2,
                            crashes_max: 64,
                            seed,
                        });
                    }
                }
            }
        }
    }
    all
}
