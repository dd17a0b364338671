//! A few seeds of each campaign: enough to notice a defect.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use onewrite_sim::check::Counts;
use onewrite_sim::history::{self, Campaign};
use onewrite_sim::small;

fn survives(seed: u64, scheme: &str, atomic_unit: u32, steps: usize, counts: &Arc<Counts>) {
    let campaign = Campaign {
        scheme: Some(scheme.to_owned()),
        atomic_unit: Some(atomic_unit),
        trace: false,
        steps,
        faults: false,
    };
    if let Err(v) = history::run(seed, &campaign, counts) {
        panic!("seed {seed}, {scheme}, atomic unit {atomic_unit}: {}", v.what);
    }
}

fn seeds(seeds: std::ops::Range<u64>, scheme: &str, atomic_unit: u32) {
    let counts: Arc<Counts> = Arc::default();
    for seed in seeds {
        survives(seed, scheme, atomic_unit, 30, &counts);
    }
    assert!(scheme.starts_with("off") || counts.crashes.load(Ordering::Relaxed) > 0);
}

#[test]
fn random_histories_survive_their_crashes() {
    for scheme in ["log", "wal-opt"] {
        for atomic_unit in [512, 4096] {
            seeds(1..7, scheme, atomic_unit);
        }
    }
}

#[test]
fn in_page_schemes_survive_their_crashes() {
    for scheme in ["dhl-cc", "dhl-tc", "lsmvbt", "mvbt", "mvbt-opt"] {
        for atomic_unit in [512, 4096] {
            seeds(1..4, scheme, atomic_unit);
        }
    }
}

/// Each seed once found a fault: rules CacheKnowsItsState (two), SizeLast, CloseProven,
/// HomeBeforeNext, SlotBeforeReuse and ExchangeFlushed, and a checkpoint without recovery.
#[test]
fn histories_that_once_failed() {
    let counts: Arc<Counts> = Arc::default();
    for (seed, scheme, atomic_unit) in [
        (8, "log", 512),
        (209, "log", 512),
        (760, "log", 512),
        (6_500_001, "log", 4096),
        (7_501_300, "wal-opt", 4096),
        (48, "mvbt", 4096),
        (127, "lsmvbt", 4096),
        (127, "dhl-cc", 4096),
        (9, "dash", 4096),
    ] {
        survives(seed, scheme, atomic_unit, 60, &counts);
    }
}

#[test]
fn schemes_without_protection_are_right_while_nothing_crashes() {
    for scheme in ["off", "off-opt"] {
        seeds(1..30, scheme, 4096);
    }
}

#[test]
fn small_histories_survive_every_crash() {
    let counts: Arc<Counts> = Arc::default();
    for history in small::all(1).into_iter().filter(|s| s.warm).step_by(23) {
        let history = small::Small { crashes_max: 4, ..history };
        if let Err(v) = small::run(history, false, &counts) {
            panic!("{}", v.what);
        }
    }
}
