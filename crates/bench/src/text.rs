//! Lines of text for a terminal.

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
    fn wrapping() {
        assert_eq!(wrap("one two three", 7, 2), "one two\n  three");
        assert_eq!(wrap("  one two three", 9, 2), "  one two\n    three");
        assert_eq!(wrap("", 7, 2), "");
    }
}
