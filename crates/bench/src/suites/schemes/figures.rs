//! The tables and figures that are measured: the work of each engine, and the metrics shown of it.

use super::engine::{SchemeEngine, preset, truncate, wal, wal_every, with};
use super::load::{Load, Operation};
use super::recovery::CrashedTransaction;
use crate::engines::can_be_had;

/// The work of one cell of a figure.
#[derive(Clone, Debug)]
pub enum CellWork {
    Timed(Load),
    Volume(Load),
    Recovery(CrashedTransaction),
}

/// One engine at one point.
#[derive(Clone, Debug)]
pub struct FigureCell {
    pub engine: SchemeEngine,
    /// The value that the figure varies.
    pub at: String,
    pub work: CellWork,
}

/// A number that is shown of a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FigureMetric {
    UsPerTx,
    TxPerS,
    /// Transactions per second by those of the engine that the figure refers to, at the same point.
    Ratio,
    PagesPerTx,
    /// Of a hundred transactions, how many went through the log.
    ThroughLog,
    KibDatabase,
    KibLog,
    KibJournal,
    KibOther,
    KibTotal,
    WritesPerTx,
    FlushesPerTx,
    /// Until the first row.
    RecoveryMs,
    /// Until the file is a plain one.
    ClosedMs,
}

impl FigureMetric {
    /// For people, and in the JSON.
    pub fn names(self) -> (&'static str, &'static str) {
        match self {
            FigureMetric::UsPerTx => ("µs", "us_per_tx"),
            FigureMetric::TxPerS => ("tx/s", "tx_per_s"),
            FigureMetric::Ratio => ("ratio", "ratio"),
            FigureMetric::PagesPerTx => ("dirty pages", "dirty_pages_per_tx"),
            FigureMetric::ThroughLog => ("% by log", "through_log_percent"),
            FigureMetric::KibDatabase => ("database", "kib_database_per_tx"),
            FigureMetric::KibLog => ("log", "kib_log_per_tx"),
            FigureMetric::KibJournal => ("fs journal", "kib_journal_per_tx"),
            FigureMetric::KibOther => ("other", "kib_other_per_tx"),
            FigureMetric::KibTotal => ("total", "kib_per_tx"),
            FigureMetric::WritesPerTx => ("writes", "block_writes_per_tx"),
            FigureMetric::FlushesPerTx => ("flushes", "flushes_per_tx"),
            FigureMetric::RecoveryMs => ("ms to row", "first_row_ms"),
            FigureMetric::ClosedMs => ("ms to close", "closed_ms"),
        }
    }

    pub fn digits(self) -> usize {
        match self {
            FigureMetric::UsPerTx | FigureMetric::TxPerS => 0,
            FigureMetric::Ratio | FigureMetric::PagesPerTx | FigureMetric::WritesPerTx | FigureMetric::FlushesPerTx => {
                2
            }
            _ => 1,
        }
    }
}

pub struct Figure {
    /// On the command line.
    pub name: &'static str,
    pub title: &'static str,
    /// The setting that the columns vary; empty where they are the metrics.
    pub varies: &'static str,
    pub metrics: &'static [FigureMetric],
    /// The engine that ratios refer to.
    pub reference: Option<&'static str>,
    pub cells: Vec<FigureCell>,
}

#[derive(Clone, Copy, Debug)]
pub struct FigureSize {
    pub transactions: usize,
    /// As many as the papers have.
    pub full: bool,
}

fn timed(engine: SchemeEngine, at: impl ToString, load: Load) -> FigureCell {
    FigureCell { engine, at: at.to_string(), work: CellWork::Timed(load) }
}

pub fn all(size: FigureSize) -> Vec<Figure> {
    vec![
        checkpoint_intervals(size),
        volumes(size),
        search_ratios(size),
        recovery_by_operations(size),
        redistribution(size),
        combinations(size),
        single_operations(size),
        operations_per_transaction(size),
        recovery_by_pages(size),
    ]
}

