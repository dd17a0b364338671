//! Files of the operating system: [`RealDisk`].
//!
//! A `write_durable_at` is one call where the system has one: all other facts are asked once.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use nix::libc;
use rustc_hash::FxHashMap;
use rustix::fs::{RenameFlags, SeekFrom};
use rustix::io::{Errno, retry_on_intr};

use super::common::{self, ATOMIC_UNIT_BYTES_MIN, directory_of};
use super::forked::ForkSafeFile;
use super::mapped::MappedFile;
use super::processes::ProcessTag;
use super::range_lock::{self, RangeLock};
use super::shared::ForkSafeMap;
use super::sync::Mutex;
use super::{Access, Disk, DiskFile, FileId, FileSeal, LockKind, NamesStamp, OpenMode, SharedWords, lock_range};
use super::{host, look};

/// This machine's. Clones share knowledge of devices.
#[derive(Clone, Debug, Default)]
pub struct RealDisk {
    atomic_units: AtomicUnits,
}

impl RealDisk {
    /// This machine's files.
    pub fn new() -> Self {
        Self::default()
    }

    fn wrap(&self, open: impl FnOnce() -> io::Result<File>) -> io::Result<Arc<dyn DiskFile>> {
        self.wrap_known(|_| open())
    }

    /// `open` may tell the identity.
    fn wrap_known(&self, open: impl FnOnce(&OnceLock<FileId>) -> io::Result<File>) -> io::Result<Arc<dyn DiskFile>> {
        note_limit();
        let id = OnceLock::new();
        Ok(Arc::new(RealFile {
            file: ForkSafeFile::by(|| at_descriptor(open(&id)?, 3))?,
            id,
            words: OnceLock::new(),
            kept_map: KeptMap::default(),
            atomic_unit: OnceLock::new(),
            without_dsync: AtomicBool::new(false),
            atomic_units: self.atomic_units.clone(),
        }))
    }
}

