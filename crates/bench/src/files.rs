//! The files that a measurement writes, and the table that it prints.

use crate::counting::blocks;
use crate::counting::wear::Wear;
use crate::html;
use crate::parameters::card;
use crate::parameters::options::Common;
use crate::report;
use crate::runner::RunOutcome;
use crate::text::{self, wrap};
use anyhow::{Context, Result, ensure};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::PathBuf;

/// The files asked for, opened first: a name that cannot be written must not cost the user the time
/// of a measurement.
pub struct OutputFiles {
    json: Option<(PathBuf, File)>,
    html: Option<(PathBuf, File)>,
    svg: Option<(PathBuf, File)>,
    trace: Option<(PathBuf, File)>,
}

impl OutputFiles {
    pub fn create(common: &Common) -> Result<OutputFiles> {
        let create = |path: &PathBuf| -> Result<(PathBuf, File)> {
            Ok((path.clone(), File::create(path).with_context(|| path.display().to_string())?))
        };
        Ok(OutputFiles {
            json: common.json.as_ref().map(create).transpose()?,
            html: common.html.as_ref().map(create).transpose()?,
            svg: common.svg.as_ref().map(create).transpose()?,
            trace: common.simulated.trace.as_ref().map(create).transpose()?,
        })
    }

    pub fn write(self, json: &impl serde::Serialize, page: impl FnOnce() -> Result<String>) -> Result<()> {
        if let Some((path, file)) = self.json {
            let mut file = BufWriter::new(file);
            serde_json::to_writer_pretty(&mut file, json)?;
            file.write_all(b"\n").and_then(|()| file.flush()).with_context(|| path.display().to_string())?;
        }
        if let Some((path, mut file)) = self.html {
            let page = page().context("making the page")?;
            file.write_all(page.as_bytes()).with_context(|| path.display().to_string())?;
        }
        Ok(())
    }

    /// Writes all that were asked for of a job, and prints the table.
    pub fn finish(mut self, common: &Common, outcome: &RunOutcome) -> Result<()> {
        ensure!(!outcome.rows.is_empty(), "nothing was measured");
        let (trace, svg) = (self.trace.take(), self.svg.take());
        let json = report::ReportJson { parameters: &outcome.parameters, results: &outcome.rows };
        self.write(&json, || html::page(outcome, &common.wear))?;
        if let Some((path, file)) = trace {
            let mut file = BufWriter::new(file);
            let rows = outcome.rows.iter().zip(&outcome.traces);
            let lines = rows.filter_map(|(row, trace)| {
                Some(trace.as_ref()?.csv(&format!("{}/{},{}", row.engine, row.preset, row.workload)))
            });
            let mut texts = std::iter::once(blocks::CSV_HEAD.to_owned()).chain(lines);
            texts.try_for_each(|text| file.write_all(text.as_bytes())).with_context(|| path.display().to_string())?;
            file.flush().with_context(|| path.display().to_string())?;
        }
        let told = told(&common.wear, outcome, text::columns());
        std::io::stdout().write_all(told.as_bytes()).context("printing the table")?;
        if let Some((path, mut file)) = svg {
            file.write_all(html::picture(outcome)?.as_bytes()).with_context(|| path.display().to_string())?;
        }
        outcome.whole()
    }
}

/// The text of the terminal.
fn told(wear: &Wear, outcome: &RunOutcome, columns: u16) -> String {
    let (parameters, rows) = (&outcome.parameters, &outcome.rows);
    let line = text::line(columns);
    let mut out = format!("{}\n\n", report::table(rows, &outcome.reference, columns));
    if let Some(table) = report::blocks(rows, columns) {
        out += &(table + "\n\n");
    }
    out += &text::wrapped(report::below(rows, parameters, columns), columns);
    if wear.wear {
        let lines = report::wear_lines(wear, rows);
        out += &lines.iter().map(|text| format!("\n{}", wrap(text, line, 4))).collect::<String>();
        out.push('\n');
    }
    format!("{out}\n{}\n", card::lines(&parameters.short(), line).join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engines::{EngineKind, of_library};
    use crate::report::Row;
    use crate::report::tests::rows;
    use crate::runner::tests::outcome;

    #[test]
    fn the_text_of_the_terminal_has_eighty_columns() {
        let mut rows = rows();
        // On a slow disk, a fast one, and what neither has counted.
        for (i, row) in rows.iter_mut().enumerate() {
            let scale = [0.01, 1.0, 40.0][i % 3];
            row.tx_per_s *= scale;
            for latency in [&mut row.p50_us, &mut row.p99_us, &mut row.p999_us, &mut row.max_us] {
                *latency /= scale;
            }
            row.phases_s = vec![("inserts in autocommit".to_owned(), 12.3456); 6];
            if i % 4 == 0 {
                (row.kib_per_tx, row.blocks, row.wear, row.ratio) = (None, None, None, None);
            }
        }
        // An engine of --library, and a value of a sweep.
        let library = of_library("/usr/lib/libsqlite3.so.0.8.6".as_ref(), true);
        let like = rows[0].clone();
        rows.extend(library.into_iter().map(|of| Row {
            engine: of.engine.clone(),
            preset: of.preset.clone(),
            of,
            ..like.clone()
        }));
        rows.push(Row { engine: "journal_mode".to_owned(), preset: "truncate".to_owned(), ..like.clone() });
        rows.push(Row { engine: "fs".to_owned(), preset: "ext4-writeback".to_owned(), ..like });
        assert!(rows.iter().any(|row| row.of.kind == EngineKind::Floor));
        for reference in ["WAL/FULL", "DELETE", "ext4-ordered"] {
            let outcome = outcome(rows.clone(), reference);
            let told = told(&outcome.parameters.wear, &outcome, 80);
            assert!(text::width(&told) <= 80, "{told}");
        }
    }
}
