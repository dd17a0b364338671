//! Reads a log of arbitrary bytes as `onewrite check` and `onewrite inspect` do, and writes
//! nothing.

use std::path::Path;
use std::sync::Arc;

use onewrite_core::Repair;
use onewrite_core::disk::OpenMode;
use onewrite_core::inspect::{LogFile, next_places};

use crate::Reach;
use crate::files::{Files, HOME};

/// Walks through the files that the input encodes.
pub fn run(input: &[u8]) -> Reach {
    let files = Files::parse(input);
    let disk = files.disk();
    let mut reach = Reach::default();
    {
        let repair =
            Repair::open(Arc::new(disk.clone()), Path::new(HOME), OpenMode::ReadOnly).expect("nobody has it open");
        let state = repair.state().expect("home can be read");
        assert!(state.bytes() <= u64::from(u32::MAX) * 65536);
        assert_eq!(repair.hot_journal().expect("no journal"), None);
        let session = repair.mark().expect("home can be read");
        if let Some(log) = repair.lock_log().expect("nobody has it open") {
            for slot in log.slots().expect("the log can be read") {
                walk(&log, &slot, &mut reach);
            }
            assert_eq!(log.file.len().expect("length"), files.log.as_ref().map_or(0, Vec::len) as u64);
        }
        for accept_loss in [false, true] {
            let foreseen = session.map(|session| repair.preview(session, accept_loss));
            reach.refused += u64::from(matches!(foreseen, Some(Err(_))));
        }
    }
    assert_eq!(Files::of(&disk, files.atomic_unit), files, "looking changed something");
    reach
}

fn walk(log: &LogFile, slot: &onewrite_core::inspect::Slot, reach: &mut Reach) {
    let mut last = slot.base_tid;
    let end = log.scan(slot, |record| {
        assert!(record.head.tid > last, "TIDs grow");
        last = record.head.tid;
        reach.accepted += 1;
        let mut image = vec![0; slot.page_bytes as usize];
        record.for_each(|page, change| {
            assert_ne!(page.0, 0);
            let _fits = change.apply(&mut image);
        });
        let mut streamed = 0;
        let whole = log.for_each_streamed(record, |_, _, _| {
            streamed += 1;
            Ok(())
        })?;
        assert!(whole && streamed == record.stream.count, "a record of which images are missing was accepted");
        Ok(())
    });
    let Ok(end) = end else {
        reach.refused += 1;
        return;
    };
    assert_eq!(end.last_tid, last);
    // The first record may have left the rest of its lap free.
    let first_max = slot.start.0.saturating_add(slot.ring_bytes - 1) / slot.ring_bytes * slot.ring_bytes;
    assert!(end.tail.0 <= first_max.max(slot.start.0).saturating_add(slot.ring_bytes), "more than a lap");
    assert!(next_places(slot, end.tail).iter().all(|at| at.0 >= end.tail.0));
    reach.refused += u64::from(end.rot.is_some());
}
