//! Windows: the console tells both processes of Ctrl-C.

use super::{Ending, spawn, tell_of_signals};
use anyhow::{Context, Result};
use onewrite_replicate::ending::end_at_signals;
use std::process::ExitStatus;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

/// The status that this process ends with behind the application.
pub fn code_of(status: ExitStatus) -> u8 {
    status.code().map_or(1, |code| u8::try_from(code).unwrap_or(1))
}

/// There is no limit to raise.
pub fn allow_files() {}

/// The application that ends with this process, or this process with it.
#[derive(Default)]
pub struct Application {
    tell: Option<Sender<Ending>>,
}

impl Application {
    /// Ctrl-C ends this process, before the application runs or with it.
    pub fn hear(&mut self) -> Result<Receiver<Ending>> {
        let (tell, told) = channel();
        end_at_signals()?;
        tell_of_signals(tell.clone());
        self.tell = Some(tell);
        Ok(told)
    }

    pub fn start(&self, words: &[String]) -> Result<()> {
        let mut child = spawn(words)?;
        let tell = self.tell.clone().context("signals are not heard")?;
        thread::spawn(move || {
            if let Ok(status) = child.wait() {
                let _ = tell.send(Ending::Application(status));
            }
        });
        Ok(())
    }
}
