//! The output of the bench: the rows of the JSON, the table, and the lines below it.

pub mod leads;

use crate::counting::blocks::PerTx;
use crate::counting::wear::{Wear, Worn};
use crate::engines::{BenchEngine, EngineKind};
use crate::numbers::stats::{self, Known, Ratio};
use crate::parameters::card::Parameters;
use crate::text::{self, thousands};
use serde::Serialize;

/// One result of the JSON. `None` is "not available"; the notes say why.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    pub engine: String,
    pub preset: String,
    pub workload: &'static str,
    pub threads: usize,
    pub tx_per_s: f64,
    /// Run by run.
    pub tx_per_s_runs: Vec<f64>,
    /// How well the median of these is known.
    pub tx_per_s_known: Option<Known>,
    /// The ratio on the table: to the engine at the head of its column.
    pub ratio: Option<Ratio>,
    pub ratio_to_wal_full: Option<f64>,
    /// To SQLite's own VFS as it comes. Reads only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ratio_to_stock_default: Option<f64>,
    pub p50_us: f64,
    pub p99_us: f64,
    pub p999_us: f64,
    pub max_us: f64,
    /// Latencies with the share of transactions that took no longer.
    pub latency_us_cdf: Vec<(f64, f64)>,
    pub block_writes_per_tx: Option<f64>,
    pub kib_per_tx: Option<f64>,
    /// Of those, zeros for onewrite's log, which grows once.
    pub kib_once_per_tx: Option<f64>,
    pub flushes_per_tx: Option<f64>,
    pub write_syscalls_per_tx: Option<f64>,
    pub sync_syscalls_per_tx: Option<f64>,
    /// KiB that write calls hand to the kernel for the database, and for its journal or log.
    pub kib_database_per_tx: Option<f64>,
    pub kib_log_per_tx: Option<f64>,
    /// Median seconds of the parts of a workload that has parts.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub phases_s: Vec<(String, f64)>,
    /// The block trace in numbers, on a simulated device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub blocks: Option<PerTx>,
    /// How long a flash card would last.
    pub wear: Option<Worn>,
    /// Time per commit in units of the floor's. On the table only.
    #[serde(skip)]
    pub floors: Option<f64>,
    #[serde(skip)]
    pub of: BenchEngine,
}

impl Row {
    /// Whether its throughput may be quoted.
    pub fn is_steady(&self) -> bool {
        self.tx_per_s_known.is_some_and(|known| known.steady)
    }
}

/// The file of `--json`.
#[derive(Serialize)]
pub struct ReportJson<'a> {
    pub parameters: &'a Parameters,
    pub results: &'a [Row],
}

/// The table, grouped by workload; where `columns` are few, without its longest latency, its second
/// ratio and its interval.
pub fn table(rows: &[Row], reference: &str, columns: u16) -> String {
    let roomy = |widest: bool| Some(drawn(rows, reference, (true, widest), columns)).filter(|t| fits(t, columns));
    roomy(true).or_else(|| roomy(false)).unwrap_or_else(|| drawn(rows, reference, (false, false), columns))
}

/// Whether it is one table that has room.
fn fits(table: &str, columns: u16) -> bool {
    !table.contains("\n\n") && text::width(table) <= usize::from(columns)
}

/// Whether that is the roomy one, whose head names the floor.
fn is_wide(rows: &[Row], columns: u16) -> bool {
    table(rows, "", columns).lines().take(3).any(|head| head.contains("floor"))
}

