//! Outside the virtual machine: QEMU and the host's end of the line.

use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tempfile::TempDir;

use super::initramfs::Initramfs;
use super::modules::Modules;
use super::{guest, packages};
use crate::device::Device;
use crate::file_system::FileSystem;
use crate::mkfs::tool;

/// An emulated processor boots in seconds, or longer on a busy machine.
const BOOT_MAX: Duration = Duration::from_secs(180);
/// The guest's longest silence.
const SILENCE_MAX: Duration = Duration::from_secs(600);
const CONSOLE_LINES: usize = 30;
/// Besides the file systems' modules: buses, devices, and checksums requested by name.
const MODULES: [&str; 6] =
    ["virtio_pci", "virtio_blk", "virtio_console", "virtio_rng", "crc32c_generic", "crc32_generic"];

/// Options of a machine.
pub struct MachineOptions<'a> {
    /// Arguments of this program inside the machine.
    pub arguments: &'a [&'a str],
    /// The file systems that it can mount.
    pub file_systems: &'a [FileSystem],
    /// Shared libraries, copied to where [`in_guest`] says.
    pub libraries: &'a [PathBuf],
    /// Its drive's sector size.
    pub block_bytes: u32,
}

/// A running machine. Dropping it switches it off.
pub struct Machine<'d> {
    child: Child,
    reader: BufReader<UnixStream>,
    console: PathBuf,
    release: String,
    /// Borrowed because the machine has its drive open.
    _device: &'d Device,
    _directory: TempDir,
}

impl<'d> Machine<'d> {
    /// Boots a machine with the unmounted `device` as its drive, and waits for this program to run
    /// there.
    pub fn boot(device: &'d Device, options: &MachineOptions) -> Result<Machine<'d>> {
        if let Some(why) = packages::unavailable() {
            bail!(why);
        }
        let kernel = packages::kernel()?;
        let directory = tempfile::Builder::new().prefix("onewrite-vm-").tempdir()?;
        let archive = directory.path().join("initramfs");
        std::fs::write(&archive, initramfs(&kernel.modules, options)?)?;
        let (line, console) = (directory.path().join("line"), directory.path().join("console"));
        let listener = UnixListener::bind(&line)?;
        listener.set_nonblocking(true)?;
        let block = options.block_bytes;
        let mut qemu = Command::new(tool("qemu-system-x86_64")?);
        qemu.args(["-machine", "pc", "-accel", "tcg", "-cpu", "Nehalem,+rdrand", "-smp", "1", "-m", "512"])
            .args(["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"])
            .arg("-serial")
            .arg(format!("file:{}", console.display()))
            .arg("-kernel")
            .arg(&kernel.image)
            .arg("-initrd")
            .arg(&archive)
            .arg("-append")
            .arg(format!("console=ttyS0 loglevel=4 panic=-1 rdinit=/init -- {}", options.arguments.join(" ")))
            .arg("-chardev")
            .arg(format!("socket,id=line,path={}", line.display()))
            .args(["-device", "virtio-serial-pci", "-device", "virtserialport,chardev=line"])
            .args(["-device", "virtio-rng-pci"])
            .arg("-drive")
            // Only a flush writes this cache through: the drive behaves like the device.
            .arg(format!(
                "if=none,id=disk,format=raw,cache=writeback,discard=unmap,file.locking=off,file={}",
                device.disk_path().display()
            ))
            .arg("-device")
            .arg(format!("virtio-blk-pci,drive=disk,logical_block_size={block},physical_block_size={block}"))
            .stdin(Stdio::null())
            // Ctrl-C ends this program, which ends the machine.
            .process_group(0);
        let mut child = qemu.spawn().context("cannot start QEMU")?;
        let stream = match connect(&listener, &mut child) {
            Ok(stream) => stream,
            Err(e) => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(e);
            }
        };
        stream.set_read_timeout(Some(BOOT_MAX))?;
        let mut machine = Machine {
            child,
            reader: BufReader::new(stream),
            console,
            release: kernel.release,
            _device: device,
            _directory: directory,
        };
        machine.receive::<()>().context("the virtual machine does not boot")?;
        machine.reader.get_ref().set_read_timeout(Some(SILENCE_MAX))?;
        Ok(machine)
    }

    /// The version of its kernel.
    pub fn release(&self) -> &str {
        &self.release
    }

    /// Sends a message.
    pub fn send(&mut self, message: &impl Serialize) -> Result<()> {
        let mut line = serde_json::to_vec(message)?;
        line.push(b'\n');
        self.reader.get_mut().write_all(&line).with_context(|| self.last_words())
    }

    /// The guest's next message.
    pub fn receive<T: DeserializeOwned>(&mut self) -> Result<T> {
        let mut line = String::new();
        match self.reader.read_line(&mut line) {
            Ok(0) => bail!("the virtual machine ended: {}", self.last_words()),
            Ok(_) => serde_json::from_str(&line).with_context(|| format!("the guest said {line:?}")),
            Err(e) => Err(e).with_context(|| format!("no word from the virtual machine: {}", self.last_words())),
        }
    }

    fn last_words(&self) -> String {
        let bytes = std::fs::read(&self.console).unwrap_or_default();
        let text = String::from_utf8_lossy(&bytes);
        let lines: Vec<&str> = text.lines().collect();
        lines.get(lines.len().saturating_sub(CONSOLE_LINES)..).unwrap_or_default().join("\n")
    }
}

impl Drop for Machine<'_> {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn connect(listener: &UnixListener, child: &mut Child) -> Result<UnixStream> {
    let started = Instant::now();
    loop {
        match listener.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(false)?;
                return Ok(stream);
            }
            Err(e) if e.kind() == ErrorKind::WouldBlock => {}
            Err(e) => return Err(e.into()),
        }
        if let Some(status) = child.try_wait()? {
            bail!("QEMU does not run: {status}");
        }
        if started.elapsed() > BOOT_MAX {
            bail!("QEMU does not connect");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Where the machine has a library of the host's: apart from what it mounts itself, as on `/tmp`.
pub fn in_guest(library: &Path) -> PathBuf {
    Path::new("/host").join(library.strip_prefix("/").unwrap_or(library))
}

fn initramfs(modules: &Path, options: &MachineOptions) -> Result<Vec<u8>> {
    let mut archive = Initramfs::new();
    for directory in ["/proc", "/sys", "/tmp", "/mnt"] {
        archive.directory(Path::new(directory));
    }
    archive.program(&std::env::current_exe()?, Path::new("/init"))?;
    for library in options.libraries {
        archive.program(library, &in_guest(library))?;
    }
    let mut wanted = MODULES.to_vec();
    wanted.extend(options.file_systems.iter().flat_map(|fs| fs.modules()));
    // They locate ext4's metadata.
    for name in if wanted.contains(&"ext4") { &["debugfs", "dumpe2fs"][..] } else { &[] } {
        let path = tool(name)?;
        archive.program(&path, &Path::new("/sbin").join(name))?;
    }
    let mut order = String::new();
    for (name, bytes) in Modules::of(modules)?.in_order(&wanted)? {
        let path = format!("/modules/{name}.ko");
        archive.file(Path::new(&path), false, &bytes);
        order += &format!("{path}\n");
    }
    archive.file(Path::new(guest::MODULES), false, order.as_bytes());
    Ok(archive.finish())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_under_tmp_is_not_hidden_by_the_guests_own() {
        assert_eq!(in_guest(Path::new("/tmp/libsqlite3.so.0")), Path::new("/host/tmp/libsqlite3.so.0"));
    }
}
