//! Random SQL from a seed: the same seed gives the same statements everywhere, given the same
//! [`Facts`].
//!
//! Knows nothing of rusqlite or of how the statements run, so that any harness can use it. It keeps
//! no model of the schema either: names come from a small universe, and a statement whose table is
//! missing at the moment fails the same way everywhere. Texts may hold `{dir}` (a directory of the
//! run), `{vfs1}` and `{vfs2}` (VFS parameters of two attached files). They may call `noise(seed,
//! bytes)`, a deterministic incompressible blob that the harness provides.

use std::collections::VecDeque;

/// Random numbers: SplitMix64.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// The stream of `seed`.
    pub fn new(seed: u64) -> Self {
        Rng(seed)
    }

    /// The next number.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number in `0..count`.
    pub fn below(&mut self, count: u64) -> u64 {
        ((u128::from(self.next_u64()) * u128::from(count)) >> 64) as u64
    }

    /// True once in `n` times.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// One of `choices`.
    pub fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len() as u64) as usize]
    }
}

/// Facts of the run so far that the generator needs.
#[derive(Clone, Debug)]
pub struct Facts {
    /// The first connection is in no transaction.
    pub autocommit: bool,
    /// Its main database is in WAL mode.
    pub wal: bool,
    /// It holds its locks for good.
    pub exclusive: bool,
    /// Databases `a1` or `a2` are attached to it.
    pub attached: bool,
    /// Another connection has an old snapshot open: nothing that needs the file alone.
    pub reader: bool,
    /// Page size of the main database.
    pub page_bytes: u64,
    /// Bytes of the main database's pages that are in use.
    pub bytes: u64,
}

/// One step of a run.
#[derive(Clone, Debug)]
pub enum Step {
    /// A statement on one of the two connections.
    Sql(usize, String),
    /// A query of which some rows are fetched, then statements on the same connection, then the
    /// rest.
    Cursor {
        /// The query.
        sql: String,
        /// Rows fetched before the statements.
        rows: usize,
        /// The statements.
        during: Vec<String>,
    },
    /// Bytes written through a blob handle.
    Blob {
        /// Table with a column `b`.
        table: &'static str,
        /// Rowid.
        row: i64,
        /// Where in the blob.
        offset: usize,
        data: Vec<u8>,
    },
    /// A backup of the main database to a new file, pages at a time, with a statement in between.
    BackupOut {
        /// Pages of the first step.
        pages: i32,
        /// Statement after the first step.
        during: String,
    },
    /// The main database replaced by the last backup, or by a new database of another page size.
    BackupIn {
        /// Page size of the new database; the last backup where there is none.
        page_bytes: Option<u32>,
    },
    /// `VACUUM INTO`.
    VacuumInto,
    /// Open the old snapshot, or look at it and close it.
    Reader(bool),
    /// Close everything and open it again.
    Reopen,
    /// Compare everything.
    Compare,
}

/// Shape of the database and weight of the statements of one run.
#[derive(Clone, Debug)]
pub struct Shape {
    /// Page size in bytes.
    pub page_bytes: u32,
    /// `auto_vacuum`: 0, 1 or 2.
    pub auto_vacuum: u32,
    /// The database is kept below this size.
    pub bytes_max: u64,
    /// Sometimes transactions of this many rows.
    pub big_rows: u64,
}

/// The generator.
pub struct Generator {
    rng: Rng,
    shape: Shape,
    queue: VecDeque<Step>,
    savepoints: u64,
}

const TABLES: [&str; 6] = ["r0", "r1", "w0", "g0", "f0", "c0"];
/// Tables with a rowid and a blob of their own.
const ROWID_TABLES: [&str; 3] = ["r0", "r1", "g0"];
const KEYS: u64 = 300;

impl Generator {
    /// A generator for one run.
    pub fn new(rng: Rng, shape: Shape) -> Self {
        Generator { rng, shape, queue: VecDeque::new(), savepoints: 0 }
    }

