//! The judge of a history: proves it strictly serializable, or names the anomaly and shows the
//! shortest cycle.
//!
//! The longest read of a list is the order of its appends. From it and from the reads follow the
//! dependencies of transactions (Adya): ww, wr, rw. A transaction that ended before another began
//! comes before it, too. A history is strictly serializable if and only if these edges have no
//! cycle.

use std::fmt;

use rustc_hash::FxHashMap;

use super::cycle::{self, Edge, Graph, Kind};

/// A list: the row `key` of the file `file`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct List {
    pub file: u8,
    pub key: u64,
}

impl fmt::Display for List {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.file, self.key)
    }
}

/// An appended number: no other append of the history has the same.
pub type Value = u64;

/// One operation of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    Append(List, Value),
    Read(List, Vec<Value>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Ok,
    Failed,
    /// Its process was killed: it may have committed.
    Unknown,
}

/// A transaction as its client tells it. Times are nanoseconds of one clock.
#[derive(Clone, Debug)]
pub struct Transaction {
    pub invoked: u64,
    /// `u64::MAX` where it was not told.
    pub completed: u64,
    pub outcome: Outcome,
    /// It had all files from its beginning (BEGIN IMMEDIATE), so it reads one state of all of them.
    pub holds_all: bool,
    pub steps: Vec<Step>,
}

/// The size of a proof.
#[derive(Clone, Copy, Debug)]
pub struct Proof {
    /// Transactions whose end is unknown and which took effect.
    pub unknown_committed: usize,
    pub edges: usize,
}

/// An anomaly, with the transactions that show it.
#[derive(Debug)]
pub struct Violation {
    pub name: &'static str,
    pub what: String,
    /// Those that take part, as numbers of the history.
    pub transactions: Vec<usize>,
}

/// Judges a history.
pub fn judge(history: &[Transaction]) -> Result<Proof, Violation> {
    let known = Known::new(history)?;
    known.in_part()?;
    let is_unknown = |(t, one): &(usize, &Transaction)| one.outcome == Outcome::Unknown && known.is_committed[*t];
    let mut proof = Proof { unknown_committed: history.iter().enumerate().filter(is_unknown).count(), edges: 0 };
    let files = known.orders.keys().map(|list| list.file).max().unwrap_or(0);
    for file in 0..=files {
        proof.edges += known.acyclic(Some(file))?;
    }
    // Only a transaction that holds all files reads them at one moment: SQLite takes the snapshot
    // of each file by itself.
    if files > 0 {
        proof.edges += known.acyclic(None)?;
    }
    Ok(proof)
}

/// The append of a value.
struct Written {
    by: usize,
    list: List,
    /// The transaction appended no more to this list.
    is_last: bool,
    is_seen: bool,
}

/// A read, without the values that its own transaction had appended before.
struct Seen {
    by: usize,
    list: List,
    len: usize,
}

/// Facts that a history has of each list.
struct Known<'a> {
    history: &'a [Transaction],
    written: FxHashMap<Value, Written>,
    orders: FxHashMap<List, &'a [Value]>,
    reads: Vec<Seen>,
    is_committed: Vec<bool>,
    /// Committed appends that no read has.
    unseen: FxHashMap<List, Vec<usize>>,
}

