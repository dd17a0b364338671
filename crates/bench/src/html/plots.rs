//! The pictures of the page, as SVG whose colours are those of the page's style sheet.

use crate::counting::blocks::BlockContent;
use crate::report::Row;
use crate::text::thousands;
use anyhow::{Result, anyhow};
use plotters::coord::Shift;
use plotters::coord::ranged1d::{AsRangedCoord, Ranged, SegmentValue, SegmentedCoord, ValueFormatter};
use plotters::coord::types::RangedCoordi32;
use plotters::prelude::*;

/// Pixels of a picture; the page scales it to its column.
pub const WIDTH: u32 = 420;
const ROW_HEIGHT: u32 = 24;
/// The room of the labels at the left, at least and at most.
const LABEL_WIDTH: (u32, u32) = (64, 216);
/// So that a letter has 10 pixels on a phone too, where the picture is smaller: the SVG divides
/// this by 1.24.
pub const FONT: (&str, u32) = ("sans-serif", 17);
/// The mean width of a letter.
const LETTER: f64 = 7.4;
/// Colours for engines in the style sheet.
pub const COLORS: usize = 12;

/// Stand-ins for variables of the style sheet: `#0102NN` in the SVG.
const fn variable(number: u8) -> RGBColor {
    RGBColor(1, 2, number)
}

pub const FOREGROUND: RGBColor = variable(100);
pub const GRID: RGBColor = variable(101);
/// Of [`BlockContent::ALL`], then of the rest in the kernel's cache.
pub const IO: [RGBColor; 6] =
    [variable(110), variable(111), variable(112), variable(113), variable(114), variable(115)];

fn engine(i: usize) -> RGBColor {
    variable((i % COLORS) as u8)
}

/// Puts the style sheet's variables in, and lets the picture have the width of its column.
fn styled(svg: String) -> String {
    let mut svg = svg;
    let names = (0..COLORS).map(|i| (engine(i), format!("--c{i}")));
    let io = IO.iter().enumerate().map(|(i, color)| (*color, format!("--io{i}")));
    let names = names.chain(io).chain([(FOREGROUND, "--fg".to_owned()), (GRID, "--grid".to_owned())]);
    for (RGBColor(r, g, b), name) in names {
        svg = svg.replace(&format!("#{r:02X}{g:02X}{b:02X}"), &format!("var({name})"));
    }
    svg
}

pub fn draw(height: u32, picture: impl FnOnce(&DrawingArea<SVGBackend<'_>, Shift>) -> Result<()>) -> Result<String> {
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, (WIDTH, height)).into_drawing_area();
        picture(&root)?;
        root.present().map_err(failed)?;
    }
    Ok(styled(svg))
}

pub fn failed(e: impl std::fmt::Display) -> anyhow::Error {
    anyhow!("drawing: {e}")
}

/// A chart on a picture.
pub type Chart<'a, X, Y> = ChartContext<'a, SVGBackend<'a>, Cartesian2d<X, Y>>;

/// The frame of a chart: its margins, its axes, and the words on them.
pub struct ChartFrame<'t, X, Y> {
    pub margin_top: u32,
    pub label_width: u32,
    /// At most so many labels, and the text of a value.
    pub x_labels: (usize, &'t dyn Fn(&X) -> String),
    pub y_labels: (usize, &'t dyn Fn(&Y) -> String),
    pub x_title: &'t str,
    /// With it come lines across the chart.
    pub y_title: Option<&'t str>,
}

impl<X, Y> ChartFrame<'_, X, Y> {
    pub fn draw<'a, AX, AY>(
        &self,
        root: &DrawingArea<SVGBackend<'a>, Shift>,
        x_axis: AX,
        y_axis: AY,
    ) -> Result<Chart<'a, AX::CoordDescType, AY::CoordDescType>>
    where
        AX: AsRangedCoord<Value = X>,
        AY: AsRangedCoord<Value = Y>,
        AX::CoordDescType: Ranged<ValueType = X> + ValueFormatter<X>,
        AY::CoordDescType: Ranged<ValueType = Y> + ValueFormatter<Y>,
    {
        let mut chart = ChartBuilder::on(root)
            .margin_right(24)
            .margin_top(self.margin_top)
            .x_label_area_size(50)
            .y_label_area_size(self.label_width)
            .build_cartesian_2d(x_axis, y_axis)
            .map_err(failed)?;
        let mut mesh = chart.configure_mesh();
        match self.y_title {
            Some(title) => mesh.y_desc(title),
            None => mesh.disable_y_mesh(),
        };
        mesh.bold_line_style(GRID)
            .light_line_style(TRANSPARENT)
            .axis_style(GRID)
            .label_style(FONT.into_font().color(&FOREGROUND))
            .x_labels(self.x_labels.0)
            .y_labels(self.y_labels.0)
            .x_label_formatter(self.x_labels.1)
            .y_label_formatter(self.y_labels.1)
            .x_desc(self.x_title)
            .draw()
            .map_err(failed)?;
        Ok(chart)
    }
}

