//! Databases leave SQLite's WAL mode through power cuts at each operation (I1, I8, rule
//! WalBeforeHome).

use std::sync::atomic::Ordering;

use onewrite_sim::check::Counts;
use onewrite_sim::wal_mode;

#[test]
fn wal_mode_is_left_for_good_through_any_crash() {
    let counts = Counts::default();
    for seed in 1..40 {
        if let Err(v) = wal_mode::run(seed, &counts) {
            panic!("seed {seed}: {}", v.what);
        }
    }
    assert!(counts.crashes.load(Ordering::Relaxed) > 1_200, "{counts:?}");
}

/// What was asked for is remembered, and no transaction is lost between onewrite and SQLite.
#[test]
fn a_database_goes_from_onewrite_to_wal_mode_and_back_through_any_crash() {
    let counts = Counts::default();
    for seed in 1..60 {
        if let Err(v) = wal_mode::run_asked(seed, &counts) {
            panic!("seed {seed}: {}", v.what);
        }
    }
    assert!(counts.crashes.load(Ordering::Relaxed) > 1_200, "{counts:?}");
}
