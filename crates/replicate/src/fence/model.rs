//! Takeovers, stopped owners and removals under a model checker, by the real [`StoreClaim`],
//! [`shut_out`], file format and restore plan. The store in memory fails before or after a
//! request's effect, answers late, and takes requests long after their senders gave up. Each rule
//! is left out once, and an error must be found.

use super::*;
use crate::plan::{Target, newest, plan};
use crate::rules::model;
use crate::state::Sink;
use crate::store::memory::{Faults, Memory, trace};
use crate::store::{Entry, list_all};
use shuttle::rand::Rng;
use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::sync::Mutex;
use shuttle::thread;
use shuttle::{Config, Runner};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

const PAGE_BYTES: u32 = 512;

/// A database, as the commits in it. Each has a page behind page 1, so a replaced or missing file
/// is found.
type Rows = [bool; ROWS];
const ROWS: usize = 12;

fn page(row: bool) -> Vec<u8> {
    vec![u8::from(row); PAGE_BYTES as usize]
}

/// Writes the pages that differ, or all into a snapshot.
fn write(to: &mut dyn Write, name: Name, node: u64, before: &Rows, rows: &Rows) -> Result<()> {
    let pages = u32::try_from(ROWS + 1).unwrap();
    let header = Header { page_bytes: PAGE_BYTES, pages, min: name.min, max: name.max, time_ms: 0, node };
    let mut writer = Writer::begin(to, header)?;
    writer.page(1, &page(false))?;
    for (n, (before, row)) in (2..).zip(before.iter().zip(rows)) {
        if before != row || name.min == 1 {
            writer.page(n, &page(*row))?;
        }
    }
    writer.finish()?;
    Ok(())
}

#[derive(Default)]
struct Pages(BTreeMap<u32, Vec<u8>>);

impl Sink for Pages {
    fn begin(&mut self, _: &Header) -> Result<()> {
        Ok(())
    }

    fn page(&mut self, _: &Header, page: u32, image: &[u8]) -> Result<()> {
        self.0.insert(page, image.to_vec());
        Ok(())
    }
}

#[derive(Default)]
struct Applied(Rows);

impl Sink for Applied {
    fn begin(&mut self, _: &Header) -> Result<()> {
        Ok(())
    }

    fn page(&mut self, _: &Header, page: u32, image: &[u8]) -> Result<()> {
        if page > 1 {
            self.0[usize::try_from(page)? - 2] = image[0] == 1;
        }
        Ok(())
    }
}

/// As `state::apply`, without its threads, which the checker does not control.
fn apply(store: &dyn Store, plan: &[Entry], sink: &mut dyn Sink) -> Result<()> {
    let mut image = Vec::new();
    for entry in plan {
        let mut reader = Reader::open(store.open(entry.name)?)?;
        let header = *reader.header();
        sink.begin(&header)?;
        while let Some(page) = reader.page(&mut image)? {
            sink.page(&header, page, &image)?;
        }
        reader.finish()?;
    }
    sink.end()
}

fn restored(store: &dyn Store) -> Result<(Rows, u64)> {
    let entries = list_all(store)?;
    let mut applied = Applied::default();
    apply(store, &plan(&entries, Target::Newest)?, &mut applied)?;
    Ok((applied.0, newest(&entries)))
}

#[derive(Default)]
struct Known {
    acknowledged: BTreeMap<usize, u64>,
    /// Commits that were tried, each with the last epoch that tried it.
    tried: BTreeMap<usize, u64>,
    /// The last owner's epoch, and its commits when its last file counted.
    last: (u64, Rows),
    epochs: Vec<u64>,
}

impl Known {
    fn counts(&mut self, epoch: u64, rows: &Rows) {
        if epoch >= self.last.0 {
            self.last = (epoch, *rows);
        }
    }
}

#[derive(Clone)]
struct World {
    store: Memory,
    known: Arc<Mutex<Known>>,
}

impl World {
    fn take(&self, node: &Node, how: ClaimMode) -> Option<StoreClaim> {
        for _ in 0..3 {
            match StoreClaim::take(&self.store, node, how) {
                Ok(claim) => {
                    self.known.lock().unwrap().epochs.push(claim.epoch());
                    return Some(claim);
                }
                Err(e) if e.is::<Fenced>() => return None,
                Err(_) => {}
            }
        }
        None
    }

    /// A shipper with `--sync`: one commit at a time, acknowledged when it counts as shipped.
    fn ship(&self, claim: &mut StoreClaim, rows: &mut Rows, commits: Range<usize>) {
        let mut at = None;
        for commit in commits {
            rows[commit] = true;
            self.known.lock().unwrap().tried.insert(commit, claim.epoch());
            for tries in 0.. {
                if tries == 6 {
                    return;
                }
                match self.ship_once(claim, &mut at, rows) {
                    Ok(Put::Shipped) => {
                        trace!("{:x} acknowledges {commit} as {at:?}", claim.node());
                        let mut known = self.known.lock().unwrap();
                        known.counts(claim.epoch(), rows);
                        known.acknowledged.insert(commit, claim.epoch());
                        break;
                    }
                    Ok(Put::Beaten) => at = None,
                    // Only a lost commit may show that a rule is missing.
                    Ok(Put::Foreign) if !model::keeps_all() => return,
                    Ok(Put::Foreign) => panic!("all of them keep to the rules"),
                    Err(e) if e.is::<Fenced>() => return,
                    Err(_) => at = None,
                }
            }
        }
    }