impl Disk for RealDisk {
    fn shared_between_machines(&self, path: &Path) -> Option<String> {
        host::shared_at(path)
    }

    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn DiskFile>> {
        let mut options = OpenOptions::new();
        // Never waits at a pipe; std adds O_CLOEXEC and retries EINTR.
        options.read(true).mode(0o644).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY);
        match mode {
            OpenMode::ReadOnly => {}
            OpenMode::ReadWrite => {
                options.write(true);
            }
            OpenMode::Create => {
                options.write(true).create(true).truncate(false);
            }
        }
        self.wrap_known(|id| {
            let file = options.open(path)?;
            let found = look::at(&file)?;
            found.regular()?;
            id.get_or_init(|| found.id());
            Ok(file)
        })
    }

    fn open_beside(&self, path: &Path, mode: OpenMode, access: Option<Access>) -> io::Result<Arc<dyn DiskFile>> {
        self.wrap(|| {
            loop {
                match open_own(path, mode) {
                    Err(e) if e.kind() == ErrorKind::NotFound && mode == OpenMode::Create => {}
                    opened => {
                        let file = opened?;
                        if let Some(access) = access
                            && access_of(&file)?.admits_more_than(access)
                        {
                            let _ = restrict(&file, access);
                        }
                        return Ok(file);
                    }
                }
                match make_own(path, |file| access.map_or(Ok(()), |access| restrict(file, access))) {
                    Err(e) if e.kind() == ErrorKind::AlreadyExists => {}
                    made => return made,
                }
            }
        })
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        match host::rename_as(from, to, RenameFlags::NOREPLACE) {
            // The file system lacks the flag.
            Err(Errno::INVAL | Errno::NOSYS) if self.exists(to)? => Err(ErrorKind::AlreadyExists.into()),
            Err(Errno::INVAL | Errno::NOSYS) => fs::rename(from, to),
            done => Ok(done?),
        }
    }

    fn full_path(&self, path: &Path) -> Option<PathBuf> {
        look::without_links(path)
    }

    fn names_beside(&self, path: &Path) -> io::Result<Vec<PathBuf>> {
        common::names_beside(path)
    }

    fn identify(&self, path: &Path) -> io::Result<Option<FileId>> {
        common::identify(path)
    }

    fn resolve(&self, path: &Path) -> io::Result<PathBuf> {
        common::resolve(path)
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        common::exists(path)
    }

    fn check_regular(&self, path: &Path) -> io::Result<()> {
        look::at_path(path)?.regular()
    }

    fn exchange(&self, one: &Path, other: &Path) -> io::Result<()> {
        match host::rename_as(one, other, RenameFlags::EXCHANGE) {
            Err(Errno::INVAL | Errno::NOSYS) => Err(ErrorKind::Unsupported.into()),
            done => Ok(done?),
        }
    }

    fn create_like(&self, path: &Path, like: &Path) -> io::Result<Arc<dyn DiskFile>> {
        let like = fs::metadata(like)?;
        let give = |file: &File| {
            let own = file.metadata()?;
            let change = |own, wanted| (own != wanted).then_some(wanted);
            let (uid, gid) = (change(own.uid(), like.uid()), change(own.gid(), like.gid()));
            if uid.is_some() || gid.is_some() {
                fchown(file, uid, gid)?;
            }
            if own.permissions() == like.permissions() { Ok(()) } else { file.set_permissions(like.permissions()) }
        };
        self.wrap(|| make_own(path, give))
    }

    fn this_process(&self) -> ProcessTag {
        ProcessTag::this()
    }

    fn system_start(&self) -> Option<u64> {
        static BOOT: OnceLock<Option<u64>> = OnceLock::new();
        *BOOT.get_or_init(host::this_boot)
    }

    /// When the directory changed, if long enough ago for the next change to get another time (rule
    /// NamesFlushedOnce).
    fn names_stamp(&self, path: &Path) -> io::Result<Option<NamesStamp>> {
        // A clock that stops while off may repeat times after a start.
        let Some(boot) = self.system_start() else { return Ok(None) };
        let dir = fs::metadata(directory_of(path))?;
        let (Ok(changed), Ok(changed_ns)) = (u64::try_from(dir.ctime()), u64::try_from(dir.ctime_nsec())) else {
            return Ok(None);
        };
        let changed_at = SystemTime::UNIX_EPOCH + Duration::new(changed, u32::try_from(changed_ns).unwrap_or(0));
        // A clock set back may repeat a time in seconds.
        let is_settled = SystemTime::now().duration_since(changed_at).is_ok_and(|age| age >= CLOCK_STEP);
        Ok((is_settled && !changed_ns.is_multiple_of(COARSE_NS)).then_some(NamesStamp([
            boot ^ dir.dev().rotate_left(32),
            dir.ino(),
            changed,
            changed_ns,
        ])))
    }

    fn sync_dir_of(&self, path: &Path) -> io::Result<()> {
        let dir = match File::open(directory_of(path)) {
            // Writable, not readable: then its file system is flushed.
            Err(e) if e.kind() == ErrorKind::PermissionDenied => {
                let Ok(file) = host::nameless_in(directory_of(path)) else { return Err(e) };
                return host::flush_file_system(&file);
            }
            dir => dir?,
        };
        match host::flush_names(&dir) {
            // Directories cannot be synced here.
            Err(Errno::INVAL) => Ok(()),
            done => Ok(done?),
        }
    }

    fn sync_all_beside(&self, path: &Path) -> io::Result<()> {
        host::flush_file_system(&File::open(path)?)
    }

    fn is_due(&self, last: &mut Option<Duration>, every: Duration) -> bool {
        common::is_due(last, every)
    }

    fn temp_file(&self, near: &Path) -> io::Result<Arc<dyn DiskFile>> {
        self.wrap(|| common::nameless(near, host::nameless_in))
    }
}

/// Opens a regular file that has one name, which is no link (rule SideFilesPrivate).
fn open_own(path: &Path, mode: OpenMode) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(mode != OpenMode::ReadOnly);
    options.custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY);
    let refused = |what| Err(common::refused(what));
    let irregular = "is not a regular file";
    let file = match options.open(path) {
        Err(e) => match e.raw_os_error() {
            Some(libc::ELOOP) => return refused("is a symbolic link"),
            Some(libc::ENXIO | libc::ENODEV | libc::EISDIR) => return refused(irregular),
            _ => return Err(e),
        },
        Ok(file) => file,
    };
    let found = look::at(&file)?;
    match (found.is_file(), found.names) {
        (false, _) => refused(irregular),
        (true, 0 | 1) => Ok(file),
        (true, _) => refused("has other names, too (hard links)"),
    }
}

