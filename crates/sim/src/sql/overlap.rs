//! Transactions of `concurrent=1` among which others commit.

use super::check::{bytes_of, empty};
use super::history::{Step, World};
use super::print::{Print, print};
use super::process::{SCHEMAS, explain};
use super::statements;
use super::transact::Rehearsal;

/// A transaction among others.
struct Overlap {
    number: usize,
    files: Vec<usize>,
    all: Vec<String>,
    /// Its results on its own snapshot, and whether it changes that.
    alone: Rehearsal,
    changes: bool,
    /// It and the others free no page, and mostly add some.
    grows: bool,
}

impl World {
    /// Others commit between the first statement and the commit of a transaction, which fails, or
    /// has the effect that it would have behind theirs.
    pub(super) fn overlap(&mut self) -> Step<()> {
        if self.clients.len() < 3 {
            return self.open_one().map(|_| ());
        }
        let Some(i) = self.writer()? else { return Ok(()) };
        if self.clients[i].reading.is_some() {
            return self.end_read(i);
        }
        let grows = self.rng.below(2) == 0 && self.oracles.lock().latest()[0] != empty();
        if grows && !self.is_ready_to_grow(i)? {
            return Ok(());
        }
        let (files, all) = match grows {
            true => (vec![0], statements::growth(SCHEMAS[0], self.rng.below(4), &mut self.rng)),
            false => self.draw_transaction(i),
        };
        let before = self.oracles.lock().latest();
        if self.is_wal() || files.iter().any(|file| before[*file] == empty()) {
            return self.transact(i, &files, &all);
        }
        let alone = self.rehearse(&files, &all)?;
        self.end_mirror(false)?;
        let changed = files.iter().filter(|file| alone.states[**file] != before[**file]).count();
        if changed < files.len() && files.len() > 1 {
            // It may stand before the others in one file and behind them in the other.
            return self.transact(i, &files, &all);
        }
        let number = self.clients[i].number;
        self.note(|_| format!("{number} overlaps {files:?}: {}", all.join("; ")));
        let done = self.run_among_others(&Overlap { number, files, all, alone, changes: changed > 0, grows });
        self.end_mirror(matches!(done, Ok(true)))?;
        done.map(|_| ())
    }

    /// Whether the tables are there that grow. No page is added while there are free ones, so these
    /// go now and then.
    fn is_ready_to_grow(&mut self, i: usize) -> Step<bool> {
        let number = self.clients[i].number;
        let has_tables = self.mirror.prepare("SELECT 1 FROM main.g0").is_ok();
        if !has_tables || bytes_of(self.disk.sim(), 0) > self.setting.shape.bytes_max {
            self.transact(i, &[0], &statements::make_growth(SCHEMAS[0]))?;
        } else if self.rng.below(4) > 0 {
            return Ok(true);
        }
        if let Some(i) = self.position(number).filter(|i| self.may_vacuum(*i)) {
            self.vacuum_by(i, "VACUUM")?;
        }
        Ok(false)
    }

    /// True if it committed.
    fn run_among_others(&mut self, overlap: &Overlap) -> Step<bool> {
        let Some(i) = self.position(overlap.number) else { return Ok(false) };
        let begin = ["BEGIN", "BEGIN IMMEDIATE"][self.rng.below(2)];
        // The snapshot of each file is taken here.
        let pins = overlap.files.iter().map(|file| format!("; PRAGMA {}.user_version", SCHEMAS[*file]));
        let begin = std::iter::once(begin.to_owned()).chain(pins).collect::<String>();
        if let Err(e) = self.clients[i].db.execute_batch(&begin) {
            return self.failed(i, &e, "begin");
        }
        let at = self.rng.below(overlap.all.len() + 1);
        if !self.run_part(overlap, 0..at)? {
            return Ok(false);
        }
        for _ in 0..1 + self.rng.below(2) {
            self.another_writes(overlap)?;
        }
        self.run_part(overlap, at..overlap.all.len()).and_then(|ran| if ran { self.commit(overlap) } else { Ok(false) })
    }

    /// False if it is over.
    fn run_part(&mut self, overlap: &Overlap, part: std::ops::Range<usize>) -> Step<bool> {
        for n in part {
            let Some(i) = self.position(overlap.number) else { return Ok(false) };
            let (sql, expected) = (&overlap.all[n], overlap.alone.codes[n]);
            let ran = self.clients[i].db.execute_batch(sql);
            self.verdict()?;
            match ran {
                Ok(()) if expected == 0 => {}
                Ok(()) => return Err(self.bad(format!("{sql}: succeeds, where stock SQLite says {expected}"))),
                Err(e) if explain(&e).0 == expected => {}
                Err(e) => return self.failed(i, &e, sql),
            }
        }
        Ok(true)
    }

    fn another_writes(&mut self, overlap: &Overlap) -> Step<()> {
        let may = |w: &World, i: usize| {
            let client = &w.clients[i];
            client.number != overlap.number && !client.reads_only && client.reading.is_none()
        };
        let others: Vec<usize> = (0..self.clients.len()).filter(|i| may(self, *i)).collect();
        if others.is_empty() {
            return self.writer().map(|_| ());
        }
        let other = others[self.rng.below(others.len())];
        match self.rng.below(8) {
            0 => self.checkpoint_by(other),
            _ if overlap.grows => {
                let all = statements::growth(SCHEMAS[0], self.rng.below(4), &mut self.rng);
                self.transact(other, &[0], &all)
            }
            _ => self.write_by(other),
        }
    }

    /// True if it committed.
    fn commit(&mut self, overlap: &Overlap) -> Step<bool> {
        let Some(i) = self.position(overlap.number) else { return Ok(false) };
        let Overlap { files, all, alone, changes, .. } = overlap;
        let behind = self.rehearse(files, all)?;
        self.attempt(files, &behind);
        if let Err(e) = self.clients[i].db.execute_batch("COMMIT") {
            return self.failed(i, &e, "commit");
        }
        self.verdict()?;
        let latest = self.oracles.lock().latest();
        if *changes && behind.codes != alone.codes {
            return Err(self.bad("a transaction is committed whose statements would end otherwise behind the others"));
        }
        let seen = files.iter().map(|file| print(&self.clients[i].db, SCHEMAS[*file]));
        let seen = match seen.collect::<rusqlite::Result<Vec<Print>>>() {
            Ok(seen) => seen,
            // Another connection has taken the file for itself.
            Err(_) if *changes => files.iter().map(|file| behind.states[*file]).collect(),
            Err(_) => files.iter().map(|file| latest[*file]).collect(),
        };
        let is = |states: &[Print; 2]| files.iter().zip(&seen).all(|(file, seen)| states[*file] == *seen);
        if !changes && is(&latest) {
            // It has changed nothing in its snapshot, and comes before the others.
            self.withdraw();
            return Ok(false);
        }
        if !is(&behind.states) {
            return Err(self.bad(format!("a merged transaction leaves {seen:?} instead of {:?}", behind.states)));
        }
        self.acknowledge(i, files, &behind);
        Ok(true)
    }
}
