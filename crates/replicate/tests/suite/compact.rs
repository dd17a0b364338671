//! Merging and removing: wherever a round stops, this program and stock Litestream can restore
//! every state that must be there.

use crate::place;

use anyhow::{Result, bail};
use onewrite_replicate::compact::Levels;
use onewrite_replicate::ltx::{Header, Writer};
use onewrite_replicate::plan::Target;
use onewrite_replicate::restore::{RestoreOptions, restore};
use onewrite_replicate::ship::{Merges, Settings, Shipper};
use onewrite_replicate::store::{self, Conditions, Entry, Fill, Name, Store, Version};
use place::{Killed, Place, installed, rows, said, until};
use std::io::Read;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, SystemTime};

const HASTY: [&str; 6] = ["--levels", "1ms,30ms,90ms", "--keep-batches", "0s", "--retention", "1h"];

/// The rows that `restore` makes with these options; `None`: no such state.
fn state(place: &Place, more: &[&str]) -> Option<String> {
    let dest = place.dir.path().join("state.db");
    let output = place.program(&["restore"]).args(more).arg(place.url()).arg(&dest).output().unwrap();
    let state = output.status.success().then(|| rows(&dest));
    if state.is_some() {
        std::fs::remove_file(&dest).unwrap();
    }
    state
}

#[test]
fn every_state_that_is_left_is_restored_by_either() {
    let place = Place::new(300);
    let mut states = vec![String::new()];
    let mut times = Vec::new();
    for n in 1..=14u64 {
        place.sql(&format!(
            "UPDATE t SET x = randomblob(150) WHERE n % 17 = {n}; INSERT INTO t VALUES (1000 + {n}, 'new')"
        ));
        match n {
            5 => place.sql("DELETE FROM t WHERE n BETWEEN 100 AND 300; VACUUM"),
            9 => place.sql("INSERT INTO t SELECT n + 5000, randomblob(900) FROM t"),
            _ => {}
        }
        place.once(&HASTY);
        states.push(rows(&place.file));
        times.push(humantime::format_rfc3339_millis(SystemTime::now()).to_string());
        std::thread::sleep(Duration::from_millis(15));
        assert_eq!(state(&place, &[]).as_ref(), states.last());
        if let Some(stock) = place.litestream_restore(&[]) {
            assert_eq!(rows(&stock), states[n as usize]);
        }
    }
    // All are merged except the newest batch and the file before the first snapshot.
    let (batches, merged) = (place.names(0), place.names(1));
    assert!(batches.len() <= 3 && merged.len() >= 8, "{batches:?} {merged:?}");
    assert!(!place.names(2).is_empty() && !place.names(3).is_empty() && place.names(9).len() == 1);
    let mut left = 0;
    for (n, state_n) in states.iter().enumerate().skip(1) {
        let Some(ours) = state(&place, &["--txid", &format!("{n:x}")]) else { continue };
        assert_eq!(&ours, state_n, "{n}");
        left += 1;
        if let Some(stock) = place.litestream_restore(&["-txid", &format!("{n:016x}")]) {
            assert_eq!(&rows(&stock), state_n);
        }
    }
    assert!(left >= 9, "{left} of {}", states.len());
    // A time may have an older state once batches are merged, never a newer one.
    for (n, time) in (1..).zip(&times) {
        let ours = state(&place, &["--timestamp", time]).unwrap();
        let found = states.iter().position(|state| *state == ours).unwrap();
        assert!(found <= n && found + 3 > n, "{found} of {n}");
        // Litestream refuses a time behind the newest file's.
        if n == times.len() {
            continue;
        }
        if let Some(stock) = place.litestream_restore(&["-timestamp", time]) {
            assert_eq!(rows(&stock), ours);
        }
    }
    if let Some(ltx) = installed("ltx") {
        for level in 0..10 {
            let dir = place.store().join(format!("ltx/{level}"));
            let files: Vec<_> = place.names(level).into_iter().map(|name| dir.join(name)).collect();
            if !files.is_empty() {
                let output = std::process::Command::new(&ltx).arg("verify").args(&files).output().unwrap();
                assert!(output.status.success(), "{}", said(&output));
            }
        }
    }
}