/// Creates a file that is private until `give` has set its access.
fn make_own(path: &Path, give: impl FnOnce(&File) -> io::Result<()>) -> io::Result<File> {
    let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(path)?;
    match give(&file) {
        Ok(()) => Ok(file),
        Err(e) => {
            fs::remove_file(path)?;
            Err(e)
        }
    }
}

fn access_of(file: &File) -> io::Result<Access> {
    let found = look::at(file)?;
    Ok(Access { uid: found.uid, gid: found.gid, mode: found.mode & 0o777 })
}

/// Only root can change the user. Without the group, the own group gets the permissions of all. FAT
/// has one owner and mode for all files, and lets the owner alone ask for them.
fn restrict(file: &File, access: Access) -> io::Result<()> {
    let own = access_of(file)?;
    if own == access {
        return Ok(());
    }
    if own.uid != access.uid {
        let _ = fchown(file, Some(access.uid), None);
    }
    let has_group = own.gid == access.gid || fchown(file, None, Some(access.gid)).is_ok();
    let others = access.mode & 0o7;
    let mode = if has_group { access.mode & 0o777 } else { access.mode & 0o707 | others << 3 };
    file.set_permissions(fs::Permissions::from_mode(mode))
}

/// The last one of a file, to be used again.
pub(super) type KeptMap = Mutex<Option<Arc<ForkSafeMap>>>;

#[derive(Debug)]
struct RealFile {
    file: ForkSafeFile,
    id: OnceLock<FileId>,
    words: OnceLock<Arc<SharedWords>>,
    /// For [`DiskFile::sync_from`].
    kept_map: KeptMap,
    atomic_unit: OnceLock<u32>,
    /// The system or file system has no such call.
    without_dsync: AtomicBool,
    atomic_units: AtomicUnits,
}

/// `RLIMIT_FSIZE` when a file was last opened or grown. A write beyond it raises a signal, or
/// `EFBIG` where that is ignored.
static FILE_BYTES_MAX: AtomicU64 = AtomicU64::new(u64::MAX);

fn note_limit() {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Fsize);
    FILE_BYTES_MAX.store(limit.current.unwrap_or(u64::MAX), Ordering::Relaxed);
}

fn check_limit(offset: u64, buf: &[u8]) -> io::Result<()> {
    let fits = offset.saturating_add(buf.len() as u64) <= FILE_BYTES_MAX.load(Ordering::Relaxed);
    if fits { Ok(()) } else { Err(ErrorKind::FileTooLarge.into()) }
}

impl RealFile {
    fn check_growth(&self, len: u64) -> io::Result<()> {
        note_limit();
        let fits = len <= FILE_BYTES_MAX.load(Ordering::Relaxed) || len <= self.len()?;
        if fits { Ok(()) } else { Err(ErrorKind::FileTooLarge.into()) }
    }

    fn lock(&self, offset: u64, len: u64, kind: libc::c_short) -> io::Result<bool> {
        let lock = lock_of(offset, len, kind)?;
        loop {
            return match range_lock::set(&self.file, &lock) {
                Ok(()) => Ok(true),
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN | Errno::ACCESS) => Ok(false),
                Err(e) => Err(e.into()),
            };
        }
    }
}

fn lock_of(offset: u64, len: u64, kind: libc::c_short) -> io::Result<RangeLock> {
    let (start, len) = lock_range(offset, len)?;
    Ok(RangeLock {
        l_type: kind,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: start,
        l_len: len,
        l_pid: 0, // Must be 0 for locks of the open file description.
    })
}

// The constants have other widths elsewhere.
const UNLOCKED: libc::c_short = libc::F_UNLCK as libc::c_short;

fn lock_type(kind: LockKind) -> libc::c_short {
    match kind {
        LockKind::Shared => libc::F_RDLCK as libc::c_short,
        LockKind::Exclusive => libc::F_WRLCK as libc::c_short,
    }
}

impl DiskFile for RealFile {
    fn id(&self) -> io::Result<FileId> {
        if let Some(id) = self.id.get() {
            return Ok(*id);
        }
        let found = look::at(&self.file)?;
        Ok(*self.id.get_or_init(|| found.id()))
    }

    fn made(&self) -> io::Result<Option<u64>> {
        look::made(&self.file)
    }

    fn access(&self) -> io::Result<Option<Access>> {
        access_of(&self.file).map(Some)
    }

    fn is_unlinked(&self) -> io::Result<bool> {
        Ok(look::at(&self.file)?.names == 0)
    }