    /// Statements that set the shape of a new database and make its tables.
    pub fn prologue(&mut self) -> Vec<String> {
        let Shape { page_bytes, auto_vacuum, .. } = self.shape;
        let mut all = vec![format!("PRAGMA page_size={page_bytes}"), format!("PRAGMA auto_vacuum={auto_vacuum}")];
        all.extend(TABLES.iter().map(|t| create(t, "main")));
        all.push("CREATE INDEX main.r0s ON r0(s)".into());
        all.push("CREATE INDEX main.r0bk ON r0(substr(b, 1, 20), k DESC)".into());
        all.push("CREATE INDEX main.r1part ON r1(k, s) WHERE k % 3 = 0".into());
        all.push(create("log0", "main"));
        all.push(create("o0", "main"));
        all.push(trigger(0));
        all
    }

    /// The next step.
    pub fn next(&mut self, facts: &Facts) -> Step {
        if let Some(step) = self.queue.pop_front() {
            return step;
        }
        if facts.bytes > self.shape.bytes_max && facts.autocommit {
            let table = self.rng.pick(&["r0", "r1", "w0", "g0"]);
            self.first("DELETE FROM main.log0");
            self.first("DELETE FROM main.o0");
            return sql(format!("DELETE FROM main.{table} WHERE k % 4 <> 0"));
        }
        match self.rng.below(100) {
            0..=48 => {
                let connection = usize::from(facts.autocommit && !facts.exclusive && self.rng.one_in(6));
                let text = self.dml(facts, connection == 0);
                Step::Sql(connection, text)
            }
            49..=56 => sql(self.query()),
            57..=76 => sql(self.transaction(facts)),
            77..=81 => sql(self.ddl(facts)),
            82..=86 => sql(self.pragma()),
            87..=89 => self.other(facts),
            90 => Step::Compare,
            _ => self.heavy(facts),
        }
    }

    /// Whether the run may end here: no steps that belong together are left.
    pub fn may_end(&self) -> bool {
        self.queue.is_empty()
    }

    fn first(&mut self, text: impl Into<String>) {
        self.queue.push_back(sql(text.into()));
    }

    fn key(&mut self) -> u64 {
        self.rng.below(KEYS)
    }

    fn text(&mut self) -> String {
        let words = ["alpha", "beta", "gamma", "delta", "épsilon", "zeta", "eta", "theta", "", "iota kappa"];
        let n = self.rng.below(4);
        let picked: Vec<&str> = (0..=n).map(|_| self.rng.pick(&words)).collect();
        format!("'{} {}'", picked.join(" "), self.rng.below(50))
    }

    fn blob(&mut self) -> String {
        let page = u64::from(self.shape.page_bytes);
        let bytes = match self.rng.below(40) {
            0 => page * 5 + self.rng.below(page),
            1..=3 => page + self.rng.below(page),
            4..=6 => return "NULL".into(),
            7..=8 => return format!("zeroblob({})", self.rng.below(page * 2)),
            9..=20 => self.rng.below(200),
            _ => self.rng.below(30),
        };
        format!("noise({}, {})", self.rng.below(1 << 40), bytes.min(100_000))
    }

    fn table(&mut self, facts: &Facts) -> String {
        let table = self.rng.pick(&TABLES);
        if facts.attached && !facts.reader && self.rng.one_in(3) {
            return format!("{}.{}", self.rng.pick(&["a1", "a2"]), self.rng.pick(&["r0", "w0", "r1"]));
        }
        format!("main.{table}")
    }