fn checkpoint_intervals(size: FigureSize) -> Figure {
    // Long enough for a checkpoint at the longest interval.
    let load = Load::new(Operation::Insert, 2000, size.transactions.max(600));
    let mut cells = vec![timed(preset("lsmvbt"), "none", load.clone()), timed(preset("mvbt"), "none", load.clone())];
    cells.extend([63, 125, 250, 500, 1000].map(|pages| timed(wal_every(pages), pages, load.clone())));
    Figure {
        name: "ls-mvbt-6",
        title: "LS-MVBT Fig. 6: a single-row insert, by WAL checkpoint interval in pages; 2000 rows before",
        varies: "interval",
        metrics: &[FigureMetric::UsPerTx, FigureMetric::PagesPerTx],
        reference: None,
        cells,
    }
}

/// The engines of the paper on Doubleheader Logging.
fn doubleheader() -> Vec<SchemeEngine> {
    let mut all = vec![
        preset("off-opt"),
        preset("dhl-cc"),
        preset("dhl-tc"),
        preset("mvbt-opt"),
        preset("wal-opt"),
        // As the paper does it: 100 pages preallocated, a checkpoint when they are full.
        with("wal-opt/100", "scheme=wal-opt&log_size=400k"),
        preset("dash"),
        wal(),
        preset("log"),
    ];
    all.retain(|engine| can_be_had(&engine.name));
    all
}

fn volumes(size: FigureSize) -> Figure {
    let load = Load::new(Operation::Insert, 2000, size.transactions);
    let mut engines = doubleheader();
    engines.extend([preset("off"), preset("mvbt"), preset("lsmvbt")]);
    let cells = engines.into_iter().map(|engine| FigureCell {
        engine,
        at: String::new(),
        work: CellWork::Volume(load.clone()),
    });
    Figure {
        name: "dhl-8",
        title: "DHL Fig. 8, LS-MVBT Fig. 8: KiB of a single-row insert by where they go; 2000 rows before",
        varies: "",
        metrics: &[
            FigureMetric::KibDatabase,
            FigureMetric::KibLog,
            FigureMetric::KibJournal,
            FigureMetric::KibOther,
            FigureMetric::KibTotal,
            FigureMetric::WritesPerTx,
            FigureMetric::FlushesPerTx,
            FigureMetric::ThroughLog,
        ],
        reference: None,
        cells: cells.collect(),
    }
}

fn search_ratios(size: FigureSize) -> Figure {
    let mut cells = Vec::new();
    for percent in [0, 20, 40, 60, 80, 93, 100] {
        let load = Load { search_percent: percent, ..Load::new(Operation::InsertDelete, 1000, 2 * size.transactions) };
        let at = format!("{percent}:{}", 100 - percent);
        cells.extend([preset("lsmvbt"), wal(), truncate(), preset("log")].map(|e| timed(e, &at, load.clone())));
    }
    Figure {
        name: "ls-mvbt-9",
        title: "LS-MVBT Fig. 9: searches and inserts or deletes, by their ratio; 1000 rows",
        varies: "search:write",
        metrics: &[FigureMetric::TxPerS, FigureMetric::Ratio],
        reference: Some("WAL"),
        cells,
    }
}

fn recovery_by_operations(size: FigureSize) -> Figure {
    let before = if size.full { 400 } else { 50 };
    let mut cells = Vec::new();
    for inserts in [10, 40, 160, 640, 2560] {
        let work = CellWork::Recovery(CrashedTransaction { rows: 1000, before, inserts });
        let cell = |engine| FigureCell { engine, at: inserts.to_string(), work: work.clone() };
        cells.extend([preset("lsmvbt"), wal(), truncate(), preset("log")].map(cell));
    }
    Figure {
        name: "ls-mvbt-10",
        title: "LS-MVBT Fig. 10: recovery, by inserts of the transaction that a crash interrupts; 1000 rows before",
        varies: "inserts",
        metrics: &[FigureMetric::RecoveryMs, FigureMetric::ClosedMs],
        reference: None,
        cells,
    }
}

