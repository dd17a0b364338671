//! Canaries: the core with one safety rule broken, which the campaigns must find out.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use onewrite_core::rules::{Case, break_on_this_thread};

use crate::check::Counts;
use crate::history::{self, Campaign};
use crate::{processes, sql, threads, wal_mode};

const PROCESS_STEPS: usize = 100;

const ATTACHED_STEPS: usize = 40;

/// A broken rule, found out.
#[derive(Clone, Debug)]
pub struct Caught {
    /// Campaign: `pager`, `sql`, `threads`, `processes`, `wal mode` or `attached`.
    pub engine: &'static str,
    /// The seed that repeats it.
    pub seed: u64,
    /// Crashes until then.
    pub crashes: u64,
    /// The violation.
    pub what: String,
}

struct Ground {
    pager: bool,
    sql: bool,
    threads: bool,
    processes: bool,
    wal_mode: bool,
    attached: bool,
    scheme: Option<&'static str>,
}

fn ground(case: Option<Case>) -> Ground {
    let processes = matches!(
        case,
        None | Some(
            Case::SeenByAllAtOnce | Case::SnapshotsAnnounced | Case::KeptForOthers | Case::SlotTold | Case::PoisonTold
        )
    );
    let threads = matches!(case, None | Some(Case::StreamedWhole));
    let wal_mode = matches!(case, None | Some(Case::WalBeforeHome | Case::HomeBeforeWalGoes));
    let attached = matches!(
        case,
        None | Some(Case::PreparedFlushed | Case::UndecidedAsks | Case::DecisionFlushed | Case::DecisionKept)
    );
    let (pager, sql, scheme) = match case {
        Some(_) if processes || threads || wal_mode || attached => (false, false, None),
        // Only `sql` damages files at rest and puts old files back.
        Some(Case::NewSession | Case::LaterRecordProves) => (false, true, Some("log")),
        // Others find these out, too, but late.
        Some(Case::LogGivenBack | Case::UnchangedSince | Case::AddedBehindEnd) => (false, true, Some("log")),
        Some(Case::HomeFitsLog | Case::LogWiped | Case::FlushedStays | Case::ProofKept) => (true, false, Some("log")),
        Some(
            Case::Poisons
            | Case::EmptyCommitFlushes
            | Case::StreamedBehindEnd
            | Case::LogSealed
            | Case::JournalHeadLast,
        ) => (true, false, Some("log")),
        Some(Case::SlotsAgree | Case::HeldInPlace) => (true, false, Some("dhl-cc")),
        Some(Case::FlushedBeforeExchange | Case::ExchangeFlushed) => (true, false, Some("dash")),
        Some(Case::TrailerSession | Case::RestoredSealed | Case::HomeBeforeNext | Case::SizeHome | Case::SizeLast) => {
            (true, false, Some("dhl-cc"))
        }
        _ => (true, true, None),
    };
    Ground { pager, sql, threads, processes, wal_mode, attached, scheme }
}

/// The search begins here: the first seed that finds it out today, where none of the first ten
/// does.
fn first_seed(case: Option<Case>) -> u64 {
    match case {
        Some(Case::PoisonTold) => 416,
        Some(Case::ProofKept) => 393,
        Some(Case::LogGivenBack) => 145,
        Some(Case::JournalHeadLast) => 100,
        Some(Case::SizeLast) => 79,
        Some(Case::LogSealed) => 73,
        Some(Case::JournalRemovalFlushed) => 69,
        Some(Case::SlotBehindSweep) => 47,
        Some(Case::SeenByAllAtOnce) => 38,
        Some(Case::LeftoversFlushed) => 31,
        Some(Case::LaterRecordProves) => 27,
        Some(Case::CloseProven) => 24,
        Some(Case::RestoredSealed) => 22,
        Some(Case::TrailerSession) => 17,
        Some(Case::UnchangedSince | Case::AddedBehindEnd) => 16,
        Some(Case::StreamedWhole) => 19,
        Some(Case::EmptyCommitFlushes) => 13,
        Some(Case::RingGrownBeforeSlot) => 12,
        Some(Case::Poisons) => 11,
        _ => 1,
    }
}

/// Breaks `case` (or none) until one of `seeds` histories finds it out.
pub fn hunt(case: Option<Case>, seeds: u64, campaign: &Campaign) -> Option<Caught> {
    break_on_this_thread(case);
    let counts: Arc<Counts> = Arc::default();
    let ground = ground(case);
    let scheme = campaign.scheme.clone().or(ground.scheme.map(str::to_owned));
    // This case matters only after a failed write or flush.
    let faults = matches!(case, Some(Case::Poisons));
    let caught = (first_seed(case)..).take(usize::try_from(seeds).unwrap_or(usize::MAX)).find_map(|seed| {
        let faults = faults || (case.is_none() && seed % 2 == 0);
        let campaign = &Campaign { scheme: scheme.clone(), faults, ..campaign.clone() };
        let pager = || {
            let run = catch_unwind(AssertUnwindSafe(|| history::run(seed, campaign, &counts)));
            judge("pager", seed, run, &counts)
        };
        let sql = || {
            let run = catch_unwind(AssertUnwindSafe(|| sql::history::run(seed, campaign, &counts)));
            judge("sql", seed, run, &counts)
        };
        let processes = || {
            let tally = Arc::default();
            let run = catch_unwind(AssertUnwindSafe(|| processes::run(seed, PROCESS_STEPS, &tally)));
            counts.crashes.fetch_add(tally.lock().cuts, Ordering::Relaxed);
            judge("processes", seed, run, &counts)
        };
        let caught = if ground.pager { pager() } else { None };
        let caught = if caught.is_none() && ground.sql { sql() } else { caught };
        let threads = || {
            let run = catch_unwind(AssertUnwindSafe(|| threads::history::run(seed, campaign, &counts)));
            judge("threads", seed, run, &counts)
        };
        let caught = if caught.is_none() && ground.threads { threads() } else { caught };
        let caught = if caught.is_none() && ground.processes { processes() } else { caught };
        let wal_mode = || {
            let run = catch_unwind(AssertUnwindSafe(|| wal_mode::run(seed, &counts)));
            judge("wal mode", seed, run, &counts)
        };
        let caught = if caught.is_none() && ground.wal_mode { wal_mode() } else { caught };
        let attached = || {
            let run = || sql::attached::run(seed, ATTACHED_STEPS, false, &counts);
            judge("attached", seed, catch_unwind(AssertUnwindSafe(run)), &counts)
        };
        if caught.is_none() && ground.attached { attached() } else { caught }
    });
    break_on_this_thread(None);
    caught
}

fn judge(
    engine: &'static str,
    seed: u64,
    outcome: std::thread::Result<Result<(), crate::check::Violation>>,
    counts: &Counts,
) -> Option<Caught> {
    let what = match outcome {
        Ok(Ok(())) => return None,
        Ok(Err(violation)) => violation.what,
        Err(_) => "panic".to_owned(),
    };
    Some(Caught { engine, seed, crashes: counts.crashes.load(Ordering::Relaxed), what })
}
