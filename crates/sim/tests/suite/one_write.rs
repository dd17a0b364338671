//! The cost of a commit, counted on the simulated disk.

use std::path::Path;
use std::sync::Arc;

use onewrite_core::disk::sim::{SimConfig, SimDisk, SplitMix64};
use onewrite_core::disk::{Disk, OpenMode};
use onewrite_core::{Engine, LockLevel};
use onewrite_sim::model::{Plan, Room, State, Taste};
use onewrite_sim::pager::{Client, Course};

/// An autocommit transaction of any size under FULL is one write that is also the flush, on the
/// log, and no other operation on any file, except where the log grows first.
#[test]
fn a_commit_is_one_write_that_is_also_the_flush() {
    for (scheme, page_bytes) in [("log", 512), ("log", 4096), ("wal-opt", 4096)] {
        let sim = SimDisk::new(SimConfig::default());
        let disk: Arc<dyn Disk> = Arc::new(sim.clone());
        let options = [("scheme".to_owned(), scheme.to_owned()), ("log_size".to_owned(), "16m".to_owned())];
        let conn = Engine::new(disk.clone()).open(Path::new("db"), OpenMode::Create, &options).unwrap();
        let mut client = Client::new(conn, disk, Path::new("db"));
        let course = Course::COMMIT;
        let taste = Taste { page_bytes, pages_max: 64, big: 8, room: Room::No };
        let mut rng = SplitMix64::new(7);
        let mut state: Arc<State> = Arc::default();
        let (mut pages_seen, mut grown) = (0, 0);
        for n in 0..200 {
            let plan = Plan::draw(&state, taste, &mut rng);
            let same = (0..plan.next.pages.len().max(state.pages.len()))
                .filter(|i| plan.next.pages.get(*i) != state.pages.get(*i))
                .count();
            sim.reset_counters();
            client.begin().unwrap();
            client.write(&state, &plan, course, &mut |_| {}, &mut || {}).unwrap();
            client.end().unwrap();
            state = plan.next;
            if n == 0 {
                continue; // This one makes the log and places the mark.
            }
            let (all, log) = (sim.counters(), sim.counters_of("-onewrite"));
            if log.syncs > 0 {
                grown += 1;
                continue;
            }
            let expected = u64::from(same > 0);
            assert_eq!(
                (log.durable_writes, log.writes, log.flushes()),
                (expected, 0, expected),
                "{scheme}, commit {n}"
            );
            assert_eq!((all.durable_writes, all.writes, all.flushes(), all.set_lens), (expected, 0, expected, 0));
            pages_seen = pages_seen.max(same);
        }
        assert!(pages_seen >= 6 && grown <= 7, "{pages_seen}, {grown}");
        client.connection().unlock(LockLevel::None).unwrap();
        client.close().unwrap();
    }
}
