//! A log of errors that needs no program's help: lines to the place that `ONEWRITE_LOG` names.
//!
//! The log neither delays nor kills the program: a line is dropped if its reader has no room for
//! it.

use std::ffi::c_int;
use std::path::Path;
use std::sync::OnceLock;
use std::time::{SystemTime, UNIX_EPOCH};

use onewrite_core::environment;
use onewrite_core::text::printable;

use super::sink::LogSink;

/// Environment variable that says where errors are told besides SQLite's own error log: `stderr`,
/// or the name of a file to append to.
pub const LOG_VARIABLE: &str = "ONEWRITE_LOG";

/// Bytes of a line: as many as a pipe that has room takes whole.
const LINE_BYTES_MAX: usize = 4096;

/// Writes one line: seconds since 1970, process, SQLite's code, message.
pub(crate) fn line(code: c_int, message: &str) {
    static PLACE: OnceLock<Option<LogSink>> = OnceLock::new();
    if let Some(sink) = PLACE.get_or_init(place) {
        write(sink, &stamped(code, message));
    }
}

fn stamped(code: c_int, message: &str) -> String {
    let (seconds, pid) = (SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default(), std::process::id());
    format!("{}.{:03} [{pid}] ({code}) {message}", seconds.as_secs(), seconds.subsec_millis())
}

/// Writes a line with one call, so that lines of several processes stay whole. A log that cannot be
/// written stops nothing.
fn write(sink: &LogSink, text: &str) {
    let mut line = printable(text).into_owned();
    line.truncate((0..LINE_BYTES_MAX).rev().find(|&len| line.is_char_boundary(len)).unwrap_or(0));
    line.push('\n');
    sink.write(line.as_bytes());
}

fn place() -> Option<LogSink> {
    let name = environment::variable(LOG_VARIABLE).filter(|name| !name.is_empty())?;
    if name == "stderr" {
        return Some(LogSink::standard_error());
    }
    Some(LogSink::open(Path::new(&name)).unwrap_or_else(|e| {
        let choices = "the choices are stderr and a file to append to";
        let sink = LogSink::standard_error();
        write(&sink, &format!("onewrite: {LOG_VARIABLE}={}: {e}; {choices}", name.to_string_lossy()));
        sink
    }))
}