/// A chart with a line for each label, from the top.
fn by_lines<X>(
    labels: &[String],
    (axis, ticks): (X, usize),
    unit: &str,
    paint: impl FnOnce(&mut Chart<'_, X::CoordDescType, SegmentedCoord<RangedCoordi32>>) -> Result<()>,
) -> Result<String>
where
    X: AsRangedCoord<Value = f64>,
    X::CoordDescType: Ranged<ValueType = f64> + ValueFormatter<f64>,
{
    let n = labels.len() as i32;
    let longest = labels.iter().map(|l| l.chars().count()).max().unwrap_or(0) as f64;
    let label_width = (longest * LETTER + 16.0).ceil() as u32;
    draw(ROW_HEIGHT * labels.len() as u32 + 60, |root| {
        let frame = ChartFrame {
            margin_top: 4,
            label_width: label_width.clamp(LABEL_WIDTH.0, LABEL_WIDTH.1),
            x_labels: (ticks, &|v: &f64| short(*v)),
            y_labels: (labels.len() + 1, &|v: &SegmentValue<i32>| named(v, labels)),
            x_title: unit,
            y_title: None,
        };
        paint(&mut frame.draw(root, axis, (0..n - 1).into_segmented())?)
    })
}

/// The place of the `i`th label of `n`.
fn place(i: usize, n: usize) -> i32 {
    n as i32 - 1 - i as i32
}

/// The label of a place.
fn named(v: &SegmentValue<i32>, labels: &[String]) -> String {
    match v {
        SegmentValue::CenterOf(at) => {
            let from_top = usize::try_from(labels.len() as i32 - 1 - at).ok();
            from_top.and_then(|i| labels.get(i)).cloned().unwrap_or_default()
        }
        _ => String::new(),
    }
}

/// A horizontal bar for each label: its parts, and the values to mark on it.
struct Bar {
    label: String,
    parts: Vec<(f64, RGBColor)>,
    marks: Vec<f64>,
}

fn bars(bars: &[Bar], unit: &str) -> Result<String> {
    let longest = bars
        .iter()
        .map(|b| b.parts.iter().map(|(v, _)| v).sum::<f64>().max(b.marks.iter().copied().fold(0.0, f64::max)));
    let (end, ticks) = nice_end(longest.fold(0.0, f64::max));
    let labels: Vec<String> = bars.iter().map(|b| b.label.clone()).collect();
    by_lines(&labels, (0.0..end, ticks), unit, |chart| {
        for (i, bar) in bars.iter().enumerate() {
            let at = place(i, bars.len());
            let (low, high) = (SegmentValue::Exact(at), SegmentValue::Exact(at + 1));
            let mut from = 0.0;
            for (value, color) in bar.parts.iter().filter(|(value, _)| *value > 0.0) {
                let mut part = Rectangle::new([(from, low.clone()), (from + value, high.clone())], color.filled());
                part.set_margin(4, 4, 0, 0);
                chart.draw_series([part]).map_err(failed)?;
                from += value;
            }
            let center = SegmentValue::CenterOf(at);
            let mark = |v: &f64| Circle::new((*v, center.clone()), 2, FOREGROUND.filled());
            chart.draw_series(bar.marks.iter().map(mark)).map_err(failed)?;
            if let (Some(low), Some(high)) =
                (bar.marks.iter().copied().reduce(f64::min), bar.marks.iter().copied().reduce(f64::max))
            {
                let line = [(low, center.clone()), (high, center.clone())];
                chart.draw_series([PathElement::new(line, FOREGROUND.stroke_width(1))]).map_err(failed)?;
            }
        }
        Ok(())
    })
}

/// The end of an axis from 0 on: a tick at or beyond `most`. And how many ticks there are.
pub fn nice_end(most: f64) -> (f64, usize) {
    let most = most.max(1e-9);
    let power = 10f64.powf((most / 4.0).log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].map(|n| n * power).into_iter().find(|step| most / step <= 4.0);
    let step = step.unwrap_or(10.0 * power);
    let n = (most / step).ceil().max(1.0);
    (n * step, n as usize + 1)
}

/// Powers of ten around these, so that an axis by factors ends with one.
fn decades(low: f64, high: f64) -> std::ops::Range<f64> {
    10f64.powf(low.log10().floor())..10f64.powf(high.log10().ceil())
}

/// Numbers of an axis: `1,500`, `12k`, `0.5`.
pub fn short(v: f64) -> String {
    if v >= 10_000.0 {
        format!("{}k", thousands(v / 1000.0))
    } else if v >= 10.0 || v == v.trunc() {
        thousands(v)
    } else {
        format!("{v:.2}").trim_end_matches('0').trim_end_matches('.').to_owned()
    }
}

/// From here on a linear axis would hide the slow ones.
const FACTOR_MAX: f64 = 20.0;

/// A line of a picture: a median, and the runs behind it.
pub struct MeasuredLine {
    pub label: String,
    /// Its number in the style sheet.
    pub color: usize,
    pub median: f64,
    pub runs: Vec<f64>,
}

/// Medians as bars with a dot for each run. Where the greatest would dwarf the others, they are
/// large dots on an axis by factors.
pub fn medians(lines: &[MeasuredLine], unit: &str) -> Result<String> {
    let all: Vec<f64> = lines.iter().flat_map(|l| l.runs.iter().copied().chain([l.median])).collect();
    let low = all.iter().copied().reduce(f64::min).unwrap_or(1.0);
    let high = all.iter().copied().reduce(f64::max).unwrap_or(1.0);
    if low > 0.0 && high / low > FACTOR_MAX {
        return dots(lines, &format!("{unit}, log axis"), decades(low, high));
    }
    let bar = |line: &MeasuredLine| Bar {
        label: line.label.clone(),
        parts: vec![(line.median, engine(line.color))],
        marks: line.runs.clone(),
    };
    bars(&lines.iter().map(bar).collect::<Vec<_>>(), unit)
}

fn dots(lines: &[MeasuredLine], unit: &str, range: std::ops::Range<f64>) -> Result<String> {
    let labels: Vec<String> = lines.iter().map(|l| l.label.clone()).collect();
    by_lines(&labels, (range.log_scale(), 6), unit, |chart| {
        for (i, line) in lines.iter().enumerate() {
            let center = SegmentValue::CenterOf(place(i, lines.len()));
            let runs = line.runs.iter().map(|v| (*v, center.clone()));
            let path = PathElement::new(runs.clone().collect::<Vec<_>>(), FOREGROUND.stroke_width(1));
            chart
                .draw_series([Circle::new((line.median, center.clone()), 6, engine(line.color).filled())])
                .map_err(failed)?;
            chart.draw_series([path]).map_err(failed)?;
            chart.draw_series(runs.map(|at| Circle::new(at, 2, FOREGROUND.filled()))).map_err(failed)?;
        }
        Ok(())
    })
}

pub fn throughput(rows: &[&Row], label: impl Fn(&Row) -> String) -> Result<String> {
    let line = |(color, row): (usize, &&Row)| MeasuredLine {
        label: label(row),
        color,
        median: row.tx_per_s,
        runs: row.tx_per_s_runs.clone(),
    };
    medians(&rows.iter().enumerate().map(line).collect::<Vec<_>>(), "transactions per second")
}

/// Parts of a whole as one bar for each label, coloured as [`IO`].
pub fn stacked(lines: &[(String, Vec<f64>)], unit: &str) -> Result<String> {
    let bar = |(label, parts): &(String, Vec<f64>)| Bar {
        label: label.clone(),
        parts: parts.iter().copied().zip(IO).collect(),
        marks: Vec::new(),
    };
    bars(&lines.iter().map(bar).collect::<Vec<_>>(), unit)
}

/// Characters of all labels below a picture that fit beside each other.
const CHARACTERS: usize = 48;

/// Labels that fit beside each other. Else the first word of each is three letters long, and is
/// left out where the one before has the same. Where even that has no room, the word stands alone.
fn fitting(points: &[&str]) -> Vec<String> {
    if points.iter().map(|p| p.len() + 2).sum::<usize>() <= CHARACTERS {
        return points.iter().map(|p| (*p).to_owned()).collect();
    }
    let step = CHARACTERS as f64 / (points.len().max(3) - 1) as f64;
    let mut names: Vec<String> = Vec::new();
    for (i, point) in points.iter().enumerate() {
        let (first, rest) = point.split_once(' ').unwrap_or(("", point));
        let word: String = first.chars().take(3).collect();
        let is_same = i > 0 && points[i - 1].split_once(' ').is_some_and(|(before, _)| before == first);
        let before = names.last().map_or(0, String::len);
        let both = format!("{word} {rest}");
        names.push(match is_same || first.is_empty() {
            true => rest.to_owned(),
            false if ((before + both.len()) as f64) < 2.0 * step - 1.0 => both,
            false => word,
        });
    }
    names
}

/// A line for each series over points that have names; missing values are left out.
pub fn over_points(series: &[Vec<Option<f64>>], points: &[&str], (x_title, y_title): (&str, &str)) -> Result<String> {
    let values = || series.iter().flatten().flatten().copied();
    let (high, ticks) = nice_end(values().fold(0.0, f64::max));
    let names = fitting(points);
    draw(290, |root| {
        let name = |i: &i32| usize::try_from(*i).ok().and_then(|i| names.get(i)).cloned().unwrap_or_default();
        let frame = ChartFrame {
            margin_top: 12,
            label_width: 72,
            x_labels: (points.len(), &name),
            y_labels: (ticks, &|v: &f64| short(*v)),
            x_title,
            y_title: Some(y_title),
        };
        let mut chart = frame.draw(root, 0..points.len().max(2) as i32 - 1, 0.0..high)?;
        for (i, line) in series.iter().enumerate() {
            let at: Vec<(i32, f64)> = line.iter().enumerate().filter_map(|(x, y)| Some((x as i32, (*y)?))).collect();
            let marks = at.iter().map(|at| Circle::new(*at, 3, engine(i).filled()));
            chart.draw_series(marks).map_err(failed)?;
            chart.draw_series([PathElement::new(at, engine(i).stroke_width(2))]).map_err(failed)?;
        }
        Ok(())
    })
}

/// The origin of the bytes in [`volume`]: one picture has one meaning of them.
#[derive(Clone, Copy, PartialEq, Eq)]
enum VolumeOrigin {
    /// Of the block trace, by their place.
    Traced,
    /// Of the device, with those that come once apart.
    Device,
    /// Of write calls, where the device does not count.
    Calls,
}

impl VolumeOrigin {
    fn of(rows: &[&Row]) -> VolumeOrigin {
        match rows {
            _ if rows.iter().any(|r| r.blocks.is_some()) => VolumeOrigin::Traced,
            _ if rows.iter().any(|r| r.kib_per_tx.is_some()) => VolumeOrigin::Device,
            _ => VolumeOrigin::Calls,
        }
    }
}

pub fn volume_title(rows: &[&Row]) -> &'static str {
    match VolumeOrigin::of(rows) {
        VolumeOrigin::Traced | VolumeOrigin::Device => "KiB that reached the device",
        VolumeOrigin::Calls => "KiB handed to the kernel by write calls",
    }
}