    fn dml(&mut self, facts: &Facts, attached: bool) -> String {
        let facts = Facts { attached: facts.attached && attached, ..facts.clone() };
        let table = self.table(&facts);
        let (k, s, b) = (self.key(), self.text(), self.blob());
        let span = self.rng.below(40);
        let or = self.rng.pick(&["", "", "", "OR REPLACE ", "OR IGNORE ", "OR FAIL ", "OR ROLLBACK ", "OR ABORT "]);
        match self.rng.below(24) {
            0..=6 => format!("INSERT {or}INTO {table}(k, s, b) VALUES ({k}, {s}, {b})"),
            7 => {
                let (k2, b2) = (self.key(), self.blob());
                format!("INSERT {or}INTO {table}(k, s, b) VALUES ({k}, {s}, {b}), ({k2}, {s}, {b2}), ({k}, {s}, NULL)")
            }
            8 => format!(
                "INSERT INTO {table}(k, s, b) VALUES ({k}, {s}, {b}) ON CONFLICT DO UPDATE SET s = excluded.s || s, b = excluded.b"
            ),
            9..=11 => {
                let rows = if self.rng.one_in(6) { self.shape.big_rows } else { 5 + self.rng.below(60) };
                let bytes = self.rng.pick(&[0, 10, 60, 300]);
                let step = self.rng.pick(&[1, 7, 7919]);
                let range = self.rng.pick(&[KEYS, KEYS * 10, 1_000_000]);
                let or = self.rng.pick(&["OR IGNORE ", "OR REPLACE "]);
                format!(
                    "WITH RECURSIVE n(i) AS (SELECT {k} UNION ALL SELECT i + 1 FROM n WHERE i < {k} + {rows}) \
                     INSERT {or}INTO {table}(k, s, b) SELECT (i * {step}) % {range}, 'row ' || i || {s}, noise(i, {bytes}) FROM n"
                )
            }
            12..=13 => format!("UPDATE {or}{table} SET s = {s}, b = {b} WHERE k = {k}"),
            14 => format!("UPDATE {or}{table} SET k = k + {span} WHERE k BETWEEN {k} AND {k} + {span}"),
            15 => format!("UPDATE {table} SET s = s || {s} WHERE k BETWEEN {k} AND {k} + {span} RETURNING k, s"),
            16 => format!("UPDATE {table} SET b = {b} WHERE k BETWEEN {k} AND {k} + 5"),
            17..=18 => format!("DELETE FROM {table} WHERE k = {k} RETURNING *"),
            19 => format!("DELETE FROM {table} WHERE k BETWEEN {k} AND {k} + {span}"),
            20 => format!("DELETE FROM {table} WHERE k % 7 = {}", k % 7),
            21 => {
                let from = self.table(&facts);
                format!(
                    "INSERT {or}INTO {table}(k, s, b) SELECT k + {span}, s, b FROM {from} WHERE k < {k} ORDER BY k, s LIMIT 50"
                )
            }
            22 => {
                let from = self.table(&facts);
                format!("UPDATE {table} SET s = q.s FROM {from} AS q WHERE q.k = {table}.k AND q.k < {k}")
                    .replace(&format!("{table}.k"), &format!("{}.k", table.split('.').next_back().unwrap_or_default()))
            }
            _ if self.rng.one_in(4) => format!("DELETE FROM {table}"),
            _ => format!("INSERT INTO main.f0(f0) VALUES ('{}')", self.rng.pick(&["optimize", "rebuild", "merge"])),
        }
    }

    fn query(&mut self) -> String {
        let (k, table) = (self.key(), self.rng.pick(&TABLES));
        let span = self.rng.below(100);
        match self.rng.below(10) {
            0 => format!("SELECT * FROM main.{table} WHERE k = {k}"),
            1 => format!(
                "SELECT k, s, length(b) FROM main.{table} WHERE k BETWEEN {k} AND {k} + {span} ORDER BY k DESC, s"
            ),
            2 => format!("SELECT count(*), sum(k), max(s), total(length(b)) FROM main.{table}"),
            3 => "SELECT r0.k, r1.s FROM main.r0 JOIN main.r1 USING (k) ORDER BY 1, 2 LIMIT 30".into(),
            4 => format!(
                "SELECT rowid, s FROM main.f0 WHERE f0 MATCH 'alpha AND (beta OR gamma OR \"{k}\")' ORDER BY rowid"
            ),
            5 => "PRAGMA main.integrity_check".into(),
            6 => "SELECT name, sql FROM main.sqlite_schema ORDER BY name".into(),
            7 => self
                .rng
                .pick(&["PRAGMA page_count", "PRAGMA freelist_count", "PRAGMA user_version", "PRAGMA page_size"])
                .into(),
            8 => "SELECT s, count(*) FROM main.r0 INDEXED BY r0s GROUP BY s".into(),
            _ => "SELECT what, k FROM main.log0 ORDER BY id DESC LIMIT 20".into(),
        }
    }

