//! `--html`: one page with the tables, pictures and the parameter card. It needs no network. This
//! file has the page of engines and workloads, and the parts that pages of other suites share with
//! it.

mod addresses;
mod commit_cost;
pub mod plots;

pub use commit_cost::picture;

use crate::counting::blocks::Blocks;
use crate::counting::wear::Wear;
use crate::engines::EngineKind;
use crate::report::leads::{self, Contender};
use crate::report::{self, Row};
use crate::runner::RunOutcome;
use crate::text::thousands;
use anyhow::Result;
use std::fmt::Write as _;

const STYLE: &str = include_str!("style.css");

pub fn page(outcome: &RunOutcome, wear: &Wear) -> Result<String> {
    let (rows, parameters) = (&outcome.rows, &outcome.parameters);
    let text = format!(
        "SQLite {}, {} runs, {}. Ratios are medians of ratios taken run by run; the parameter card is at the end.",
        parameters.sqlite_version, parameters.runs, parameters.run_order
    );
    let mut workloads: Vec<&str> = rows.iter().map(|r| r.workload).collect();
    workloads.dedup();
    let leads: Vec<String> =
        workloads.iter().filter_map(|w| lead(w, rows.iter().filter(|r| r.workload == *w))).collect();
    let mut out = begin("What a commit costs", &leads, [&parameters.made(), &text], &parameters.unknown)?;
    for workload in workloads {
        let group: Vec<&Row> = rows.iter().filter(|r| r.workload == workload).collect();
        section(&mut out, workload, &group, &outcome.reference, wear.wear)?;
        let traced = rows.iter().zip(&outcome.traces).filter(|(row, _)| row.workload == workload);
        traces(&mut out, traced.filter_map(|(row, trace)| Some((row, trace.as_ref()?))))?;
    }
    card(&mut out, outcome, wear)?;
    let notes = report::below(&outcome.rows, parameters, u16::MAX).into_iter().filter(|l| !l.contains(", seconds: "));
    end(out, &notes.collect::<Vec<_>>())
}

/// The winner of a workload of these rows. The floor is no database.
fn lead<'r>(workload: &str, rows: impl Iterator<Item = &'r Row>) -> Option<String> {
    let contender = |row: &Row| Contender {
        name: label(row).trim_end_matches(" *").to_owned(),
        rate: row.tx_per_s,
        runs: row.tx_per_s_runs.clone(),
        durable: row.of.caveat.is_none(),
    };
    let all: Vec<Contender> = rows.filter(|r| r.of.kind != EngineKind::Floor).map(contender).collect();
    leads::sentence(workload, "transactions", &all)
}

/// A page's head, down to its first words: `leads`, then the meaning of FULL and NORMAL, then how
/// the page was made, and its text.
pub fn begin(title: &str, leads: &[String], [made, text]: [&str; 2], unknown: &[String]) -> Result<String> {
    let mut out = String::new();
    write!(
        out,
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>onewrite bench</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n\
         <h1>{}</h1>\n",
        escape(title)
    )?;
    out.push_str("<ul class=\"leads\">\n");
    for lead in leads {
        writeln!(out, "<li>{}</li>", escape(lead))?;
    }
    writeln!(out, "</ul>\n<p>{}</p>", escape(leads::LEVELS))?;
    writeln!(out, "<p class=\"soft\">{}</p>\n<p class=\"soft\">{}</p>", escape(made), escape(text))?;
    if !unknown.is_empty() {
        let unknown = escape(&unknown.join(", "));
        writeln!(out, "<p class=\"warn\">Unknown here: {unknown}. Name them where you quote a number.</p>")?;
    }
    Ok(out)
}

/// The notes, and the page's end.
pub fn end(mut out: String, notes: &[String]) -> Result<String> {
    out.push_str("<h2>Notes</h2>\n<ul>\n");
    for line in notes {
        writeln!(out, "<li>{}</li>", escape(line))?;
    }
    out.push_str("</ul>\n</body>\n</html>\n");
    Ok(out)
}

