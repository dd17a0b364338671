//! A snapshot that is pinned while its page is being overwritten in place does not change
//! (invariant I4).

use std::path::Path;
use std::sync::Arc;

use onewrite_core::disk::sim::{SimConfig, SimDisk, SplitMix64};
use onewrite_core::disk::{Disk, OpenMode};
use onewrite_core::{Connection, Engine, LockLevel};
use onewrite_sim::hook::{HookDisk, Operation};
use onewrite_sim::model::{Plan, Room, State, Taste, same};
use onewrite_sim::pager::{Client, Course};
use parking_lot::Mutex;

#[test]
fn a_snapshot_pinned_during_the_write_does_not_change() {
    let reader: Arc<Mutex<Option<Connection>>> = Arc::default();
    let in_point = reader.clone();
    let point = Box::new(move |_: Operation<'_>, _: &dyn Fn() -> SimDisk| {
        if let Some(reader) = in_point.lock().as_mut() {
            reader.lock(LockLevel::Shared).unwrap();
        }
    });
    let hooked = HookDisk::new(SimDisk::new(SimConfig::default()), Some(point));
    let disk: Arc<dyn Disk> = Arc::new(hooked);
    let engine = Engine::new(disk.clone());
    let options = [("scheme".to_owned(), "dhl-cc".to_owned())];
    let open = || engine.open(Path::new("db"), OpenMode::Create, &options).unwrap();
    let mut client = Client::new(open(), disk.clone(), Path::new("db"));
    let course = Course::COMMIT;
    let taste = Taste { page_bytes: 4096, pages_max: 12, big: 3, room: Room::Reserve };
    let mut rng = SplitMix64::new(3);
    let mut state: Arc<State> = Arc::default();
    let pinned = open();
    let mut write = |state: &mut Arc<State>| {
        let plan = Plan::draw(state, taste, &mut rng);
        // Behind a transaction that had no room for its undo records, the next one goes in place
        // again.
        client.connection().pragma("checkpoint", None).unwrap().unwrap();
        client.begin().unwrap();
        client.write(state, &plan, course, &mut |_| {}, &mut || {}).unwrap();
        client.end().unwrap();
        *state = plan.next;
    };
    write(&mut state);
    *reader.lock() = Some(pinned);
    let in_place = |c: &mut Connection| {
        let text = c.pragma("stats", None).unwrap().unwrap();
        text.lines().find_map(|l| l.strip_prefix("in_place=")).unwrap().parse::<u64>().unwrap()
    };
    for _ in 0..200 {
        let before = state.clone();
        write(&mut state);
        let mut reader = reader.lock();
        let reader = reader.as_mut().unwrap();
        let mut page = vec![0; 4096];
        // Pinned at the first operation of the commit, or not at all without one.
        reader.lock(LockLevel::Shared).unwrap();
        let seen = if reader.size().unwrap() == before.bytes() as u64 { &before } else { &state };
        let all = |wanted: &State, reader: &mut Connection, page: &mut [u8]| {
            (1..=wanted.count()).all(|n| {
                reader.read_at(page, u64::from(n - 1) * 4096).unwrap();
                same(n, page, wanted.page(n).unwrap())
            })
        };
        let right = all(seen, reader, &mut page) || (**seen != *state && all(&state, reader, &mut page));
        assert!(right, "a snapshot of neither state");
        reader.unlock(LockLevel::None).unwrap();
    }
    assert!(in_place(reader.lock().as_mut().unwrap()) > 20);
    drop(reader.lock().take());
}