    fn transaction(&mut self, facts: &Facts) -> String {
        if facts.autocommit {
            self.savepoints = 0;
            return match self.rng.below(12) {
                0..=4 => "BEGIN".into(),
                // Would write to all files at once, which needs them alone.
                5..=9 if facts.reader && facts.attached => "BEGIN".into(),
                5..=8 => "BEGIN IMMEDIATE".into(),
                9 => "BEGIN EXCLUSIVE".into(),
                10 => self.savepoint(),
                _ => "COMMIT".into(),
            };
        }
        let name = self.rng.below(self.savepoints.max(1));
        match self.rng.below(14) {
            0..=4 => "COMMIT".into(),
            5..=6 => "ROLLBACK".into(),
            7..=9 => self.savepoint(),
            10..=11 => format!("ROLLBACK TO s{name}"),
            12 => format!("RELEASE s{name}"),
            _ => "BEGIN".into(),
        }
    }

    fn savepoint(&mut self) -> String {
        self.savepoints = (self.savepoints + 1).min(4);
        format!("SAVEPOINT s{}", self.savepoints - 1)
    }

    fn ddl(&mut self, facts: &Facts) -> String {
        let table = self.rng.pick(&TABLES);
        let schema = if facts.attached && !facts.reader && self.rng.one_in(4) { "a1" } else { "main" };
        let n = self.rng.below(4);
        match self.rng.below(15) {
            0 => {
                self.first(create(table, schema));
                format!("DROP TABLE IF EXISTS {schema}.{table}")
            }
            1..=2 => create(table, schema),
            3 => format!(
                "CREATE INDEX IF NOT EXISTS {schema}.i{n} ON {}(s, k)",
                self.rng.pick(&["r0", "r1", "w0", "g0"])
            ),
            4 => format!("CREATE UNIQUE INDEX {schema}.i{n} ON {}(k, s, b)", self.rng.pick(&["r0", "r1", "w0"])),
            5 => format!("DROP INDEX IF EXISTS {schema}.i{n}"),
            // Writes to all files at once.
            6 if facts.reader && facts.attached => "REINDEX main.r0".into(),
            6 => self.rng.pick(&["REINDEX", "REINDEX main.r0", "REINDEX main.r0s", "REINDEX nocase"]).into(),
            7 => format!("ALTER TABLE {schema}.{table} ADD COLUMN x{n} DEFAULT {}", self.key()),
            8 => format!("ALTER TABLE {schema}.{table} DROP COLUMN x{n}"),
            9 => format!("ALTER TABLE {schema}.{table} RENAME COLUMN x{n} TO x{}", self.rng.below(4)),
            10 => {
                self.first(format!("ALTER TABLE {schema}.t{n} RENAME TO {table}"));
                format!("ALTER TABLE {schema}.{table} RENAME TO t{n}")
            }
            11 => trigger(n),
            12 => format!("DROP TRIGGER IF EXISTS main.tr{n}"),
            13 => "ANALYZE main".into(),
            _ => format!("CREATE TABLE IF NOT EXISTS {schema}.copy{n} AS SELECT k, s FROM main.{table}"),
        }
    }

    fn pragma(&mut self) -> String {
        let n = self.rng.below(1000);
        match self.rng.below(12) {
            0 => format!("PRAGMA user_version={n}"),
            1 => format!("PRAGMA application_id={n}"),
            2 => format!("PRAGMA secure_delete={}", self.rng.pick(&["on", "off", "fast"])),
            3..=5 => format!("PRAGMA cache_size={}", self.rng.pick(&[1, 5, 10, 50, -2000])),
            6..=7 => format!("PRAGMA synchronous={}", self.rng.pick(&["off", "normal", "full", "extra"])),
            8 => format!("PRAGMA incremental_vacuum({})", n % 30),
            9 => format!("PRAGMA temp_store={}", n % 3),
            10 => format!("PRAGMA cell_size_check={}", n % 2),
            11 if n % 4 < 3 => format!("PRAGMA mmap_size={}", [0, 100_000, 1_000_000_000][(n % 4) as usize]),
            _ => "PRAGMA shrink_memory".into(),
        }
    }

