//! The block device and its command, in one binary, because a build links each anew.

#![cfg(target_os = "linux")]

mod command;
mod device;
mod vm;

/// Devices take mounts, loop devices and processors of the whole machine.
static ONE_AT_A_TIME: std::sync::Mutex<()> = std::sync::Mutex::new(());
