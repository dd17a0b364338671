//! The work of other SQLite benchmarks, as scripts. Mobibench's statements are those of its C
//! source. AndroBench and the RL Benchmark come without source: theirs follow their descriptions.
//! The RL Benchmark was made from SQLite's old speed comparison.

use super::script::{Conduct, Script, ScriptStep, Transaction};
use super::{Scripted, Size};
use crate::engines::sql::Value;
use crate::numbers::random::Random;

const MOBIBENCH: Scripted = Scripted {
    name: "",
    about: "",
    rows: 0,
    transactions: 100,
    heeds: &["--rows", "--tables", "--wal-start"],
    draw: |_, _| anyhow::bail!("a template"),
};
pub const MOBIBENCH_INSERT: Scripted = Scripted {
    name: "mobibench-insert",
    about: "Mobibench's -d 0: a row into each of its tables (--tables), as text",
    draw: |size, seed| Ok(mobibench(size, seed, RowOp::Insert)),
    ..MOBIBENCH
};
pub const MOBIBENCH_UPDATE: Scripted = Scripted {
    name: "mobibench-update",
    about: "Mobibench's -d 1: the value of a random row in each table",
    draw: |size, seed| Ok(mobibench(size, seed, RowOp::Update)),
    ..MOBIBENCH
};
pub const MOBIBENCH_DELETE: Scripted = Scripted {
    name: "mobibench-delete",
    about: "Mobibench's -d 2: a random row of each table",
    draw: |size, seed| Ok(mobibench(size, seed, RowOp::Delete)),
    ..MOBIBENCH
};
const ANDROBENCH: Scripted = Scripted {
    name: "",
    about: "",
    rows: 300,
    transactions: 300,
    heeds: &["--rows", "--row-bytes", "--wal-start"],
    draw: |_, _| anyhow::bail!("a template"),
};
pub const ANDROBENCH_INSERT: Scripted = Scripted {
    name: "androbench-insert",
    about: "AndroBench: 300 transactions, each a row of 17 columns",
    draw: |size, seed| Ok(androbench(size, seed, RowOp::Insert)),
    ..ANDROBENCH
};
pub const ANDROBENCH_UPDATE: Scripted = Scripted {
    name: "androbench-update",
    about: "AndroBench: 300 transactions, each 3 columns of a random row",
    draw: |size, seed| Ok(androbench(size, seed, RowOp::Update)),
    ..ANDROBENCH
};
pub const ANDROBENCH_DELETE: Scripted = Scripted {
    name: "androbench-delete",
    about: "AndroBench: 300 transactions, each a random row",
    draw: |size, seed| Ok(androbench(size, seed, RowOp::Delete)),
    ..ANDROBENCH
};
pub const RL: Scripted = Scripted {
    name: "rl",
    about: "RL Benchmark: its 13 steps; --transactions scales all of them",
    rows: 0,
    transactions: 1000,
    heeds: &["--wal-start"],
    draw: |size, seed| Ok(rl(size, seed)),
};
pub const BULK: Scripted = Scripted {
    name: "bulk",
    about: "1.5 million rows (--rows) in one transaction, with an index; then updates of 10000 random rows each",
    rows: 1_500_000,
    transactions: 10,
    heeds: &["--rows", "--row-bytes", "--wal-start"],
    draw: |size, seed| Ok(bulk(size, seed)),
};
pub const DBBENCH: Scripted = Scripted {
    name: "dbbench",
    about: "DB Bench: 1,000 inserts, 20,000 searches by index, 20,000 rows read in turn, 10,000 deletes; scaled likewise",
    rows: 20_000,
    transactions: 1000,
    heeds: &["--rows", "--row-bytes", "--wal-start"],
    draw: |size, seed| Ok(dbbench(size, seed)),
};

#[derive(Clone, Copy, PartialEq)]
enum RowOp {
    Insert,
    Update,
    Delete,
}

/// 100 bytes: ten times each of ten letters, rotated by five for updates.
fn mobibench_value(first: u8) -> String {
    (0..100u8).map(|i| char::from(b'a' + (first + i / 10) % 10)).collect()
}

