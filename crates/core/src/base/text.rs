//! Text for a terminal.

use std::borrow::Cow;
use std::fmt::{self, Write as _};

/// Control characters and those that reorder others are escaped, so that a file's name can neither
/// fake a line nor command the terminal.
pub fn printable(text: &str) -> Cow<'_, str> {
    if !text.contains(is_unprintable) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        if is_unprintable(c) { shown.extend(c.escape_default()) } else { shown.push(c) }
    }
    Cow::Owned(shown)
}

/// A JSON text with the same meaning, in which [`printable`] escapes nothing but line breaks
/// between values.
pub fn printable_json(json: &str) -> Cow<'_, str> {
    // JSON itself escapes those below the space.
    let is_raw = |c: char| c >= ' ' && is_unprintable(c);
    if !json.contains(is_raw) {
        return Cow::Borrowed(json);
    }
    let mut shown = String::with_capacity(json.len() + 8);
    for c in json.chars() {
        match is_raw(c) {
            // Each of them is one unit of UTF-16.
            true => shown += &format!("\\u{:04x}", u32::from(c)),
            false => shown.push(c),
        }
    }
    Cow::Owned(shown)
}

/// A value that is shown as [`printable`] shows its text: a path's `display()`, for one.
pub struct Printable<T>(pub T);

impl<T: fmt::Display> fmt::Display for Printable<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(Escaped(f), "{}", self.0)
    }
}

struct Escaped<'a, 'b>(&'a mut fmt::Formatter<'b>);

impl fmt::Write for Escaped<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.write_str(&printable(text))
    }
}

fn is_unprintable(c: char) -> bool {
    // Line and paragraph separators; direction marks, embeddings, isolates.
    c.is_control() || matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_in_json_are_escaped_as_json_has_them() {
        assert_eq!(
            printable_json("{\n \"a\\n\": \"\u{9b}\u{7f}\u{202e}\u{2028}\"}"),
            "{\n \"a\\n\": \"\\u009b\\u007f\\u202e\\u2028\"}"
        );
        assert!(matches!(printable_json("{\"Größe\": \"\\u001b\"}\n"), Cow::Borrowed(_)));
    }

    #[test]
    fn control_characters_are_escaped_and_all_else_stays() {
        assert_eq!(printable("a\nb\r\tc\0\u{1b}[2J\u{7f}\u{9b}"), "a\\nb\\r\\tc\\u{0}\\u{1b}[2J\\u{7f}\\u{9b}");
        assert_eq!(printable("x\u{202e}bd.\u{2028}"), "x\\u{202e}bd.\\u{2028}");
        assert!(matches!(printable("/srv/Größe \\ 数 'a' \"b\"?.db"), Cow::Borrowed(_)));
        assert_eq!(Printable(std::path::Path::new("a\nb").display()).to_string(), "a\\nb");
    }
}
