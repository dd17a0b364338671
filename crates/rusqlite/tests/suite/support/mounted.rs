//! File systems that tests make, as root.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

/// Gone when dropped.
pub struct Mounted(TempDir);

fn runs(program: &str, arguments: &[&str]) -> bool {
    let done = Command::new(program).args(arguments).output();
    done.is_ok_and(|done| done.status.success())
}

impl Mounted {
    fn by(kind: &str, mount: impl FnOnce(&Path, &str) -> bool) -> Option<Mounted> {
        let dir = TempDir::new().unwrap();
        let at = dir.path().join("at");
        fs::create_dir(&at).unwrap();
        let done = mount(dir.path(), at.to_str()?);
        if !done {
            println!("skipped: {kind} cannot be mounted here");
        }
        done.then_some(Mounted(dir))
    }

    /// A small one.
    pub fn new(kind: &str, kib: u64) -> Option<Mounted> {
        Mounted::by(kind, |dir, at| match kind {
            "tmpfs" => runs("mount", &["-t", "tmpfs", "-o", &format!("size={kib}k"), "tmpfs", at]),
            _ => {
                let image = dir.join("image");
                fs::File::create(&image).unwrap().set_len(kib << 10).unwrap();
                let image = image.to_str().unwrap();
                runs("mkfs.ext4", &["-q", "-F", "-m", "0", image]) && runs("mount", &["-o", "loop", image, at])
            }
        })
    }

    /// `lower` is an image's in a container: a file is copied when it is first opened for
    /// writing.
    pub fn over(lower: &Path) -> Option<Mounted> {
        Mounted::by("overlayfs", |dir, at| {
            let (upper, work) = (dir.join("upper"), dir.join("work"));
            fs::create_dir(&upper).and_then(|()| fs::create_dir(&work)).unwrap();
            let [lower, upper, work] = [lower, &upper, &work].map(Path::display);
            let of = format!("lowerdir={lower},upperdir={upper},workdir={work}");
            runs("mount", &["-t", "overlay", "-o", &of, "overlay", at])
        })
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join("at").join(name)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let at = self.0.path().join("at");
        let done = Command::new("umount").arg(&at).status();
        if !done.is_ok_and(|s| s.success()) {
            eprintln!("{} is still mounted", at.display());
        }
    }
}