/// Rows of its tables before updates and deletes, if there are fewer transactions: 8 pages of 37.
const MOBIBENCH_ROWS_MIN: usize = 296;

/// The first `n` numbers that glibc's `rand` gives after `srand(seed)`. With them Mobibench chooses
/// the rows that transaction `seed` updates, one in each table. They hit few rows twice, and a row
/// that is updated twice is written once: SQLite leaves a page alone whose content stays the same.
/// A better generator would make a different benchmark.
fn glibc_random(seed: u32, n: usize) -> Vec<usize> {
    let mut r = vec![i64::from(seed.max(1))];
    for i in 1..31 {
        r.push((16807 * r[i - 1]).rem_euclid(2_147_483_647));
    }
    let mut r: Vec<u32> = r.into_iter().map(|v| v as u32).collect();
    r.extend_from_within(0..3);
    for i in 34..344 + n {
        r.push(r[i - 31].wrapping_add(r[i - 3]));
    }
    r[344..].iter().map(|v| (v >> 1) as usize).collect()
}

fn mobibench(size: &Size, seed: u64, op: RowOp) -> Script {
    let rows = if op == RowOp::Insert { size.rows } else { size.rows.max(size.transactions).max(MOBIBENCH_ROWS_MIN) };
    let mut random = Random::new(seed);
    let mut order: Vec<usize> = (0..rows).collect();
    random.shuffle(&mut order);
    let text = |i: usize| {
        let row = order.get(i).copied().unwrap_or(0);
        let updated = if op == RowOp::Update { glibc_random(i as u32, size.tables) } else { vec![0; size.tables] };
        let each = updated.iter().enumerate().map(|(t, random)| match op {
            RowOp::Insert => {
                format!("INSERT INTO tblMyList{t}(id,Value) VALUES({},'{}');", rows + i, mobibench_value(0))
            }
            RowOp::Update => {
                format!("UPDATE tblMyList{t} SET Value = '{}' WHERE id = {};", mobibench_value(5), random % rows + 1)
            }
            RowOp::Delete => format!("DELETE FROM tblMyList{t} WHERE id={row};"),
        });
        Transaction::Text(format!("BEGIN;{}COMMIT;", each.collect::<String>()))
    };
    let table =
        |t| format!("CREATE TABLE tblMyList{t}(id INTEGER PRIMARY KEY, Value TEXT not null, creation_date long); ");
    Script {
        transactions: (0..size.transactions).map(text).collect(),
        schema: (0..size.tables).map(table).collect(),
        statements: (0..size.tables).map(|t| format!("INSERT INTO tblMyList{t}(id, Value) VALUES(?1, ?2)")).collect(),
        preload: (0..rows)
            .flat_map(|row| {
                (0..size.tables).map(move |t| (t, vec![Value::Int(row as i64), Value::Text(mobibench_value(0))]))
            })
            .collect(),
        phases: Vec::new(),
        conduct: Conduct { checkpoint: true, ..Conduct::PLAIN },
        key_order: if op == RowOp::Insert { "ascending" } else { "random" },
        row_bytes: 100,
    }
}

/// Columns of AndroBench's table besides its key.
const ANDROBENCH_COLUMNS: usize = 16;

