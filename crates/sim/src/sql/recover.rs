//! `onewrite recover` of what a crash left, and another crash in it.

use std::sync::Arc;

use onewrite_core::Repair;
use onewrite_core::disk::OpenMode;
use onewrite_core::disk::sim::{SimDisk, SplitMix64};

use super::check::{Allowed, Setting, check, path};
use super::process::FILES;
use crate::check::{ROOMY, Violation};

/// More operations than most recoveries have.
const OPERATIONS: usize = 40;

/// As [`check`]; one in eight is recovered before.
pub(super) fn check_or_recover(
    setting: &Setting,
    disk: &SimDisk,
    allowed: &Allowed,
    unflushed: &Allowed,
    rng: &mut SplitMix64,
    depth: usize,
    recoveries: usize,
) -> Result<(), Violation> {
    // Not of `rng`, so that earlier seeds keep their histories.
    let mut apart = SplitMix64::new(rng.clone().next_u64() ^ 0x7265);
    if apart.below(8) > 0 {
        return check(setting, disk, allowed, unflushed, rng, depth, recoveries).map(drop);
    }
    let recovered = recover(disk, allowed, unflushed, &mut apart);
    let (after, allowed) = recovered.map_err(|what| Violation::on(disk, what))?;
    check(setting, &after, allowed, unflushed, rng, depth, 0).map(drop).map_err(|mut v| {
        v.what += " (behind `onewrite recover`)";
        v
    })
}

/// One of the databases is recovered, or the process dies in that, or the power goes in it or
/// behind it. Returns the disk that is left, and the states that it may have.
fn recover<'a>(
    disk: &SimDisk,
    allowed: &'a Allowed,
    unflushed: &'a Allowed,
    rng: &mut SplitMix64,
) -> Result<(SimDisk, &'a Allowed), String> {
    let file = rng.below(2);
    let after = disk.survive();
    after.set_capacity(ROOMY);
    if rng.below(2) == 0 {
        after.stop_after(rng.below(OPERATIONS) as u64);
    }
    match recover_file(&after, file) {
        Err(e) if !after.is_off() => Err(format!("`onewrite recover` of {}: {e}", FILES[file])),
        _ if rng.below(2) == 0 => Ok((after.survive(), allowed)),
        _ => Ok((after.crash(rng.next_u64()), unflushed)),
    }
}

/// A hot journal beside a mark is told of.
fn recover_file(disk: &SimDisk, file: usize) -> Result<(), String> {
    if disk.snapshot_file(&path(file)).is_none() {
        return Ok(());
    }
    let said = |e: onewrite_core::Error| format!("{e} ({e:?})");
    let open = || Repair::open(Arc::new(disk.clone()), &path(file), OpenMode::ReadWrite).map_err(said);
    let repair = open()?;
    let Some(session) = repair.mark().map_err(said)? else { return Ok(()) };
    if repair.hot_journal().map_err(said)?.is_some() {
        return Ok(());
    }
    let (preview, _) = repair.preview(session, false).map_err(said)?;
    let report = repair.recover(session, false).map_err(said)?;
    if report != preview {
        return Err(format!("it said before that it would do {preview:?}, and did {report:?}"));
    }
    match open()?.mark().map_err(said)? {
        Some(_) => Err("the mark is still on".to_owned()),
        None => Ok(()),
    }
}
