//! A device: the FUSE server, the loop device on its file, and the file system mounted on that.
//!
//! The server's thread has a table of descriptors of its own. A process that is killed while one of its threads
//! waits for this very device would otherwise never end: the waiting thread would keep `/dev/fuse` open, and the
//! kernel would wait for an answer that nobody is left to give.

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

use crate::file_system::{FileSystem, run, tool};
use crate::fs::{Server, Shared};
use crate::image::Image;
use crate::profile::{Profile, Timing};
use crate::sys;
use crate::trace::{Event, Trace};

/// What device to start.
#[derive(Clone)]
pub struct DeviceOptions {
    /// Its size; raised to what the file system needs.
    pub size_bytes: u64,
    /// Its logical and physical block size, 512 to 4096: what it claims to write atomically.
    pub block_bytes: u32,
    /// Which device it is as slow as.
    pub profile: Profile,
    /// Other times than that one's.
    pub timing: Option<Timing>,
    /// Whether the trace has the bytes of each write, which power cuts need and which take memory.
    pub keep_data: bool,
    /// What is on it; zeros otherwise. Its size goes before `size_bytes`.
    pub image: Option<Image>,
    /// Made on it, unless there is an image, and mounted.
    pub file_system: Option<FileSystem>,
    /// Further arguments of the file system's `mkfs`.
    pub mkfs_arguments: Vec<String>,
    /// Where to mount; a temporary directory otherwise.
    pub mountpoint: Option<PathBuf>,
}

impl Default for DeviceOptions {
    fn default() -> Self {
        DeviceOptions {
            size_bytes: 64 << 20,
            block_bytes: 512,
            profile: Profile::None,
            timing: None,
            keep_data: false,
            image: None,
            file_system: None,
            mkfs_arguments: Vec::new(),
            mountpoint: None,
        }
    }
}

/// A running device. Dropping it unmounts and detaches everything. If the process is killed instead, the kernel
/// answers with errors from then on and detaches the loop device with the last unmount.
pub struct Device {
    shared: Arc<Shared>,
    file_system: Option<FileSystem>,
    mounted: Mutex<bool>,
    mountpoint: PathBuf,
    block_path: PathBuf,
    /// Open as long as the device is there: the kernel detaches the loop device when it is closed.
    block: Option<File>,
    served: PathBuf,
    server: Option<JoinHandle<()>>,
    _directory: TempDir,
}

/// Why no device can be started here, if so: it needs root, FUSE and loop devices.
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

/// Root in a container may lack it. Where it cannot be told, trying will.
fn may_mount() -> bool {
    const CAP_SYS_ADMIN: u64 = 1 << 21;
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let rights = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    rights.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok()).is_none_or(|rights| rights & CAP_SYS_ADMIN != 0)
}

/// Mounts made from here on by the calling thread, and by threads and processes that it starts, are seen by these
/// alone, and end with them even if they are killed.
pub fn own_mounts() -> nix::Result<()> {
    nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNS)?;
    nix::mount::mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>)
}

impl Device {
    /// Starts one, with its file system made and mounted if it has one.
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
        // From here on dropping it cleans up.
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

    /// The file under the block device: for who wants the device without the kernel's loop in between, such as a
    /// virtual machine.
    pub fn disk_path(&self) -> PathBuf {
        self.served.join("disk")
    }

    /// A file whose content, read anew, is [`Device::position`]: for other processes.
    pub fn position_path(&self) -> PathBuf {
        self.served.join("position")
    }

    /// Where the file system is mounted, or would be.
    pub fn mountpoint(&self) -> &Path {
        &self.mountpoint
    }

    /// The file system it was started with.
    pub fn file_system(&self) -> Option<FileSystem> {
        self.file_system
    }

    /// The number of events recorded so far.
    pub fn position(&self) -> usize {
        self.shared.position()
    }

    /// What was recorded so far.
    pub fn trace(&self) -> Trace {
        self.shared.trace()
    }

    /// What was recorded from one position to another.
    pub fn events(&self, positions: Range<usize>) -> Vec<Event> {
        self.shared.events(positions)
    }

    /// What is on it now, as if every write so far were durable.
    pub fn image(&self) -> Image {
        self.shared.image()
    }

    /// Puts other content of the same size on it and begins a new recording. Nothing may be mounted.
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

    /// Makes an empty file system on it, which the device does not mount by itself. `more` are further arguments of its
    /// `mkfs`.
    pub fn format(&self, file_system: FileSystem, more: &[String]) -> Result<()> {
        file_system.format(&self.block_path, more)?;
        if let Some(block) = &self.block {
            sys::drop_cache(block)?;
        }
        Ok(())
    }

    /// Mounts the file system that is on it. The kernel replays its journal if it needs to.
    pub fn mount(&self) -> nix::Result<()> {
        let mut mounted = self.mounted.lock();
        if let (false, Some(file_system)) = (*mounted, self.file_system) {
            file_system.mount(&self.block_path, &self.mountpoint)?;
            *mounted = true;
        }
        Ok(())
    }

    /// Unmounts the file system; everything it cached is written first.
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
        // While it is open, detaching means: when it is closed. If it could not be opened: now.
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
        // The loop device lets go of the served file some time after its last close.
        if umount_patiently(&self.served).is_err() {
            let _ = umount2(&self.served, MntFlags::MNT_DETACH);
        }
        if let Some(server) = self.server.take() {
            let _ = server.join();
        }
    }
}

/// Starts the server's thread and waits until it is mounted.
fn serve(shared: Arc<Shared>, at: PathBuf) -> Result<JoinHandle<()>> {
    let (ready, answer) = mpsc::channel();
    let server = std::thread::Builder::new().name("device-server".to_owned()).spawn(move || {
        let start = || -> Result<fuser::Session<Server>> {
            sys::own_descriptors()
                .context("cannot separate the server's descriptors (Linux 5.9 or newer is needed)")?;
            // Its answers are what everybody waits for; where it may not go first it is only later.
            let _ = rustix::process::setpriority_process(None, -20);
            let mut config = fuser::Config::default();
            config.mount_options = vec![fuser::MountOption::FSName("onewrite-device".to_owned())];
            let server = Server::new(shared)?;
            fuser::Session::new(server, &at, &config).context("cannot mount the FUSE file system")
        };
        match start() {
            Ok(session) => {
                let _ = ready.send(Ok(()));
                // It ends when the file system is unmounted; an error means that the kernel gave up on us.
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

/// Unmounts, again and again for a while if something still holds on: kernel threads let go with a delay.
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
