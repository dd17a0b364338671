//! The parts of a virtual machine: QEMU, and Debian's kernel with its modules, which is downloaded
//! once and unpacked into the user's cache, not installed.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::file_system::FileSystem;
use crate::mkfs::{run, tool};

const QEMU: &str = "qemu-system-x86_64";
const QEMU_PACKAGE: &str = "qemu-system-x86";
/// It depends on the newest kernel, whose package has the version in its name.
const KERNEL_PACKAGE: &str = "linux-image-amd64";
const UNPACKED: [&str; 7] = ["fs", "lib", "crypto", "arch", "drivers/virtio", "drivers/block", "drivers/char"];

pub struct Kernel {
    pub image: PathBuf,
    pub modules: PathBuf,
    pub release: String,
}

/// The reason why no virtual machine can be started here.
pub fn unavailable() -> Option<String> {
    crate::unavailable()
        .or_else(foreign)
        .or_else(|| tool(QEMU).err().map(|_| format!("there is no {QEMU} here: install {QEMU_PACKAGE}")))
        .or_else(|| kernel().err().map(|e| format!("there is no kernel for the virtual machine: {e:#}")))
}

fn foreign() -> Option<String> {
    (!cfg!(target_arch = "x86_64")).then(|| "the virtual machine is an x86-64 and runs this program".to_owned())
}

/// Installs and downloads missing packages for a machine and for `mkfs`, and reports it. Returns
/// [`unavailable`]'s answer: a file system may still lack its `mkfs`.
pub fn prepare(file_systems: &[FileSystem]) -> Option<String> {
    if let Some(why) = crate::unavailable().or_else(foreign) {
        return Some(why);
    }
    let mut packages: Vec<&str> = tool(QEMU).err().map(|_| QEMU_PACKAGE).into_iter().collect();
    packages.extend(file_systems.iter().filter(|fs| fs.unmakeable().is_some()).map(|fs| fs.package()));
    packages.dedup();
    if !packages.is_empty()
        && let Err(e) = install(&packages)
    {
        eprintln!("cannot install {}: {e:#}", packages.join(", "));
    }
    if kernel().is_err()
        && let Err(e) = download()
    {
        eprintln!("cannot download {KERNEL_PACKAGE}: {e:#}");
    }
    unavailable()
}

fn install(packages: &[&str]) -> Result<()> {
    let apt = tool("apt-get")?;
    eprintln!("installing {} with apt-get, once", packages.join(", "));
    run(Command::new(&apt).args(["update", "-qq"]))?;
    run(Command::new(&apt)
        .env("DEBIAN_FRONTEND", "noninteractive")
        .args(["install", "-y", "-qq", "--no-install-recommends"])
        .args(packages))?;
    Ok(())
}

/// Each kernel has a folder with its package's name.
fn cache() -> Result<PathBuf> {
    let home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache"));
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from).or_else(home);
    Ok(cache.context("neither XDG_CACHE_HOME nor HOME says where a cache is")?.join("onewrite/kernels"))
}

/// The newest unpacked kernel.
pub fn kernel() -> Result<Kernel> {
    let cache = cache()?;
    let entries = std::fs::read_dir(&cache).with_context(|| format!("nothing was unpacked in {}", cache.display()))?;
    let kernels = entries.flatten().filter_map(|entry| {
        let release = entry.file_name().to_str()?.strip_prefix("linux-image-")?.to_owned();
        let image = entry.path().join("boot").join(format!("vmlinuz-{release}"));
        let modules = entry.path().join("lib/modules").join(&release).join("kernel");
        (image.is_file() && modules.is_dir()).then_some((
            entry.metadata().ok()?.modified().ok()?,
            image,
            modules,
            release,
        ))
    });
    let newest = kernels.max().with_context(|| format!("none is in {}", cache.display()))?;
    let (_, image, modules, release) = newest;
    Ok(Kernel { image, modules, release })
}

fn download() -> Result<()> {
    let cache = cache()?;
    std::fs::create_dir_all(&cache).with_context(|| cache.display().to_string())?;
    let work = tempfile::Builder::new().prefix("download-").tempdir_in(&cache)?;
    let text = run(Command::new(tool("apt-cache")?).args(["depends", KERNEL_PACKAGE]))?;
    let package = text
        .lines()
        .filter_map(|line| line.trim().strip_prefix("Depends: "))
        .find(|name| name.starts_with("linux-image-"))
        .context("apt-cache does not know which kernel that is; `apt-get update` may help")?;
    eprintln!("downloading {package} (some 70 MB) for virtual machines into {}, once", cache.display());
    run(Command::new(tool("apt-get")?).args(["download", "-qq", package]).current_dir(work.path()))?;
    let archive = std::fs::read_dir(work.path())?.flatten().map(|entry| entry.path());
    let archive =
        archive.filter(|path| path.extension().is_some_and(|e| e == "deb")).last().context("no package came")?;
    let unpacked = work.path().join("unpacked");
    std::fs::create_dir(&unpacked)?;
    unpack(&archive, &unpacked)?;
    let place = cache.join(package);
    std::fs::rename(&unpacked, &place).with_context(|| format!("cannot make {}", place.display()))
}

fn unpack(archive: &Path, to: &Path) -> Result<()> {
    let mut reader =
        Command::new(tool("dpkg-deb")?).arg("--fsys-tarfile").arg(archive).stdout(Stdio::piped()).spawn()?;
    let tarfile = reader.stdout.take().context("dpkg-deb has no output")?;
    let mut tar = Command::new(tool("tar")?);
    tar.arg("-x").arg("-C").arg(to).arg("--wildcards").arg("./boot/vmlinuz-*").arg("./lib/modules/*/modules.builtin");
    tar.args(UNPACKED.map(|part| format!("./lib/modules/*/kernel/{part}")));
    tar.stdin(tarfile);
    let unpacked = run(&mut tar);
    let read = reader.wait()?;
    unpacked?;
    ensure!(read.success(), "dpkg-deb failed: {read}");
    Ok(())
}
