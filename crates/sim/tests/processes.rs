//! Histories of several processes, each from its seed.

use std::sync::Arc;

use onewrite_sim::processes::{Tally, run};
use parking_lot::Mutex;

/// `ONEWRITE_SIM_SEEDS=FROM..TO` runs others than these.
#[test]
fn processes_share_a_database_and_die() {
    let seeds = std::env::var("ONEWRITE_SIM_SEEDS").ok();
    let seeds = seeds.as_deref().and_then(|s| s.split_once("..")).map(|(from, to)| (from.parse(), to.parse()));
    let (seeds, usual) = match seeds {
        Some((Ok(from), Ok(to))) => (from..to, false),
        _ => (0..150, true),
    };
    let tally = Arc::new(Mutex::new(Tally::default()));
    for seed in seeds {
        if let Err(violation) = run(seed, 100, &tally) {
            panic!("seed {seed}: {}\n{}", violation.what, violation.notes.join("\n"));
        }
    }
    let tally = tally.lock();
    println!("{tally:?}");
    if !usual {
        return;
    }
    assert!(tally.commits > 1000 && tally.reads_meanwhile > 1000 && tally.deaths_inside > 50, "{tally:?}");
    assert!(tally.cuts > 50 && tally.plain > 100, "{tally:?}");
}
