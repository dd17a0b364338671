//! Locks are like open-file-description locks.

use super::LockKind;

#[derive(Clone, Debug)]
struct Lock {
    handle: u64,
    start: i64,
    end: i64,
    kind: LockKind,
}

#[derive(Clone, Debug, Default)]
pub(super) struct LockTable(Vec<Lock>);

impl LockTable {
    /// Whether another handle's lock conflicts.
    pub fn conflicts(&self, handle: u64, (start, len): (i64, i64), kind: LockKind) -> bool {
        let end = start + len;
        let exclusive = kind == LockKind::Exclusive;
        self.0.iter().any(|held| {
            held.handle != handle
                && held.start < end
                && start < held.end
                && (exclusive || held.kind == LockKind::Exclusive)
        })
    }

    /// False, and nothing changed, if another handle's lock conflicts.
    pub fn try_lock(&mut self, handle: u64, (start, len): (i64, i64), kind: LockKind) -> bool {
        if self.conflicts(handle, (start, len), kind) {
            return false;
        }
        self.unlock(handle, (start, len));
        self.0.push(Lock { handle, start, end: start + len, kind });
        true
    }

    pub fn unlock(&mut self, handle: u64, (start, len): (i64, i64)) {
        let end = start + len;
        for held in std::mem::take(&mut self.0) {
            if held.handle != handle || held.end <= start || end <= held.start {
                self.0.push(held);
                continue;
            }
            if held.start < start {
                self.0.push(Lock { end: start, ..held });
            }
            if end < held.end {
                self.0.push(Lock { start: end, ..held });
            }
        }
    }

    pub fn release(&mut self, handle: u64) {
        self.0.retain(|held| held.handle != handle);
    }
}
