//! Judges each read of the sessions by the lines that all sessions reported before it.
//!
//! All processes write to one pipe, before and after each step. So a transaction that reported its
//! end before a reader reported its begin was over when the reader began; and the rows that a
//! reader found were begun before it reported them.

use std::collections::{BTreeMap, HashMap};

use anyhow::{Context, Result, bail, ensure};

pub const ROWS_MAX: u64 = 450;

/// Consecutive ids, both ends included.
pub type Ids = (u64, u64);

/// One row; moments count reports, 0: not yet.
#[derive(Clone, Copy, Default)]
struct Row {
    /// A session that means to commit has begun to insert it.
    begun: bool,
    /// Its transaction is committed.
    acknowledged: u64,
    /// A transaction that must have deleted it is committed.
    deleted: u64,
}

/// The reports on one database.
#[derive(Default)]
pub struct Known {
    now: u64,
    rows: Vec<Row>,
    /// First rows and numbers of rows of larger transactions.
    large: BTreeMap<u64, u64>,
    /// Rows with a lower id may be deleted.
    below: u64,
    /// By session: the id below which it deletes, and the moment.
    deletes: HashMap<u64, (u64, u64)>,
    reads: HashMap<u64, Read>,
    /// By session: the moment of its open.
    opened: HashMap<u64, u64>,
    /// The last moment of a possible replacement of the database.
    renamed: u64,
    /// Commands that may be replacing it.
    renaming: u64,
}

struct Read {
    begun: u64,
    found: Vec<Ids>,
}

impl Known {
    fn tick(&mut self) -> u64 {
        self.now += 1;
        self.now
    }

    fn row(&mut self, id: u64) -> &mut Row {
        let at = id as usize;
        if self.rows.len() <= at {
            self.rows.resize(at + 1, Row::default());
        }
        &mut self.rows[at]
    }

    /// A transaction with these rows begins. Rows that will be rolled back are not reported.
    pub fn begins(&mut self, first: u64, rows: u64) {
        for id in first..first + rows {
            self.row(id).begun = true;
        }
        if rows > 1 {
            self.large.insert(first, rows);
        }
    }

    pub fn acknowledged(&mut self, first: u64, rows: u64) {
        let now = self.tick();
        for id in first..first + rows {
            self.row(id).acknowledged = now;
        }
    }

    pub fn deletes(&mut self, session: u64, below: u64) {
        let now = self.tick();
        self.below = self.below.max(below);
        self.deletes.insert(session, (below, now));
    }

    /// The delete is committed: rows committed before its begin are gone. A later row may have a
    /// lower id.
    pub fn deleted(&mut self, session: u64) -> Result<()> {
        let now = self.tick();
        let (below, begun) = self.deletes.remove(&session).context("a delete that did not begin")?;
        let there = |row: &&mut Row| row.acknowledged > 0 && row.acknowledged < begun && row.deleted == 0;
        for row in self.rows.iter_mut().take(below as usize).filter(there) {
            row.deleted = now;
        }
        Ok(())
    }

    pub fn opens(&mut self, session: u64) {
        let now = self.tick();
        self.opened.insert(session, now);
    }

    /// A command may replace the database from now on.
    pub fn renames(&mut self) {
        self.renaming += 1;
    }

    /// The command has ended; `changed`: another file may have the name.
    pub fn renamed(&mut self, changed: bool) {
        self.renaming = self.renaming.saturating_sub(1);
        if changed {
            self.renamed = self.tick();
        }
    }

    /// The moment of a session's open, if its file may have been replaced since: that file has all
    /// commits until the open.
    pub fn older_file(&self, session: u64) -> Option<u64> {
        let opened = *self.opened.get(&session)?;
        (self.renaming > 0 || self.renamed > opened).then_some(opened)
    }

    pub fn reads(&mut self, session: u64) {
        let begun = self.tick();
        self.reads.insert(session, Read { begun, found: Vec::new() });
    }

    /// A reader found these rows.
    pub fn found(&mut self, session: u64, ids: &[Ids]) -> Result<()> {
        let read = self.reads.get_mut(&session).context("a read that did not begin")?;
        read.found.extend_from_slice(ids);
        Ok(())
    }

    pub fn judge(&mut self, session: u64) -> Result<()> {
        let mut read = self.reads.remove(&session).context("a read that did not begin")?;
        read.begun = self.older_file(session).unwrap_or(read.begun);
        let mut found = vec![false; self.rows.len()];
        for id in read.found.iter().flat_map(|&(from, to)| from..=to) {
            let row = self.rows.get(id as usize).filter(|row| row.begun);
            let row = row.with_context(|| format!("row {id} is there, and nobody committed it"))?;
            ensure!(row.deleted == 0 || row.deleted > read.begun, "row {id} is there, and was deleted");
            found[id as usize] = true;
        }
        self.nothing_lost(&read, &found)?;
        self.all_or_nothing(&found)
    }

