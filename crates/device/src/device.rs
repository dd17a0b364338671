//! A device: the FUSE server, the loop device on its file, and the file system mounted on that.
//!
//! The server's thread has its own table of descriptors. Otherwise a thread of a killed process
//! that waits for the device would keep `/dev/fuse` open, and the kernel would wait for an answer
//! for ever.

use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use nix::mount::{MntFlags, MsFlags, umount, umount2};
use parking_lot::Mutex;
use tempfile::TempDir;

use crate::file_system::FileSystem;
use crate::fs::{Server, Shared};
use crate::image::Image;
use crate::mkfs::{run, tool};
use crate::options::DeviceOptions;
use crate::sys;
use crate::trace::{Event, Trace};

/// A running device. Dropping it unmounts and detaches everything. If the process is killed, the
/// kernel answers with errors and detaches the loop device with the last unmount.
pub struct Device {
    shared: Arc<Shared>,
    file_system: Option<FileSystem>,
    mounted: Mutex<bool>,
    mountpoint: PathBuf,
    block_path: PathBuf,
    /// Its close detaches the loop device.
    block: Option<File>,
    served: PathBuf,
    server: Option<JoinHandle<()>>,
    _directory: TempDir,
}

/// The reason why no device can start here: it needs root, FUSE and loop devices.
pub fn unavailable() -> Option<String> {
    if !nix::unistd::geteuid().is_root() {
        return Some("a block device in user space needs root".to_owned());
    }
    if !may_mount() {
        return Some("a block device in user space needs the right to mount (CAP_SYS_ADMIN)".to_owned());
    }
    if let Err(e) = File::options().read(true).write(true).open("/dev/fuse") {
        return Some(format!("no FUSE here: /dev/fuse: {e}"));
    }
    if let Err(e) = File::options().read(true).write(true).open("/dev/loop-control") {
        return Some(format!("no loop devices here: /dev/loop-control: {e}"));
    }
    tool("losetup").err().map(|_| "there is no losetup here: install util-linux".to_owned())
}

/// Unsure for root in a container: the mount will show it.
fn may_mount() -> bool {
    const CAP_SYS_ADMIN: u64 = 1 << 21;
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let rights = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    rights.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok()).is_none_or(|rights| rights & CAP_SYS_ADMIN != 0)
}

/// Gives the calling thread, and threads and processes that it starts, mounts of their own, which
/// end with them even if killed.
pub fn own_mounts() -> nix::Result<()> {
    nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNS)?;
    nix::mount::mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>)
}

impl Device {
    /// Starts a device with its mounted file system.
    pub fn start(options: DeviceOptions) -> Result<Device> {
        if let Some(why) = unavailable().or_else(|| options.file_system.and_then(FileSystem::unavailable)) {
            bail!(why);
        }
        let fresh = options.image.is_none();
        let least = options.file_system.map_or(1 << 20, FileSystem::size_bytes_min);
        let image = options.image.unwrap_or_else(|| Image::new(options.size_bytes.max(least).next_multiple_of(4096)));
        let directory = tempfile::Builder::new().prefix("onewrite-device-").tempdir()?;
        let served = directory.path().join("served");
        std::fs::create_dir(&served)?;
        let mountpoint = options.mountpoint.unwrap_or_else(|| directory.path().join("mnt"));
        std::fs::create_dir_all(&mountpoint)?;
        let timing = options.timing.or(options.profile.timing());
        let shared = Arc::new(Shared::new(image, timing, options.keep_data));
        let server = serve(shared.clone(), served.clone())?;
        // From here on, a drop cleans up.
        let mut device = Device {
            shared,
            file_system: options.file_system,
            mounted: Mutex::new(false),
            mountpoint,
            block_path: PathBuf::new(),
            block: None,
            served,
            server: Some(server),
            _directory: directory,
        };
        device.attach(options.block_bytes)?;
        if let Some(file_system) = device.file_system {
            if fresh {
                file_system.format(&device.block_path, &options.mkfs_arguments)?;
            }
            device.mount().with_context(|| format!("cannot mount {file_system}"))?;
        }
        Ok(device)
    }

    /// The block device, `/dev/loopN`.
    pub fn block_path(&self) -> &Path {
        &self.block_path
    }

    /// The file under the block device, for users without the loop device, such as a virtual
    /// machine.
    pub fn disk_path(&self) -> PathBuf {
        self.served.join("disk")
    }

    /// A file whose content, read anew, is [`Device::position`], for other processes.
    pub fn position_path(&self) -> PathBuf {
        self.served.join("position")
    }

    /// The mount point.
    pub fn mountpoint(&self) -> &Path {
        &self.mountpoint
    }

    /// Its file system.
    pub fn file_system(&self) -> Option<FileSystem> {
        self.file_system
    }

    /// The number of events so far.
    pub fn position(&self) -> usize {
        self.shared.position()
    }

