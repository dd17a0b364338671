//! Where lines of the log go, on Windows.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;

pub(crate) enum LogSink {
    StandardError,
    File(File),
}

impl LogSink {
    pub fn standard_error() -> LogSink {
        LogSink::StandardError
    }

    pub fn open(path: &Path) -> io::Result<LogSink> {
        Ok(LogSink::File(OpenOptions::new().append(true).create(true).open(path)?))
    }

    pub fn write(&self, line: &[u8]) {
        let _lost = match self {
            LogSink::StandardError => io::stderr().write(line),
            LogSink::File(file) => (&*file).write(line),
        };
    }
}
