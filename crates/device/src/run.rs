//! `run` and `mount`: a device with a file system for one command or until Ctrl-C, and a summary of
//! its writes.

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use comfy_table::{CellAlignment, Table, TableStyle};
use onewrite_device::{Device, DeviceOptions, Event, FileSystem, Image, Operation, Profile, Region, Summary};
use serde::Serialize;

/// The device.
#[derive(Args)]
struct DeviceArgs {
    /// File system: ext4-ordered (or ext4), ext4-writeback, ext4-journal, xfs, btrfs, f2fs, vfat,
    /// exfat
    #[arg(long, default_value = "ext4-ordered")]
    fs: FileSystem,
    /// Device to be as slow as: none, emmc, ufs, sdcard, sata, nvme
    #[arg(long, default_value = "none")]
    profile: Profile,
    /// Size in MiB, raised to what the file system needs; the content is in memory
    #[arg(long, default_value_t = 256)]
    size: u64,
    /// Logical and physical block size
    #[arg(long, default_value = "512", value_parser = ["512", "1024", "2048", "4096"])]
    block: String,
    /// Start with this raw image instead of an empty file system
    #[arg(long)]
    image: Option<PathBuf>,
    /// Save the device's final content to this file
    #[arg(long)]
    save: Option<PathBuf>,
    /// Write every request to this file, as CSV
    #[arg(long)]
    trace: Option<PathBuf>,
    /// Print the summary as JSON
    #[arg(long)]
    json: bool,
}

/// Run a command on a fresh device and summarise its writes
///
/// The command starts in the root of the new file system, which is unmounted at its end. The
/// summary tells what the device was asked to write and flush until the command ended and until all
/// was written: in total, by file, and for the file system's journal. The exit status is that of
/// the command.
#[derive(Args)]
pub struct RunArgs {
    #[command(flatten)]
    device: DeviceArgs,
    /// Command and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<String>,
}

/// Mount a fresh device until Ctrl-C, then summarise its writes
#[derive(Args)]
pub struct MountArgs {
    #[command(flatten)]
    device: DeviceArgs,
    /// Directory to mount on
    directory: PathBuf,
}

#[derive(Serialize)]
struct Report {
    file_system: String,
    profile: String,
    block_bytes: u32,
    running: Summary,
    unmounting: Summary,
}

/// The exit code is the command's.
pub fn run(args: RunArgs, stop: &AtomicBool) -> Result<ExitCode> {
    let Some(device) = start(&args.device, None)? else { return Ok(ExitCode::SUCCESS) };
    let before = device.position();
    let (program, arguments) = args.command.split_first().context("no command")?;
    let mut child = Command::new(program)
        .args(arguments)
        .current_dir(device.mountpoint())
        .spawn()
        .with_context(|| format!("cannot run {program}"))?;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if stop.load(Ordering::Relaxed) {
            // A terminal has sent the command the same signal; a signal to us alone is passed on.
            let _ = child.kill();
        }
        std::thread::sleep(Duration::from_millis(2));
    };
    finish(device, &args.device, before)?;
    Ok(status.code().and_then(|code| u8::try_from(code).ok()).map_or(ExitCode::FAILURE, ExitCode::from))
}

pub fn mount(args: MountArgs, stop: &AtomicBool) -> Result<ExitCode> {
    let Some(device) = start(&args.device, Some(args.directory))? else { return Ok(ExitCode::SUCCESS) };
    let before = device.position();
    eprintln!(
        "{} ({}, {}) is mounted on {}; Ctrl-C ends it",
        device.block_path().display(),
        args.device.fs,
        args.device.profile,
        device.mountpoint().display()
    );
    while !stop.load(Ordering::Relaxed) {
        std::thread::sleep(Duration::from_millis(50));
    }
    finish(device, &args.device, before)?;
    Ok(ExitCode::SUCCESS)
}

