//! The block trace as a picture: addresses over time, a band for each part of the device, flushes
//! below.

use super::plots::{ChartFrame, FONT, FOREGROUND, GRID, IO, draw, failed, nice_end, short};
use crate::counting::blocks::{BlockContent, Blocks};
use anyhow::Result;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use std::collections::{BTreeMap, BTreeSet};

const BAND_HEIGHT: i32 = 46;
const FLUSH_HEIGHT: i32 = 16;
const LABEL_WIDTH: u32 = 124;
/// A mark is a square of so many pixels; requests in the same square are one mark.
const MARK: i32 = 2;

/// A band: its part, and the least and the greatest address written there.
struct Band {
    part: BlockContent,
    low: u64,
    high: u64,
}

/// The writes among the requests, each with the time of its arrival.
fn writes(blocks: &Blocks) -> impl Iterator<Item = (u64, (u64, u64, BlockContent))> {
    blocks.requests.iter().filter_map(|r| Some((r.at_us, r.write?)))
}

fn bands(blocks: &Blocks) -> Vec<Band> {
    let band = |part| {
        let of = || writes(blocks).filter(move |(_, (.., p))| *p == part);
        let low = of().map(|(_, (offset, ..))| offset).min()?;
        let high = of().map(|(_, (offset, len, _))| offset + len).max()?;
        Some(Band { part, low, high })
    };
    BlockContent::ALL.into_iter().filter_map(band).collect()
}

/// The picture; `None` of nothing.
pub fn addresses(blocks: &Blocks) -> Result<Option<String>> {
    let bands = bands(blocks);
    let Some(end_us) = blocks.requests.iter().map(|r| r.at_us).max() else { return Ok(None) };
    let (unit, per_us) = if end_us > 2_000_000 { ("seconds", 1e-6) } else { ("milliseconds", 1e-3) };
    let (end, ticks) = nice_end(end_us.max(1) as f64 * per_us);
    let height = bands.len() as i32 * BAND_HEIGHT + FLUSH_HEIGHT;
    let label = FONT.into_font().color(&FOREGROUND);
    let svg = draw(height as u32 + 52, |root| {
        let title = format!("{unit} since the first request");
        let frame = ChartFrame {
            margin_top: 4,
            label_width: LABEL_WIDTH,
            x_labels: (ticks, &|v: &f64| short(*v)),
            y_labels: (0, &|_: &f64| String::new()),
            x_title: &title,
            y_title: None,
        };
        let mut chart = frame.draw(root, 0.0..end, f64::from(height)..0.0)?;
        let (left, top) = chart.plotting_area().map_coordinate(&(0.0, 0.0));
        let text = |at: i32, text: &str| {
            let style = label.pos(Pos::new(HPos::Right, VPos::Center));
            root.draw(&Text::new(text.to_owned(), (left - 8, top + at), style)).map_err(failed)
        };
        for (i, band) in bands.iter().enumerate() {
            let from = i as i32 * BAND_HEIGHT;
            text(from + BAND_HEIGHT / 2 - 8, band.part.name())?;
            text(from + BAND_HEIGHT / 2 + 8, &size(band.high - band.low))?;
            let line = from + BAND_HEIGHT;
            let across = [(0.0, f64::from(line)), (end, f64::from(line))];
            chart.draw_series([PathElement::new(across, GRID.stroke_width(1))]).map_err(failed)?;
        }
        text(bands.len() as i32 * BAND_HEIGHT + FLUSH_HEIGHT / 2, "flushes")?;
        // Rows of squares of one colour, by their place from the left.
        let mut marks: BTreeMap<(i32, u8), BTreeSet<i32>> = BTreeMap::new();
        let column = |at_us: u64| (chart.plotting_area().map_coordinate(&(at_us as f64 * per_us, 0.0)).0 - left) / MARK;
        for (at_us, (offset, len, part)) in writes(blocks) {
            let Some(i) = bands.iter().position(|b| b.part == part) else { continue };
            let band = &bands[i];
            // Lowest address below; a little of the band stays free on both sides.
            let room = f64::from(BAND_HEIGHT - 4 * MARK);
            let y = |address: u64| {
                let share = (address - band.low) as f64 / (band.high - band.low).max(1) as f64;
                (i as i32 + 1) * BAND_HEIGHT - 2 * MARK - (share * room) as i32
            };
            for row in y(offset + len) / MARK..=(y(offset) / MARK).max(y(offset + len) / MARK) {
                marks.entry((row, part as u8)).or_default().insert(column(at_us));
            }
        }
        let square = |row: i32, columns: std::ops::Range<i32>, height: i32, color: RGBColor| {
            let at = |column: i32, down: i32| (left + column * MARK, top + row * MARK + down);
            root.draw(&Rectangle::new([at(columns.start, 0), at(columns.end, height)], color.filled())).map_err(failed)
        };
        for ((row, part), columns) in &marks {
            for run in runs(columns) {
                square(*row, run, MARK, IO[usize::from(*part)])?;
            }
        }
        let flushes: BTreeSet<i32> =
            blocks.requests.iter().filter(|r| r.write.is_none()).map(|r| column(r.at_us)).collect();
        let row = bands.len() as i32 * BAND_HEIGHT / MARK + 2;
        for run in runs(&flushes) {
            square(row, run, FLUSH_HEIGHT - 4 * MARK, FOREGROUND)?;
        }
        Ok(())
    })?;
    Ok(Some(svg))
}

/// Numbers that follow each other, together.
fn runs(numbers: &BTreeSet<i32>) -> Vec<std::ops::Range<i32>> {
    let mut runs: Vec<std::ops::Range<i32>> = Vec::new();
    for n in numbers {
        match runs.last_mut() {
            Some(last) if last.end == *n => last.end += 1,
            _ => runs.push(*n..*n + 1),
        }
    }
    runs
}

fn size(bytes: u64) -> String {
    let kib = bytes as f64 / 1024.0;
    if kib < 1024.0 { format!("{kib:.0} KiB") } else { format!("{:.1} MiB", kib / 1024.0) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::counting::blocks::BlockRequest;

    #[test]
    fn every_part_and_the_flushes_are_drawn() {
        let request = |at_us, write| BlockRequest { at_us, write };
        let mut requests = vec![request(0, Some((0, 4096, BlockContent::Database))), request(10, None)];
        for i in 0..100 {
            requests.push(request(i * 1000, Some(((256 + i) * 4096, 4096, BlockContent::Log))));
        }
        let blocks = Blocks { requests, ..Blocks::default() };
        let svg = addresses(&blocks).unwrap().unwrap();
        for word in
            ["database", "4 KiB", "journal or log", "400 KiB", "flushes", "milliseconds", "var(--io0)", "var(--io1)"]
        {
            assert!(svg.contains(word), "{word} is missing in {svg}");
        }
        assert!(!svg.contains("fs metadata"));
        assert!(addresses(&Blocks::default()).unwrap().is_none());
        assert_eq!(runs(&[1, 2, 5].into()), [1..3, 5..6]);
    }
}