fn drawn(rows: &[Row], reference: &str, (wide, widest): (bool, bool), columns: u16) -> String {
    let ratio = if reference == "WAL/FULL" { "× WAL\n/FULL".to_owned() } else { format!("×\n{reference}") };
    let heads = [
        ("", "", true),
        ("tx/s", "tx/s", true),
        (ratio.as_str(), if reference == "WAL/FULL" { "×\nWAL" } else { "×" }, true),
        ("±\n%", "", wide),
        ("÷\nfloor", "", wide),
        ("p50\nµs", "p50\nµs", true),
        ("p99\nµs", "p99\nµs", true),
        ("p99.9\nµs", "p99.9\nµs", true),
        ("max\nµs", "", widest),
        ("block\nwrites", "blk\nwr", true),
        ("KiB", "KiB", true),
        ("of it\nonce", "", wide),
        ("flu\nshes", "flu\nshes", true),
        ("write\ncalls", "wr\ncall", true),
        ("sync\ncalls", "sync\ncall", true),
    ];
    let shown = heads.iter().filter(|(.., show)| *show);
    let heads: Vec<String> = shown.map(|(long, short, _)| if wide { *long } else { *short }.to_owned()).collect();
    let mut lines = Vec::new();
    for group in rows.chunk_by(|a, b| a.workload == b.workload) {
        // Reads compare with another engine than the head of the column says.
        let to = if group.iter().any(|r| r.ratio_to_stock_default.is_some()) { ": × DELETE" } else { "" };
        lines.push(vec![format!("{}{to}", group[0].workload.to_uppercase())]);
        for row in group {
            // Few columns have no room for commas.
            let plain = |text: String| if wide { text } else { text.replace(',', "") };
            let mut cells = vec![format!(" {}", label(row, wide)), plain(rate_cell(row)), ratio_cell(row)];
            if wide {
                cells.push(row.ratio.filter(|r| r.confidence > 0.0).map_or("n/a".to_owned(), percent));
                cells.push(fine(row.floors));
            }
            cells.extend([row.p50_us, row.p99_us, row.p999_us].map(|us| plain(whole(Some(us)))));
            cells.extend(widest.then(|| whole(Some(row.max_us))));
            cells.extend([row.block_writes_per_tx, row.kib_per_tx].map(fine));
            // Only onewrite has such a log.
            cells.extend(wide.then(|| row.kib_once_per_tx.map_or(String::new(), |kib| fine(Some(kib)))));
            cells.extend([row.flushes_per_tx, row.write_syscalls_per_tx, row.sync_syscalls_per_tx].map(fine));
            lines.push(cells);
        }
    }
    text::table(&heads, &lines, columns)
}

/// The block traces in numbers; `None` where there are none.
pub fn blocks(rows: &[Row], columns: u16) -> Option<String> {
    let traced: Vec<(&Row, PerTx)> = rows.iter().filter_map(|r| Some((r, r.blocks?))).collect();
    let roomy = || Some(drawn_blocks(&traced, true, columns)).filter(|table| fits(table, columns));
    (!traced.is_empty()).then(|| roomy().unwrap_or_else(|| drawn_blocks(&traced, false, columns)))
}

fn drawn_blocks(traced: &[(&Row, PerTx)], wide: bool, columns: u16) -> String {
    let heads = [
        ("KiB for", "KiB for"),
        ("data\nbase", "data\nbase"),
        ("journal\nor log", "log"),
        ("fs\njournal", "fs\njrnl"),
        ("fs meta\ndata", "fs\nmeta"),
        ("else\nwhere", "else"),
        ("left", "left"),
        ("writes", "wr"),
        ("seq.\n%", "seq.\n%"),
        ("flu\nshes", "flu\nshes"),
        ("bytes/\ncommit", "bytes/\ntx"),
        ("years", "years"),
    ];
    // Years follow from the bytes: few columns have room for one of them.
    let shown = |i: usize| wide || heads[i].0 != "bytes/\ncommit";
    let shown_heads = heads.iter().enumerate().filter(|(i, _)| shown(*i));
    let shown_heads: Vec<String> = shown_heads.map(|(_, h)| if wide { h.0 } else { h.1 }.to_owned()).collect();
    let mut lines = Vec::new();
    for group in traced.chunk_by(|(a, _), (b, _)| a.workload == b.workload) {
        lines.push(vec![group[0].0.workload.to_uppercase()]);
        for (row, b) in group {
            let mut cells = vec![format!(" {}", label(row, wide))];
            cells.extend(b.kib().map(|kib| fine(Some(kib))));
            cells.extend([fine(Some(b.writes_per_tx)), format!("{:.0}", 100.0 * b.sequential_share)]);
            cells.push(fine(Some(b.flushes_per_tx)));
            cells.push(row.wear.map_or("n/a".to_owned(), |w| format!("{:.0}", w.bytes_per_commit)));
            cells.push(whole(row.wear.map(|w| w.years)));
            lines.push(cells.into_iter().enumerate().filter(|(i, _)| shown(*i)).map(|(_, cell)| cell).collect());
        }
    }
    text::table(&shown_heads, &lines, columns)
}

fn percent(ratio: Ratio) -> String {
    format!("{:.0}", ratio.half_width_percent())
}

fn rate_cell(row: &Row) -> String {
    format!("{}{}", whole(Some(row.tx_per_s)), if row.is_steady() { "" } else { "~" })
}

fn ratio_cell(row: &Row) -> String {
    let mark = if row.ratio.is_some_and(|r| !r.safe) { "~" } else { "" };
    format!("{}{mark}", fine(row.ratio.map(|r| r.median)))
}