/// A table. In the first column of a row, a swatch of the colour of its number, if it has one.
pub fn table(out: &mut String, heads: &[String], rows: &[(Option<usize>, Vec<String>)]) -> Result<()> {
    out.push_str("<div class=\"scroll\"><table class=\"data\"><thead><tr>");
    for head in heads {
        // A name may break where a narrow column needs it.
        write!(out, "<th>{}</th>", escape(head).replace('/', "/<wbr>"))?;
    }
    out.push_str("</tr></thead><tbody>\n");
    for (color, cells) in rows {
        out.push_str("<tr>");
        for (i, cell) in cells.iter().enumerate() {
            let swatch = color.filter(|_| i == 0).map_or(String::new(), |color| {
                format!("<span class=\"swatch\" style=\"background:var(--c{})\"></span>&nbsp;", color % plots::COLORS)
            });
            write!(out, "<td>{swatch}{}</td>", escape(cell))?;
        }
        out.push_str("</tr>\n");
    }
    out.push_str("</tbody></table></div>\n");
    Ok(())
}

/// The names of the lines of a picture, each beside a piece of its line as it is drawn: not by its
/// colour alone.
pub fn legend(names: impl Iterator<Item = String>) -> String {
    let line = |(i, name): (usize, String)| {
        format!(
            "<span><svg class=\"key\" viewBox=\"0 0 30 8\"><polyline fill=\"none\" stroke=\"var(--c{})\" \
             stroke-width=\"2\" points=\"0,4 30,4\"/></svg>{}</span> ",
            i % plots::COLORS,
            escape(&name)
        )
    };
    format!("<div class=\"legend\">{}</div>", names.enumerate().map(line).collect::<String>())
}

/// The names of parts of bars, by their number in the style sheet.
pub fn parts<'n>(names: impl Iterator<Item = (usize, &'n str)>) -> String {
    let part = |(i, name)| {
        format!("<span><span class=\"swatch\" style=\"background:var(--io{i})\"></span>{}</span> ", escape(name))
    };
    format!("<div class=\"legend\">{}</div>", names.map(part).collect::<String>())
}

/// Names with their meanings, as a card.
pub fn definitions<N: AsRef<str>>(out: &mut String, lines: &[(N, String)]) -> Result<()> {
    out.push_str("<dl>\n");
    for (name, value) in lines {
        writeln!(out, "<dt>{}</dt><dd>{}</dd>", escape(name.as_ref()), escape(value))?;
    }
    out.push_str("</dl>\n");
    Ok(())
}

fn label(row: &Row) -> String {
    let mark = if row.of.caveat.is_some() { " *" } else { "" };
    let preset = if ["default", "overwrite"].contains(&row.preset.as_str()) { "" } else { &row.preset };
    format!("{} {preset}{mark}", row.engine).replace("  ", " ").trim_end().to_owned()
}

/// A number with so many digits behind the point, and commas between its thousands.
pub fn number(v: Option<f64>, digits: usize) -> String {
    let Some(v) = v else { return "n/a".to_owned() };
    if digits == 0 {
        return thousands(v);
    }
    let text = format!("{v:.digits$}");
    let (whole, rest) = text.split_once('.').unwrap_or((&text, ""));
    format!("{}.{rest}", thousands(whole.parse().unwrap_or(v)))
}

