//! The application that `replicate --config` runs, and how it hears that it shall end.

#[cfg(unix)]
mod unix;
#[cfg(windows)]
mod windows;

#[cfg(unix)]
pub use unix::{Application, allow_files, code_of};
#[cfg(windows)]
pub use windows::{Application, allow_files, code_of};

use onewrite_replicate::ending::finish_at_signals;
use std::process::ExitStatus;
use std::sync::mpsc::{Receiver, channel};
use std::thread;

/// The end of the process, or of the application.
pub enum Ending {
    Signal,
    Application(ExitStatus),
}

/// Of a process that runs no application.
pub fn hear_alone() -> Receiver<Ending> {
    let (tell, told) = channel();
    let stopped = finish_at_signals();
    thread::spawn(move || {
        if stopped.recv().is_ok() {
            // The process may be ending by itself.
            let _ = tell.send(Ending::Signal);
        }
    });
    told
}
