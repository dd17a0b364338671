//! The work of apps on phones and browsers, as scripts drawn from a seed.
//!
//! The four app profiles follow published statistics of real traces: the share of one kind of
//! transaction and the mean number of operations per transaction. The rest is assumed, the same for
//! all: the remaining shares below, and 40 % selects, 30 % updates, 25 % inserts and 5 % deletes
//! within transactions of several operations. Their number is 2 plus a geometric variate with the
//! mean that makes the published one come out.

use super::script::{Conduct, Script, ScriptStep, Transaction};
use super::{Scripted, Size};
use crate::engines::sql::Value;
use crate::numbers::random::Random;

pub const GMAIL: Scripted = Scripted {
    name: "gmail",
    about: "60 % transactions of several operations, 21.9 operations on average",
    rows: 2000,
    transactions: 1000,
    heeds: &["--rows", "--row-bytes", "--wal-start"],
    draw: |size, seed| Ok(profile(size, seed, Mix { several: 0.60, select: 0.25, update: 0.10, ops_mean: 21.9 })),
};
pub const FACEBOOK: Scripted = Scripted {
    name: "facebook",
    about: "70 % single selects, 2.98 operations on average",
    rows: 2000,
    transactions: 1000,
    heeds: &["--rows", "--row-bytes", "--wal-start"],
    draw: |size, seed| Ok(profile(size, seed, Mix { several: 0.20, select: 0.70, update: 0.05, ops_mean: 2.98 })),
};
pub const HANGOUTS: Scripted = Scripted {
    name: "hangouts",
    about: "half single selects, 20 % single updates, 3.99 operations on average",
    rows: 2000,
    transactions: 1000,
    heeds: &["--rows", "--row-bytes", "--wal-start"],
    draw: |size, seed| Ok(profile(size, seed, Mix { several: 0.20, select: 0.50, update: 0.20, ops_mean: 3.99 })),
};
pub const KAKAOTALK: Scripted = Scripted {
    name: "kakaotalk",
    about: "over half single updates, 1.76 operations on average",
    rows: 2000,
    transactions: 1000,
    heeds: &["--rows", "--row-bytes", "--wal-start"],
    draw: |size, seed| Ok(profile(size, seed, Mix { several: 0.15, select: 0.20, update: 0.55, ops_mean: 1.76 })),
};
pub const OPEN_INSERT_CLOSE: Scripted = Scripted {
    name: "open-insert-close",
    about: "opens the database, inserts a row, closes it, as short-lived apps do",
    rows: 2000,
    transactions: 300,
    heeds: &["--rows", "--row-bytes"],
    draw: |size, seed| Ok(open_insert_close(size, seed)),
};
pub const ATTACH: Scripted = Scripted {
    name: "attach",
    about: "a row in each of two files (ATTACH), in one transaction",
    rows: 2000,
    transactions: 500,
    heeds: &["--rows", "--row-bytes", "--wal-start"],
    draw: |size, seed| Ok(attach(size, seed)),
};
pub const TABS: Scripted = Scripted {
    name: "tabs",
    about: "a browser: threads (--threads), each a connection, save the state of tabs at once",
    rows: 100,
    transactions: 1000,
    heeds: &["--rows", "--row-bytes", "--threads"],
    draw: |size, seed| Ok(tabs(size, seed)),
};

/// Shares of transactions; the rest of 1 is single inserts.
struct Mix {
    several: f64,
    select: f64,
    update: f64,
    ops_mean: f64,
}

const SCHEMA: &str = "CREATE TABLE message(id INTEGER PRIMARY KEY, thread INTEGER, time INTEGER, sender TEXT, body BLOB); \
                      CREATE INDEX message_thread ON message(thread, time)";
const SELECT: usize = 0;
const UPDATE: usize = 1;
const INSERT: usize = 2;
const DELETE: usize = 3;
const SQL: [&str; 4] = [
    "SELECT id, time, sender, body FROM message WHERE thread = ?1 ORDER BY time DESC LIMIT 20",
    "UPDATE message SET time = ?2, body = ?3 WHERE id = ?1",
    "INSERT INTO message(id, thread, time, sender, body) VALUES(?1, ?2, ?3, ?4, ?5)",
    "DELETE FROM message WHERE id = ?1",
];
/// Messages per thread, on average.
const THREAD_MESSAGES: usize = 20;

/// Draws operations on the messages that are there.
struct Messages {
    random: Random,
    row_bytes: usize,
    threads: usize,
    ids: usize,
}