    fn ship_once(&self, claim: &mut StoreClaim, at: &mut Option<(Rows, u64)>, rows: &Rows) -> Result<Put> {
        let (before, txid) = match at.take() {
            Some(known) => known,
            None => {
                let entries = list_all(&self.store)?;
                claim.check_position(&self.store, newest(&entries))?;
                let mut applied = Applied::default();
                if !entries.is_empty() {
                    apply(&self.store, &plan(&entries, Target::Newest)?, &mut applied)?;
                }
                (applied.0, newest(&entries))
            }
        };
        let (txid, node) = (txid + 1, claim.node());
        let name = Name { level: BATCHES, min: txid, max: txid };
        trace!("{node:x}, epoch {}, puts {txid}", claim.epoch());
        let put = claim.put(&self.store, name, 0, &mut |to| write(to, name, node, &before, rows));
        trace!("{node:x}, epoch {}, has put {txid}: {put:?}", claim.epoch());
        *at = Some((*rows, txid));
        put
    }

    /// Merges and removes. Asks for the owner first, so that others may come in between.
    fn merge(&self, claim: &StoreClaim, rounds: u32) -> Result<()> {
        for _ in 0..rounds {
            let batches = self.store.list(BATCHES)?;
            let firsts = claim.check(&self.store)?.firsts;
            self.merge_unasked(claim, &batches, &firsts)?;
        }
        Ok(())
    }

    /// Merges and removes `batches`, which were there while the store was this claim's.
    fn merge_unasked(&self, claim: &StoreClaim, batches: &[Entry], firsts: &[u64]) -> Result<()> {
        let merged = newest(&self.store.list(1)?);
        let next: Vec<_> = batches.iter().filter(|e| e.name.max > merged).copied().collect();
        if let (Some(first), Some(last)) = (next.first(), next.last())
            && first.name.min == merged + 1
            && last.name.max - merged == next.len() as u64
        {
            let mut applied = Pages::default();
            apply(&self.store, &next, &mut applied)?;
            let name = Name { level: 1, min: first.name.min, max: last.name.max };
            self.store.create(name, 0, &mut |to| {
                let pages = u32::try_from(ROWS + 1)?;
                let header = Header {
                    page_bytes: PAGE_BYTES,
                    pages,
                    min: name.min,
                    max: name.max,
                    time_ms: 0,
                    node: claim.node(),
                };
                let mut writer = Writer::begin(to, header)?;
                for (page, image) in &applied.0 {
                    writer.page(*page, image)?;
                }
                writer.finish()?;
                Ok(())
            })?;
            trace!("merged as {name}");
        }
        let merged = newest(&self.store.list(1)?);
        let due = |entry: &&Entry| entry.name.max <= merged && !firsts.contains(&entry.name.max);
        for entry in batches.iter().filter(due) {
            self.store.remove(entry.name)?;
        }
        Ok(())
    }

    fn promote(&self, node: &Node, commits: Range<usize>) {
        let Some(mut claim) = self.take(node, ClaimMode::Promote) else { return };
        let mut rows = None;
        for _ in 0..3 {
            match shut_out(&self.store, &mut claim, 0, &mut |store| {
                let (read, txid) = restored(store)?;
                rows = Some(read);
                Ok(Tip { txid, page_bytes: PAGE_BYTES, pages: u32::try_from(ROWS + 1)?, first: page(false) })
            }) {
                Ok(txid) => {
                    trace!("{:x} promoted, epoch {}, shuts out with {txid}", node.id, claim.epoch());
                    break;
                }
                Err(e) if e.is::<Fenced>() => return,
                Err(_) => rows = None,
            }
        }
        let Some(rows) = rows else { return };
        let known = {
            let mut known = self.known.lock().unwrap();
            known.counts(claim.epoch(), &rows);
            known.acknowledged.clone()
        };
        let earlier = known.into_iter().filter(|(_, epoch)| *epoch < claim.epoch());
        let missing: Vec<_> = earlier.filter(|(commit, _)| !rows[*commit]).collect();
        assert!(missing.is_empty(), "{:x} was promoted without {missing:?}", node.id);
        // Ends, claims again as `replicate` does, or goes on.
        if shuttle::rand::thread_rng().gen_ratio(1, 4) {
            return;
        }
        if shuttle::rand::thread_rng().r#gen() {
            let Some(again) = self.take(node, ClaimMode::Resume) else { return };
            claim = again;
        }
        self.work(node, claim, rows, commits);
    }

    fn work(&self, node: &Node, mut claim: StoreClaim, mut rows: Rows, commits: Range<usize>) {
        let ours = claim.clone();
        let world = self.clone();
        let merging = thread::spawn(move || _ = world.merge(&ours, 2));
        let middle = commits.start + 2;
        self.ship(&mut claim, &mut rows, commits.start..middle);
        if shuttle::rand::thread_rng().r#gen() {
            merging.join().unwrap();
        }
        // Killed and restarted: another process of the node has the same database.
        let Some(mut claim) = self.take(node, ClaimMode::Resume) else { return };
        self.ship(&mut claim, &mut rows, middle..commits.end);
    }
}