    fn other(&mut self, facts: &Facts) -> Step {
        if self.rng.one_in(2) {
            let table = self.rng.pick(&ROWID_TABLES);
            let row = self.rng.below(40) as i64;
            let n = self.rng.below(30);
            let data = (0..n).map(|_| self.rng.next_u64() as u8).collect();
            return Step::Blob { table, row, offset: self.rng.below(60) as usize, data };
        }
        let table = self.rng.pick(&TABLES);
        let rows = self.rng.below(20) as usize;
        let during = (0..self.rng.below(4))
            .map(|_| match self.rng.below(8) {
                0..=4 => self.dml(&Facts { attached: false, ..facts.clone() }, false),
                _ => self.transaction(facts),
            })
            .collect();
        Step::Cursor { sql: format!("SELECT k, s, length(b) FROM main.{table}"), rows, during }
    }

    fn heavy(&mut self, facts: &Facts) -> Step {
        if !facts.autocommit {
            // Half of those that need to be outside of a transaction are tried inside one as well.
            return sql(self
                .rng
                .pick(&["VACUUM", "COMMIT", "ROLLBACK", "PRAGMA main.journal_mode=WAL", "DETACH a1"])
                .into());
        }
        if facts.reader {
            return match self.rng.below(6) {
                0..=1 => Step::Reader(false),
                2 => {
                    // Another size may have been asked for before.
                    self.first(format!("PRAGMA main.page_size={}", facts.page_bytes));
                    self.first("VACUUM");
                    Step::Compare
                }
                3 => Step::VacuumInto,
                4 => Step::BackupOut { pages: 3, during: self.dml(facts, false) },
                _ => self.journal_off(),
            };
        }
        match self.rng.below(26) {
            0..=1 => sql("VACUUM".into()),
            2 => {
                self.first("VACUUM");
                sql(format!("PRAGMA main.page_size={}", self.rng.pick(&[512, 1024, 4096, 8192, 65536])))
            }
            3 => {
                self.first("VACUUM");
                sql(format!("PRAGMA main.auto_vacuum={}", self.rng.pick(&["none", "full", "incremental"])))
            }
            4 if facts.attached => sql("VACUUM a1".into()),
            4 | 5 => Step::VacuumInto,
            6 => Step::BackupOut { pages: 1 + self.rng.below(20) as i32, during: self.dml(facts, false) },
            7 => Step::BackupIn { page_bytes: None },
            8 => {
                for table in TABLES.iter().chain(&["log0", "o0"]) {
                    self.first(create(table, "main"));
                }
                Step::BackupIn { page_bytes: Some(self.rng.pick(&[512, 1024, 4096, 65536])) }
            }
            9..=11 => Step::Reopen,
            12..=13 if !facts.wal && !facts.exclusive => Step::Reader(true),
            12..=15 if facts.attached => {
                self.first("DETACH a2");
                sql("DETACH a1".into())
            }
            12..=15 => {
                self.first("ATTACH 'file:{dir}/a2.db?{vfs2}' AS a2");
                for schema in ["a1", "a2"] {
                    for table in ["r0", "r1", "w0"] {
                        self.first(create(table, schema));
                    }
                }
                sql("ATTACH 'file:{dir}/a1.db?{vfs1}' AS a1".into())
            }
            16..=17 if facts.exclusive => {
                self.first("SELECT count(*) FROM main.sqlite_schema");
                sql("PRAGMA locking_mode=normal".into())
            }
            16 => sql("PRAGMA main.locking_mode=exclusive".into()),
            18..=19 if facts.wal => sql(format!("PRAGMA main.journal_mode={}", self.rng.pick(&["delete", "truncate"]))),
            17 if facts.wal => sql("PRAGMA main.journal_mode=persist".into()),
            17 => sql("PRAGMA main.journal_mode=wal".into()),
            18..=21 => {
                let mode = self.rng.pick(&["delete", "truncate", "persist", "memory"]);
                sql(format!("PRAGMA main.journal_mode={mode}"))
            }
            22 if facts.wal => sql("PRAGMA main.wal_checkpoint(truncate)".into()),
            _ if facts.wal => Step::Compare,
            _ => self.journal_off(),
        }
    }