fn start(args: &DeviceArgs, mountpoint: Option<PathBuf>) -> Result<Option<Device>> {
    if let Some(why) = onewrite_device::unavailable().or_else(|| args.fs.unavailable()) {
        eprintln!("skipped: {why}");
        return Ok(None);
    }
    let image = args.image.as_deref().map(|path| Image::load(path).with_context(|| path.display().to_string()));
    let device = Device::start(DeviceOptions {
        size_bytes: args.size << 20,
        block_bytes: args.block.parse()?,
        profile: args.profile,
        image: image.transpose()?,
        file_system: Some(args.fs),
        mountpoint,
        ..DeviceOptions::default()
    })?;
    Ok(Some(device))
}

fn finish(device: Device, args: &DeviceArgs, before: usize) -> Result<()> {
    let ended = device.position();
    let regions = device.regions()?;
    device.unmount().context("cannot unmount: is something still using it?")?;
    let trace = device.trace();
    let report = Report {
        file_system: args.fs.to_string(),
        profile: args.profile.to_string(),
        block_bytes: args.block.parse()?,
        running: trace.summary(before..ended, &regions),
        unmounting: trace.summary(ended..usize::MAX, &regions),
    };
    if let Some(path) = &args.save {
        device.image().save(path).with_context(|| format!("cannot write {}", path.display()))?;
    }
    if let Some(path) = &args.trace {
        std::fs::write(path, csv(&trace.events)).with_context(|| format!("cannot write {}", path.display()))?;
    }
    let text = if args.json { serde_json::to_string_pretty(&report)? } else { table(&report, &regions) };
    writeln!(std::io::stdout(), "{text}").context("cannot print the summary")
}

fn csv(events: &[Event]) -> String {
    let mut text = "arrived_ns,done_ns,request,offset_bytes,len_bytes\n".to_owned();
    for Event { arrived_ns, done_ns, operation } in events {
        let (request, offset, len) = match operation {
            Operation::Write { offset, len, .. } => ("write", *offset, *len),
            Operation::Zero { offset, len } => ("zero", *offset, *len),
            Operation::Flush => ("flush", 0, 0),
        };
        text += &format!("{arrived_ns},{done_ns},{request},{offset},{len}\n");
    }
    text
}

fn table(report: &Report, regions: &[Region]) -> String {
    let (running, unmounting) = (&report.running, &report.unmounting);
    let mut table = Table::new();
    table.load_style(TableStyle::new());
    table.set_header(["", "writes", "KiB", "sequential", "first address", "while unmounting"]);
    let kib = |bytes: u64| format!("{:.1}", bytes as f64 / 1024.0);
    let volumes = running.regions.iter().zip(&unmounting.regions);
    for (i, (now, later)) in volumes.enumerate().filter(|(_, (now, later))| now.bytes + later.bytes > 0) {
        let start = regions.get(i).and_then(|r| r.ranges.iter().map(|range| range.start).min());
        table.add_row([
            now.region.clone(),
            now.writes.to_string(),
            kib(now.bytes),
            now.sequential_writes.to_string(),
            start.map_or(String::new(), |start| format!("{} KiB", start / 1024)),
            format!("{} KiB", kib(later.bytes)),
        ]);
    }
    table.add_row([
        "all".to_owned(),
        running.writes.to_string(),
        kib(running.write_bytes),
        running.sequential_writes.to_string(),
        String::new(),
        format!("{} KiB", kib(unmounting.write_bytes)),
    ]);
    table.column_iter_mut().skip(1).for_each(|column| column.set_cell_alignment(CellAlignment::Right));
    format!(
        "{} on {}, blocks of {} B\n{table}\nflushes: {}, and {} while unmounting\nbusy with writes and flushes: {} ms of {} ms",
        report.file_system,
        report.profile,
        report.block_bytes,
        running.flushes,
        unmounting.flushes,
        running.busy_us / 1000,
        running.span_us / 1000
    )
}
