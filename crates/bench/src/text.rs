//! Lines of text for a terminal.

use comfy_table::{CellAlignment, Table, TableStyle};
use std::io::IsTerminal;

/// Breaks `text` at blanks so that no line is longer than `columns`, the later lines indented
/// beyond the first.
pub fn wrap(text: &str, columns: usize, indent: usize) -> String {
    let text = text.trim_end();
    let own = text.len() - text.trim_start_matches(' ').len();
    let mut out = " ".repeat(own);
    let mut width = own;
    for (i, word) in text.trim_start_matches(' ').split(' ').enumerate() {
        let n = word.chars().count();
        if i > 0 && width + 1 + n > columns {
            out.push('\n');
            out.push_str(&" ".repeat(own + indent));
            width = own + indent;
        } else if i > 0 {
            out.push(' ');
            width += 1;
        }
        out.push_str(word);
        width += n;
    }
    out
}

/// Columns of the terminal; a file has room for the widest table.
pub fn columns() -> u16 {
    if std::io::stdout().is_terminal() { comfy_table::Table::new().width().unwrap_or(80) } else { u16::MAX }
}

/// How long a line of text may be beside a table of so many columns.
pub fn line(columns: u16) -> usize {
    usize::from(columns.clamp(60, 120))
}

/// These lines, none longer than fits beside a table of so many columns.
pub fn wrapped<T: AsRef<str>>(lines: impl IntoIterator<Item = T>, columns: u16) -> String {
    lines.into_iter().map(|text| wrap(text.as_ref(), line(columns), 2) + "\n").collect()
}

/// The most characters of a line.
pub fn width(text: &str) -> usize {
    text.lines().map(|line| line.chars().count()).max().unwrap_or(0)
}

/// A table, its first column at the left and the others at the right. A row of one cell names the
/// rows below it. Columns that have no room beside the others follow in a table of their own.
pub fn table(heads: &[String], rows: &[Vec<String>], columns: u16) -> String {
    let named = rows.iter().map(Vec::as_slice).filter(|row| row.len() > 1);
    let cells = |i: usize| named.clone().chain([heads]).filter_map(move |row| row.get(i));
    let widths: Vec<usize> = (0..heads.len()).map(|i| cells(i).map(|cell| width(cell)).max().unwrap_or(0)).collect();
    let all = |gap: usize| widths.iter().sum::<usize>() + gap * (heads.len() - 1);
    let gap = if all(2) <= usize::from(columns) { 2 } else { 1 };
    let mut parts: Vec<Vec<usize>> = vec![Vec::new()];
    let mut taken = widths[0];
    for (i, width) in widths.iter().enumerate().skip(1) {
        if taken + gap + width > usize::from(columns) && parts.last().is_some_and(|part| !part.is_empty()) {
            parts.push(Vec::new());
            taken = widths[0];
        }
        taken += gap + width;
        parts.last_mut().into_iter().for_each(|part| part.push(i));
    }
    parts.iter().map(|part| drawn(heads, rows, part, gap)).collect::<Vec<_>>().join("\n\n")
}

/// The first column, and those of `part`.
fn drawn(heads: &[String], rows: &[Vec<String>], part: &[usize], gap: usize) -> String {
    let of = |cells: &[String]| -> Vec<String> {
        [0].iter().chain(part).map(|i| cells.get(*i).cloned().unwrap_or_default()).collect()
    };
    let mut t = Table::new();
    t.load_style(TableStyle::new());
    t.set_header(of(heads));
    // A name is longer than its column: it is put over the mark that is its row.
    const NAME: &str = "#";
    for row in rows {
        t.add_row(if row.len() == 1 { vec![NAME.to_owned()] } else { of(row) });
    }
    for (i, column) in t.column_iter_mut().enumerate() {
        column.set_cell_alignment(if i == 0 { CellAlignment::Left } else { CellAlignment::Right });
        column.set_padding((if i == 0 { 0 } else { gap as u16 }, 0));
    }
    let mut names = rows.iter().filter(|row| row.len() == 1).map(|row| &row[0]);
    let line = |line: String| match line.trim() {
        NAME => names.next().cloned().unwrap_or_default(),
        _ => line.trim_end().to_owned(),
    };
    t.lines().map(line).collect::<Vec<_>>().join("\n")
}

/// A whole number with commas between its thousands.
pub fn thousands(v: f64) -> String {
    let digits = format!("{v:.0}");
    let (sign, digits) = digits.strip_prefix('-').map_or(("", digits.as_str()), |rest| ("-", rest));
    let mut out = String::from(sign);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_commas() {
        assert_eq!(
            [0.4, 999.0, 1000.0, 46_096.2, -1_234_567.0].map(thousands),
            ["0", "999", "1,000", "46,096", "-1,234,567"]
        );
    }

    #[test]
    fn columns_without_room_follow_in_a_table_of_their_own() {
        let cells = |of: &[&str]| of.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        let heads = cells(&["", "re\nquests", "KiB"]);
        let rows = [cells(&["a group that is long"]), cells(&[" log", "1.00", "4.2"])];
        assert_eq!(
            table(&heads, &rows, 20),
            "          re  KiB\n      quests\na group that is long\n log    1.00  4.2"
        );
        assert_eq!(table(&heads, &rows, 15), "         re KiB\n     quests\na group that is long\n log   1.00 4.2");
        assert_eq!(
            table(&heads, &rows, 12),
            "         re\n     quests\na group that is long\n log   1.00\n\n     KiB\na group that is long\n log 4.2"
        );
    }

    #[test]
    fn wrapping() {
        assert_eq!(wrap("one two three", 7, 2), "one two\n  three");
        assert_eq!(wrap("  one two three", 9, 2), "  one two\n    three");
        assert_eq!(wrap("", 7, 2), "");
    }
}