fn label(row: &Row, wide: bool) -> String {
    let mark = if row.of.caveat.is_some() { " *" } else { "" };
    let own = (&row.engine, &row.preset) == (&row.of.engine, &row.of.preset);
    match row.of.kind {
        EngineKind::Floor | EngineKind::Store(_) if own => row.engine.clone(),
        EngineKind::Stock { .. } if own && !wide && row.of.library.is_none() => format!("{}{mark}", row.preset),
        EngineKind::Onewrite { .. } if own && !wide => format!("1w {}{mark}", row.preset),
        _ => format!("{} {}{mark}", row.engine, row.preset),
    }
}

/// The meaning of the table's marks and columns, and the notes.
pub fn below(rows: &[Row], parameters: &Parameters, columns: u16) -> Vec<String> {
    let mut lines = Vec::new();
    let mut caveats: Vec<(&str, Vec<String>)> = Vec::new();
    for row in rows {
        if let Some(caveat) = &row.of.caveat {
            let name = format!("{}/{}", row.engine, row.preset);
            match caveats.iter_mut().find(|(c, _)| c == caveat) {
                Some((_, names)) if names.contains(&name) => {}
                Some((_, names)) => names.push(name),
                None => caveats.push((caveat, vec![name])),
            }
        }
    }
    lines.extend(caveats.iter().map(|(caveat, names)| format!("* {}: {caveat}", names.join(", "))));
    lines.push(
        "tx/s: median of the runs. Ratios: medians of ratios taken run by run. Latencies: all runs together."
            .to_owned(),
    );
    lines.push(stats::EXPLAINED.to_owned());
    lines.push(
        "Right of the latencies: per transaction. Block writes, KiB and flushes: what the device did, journal of the \
         file system included; a block write is a request with data, so an empty one that flushes is none. A write call \
         that flushes counts as a sync call too."
            .to_owned(),
    );
    lines.extend(once(rows));
    if rows.iter().any(|r| r.blocks.is_some()) {
        lines.push(
            "Block trace, per transaction: KiB that the device was told to write, by what lies there; left: what the \
             last transaction left in the kernel's cache, written later; seq.: writes that begin in the one before or at its end. \
             Bytes per commit and years include what was left."
                .to_owned(),
        );
        lines.push(format!("Years: {}.", parameters.wear.describe()));
        if rows.iter().filter_map(|r| r.blocks).any(|b| b.kib_elsewhere_per_tx > 0.0) {
            lines.push(
                "elsewhere: this file system does not say where its metadata lies, or where a deleted journal lay."
                    .to_owned(),
            );
        }
    }
    if rows.iter().any(|r| r.of.kind == EngineKind::Floor) {
        lines.push("floor: one 4 KiB overwrite of a preallocated file with one flush, no database.".to_owned());
    }
    if rows.iter().any(|r| r.ratio_to_stock_default.is_some()) {
        lines.push(
            "Reads: × is to stock delete, which is SQLite as it comes. onewrite log reads a closed database that was \
             opened anew, onewrite log-live one that this process has written and not closed."
                .to_owned(),
        );
    }
    if !is_wide(rows, columns) && rows.iter().any(|r| r.of.is_onewrite()) {
        lines.push("1w: onewrite.".to_owned());
    }
    lines.extend(phases(rows));
    lines.extend(parameters.notes.iter().map(|n| format!("Note: {n}")));
    lines
}

/// The share of KiB that comes once.
fn once(rows: &[Row]) -> Option<String> {
    let of = |row: &Row| {
        let kib = row.kib_once_per_tx.filter(|kib| *kib >= 0.05)?;
        Some(format!("{}/{} {} {kib:.1}", row.engine, row.preset, row.workload))
    };
    let all: Vec<String> = rows.iter().filter_map(of).collect();
    (!all.is_empty()).then(|| {
        format!(
            "Of the KiB once: zeros for a log that was short and grew meanwhile, to at most its log_size; a log that has grown \
             needs none. {}.",
            all.join(", ")
        )
    })
}

/// Seconds of the parts of workloads that have parts.
fn phases(rows: &[Row]) -> Vec<String> {
    let of = |row: &Row| {
        let parts: Vec<String> = row.phases_s.iter().map(|(name, s)| format!("{name} {s:.4}")).collect();
        format!("{} {} {}, seconds: {}", row.workload, row.engine, row.preset, parts.join("; "))
    };
    rows.iter().filter(|r| !r.phases_s.is_empty()).map(of).collect()
}

