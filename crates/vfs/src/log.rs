//! A log of errors that needs no program's help: lines to the place that `ONEWRITE_LOG` names.

use std::ffi::c_int;
use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::sync::OnceLock;
use std::time::{SystemTime, UNIX_EPOCH};

/// Environment variable that says where errors are told besides SQLite's own error log: `stderr`, or the name of a
/// file to append to.
pub const LOG_VARIABLE: &str = "ONEWRITE_LOG";

enum Place {
    Nowhere,
    StandardError,
    File(File),
}

/// Writes one line: seconds since 1970, process, SQLite's code, message.
pub(crate) fn line(code: c_int, message: &str) {
    static PLACE: OnceLock<Place> = OnceLock::new();
    let place = PLACE.get_or_init(place);
    if matches!(place, Place::Nowhere) {
        return;
    }
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let pid = std::process::id();
    let text = format!("{}.{:03} [{pid}] ({code}) {message}\n", seconds.as_secs(), seconds.subsec_millis());
    // One write a line, so that lines of several processes stay whole. A log that cannot be written stops nothing.
    let _ = match place {
        Place::Nowhere => Ok(()),
        Place::StandardError => std::io::stderr().write_all(text.as_bytes()),
        Place::File(file) => { file }.write_all(text.as_bytes()),
    };
}

fn place() -> Place {
    let Some(name) = std::env::var_os(LOG_VARIABLE).filter(|name| !name.is_empty()) else { return Place::Nowhere };
    if name == "stderr" {
        return Place::StandardError;
    }
    match OpenOptions::new().append(true).create(true).open(&name) {
        Ok(file) => Place::File(file),
        Err(e) => {
            let name = name.to_string_lossy();
            let _ = writeln!(
                std::io::stderr(),
                "onewrite: {LOG_VARIABLE}={name}: {e}; the choices are stderr and a file to append to"
            );
            Place::StandardError
        }
    }
}
