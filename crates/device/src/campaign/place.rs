//! The place where a campaign writes and checks: this machine with the device mounted, or a virtual
//! machine with the device as its drive.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use clap::ValueEnum;
use onewrite_device::vm::{BLOCK_PATH, Guest, Machine, MachineOptions};
use onewrite_device::{Device, FileSystem};
use serde::{Deserialize, Serialize};

use super::check::{Expected, Passed, Wrong, agree, look};
use super::engine::{Engine, Setting};
use super::load::Found;
use super::writer::{Acknowledged, Order, write_all};

const MOUNTPOINT: &str = "/mnt";
const DATABASE: &str = "campaign.db";

pub trait Place {
    fn device(&self) -> &Device;

    /// Mounts, makes the transactions, unmounts.
    fn write(&mut self, order: &Order) -> Result<Vec<Acknowledged>>;

    /// Mounts, checks the database, unmounts.
    fn check(&mut self, setting: &Setting, expected: &Expected) -> Result<Passed, Wrong>;
}

pub struct Here<'d> {
    device: &'d Device,
    path: PathBuf,
}

impl<'d> Here<'d> {
    pub fn new(device: &'d Device) -> Result<Here<'d>> {
        device.unmount()?;
        Ok(Here { device, path: device.mountpoint().join(DATABASE) })
    }
}

impl Place for Here<'_> {
    fn device(&self) -> &Device {
        self.device
    }

    fn write(&mut self, order: &Order) -> Result<Vec<Acknowledged>> {
        self.device.mount()?;
        let said = child(order, self.device, &self.path)?;
        self.device.unmount()?;
        Ok(said)
    }

    fn check(&mut self, setting: &Setting, expected: &Expected) -> Result<Passed, Wrong> {
        self.device.mount().map_err(|e| Wrong::FileSystem(does_not_mount(e)))?;
        let mut passed = None;
        let looked = look(&self.path, setting, &mut |found| {
            passed = Some(Passed { found: found.clone(), read_at: self.device.position() });
            agree(found.as_deref(), expected)
        });
        let unmounted = self.device.unmount().map_err(|e| Wrong::FileSystem(does_not_unmount(e)));
        looked.map_err(|e| Wrong::Database(format!("{e:#}")))?;
        unmounted?;
        passed.ok_or_else(|| Wrong::Database("nothing was read".to_owned()))
    }
}

fn does_not_mount(e: nix::Error) -> String {
    format!("it does not mount: {e}")
}

fn does_not_unmount(e: nix::Error) -> String {
    format!("it does not unmount: {e}")
}

fn child(order: &Order, device: &Device, path: &Path) -> Result<Vec<Acknowledged>> {
    let Drawn { engine, seed, atomic_unit } = drawn(order.setting)?;
    let mut child = Command::new(std::env::current_exe()?)
        .arg("writer")
        .args(["--seed", &seed.to_string(), "--transactions", &order.transactions.to_string()])
        .args(["--engine", &engine, "--atomic-unit", &atomic_unit.to_string()])
        .arg("--db")
        .arg(path)
        .arg("--position")
        .arg(device.position_path())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()?;
    let lines = child.stdout.take().map(BufReader::new).into_iter().flat_map(BufRead::lines);
    // All lines are read even after an error: the child must not outlive us with the device
    // mounted.
    let said: Vec<Result<Acknowledged>> =
        lines.map(|line| line.map_err(Into::into).and_then(|line| Acknowledged::parse(&line))).collect();
    let status = child.wait()?;
    ensure!(status.success(), "the writer failed: {status}");
    said.into_iter().collect()
}

/// The parameters of [`Setting::draw`].
#[derive(Debug, Serialize, Deserialize)]
struct Drawn {
    engine: String,
    seed: u64,
    atomic_unit: u32,
}

fn drawn(setting: &Setting) -> Result<Drawn> {
    let engine = setting.engine.to_possible_value().context("an engine without a name")?.get_name().to_owned();
    Ok(Drawn { engine, seed: setting.seed, atomic_unit: setting.atomic_unit })
}

impl Drawn {
    fn setting(&self) -> Result<Setting> {
        let engine = Engine::from_str(&self.engine, false).map_err(anyhow::Error::msg)?;
        Ok(Setting::draw(engine, self.seed, self.atomic_unit))
    }
}

#[derive(Debug, Serialize, Deserialize)]
enum Asked {
    Write { file_system: String, drawn: Drawn, transactions: u64 },
    Check { file_system: String, drawn: Drawn },
}

