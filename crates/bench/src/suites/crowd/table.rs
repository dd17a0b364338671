//! The table of the suites `threads` and `processes`, and the lines below it.

use super::CrowdRow;
use super::engine::{BUSY, CrowdEngine};
use super::shape::SectionShape;
use super::worker::{VALUE_BYTES, WorkerKind};
use crate::numbers::stats::Ratio;
use crate::parameters::suite::CrowdPart;
use crate::text::{self, thousands};

/// The columns of a table: the head of each, the text of a row, and whether few columns have it.
type Column = (&'static str, fn(&CrowdRow) -> String, bool);

const COLUMNS: [Column; 12] = [
    ("per s", |r| r.rate(), true),
    ("×\nWAL/\nFULL", |r| r.ratio.map_or("n/a".to_owned(), |of| marked(of.median, of.safe)), true),
    ("±\n%", |r| r.ratio.filter(|of| of.confidence > 0.0).map_or("n/a".to_owned(), half_width), false),
    ("× one", |r| r.ratio_to_one.map_or(String::new(), |of| marked(of.median, of.safe)), true),
    ("slow\nest/\nmean", |r| format!("{:.2}", r.fairness), true),
    ("long\nest\nms", |r| format!("{:.1}", r.wait_ms_max), true),
    ("BUSY", |r| thousands(r.busy_seen as f64), true),
    ("re\nfused\n%", |r| number(r.refused_percent, 1), false),
    ("look\nup p50\nµs", |r| number(r.lookup_us_p50, 1), false),
    ("look\nup\np99 µs", |r| number(r.lookup_us_p99, 1), true),
    ("wr/s\nbeside", |r| r.writes_beside_per_s.map_or(String::new(), thousands), false),
    ("log\nKiB", |r| thousands((r.log_bytes_max / 1024) as f64), true),
];

fn number(value: Option<f64>, digits: usize) -> String {
    value.map_or(String::new(), |v| format!("{v:.digits$}"))
}

fn marked(ratio: f64, safe: bool) -> String {
    format!("{ratio:.2}{}", if safe { "" } else { "~" })
}

fn half_width(ratio: Ratio) -> String {
    format!("{:.0}", ratio.half_width_percent())
}

/// With all columns, or with those that fit into so many.
pub fn table(rows: &[CrowdRow], columns: u16) -> String {
    let all = drawn(rows, true, u16::MAX);
    if text::width(&all) <= usize::from(columns) { all } else { drawn(rows, false, columns) }
}

fn drawn(rows: &[CrowdRow], wide: bool, columns: u16) -> String {
    let shown = || COLUMNS.iter().filter(|(.., narrow)| wide || *narrow);
    let heads: Vec<String> = std::iter::once("").chain(shown().map(|(head, ..)| *head)).map(str::to_owned).collect();
    let (mut lines, mut before) = (Vec::new(), String::new());
    for r in rows {
        let name = format!("{}, by {}", r.workload, r.threads);
        if name != before {
            lines.push(vec![name.clone()]);
            before = name;
        }
        let engine = if wide { format!("{}/", r.engine) } else { String::new() };
        let of = if !wide && r.engine == "onewrite" { "1w " } else { "" };
        let label = format!(" {of}{engine}{}{}", r.preset, if r.durable { "" } else { " *" });
        lines.push(std::iter::once(label).chain(shown().map(|(_, text, _)| text(r))).collect());
    }
    text::table(&heads, &lines, columns)
}

pub fn below(
    place: WorkerKind,
    shapes: &[SectionShape],
    engines: &[CrowdEngine],
    runs: usize,
    section_ms: u64,
) -> Vec<String> {
    let place = if place == WorkerKind::Threads { "a thread" } else { "a process" };
    let mut lines = vec![
        format!(
            "by: connections, each in {place} of its own; 1w: onewrite. Inserts are durable, autocommit, of {VALUE_BYTES} B at random \
             keys; medians of {runs} runs of {section_ms} ms a section. Everything acknowledged was found in the file."
        ),
        "slowest/mean: what the slowest connection got done by what they did on average. Longest wait and BUSY are of \
         all runs; log KiB: the log's, WAL's or journal's greatest size."
            .to_owned(),
        format!("BUSY: seen by the application, with a busy timeout of {} s.", BUSY.as_secs()),
        crate::numbers::stats::EXPLAINED.to_owned(),
    ];
    if engines.iter().any(|e| !e.is_durable() && shapes.iter().any(|s| s.is_for(*e))) {
        lines.push(
            "* not durable: a power cut may take the commits since the last checkpoint, of onewrite since the last \
             checkpoint, FULL commit or second of rest."
                .to_owned(),
        );
    }
    if shapes.iter().any(|s| s.part == CrowdPart::Concurrent) {
        lines.push(
            "× one: by what one connection of that engine gets done. refused: of a hundred attempts at a transaction, those \
             that ended with BUSY, at COMMIT or before, and were done again."
                .to_owned(),
        );
    }
    if shapes.iter().any(|s| s.writers_elsewhere) {
        lines.push(
            "writers elsewhere: of another database with the same engine. What lookups lose beside those, they lose \
             to busy processors and the device; what they lose beyond that, to writers of their own database."
                .to_owned(),
        );
    }
    if shapes.iter().any(|s| s.part == CrowdPart::DbBench) {
        let of = |late: CrowdEngine| engines.contains(&late).then(|| format!("{}: {}", late.name(), late.describe()));
        lines.extend([CrowdEngine::OnewriteLate, CrowdEngine::WalFullLate].into_iter().filter_map(of));
    }
    if shapes.iter().any(|s| s.long_reader) {
        lines.push(
            "With a rollback journal nobody commits beside an open read transaction: TRUNCATE is left out there."
                .to_owned(),
        );
    }
    if cfg!(debug_assertions) {
        lines.push("This is a debug build; measure with `cargo run --release`.".to_owned());
    }
    lines
}

#[cfg(test)]
pub mod tests {
    use super::*;

    pub fn row(engine: CrowdEngine, workload: &str, threads: usize) -> CrowdRow {
        let (engine, preset) = engine.names();
        CrowdRow {
            engine,
            preset,
            workload: workload.to_owned(),
            threads,
            writers_beside: 4,
            tx_per_s: 883_019.4 / threads as f64,
            tx_per_s_runs: vec![883_019.4 / threads as f64],
            tx_per_s_known: None,
            ratio: Some(Ratio { median: 218.44, low: 1.0, high: 300.0, confidence: 0.9, safe: false }),
            ratio_to_one: Some(Ratio { median: 10.25, low: 1.0, high: 300.0, confidence: 0.9, safe: false }),
            refused_percent: Some(12.3),
            durable: false,
            fairness: 0.94,
            wait_ms_max: 1234.5,
            busy_seen: 12_345,
            lookup_us_p50: Some(12.3),
            lookup_us_p99: Some(1234.5),
            writes_beside_per_s: Some(12_345.6),
            log_bytes_max: 262_144 << 10,
        }
    }

    #[test]
    fn eighty_columns_are_enough() {
        let rows = [
            row(CrowdEngine::OnewriteConcurrent, "insert and read, own tables", 16),
            row(CrowdEngine::WalFullLate, "DB Bench: updates, overlapping", 16),
        ];
        let narrow = table(&rows, 80);
        assert!(text::width(&narrow) <= 80, "{narrow}");
        assert!(narrow.contains("\nDB Bench: updates, overlapping, by 16\n wal-full-late *"), "{narrow}");
        let wide = table(&rows, u16::MAX);
        assert!(
            wide.contains("onewrite/log-concurrent *") && wide.contains("12.3") && wide.contains("55,189~"),
            "{wide}"
        );
    }
}
