//! `--svg`: one picture to share, of the KiB and the flushes that a commit of each engine costs. It
//! stands alone: light as drawn, dark where its viewer asks for that, on a ground of its own.

use super::plots::failed;
use crate::engines::{BenchEngine, EngineKind};
use crate::parameters::card::Parameters;
use crate::report::Row;
use crate::runner::RunOutcome;
use crate::text::{thousands, wrap};
use anyhow::{Context, Result, ensure};
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

/// A phone shows it at three quarters of that.
const WIDTH: i32 = 480;
const MARGIN: i32 = 14;
/// Of an engine: its name, and its bars below.
const ROW_HEIGHT: i32 = 46;
const BAR_HEIGHT: i32 = 16;
/// Where the bars of KiB and those of flushes begin, and how long the longest of each is.
const KIB: (i32, i32) = (MARGIN, 148);
const FLUSHES: (i32, i32) = (272, 106);
/// Pixels of the title, of labels, and of the lines around the bars; and from line to line.
const TITLE: f64 = 22.0;
const LABEL: f64 = 16.0;
const SMALL: f64 = 15.0;
const LINE: i32 = 20;
/// The mean width of a letter of the text by its height.
const LETTER: f64 = 0.57;

/// A colour of the light picture, and that of the dark one.
type Shade = (RGBColor, &'static str);

const GROUND: Shade = (RGBColor(0xfe, 0xfe, 0xfe), "#12161b");
const TEXT: Shade = (RGBColor(0x1b, 0x1f, 0x24), "#e4e8ec");
const SOFT: Shade = (RGBColor(0x59, 0x63, 0x6e), "#9aa4ae");
const BORDER: Shade = (RGBColor(0xd5, 0xda, 0xe0), "#353d46");
/// Solid up to the cheapest workload, pale up to the dearest.
const STOCK: [Shade; 2] = [(RGBColor(0x6e, 0x7f, 0x90), "#8fa1b3"), (RGBColor(0xb4, 0xbf, 0xca), "#566676")];
const ONEWRITE: [Shade; 2] = [(RGBColor(0xd5, 0x5e, 0x00), "#ff8a4d"), (RGBColor(0xef, 0xb0, 0x85), "#a35a33")];
const OTHER: [Shade; 2] = [(RGBColor(0x00, 0x80, 0x5d), "#3fc79a"), (RGBColor(0x84, 0xc4, 0xb1), "#2a7a60")];
const SHADES: [Shade; 10] =
    [GROUND, TEXT, SOFT, BORDER, STOCK[0], STOCK[1], ONEWRITE[0], ONEWRITE[1], OTHER[0], OTHER[1]];

/// The least and the greatest of the workloads.
type Span = (f64, f64);

struct Line {
    name: String,
    colors: [Shade; 2],
    is_durable: bool,
    kib: Span,
    flushes: Option<Span>,
}

/// The picture of these results.
pub fn picture(outcome: &RunOutcome) -> Result<String> {
    let lines = lines(&outcome.rows);
    ensure!(!lines.is_empty(), "--svg: nothing to draw, since the device's writes were not counted");
    let (title, below) = ("What a commit writes", below(outcome, &lines));
    let above = wrapped(&[said_of(outcome)]);
    let heads = 48 + LINE * above.len() as i32 + 8;
    let top = heads + 20;
    let bottom = top + ROW_HEIGHT * lines.len() as i32 + 8;
    let height = bottom + LINE * below.len() as i32 + MARGIN;
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, (WIDTH as u32, height as u32)).into_drawing_area();
        let draw = Pen { root: &root };
        draw.bar((0, 0), (WIDTH, height), GROUND)?;
        draw.text((MARGIN, 26), title, (TITLE, FontStyle::Bold, TEXT))?;
        for (i, text) in above.iter().enumerate() {
            draw.text((MARGIN, 52 + LINE * i as i32), text, (SMALL, FontStyle::Normal, SOFT))?;
        }
        draw.text((KIB.0, heads), "KiB per commit", (LABEL, FontStyle::Bold, TEXT))?;
        draw.text((FLUSHES.0, heads), "flushes per commit", (LABEL, FontStyle::Bold, TEXT))?;
        let most = |of: &dyn Fn(&Line) -> f64| lines.iter().map(of).fold(1e-9, f64::max);
        let kib_max = most(&|line| line.kib.1);
        let flushes_max = most(&|line| line.flushes.map_or(0.0, |(_, high)| high));
        for (i, line) in lines.iter().enumerate() {
            let begin = top + ROW_HEIGHT * i as i32;
            let center = begin + 32;
            let weight = if line.colors == ONEWRITE { FontStyle::Bold } else { FontStyle::Normal };
            draw.text((MARGIN, begin + 12), &line.name, (LABEL, weight, TEXT))?;
            draw.span((KIB.0, center), line, line.kib, f64::from(KIB.1) / kib_max)?;
            match line.flushes {
                Some(span) => draw.span((FLUSHES.0, center), line, span, f64::from(FLUSHES.1) / flushes_max)?,
                None => draw.text((FLUSHES.0, center), "n/a", (SMALL, FontStyle::Normal, SOFT))?,
            }
        }
        draw.bar((MARGIN, bottom), (WIDTH - MARGIN, bottom + 1), BORDER)?;
        for (i, text) in below.iter().enumerate() {
            draw.text((MARGIN, bottom + 14 + LINE * i as i32), text, (SMALL, FontStyle::Normal, SOFT))?;
        }
        root.present().map_err(failed)?;
    }
    alone(&svg, title)
}