#[test]
fn files_past_their_retention_are_removed() {
    let place = Place::new(50);
    let keep = ["--levels", "1ms,2ms", "--keep-batches", "0s", "--retention", "0s", "--snapshot-interval", "1ms"];
    for n in 0..8 {
        place.sql(&format!("UPDATE t SET x = {n} WHERE n = 1"));
        place.once(&keep);
        std::thread::sleep(Duration::from_millis(5));
    }
    // Nothing has changed, and the last batch is still merged.
    place.once(&keep);
    assert_eq!(place.names(9).len(), 1);
    assert_eq!(place.names(0).len(), 1);
    assert_eq!(place.names(1).len() + place.names(2).len(), 0);
    assert_eq!(state(&place, &[]).unwrap(), rows(&place.file));
    place.sql("UPDATE t SET x = 'on' WHERE n = 1");
    let last = place.once(&["--no-compaction"]);
    assert!(last.contains("ltx/0/") && !last.contains("ltx/1/"), "{last}");
    assert_eq!(state(&place, &[]).unwrap(), rows(&place.file));
}

#[test]
fn a_damaged_batch_does_not_hold_up_the_others() {
    let place = Place::new(50);
    for n in 0..6 {
        place.sql(&format!("UPDATE t SET x = {n} WHERE n = 1"));
        place.once(&["--no-compaction"]);
    }
    let third = place.store().join("ltx/0").join(&place.names(0)[2]);
    let mut bytes = std::fs::read(&third).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&third, bytes).unwrap();
    for _ in 0..4 {
        let output =
            place.replicate(&[&["--once", "-v", "--snapshot-interval", "1ms"], &HASTY[..]].concat()).output().unwrap();
        assert!(output.status.success(), "{}", said(&output));
        std::thread::sleep(Duration::from_millis(5));
        place.sql("UPDATE t SET x = 'on' || x WHERE n = 1");
    }
    place.once(&HASTY);
    assert!(third.exists(), "what cannot be merged is not removed");
    assert!(place.names(0).len() <= 3, "{:?}", place.names(0));
    assert_eq!(state(&place, &[]).unwrap(), rows(&place.file));
}

#[test]
fn batches_stay_if_their_merged_file_is_gone() {
    let place = Place::new(50);
    let (zero, hour) = (Duration::ZERO, Duration::from_secs(3600));
    let settings = |keep_batches| {
        let levels = Some(Levels { intervals: vec![zero], keep_batches, retention: hour });
        Settings { snapshot_interval: zero, levels, sync: None, merges: Merges::InStep, stays: false }
    };
    let step = |shipper: &mut Shipper, n: u32| {
        place.sql(&format!("UPDATE t SET x = {n} WHERE n = 1"));
        std::thread::sleep(Duration::from_millis(2));
        shipper.step(&mut |_| ()).unwrap();
    };
    let open = || store::open(&place.url()).unwrap();
    let mut shipper = ships(&place.file, open, &settings(Duration::from_millis(500)));
    for n in 0..5 {
        step(&mut shipper, n);
    }
    let merged = place.names(1);
    assert!(merged.len() >= 3 && place.names(0).len() == 5, "{merged:?}");
    std::fs::remove_dir_all(place.store().join("ltx/1")).unwrap();
    std::thread::sleep(Duration::from_millis(600));
    step(&mut shipper, 10);
    assert_eq!(place.names(0).len(), 6);
    assert_eq!(
        state(&place, &["--txid", "4"]).map(|state| state.len()),
        state(&place, &["--txid", "5"]).map(|state| state.len())
    );
    assert_eq!(state(&place, &[]).unwrap(), rows(&place.file));
}

/// A file that changes nothing, by a clock that is `wrong_ms` ahead.
fn ship_at(place: &Place, level: u8, wrong_ms: i64) {
    let bytes = std::fs::read(&place.file).unwrap();
    let (page_bytes, max) = (4096, place.names(0).len() as u64 + 1);
    let min = if level == 0 { max } else { 1 };
    let pages = (bytes.len() / page_bytes) as u32;
    let now_ms = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_millis();
    let time_ms = i64::try_from(now_ms).unwrap() + wrong_ms;
    let header = Header { page_bytes: page_bytes as u32, pages, min, max, time_ms, node: 1 };
    let mut store = store::open(&place.url()).unwrap();
    store.begin(1).unwrap();
    let made = store.create(Name { level, min, max }, time_ms, &mut |to| {
        let mut writer = Writer::begin(to, header)?;
        for (n, page) in (1..).zip(bytes.chunks(page_bytes)).take(if min == 1 { usize::MAX } else { 1 }) {
            writer.page(n, page)?;
        }
        writer.finish()?;
        Ok(())
    });
    assert!(made.unwrap());
}

const DAY_MS: i64 = 24 * 3600 * 1000;

