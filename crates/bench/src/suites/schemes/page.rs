//! The page of the suite `schemes`: a section for each figure.

use super::SchemesParameters;
use super::figures::{Figure, FigureMetric};
use super::table::{CellValue, distinct};
use crate::html::{self, plots};
use crate::numbers::stats::Ratio;
use crate::parameters::card;
use anyhow::Result;

pub fn page(parameters: &SchemesParameters, figures: &[Figure], values: &[Vec<CellValue>]) -> Result<String> {
    let text = format!(
        "SQLite {}, {} runs, {} transactions a section or a multiple, {}. Medians; a ratio is the median of those taken run by run. \
         The parameter card is at the end.",
        parameters.sqlite, parameters.runs, parameters.transactions, parameters.run_order
    );
    let leads: Vec<String> = figures.iter().zip(values).filter_map(|(figure, values)| lead(figure, values)).collect();
    let made = card::made(
        parameters.onewrite_version,
        parameters.build,
        (&parameters.made_at, &parameters.command),
        &parameters.machine,
    );
    let mut out = html::begin("Two papers, measured again", &leads, [&made, &text], &parameters.unknown)?;
    for (figure, values) in figures.iter().zip(values) {
        out.push_str(&format!("<h2>{}</h2>\n", html::escape(figure.title)));
        if figure.varies.is_empty() {
            engines(&mut out, figure, values)?;
        } else {
            points(&mut out, figure, values)?;
        }
    }
    out.push_str("<h2>Parameter card</h2>\n");
    let mut lines = parameters.short();
    lines.push(("rows".to_owned(), format!("{} B values, {}", parameters.value_bytes, parameters.key_order)));
    lines.push(("compile options".to_owned(), parameters.compile_options.join(" ")));
    lines.extend(parameters.engines.iter().map(|(name, text)| (name.clone(), text.clone())));
    html::definitions(&mut out, &lines)?;
    html::end(out, &parameters.notes)
}

/// The best engine in the first metric of a figure, at each of its points, and its lead over the
/// one that ratios refer to, or over the next.
fn lead(figure: &Figure, values: &[CellValue]) -> Option<String> {
    let metric = if figure.metrics.contains(&FigureMetric::KibTotal) {
        FigureMetric::KibTotal
    } else {
        *figure.metrics.first()?
    };
    let more_is_better = metric == FigureMetric::TxPerS;
    let at = |at: &str| -> Option<String> {
        let of = values.iter().filter(|v| v.at == at && v.metric == metric);
        let mut all: Vec<(&CellValue, f64)> = of.filter_map(|v| Some((v, v.median?))).collect();
        all.sort_by(|a, b| if more_is_better { b.1.total_cmp(&a.1) } else { a.1.total_cmp(&b.1) });
        // An engine that protects from nothing is there to be compared with, not to win.
        let mut protecting = all.iter().filter(|(v, _)| !v.engine.starts_with("off"));
        let (best, value) = *protecting.next()?;
        let is_reference = |v: &CellValue| figure.reference.is_some_and(|r| r == v.engine && r != best.engine);
        let other = all.iter().find(|(v, _)| is_reference(v)).or_else(|| protecting.next())?;
        let by = if more_is_better { value / other.1 } else { other.1 / value };
        // Counts are the same in every run; times are not.
        let is_safe = metric == FigureMetric::KibTotal
            || Ratio::paired(&best.runs, &other.0.runs).is_some_and(|ratio| ratio.safe);
        let mark = if is_safe { "" } else { "~" };
        let point = if at.is_empty() { String::new() } else { format!("{at}: ") };
        Some(format!("{point}{}, {by:.2}{mark} times {}", best.engine, other.0.engine))
    };
    let points = distinct(values.iter().map(|v| v.at.as_str()));
    let each: Vec<String> = points.iter().filter_map(|point| at(point)).collect();
    let order = if more_is_better { "most" } else { "least" };
    (!each.is_empty()).then(|| format!("{}, {order} {}: {}.", figure.name, metric.names().0, each.join("; ")))
}

fn shown(value: Option<f64>, metric: FigureMetric) -> String {
    value.map_or(String::new(), |v| html::number(Some(v), metric.digits()))
}

fn find<'v>(values: &'v [CellValue], engine: &str, at: &str, metric: FigureMetric) -> Option<&'v CellValue> {
    values.iter().find(|v| v.engine == engine && v.at == at && v.metric == metric)
}

/// The parts of a bar.
const PARTS: [FigureMetric; 4] =
    [FigureMetric::KibDatabase, FigureMetric::KibLog, FigureMetric::KibJournal, FigureMetric::KibOther];