fn androbench(size: &Size, seed: u64, op: RowOp) -> Script {
    let mut random = Random::new(seed);
    let column_bytes = (size.row_bytes / ANDROBENCH_COLUMNS).max(1);
    let mut row = |id: usize| -> ScriptStep {
        let columns = (0..ANDROBENCH_COLUMNS).map(|_| Value::Text(random.letters(column_bytes)));
        (0, std::iter::once(Value::Int(id as i64)).chain(columns).collect())
    };
    let rows = if op == RowOp::Delete { size.rows.max(size.transactions) } else { size.rows.max(1) };
    let preload: Vec<ScriptStep> = (0..rows).map(&mut row).collect();
    let inserts: Vec<ScriptStep> = (rows..rows + size.transactions).map(&mut row).collect();
    let mut order: Vec<usize> = (0..rows).collect();
    random.shuffle(&mut order);
    let mut update = |_| -> ScriptStep {
        let values = (0..3).map(|_| Value::Text(random.letters(column_bytes))).collect::<Vec<_>>();
        (1, std::iter::once(Value::Int(random.below(rows) as i64)).chain(values).collect())
    };
    let steps: Vec<ScriptStep> = match op {
        RowOp::Insert => inserts,
        RowOp::Update => (0..size.transactions).map(&mut update).collect(),
        RowOp::Delete => order.iter().take(size.transactions).map(|id| (2, vec![Value::Int(*id as i64)])).collect(),
    };
    let names = (1..=ANDROBENCH_COLUMNS).map(|i| format!(", c{i} TEXT")).collect::<String>();
    let marks = (1..=ANDROBENCH_COLUMNS).map(|i| format!(", ?{}", i + 1)).collect::<String>();
    Script {
        schema: format!("CREATE TABLE contact(id INTEGER PRIMARY KEY{names})"),
        statements: vec![
            format!("INSERT INTO contact VALUES(?1{marks})"),
            "UPDATE contact SET c1 = ?2, c2 = ?3, c3 = ?4 WHERE id = ?1".to_owned(),
            "DELETE FROM contact WHERE id = ?1".to_owned(),
        ],
        preload,
        transactions: steps.into_iter().map(|step| Transaction::Steps(vec![step])).collect(),
        phases: Vec::new(),
        conduct: Conduct::PLAIN,
        key_order: if op == RowOp::Insert { "ascending" } else { "random" },
        row_bytes: column_bytes * ANDROBENCH_COLUMNS,
    }
}

/// Rows that one update of `bulk` finds.
const BULK_UPDATED: usize = 10_000;

/// One transaction of very many rows into a table with an index, then updates of many rows each.
fn bulk(size: &Size, seed: u64) -> Script {
    let rows = size.rows.max(1);
    let mut random = Random::new(seed);
    let mut p = Phases { statements: Vec::new(), transactions: Vec::new(), phases: Vec::new() };
    // The rows are made by SQL: millions of values drawn beforehand would take more memory than the
    // database.
    let insert = p.statement(
        "INSERT INTO bulk(id, number, value) WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?1) \
         SELECT i, i + (i * ?2 & 1023), printf('%0*d', ?3, i) FROM n",
    );
    let odd = |random: &mut Random| Value::Int((random.next() >> 40 | 1) as i64);
    let all = vec![Value::Int(rows as i64), odd(&mut random), Value::Int(size.row_bytes as i64)];
    p.phase("rows in one transaction", true, vec![(insert, all)]);
    let update = p.statement(
        "UPDATE bulk SET number = number + 1, value = upper(value) || '!' WHERE id IN (WITH RECURSIVE \
         n(i, x) AS (SELECT 1, ?1 UNION ALL SELECT i + 1, (x * 69069 + 1) & 4294967295 FROM n WHERE i < ?2) \
         SELECT 1 + x % ?3 FROM n)",
    );
    let updates = (0..size.transactions).map(|_| {
        let start = Value::Int((random.next() >> 32) as i64);
        (update, vec![start, Value::Int(BULK_UPDATED.min(rows) as i64), Value::Int(rows as i64)])
    });
    p.phase("updates of 10000 rows each", false, updates.collect());
    Script {
        schema: "CREATE TABLE bulk(id INTEGER PRIMARY KEY, number INTEGER, value TEXT); \
                 CREATE INDEX bulk_number ON bulk(number)"
            .to_owned(),
        statements: p.statements,
        preload: Vec::new(),
        transactions: p.transactions,
        phases: p.phases,
        conduct: Conduct::PLAIN,
        key_order: "inserts ascending, in the index nearly; updates random",
        row_bytes: size.row_bytes,
    }
}

/// A script under construction, phase by phase.
struct Phases {
    statements: Vec<String>,
    transactions: Vec<Transaction>,
    phases: Vec<(&'static str, usize)>,
}

impl Phases {
    fn statement(&mut self, sql: &str) -> usize {
        self.statements.push(sql.to_owned());
        self.statements.len() - 1
    }