impl Messages {
    fn body(&mut self) -> Value {
        let mut body = vec![0; self.row_bytes];
        self.random.fill(&mut body);
        Value::Blob(body)
    }

    /// Mostly newer messages: the square of a uniform variate, from the end.
    fn recent(&mut self) -> Value {
        let back = (self.random.share().powi(2) * self.ids as f64) as usize;
        Value::Int((self.ids - back.min(self.ids.saturating_sub(1))) as i64)
    }

    fn draw(&mut self, kind: usize) -> ScriptStep {
        let values = match kind {
            SELECT => vec![Value::Int(self.random.below(self.threads) as i64)],
            UPDATE => vec![self.recent(), Value::Int((self.random.next() >> 24) as i64), self.body()],
            INSERT => {
                self.ids += 1;
                let thread = self.random.below(self.threads) as i64;
                let sender = self.random.letters(12);
                let id = Value::Int(self.ids as i64);
                vec![id, Value::Int(thread), Value::Int(self.ids as i64), Value::Text(sender), self.body()]
            }
            _ => vec![self.recent()],
        };
        (kind, values)
    }
}

fn profile(size: &Size, seed: u64, mix: Mix) -> Script {
    let threads = (size.rows / THREAD_MESSAGES).max(1);
    let mut messages = Messages { random: Random::new(seed), row_bytes: size.row_bytes, threads, ids: 0 };
    let preload: Vec<ScriptStep> = (0..size.rows.max(1)).map(|_| messages.draw(INSERT)).collect();
    // 1 - several + several * mean = ops_mean.
    let several_mean = (mix.ops_mean - 1.0 + mix.several) / mix.several;
    let more = 1.0 - 1.0 / (several_mean - 1.0);
    let mut transaction = || {
        let share = messages.random.share();
        let steps = if share < mix.several {
            let mut n = 2;
            while messages.random.share() < more {
                n += 1;
            }
            (0..n)
                .map(|_| {
                    let share = messages.random.share();
                    let kind = match share {
                        s if s < 0.40 => SELECT,
                        s if s < 0.70 => UPDATE,
                        s if s < 0.95 => INSERT,
                        _ => DELETE,
                    };
                    messages.draw(kind)
                })
                .collect()
        } else {
            let kind = match share - mix.several {
                s if s < mix.select => SELECT,
                s if s < mix.select + mix.update => UPDATE,
                _ => INSERT,
            };
            vec![messages.draw(kind)]
        };
        Transaction::Steps(steps)
    };
    Script {
        transactions: (0..size.transactions).map(|_| transaction()).collect(),
        schema: SCHEMA.to_owned(),
        statements: SQL.map(str::to_owned).to_vec(),
        preload,
        phases: Vec::new(),
        conduct: Conduct::PLAIN,
        key_order: "inserts ascending; updates and deletes random, newer rows more often",
        row_bytes: size.row_bytes,
    }
}

fn open_insert_close(size: &Size, seed: u64) -> Script {
    let threads = (size.rows / THREAD_MESSAGES).max(1);
    let mut messages = Messages { random: Random::new(seed), row_bytes: size.row_bytes, threads, ids: 0 };
    Script {
        schema: SCHEMA.to_owned(),
        statements: SQL.map(str::to_owned).to_vec(),
        preload: (0..size.rows).map(|_| messages.draw(INSERT)).collect(),
        transactions: (0..size.transactions).map(|_| Transaction::Steps(vec![messages.draw(INSERT)])).collect(),
        phases: Vec::new(),
        conduct: Conduct { reopen: true, ..Conduct::PLAIN },
        key_order: "ascending",
        row_bytes: size.row_bytes,
    }
}

/// Orders in one file, and their payments in another.
fn attach(size: &Size, seed: u64) -> Script {
    let mut random = Random::new(seed);
    let mut both = |id: usize| -> Vec<ScriptStep> {
        let row = |random: &mut Random| {
            let mut body = vec![0; size.row_bytes];
            random.fill(&mut body);
            vec![Value::Int(id as i64), Value::Blob(body)]
        };
        vec![(0, row(&mut random)), (1, row(&mut random))]
    };
    Script {
        schema: "CREATE TABLE main.sold(id INTEGER PRIMARY KEY, body BLOB); \
                 CREATE TABLE side.paid(id INTEGER PRIMARY KEY, body BLOB)"
            .to_owned(),
        statements: ["INSERT INTO sold VALUES(?1, ?2)", "INSERT INTO paid VALUES(?1, ?2)"].map(str::to_owned).to_vec(),
        preload: (0..size.rows).flat_map(&mut both).collect(),
        transactions: (0..size.transactions).map(|i| Transaction::Steps(both(size.rows + i))).collect(),
        phases: Vec::new(),
        conduct: Conduct { attach: true, ..Conduct::PLAIN },
        key_order: "ascending",
        row_bytes: size.row_bytes,
    }
}