/// A line for each engine with all metrics; bytes as stacked bars, everything else as bars.
fn engines(out: &mut String, figure: &Figure, values: &[CellValue]) -> Result<()> {
    let names = distinct(values.iter().map(|v| v.engine.as_str()));
    let median = |engine: &str, metric| find(values, engine, "", metric).and_then(|v| v.median);
    let heads: Vec<String> =
        std::iter::once("engine").chain(figure.metrics.iter().map(|m| m.names().0)).map(str::to_owned).collect();
    let line = |(i, engine): (usize, &&str)| {
        let cells = figure.metrics.iter().map(|m| shown(median(engine, *m), *m));
        (Some(i), std::iter::once((*engine).to_owned()).chain(cells).collect())
    };
    html::table(out, &heads, &names.iter().enumerate().map(line).collect::<Vec<_>>())?;
    out.push_str("<div class=\"plots\">\n");
    let stacked: Vec<(String, Vec<f64>)> = names
        .iter()
        .filter_map(|e| Some(((*e).to_owned(), PARTS.iter().map(|m| median(e, *m)).collect::<Option<_>>()?)))
        .collect();
    if !stacked.is_empty() {
        let parts = html::parts(PARTS.iter().map(|m| m.names().0).enumerate());
        html::figure(out, "KiB per transaction", &parts, &plots::stacked(&stacked, "KiB per transaction")?)?;
    }
    for metric in figure.metrics.iter().filter(|m| !PARTS.contains(m) && **m != FigureMetric::KibTotal) {
        let of = |(color, engine): (usize, &&str)| {
            let CellValue { median, runs, .. } = find(values, engine, "", *metric)?;
            Some(plots::MeasuredLine { label: (*engine).to_owned(), color, median: (*median)?, runs: runs.clone() })
        };
        let lines: Vec<_> = names.iter().enumerate().filter_map(of).collect();
        if lines.iter().any(|line| line.median > 0.0) {
            let name = metric.names().0;
            html::figure(out, &html::escape(name), "", &plots::medians(&lines, name)?)?;
        }
    }
    out.push_str("</div>\n");
    Ok(())
}

/// For each metric a table of engines by points, and a picture with a line for each engine.
fn points(out: &mut String, figure: &Figure, values: &[CellValue]) -> Result<()> {
    let names = distinct(values.iter().map(|v| v.engine.as_str()));
    let points = distinct(values.iter().map(|v| v.at.as_str()));
    let median = |engine: &str, at: &str, metric| find(values, engine, at, metric).and_then(|v| v.median);
    let mut figures = String::new();
    for metric in figure.metrics {
        let name = match (metric, figure.reference) {
            (FigureMetric::Ratio, Some(reference)) => format!("× {reference}"),
            _ => metric.names().0.to_owned(),
        };
        let all = |engine: &str| -> Vec<Option<f64>> { points.iter().map(|at| median(engine, at, *metric)).collect() };
        if names.iter().all(|engine| all(engine).iter().all(|v| v.is_none_or(|v| v == 0.0))) {
            continue;
        }
        let heads: Vec<String> = std::iter::once(format!("{name}, by {}", figure.varies))
            .chain(points.iter().map(|at| (*at).to_owned()))
            .collect();
        let line = |(i, engine): (usize, &&str)| {
            let cells = all(engine).into_iter().map(|v| shown(v, *metric));
            (Some(i), std::iter::once((*engine).to_owned()).chain(cells).collect())
        };
        html::table(out, &heads, &names.iter().enumerate().map(line).collect::<Vec<_>>())?;
        let series: Vec<_> = names.iter().map(|engine| all(engine)).collect();
        let legend = html::legend(names.iter().map(|name| (*name).to_owned()));
        let svg = plots::over_points(&series, &points, (figure.varies, &name))?;
        html::figure(&mut figures, &html::escape(&name), &legend, &svg)?;
    }
    out.push_str("<div class=\"plots\">\n");
    out.push_str(&figures);
    out.push_str("</div>\n");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::figures::{FigureSize, all};
    use super::super::{Sample, table, volume};
    use super::*;

    #[test]
    fn a_time_of_one_run_is_not_safe_to_quote() {
        let of = |n: usize| {
            let volume = volume::TransactionVolume { database: 4.0 + n as f64, ..Default::default() };
            vec![Sample { us_per_tx: Some(90.0 + n as f64), volume: Some(volume), ..Sample::default() }]
        };
        let leads: Vec<String> = all(FigureSize { transactions: 1, full: false })
            .iter()
            .filter_map(|figure| {
                lead(figure, &table::values(figure, &(0..figure.cells.len()).map(of).collect::<Vec<_>>()))
            })
            .collect();
        let find = |name: &str| leads.iter().find(|lead| lead.starts_with(name)).unwrap();
        assert!(find("ls-mvbt-6").contains("none: lsmvbt, 1.01~ times mvbt"), "{leads:?}");
        assert!(find("dhl-8").contains("dhl-cc, 1.20 times dhl-tc"), "{leads:?}");
    }
}