    /// `journal_mode=OFF` for one transaction that neither fails nor is rolled back.
    fn journal_off(&mut self) -> Step {
        self.first(create("o0", "main"));
        self.first("PRAGMA main.journal_mode=off");
        self.first("BEGIN");
        for _ in 0..3 + self.rng.below(4) {
            let (k, s, b) = (self.key(), self.text(), self.blob());
            let rows = self.rng.below(80);
            let text = match self.rng.below(4) {
                0 => format!("UPDATE main.o0 SET s = {s}, b = {b} WHERE k = {k}"),
                1 => format!("DELETE FROM main.o0 WHERE k BETWEEN {k} AND {k} + 20"),
                _ => format!(
                    "WITH RECURSIVE n(i) AS (SELECT {k} UNION ALL SELECT i + 1 FROM n WHERE i < {k} + {rows}) \
                     INSERT OR REPLACE INTO main.o0(k, s, b) SELECT i, {s}, {b} FROM n"
                ),
            };
            self.first(text);
        }
        self.first("COMMIT");
        let mode = self.rng.pick(&["delete", "truncate", "persist", "memory"]);
        self.first(format!("PRAGMA main.journal_mode={mode}"));
        sql("PRAGMA main.journal_mode=delete".into())
    }
}

fn sql(text: String) -> Step {
    Step::Sql(0, text)
}

fn create(table: &str, schema: &str) -> String {
    let columns = match table {
        "w0" => "(k INTEGER, s TEXT, b BLOB, PRIMARY KEY(k, s)) WITHOUT ROWID",
        "g0" => {
            "(id INTEGER PRIMARY KEY AUTOINCREMENT, k INTEGER, s TEXT COLLATE NOCASE UNIQUE, b BLOB, \
             v TEXT AS (s || k) VIRTUAL, h INTEGER AS (length(b)) STORED CHECK (h < 90000))"
        }
        "f0" => {
            return format!("CREATE VIRTUAL TABLE IF NOT EXISTS {schema}.f0 USING fts5(k UNINDEXED, s, b UNINDEXED)");
        }
        "c0" => {
            "(id INTEGER PRIMARY KEY, k INTEGER REFERENCES r0(k) ON DELETE CASCADE ON UPDATE CASCADE, \
             s TEXT NOT NULL, b BLOB)"
        }
        "o0" => "(k INTEGER PRIMARY KEY, s TEXT, b BLOB)",
        "log0" => "(id INTEGER PRIMARY KEY, what TEXT, k INTEGER)",
        "r1" => "(id INTEGER PRIMARY KEY, k INTEGER UNIQUE ON CONFLICT REPLACE, s TEXT, b BLOB)",
        _ => "(id INTEGER PRIMARY KEY, k INTEGER UNIQUE, s TEXT CHECK (length(s) < 400), b BLOB)",
    };
    format!("CREATE TABLE IF NOT EXISTS {schema}.{table}{columns}")
}

fn trigger(n: u64) -> String {
    let body = match n {
        0 => "AFTER INSERT ON r0 BEGIN INSERT INTO log0(what, k) VALUES ('insert', new.k); END",
        1 => {
            "AFTER DELETE ON r0 BEGIN DELETE FROM r1 WHERE k = old.k; INSERT INTO log0(what, k) VALUES ('gone', old.k); END"
        }
        2 => "BEFORE UPDATE ON r1 WHEN new.k % 13 = 5 BEGIN SELECT RAISE(ABORT, 'unlucky'); END",
        _ => "BEFORE INSERT ON w0 WHEN new.k % 17 = 3 BEGIN SELECT RAISE(ROLLBACK, 'very unlucky'); END",
    };
    format!("CREATE TRIGGER IF NOT EXISTS main.tr{n} {body}")
}