fn redistribution(size: FigureSize) -> Figure {
    let mut cells = Vec::new();
    for page_bytes in [512, 1024, 2048, 4096, 8192] {
        let load = Load::new(Operation::Insert, 0, size.transactions.max(300));
        let engines = [
            with("with siblings", "scheme=off&split=stock"),
            with("without", "scheme=off&split=lazy"),
            with("without, embedded", "scheme=off-opt&split=lazy"),
        ];
        cells.extend(engines.map(|e| timed(e.page_bytes(page_bytes), page_bytes, load.clone())));
    }
    Figure {
        name: "ls-mvbt-11",
        title: "LS-MVBT Fig. 11: an insert with and without sibling redistribution, by page size; an empty table (scheme off)",
        varies: "page size",
        metrics: &[FigureMetric::UsPerTx, FigureMetric::PagesPerTx],
        reference: None,
        cells,
    }
}

const WRITES: [(&str, Operation); 3] =
    [("insert", Operation::Insert), ("update", Operation::Update), ("delete", Operation::Delete)];

fn combinations(size: FigureSize) -> Figure {
    let mut cells = Vec::new();
    for (at, operation) in WRITES {
        let load = Load::new(operation, 1000, size.transactions);
        let engines = [
            truncate(),
            wal(),
            preset("mvbt"),
            preset("mvbt-opt"),
            with("mvbt + lazy split", "scheme=mvbt&split=lazy&reserve_cells=1"),
            preset("lsmvbt"),
        ];
        cells.extend(engines.map(|e| timed(e, at, load.clone())));
    }
    Figure {
        name: "ls-mvbt-12",
        title: "LS-MVBT Fig. 12: single-row transactions with each combination of optimisations; 1000 rows before",
        varies: "operation",
        metrics: &[FigureMetric::TxPerS, FigureMetric::Ratio, FigureMetric::ThroughLog],
        reference: Some("WAL"),
        cells,
    }
}

fn single_operations(size: FigureSize) -> Figure {
    let mut cells = Vec::new();
    for (at, operation) in WRITES {
        let load = Load::new(operation, 2000, 3 * size.transactions);
        let mut engines = doubleheader();
        engines.extend([preset("off"), preset("mvbt")]);
        cells.extend(engines.into_iter().map(|e| timed(e, at, load.clone())));
    }
    Figure {
        name: "dhl-7",
        title: "DHL Fig. 7: latency of single-row transactions; 2000 rows before",
        varies: "operation",
        metrics: &[FigureMetric::UsPerTx, FigureMetric::Ratio, FigureMetric::ThroughLog],
        reference: Some("off-opt"),
        cells,
    }
}

fn operations_per_transaction(size: FigureSize) -> Figure {
    let mut cells = Vec::new();
    for (what, operation) in WRITES {
        for operations in [1, 2, 4, 8, 16] {
            let load = Load {
                operations_per_tx: operations,
                ..Load::new(operation, 2000, size.transactions / if size.full { 1 } else { 2 })
            };
            let at = format!("{what} {operations}");
            cells.extend(doubleheader().into_iter().map(|e| timed(e, &at, load.clone())));
        }
    }
    Figure {
        name: "dhl-10",
        title: "DHL Fig. 10: throughput by operations per transaction, and as a ratio to WAL; 2000 rows before",
        varies: "operations",
        metrics: &[FigureMetric::TxPerS, FigureMetric::Ratio, FigureMetric::ThroughLog],
        reference: Some("WAL"),
        cells,
    }
}

fn recovery_by_pages(size: FigureSize) -> Figure {
    let before = if size.full { 400 } else { 50 };
    let mut cells = Vec::new();
    for inserts in [1, 2, 4, 8, 16] {
        let work = CellWork::Recovery(CrashedTransaction { rows: 1200, before, inserts });
        let cell = |engine| FigureCell { engine, at: inserts.to_string(), work: work.clone() };
        let engines = [preset("dhl-cc"), preset("mvbt-opt"), preset("dash"), wal(), preset("log")];
        cells.extend(engines.into_iter().filter(|engine| can_be_had(&engine.name)).map(cell));
    }
    Figure {
        name: "dhl-11",
        title: "DHL Fig. 11: recovery, by inserts (about as many pages) of the transaction that a crash interrupts; 1200 rows before",
        varies: "inserts",
        metrics: &[FigureMetric::RecoveryMs, FigureMetric::ClosedMs],
        reference: None,
        cells,
    }
}