/// Regression: merging, snapshots and times stood still for a day.
#[test]
fn a_clock_that_was_ahead_for_one_batch_holds_nothing_up() {
    let place = Place::new(20);
    let mut known = vec![(String::new(), String::new())];
    let step = |known: &mut Vec<(String, String)>, more: &[&str]| {
        place.sql(&format!("UPDATE t SET x = {} WHERE n = 1", known.len()));
        place.once(more);
        std::thread::sleep(Duration::from_millis(5));
        known.push((humantime::format_rfc3339_millis(SystemTime::now()).to_string(), rows(&place.file)));
        std::thread::sleep(Duration::from_millis(5));
    };
    (1..4).for_each(|_| step(&mut known, &["--no-compaction"]));
    ship_at(&place, 0, DAY_MS);
    (4..8).for_each(|_| step(&mut known, &["--no-compaction"]));
    for name in &place.names(0)[4..] {
        let time = std::fs::metadata(place.store().join("ltx/0").join(name)).unwrap().modified().unwrap();
        assert!(time <= SystemTime::now(), "{name} is of {}", humantime::format_rfc3339(time));
    }
    let at = |time: &str| state(&place, &["--timestamp", time]);
    for (time, state) in &known[1..] {
        assert_eq!(at(time).as_ref(), Some(state), "{time}");
    }
    (8..12).for_each(|_| step(&mut known, &[&["--snapshot-interval", "1ms"], &HASTY[..]].concat()));
    assert!(place.names(9).len() >= 3, "{:?}", place.names(9));
    assert!(!place.names(2).is_empty() && place.names(0).len() <= 3, "{:?} {:?}", place.names(0), place.names(2));
    let (time, newest) = known.last().unwrap();
    assert_eq!(state(&place, &[]).as_ref(), Some(newest));
    assert_eq!(at(time).as_ref(), Some(newest));
}

