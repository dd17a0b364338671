//! The page of the suites `threads` and `processes`.

use super::periodic::{HEADS, PeriodicRow};
use super::{CrowdParameters, CrowdRow};
use crate::html::{self, plots};
use crate::parameters::card;
use anyhow::Result;

pub fn page(
    parameters: &CrowdParameters,
    (rows, periodic): (&[CrowdRow], &[PeriodicRow]),
    leads: &[String],
    notes: &[String],
) -> Result<String> {
    let text = format!(
        "SQLite {}, connections in {}, {} runs, {}. Ratios are medians of ratios taken run by run; the parameter card is \
         at the end.",
        parameters.sqlite_version, parameters.connections_in, parameters.runs, parameters.run_order
    );
    let made = card::made(
        parameters.onewrite_version,
        parameters.build,
        (&parameters.made_at, &parameters.command),
        &parameters.machine,
    );
    let mut out =
        html::begin("What several connections get done together", leads, [&made, &text], &parameters.unknown)?;
    let mut workloads: Vec<&str> = rows.iter().map(|r| r.workload.as_str()).collect();
    workloads.dedup();
    for workload in workloads {
        section(&mut out, workload, &rows.iter().filter(|r| r.workload == workload).collect::<Vec<_>>())?;
    }
    now_and_then(&mut out, periodic)?;
    out.push_str("<h2>Parameter card</h2>\n");
    let mut lines = parameters.short();
    lines.push(("compile options".to_owned(), parameters.compile_options.join(" ")));
    for (name, opened) in &parameters.engines {
        lines.push((name.clone(), html::fields(opened)?));
    }
    lines.extend(parameters.workloads.iter().map(|(name, text)| (name.clone(), text.clone())));
    html::definitions(&mut out, &lines)?;
    html::end(out, notes)
}

/// A table for each rhythm of the part `periodic`.
fn now_and_then(out: &mut String, rows: &[PeriodicRow]) -> Result<()> {
    for of in rows.chunk_by(|a, b| a.rhythm() == b.rhythm()) {
        out.push_str(&format!("<h2>{}</h2>\n", html::escape(of[0].rhythm())));
        let lines: Vec<_> = of.iter().enumerate().map(|(color, row)| (Some(color), row.cells())).collect();
        html::table(out, &HEADS.map(|head| if head.is_empty() { "per commit" } else { head }.to_owned()), &lines)?;
    }
    Ok(())
}

fn label(row: &CrowdRow) -> String {
    format!("{} {}{}, {}", row.engine, row.preset, if row.durable { "" } else { " *" }, row.threads)
}

fn section(out: &mut String, workload: &str, rows: &[&CrowdRow]) -> Result<()> {
    out.push_str(&format!("<h2>{}</h2>\n", html::escape(workload)));
    let mut engines: Vec<&str> = Vec::new();
    for row in rows {
        if !engines.contains(&row.preset) {
            engines.push(row.preset);
        }
    }
    let color = |row: &CrowdRow| engines.iter().position(|e| *e == row.preset).unwrap_or(0);
    let lookups = rows.iter().any(|r| r.lookup_us_p50.is_some());
    let refused = rows.iter().any(|r| r.refused_percent.is_some());
    let heads = [
        "engine, connections",
        "per s",
        "× WAL/FULL",
        "interval",
        "× one",
        "slowest / mean",
        "longest wait ms",
        "BUSY",
    ];
    let heads = heads.into_iter().chain(refused.then_some("refused %"));
    let of_lookups = ["p50 µs", "p99 µs", "writes/s beside"].into_iter().filter(|_| lookups);
    let heads: Vec<String> = heads.chain(of_lookups).chain(["log KiB"]).map(str::to_owned).collect();
    let number = |v: Option<f64>, digits: usize| v.map_or(String::new(), |v| html::number(Some(v), digits));
    let cells = |row: &CrowdRow| {
        let mark = if row.ratio.is_some_and(|r| !r.safe) { "~" } else { "" };
        let of_lookups =
            [number(row.lookup_us_p50, 1), number(row.lookup_us_p99, 1), number(row.writes_beside_per_s, 0)];
        let mut cells = vec![
            label(row),
            row.rate(),
            row.ratio.map_or(String::new(), |r| format!("{:.2}{mark}", r.median)),
            row.ratio.map_or(String::new(), |r| format!("{:.2} – {:.2}", r.low, r.high)),
            row.ratio_to_one.map_or(String::new(), |r| format!("{:.2}{}", r.median, if r.safe { "" } else { "~" })),
            number(Some(row.fairness), 2),
            number(Some(row.wait_ms_max), 1),
            number(Some(row.busy_seen as f64), 0),
        ];
        cells.extend(refused.then(|| number(row.refused_percent, 1)));
        cells.extend(of_lookups.into_iter().filter(|_| lookups));
        cells.push(number(Some((row.log_bytes_max / 1024) as f64), 0));
        cells
    };
    let lines: Vec<_> = rows.iter().map(|row| (Some(color(row)), cells(row))).collect();
    html::table(out, &heads, &lines)?;
    out.push_str("<div class=\"plots\">\n");
    let of = |row: &CrowdRow, median, runs| plots::MeasuredLine { label: label(row), color: color(row), median, runs };
    let all: Vec<_> = rows.iter().map(|r| of(r, r.tx_per_s, r.tx_per_s_runs.clone())).collect();
    let text = "of all connections together; median, small dots are the runs";
    html::figure(out, "Operations per second", text, &plots::medians(&all, "operations per second")?)?;
    if rows.iter().any(|r| r.threads > 1) {
        let shares: Vec<_> = rows.iter().map(|r| of(r, r.fairness, Vec::new())).collect();
        let svg = plots::medians(&shares, "slowest connection ÷ mean")?;
        html::figure(out, "Fairness", "1: all got the same done", &svg)?;
    }
    let waits: Vec<_> = rows.iter().map(|r| of(r, r.wait_ms_max, Vec::new())).collect();
    html::figure(out, "Longest wait", "of any connection in any run", &plots::medians(&waits, "milliseconds")?)?;
    out.push_str("</div>\n");
    Ok(())
}