/// The columns of a workload: those most asked for first, since a narrow screen shows no more.
fn columns(group: &[&Row], reference: &str, wear: bool) -> (Vec<String>, Vec<Vec<String>>) {
    let reference = if group.iter().any(|r| r.ratio_to_stock_default.is_some()) { "DELETE" } else { reference };
    let ratio = |row: &Row| {
        let mark = if row.ratio.is_some_and(|r| !r.safe) { "~" } else { "" };
        format!("{}{mark}", number(row.ratio.map(|r| r.median), 2))
    };
    let once = |row: &Row| row.kib_once_per_tx.map_or(String::new(), |kib| number(Some(kib), 2));
    let interval = |row: &Row| row.ratio.map_or("n/a".to_owned(), |r| format!("{:.2} – {:.2}", r.low, r.high));
    type Cell<'c> = Box<dyn Fn(&Row) -> String + 'c>;
    let mut all: Vec<(String, Cell<'_>)> = vec![
        ("engine".to_owned(), Box::new(label)),
        ("tx/s".to_owned(), Box::new(|r| number(Some(r.tx_per_s), 0) + if r.is_steady() { "" } else { "~" })),
        (format!("× {reference}"), Box::new(ratio)),
        ("KiB".to_owned(), Box::new(|r| number(r.kib_per_tx, 2))),
        ("flushes".to_owned(), Box::new(|r| number(r.flushes_per_tx, 2))),
        ("block writes".to_owned(), Box::new(|r| number(r.block_writes_per_tx, 2))),
    ];
    if group.iter().any(|r| r.kib_once_per_tx.is_some()) {
        all.push(("KiB, of it once".to_owned(), Box::new(once)));
    }
    all.push(("interval of ×".to_owned(), Box::new(interval)));
    all.push(("p50 µs".to_owned(), Box::new(|r| number(Some(r.p50_us), 1))));
    all.push(("p99 µs".to_owned(), Box::new(|r| number(Some(r.p99_us), 1))));
    all.push(("p99.9 µs".to_owned(), Box::new(|r| number(Some(r.p999_us), 1))));
    all.push(("max µs".to_owned(), Box::new(|r| number(Some(r.max_us), 0))));
    all.push(("write calls".to_owned(), Box::new(|r| number(r.write_syscalls_per_tx, 2))));
    all.push(("sync calls".to_owned(), Box::new(|r| number(r.sync_syscalls_per_tx, 2))));
    if wear || group.iter().any(|r| r.blocks.is_some()) {
        all.push(("bytes per commit".to_owned(), Box::new(|r| number(r.wear.map(|w| w.bytes_per_commit), 0))));
    }
    if wear {
        all.push(("years of card".to_owned(), Box::new(|r| number(r.wear.map(|w| w.years), 1))));
    }
    let rows = group.iter().map(|row| all.iter().map(|(_, cell)| cell(row)).collect()).collect();
    (all.into_iter().map(|(head, _)| head).collect(), rows)
}

fn section(out: &mut String, workload: &str, group: &[&Row], reference: &str, wear: bool) -> Result<()> {
    writeln!(out, "<h2>{}</h2>", escape(workload))?;
    let (heads, rows) = columns(group, reference, wear);
    let rows: Vec<_> = rows.into_iter().enumerate().map(|(i, cells)| (Some(i), cells)).collect();
    table(out, &heads, &rows)?;
    phases(out, group)?;
    out.push_str("<div class=\"plots\">\n");
    figure(out, "Throughput", "median; small dots are the runs", &plots::throughput(group, label)?)?;
    let text = format!("of single transactions{}", legend(group.iter().map(|row| label(row))));
    figure(out, "Latency", &text, &plots::latency(group)?)?;
    if let Some(volume) = plots::volume(group, label)? {
        figure(out, plots::volume_title(group), &parts(plots::volume_parts(group).into_iter()), &volume)?;
    }
    out.push_str("</div>\n");
    Ok(())
}

/// A picture under its title; `text` is HTML.
pub fn figure(out: &mut String, title: &str, text: &str, svg: &str) -> Result<()> {
    writeln!(out, "<figure><figcaption><b>{title}</b> {text}</figcaption>{svg}</figure>")?;
    Ok(())
}

/// A picture of each block trace.
fn traces<'r>(out: &mut String, traced: impl Iterator<Item = (&'r Row, &'r Blocks)>) -> Result<()> {
    let mut figures = String::new();
    for (row, blocks) in traced {
        if let Some(svg) = addresses::addresses(blocks)? {
            let count = format!("{} writes, {} flushes", blocks.during.writes, blocks.during.flushes);
            figure(&mut figures, &escape(&label(row)), &count, &svg)?;
        }
    }
    if !figures.is_empty() {
        out.push_str(
            "<h3>Block addresses over time</h3>\n<p class=\"soft\">Every write that reached the device in the first run, \
             the lowest address of a band at its bottom. Each band has a scale of its own: below its name, how far \
             apart the addresses written there lie. Each picture has its own time; who has none wrote nothing \
             before its last transaction ended.</p>\n<div class=\"plots\">\n",
        );
        out.push_str(&figures);
        out.push_str("</div>\n");
    }
    Ok(())
}