struct Pen<'p, 'a> {
    root: &'p DrawingArea<SVGBackend<'a>, Shift>,
}

impl Pen<'_, '_> {
    fn bar(&self, from: (i32, i32), to: (i32, i32), color: Shade) -> Result<()> {
        self.root.draw(&Rectangle::new([from, to], color.0.filled())).map_err(failed)
    }

    /// From its left end, around the height `at`.
    fn text(&self, at: (i32, i32), text: &str, (pixels, weight, color): (f64, FontStyle, Shade)) -> Result<()> {
        // The SVG has this fraction of a font's size.
        let font = ("sans-serif", pixels * 1.24, weight).into_font();
        let style = font.color(&color.0).pos(Pos::new(HPos::Left, VPos::Center));
        self.root.draw(&Text::new(text.to_owned(), at, style)).map_err(failed)
    }

    /// A bar with the numbers of its ends.
    fn span(&self, (x, center): (i32, i32), line: &Line, (low, high): Span, scale: f64) -> Result<()> {
        let end = |value: f64| x + (value * scale).round() as i32;
        let (top, bottom) = (center - BAR_HEIGHT / 2, center + BAR_HEIGHT / 2);
        self.bar((x, top), (end(high), bottom), line.colors[1])?;
        self.bar((x, top), (end(low), bottom), line.colors[0])?;
        self.text((end(high) + 6, center), &spelled((low, high)), (LABEL, FontStyle::Normal, TEXT))
    }
}

fn spelled((low, high): Span) -> String {
    let number = |v: f64| {
        let text = if v < 9.95 { format!("{v:.1}") } else { format!("{v:.0}") };
        text.trim_end_matches(".0").to_owned()
    };
    let (low, high) = (number(low), number(high));
    if low == high { low } else { format!("{low} – {high}") }
}

/// A line of each engine whose writes were counted.
fn lines(rows: &[Row]) -> Vec<Line> {
    let mut lines: Vec<Line> = Vec::new();
    let join = |(a, b): Span, (c, d): Span| (a.min(c), b.max(d));
    for row in rows {
        let Some(kib) = row.kib_per_tx else { continue };
        let (kib, flushes) = ((kib, kib), row.flushes_per_tx.map(|n| (n, n)));
        let name = name(row);
        match lines.iter_mut().find(|line| line.name == name) {
            Some(line) => {
                line.kib = join(line.kib, kib);
                line.flushes = line.flushes.zip(flushes).map(|(a, b)| join(a, b));
            }
            None => {
                let colors = match row.of.kind {
                    EngineKind::Stock { .. } => STOCK,
                    EngineKind::Onewrite { .. } => ONEWRITE,
                    EngineKind::Store(_) | EngineKind::Floor => OTHER,
                };
                lines.push(Line { name, colors, is_durable: row.of.caveat.is_none(), kib, flushes });
            }
        }
    }
    lines
}

/// In words of SQLite's documentation, where the names are the usual ones.
fn name(row: &Row) -> String {
    let BenchEngine { engine, preset, kind, library, caveat, .. } = &row.of;
    let mark = if caveat.is_some() { " *" } else { "" };
    let usual = library.is_none() && (engine, preset) == (&row.engine, &row.preset);
    match kind {
        EngineKind::Stock { journal_mode, synchronous } if usual => {
            let level = match (journal_mode.as_str(), synchronous) {
                ("delete", _) => " (default)",
                ("wal", 1) => ", NORMAL",
                ("wal", _) => ", FULL",
                _ => "",
            };
            format!("stock {}{level}{mark}", journal_mode.to_uppercase())
        }
        EngineKind::Onewrite { .. } if usual && preset == "log" => "onewrite, FULL".to_owned(),
        EngineKind::Onewrite { .. } if usual && preset == "log-normal" => format!("onewrite, NORMAL{mark}"),
        EngineKind::Store(_) | EngineKind::Floor if usual => format!("{engine}{mark}"),
        _ => format!("{} {}{mark}", row.engine, row.preset),
    }
}

