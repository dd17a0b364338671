//! Canaries: the core with one safety rule broken, which the campaigns must find out.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use onewrite_core::rules::{Case, break_on_this_thread};

use crate::check::{Counts, Violation};
use crate::history::{self, Campaign};
use crate::{processes, sql, threads, wal_mode};

const PROCESS_STEPS: usize = 100;

const ATTACHED_STEPS: usize = 40;

/// A broken rule, found out.
#[derive(Clone, Debug)]
pub struct Caught {
    /// The name of the campaign.
    pub engine: &'static str,
    /// The seed that repeats it.
    pub seed: u64,
    /// Crashes until then.
    pub crashes: u64,
    /// The violation.
    pub what: String,
}

/// A campaign.
#[derive(Clone, Copy)]
enum Hunter {
    Pager,
    Sql,
    Threads,
    SqlThreads,
    Processes,
    WalMode,
    Attached,
}

impl Hunter {
    const ALL: [Hunter; 7] = [
        Hunter::Pager,
        Hunter::Sql,
        Hunter::Threads,
        Hunter::SqlThreads,
        Hunter::Processes,
        Hunter::WalMode,
        Hunter::Attached,
    ];

    fn name(self) -> &'static str {
        match self {
            Hunter::Pager => "pager",
            Hunter::Sql => "sql",
            Hunter::Threads => "threads",
            Hunter::SqlThreads => "sql on threads",
            Hunter::Processes => "processes",
            Hunter::WalMode => "wal mode",
            Hunter::Attached => "attached",
        }
    }

    fn run(self, seed: u64, campaign: &Campaign, counts: &Arc<Counts>) -> Result<(), Violation> {
        match self {
            Hunter::Pager => history::run(seed, campaign, counts),
            Hunter::Sql => sql::history::run(seed, campaign, counts),
            Hunter::Threads => threads::history::run(seed, campaign, counts),
            Hunter::SqlThreads => sql::threads::run(seed, campaign, counts),
            Hunter::Processes => {
                let tally = Arc::default();
                let run = processes::run(seed, PROCESS_STEPS, &tally);
                counts.crashes.fetch_add(tally.lock().cuts, Ordering::Relaxed);
                run
            }
            Hunter::WalMode => wal_mode::run(seed, counts),
            Hunter::Attached => sql::attached::run(seed, ATTACHED_STEPS, false, counts),
        }
    }
}

/// The campaigns that find a broken case out, and their scheme, if not any.
fn hunters(case: Option<Case>) -> (&'static [Hunter], Option<&'static str>) {
    let Some(case) = case else { return (&Hunter::ALL, None) };
    match case {
        Case::SeenByAllAtOnce | Case::SnapshotsAnnounced | Case::KeptForOthers | Case::SlotTold | Case::PoisonTold => {
            (&[Hunter::Processes], None)
        }
        Case::StreamedWhole => (&[Hunter::Threads], None),
        Case::WalBeforeHome | Case::HomeBeforeWalGoes => (&[Hunter::WalMode], None),
        Case::PreparedFlushed | Case::UndecidedAsks | Case::DecisionFlushed | Case::DecisionKept => {
            (&[Hunter::Attached], None)
        }
        // Only `sql` damages files at rest and puts old files back.
        Case::NewSession | Case::LaterRecordProves => (&[Hunter::Sql], Some("log")),
        // Others find these out, too, but late.
        Case::LogGivenBack | Case::UnchangedSince | Case::AddedBehindEnd => (&[Hunter::Sql], Some("log")),
        Case::HomeFitsLog
        | Case::LogWiped
        | Case::FlushedStays
        | Case::ProofKept
        | Case::Poisons
        | Case::EmptyCommitFlushes
        | Case::StreamedBehindEnd
        | Case::LogSealed
        | Case::JournalHeadLast => (&[Hunter::Pager], Some("log")),
        Case::FlushedBeforeExchange | Case::ExchangeFlushed => (&[Hunter::Pager], Some("dash")),
        Case::SlotsAgree
        | Case::HeldInPlace
        | Case::TrailerSession
        | Case::RestoredSealed
        | Case::HomeBeforeNext
        | Case::SizeHome
        | Case::SizeLast => (&[Hunter::Pager], Some("dhl-cc")),
        _ => (&[Hunter::Pager, Hunter::Sql], None),
    }
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
    let (hunters, scheme) = hunters(case);
    let scheme = campaign.scheme.clone().or(scheme.map(str::to_owned));
    // This case matters only after a failed write or flush.
    let faults = matches!(case, Some(Case::Poisons));
    let caught = (first_seed(case)..).take(usize::try_from(seeds).unwrap_or(usize::MAX)).find_map(|seed| {
        let faults = faults || (case.is_none() && seed % 2 == 0);
        let campaign = &Campaign { scheme: scheme.clone(), faults, ..campaign.clone() };
        hunters.iter().find_map(|hunter| {
            let run = catch_unwind(AssertUnwindSafe(|| hunter.run(seed, campaign, &counts)));
            judge(hunter.name(), seed, run, &counts)
        })
    });
    break_on_this_thread(None);
    caught
}

fn judge(
    engine: &'static str,
    seed: u64,
    outcome: std::thread::Result<Result<(), Violation>>,
    counts: &Counts,
) -> Option<Caught> {
    let what = match outcome {
        Ok(Ok(())) => return None,
        Ok(Err(violation)) => violation.what,
        Err(_) => "panic".to_owned(),
    };
    Some(Caught { engine, seed, crashes: counts.crashes.load(Ordering::Relaxed), what })
}