/// Each thread has tabs of its own, and saves one of them per transaction: its state, and an entry
/// of history.
fn tabs(size: &Size, seed: u64) -> Script {
    let mut random = Random::new(seed);
    let tabs = size.rows.max(size.threads);
    let mut save = |i: usize, tab: usize| -> Vec<ScriptStep> {
        let url = format!("https://{}.example/{}", random.letters(8), random.letters(20));
        let mut state = vec![0; size.row_bytes];
        random.fill(&mut state);
        let tab = Value::Int(tab as i64);
        vec![
            (0, vec![tab.clone(), Value::Text(url.clone()), Value::Blob(state)]),
            (1, vec![Value::Int(i as i64), tab, Value::Text(url)]),
        ]
    };
    let preload = (0..tabs).flat_map(|tab| save(tab, tab)).collect();
    let per_thread = tabs / size.threads;
    let mut which = Random::new(!seed);
    let mut transaction = |i: usize| {
        let tab = i % size.threads + size.threads * which.below(per_thread);
        Transaction::Steps(save(tabs + i, tab))
    };
    Script {
        transactions: (0..size.transactions).map(&mut transaction).collect(),
        schema: "CREATE TABLE tab(id INTEGER PRIMARY KEY, url TEXT, state BLOB); \
                 CREATE TABLE history(id INTEGER PRIMARY KEY, tab INTEGER, url TEXT)"
            .to_owned(),
        statements: vec![
            "INSERT OR REPLACE INTO tab(id, url, state) VALUES(?1, ?2, ?3)".to_owned(),
            "INSERT INTO history(id, tab, url) VALUES(?1, ?2, ?3)".to_owned(),
        ],
        preload,
        phases: Vec::new(),
        conduct: Conduct { threads: size.threads, ..Conduct::PLAIN },
        key_order: "tabs random, history ascending",
        row_bytes: size.row_bytes,
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::SIZE;
    use super::*;

    /// Share of single-statement transactions of this kind, share of several, and mean operations.
    fn statistics(of: &Scripted, kind: usize) -> (f64, f64, f64) {
        let size = Size { transactions: 20_000, row_bytes: 8, ..SIZE };
        let script = (of.draw)(&size, 1).unwrap();
        let steps: Vec<&Vec<ScriptStep>> = script
            .transactions
            .iter()
            .map(|t| if let Transaction::Steps(s) = t { s } else { panic!("text") })
            .collect();
        let share = |is: &dyn Fn(&Vec<ScriptStep>) -> bool| steps.iter().filter(|s| is(s)).count() as f64 / 20_000.0;
        let ops = steps.iter().map(|s| s.len()).sum::<usize>() as f64 / 20_000.0;
        (share(&|s| s.len() == 1 && s[0].0 == kind), share(&|s| s.len() > 1), ops)
    }

    #[test]
    fn profiles_have_the_published_statistics() {
        let near = |found: f64, wanted: f64| (found / wanted - 1.0).abs() < 0.05;
        let (_, several, ops) = statistics(&GMAIL, SELECT);
        assert!(near(several, 0.60) && near(ops, 21.9), "{several} {ops}");
        let (selects, _, ops) = statistics(&FACEBOOK, SELECT);
        assert!(near(selects, 0.70) && near(ops, 2.98), "{selects} {ops}");
        let (selects, _, ops) = statistics(&HANGOUTS, SELECT);
        assert!(near(selects, 0.50) && near(ops, 3.99), "{selects} {ops}");
        let (updates, ..) = statistics(&HANGOUTS, UPDATE);
        assert!(near(updates, 0.20), "{updates}");
        let (updates, _, ops) = statistics(&KAKAOTALK, UPDATE);
        assert!(updates > 0.5 && near(ops, 1.76), "{updates} {ops}");
    }

    #[test]
    fn no_two_threads_save_the_same_tab() {
        let script = tabs(&Size { threads: 3, transactions: 500, rows: 10, ..SIZE }, 5);
        for (i, t) in script.transactions.iter().enumerate() {
            let Transaction::Steps(steps) = t else { panic!("text") };
            let Value::Int(tab) = steps[0].1[0] else { panic!("no tab") };
            assert_eq!(tab as usize % 3, i % 3);
            assert!((tab as usize) < 10);
        }
    }
}
