//! Answers of commands: JSON on one line, and the time that the work took.

use anyhow::{Context, Result};
use onewrite_core::text::printable_json;
use serde_json::{Value, json};
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

/// When the work began.
pub struct Clock(Instant);

impl Clock {
    pub fn start() -> Clock {
        Clock(Instant::now())
    }

    /// Seconds since then, to a hundredth.
    pub fn seconds(&self) -> f64 {
        (self.0.elapsed().as_secs_f64() * 100.0).round() / 100.0
    }

    /// The end of a line about the work.
    pub fn took(&self) -> String {
        took(self.0.elapsed())
    }
}

/// Shorter work leaves its time out, so that the same work prints the same line.
const LONG: Duration = Duration::from_secs(1);

fn took(time: Duration) -> String {
    if time < LONG { String::new() } else { format!(". Took {:.1} s", time.as_secs_f64()) }
}

/// One line of JSON.
pub fn json_line(value: &Value) -> String {
    format!("{}\n", printable_json(&value.to_string()))
}

/// Prints one line of JSON on standard output.
pub fn print_json(value: &Value) -> Result<()> {
    std::io::stdout().lock().write_all(json_line(value).as_bytes()).context("printing")
}

/// The object of a command that could not do its work on `file`.
pub fn failed(file: &Path, error: &anyhow::Error) -> Value {
    json!({ "file": file.to_string_lossy(), "status": 1, "error": format!("{error:#}") })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_work_says_how_long_it_was() {
        assert_eq!(took(Duration::from_millis(999)), "");
        assert_eq!(took(Duration::from_millis(12_340)), ". Took 12.3 s");
    }
}
