//! `onewrite replicate --config`: many databases, and perhaps the application.

use crate::{FENCED, is_ready};
use anyhow::{Context, Result, ensure};
use onewrite_arguments::replicate::Replicate;
use onewrite_replicate::config::{FleetConfig, Logging};
use onewrite_replicate::control;
use onewrite_replicate::ending::{end_at_signals, finish_at_signals, finish_in_time};
use onewrite_replicate::fleet::{Fleet, Stopped, worst};
use onewrite_replicate::local::locked;
use onewrite_replicate::metrics::serve_pages;
use onewrite_replicate::report::{self, Level, say};
use rustix::process::{
    Pid, Resource, Rlimit, Signal, WaitId, WaitIdOptions, getrlimit, kill_process, setrlimit, waitid,
};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::Signals;
use std::io::{IsTerminal, stdin};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitCode, ExitStatus};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

/// Pause between two looks whether all databases have begun.
const BEGINS: Duration = Duration::from_millis(50);
/// Without a directory that is watched.
const LOOK: Duration = Duration::from_secs(5);
/// A shell's status for a signal, without its number.
const BY_SIGNAL: u8 = 128;

/// The end of the process, or of the application.
enum Ending {
    Signal,
    Application(ExitStatus),
}

/// Ships the databases of a configuration.
pub fn replicate(config: &Path, args: &Replicate) -> Result<ExitCode> {
    let mut config = FleetConfig::read(config, !args.no_expand_env)?;
    speak(config.logging, args.news.verbose);
    if let Some(command) = &args.exec {
        let words = shlex::split(command).filter(|words| !words.is_empty());
        config.exec = Some(words.context("--exec is no command: a quote does not end")?);
    }
    allow_files();
    let (exec, addr, socket) = (config.exec.take(), config.addr, config.socket.take());
    let mut application = Application::default();
    let endings = match &exec {
        Some(_) => application.hear()?,
        None => {
            end_at_signals()?;
            hear_alone()
        }
    };
    let mut fleet = Fleet::new(config);
    if let Some(addr) = addr {
        let at = serve_pages(addr, fleet.pages())?;
        say(Level::Info, "metrics", &[("address", at.to_string().into())], &format!("counters at http://{at}/metrics"));
    }
    let _listening = socket.map(|socket| control::listen(&socket, fleet.control())).transpose()?;
    fleet.begin()?;
    let mut ending = None;
    while ending.is_none() && !fleet.is_ready() {
        ending = endings.recv_timeout(BEGINS).ok();
    }
    if ending.is_none() {
        let count = fleet.members().len();
        let begun = if count == 1 { "database has begun" } else { "databases have begun" };
        say(Level::Info, "began", &[("databases", count.into())], &format!("{count} {begun}"));
        is_ready();
        if let Some(Err(e)) = exec.as_ref().map(|words| application.start(words)) {
            finish_in_time();
            fleet.finish();
            return Err(e);
        }
    }
    let mut next = Instant::now();
    let ending = loop {
        if ending.is_some() || exec.is_none() && fleet.has_ended() {
            break ending;
        }
        if Instant::now() >= next {
            next = Instant::now() + fleet.look_for_new().unwrap_or(LOOK);
        }
        match endings.recv_timeout(next.saturating_duration_since(Instant::now()).min(LOOK)) {
            Ok(ended) => ending = Some(ended),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break None,
        }
    };
    if exec.is_some() {
        finish_in_time();
    }
    finish(fleet, ending)
}

fn finish(fleet: Fleet, ending: Option<Ending>) -> Result<ExitCode> {
    let members = fleet.finish();
    let stopped = worst(&members);
    if let Some(Ending::Application(status)) = ending {
        let code = status.code().and_then(|code| u8::try_from(code).ok());
        let by_signal = || status.signal().and_then(|signal| u8::try_from(signal).ok()).unwrap_or(0);
        let code = code.unwrap_or_else(|| BY_SIGNAL.saturating_add(by_signal()));
        if code != 0 {
            if let Err(e) = stopped {
                say(Level::Error, "failed", &[], &format!("{e:#}"));
            }
            return Ok(ExitCode::from(code));
        }
    }
    Ok(match stopped? {
        Some(Stopped::Fenced) => ExitCode::from(FENCED),
        _ => ExitCode::SUCCESS,
    })
}

fn speak(logging: Logging, verbose: bool) {
    if logging.json {
        report::speak_json();
    }
    if verbose || logging.least == 0 {
        report::speak_of_batches();
    }
    report::hide_bars();
    report::speak_from(match logging.least {
        0 | 1 => Level::Info,
        2 => Level::Warning,
        _ => Level::Error,
    });
}

/// Each database has up to three files open: as many are allowed as can be.
fn allow_files() {
    let limit = getrlimit(Resource::Nofile);
    // A smaller limit is told of by the database that finds it.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
}

fn hear_alone() -> Receiver<Ending> {
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

/// The application that ends with this process, or this process with it.
#[derive(Default)]
struct Application {
    /// While it runs, and is not waited for.
    pid: Arc<Mutex<Option<Pid>>>,
    tell: Option<Sender<Ending>>,
}

impl Application {
    /// Passes signals on from now on; before the application runs, one ends this process.
    fn hear(&mut self) -> Result<Receiver<Ending>> {
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

    fn start(&self, words: &[String]) -> Result<()> {
        let (program, args) = words.split_first().context("exec names no program")?;
        let mut running = locked(&self.pid);
        let mut child = Command::new(program).args(args).spawn().with_context(|| format!("cannot run {program}"))?;
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        *running = pid;
        drop(running);
        say(Level::Info, "runs", &[("pid", child.id().into())], &format!("{program} runs, as process {}", child.id()));
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
