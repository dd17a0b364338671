//! The files that a measurement writes, and the table that it prints.

use crate::counting::blocks;
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
        print(common, outcome).context("printing the table")?;
        if let Some((path, mut file)) = svg {
            file.write_all(html::picture(outcome)?.as_bytes()).with_context(|| path.display().to_string())?;
        }
        outcome.whole()
    }
}

fn print(common: &Common, outcome: &RunOutcome) -> std::io::Result<()> {
    let (parameters, rows) = (&outcome.parameters, &outcome.rows);
    let mut out = std::io::stdout().lock();
    let columns = text::columns();
    let text = text::line(columns);
    writeln!(out, "{}\n", report::table(rows, &outcome.reference, columns))?;
    if let Some(table) = report::blocks(rows, columns) {
        writeln!(out, "{table}\n")?;
    }
    for line in report::below(rows, parameters, columns) {
        writeln!(out, "{}", wrap(&line, text, 2))?;
    }
    if common.wear.wear {
        writeln!(out)?;
        for line in report::wear_lines(&common.wear, rows) {
            writeln!(out, "{}", wrap(&line, text, 4))?;
        }
    }
    writeln!(out)?;
    for line in card::lines(&parameters.short(), text) {
        writeln!(out, "{line}")?;
    }
    out.flush()
}
