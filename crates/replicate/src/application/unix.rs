//! POSIX: signals are passed on to the application.

use super::{Ending, spawn};
use anyhow::{Context, Result, ensure};
use onewrite_replicate::local::locked;
use rustix::process::{
    Pid, Resource, Rlimit, Signal, WaitId, WaitIdOptions, getrlimit, kill_process, setrlimit, waitid,
};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::Signals;
use std::io::{IsTerminal, stdin};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ExitStatus};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;

/// A shell's status for a signal, without its number.
const BY_SIGNAL: u8 = 128;

/// The status that this process ends with behind the application.
pub fn code_of(status: ExitStatus) -> u8 {
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    let by_signal = || status.signal().and_then(|signal| u8::try_from(signal).ok()).unwrap_or(0);
    code.unwrap_or_else(|| BY_SIGNAL.saturating_add(by_signal()))
}

/// Each database has up to three files open: as many are allowed as can be.
pub fn allow_files() {
    let limit = getrlimit(Resource::Nofile);
    // A smaller limit is told of by the database that finds it.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
}

/// The application that ends with this process, or this process with it.
#[derive(Default)]
pub struct Application {
    /// While it runs, and is not waited for.
    pid: Arc<Mutex<Option<Pid>>>,
    tell: Option<Sender<Ending>>,
}

impl Application {
    /// Passes signals on from now on; before the application runs, one ends this process.
    pub fn hear(&mut self) -> Result<Receiver<Ending>> {
        let (tell, told) = channel();
        let all = [SIGTERM, SIGINT, SIGQUIT, SIGHUP, SIGUSR1, SIGUSR2];
        let mut signals = Signals::new(all).context("cannot wait for signals")?;
        let (pid, to_end) = (self.pid.clone(), tell.clone());
        thread::spawn(move || {
            for signal in signals.forever() {
                // Held, so that the number is not another process's yet.
                let running = locked(&pid);
                let Some(pid) = *running else {
                    if [SIGTERM, SIGINT, SIGQUIT].contains(&signal) {
                        let _ = to_end.send(Ending::Signal);
                    }
                    continue;
                };
                // A terminal sends these to the application, too.
                let by_terminal = [SIGINT, SIGQUIT].contains(&signal) && stdin().is_terminal();
                if let Some(signal) = Signal::from_named_raw(signal).filter(|_| !by_terminal) {
                    // It may have ended just now.
                    let _ = kill_process(pid, signal);
                }
            }
        });
        self.tell = Some(tell);
        Ok(told)
    }

    pub fn start(&self, words: &[String]) -> Result<()> {
        let mut running = locked(&self.pid);
        let mut child = spawn(words)?;
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        *running = pid;
        drop(running);
        let tell = self.tell.clone().context("signals are not heard")?;
        let number = self.pid.clone();
        ensure!(pid.is_some(), "the application has no number");
        thread::spawn(move || {
            if let Ok(status) = wait(&mut child, pid, &number) {
                let _ = tell.send(Ending::Application(status));
            }
        });
        Ok(())
    }
}

fn wait(child: &mut Child, pid: Option<Pid>, number: &Mutex<Option<Pid>>) -> Result<ExitStatus> {
    if let Some(pid) = pid {
        // Its number stays its own until it is waited for below.
        let ends = || waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT);
        while ends().is_err_and(|e| e == rustix::io::Errno::INTR) {}
    }
    *locked(number) = None;
    Ok(child.wait()?)
}