/// Without a snapshot nothing is merged.
#[test]
fn a_clock_that_was_ahead_for_the_first_file_holds_nothing_up() {
    let place = Place::new(20);
    place.once(&["--no-compaction"]);
    let first = std::fs::File::options().append(true).open(place.store().join("ltx/0").join(&place.names(0)[0]));
    first.unwrap().set_modified(SystemTime::now() + Duration::from_secs(24 * 3600)).unwrap();
    for n in 1..5 {
        place.sql(&format!("UPDATE t SET x = {n} WHERE n = 1"));
        place.once(&HASTY);
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(place.names(9).len(), 1);
    assert!(!place.names(1).is_empty());
}

/// A snapshot dated 1970 removes nothing, either.
#[test]
fn a_clock_that_was_behind_removes_nothing() {
    let place = Place::new(20);
    let mut states = vec![String::new()];
    for n in 1..6 {
        place.sql(&format!("UPDATE t SET x = {n} WHERE n = 1"));
        if n == 4 {
            ship_at(&place, 9, -50 * 365 * DAY_MS);
        }
        place.once(&["--no-compaction"]);
        states.push(rows(&place.file));
    }
    let now = humantime::format_rfc3339_millis(SystemTime::now()).to_string();
    place.once(&["--levels", "1h", "--retention", "1h"]);
    for (n, state_n) in states.iter().enumerate().skip(1) {
        assert_eq!(state(&place, &["--txid", &n.to_string()]).as_ref(), Some(state_n), "{n}");
    }
    assert_eq!(state(&place, &["--timestamp", &now]).as_ref(), states.last());
    assert_eq!(state(&place, &["--timestamp", "2000-01-01T00:00:00Z"]), None);
}

/// Serves `left` calls; then all fail, the first of them perhaps after its effect.
struct Faulty {
    inner: Box<dyn Store>,
    left: Arc<AtomicI64>,
    after: bool,
}

impl Faulty {
    fn call<T>(&self, f: impl FnOnce() -> Result<T>) -> Result<T> {
        match self.left.fetch_sub(1, Ordering::Relaxed) {
            1.. => f(),
            0 if self.after => f().and_then(|_| bail!("cut off")),
            _ => bail!("cut off"),
        }
    }
}

impl Store for Faulty {
    fn begin(&mut self, node: u64) -> Result<Conditions> {
        self.inner.begin(node)
    }

    fn owner(&self) -> Result<Option<(Vec<u8>, Version)>> {
        self.inner.owner()
    }

    fn set_owner(&self, was: Option<&Version>, record: &[u8]) -> Result<bool> {
        self.inner.set_owner(was, record)
    }
    fn list_from(&self, level: u8, first: u64) -> Result<Vec<Entry>> {
        self.call(|| self.inner.list_from(level, first))
    }
    fn has(&self, name: Name) -> Result<bool> {
        self.call(|| self.inner.has(name))
    }
    fn open(&self, name: Name) -> Result<Box<dyn Read>> {
        self.call(|| self.inner.open(name))
    }
    fn read_part(&self, name: Name, offset: u64, bytes: u64) -> Result<Vec<u8>> {
        self.call(|| self.inner.read_part(name, offset, bytes))
    }
    fn create(&self, name: Name, time_ms: i64, fill: Fill<'_>) -> Result<bool> {
        self.call(|| self.inner.create(name, time_ms, fill))
    }
    fn remove(&self, name: Name) -> Result<()> {
        self.call(|| self.inner.remove(name))
    }
}

/// A child that another test forks keeps the store's lock until its exec.
fn ships(file: &Path, store: impl Fn() -> Box<dyn Store>, settings: &Settings) -> Shipper {
    let mut tries = 0;
    loop {
        match Shipper::new(file, store(), settings.clone()) {
            Ok(shipper) => return shipper,
            Err(e) if tries < 200 && e.to_string().contains("another process ships") => tries += 1,
            Err(e) => panic!("{e:#}"),
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn cut_off_after_any_call_the_newest_state_is_there() {
    let zero = Duration::ZERO;
    let levels = Levels { intervals: vec![zero, zero, zero], keep_batches: zero, retention: zero };
    let settings = |snapshot_interval| Settings {
        snapshot_interval,
        levels: Some(levels.clone()),
        sync: None,
        merges: Merges::InStep,
        stays: false,
    };
    let (mut calls, mut ended) = (0, false);
    while !ended {
        for after in [false, true] {
            let place = Place::new(30);
            let left = Arc::new(AtomicI64::new(calls));
            let store = || -> Box<dyn Store> {
                Box::new(Faulty { inner: store::open(&place.url()).unwrap(), left: left.clone(), after })
            };
            let snapshots = if calls % 2 == 0 { zero } else { Duration::from_secs(1000) };
            let mut shipper = ships(&place.file, store, &settings(snapshots));
            let (mut shipped, mut last) = (None, None);
            for n in 0..5 {
                place.sql(&format!(
                    "UPDATE t SET x = randomblob(100) WHERE n % 5 = {n}; INSERT INTO t VALUES (100 + {n}, 'x')"
                ));
                last = Some(rows(&place.file));
                if shipper.step(&mut |_| ()).is_err() {
                    break;
                }
                shipped.clone_from(&last);
                std::thread::sleep(Duration::from_millis(2));
            }
            ended = left.load(Ordering::Relaxed) > 0;
            drop(shipper);
            let dest = place.dir.path().join("dest.db");
            let restored =
                restore(&*store::open(&place.url()).unwrap(), &dest, Target::Newest, RestoreOptions::default());
            match restored {
                Ok(_) => {
                    let restored = Some(rows(&dest));
                    assert!(restored == shipped || restored == last, "after {calls} calls, {after}");
                }
                Err(e) => assert!(shipped.is_none(), "after {calls} calls, {after}: {e:#}"),
            }
            let mut shipper = ships(&place.file, || store::open(&place.url()).unwrap(), &settings(snapshots));
            shipper.last_step(&mut |_| ()).unwrap();
            drop(shipper);
            assert_eq!(state(&place, &[]).unwrap(), rows(&place.file), "after {calls} calls, {after}");
        }
        calls += 1;
    }
    assert!(calls > 40, "{calls} calls");
}

#[test]
fn killed_at_any_moment_while_it_merges() {
    let place = Place::new(200);
    let mut random = fastrand::Rng::new();
    let db = place.open();
    // Else the first shipper could be killed before its first file.
    assert!(place.replicate(&["--once"]).output().unwrap().status.success());
    for _ in 0..12 {
        let mut args = vec!["--interval", "2ms", "--snapshot-interval", "40ms"];
        args.extend(["--levels", "5ms,15ms,40ms", "--keep-batches", "3ms", "--retention", "60ms"]);
        let shipper = Killed(place.replicate(&args).spawn().unwrap());
        until("the first snapshot", || !place.names(0).is_empty());
        let end = std::time::Instant::now() + Duration::from_millis(random.u64(20..300));
        while std::time::Instant::now() < end {
            db.execute("UPDATE t SET x = randomblob(90) WHERE n = ?1", [random.u32(1..200)]).unwrap();
        }
        drop(shipper);
        assert!(state(&place, &[]).is_some());
        if let Some(stock) = place.litestream_restore(&[]) {
            assert_eq!(rows(&stock), state(&place, &[]).unwrap());
        }
    }
    drop(db);
    place.once(&HASTY);
    assert_eq!(state(&place, &[]).unwrap(), rows(&place.file));
}
