//! Canaries: the core with one safety rule broken, which the campaigns must find out.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use onewrite_core::rules::{Rule, break_on_this_thread};

use crate::check::Counts;
use crate::history::{self, Campaign};
use crate::sql;

/// How a broken rule was found out.
#[derive(Clone, Debug)]
pub struct Caught {
    /// Engine: `pager` or `sql`.
    pub engine: &'static str,
    /// The seed that repeats it.
    pub seed: u64,
    /// Crashes until then.
    pub crashes: u64,
    /// What did not hold.
    pub what: String,
}

/// Breaks `rule` (or none) and runs histories of both engines, of seeds from 1 to `seeds`, until one finds it out.
pub fn hunt(rule: Option<Rule>, seeds: u64, campaign: &Campaign) -> Option<Caught> {
    break_on_this_thread(rule);
    let counts: Arc<Counts> = Arc::default();
    let caught = (1..=seeds).find_map(|seed| {
        let pager = catch_unwind(AssertUnwindSafe(|| history::run(seed, campaign, &counts)));
        judge("pager", seed, pager, &counts).or_else(|| {
            let sql = catch_unwind(AssertUnwindSafe(|| sql::history::run(seed, campaign, &counts)));
            judge("sql", seed, sql, &counts)
        })
    });
    break_on_this_thread(None);
    caught
}

fn judge(
    engine: &'static str,
    seed: u64,
    outcome: std::thread::Result<Result<(), crate::check::Violation>>,
    counts: &Counts,
) -> Option<Caught> {
    let what = match outcome {
        Ok(Ok(())) => return None,
        Ok(Err(violation)) => violation.what,
        Err(_) => "panic".to_owned(),
    };
    Some(Caught { engine, seed, crashes: counts.crashes.load(Ordering::Relaxed), what })
}