    /// Every step its own transaction, or all in one.
    fn phase(&mut self, name: &'static str, together: bool, steps: Vec<ScriptStep>) {
        let before = self.transactions.len();
        if together {
            self.transactions.push(Transaction::Steps(steps));
        } else {
            self.transactions.extend(steps.into_iter().map(|step| Transaction::Steps(vec![step])));
        }
        self.phases.push((name, self.transactions.len() - before));
    }
}

fn rl(size: &Size, seed: u64) -> Script {
    // Counts are per 1,000 transactions asked for.
    let n = |of_1000: usize| (of_1000 * size.transactions / 1000).max(1);
    let mut random = Random::new(seed);
    let mut p = Phases { statements: Vec::new(), transactions: Vec::new(), phases: Vec::new() };
    let insert = [1, 2, 3].map(|t| p.statement(&format!("INSERT INTO t{t} VALUES(?1, ?2, ?3)")));
    let mut rows = |statement: usize, n: usize| -> Vec<ScriptStep> {
        let row = |i: usize| {
            let number = random.below(100_000) as i64;
            (statement, vec![Value::Int(i as i64 + 1), Value::Int(number), Value::Text(random.letters(40))])
        };
        (0..n).map(row).collect()
    };
    let (first, second, third) = (rows(insert[0], n(1000)), rows(insert[1], n(25_000)), rows(insert[2], n(25_000)));
    p.phase("1000 inserts", false, first);
    p.phase("25000 inserts in a transaction", true, second);
    p.phase("25000 inserts into an indexed table", true, third);
    let without = p.statement("SELECT count(*), avg(b) FROM t2 WHERE b >= ?1 AND b < ?2");
    let range = |i: usize, step: i64| vec![Value::Int(i as i64 * step), Value::Int(i as i64 * step + step * 10)];
    p.phase("100 selects without an index", false, (0..n(100)).map(|i| (without, range(i, 100))).collect());
    let text = p.statement("SELECT count(*), avg(b) FROM t2 WHERE c LIKE ?1");
    let like = |_| vec![Value::Text(format!("%{}%", random.letters(2)))];
    p.phase("100 selects on a comparison of text", false, (0..n(100)).map(like).map(|v| (text, v)).collect());
    let index = ["CREATE INDEX i2a ON t2(a)", "CREATE INDEX i2b ON t2(b)"].map(|sql| p.statement(sql));
    p.phase("creating an index", false, index.iter().map(|i| (*i, Vec::new())).collect());
    p.phase("5000 selects with an index", false, (0..n(5000)).map(|i| (without, range(i, 20))).collect());
    let update = p.statement("UPDATE t1 SET b = b * 2 WHERE b >= ?1 AND b < ?2");
    p.phase("1000 updates without an index", true, (0..n(1000)).map(|i| (update, range(i, 10))).collect());
    let indexed = p.statement("UPDATE t2 SET b = ?2 WHERE a = ?1");
    let mut change = |i: usize| vec![Value::Int(i as i64 + 1), Value::Int(random.below(100_000) as i64)];
    p.phase("25000 updates with an index", true, (0..n(25_000)).map(|i| (indexed, change(i))).collect());
    let copy = ["INSERT INTO t1 SELECT b, a, c FROM t2", "INSERT INTO t2 SELECT b, a, c FROM t1"];
    let copy = copy.map(|sql| p.statement(sql));
    p.phase("inserts from a select", true, copy.iter().map(|i| (*i, Vec::new())).collect());
    let delete = ["DELETE FROM t2 WHERE c LIKE '%fi%'", "DELETE FROM t2 WHERE a > 10 AND a < 20000"];
    let delete = delete.map(|sql| p.statement(sql));
    p.phase("delete without an index", false, vec![(delete[0], Vec::new())]);
    p.phase("delete with an index", false, vec![(delete[1], Vec::new())]);
    let drop = [1, 2, 3].map(|t| p.statement(&format!("DROP TABLE t{t}")));
    p.phase("drop table", false, drop.iter().map(|i| (*i, Vec::new())).collect());
    let table = |t| format!("CREATE TABLE t{t}(a INTEGER, b INTEGER, c VARCHAR(100)); ");
    Script {
        schema: [1, 2, 3].map(table).concat() + "CREATE INDEX i3b ON t3(b)",
        statements: p.statements,
        preload: Vec::new(),
        transactions: p.transactions,
        phases: p.phases,
        conduct: Conduct::PLAIN,
        key_order: "ascending rows, random numbers",
        row_bytes: 40,
    }
}

fn dbbench(size: &Size, seed: u64) -> Script {
    let n = |of_1000: usize| (of_1000 * size.transactions / 1000).max(1);
    let mut random = Random::new(seed);
    let mut p = Phases { statements: Vec::new(), transactions: Vec::new(), phases: Vec::new() };
    let insert = p.statement("INSERT INTO item(id, number, name) VALUES(?1, ?2, ?3)");
    let preloaded = size.rows.max(n(10_000));
    let mut row = |i: usize| -> ScriptStep {
        let name = Value::Text(random.letters(size.row_bytes));
        (insert, vec![Value::Int(i as i64), Value::Int(i as i64 * 7), name])
    };
    let preload = (0..preloaded).map(&mut row).collect();
    let inserts = (preloaded..preloaded + n(1000)).map(&mut row).collect();
    p.phase("inserts", false, inserts);
    let search = p.statement("SELECT name FROM item WHERE number = ?1");
    let mut any = |_| (search, vec![Value::Int(random.below(preloaded) as i64 * 7)]);
    p.phase("searches by index", false, (0..n(20_000)).map(&mut any).collect());
    let iterate = p.statement("SELECT id, number, name FROM item ORDER BY id LIMIT ?1");
    p.phase("rows in turn", false, vec![(iterate, vec![Value::Int(n(20_000) as i64)])]);
    let delete = p.statement("DELETE FROM item WHERE id = ?1");
    let mut order: Vec<usize> = (0..preloaded).collect();
    random.shuffle(&mut order);
    order.truncate(n(10_000));
    p.phase("deletes", false, order.iter().map(|id| (delete, vec![Value::Int(*id as i64)])).collect());
    Script {
        schema: "CREATE TABLE item(id INTEGER PRIMARY KEY, number INTEGER, name TEXT); \
                 CREATE INDEX item_number ON item(number)"
            .to_owned(),
        statements: p.statements,
        preload,
        transactions: p.transactions,
        phases: p.phases,
        conduct: Conduct::PLAIN,
        key_order: "inserts ascending, searches and deletes random",
        row_bytes: size.row_bytes,
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::SIZE;
    use super::*;

    #[test]
    fn the_rl_benchmark_has_its_13_steps_in_their_sizes() {
        let script = rl(&Size { transactions: 1000, ..SIZE }, 1);
        assert_eq!(script.phases.len(), 13);
        assert_eq!(script.phases[0].1, 1000);
        let steps = |i: usize| if let Transaction::Steps(s) = &script.transactions[i] { s.len() } else { 0 };
        assert_eq!((steps(1000), steps(1001)), (25_000, 25_000));
    }

    #[test]
    fn db_bench_has_its_numbers() {
        let script = dbbench(&Size { transactions: 1000, rows: 20_000, ..SIZE }, 1);
        let numbers: Vec<usize> = script.phases.iter().map(|(_, n)| *n).collect();
        assert_eq!(numbers, [1000, 20_000, 1, 10_000]);
    }

    #[test]
    fn mobibench_writes_as_its_source_does() {
        let script = mobibench(&Size { rows: 0, tables: 1, ..SIZE }, 1, RowOp::Insert);
        let value = "aaaaaaaaaabbbbbbbbbbccccccccccddddddddddeeeeeeeeee\
                     ffffffffffgggggggggghhhhhhhhhhiiiiiiiiiijjjjjjjjjj";
        let wanted = format!("BEGIN;INSERT INTO tblMyList0(id,Value) VALUES(0,'{value}');COMMIT;");
        assert_eq!(script.transactions[0], Transaction::Text(wanted));
        // The C library's numbers here after srand(1) and srand(7).
        assert_eq!(glibc_random(1, 3), [1_804_289_383, 846_930_886, 1_681_692_777]);
        assert_eq!(glibc_random(7, 1), [1_045_618_677]);
        assert!(mobibench_value(5).starts_with("ffffffffffgggg") && mobibench_value(5).ends_with("eeeeeeeeee"));
    }
}
