//! The subcommands, one module each.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use clap::{Parser, Subcommand};

use crate::{campaign, run};

/// A block device in user space that records every write and flush, can be as slow as flash, and
/// cuts power.
///
/// It is a file of a FUSE file system under a loop device, and needs root, /dev/fuse and loop
/// devices. Where they are missing, commands say so and do nothing.
#[derive(Parser)]
#[command(name = "onewrite-device", version, arg_required_else_help = true)]
#[command(after_help = "Examples:
  What does a program write, on ext4, on an SD card?
    onewrite-device run --fs ext4 --profile sdcard -- sqlite3 test.db 'CREATE TABLE t(a); INSERT INTO t VALUES(1)'
  A device to work on from another terminal, until Ctrl-C:
    onewrite-device mount --fs xfs --profile emmc /mnt
  2,000 power cuts under onewrite on ext4:
    onewrite-device cut --fs ext4-ordered --cuts 2000
  The same on F2FS, which this kernel may not have:
    onewrite-device cut --fs f2fs --vm --cuts 2000")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Run(run::RunArgs),
    Mount(run::MountArgs),
    Cut(campaign::CutArgs),
    /// The writing process of a campaign
    #[command(hide = true)]
    Writer(campaign::writer::WriterArgs),
    /// The first process of a virtual machine
    #[command(hide = true)]
    Guest,
}

pub fn run() -> ExitCode {
    let command = Cli::parse().command;
    let stop = Arc::new(AtomicBool::new(false));
    let asked = stop.clone();
    if !matches!(command, Command::Writer(_) | Command::Guest) {
        // Dropping a device takes it down, so a signal only asks for the end.
        if let Err(e) = ctrlc::set_handler(move || asked.store(true, Ordering::Relaxed)) {
            eprintln!("onewrite-device: Ctrl-C will not be heeded: {e}");
        }
    }
    if matches!(command, Command::Run(_) | Command::Cut(_))
        && let Err(e) = onewrite_device::own_mounts()
        && onewrite_device::unavailable().is_none()
    {
        eprintln!("onewrite-device: mounts will outlive this process if it is killed: {e}");
    }
    let result = match command {
        Command::Run(args) => run::run(args, &stop),
        Command::Mount(args) => run::mount(args, &stop),
        Command::Cut(args) => campaign::run(&args, &stop).map(|passed| ExitCode::from(u8::from(!passed))),
        Command::Guest => campaign::place::guest(),
        Command::Writer(args) => campaign::writer::run(&args).map(|()| ExitCode::SUCCESS),
    };
    result.unwrap_or_else(|e| {
        eprintln!("onewrite-device: {e:#}");
        ExitCode::FAILURE
    })
}