/// The names of the parts of [`volume`], in their colours' order.
pub fn volume_parts(rows: &[&Row]) -> Vec<(usize, &'static str)> {
    let is_grown = || rows.iter().any(|r| r.kib_once_per_tx.is_some_and(|kib| kib > 0.0));
    match VolumeOrigin::of(rows) {
        VolumeOrigin::Traced => {
            let used = |i: usize| rows.iter().filter_map(|r| r.blocks).any(|b| b.kib()[i] > 0.0);
            let names = BlockContent::ALL
                .map(BlockContent::name)
                .into_iter()
                .chain(["left in the kernel's cache, written later"]);
            names.enumerate().filter(|(i, _)| used(*i)).collect()
        }
        VolumeOrigin::Device if is_grown() => vec![(0, "by each commit"), (1, "once, for a log that grows")],
        VolumeOrigin::Device => vec![(0, "all files, journal of the file system included")],
        VolumeOrigin::Calls => vec![(0, "database"), (1, "journal or log")],
    }
}

/// Bytes per transaction. `None` where nothing is known.
pub fn volume(rows: &[&Row], label: impl Fn(&Row) -> String) -> Result<Option<String>> {
    let bytes = VolumeOrigin::of(rows);
    let bar = |row: &&Row| {
        let parts = match bytes {
            VolumeOrigin::Traced => row.blocks?.kib().into_iter().zip(IO).collect(),
            VolumeOrigin::Device => {
                let (kib, once) = (row.kib_per_tx?, row.kib_once_per_tx.unwrap_or(0.0));
                [(kib - once).max(0.0), once.min(kib)].into_iter().zip(IO).collect()
            }
            VolumeOrigin::Calls => {
                let (database, log) = row.kib_database_per_tx.zip(row.kib_log_per_tx)?;
                [database, log].into_iter().zip(IO).collect()
            }
        };
        Some(Bar { label: label(row), parts, marks: Vec::new() })
    };
    let found: Vec<Bar> = rows.iter().filter_map(bar).collect();
    if found.is_empty() { Ok(None) } else { bars(&found, "KiB per transaction").map(Some) }
}