/// The workloads in a line.
fn said_of(outcome: &RunOutcome) -> String {
    let mut workloads: Vec<&str> = outcome.rows.iter().filter(|r| r.kib_per_tx.is_some()).map(|r| r.workload).collect();
    workloads.dedup();
    let described: Vec<_> = workloads.iter().filter_map(|name| outcome.parameters.workloads.get(*name)).collect();
    let before = described.first().filter(|first| {
        described.iter().all(|d| (d.preloaded_rows, d.row_bytes) == (first.preloaded_rows, first.row_bytes))
    });
    let before = before.map_or(String::new(), |d| {
        format!("; {} rows of {} B before", thousands(d.preloaded_rows as f64), d.row_bytes)
    });
    format!("{}{before}; pale: from the cheapest to the dearest", workloads.join(", "))
}

/// The marks' meaning, and how the numbers came about.
fn below(outcome: &RunOutcome, lines: &[Line]) -> Vec<String> {
    let parameters: &Parameters = &outcome.parameters;
    let mut text = Vec::new();
    if lines.iter().any(|line| !line.is_durable) {
        let more = if outcome.rows.iter().all(|row| row.of.protects()) { "" } else { ", or more than those" };
        text.push(format!("* Not durable: a power cut may take the newest commits{more}."));
    }
    let once = outcome.rows.iter().filter_map(|r| r.kib_once_per_tx).fold(0.0, f64::max);
    if once >= 0.05 {
        text.push(format!("Of onewrite's KiB up to {once:.1} come once, while its log grows."));
    }
    if outcome.rows.iter().any(|r| r.of.kind == EngineKind::Floor) {
        text.push("floor: one 4 KiB overwrite of a file with one flush, no database.".to_owned());
    }
    text.push(format!(
        "onewrite {}, SQLite {}, medians of {} runs, {}.",
        parameters.onewrite_version, parameters.sqlite_version, parameters.runs, parameters.made_at
    ));
    text.push(format!("{}.", parameters.machine.host()));
    text.push(parameters.command.clone());
    wrapped(&text)
}

/// Lines that have room in the picture.
fn wrapped(lines: &[String]) -> Vec<String> {
    let columns = (f64::from(WIDTH - 2 * MARGIN) / (SMALL * LETTER)) as usize;
    lines.iter().flat_map(|line| wrap(line, columns, 2).lines().map(str::to_owned).collect::<Vec<_>>()).collect()
}

/// With a title for readers of screens, and the colours for a dark one.
fn alone(svg: &str, title: &str) -> Result<String> {
    let (head, rest) = svg.split_once('>').context("drawing: no element")?;
    let dark: String = SHADES
        .iter()
        .map(|(RGBColor(r, g, b), dark)| format!("[fill=\"#{r:02X}{g:02X}{b:02X}\"]{{fill:{dark}}}"))
        .collect();
    Ok(format!(
        "{head} role=\"img\">\n<title>{title}</title>\n<style>@media (prefers-color-scheme: dark){{{dark}}}</style>{rest}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::rows;

    #[test]
    fn each_engine_is_a_line_from_its_cheapest_to_its_dearest() {
        let mut rows: Vec<Row> =
            rows().into_iter().filter(|r| ["insert", "update"].contains(&r.workload) && r.preset != "off").collect();
        for row in &mut rows {
            let by = if row.workload == "insert" { 2.0 } else { 1.0 };
            (row.kib_per_tx, row.flushes_per_tx) = (Some(4.04 * by), Some(1.0));
        }
        let all = lines(&rows);
        let names: Vec<&str> = all.iter().map(|line| line.name.as_str()).collect();
        for name in [
            "stock DELETE (default)",
            "stock WAL, FULL",
            "stock WAL, NORMAL *",
            "onewrite, FULL",
            "onewrite, NORMAL *",
            "floor",
        ] {
            assert!(names.contains(&name), "{names:?}");
        }
        assert!(all.iter().all(|line| spelled(line.kib) == "4 – 8.1" && spelled((1.0, 1.0)) == "1"));
        rows.iter_mut().for_each(|row| row.kib_per_tx = None);
        assert!(lines(&rows).is_empty());
    }

    #[test]
    fn a_picture_that_stands_alone_is_light_and_dark() {
        let svg = alone("<svg width=\"1\">\n<rect fill=\"#FEFEFE\"/>\n</svg>", "A title").unwrap();
        assert!(svg.starts_with("<svg width=\"1\" role=\"img\">\n<title>A title</title>"), "{svg}");
        assert!(
            svg.contains("prefers-color-scheme: dark") && svg.contains("[fill=\"#FEFEFE\"]{fill:#12161b}"),
            "{svg}"
        );
    }
}