fn node(id: u64) -> Node {
    Node { id, host: "here".to_owned(), file: "app.db".to_owned(), mode: None, sync: false, lock: None }
}

fn run(faults: u32) {
    let store = Memory::new(Faults::default());
    let known = Arc::default();
    let world = World { store, known };
    let mut first = world.take(&node(1), ClaimMode::Resume).unwrap();
    let mut rows = [false; ROWS];
    world.ship(&mut first, &mut rows, 0..1);
    let faults = Faults { changes: faults, late: true, ..Faults::default() };
    let world = World { store: world.store.with(faults), ..world };
    // In a third of the runs one owner merges and another node takes over.
    let one_merges = shuttle::rand::thread_rng().gen_ratio(1, 3);
    let threads: Vec<_> = (1..=3)
        .map(|n| {
            let (world, mut first, mut rows) = (world.clone(), first.clone(), rows);
            thread::spawn(move || match n {
                1 if one_merges => {
                    let Ok(mut batches) = world.store.list(BATCHES) else { return };
                    let Ok(owner) = first.check(&world.store) else { return };
                    world.ship(&mut first, &mut rows, 1..2);
                    if !world.known.lock().unwrap().acknowledged.contains_key(&1) {
                        return;
                    }
                    let behind = newest(&batches) + 1;
                    let Ok(now) = world.store.list(BATCHES) else { return };
                    batches.extend(now.iter().filter(|entry| entry.name.max == behind));
                    let _ = world.merge_unasked(&first, &batches, &owner.firsts);
                }
                3 if one_merges => {}
                1 => world.work(&node(1), first, rows, 1..5),
                2 => world.promote(&node(2), 5..9),
                _ => world.promote(&node(3), 9..12),
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
    // Late removals may come between.
    let restored = (0..20).find_map(|_| restored(&world.store).ok());
    let (rows, _) = restored.expect("the newest state can be restored");
    let known = world.known.lock().unwrap();
    let lost: Vec<_> = known.acknowledged.keys().filter(|commit| !rows[**commit]).collect();
    assert!(lost.is_empty(), "lost: {lost:?}");
    let (epoch, last) = known.last;
    let of_others = |commit: &usize| rows[*commit] && !last[*commit] && known.tried[commit] < epoch;
    let back: Vec<_> = (0..ROWS).filter(of_others).collect();
    assert!(back.is_empty(), "{back:?} is in the store and not in the database of epoch {epoch}");
    let epochs: BTreeSet<u64> = known.epochs.iter().copied().collect();
    assert_eq!(epochs.len(), known.epochs.len(), "an epoch has two winners: {:?}", known.epochs);
}

fn goes_wrong(left_out: Option<Rule>, faults: u32, seed: u64, runs: usize) -> bool {
    let mut config = Config::new();
    config.stack_size = 1 << 18;
    !model::is_right(left_out, || {
        // Half of the runs change threads seldom.
        Runner::new(PctScheduler::new_from_seed(seed, 4, runs / 2), config.clone()).run(move || run(faults));
        Runner::new(RandomScheduler::new_from_seed(seed, runs - runs / 2), config).run(move || run(faults));
    })
}

fn runs() -> usize {
    std::env::var("ONEWRITE_MODEL_RUNS").ok().map_or(1000, |runs| runs.parse().unwrap())
}

#[test]
fn nothing_acknowledged_is_lost() {
    let seed = std::env::var("ONEWRITE_MODEL_SEED").ok().map_or(1, |seed| seed.parse().unwrap());
    for faults in [0, 12, 4] {
        assert!(!goes_wrong(None, faults, seed, runs()), "seed {seed}, faults: {faults}");
    }
}

#[test]
fn each_rule_is_missed() {
    use Rule::*;
    // CheckSlot takes long to find from seed 1 on.
    for (left_out, from) in [(CheckPosition, 1), (FirstStays, 1), (CheckSlot, 86), (CreateOnce, 1), (ReplaceIfRead, 1)]
    {
        let found = (from..from + 60).find(|seed| goes_wrong(Some(left_out), 12, *seed, 1000));
        assert!(found.is_some(), "{left_out:?} can be left out");
        println!("{left_out:?}: found with seed {found:?}");
    }
}