    /// The trace so far.
    pub fn trace(&self) -> Trace {
        self.shared.trace()
    }

    /// Events between two positions.
    pub fn events(&self, positions: Range<usize>) -> Vec<Event> {
        self.shared.events(positions)
    }

    /// The content, as if all writes were durable.
    pub fn image(&self) -> Image {
        self.shared.image()
    }

    /// Replaces the content with an image of the same size and begins a new recording. Nothing may
    /// be mounted.
    pub fn replace(&self, image: Image) -> Result<()> {
        let mounted = self.mounted.lock();
        ensure!(!*mounted, "the device is mounted");
        ensure!(image.len_bytes() == self.shared.image().len_bytes(), "the image has another size than the device");
        self.shared.replace(image);
        if let Some(block) = &self.block {
            sys::drop_cache(block)?;
        }
        Ok(())
    }

    /// Makes an empty file system, which is not mounted. `more` are further arguments of `mkfs`.
    pub fn format(&self, file_system: FileSystem, more: &[String]) -> Result<()> {
        file_system.format(&self.block_path, more)?;
        if let Some(block) = &self.block {
            sys::drop_cache(block)?;
        }
        Ok(())
    }

    /// Mounts; the kernel replays the journal.
    pub fn mount(&self) -> nix::Result<()> {
        let mut mounted = self.mounted.lock();
        if let (false, Some(file_system)) = (*mounted, self.file_system) {
            file_system.mount(&self.block_path, &self.mountpoint)?;
            *mounted = true;
        }
        Ok(())
    }

    /// Unmounts; the file system writes its cache first.
    pub fn unmount(&self) -> nix::Result<()> {
        let mut mounted = self.mounted.lock();
        if *mounted {
            umount_patiently(&self.mountpoint)?;
            *mounted = false;
        }
        Ok(())
    }

    fn attach(&mut self, block_bytes: u32) -> Result<()> {
        let losetup = tool("losetup")?;
        let size = block_bytes.to_string();
        let arguments = ["--find", "--show", "--direct-io=on", "--sector-size", &size];
        self.block_path = run(Command::new(&losetup).args(arguments).arg(self.disk_path()))?.into();
        let block = File::open(&self.block_path).with_context(|| format!("cannot open {}", self.block_path.display()));
        // Detaches at the last close, or at once if the open failed.
        run(Command::new(&losetup).arg("--detach").arg(&self.block_path))?;
        self.block = Some(block?);
        let name = self.block_path.file_name().context("a loop device without a name")?;
        let direct = std::fs::read_to_string(Path::new("/sys/block").join(name).join("loop/dio"))?;
        ensure!(direct.trim() == "1", "this kernel does not do direct I/O from a loop device to FUSE");
        Ok(())
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        if let Err(e) = self.unmount() {
            eprintln!("cannot unmount {}: {e}", self.mountpoint.display());
            let _ = umount2(&self.mountpoint, MntFlags::MNT_DETACH);
        }
        drop(self.block.take());
        // The loop device releases the served file some time after its last close.
        if umount_patiently(&self.served).is_err() {
            let _ = umount2(&self.served, MntFlags::MNT_DETACH);
        }
        if let Some(server) = self.server.take() {
            let _ = server.join();
        }
    }
}

/// Returns after the mount.
fn serve(shared: Arc<Shared>, at: PathBuf) -> Result<JoinHandle<()>> {
    let (ready, answer) = mpsc::channel();
    let server = std::thread::Builder::new().name("device-server".to_owned()).spawn(move || {
        let start = || -> Result<fuser::Session<Server>> {
            sys::own_descriptors()
                .context("cannot separate the server's descriptors (Linux 5.9 or newer is needed)")?;
            // Every request waits for this thread. Without the right, answers are only later.
            let _ = rustix::process::setpriority_process(None, -20);
            let mut config = fuser::Config::default();
            config.mount_options = vec![fuser::MountOption::FSName("onewrite-device".to_owned())];
            let server = Server::new(shared)?;
            fuser::Session::new(server, &at, &config).context("cannot mount the FUSE file system")
        };
        match start() {
            Ok(session) => {
                let _ = ready.send(Ok(()));
                // The unmount ends it; an error means that the kernel did.
                if let Err(e) = session.run() {
                    eprintln!("the device's server ended: {e}");
                }
            }
            Err(e) => {
                let _ = ready.send(Err(e));
            }
        }
    })?;
    answer.recv().context("the device's server did not start")??;
    Ok(server)
}

/// Retries while busy: kernel threads release a mount with a delay.
fn umount_patiently(at: &Path) -> nix::Result<()> {
    for wait_ms in [0, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000] {
        std::thread::sleep(Duration::from_millis(wait_ms));
        match umount(at) {
            Err(nix::Error::EBUSY) => {}
            result => return result,
        }
    }
    umount(at)
}