#[derive(Debug, Serialize, Deserialize)]
enum Said {
    /// Waits for the answer `()`, so the device's position is that of this moment.
    Acknowledged {
        thread: Option<usize>,
        count: u64,
    },
    /// The answer says whether this state may be there.
    Read(Option<Vec<Found>>),
    Done,
    FileSystem(String),
    Failed(String),
}

pub struct There<'d> {
    device: &'d Device,
    file_system: FileSystem,
    machine: Machine<'d>,
}

impl<'d> There<'d> {
    pub fn boot(device: &'d Device, file_system: FileSystem, block_bytes: u32) -> Result<There<'d>> {
        let file_systems = &[file_system];
        let options = MachineOptions { arguments: &["guest"], file_systems, libraries: &[], block_bytes };
        Ok(There { device, file_system, machine: Machine::boot(device, &options)? })
    }

    fn check_there(&mut self, setting: &Setting, expected: &Expected) -> Result<Result<Passed, Wrong>> {
        let file_system = self.file_system.to_string();
        self.machine.send(&Asked::Check { file_system, drawn: drawn(setting)? })?;
        let mut passed = None;
        let mut disagrees = None;
        loop {
            match self.machine.receive()? {
                Said::Read(found) => {
                    let result = agree(found.as_deref(), expected);
                    self.machine.send(&result.is_ok())?;
                    disagrees = result.err();
                    passed = Some(Passed { found, read_at: self.device.position() });
                }
                Said::Done => return Ok(passed.ok_or_else(|| Wrong::Database("nothing was read".to_owned()))),
                Said::FileSystem(what) => return Ok(Err(Wrong::FileSystem(what))),
                Said::Failed(what) => {
                    return Ok(Err(Wrong::Database(disagrees.map_or(what, |e| format!("{e:#}")))));
                }
                said @ Said::Acknowledged { .. } => bail!("the guest said {said:?}"),
            }
        }
    }
}

impl Place for There<'_> {
    fn device(&self) -> &Device {
        self.device
    }

    fn write(&mut self, order: &Order) -> Result<Vec<Acknowledged>> {
        let file_system = self.file_system.to_string();
        let transactions = order.transactions;
        self.machine.send(&Asked::Write { file_system, drawn: drawn(order.setting)?, transactions })?;
        let mut acknowledged = Vec::new();
        loop {
            match self.machine.receive()? {
                Said::Acknowledged { thread, count } => {
                    acknowledged.push(Acknowledged { thread, count, position: self.device.position() });
                    self.machine.send(&())?;
                }
                Said::Done => return Ok(acknowledged),
                said => bail!("the writer failed: {said:?}"),
            }
        }
    }

    fn check(&mut self, setting: &Setting, expected: &Expected) -> Result<Passed, Wrong> {
        // Only the guest's kernel ends it early, so the file system is at fault.
        self.check_there(setting, expected).map_err(|e| Wrong::FileSystem(format!("{e:#}")))?
    }
}

pub fn guest() -> ! {
    Guest::run(|guest| {
        while let Some(asked) = guest.receive()? {
            guest.send(&answer(guest, asked))?;
        }
        Ok(())
    })
}

fn answer(guest: &Guest, asked: Asked) -> Said {
    let (Asked::Write { file_system, .. } | Asked::Check { file_system, .. }) = &asked;
    let mounted = file_system
        .parse()
        .map_err(anyhow::Error::msg)
        .and_then(|file_system: FileSystem| Ok(file_system.mount(Path::new(BLOCK_PATH), Path::new(MOUNTPOINT))?));
    if let Err(e) = mounted {
        return Said::FileSystem(format!("it does not mount: {e:#}"));
    }
    let path = Path::new(MOUNTPOINT).join(DATABASE);
    let result = match asked {
        Asked::Write { drawn, transactions, .. } => drawn.setting().and_then(|setting| {
            let order = Order { setting: &setting, transactions };
            write_all(&order, &path, &|thread, count| guest.ask(&Said::Acknowledged { thread, count }))
        }),
        Asked::Check { drawn, .. } => drawn.setting().and_then(|setting| {
            look(&path, &setting, &mut |found| {
                let agreed: bool = guest.ask(&Said::Read(found.clone()))?;
                ensure!(agreed, "the host does not agree");
                Ok(())
            })
        }),
    };
    match (result, nix::mount::umount(MOUNTPOINT)) {
        (Err(e), _) => Said::Failed(format!("{e:#}")),
        (Ok(()), Err(e)) => Said::FileSystem(does_not_unmount(e)),
        (Ok(()), Ok(())) => Said::Done,
    }
}
