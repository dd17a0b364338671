//! `onewrite replicate --config`: many databases, and perhaps the application.

use crate::application::{Application, Ending, allow_files, code_of, hear_alone};
use crate::{FENCED, is_ready};
use anyhow::{Context, Result};
use onewrite_arguments::replicate::Replicate;
use onewrite_replicate::config::{FleetConfig, Logging};
use onewrite_replicate::control;
use onewrite_replicate::ending::{end_at_signals, finish_in_time};
use onewrite_replicate::fleet::{Fleet, Stopped, worst};
use onewrite_replicate::metrics::serve_pages;
use onewrite_replicate::report::{self, Level, say};
use std::path::Path;
use std::process::ExitCode;
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

/// Pause between two looks whether all databases have begun.
const BEGINS: Duration = Duration::from_millis(50);
/// Without a directory that is watched.
const LOOK: Duration = Duration::from_secs(5);

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
        let code = code_of(status);
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