    fn len(&self) -> io::Result<u64> {
        // Cheaper than a stat; the file's offset is unused.
        Ok(rustix::fs::seek(&self.file, SeekFrom::End(0))?)
    }

    fn read_once_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        Ok(retry_on_intr(|| rustix::io::pread(&self.file, &mut *buf, offset))?)
    }

    fn next_data(&self, offset: u64) -> io::Result<Option<u64>> {
        match rustix::fs::seek(&self.file, SeekFrom::Data(offset)) {
            Ok(at) => Ok(Some(at.max(offset))),
            Err(Errno::NXIO) => Ok(None),
            Err(Errno::INVAL | Errno::OPNOTSUPP) => Ok(Some(offset)),
            Err(e) => Err(e.into()),
        }
    }

    fn begin_write_back(&self, offset: u64, len: u64) {
        host::begin_write_back(&self.file, offset, len);
    }

    fn finish_write_back(&self, from: u64) -> io::Result<()> {
        match host::finish_write_back(&self.file, from) {
            // Other errors than the medium's: a kernel or sandbox lacks the call.
            Err(e) if e.raw_os_error() != Some(libc::EIO) && e.kind() != ErrorKind::StorageFull => self.sync(),
            done => done,
        }
    }

    fn seal(&self) -> io::Result<Option<FileSeal>> {
        host::seal(&self.file, self.len()?)
    }

    fn has_seal(&self, seal: FileSeal) -> io::Result<bool> {
        Ok(host::sealed(&self.file) == Some(seal))
    }

    fn write_at(&self, mut buf: &[u8], mut offset: u64) -> io::Result<()> {
        check_limit(offset, buf)?;
        while !buf.is_empty() {
            let done = retry_on_intr(|| rustix::io::pwrite(&self.file, buf, offset))?;
            (buf, offset) = advance(buf, offset, done)?;
        }
        Ok(())
    }

    fn write_durable_at(&self, mut buf: &[u8], mut offset: u64) -> io::Result<()> {
        check_limit(offset, buf)?;
        while !buf.is_empty() {
            if self.without_dsync.load(Ordering::Relaxed) {
                self.write_at(buf, offset)?;
                return self.sync();
            }
            match host::write_flushed(&self.file, buf, offset) {
                Ok(done) => (buf, offset) = advance(buf, offset, done)?,
                Err(Errno::INTR) => {} // The bytes are written again, not only flushed again.
                Err(Errno::OPNOTSUPP | Errno::NOSYS) => self.without_dsync.store(true, Ordering::Relaxed),
                Err(e) => return Err(e.into()),
            }
        }
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        // Not retried, even after EINTR: a second fdatasync may say Ok without a write.
        Ok(host::flush(&self.file)?)
    }

    fn sync_from(&self, from: u64) -> io::Result<()> {
        host::flush_from(&self.file, &self.kept_map, from)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.check_growth(len)?;
        Ok(retry_on_intr(|| rustix::fs::ftruncate(&self.file, len))?)
    }

    fn reserve(&self, len: u64) -> io::Result<()> {
        if len == 0 {
            return Ok(());
        }
        self.check_growth(len)?;
        match retry_on_intr(|| host::reserve(&self.file, 0, len)) {
            Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => Ok(()),
            done => Ok(done?),
        }
    }

    fn try_lock(&self, offset: u64, len: u64, kind: LockKind) -> io::Result<bool> {
        self.lock(offset, len, lock_type(kind))
    }

    fn unlock(&self, offset: u64, len: u64) -> io::Result<()> {
        self.lock(offset, len, UNLOCKED).map(drop)
    }

    fn conflicts(&self, offset: u64, len: u64, kind: LockKind) -> io::Result<bool> {
        let mut lock = lock_of(offset, len, lock_type(kind))?;
        range_lock::find(&self.file, &mut lock)?;
        Ok(lock.l_type != UNLOCKED)
    }

    fn posix_owner(&self, offset: u64, len: u64) -> Option<u32> {
        let mut lock = lock_of(offset, len, lock_type(LockKind::Exclusive)).ok()?;
        range_lock::find(&self.file, &mut lock).ok()?;
        // -1: an open-file-description lock. 0: a process of another PID namespace.
        let is_locked = lock.l_type != UNLOCKED;
        u32::try_from(lock.l_pid).ok().filter(|pid| is_locked && *pid != 0)
    }

    fn shared_words(&self, blocks: usize) -> io::Result<Arc<SharedWords>> {
        if let Some(words) = self.words.get() {
            return Ok(words.clone());
        }
        let words = Arc::new(SharedWords::map(&self.file, blocks)?);
        Ok(self.words.get_or_init(|| words).clone())
    }

    fn map(&self, bytes: u64) -> io::Result<Option<MappedFile>> {
        MappedFile::of(&self.file, bytes)
    }

    fn atomic_unit_bytes(&self) -> u32 {
        *self.atomic_unit.get_or_init(|| {
            let device = self.id().map(|id| id.dev);
            device.map_or(ATOMIC_UNIT_BYTES_MIN, |device| self.atomic_units.of(&self.file, device))
        })
    }
}

