//! Lines of text for a terminal.

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrapping() {
        assert_eq!(wrap("one two three", 7, 2), "one two\n  three");
        assert_eq!(wrap("  one two three", 9, 2), "  one two\n    three");
        assert_eq!(wrap("", 7, 2), "");
    }
}