/// Seconds of the parts of a workload that has parts.
fn phases(out: &mut String, group: &[&Row]) -> Result<()> {
    let Some(first) = group.iter().find(|r| !r.phases_s.is_empty()) else { return Ok(()) };
    out.push_str("<p class=\"soft\">Seconds of its parts, medians:</p>");
    let heads: Vec<String> = std::iter::once("part".to_owned()).chain(group.iter().map(|row| label(row))).collect();
    let seconds = |row: &Row, i: usize| row.phases_s.get(i).map_or("n/a".to_owned(), |(_, s)| format!("{s:.4}"));
    let line = |(i, (name, _)): (usize, &(String, f64))| {
        (None, std::iter::once(name.clone()).chain(group.iter().map(|row| seconds(row, i))).collect())
    };
    table(out, &heads, &first.phases_s.iter().enumerate().map(line).collect::<Vec<_>>())
}

pub fn card(out: &mut String, outcome: &RunOutcome, wear: &Wear) -> Result<()> {
    let parameters = &outcome.parameters;
    out.push_str("<h2>Parameter card</h2>\n");
    let mut lines = parameters.short();
    if wear.wear || outcome.rows.iter().any(|r| r.blocks.is_some()) {
        lines.push(("wear".to_owned(), wear.describe()));
    }
    lines.push(("WAL at start".to_owned(), parameters.wal_at_start.to_owned()));
    lines.push(("compile options".to_owned(), parameters.compile_options.join(" ")));
    lines.extend(parameters.stores.iter().map(|(name, text)| ((*name).to_owned(), text.clone())));
    definitions(out, &lines)?;
    out.push_str("<details><summary>Settings of each engine</summary><div class=\"scroll\"><table class=\"wrap\">\n");
    for (name, settings) in &parameters.engines {
        writeln!(out, "<tr><td>{}</td><td>{}</td></tr>", escape(name), escape(&fields(settings)?))?;
    }
    out.push_str(
        "</table></div></details>\n<details><summary>Workloads</summary><div class=\"scroll\"><table class=\"wrap\">\n",
    );
    for (name, workload) in &parameters.workloads {
        writeln!(out, "<tr><td>{}</td><td>{}</td></tr>", escape(name), escape(&fields(workload)?))?;
    }
    out.push_str("</table></div></details>\n");
    Ok(())
}

/// `name value, name value` of a structure.
pub fn fields(of: &impl serde::Serialize) -> Result<String> {
    let value = serde_json::to_value(of)?;
    let field = |(name, value): (&String, &serde_json::Value)| {
        let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        format!("{}: {value}", name.replace('_', " "))
    };
    Ok(value.as_object().map(|o| o.iter().map(field).collect::<Vec<_>>().join(", ")).unwrap_or_default())
}

pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_that_html_reserves_are_escaped() {
        assert_eq!(escape("a<b & \"c\">"), "a&lt;b &amp; &quot;c&quot;&gt;");
    }

    #[test]
    fn columns_that_were_not_asked_for_stay_away() {
        let mut rows = crate::report::tests::rows();
        rows.iter_mut().for_each(|row| row.blocks = None);
        let group: Vec<&Row> = rows.iter().filter(|r| r.workload == "insert").collect();
        let (heads, cells) = columns(&group, "WAL/FULL", false);
        assert!(heads.iter().all(|head| !head.contains("years") && !head.contains("bytes")), "{heads:?}");
        assert_eq!(heads[..5], ["engine", "tx/s", "× WAL/FULL", "KiB", "flushes"]);
        assert!(cells.iter().all(|row| row.len() == heads.len() && row[1] == "12,346~"), "{cells:?}");
        let (heads, _) = columns(&group, "WAL/FULL", true);
        assert!(heads.contains(&"years of card".to_owned()) && heads.contains(&"bytes per commit".to_owned()));
        assert_eq!([number(Some(12_345.678), 1), number(None, 1)], ["12,345.7", "n/a"]);
    }

    #[test]
    fn structures_become_text() {
        let of = serde_json::json!({"page_size": 4096, "mode": "wal"});
        assert_eq!(fields(&of).unwrap(), "mode: wal, page size: 4096");
    }
}