#[derive(Clone, Debug, Default)]
struct AtomicUnits(Arc<Mutex<FxHashMap<u64, u32>>>);

/// SQLite's largest page.
const ATOMIC_UNIT_BYTES_MAX: u32 = 65536;

impl AtomicUnits {
    fn of(&self, file: &File, dev: u64) -> u32 {
        *self.0.lock().entry(dev).or_insert_with(|| {
            let fs_block = rustix::fs::fstatvfs(file).ok().map(|fs| fs.f_frsize.min(fs.f_bsize));
            atomic_unit(host::physical_block_bytes(dev), fs_block)
        })
    }
}

/// The smaller, rounded down to a power of two within the limits; the least if unknown.
fn atomic_unit(physical_block: Option<u64>, fs_block: Option<u64>) -> u32 {
    let (Some(physical_block), Some(fs_block)) = (physical_block, fs_block) else { return ATOMIC_UNIT_BYTES_MIN };
    let bytes = physical_block.min(fs_block).min(ATOMIC_UNIT_BYTES_MAX.into()) as u32;
    let power = bytes.checked_ilog2().map_or(0, |log| 1 << log);
    power.max(ATOMIC_UNIT_BYTES_MIN)
}

/// Above the clock step of a file system, 10 ms at most.
const CLOCK_STEP: Duration = Duration::from_millis(50);
/// In nanoseconds, of coarse times.
const COARSE_NS: u64 = 10_000_000;

/// 3 avoids the standard descriptors, into which a host that closed them may print.
fn at_descriptor(file: File, min: RawFd) -> io::Result<File> {
    if file.as_raw_fd() >= min {
        return Ok(file);
    }
    Ok(rustix::io::fcntl_dupfd_cloexec(file.as_fd(), min)?.into())
}

