//! The table of the suites `threads` and `processes`, and the lines below it.

use super::Row;
use super::engine::{BUSY, Engine};
use super::shape::{Part, Shape};
use super::worker::{Place, VALUE_BYTES};
use comfy_table::{CellAlignment, Table, TableStyle};

pub fn table(rows: &[Row]) -> Table {
    let mut t = Table::new();
    t.load_style(TableStyle::new());
    t.set_header([
        "",
        "by",
        "engine",
        "per s",
        "×\nWAL/FULL",
        "±\n%",
        "× one",
        "slowest/\nmean",
        "longest\nwait ms",
        "BUSY",
        "refused\n%",
        "lookup\np50 µs",
        "lookup\np99 µs",
        "writes/s\nbeside",
        "log KiB",
    ]);
    let number = |value: Option<f64>, digits: usize| value.map_or(String::new(), |v| format!("{v:.digits$}"));
    let mut before = String::new();
    for r in rows {
        let name = format!("{} {}", r.workload, r.threads);
        let first = name != before;
        before = name;
        let mark = if r.ratio.is_some_and(|ratio| !ratio.safe) { "~" } else { "" };
        t.add_row([
            if first { r.workload.clone() } else { String::new() },
            if first { r.threads.to_string() } else { String::new() },
            format!("{}/{}{}", r.engine, r.preset, if r.durable { "" } else { " *" }),
            r.rate(),
            r.ratio.map_or("n/a".to_owned(), |ratio| format!("{:.2}{mark}", ratio.median)),
            r.ratio
                .filter(|ratio| ratio.confidence > 0.0)
                .map_or("n/a".to_owned(), |r| format!("{:.0}", r.half_width_percent())),
            r.ratio_to_one.map_or(String::new(), |r| format!("{:.2}{}", r.median, if r.safe { "" } else { "~" })),
            format!("{:.2}", r.fairness),
            format!("{:.1}", r.wait_ms_max),
            r.busy_seen.to_string(),
            number(r.refused_percent, 1),
            number(r.lookup_us_p50, 1),
            number(r.lookup_us_p99, 1),
            number(r.writes_beside_per_s, 0),
            (r.log_bytes_max / 1024).to_string(),
        ]);
    }
    for (i, column) in t.column_iter_mut().enumerate() {
        column.set_cell_alignment(if [0, 2].contains(&i) { CellAlignment::Left } else { CellAlignment::Right });
        column.set_padding((0, 1));
    }
    t
}

pub fn below(place: Place, shapes: &[Shape], engines: &[Engine], runs: usize, section_ms: u64) -> Vec<String> {
    let place = if place == Place::Threads { "a thread" } else { "a process" };
    let mut lines = vec![
        format!(
            "by: connections, each in {place} of its own. Inserts are durable, autocommit, of {VALUE_BYTES} B at random \
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
    if shapes.iter().any(|s| s.part == Part::Concurrent) {
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
    if shapes.iter().any(|s| s.part == Part::DbBench) {
        let of = |late: Engine| engines.contains(&late).then(|| format!("{}: {}", late.name(), late.describe()));
        lines.extend([Engine::OnewriteLate, Engine::WalFullLate].into_iter().filter_map(of));
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
