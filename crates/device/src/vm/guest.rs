//! The first process inside the virtual machine.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::kmod::{ModuleInitFlags, finit_module};
use nix::mount::{MsFlags, mount};
use nix::sys::reboot::{RebootMode, reboot};
use parking_lot::Mutex;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// The machine's drive.
pub const BLOCK_PATH: &str = "/dev/vda";
/// A path per line.
pub(super) const MODULES: &str = "/modules/order";

/// The guest's connection to the host.
pub struct Guest {
    port: Mutex<(BufReader<File>, File)>,
}

impl Guest {
    /// Runs `work`, then switches the machine off.
    pub fn run(work: impl FnOnce(&Guest) -> Result<()>) -> ! {
        if std::process::id() != 1 {
            eprintln!("this is for the first process of a virtual machine");
            std::process::exit(1);
        }
        if let Err(e) = Guest::start().and_then(|guest| work(&guest)) {
            eprintln!("the guest ends: {e:#}");
        }
        let _ = reboot(RebootMode::RB_AUTOBOOT);
        std::process::exit(1)
    }

    fn start() -> Result<Guest> {
        let none: Option<&str> = None;
        for (kind, at) in [("devtmpfs", "/dev"), ("proc", "/proc"), ("sysfs", "/sys"), ("tmpfs", "/tmp")] {
            mount(Some(kind), at, Some(kind), MsFlags::empty(), none).with_context(|| format!("mounting {at}"))?;
        }
        for path in std::fs::read_to_string(MODULES).context(MODULES)?.lines() {
            let file = File::open(path).with_context(|| path.to_owned())?;
            finit_module(&file, c"", ModuleInitFlags::empty()).with_context(|| format!("loading {path}"))?;
        }
        appear(|| Path::new(BLOCK_PATH).exists().then_some(()), "the drive")?;
        let path = appear(port, "the line to the host")?;
        let writer = File::options().read(true).write(true).open(&path)?;
        let reader = BufReader::new(writer.try_clone()?);
        let guest = Guest { port: Mutex::new((reader, writer)) };
        guest.send(&())?;
        Ok(guest)
    }

    /// The host's next message; `None` after the host's end.
    pub fn receive<T: DeserializeOwned>(&self) -> Result<Option<T>> {
        receive(&mut self.port.lock().0)
    }

    /// Sends a message.
    pub fn send(&self, message: &impl Serialize) -> Result<()> {
        send(&mut self.port.lock().1, message)
    }

    /// Sends a message and waits for its answer; other threads wait.
    pub fn ask<T: DeserializeOwned>(&self, message: &impl Serialize) -> Result<T> {
        let mut port = self.port.lock();
        send(&mut port.1, message)?;
        receive(&mut port.0)?.context("the host does not answer")
    }
}

fn receive<T: DeserializeOwned>(reader: &mut impl BufRead) -> Result<Option<T>> {
    let mut line = String::new();
    if reader.read_line(&mut line)? == 0 {
        return Ok(None);
    }
    Ok(Some(serde_json::from_str(&line).with_context(|| format!("the host said {line:?}"))?))
}

fn send(writer: &mut impl Write, message: &impl Serialize) -> Result<()> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    Ok(writer.write_all(&line)?)
}

fn port() -> Option<PathBuf> {
    let entries = std::fs::read_dir("/dev").ok()?.flatten();
    entries.map(|entry| entry.path()).find(|path| path.to_string_lossy().starts_with("/dev/vport"))
}

fn appear<T>(found: impl Fn() -> Option<T>, what: &str) -> Result<T> {
    let started = Instant::now();
    while started.elapsed() < Duration::from_secs(60) {
        if let Some(found) = found() {
            return Ok(found);
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    bail!("{what} does not appear")
}