fn advance(buf: &[u8], offset: u64, done: usize) -> io::Result<(&[u8], u64)> {
    match buf.get(done..) {
        Some(rest) if done > 0 => Ok((rest, offset + done as u64)),
        _ => Err(ErrorKind::WriteZero.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

    fn open(dir: &tempfile::TempDir, name: &str) -> Arc<dyn DiskFile> {
        RealDisk::new().open(&dir.path().join(name), OpenMode::Create).unwrap()
    }

    #[test]
    fn data_is_found_behind_a_hole() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let disk = RealDisk::new();
        let file = disk.open(file.path(), OpenMode::ReadWrite).unwrap();
        file.write_at(&[1; 4096], 0).unwrap();
        file.write_at(&[2; 4096], 64 << 20).unwrap();
        file.set_len(1 << 30).unwrap();
        assert_eq!(file.next_data(100).unwrap(), Some(100));
        let found = file.next_data(1 << 20).unwrap().unwrap();
        assert!((1 << 20..=64 << 20).contains(&found), "{found}");
        let behind = file.next_data((64 << 20) + 4096).unwrap();
        assert!(behind.is_none_or(|at| at == (64 << 20) + 4096), "{behind:?}");
        assert_eq!(file.len().unwrap(), 1 << 30);
    }

    #[test]
    fn a_pipe_and_a_directory_are_no_database_and_are_not_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let pipe = dir.path().join("pipe");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
        for mode in [OpenMode::ReadOnly, OpenMode::ReadWrite, OpenMode::Create] {
            let refused = RealDisk::new().open(&pipe, mode).err().map(|e| e.kind());
            assert_eq!(refused, Some(ErrorKind::InvalidInput), "{mode:?}");
        }
        assert!(RealDisk::new().open(dir.path(), OpenMode::ReadOnly).is_err());
    }

    #[test]
    #[cfg_attr(
        any(feature = "portable", all(unix, not(target_os = "linux"))),
        ignore = "POSIX does not tell starts of the system apart"
    )]
    fn a_directory_that_changes_has_another_stamp() {
        let dir = tempfile::tempdir().unwrap();
        let (disk, path) = (RealDisk::new(), dir.path().join("db"));
        let stamp = || disk.names_stamp(&path).unwrap();
        let settled = || {
            let since = std::time::Instant::now();
            loop {
                match stamp() {
                    Some(stamp) => return stamp,
                    None => assert!(since.elapsed() < Duration::from_secs(9), "it never settles"),
                }
                std::thread::sleep(Duration::from_millis(5));
            }
        };
        let mut seen = vec![settled()];
        let changes: [&dyn Fn(); 3] = [
            &|| drop(disk.open(&path, OpenMode::Create).unwrap()),
            &|| disk.rename(&path, &dir.path().join("other")).unwrap(),
            &|| disk.remove(&dir.path().join("other")).unwrap(),
        ];
        for change in changes {
            change();
            assert_eq!(stamp(), None, "just changed");
            let now = settled();
            assert!(!seen.contains(&now) && now == settled());
            seen.push(now);
        }
        let file = disk.open(&dir.path().join("db2"), OpenMode::Create).unwrap();
        let now = settled();
        file.write_at(b"content", 0).unwrap();
        file.sync().unwrap();
        assert_eq!(settled(), now, "what is in a file is no name");
    }

    fn read_all(file: &dyn DiskFile) -> Vec<u8> {
        let mut bytes = vec![0xee; file.len().unwrap() as usize + 10];
        let count = file.read_at(&mut bytes, 0).unwrap();
        bytes.truncate(count);
        bytes
    }

    fn write_calls() -> Option<u64> {
        let io = fs::read_to_string("/proc/thread-self/io").ok()?;
        io.lines().find_map(|line| line.strip_prefix("syscw: "))?.parse().ok()
    }

    #[test]
    fn reads_return_writes_and_tell_the_end_of_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let file = open(&dir, "a");
        file.write_at(b"world", 6).unwrap();
        file.write_durable_at(b"hello ", 0).unwrap();
        assert_eq!(read_all(&*file), b"hello world");
        assert_eq!(file.read_at(&mut [0; 4], 11).unwrap(), 0);
        file.set_len(5).unwrap();
        file.set_len(7).unwrap();
        assert_eq!(read_all(&*file), b"hello\0\0");
        file.sync().unwrap();
    }

    #[test]
    fn a_durable_write_is_one_write_call() {
        let dir = tempfile::tempdir().unwrap();
        let file = open(&dir, "a");
        file.write_durable_at(&[1; 4096], 0).unwrap();
        let Some(before) = write_calls() else { return };
        file.write_durable_at(&[2; 65536], 0).unwrap();
        assert_eq!(write_calls().unwrap() - before, 1);
    }

    #[test]
    fn a_durable_write_works_without_dsync() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        let file = RealFile {
            file: ForkSafeFile::by(|| OpenOptions::new().read(true).write(true).create_new(true).open(path)).unwrap(),
            id: OnceLock::new(),
            words: OnceLock::new(),
            kept_map: KeptMap::default(),
            atomic_unit: OnceLock::new(),
            without_dsync: AtomicBool::new(true),
            atomic_units: AtomicUnits::default(),
        };
        file.write_durable_at(b"abc", 2).unwrap();
        assert_eq!(read_all(&file), b"\0\0abc");
    }

    #[test]
    #[cfg_attr(
        any(feature = "portable", all(unix, not(target_os = "linux"))),
        ignore = "POSIX reserves no room behind a file's end"
    )]
    fn reserve_takes_room_and_keeps_the_length() {
        let dir = tempfile::tempdir().unwrap();
        let file = open(&dir, "a");
        file.write_at(b"abc", 0).unwrap();
        file.reserve(1 << 20).unwrap();
        file.reserve(0).unwrap();
        assert_eq!(file.len().unwrap(), 3);
        assert!(file.reserve(i64::MAX as u64).is_err());
    }

    #[test]
    fn open_modes_and_names() {
        let dir = tempfile::tempdir().unwrap();
        let disk = RealDisk::new();
        let path = dir.path().join("a");
        let kind = |mode| disk.open(&path, mode).err().map(|e| e.kind());
        assert_eq!(kind(OpenMode::ReadOnly), Some(ErrorKind::NotFound));
        assert_eq!(kind(OpenMode::ReadWrite), Some(ErrorKind::NotFound));
        assert!(!disk.exists(&path).unwrap());
        let made = disk.open(&path, OpenMode::Create).unwrap();
        made.write_at(b"kept", 0).unwrap();
        assert_eq!(read_all(&*disk.open(&path, OpenMode::Create).unwrap()), b"kept");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o133, 0);
        let read_only = disk.open(&path, OpenMode::ReadOnly).unwrap();
        assert!(read_only.write_at(b"x", 0).is_err());
        assert!(read_only.write_durable_at(b"x", 0).is_err());
        disk.sync_dir_of(&path).unwrap();
        disk.sync_dir_of(Path::new("just-a-name")).unwrap();
        assert!(disk.sync_dir_of(&path.join("no/such")).is_err());
        disk.remove(&path).unwrap();
        assert!(!disk.exists(&path).unwrap());
        assert_eq!(disk.remove(&path).unwrap_err().kind(), ErrorKind::NotFound);
    }

    #[test]
    #[cfg_attr(any(feature = "portable", target_os = "android"), ignore = "POSIX exchanges no names")]
    fn names_are_exchanged_and_a_new_file_is_as_private_as_its_model() {
        let dir = tempfile::tempdir().unwrap();
        let disk = RealDisk::new();
        let (one, other) = (dir.path().join("one"), dir.path().join("other"));
        fs::write(&one, b"one").unwrap();
        fs::set_permissions(&one, fs::Permissions::from_mode(0o640)).unwrap();
        assert_eq!(disk.exchange(&one, &other).unwrap_err().kind(), ErrorKind::NotFound);
        let made = disk.create_like(&other, &one).unwrap();
        made.write_at(b"other", 0).unwrap();
        assert_eq!(fs::metadata(&other).unwrap().permissions().mode() & 0o777, 0o640);
        assert_eq!(disk.create_like(&other, &one).err().map(|e| e.kind()), Some(ErrorKind::AlreadyExists));
        disk.exchange(&one, &other).unwrap();
        assert_eq!((fs::read(&one).unwrap(), fs::read(&other).unwrap()), (b"other".to_vec(), b"one".to_vec()));
        assert_eq!(Some(made.id().unwrap()), disk.identify(&one).unwrap(), "an open file keeps what it is");
    }

    #[test]
    fn a_file_that_is_as_private_as_wanted_is_left_so() {
        // As on FAT, only its owner could be asked to change it, and may not.
        let Ok(file) = File::open("/proc/self/status") else { return };
        let own = access_of(&file).unwrap();
        restrict(&file, own).unwrap();
        let refused = restrict(&file, Access { mode: own.mode ^ 0o200, ..own }).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::PermissionDenied);
    }

    #[test]
    fn a_file_beside_a_database_has_its_mode_and_owner() {
        let dir = tempfile::tempdir().unwrap();
        let disk = RealDisk::new();
        let path = dir.path().join("beside");
        let mut access = open(&dir, "db").access().unwrap().unwrap();
        access.mode = 0o640;
        let open = |mode| disk.open_beside(&path, mode, Some(access));
        assert_eq!(open(OpenMode::ReadWrite).err().map(|e| e.kind()), Some(ErrorKind::NotFound));
        assert_eq!(open(OpenMode::Create).unwrap().access().unwrap(), Some(access));
        for (own, afterwards) in [(0o644, 0o640), (0o662, 0o662), (0o600, 0o600)] {
            fs::set_permissions(&path, fs::Permissions::from_mode(own)).unwrap();
            assert_eq!(open(OpenMode::Create).unwrap().access().unwrap().map(|a| a.mode), Some(afterwards));
        }
        let refused = |mode| open(mode).err().map(|e| (e.kind(), e.to_string().contains("move it away")));
        fs::hard_link(&path, dir.path().join("other")).unwrap();
        assert_eq!(refused(OpenMode::Create), Some((ErrorKind::InvalidInput, true)));
        fs::remove_file(&path).unwrap();
        for target in ["other", "nothing"] {
            std::os::unix::fs::symlink(dir.path().join(target), &path).unwrap();
            for mode in [OpenMode::Create, OpenMode::ReadWrite, OpenMode::ReadOnly] {
                assert_eq!(refused(mode), Some((ErrorKind::InvalidInput, true)));
            }
            fs::remove_file(&path).unwrap();
        }
        assert!(!dir.path().join("nothing").exists());
        fs::create_dir(&path).unwrap();
        assert_eq!(refused(OpenMode::ReadWrite), Some((ErrorKind::InvalidInput, true)));
    }

    #[test]
    fn a_file_gets_another_name_if_that_is_free() {
        let dir = tempfile::tempdir().unwrap();
        let disk = RealDisk::new();
        let (one, other) = (dir.path().join("one"), dir.path().join("other"));
        let file = open(&dir, "one");
        open(&dir, "other");
        assert_eq!(disk.rename(&one, &other).unwrap_err().kind(), ErrorKind::AlreadyExists);
        disk.remove(&other).unwrap();
        disk.rename(&one, &other).unwrap();
        assert_eq!(disk.identify(&other).unwrap(), Some(file.id().unwrap()));
        assert_eq!(disk.names_beside(&one).unwrap(), std::slice::from_ref(&other));
        assert!(!file.is_unlinked().unwrap());
        disk.remove(&other).unwrap();
        assert!(file.is_unlinked().unwrap());
    }

    #[test]
    fn one_file_by_two_paths_has_one_id() {
        let dir = tempfile::tempdir().unwrap();
        let disk = RealDisk::new();
        let a = open(&dir, "a");
        fs::hard_link(dir.path().join("a"), dir.path().join("link")).unwrap();
        let link = disk.open(&dir.path().join("./link"), OpenMode::ReadOnly).unwrap();
        assert_eq!(a.id().unwrap(), link.id().unwrap());
        assert_ne!(a.id().unwrap(), open(&dir, "b").id().unwrap());
        assert_eq!(a.id().unwrap().ino, fs::metadata(dir.path().join("a")).unwrap().ino());
    }

    #[test]
    fn a_temp_file_has_no_name() {
        let dir = tempfile::tempdir().unwrap();
        let file = RealDisk::new().temp_file(&dir.path().join("db")).unwrap();
        file.write_at(b"abc", 0).unwrap();
        assert_eq!(read_all(&*file), b"abc");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        assert_eq!(file.id().unwrap().dev, fs::metadata(dir.path()).unwrap().dev());
        let missing = RealDisk::new().temp_file(&dir.path().join("no/such"));
        assert_eq!(missing.err().map(|e| e.kind()), Some(ErrorKind::NotFound));
    }

    #[test]
    fn a_file_can_be_kept_off_low_descriptors() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("a"), "abc").unwrap();
        let file = File::open(dir.path().join("a")).unwrap();
        let (number, moved) = (file.as_raw_fd(), at_descriptor(file, 500).unwrap());
        assert!(number < 500 && moved.as_raw_fd() >= 500);
        assert_eq!(moved.metadata().unwrap().len(), 3);
        let number = moved.as_raw_fd();
        assert_eq!(at_descriptor(moved, 3).unwrap().as_raw_fd(), number);
    }

    #[test]
    fn the_atomic_unit_is_never_more_than_both_claim() {
        assert_eq!(atomic_unit(Some(4096), Some(4096)), 4096);
        assert_eq!(atomic_unit(Some(512), Some(4096)), 512);
        assert_eq!(atomic_unit(Some(16384), Some(4096)), 4096);
        assert_eq!(atomic_unit(Some(1 << 20), Some(1 << 20)), 65536);
        assert_eq!(atomic_unit(Some(12288), Some(1 << 40)), 8192);
        assert_eq!(atomic_unit(Some(0), Some(4096)), 512);
        assert_eq!(atomic_unit(None, Some(4096)), 512);
        assert_eq!(atomic_unit(Some(4096), None), 512);
    }

    #[test]
    fn the_atomic_unit_is_asked_once_per_device() {
        let dir = tempfile::tempdir().unwrap();
        let disk = RealDisk::new();
        let a = disk.open(&dir.path().join("a"), OpenMode::Create).unwrap();
        let unit = a.atomic_unit_bytes();
        assert!(unit.is_power_of_two() && (512..=65536).contains(&unit));
        disk.atomic_units.0.lock().insert(a.id().unwrap().dev, 8192);
        let b = disk.clone().open(&dir.path().join("b"), OpenMode::Create).unwrap();
        assert_eq!((a.atomic_unit_bytes(), b.atomic_unit_bytes()), (unit, 8192));
    }
}