    fn nothing_lost(&self, read: &Read, found: &[bool]) -> Result<()> {
        for (id, row) in self.rows.iter().enumerate().skip(self.below as usize) {
            let there = row.acknowledged > 0 && row.acknowledged < read.begun;
            if there && !found[id] {
                let count = found.iter().filter(|found| **found).count();
                let below = self.below;
                bail!("row {id} was acknowledged and is not there ({count} rows are; deletes may go up to {below})");
            }
        }
        Ok(())
    }

    fn all_or_nothing(&self, found: &[bool]) -> Result<()> {
        for (&first, &rows) in self.large.range(self.below.saturating_sub(ROWS_MAX)..) {
            let from = first.max(self.below);
            let there = (from..first + rows).filter(|&id| found[id as usize]).count() as u64;
            let all = (first + rows).saturating_sub(from);
            ensure!(there == 0 || there == all, "of {all} rows of one transaction, from {from} on, {there} are there");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WRITER: u64 = 1;
    const READER: u64 = 2;

    /// Rows 1 to 4 each in its own transaction, 5 to 8 in one.
    fn known() -> Known {
        let mut known = Known::default();
        for (first, rows) in [(1, 1), (2, 1), (3, 1), (4, 1), (5, 4)] {
            known.begins(first, rows);
            known.acknowledged(first, rows);
        }
        known
    }

    fn read(known: &mut Known, found: &[Ids]) -> String {
        known.reads(READER);
        said(known, found)
    }

    fn said(known: &mut Known, found: &[Ids]) -> String {
        known.found(READER, found).unwrap();
        known.judge(READER).map_or_else(|e| e.to_string(), |()| "right".into())
    }

    #[test]
    fn acknowledged_rows_have_to_be_there() {
        assert_eq!(read(&mut known(), &[(1, 8)]), "right");
        assert!(read(&mut known(), &[(1, 2), (4, 8)]).starts_with("row 3 was acknowledged"));
        assert!(read(&mut known(), &[]).starts_with("row 1 was acknowledged"));
    }

    #[test]
    fn a_row_acknowledged_after_a_read_began_may_be_there_or_not() {
        for found in [&[(1, 8)][..], &[(1, 9)]] {
            let mut known = known();
            known.reads(READER);
            known.begins(9, 1);
            known.acknowledged(9, 1);
            assert_eq!(said(&mut known, found), "right");
        }
    }

    #[test]
    fn rows_without_a_commit_are_noticed() {
        let mut known = known();
        assert!(read(&mut known, &[(1, 9)]).starts_with("row 9 is there, and nobody"));
        known.begins(9, 1);
        assert_eq!(read(&mut known, &[(1, 9)]), "right", "its process may have been killed before it told");
    }

    #[test]
    fn half_a_transaction_is_noticed() {
        let mut known = known();
        known.begins(9, 3);
        assert_eq!(read(&mut known, &[(1, 8)]), "right");
        assert_eq!(read(&mut known, &[(1, 11)]), "right");
        assert!(read(&mut known, &[(1, 10)]).starts_with("of 3 rows of one transaction"));
    }

    #[test]
    fn deleted_rows_may_go_once_that_has_begun_and_have_to_at_its_end() {
        let mut known = known();
        known.begins(9, 1);
        known.deletes(WRITER, 4);
        assert_eq!(read(&mut known, &[(1, 8)]), "right");
        assert_eq!(read(&mut known, &[(4, 8)]), "right");
        known.reads(READER);
        known.deleted(WRITER).unwrap();
        assert_eq!(said(&mut known, &[(1, 8)]), "right", "it began before the end of the delete");
        assert!(read(&mut known, &[(2, 8)]).starts_with("row 2 is there, and was deleted"));
    }

    #[test]
    fn the_file_that_had_the_name_before_keeps_the_commits_until_then() {
        let outcome = |opens_late: bool, changed: bool| {
            let mut known = known();
            known.opens(if opens_late { WRITER } else { READER });
            known.renames();
            known.renamed(changed);
            if opens_late {
                known.opens(READER);
            }
            known.begins(9, 1);
            known.acknowledged(9, 1);
            [read(&mut known, &[(1, 8)]), read(&mut known, &[(1, 7)])]
        };
        let lost = |row: u64| format!("row {row} was acknowledged");
        let [without_9, without_8] = outcome(false, true);
        assert_eq!(without_9, "right");
        assert!(without_8.starts_with(&lost(8)), "{without_8}");
        for (opens_late, changed) in [(true, true), (false, false)] {
            let [without_9, _] = outcome(opens_late, changed);
            assert!(without_9.starts_with(&lost(9)), "{without_9}");
        }
    }

    #[test]
    fn a_row_committed_while_others_are_deleted_may_stay() {
        let mut known = known();
        known.begins(10, 1);
        known.deletes(WRITER, 12);
        known.acknowledged(10, 1);
        known.deleted(WRITER).unwrap();
        assert_eq!(read(&mut known, &[(10, 10)]), "right");
        assert_eq!(read(&mut known, &[]), "right");
    }
}
