//! The application that `replicate --config` runs, and how it hears that it shall end.

#[cfg(unix)]
mod unix;
#[cfg(windows)]
mod windows;

#[cfg(unix)]
pub use unix::{Application, allow_files, code_of};
#[cfg(windows)]
pub use windows::{Application, allow_files, code_of};

use anyhow::{Context, Result};
use onewrite_replicate::ending::finish_at_signals;
use onewrite_replicate::report::{Level, say};
use std::process::{Child, Command, ExitStatus};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

/// The end of the process, or of the application.
pub enum Ending {
    Signal,
    Application(ExitStatus),
}

/// Of a process that runs no application.
pub fn hear_alone() -> Receiver<Ending> {
    let (tell, told) = channel();
    tell_of_signals(tell);
    told
}

fn tell_of_signals(tell: Sender<Ending>) {
    let stopped = finish_at_signals();
    thread::spawn(move || {
        if stopped.recv().is_ok() {
            // The process may be ending by itself.
            let _ = tell.send(Ending::Signal);
        }
    });
}

/// Starts the application, and says so.
fn spawn(words: &[String]) -> Result<Child> {
    let (program, args) = words.split_first().context("exec names no program")?;
    let child = Command::new(program).args(args).spawn().with_context(|| format!("cannot run {program}"))?;
    say(Level::Info, "runs", &[("pid", child.id().into())], &format!("{program} runs, as process {}", child.id()));
    Ok(child)
}