/// A line per result whose bytes are known.
pub fn wear_lines(wear: &Wear, rows: &[Row]) -> Vec<String> {
    let mut lines = vec![format!("Wear, estimated for {}:", wear.describe())];
    for row in rows {
        if let Some(Worn { bytes_per_commit, years }) = row.wear {
            lines.push(format!(
                "  {:<20} {:<20} {:>9.0} bytes per commit, {:>8} years",
                row.workload,
                format!("{} {}", row.engine, row.preset),
                bytes_per_commit,
                if years < 10.0 { format!("{years:.1}") } else { format!("{years:.0}") }
            ));
        }
    }
    if lines.len() == 1 {
        lines.push("  n/a: what reached the device is not known".to_owned());
    }
    lines
}

fn whole(v: Option<f64>) -> String {
    v.map_or("n/a".to_owned(), |v| if v < 99.95 { format!("{v:.1}") } else { thousands(v) })
}

/// Two digits after the point for small numbers, one for larger ones.
fn fine(v: Option<f64>) -> String {
    v.map_or("n/a".to_owned(), |v| if v < 9.995 { format!("{v:.2}") } else { format!("{v:.1}") })
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::engines;
    use crate::workload::Workload;

    pub fn rows() -> Vec<Row> {
        let mut rows = Vec::new();
        for workload in Workload::all() {
            for of in engines::all() {
                let ratio = Some(Ratio { median: 1.234, low: 1.2, high: 1.3, confidence: 0.9, safe: false });
                rows.push(Row {
                    engine: of.engine.clone(),
                    preset: of.preset.clone(),
                    workload: workload.name(),
                    threads: 1,
                    tx_per_s: 12345.6,
                    tx_per_s_runs: vec![12345.6, 12346.6],
                    tx_per_s_known: Known::of(&[12345.6, 12346.6]),
                    ratio,
                    ratio_to_wal_full: Some(1.234),
                    ratio_to_stock_default: workload.reads().then_some(0.987),
                    p50_us: 123.4,
                    p99_us: 1234.5,
                    p999_us: 12345.6,
                    max_us: 23456.7,
                    latency_us_cdf: vec![(100.0, 0.0), (123.4, 0.5), (12345.6, 0.999)],
                    block_writes_per_tx: Some(12.34),
                    kib_per_tx: Some(56.78),
                    kib_once_per_tx: of.is_onewrite().then_some(3.21),
                    flushes_per_tx: None,
                    write_syscalls_per_tx: Some(8.4),
                    sync_syscalls_per_tx: Some(1.0),
                    kib_database_per_tx: Some(4.0),
                    kib_log_per_tx: Some(8.0),
                    phases_s: Vec::new(),
                    blocks: Some(PerTx {
                        kib_database_per_tx: 8.0,
                        kib_log_per_tx: 12.5,
                        kib_fs_journal_per_tx: 16.25,
                        kib_fs_metadata_per_tx: 0.0,
                        kib_elsewhere_per_tx: 123.4,
                        kib_left_per_tx: 4.0,
                        writes_per_tx: 9.99,
                        flushes_per_tx: 12.34,
                        sequential_share: 0.25,
                        device_ms_per_tx: None,
                    }),
                    wear: Some(Worn { bytes_per_commit: 123_456.0, years: 1234.5 }),
                    floors: Some(2.0),
                    of,
                });
            }
        }
        rows
    }

    #[test]
    fn the_table_keeps_to_its_width() {
        for columns in [80, 99, 108, 118, 119, 120, 140] {
            let told = table(&rows(), "WAL/FULL", columns);
            assert!(text::width(&told) <= usize::from(columns), "{columns}:\n{told}");
            let traced = blocks(&rows(), columns).unwrap();
            assert!(text::width(&traced) <= usize::from(columns), "{columns}:\n{traced}");
            assert_eq!(traced.contains("123456"), columns > 80, "{columns}:\n{traced}");
            assert!(traced.contains("16.2") && traced.contains("1,234"), "{traced}");
            assert!(told.contains("DELETE") && told.contains("n/a"), "{told}");
            assert!(told.contains("12346~") || told.contains("12,346~"), "{told}");
            // The part that comes once, and the longest latency.
            assert!(columns < 120 || told.contains("3.21"), "{columns}:\n{told}");
            let has_longest = told.contains("23,457");
            assert!(if columns == 80 { !has_longest } else { columns < 120 || has_longest }, "{columns}:\n{told}");
        }
    }

    #[test]
    fn numbers() {
        assert_eq!(
            [fine(Some(1.0)), fine(Some(9.996)), fine(Some(43.21)), fine(None)],
            ["1.00", "10.0", "43.2", "n/a"]
        );
    }
}
