//! Random SQL from a seed, on few tables and keys, so that statements meet the same pages.

use onewrite_core::disk::sim::SplitMix64;

/// One history's databases.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Page size of a new database in bytes.
    pub page_bytes: usize,
    /// The scheme's largest page size.
    pub page_bytes_max: usize,
    /// `auto_vacuum`: 0, 1 or 2.
    pub auto_vacuum: usize,
    /// A database above this size shrinks.
    pub bytes_max: usize,
    /// Bytes that a big transaction writes.
    pub big_bytes: usize,
}

const TABLES: [&str; 3] = ["t", "u", "w"];
const KEYS: usize = 120;

/// Settings of a new database.
pub fn settings(shape: Shape, schema: &str) -> String {
    let Shape { page_bytes, auto_vacuum, .. } = shape;
    format!("PRAGMA {schema}.page_size={page_bytes}; PRAGMA {schema}.auto_vacuum={auto_vacuum}")
}

/// Makes the tables.
pub fn schema(schema: &str) -> Vec<String> {
    vec![
        format!("CREATE TABLE {schema}.t(k INTEGER PRIMARY KEY, s TEXT, b BLOB)"),
        format!("CREATE TABLE {schema}.u(k INTEGER PRIMARY KEY, s TEXT UNIQUE, b BLOB)"),
        format!("CREATE TABLE {schema}.w(k INTEGER, s TEXT, b BLOB, PRIMARY KEY(s, k)) WITHOUT ROWID"),
        format!("CREATE INDEX {schema}.ts ON t(s, k)"),
    ]
}

/// One transaction's statements.
pub fn transaction(shape: Shape, schemas: &[&str], rng: &mut SplitMix64) -> Vec<String> {
    let count = match rng.below(16) {
        0..9 => 1,
        9..14 => 2 + rng.below(3),
        _ => 4 + rng.below(8),
    };
    let mut all: Vec<String> = Vec::new();
    let mut depth = 0;
    for n in 0..count.max(schemas.len()) {
        let schema = if n < schemas.len() { schemas[n] } else { schemas[rng.below(schemas.len())] };
        if count > 2 {
            match rng.below(8) {
                0 => {
                    all.push(format!("SAVEPOINT s{depth}"));
                    depth += 1;
                }
                1 if depth > 0 => {
                    depth -= 1;
                    if rng.below(2) == 0 {
                        all.push(format!("ROLLBACK TO s{depth}"));
                    }
                    all.push(format!("RELEASE s{depth}"));
                }
                _ => {}
            }
        }
        all.push(statement(shape, schema, rng));
    }
    all
}

/// Changes the database, or could.
pub fn statement(shape: Shape, schema: &str, rng: &mut SplitMix64) -> String {
    let table = TABLES[rng.below(TABLES.len())];
    let key = rng.below(KEYS);
    let text = format!("'{} {}'", ["alpha", "beta", "gamma", "delta"][rng.below(4)], rng.below(60));
    let seed = rng.next_u64() >> 24;
    let bytes = match rng.below(24) {
        0 => shape.page_bytes * 2 + rng.below(shape.page_bytes),
        1..3 => shape.page_bytes / 2 + rng.below(shape.page_bytes),
        3..10 => 40 + rng.below(200),
        _ => rng.below(40),
    };
    let span = rng.below(12);
    match rng.below(40) {
        0..14 => format!("INSERT OR REPLACE INTO {schema}.{table} VALUES ({key}, {text}, noise({seed}, {bytes}))"),
        14..18 => format!("INSERT INTO {schema}.{table} VALUES ({key}, {text}, NULL)"),
        18..25 => format!(
            "UPDATE OR IGNORE {schema}.{table} SET s = {text} || k, b = noise({seed} + k, {}) WHERE k BETWEEN {key} AND {key} + {span}",
            bytes.min(400)
        ),
        25..27 => format!("UPDATE {schema}.{table} SET b = b WHERE k = {key}"),
        27..32 => format!("DELETE FROM {schema}.{table} WHERE k BETWEEN {key} AND {key} + {span}"),
        32 => format!("DELETE FROM {schema}.{table}"),
        33..35 => {
            let each = 300 + rng.below(1200);
            let rows = (shape.big_bytes / each).max(2);
            format!(
                "WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < {rows}) INSERT OR REPLACE INTO \
                 {schema}.{table} SELECT ({key} + i * 7) % {KEYS}, 'big ' || i, noise({seed} + i, {each}) FROM n"
            )
        }
        35 => format!("PRAGMA {schema}.user_version={}", rng.below(1000)),
        36 if rng.below(2) == 0 => format!("PRAGMA {schema}.incremental_vacuum({})", 1 + rng.below(9)),
        36 => format!("CREATE INDEX IF NOT EXISTS {schema}.extra ON u(b, k)"),
        37 => format!("DROP INDEX IF EXISTS {schema}.extra"),
        38 => format!("CREATE TABLE IF NOT EXISTS {schema}.c AS SELECT k, s FROM {schema}.{table} WHERE k < {key}"),
        _ => format!("DROP TABLE IF EXISTS {schema}.c"),
    }
}

/// One transaction's statements that free no page: rows behind the newest of `table`, one of four,
/// and rows of it that keep their size.
pub fn growth(schema: &str, table: usize, rng: &mut SplitMix64) -> Vec<String> {
    let table = format!("{schema}.g{table}");
    let (rows, bytes, seed) = (1 + rng.below(60), 20 + rng.below(90), rng.next_u64() >> 24);
    let grow = format!(
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {rows}) \
         INSERT INTO {table}(b) SELECT noise({seed} + i, {bytes}) FROM n"
    );
    let update =
        format!("UPDATE {table} SET b = noise({seed} + k, length(b)) WHERE k BETWEEN {0} AND {0} + 3", rng.below(KEYS));
    match rng.below(4) {
        0 => vec![update],
        1 => vec![update, grow],
        2 => vec![grow, format!("INSERT INTO {table}(b) VALUES (noise({seed}, {bytes}))")],
        _ => vec![grow],
    }
}

/// Makes the tables of [`growth`] anew.
pub fn make_growth(schema: &str) -> Vec<String> {
    let table = |n| {
        let table = format!("{schema}.g{n}");
        [format!("DROP TABLE IF EXISTS {table}"), format!("CREATE TABLE {table}(k INTEGER PRIMARY KEY, b BLOB)")]
    };
    (0..4).flat_map(table).collect()
}

/// Deletes most rows.
pub fn shrink(schema: &str) -> Vec<String> {
    TABLES.iter().map(|table| format!("DELETE FROM {schema}.{table} WHERE k % 4 <> 0")).collect()
}