impl<'a> Known<'a> {
    fn new(history: &'a [Transaction]) -> Result<Known<'a>, Violation> {
        let mut known = Known {
            history,
            written: written(history)?,
            orders: FxHashMap::default(),
            reads: Vec::new(),
            is_committed: history.iter().map(|t| t.outcome == Outcome::Ok).collect(),
            unseen: FxHashMap::default(),
        };
        for transaction in history {
            for step in &transaction.steps {
                let (list, values) = match step {
                    Step::Append(list, _) => (list, &[][..]),
                    Step::Read(list, values) if transaction.outcome == Outcome::Ok => (list, &values[..]),
                    Step::Read(..) => continue,
                };
                let order = known.orders.entry(*list).or_default();
                if values.len() > order.len() {
                    *order = values;
                }
            }
        }
        known.look_at_orders()?;
        for (t, transaction) in history.iter().enumerate() {
            if transaction.outcome == Outcome::Ok {
                known.look_at_reads(t, transaction)?;
            }
        }
        for (t, transaction) in history.iter().enumerate() {
            for step in &transaction.steps {
                let Step::Append(list, value) = step else { continue };
                if known.is_committed[t] && !known.written[value].is_seen {
                    known.unseen.entry(*list).or_default().push(t);
                }
            }
        }
        Ok(known)
    }

    fn look_at_orders(&mut self) -> Result<(), Violation> {
        let mut lists: Vec<(List, &[Value])> = self.orders.iter().map(|(list, order)| (*list, *order)).collect();
        lists.sort_unstable_by_key(|(list, _)| *list);
        for (list, order) in lists {
            let reader = || self.reader_of(list, order);
            self.values_are_right(list, order, reader)?;
            for value in order {
                if let Some(written) = self.written.get_mut(value) {
                    written.is_seen = true;
                    self.is_committed[written.by] = true;
                }
            }
        }
        Ok(())
    }

    fn reader_of(&self, list: List, order: &[Value]) -> usize {
        let reads = |t: &Transaction| {
            t.outcome == Outcome::Ok
                && t.steps.iter().any(|s| matches!(s, Step::Read(l, v) if *l == list && v == order))
        };
        self.history.iter().position(reads).unwrap_or(0)
    }

    /// No value of a read is made up, rolled back, or there twice.
    fn values_are_right(&self, list: List, values: &[Value], reader: impl Fn() -> usize) -> Result<(), Violation> {
        let mut before = FxHashMap::default();
        for (at, value) in values.iter().enumerate() {
            let Some(written) = self.written.get(value).filter(|written| written.list == list) else {
                return violation("value that nobody appended", format!("{value} in list {list}"), vec![reader()]);
            };
            if self.history[written.by].outcome == Outcome::Failed {
                let what = format!("{value} in list {list} was rolled back");
                return violation("aborted read (G1a)", what, vec![written.by, reader()]);
            }
            if let Some(first) = before.insert(*value, at) {
                let what = format!("{value} is at {first} and at {at} in list {list}");
                return violation("duplicate", what, vec![written.by, reader()]);
            }
        }
        Ok(())
    }

    /// Its reads are prefixes of the orders, have its own appends, and no half of another's
    /// appends.
    fn look_at_reads(&mut self, t: usize, transaction: &Transaction) -> Result<(), Violation> {
        let mut own: FxHashMap<List, Vec<Value>> = FxHashMap::default();
        for step in &transaction.steps {
            let (list, values) = match step {
                Step::Append(list, value) => {
                    own.entry(*list).or_default().push(*value);
                    continue;
                }
                Step::Read(list, values) => (*list, values),
            };
            let order = self.orders[&list];
            if order.get(..values.len()) != Some(values) {
                self.values_are_right(list, values, || t)?;
                let other = self.reader_of(list, order);
                let at = order.iter().zip(values).take_while(|(one, other)| one == other).count();
                let what = format!("list {list} was read with another value at {at}");
                return violation("lists that are not prefixes of each other", what, vec![t, other]);
            }
            let own = own.get(&list).map_or(&[][..], Vec::as_slice);
            let Some(others) = values.strip_suffix(own) else {
                let what = format!("list {list}, {} appends", own.len());
                return violation("own append not read", what, vec![t]);
            };
            if let Some(last) = others.last() {
                let last = &self.written[last];
                if last.by != t && !last.is_last {
                    let what = format!("list {list} at {}, whose writer appended more", values.len());
                    return violation("intermediate read (G1b)", what, vec![last.by, t]);
                }
            }
            self.reads.push(Seen { by: t, list, len: others.len() });
        }
        Ok(())
    }

    /// A committed append is in the reads of each transaction that begins after it was
    /// acknowledged, or after a transaction that saw it ended.
    fn in_part(&self) -> Result<(), Violation> {
        let mut latest: FxHashMap<List, usize> = FxHashMap::default();
        // For each transaction: the first end of one that had seen it.
        let mut seen_at: FxHashMap<usize, (u64, usize)> = FxHashMap::default();
        for read in &self.reads {
            let new = latest.entry(read.list).or_insert(read.by);
            if self.history[read.by].invoked > self.history[*new].invoked {
                *new = read.by;
            }
            if self.unseen.is_empty() {
                continue;
            }
            let completed = self.history[read.by].completed;
            for value in &self.orders[&read.list][..read.len] {
                let seen = seen_at.entry(self.written[value].by).or_insert((completed, read.by));
                *seen = (*seen).min((completed, read.by));
            }
        }
        let mut all: Vec<(List, usize)> =
            self.unseen.iter().flat_map(|(list, by)| by.iter().map(|by| (*list, *by))).collect();
        all.sort_unstable();
        for (list, t) in all {
            let Some(&reader) = latest.get(&list) else { continue };
            let invoked = self.history[reader].invoked;
            if let Some(&(completed, other)) = seen_at.get(&t).filter(|(completed, _)| *completed < invoked) {
                let what = format!("seen elsewhere until {completed}, and not in list {list} at {invoked}");
                return violation("transaction in part", what, vec![t, other, reader]);
            }
            let completed = self.history[t].completed;
            if completed < invoked {
                let what =
                    format!("acknowledged at {completed}, and never seen in list {list}, not at {invoked} either");
                return violation("acknowledged append missing", what, vec![t, reader]);
            }
        }
        Ok(())
    }

    /// The number of edges, if there is no cycle: of one file, or of all for those that hold them.
    fn acyclic(&self, file: Option<u8>) -> Result<usize, Violation> {
        let has = |list: &List| file.is_none_or(|file| list.file == file);
        let mut graph = Graph::new(self.history.len());
        for (list, order) in self.orders.iter().filter(|(list, _)| has(list)) {
            let mut last = None;
            for value in *order {
                let by = self.written[value].by;
                if let Some(last) = last {
                    graph.add(last, by, Kind::Ww(*list));
                }
                last = Some(by);
            }
            for by in self.unseen.get(list).into_iter().flatten() {
                if let Some(last) = last {
                    graph.add(last, *by, Kind::Ww(*list));
                }
            }
        }
        for read in self.reads.iter().filter(|read| has(&read.list)) {
            if file.is_none() && !self.history[read.by].holds_all {
                continue;
            }
            let order = self.orders[&read.list];
            if let Some(value) = read.len.checked_sub(1).and_then(|last| order.get(last)) {
                graph.add(self.written[value].by, read.by, Kind::Wr(read.list));
            }
            match order.get(read.len) {
                Some(value) => graph.add(read.by, self.written[value].by, Kind::Rw(read.list)),
                None => {
                    for by in self.unseen.get(&read.list).into_iter().flatten() {
                        graph.add(read.by, *by, Kind::Rw(read.list));
                    }
                }
            }
        }
        let times: Vec<Option<(u64, u64)>> = self
            .history
            .iter()
            .enumerate()
            .map(|(t, one)| self.is_committed[t].then_some((one.invoked, one.completed)))
            .collect();
        graph.add_times(&times);
        let edges = graph.len();
        let Some(found) = cycle::shortest(&graph, &times) else { return Ok(edges) };
        Err(Violation {
            name: cycle::name(&found),
            what: found.iter().map(Edge::to_string).collect::<Vec<_>>().join(", "),
            transactions: found.iter().map(|edge| edge.from).collect(),
        })
    }
}

fn violation<T>(name: &'static str, what: String, mut transactions: Vec<usize>) -> Result<T, Violation> {
    transactions.dedup();
    Err(Violation { name, what, transactions })
}

fn written(history: &[Transaction]) -> Result<FxHashMap<Value, Written>, Violation> {
    let mut written: FxHashMap<Value, Written> = FxHashMap::default();
    for (by, transaction) in history.iter().enumerate() {
        let mut last: FxHashMap<List, Value> = FxHashMap::default();
        for step in &transaction.steps {
            let Step::Append(list, value) = step else { continue };
            if let Some(before) = last.insert(*list, *value).and_then(|value| written.get_mut(&value)) {
                before.is_last = false;
            }
            let before = written.insert(*value, Written { by, list: *list, is_last: true, is_seen: false });
            if let Some(before) = before {
                return violation("value appended twice", format!("{value} to list {list}"), vec![before.by, by]);
            }
        }
    }
    Ok(written)
}
