//! The tables: a line for each engine, a column for each point or each metric.

use super::Sample;
use super::figures::{Figure, FigureMetric};
use crate::numbers::measure::{median, paired_ratio};
use crate::text;
use serde::Serialize;

/// A cell's value of one metric.
pub struct CellValue {
    pub engine: String,
    pub at: String,
    pub metric: FigureMetric,
    pub median: Option<f64>,
    pub runs: Vec<f64>,
}

/// One line of the JSON.
#[derive(Serialize)]
pub struct SchemeRow {
    figure: &'static str,
    engine: String,
    varies: &'static str,
    at: String,
    metric: &'static str,
    median: Option<f64>,
    runs: Vec<f64>,
}

impl CellValue {
    pub fn row(&self, figure: &Figure) -> SchemeRow {
        let CellValue { engine, at, metric, median, runs } = self;
        SchemeRow {
            figure: figure.name,
            engine: engine.clone(),
            varies: figure.varies,
            at: at.clone(),
            metric: metric.names().1,
            median: *median,
            runs: runs.clone(),
        }
    }
}

/// Every value of a figure, by metric and then in the order of its cells.
pub fn values(figure: &Figure, samples: &[Vec<Sample>]) -> Vec<CellValue> {
    let mut values = Vec::new();
    for metric in figure.metrics {
        for (cell, own) in figure.cells.iter().zip(samples) {
            let of = |samples: &[Sample], metric| samples.iter().filter_map(|s| s.get(metric)).collect::<Vec<f64>>();
            let (median, runs) = if *metric == FigureMetric::Ratio {
                let reference = figure
                    .cells
                    .iter()
                    .zip(samples)
                    .find(|(other, _)| other.at == cell.at && Some(other.engine.name.as_str()) == figure.reference);
                let theirs = reference.map_or(Vec::new(), |(_, samples)| of(samples, FigureMetric::TxPerS));
                let mine = of(own, FigureMetric::TxPerS);
                (paired_ratio(&mine, &theirs), mine.iter().zip(&theirs).map(|(a, b)| a / b).collect())
            } else {
                let runs = of(own, *metric);
                (median(runs.iter().copied()), runs)
            };
            let (engine, at) = (cell.engine.name.clone(), cell.at.clone());
            values.push(CellValue { engine, at, metric: *metric, median, runs });
        }
    }
    values
}

/// Each once, in the order of the first of it.
pub fn distinct<'a>(items: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut found: Vec<&str> = Vec::new();
    for item in items {
        if !found.contains(&item) {
            found.push(item);
        }
    }
    found
}

pub fn render(figure: &Figure, values: &[CellValue], columns: u16) -> String {
    let engines = distinct(values.iter().map(|v| v.engine.as_str()));
    let points = distinct(values.iter().map(|v| v.at.as_str()));
    let find = |engine: &str, at: &str, metric: FigureMetric| {
        let found = values.iter().find(|v| v.engine == engine && v.at == at && v.metric == metric);
        found.and_then(|v| v.median).map_or(String::new(), |v| format!("{v:.*}", metric.digits()))
    };
    let row = |name: String, cells: &mut dyn Iterator<Item = String>| std::iter::once(name).chain(cells).collect();
    if figure.varies.is_empty() {
        let heads: Vec<String> = row(String::new(), &mut figure.metrics.iter().map(|m| m.names().0.to_owned()));
        let of = |engine: &&str| row((*engine).to_owned(), &mut figure.metrics.iter().map(|m| find(engine, "", *m)));
        return text::table(&heads, &engines.iter().map(of).collect::<Vec<_>>(), columns);
    }
    let mut tables = Vec::new();
    for metric in figure.metrics {
        let all_empty = |engine: &&str| points.iter().all(|at| find(engine, at, *metric).is_empty());
        if *metric == FigureMetric::ThroughLog && engines.iter().all(&all_empty) {
            continue;
        }
        let name = match (metric, figure.reference) {
            (FigureMetric::Ratio, Some(reference)) => format!("× {reference}"),
            _ => metric.names().0.to_owned(),
        };
        let head = format!("{name},\nby {}", figure.varies);
        let heads: Vec<String> = row(head, &mut points.iter().map(|at| at.replace(' ', "\n")));
        let shown = engines.iter().filter(|e| *metric != FigureMetric::ThroughLog || !all_empty(e));
        let of = |engine: &&str| row(format!("  {engine}"), &mut points.iter().map(|at| find(engine, at, *metric)));
        tables.push(text::table(&heads, &shown.map(of).collect::<Vec<_>>(), columns));
    }
    tables.join("\n\n")
}

#[cfg(test)]
mod tests {
    use super::super::figures::{FigureSize, all};
    use super::*;

    #[test]
    fn every_figure_has_a_line_for_each_engine_and_a_ratio_of_one_to_itself() {
        for figure in all(FigureSize { transactions: 1, full: false }) {
            let sample = |n: usize| Sample { us_per_tx: Some(100.0 * (n + 1) as f64), ..Sample::default() };
            let samples: Vec<Vec<Sample>> = (0..figure.cells.len()).map(|n| vec![sample(n), sample(n + 1)]).collect();
            let values = values(&figure, &samples);
            let text = render(&figure, &values, 80);
            assert!(text::width(&text) <= 80, "{text}");
            for cell in &figure.cells {
                assert!(
                    text.contains(&cell.engine.name) && cell.at.split(' ').all(|word| text.contains(word)),
                    "{text}"
                );
            }
            let own = |v: &&CellValue| v.metric == FigureMetric::Ratio && Some(v.engine.as_str()) == figure.reference;
            assert!(values.iter().filter(own).all(|v| v.median == Some(1.0)));
            assert_eq!(values.iter().any(|v| own(&v)), figure.reference.is_some());
        }
    }
}