/// The share of transactions that took no longer, with the tail drawn out: each step up is a tenth
/// of the rest.
pub fn latency(rows: &[&Row]) -> Result<String> {
    let points = |row: &Row| -> Vec<(f64, f64)> {
        row.latency_us_cdf.iter().map(|(us, share)| (us.max(0.1), -(1.0 - share).max(1e-4).log10())).collect()
    };
    let all: Vec<f64> = rows.iter().flat_map(|row| points(row).into_iter().map(|(us, _)| us)).collect();
    let low = all.iter().copied().reduce(f64::min).unwrap_or(1.0);
    let high = all.iter().copied().reduce(f64::max).unwrap_or(10.0);
    draw(290, |root| {
        let share = |v: &f64| match v.round() as i64 {
            0 => "0".to_owned(),
            1 => "90 %".to_owned(),
            2 => "99 %".to_owned(),
            nines => format!("99.{} %", "9".repeat((nines - 2) as usize)),
        };
        let frame = ChartFrame {
            margin_top: 12,
            label_width: 88,
            x_labels: (6, &|v: &f64| short(*v)),
            y_labels: (5, &share),
            x_title: "latency in µs, log axis",
            y_title: Some("share no slower, log of the rest"),
        };
        let mut chart = frame.draw(root, decades(low, high).log_scale(), 0.0..4.0)?;
        for (i, row) in rows.iter().enumerate() {
            chart.draw_series([PathElement::new(points(row), engine(i).stroke_width(2))]).map_err(failed)?;
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::rows;

    #[test]
    fn lines_go_over_the_points_they_have() {
        let svg =
            over_points(&[vec![Some(1.0), None, Some(3.0)], vec![None; 3]], &["a", "bb", "ccc"], ("x", "y")).unwrap();
        for word in ["bb", "ccc", "var(--c0)"] {
            assert!(svg.contains(word), "{word} is missing in {svg}");
        }
        assert_eq!(svg.matches("<circle").count(), 2, "{svg}");
    }

    #[test]
    fn an_axis_ends_with_a_tick_beyond_the_last_point() {
        for (most, end) in [(0.9, 1.0), (1.0, 1.0), (3.3, 4.0), (46.0, 60.0), (57_002.0, 60_000.0), (81.0, 100.0)] {
            let (found, ticks) = nice_end(most);
            assert!((found - end).abs() < 1e-9 && (2..=6).contains(&ticks), "{most}: {found}, {ticks} ticks");
        }
        assert_eq!(decades(150.0, 57_002.0), 100.0..100_000.0);
        assert_eq!([short(1500.0), short(12_000.0), short(1_200_000.0), short(0.5)], ["1,500", "12k", "1,200k", "0.5"]);
        assert_eq!([short(0.001), short(2.999)], ["0", "3"]);
    }

    #[test]
    fn the_volume_has_one_meaning_of_bytes() {
        let mut rows = rows();
        rows.retain(|r| r.workload == "insert" && ["log", "wal-full"].contains(&r.preset.as_str()));
        rows.iter_mut().for_each(|row| row.blocks = None);
        let label = |row: &Row| row.preset.clone();
        let of = |rows: &[Row]| {
            let some: Vec<&Row> = rows.iter().collect();
            (volume_title(&some), volume_parts(&some).len(), volume(&some, label).unwrap().unwrap())
        };
        let (title, parts, svg) = of(&rows);
        assert!(title.contains("reached the device") && parts == 2 && svg.contains("var(--io1)"), "{svg}");
        rows.iter_mut().for_each(|row| row.kib_per_tx = None);
        assert!(of(&rows).0.contains("write calls"));
    }

    #[test]
    fn labels_that_would_overlap_say_their_word_once() {
        assert_eq!(fitting(&["insert 1", "insert 2"]), ["insert 1", "insert 2"]);
        let many = ["insert 1", "insert 2", "insert 4", "update 1", "update 2", "update 4", "delete 1", "delete 16"];
        assert_eq!(fitting(&many), ["ins 1", "2", "4", "upd 1", "2", "4", "del 1", "16"]);
        let more = ["insert", "update", "delete"].map(|word| [1, 2, 4, 8, 16].map(|n| format!("{word} {n}")));
        let more: Vec<&str> = more.iter().flatten().map(String::as_str).collect();
        assert_eq!(fitting(&more)[..7], ["ins 1", "2", "4", "8", "16", "upd", "2"]);
    }

    #[test]
    fn pictures_have_the_colours_of_the_page_and_their_labels() {
        let rows = rows();
        let some: Vec<&Row> = rows.iter().take(3).collect();
        let label = |row: &Row| format!("{} {}", row.engine, row.preset);
        let pictures =
            [throughput(&some, label).unwrap(), volume(&some, label).unwrap().unwrap(), latency(&some).unwrap()];
        for svg in &pictures {
            assert!(svg.contains("var(--fg)") && !svg.contains("#0102"), "{svg}");
        }
        assert!(pictures[0].contains("stock truncate") && pictures[0].contains("var(--c2)"));
        // The rest in the cache is drawn, zero is not.
        assert!(pictures[1].contains("var(--io1)") && pictures[1].contains("var(--io5)"));
        assert!(!pictures[1].contains("var(--io3)"));
        assert_eq!(volume_parts(&some).iter().map(|(i, _)| *i).collect::<Vec<_>>(), [0, 1, 2, 4, 5]);
        for axis in ["latency in µs, log axis", "share no slower", "KiB per transaction", "transactions per second"] {
            assert!(pictures.iter().any(|p| p.contains(axis)), "{axis}");
        }
        for share in ["90 %", "99 %", "99.9 %", "99.99 %"] {
            assert!(pictures[2].contains(share), "{share} is missing in {}", pictures[2]);
        }
    }
}
