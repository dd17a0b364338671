//! File systems of several machines, between which neither locks nor shared memory hold.

use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// By `statfs.f_type`.
const KERNEL: [(u32, &str); 19] = [
    (0x6969, "NFS"),
    (0x517b, "SMB"),
    (0xff53_4d42, "CIFS"),
    (0xfe53_4d42, "SMB"),
    (0x0102_1997, "9p"),
    (0x5346_414f, "AFS"),
    (0x6b41_4653, "AFS"),
    (0x00c3_6400, "Ceph"),
    (0x7375_7245, "Coda"),
    (0x564c, "NCP"),
    (0x0bd0_0bd0, "Lustre"),
    (0x4750_4653, "GPFS"),
    (0x7461_636f, "OCFS2"),
    (0x0116_1970, "GFS2"),
    (0x2003_0528, "OrangeFS"),
    (0x786f_4256, "vboxsf"),
    (0xbacb_acbc, "vmhgfs"),
    (0x7c7c_6673, "prl_fs"),
    (0xaad7_aaea, "PanFS"),
];

/// `statfs.f_type` of what a program serves, and of virtiofs.
const FUSE: u32 = 0x6573_5546;

/// Others are local: gocryptfs, mergerfs, ntfs-3g.
const SERVED_BY_PROGRAMS: [&str; 31] = [
    "virtiofs",
    "fuse.sshfs",
    "fuse.grpcfuse",
    "fuse.osxfs",
    "fuse.vboxsf",
    "fuse.vmhgfs-fuse",
    "fuse.prl_fsd",
    "fuse.nfs",
    "fuse.fuse-nfs",
    "fuse.smbnetfs",
    "fuse.afuse",
    "fuse.ceph",
    "fuse.ceph-fuse",
    "fuse.glusterfs",
    "fuse.juicefs",
    "fuse.moosefs",
    "fuse.mfs",
    "fuse.lizardfs",
    "fuse.seaweedfs",
    "fuse.beegfs",
    "fuse.s3fs",
    "fuse.goofys",
    "fuse.mountpoint-s3",
    "fuse.gcsfuse",
    "fuse.blobfuse",
    "fuse.blobfuse2",
    "fuse.rclone",
    "fuse.davfs",
    "fuse.davfs2",
    "fuse.curlftpfs",
    "fuse.google-drive-ocamlfuse",
];

/// `None`: local. `mounted_as`: its name, where the number does not tell.
fn shared(magic: u32, mounted_as: impl FnOnce() -> Option<String>) -> Option<String> {
    if magic != FUSE {
        return KERNEL.iter().find(|(of, _)| *of == magic).map(|(_, name)| (*name).to_owned());
    }
    let name = mounted_as().filter(|name| SERVED_BY_PROGRAMS.contains(&name.as_str()))?;
    Some(name.strip_prefix("fuse.").unwrap_or(&name).to_owned())
}

fn mounted_as(mountinfo: &str, device: &str) -> Option<String> {
    mountinfo.lines().find_map(|line| {
        let (mount, system) = line.split_once(" - ")?;
        (mount.split(' ').nth(2)? == device).then(|| system.split(' ').next().map(str::to_owned))?
    })
}

/// The file system of `path`, if machines may share it. One that cannot be looked at counts as
/// local: the open says why.
pub fn shared_at(path: &Path) -> Option<String> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let (path, found) = match rustix::fs::statfs(path) {
        Err(e) if std::io::Error::from(e).kind() == ErrorKind::NotFound => (parent, rustix::fs::statfs(parent)),
        found => (path, found),
    };
    // 32 bits, with a sign on some systems.
    shared(found.ok()?.f_type as u32, || {
        let device = std::fs::metadata(path).ok()?.dev();
        let device = format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device));
        mounted_as(&std::fs::read_to_string("/proc/self/mountinfo").ok()?, &device)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_file_systems_are_told_from_local_ones() {
        let cases = [
            (0x6969, None, Some("NFS")),
            (0x517b, None, Some("SMB")),
            (0xff53_4d42, None, Some("CIFS")),
            (0xfe53_4d42, None, Some("SMB")),
            (0x0102_1997, None, Some("9p")),
            (0x5346_414f, None, Some("AFS")),
            (0x6b41_4653, None, Some("AFS")),
            (0x00c3_6400, None, Some("Ceph")),
            (0x786f_4256, None, Some("vboxsf")),
            (FUSE, Some("virtiofs"), Some("virtiofs")),
            (FUSE, Some("fuse.sshfs"), Some("sshfs")),
            (FUSE, Some("fuse.grpcfuse"), Some("grpcfuse")),
            (FUSE, Some("fuse.vboxsf"), Some("vboxsf")),
            (FUSE, Some("fuse.gocryptfs"), None),
            (FUSE, Some("fuse.mergerfs"), None),
            (FUSE, Some("fuseblk"), None),
            (FUSE, Some("fuse"), None),
            (FUSE, None, None),
            // ext4, xfs, btrfs, tmpfs, overlay, zfs, f2fs.
            (0xef53, None, None),
            (0x5846_5342, None, None),
            (0x9123_683e, None, None),
            (0x0102_1994, None, None),
            (0x794c_7630, None, None),
            (0x2fc1_2fc1, None, None),
            (0xf2f5_2010, None, None),
            (0xef53, Some("fuse.sshfs"), None),
        ];
        for (magic, mounted, expected) in cases {
            let found = shared(magic, || mounted.map(str::to_owned));
            assert_eq!(found.as_deref(), expected, "{magic:#x} {mounted:?}");
        }
    }

    #[test]
    fn the_mount_table_is_read_by_device() {
        let table = "22 28 0:21 / /sys rw,nosuid - sysfs sysfs rw\n\
                     28 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n\
                     90 28 0:47 / /mnt/a\\040b rw,nosuid shared:9 master:2 - fuse.sshfs me@host:/data rw,user_id=0\n\
                     91 28 0:48 / /mnt/c rw - virtiofs share rw\n\
                     a broken line\n";
        for (device, expected) in
            [("8:1", Some("ext4")), ("0:47", Some("fuse.sshfs")), ("0:48", Some("virtiofs")), ("0:4", None)]
        {
            assert_eq!(mounted_as(table, device).as_deref(), expected, "{device}");
        }
    }

    #[test]
    fn where_this_is_built_is_local_also_for_a_file_that_is_not_made_yet() {
        let here = std::env::temp_dir();
        let known = shared_at(&here);
        assert_eq!(shared_at(&here.join("onewrite-not-made-yet")), known);
        assert_eq!(shared_at(Path::new("/nowhere/at/all")), None);
    }
}
