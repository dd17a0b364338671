//! Histories of threads.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use onewrite_sim::check::Counts;
use onewrite_sim::check::Violation;
use onewrite_sim::history::Campaign;
use onewrite_sim::sql;
use onewrite_sim::threads::history::run;

type Run = fn(u64, &Campaign, &Arc<Counts>) -> Result<(), Violation>;

#[test]
fn threads_in_any_order_survive_power_cuts() {
    let (campaign, counts) = (Campaign { steps: 60, ..Campaign::default() }, Arc::<Counts>::default());
    for seed in 0..25 {
        if let Err(v) = run(seed, &campaign, &counts) {
            panic!("seed {seed}: {}\n{}", v.what, v.notes.join("\n"));
        }
    }
    assert!(counts.crashes.load(Ordering::Relaxed) > 1000);
    assert!(counts.commits.load(Ordering::Relaxed) > 200);
}

#[test]
fn sql_on_threads_survives_power_cuts() {
    let (campaign, counts) = (Campaign { steps: 60, ..Campaign::default() }, Arc::<Counts>::default());
    for seed in 0..40 {
        if let Err(v) = sql::threads::run(seed, &campaign, &counts) {
            panic!("seed {seed}: {}", v.what);
        }
    }
    assert!(counts.crashes.load(Ordering::Relaxed) > 1000);
    assert!(counts.commits.load(Ordering::Relaxed) > 100);
}

/// A seed has one history, whatever the threads of the system do.
#[test]
fn a_seed_has_one_order() {
    let campaign = Campaign { steps: 60, ..Campaign::default() };
    for (run, seeds) in [(run as Run, 100..110), (sql::threads::run, 100..104)] {
        for seed in seeds {
            let met = [(); 2].map(|()| {
                let counts = Arc::<Counts>::default();
                run(seed, &campaign, &counts).unwrap();
                (counts.crashes.load(Ordering::Relaxed), counts.commits.load(Ordering::Relaxed))
            });
            assert_eq!(met[0], met[1], "seed {seed}");
        }
    }
}
