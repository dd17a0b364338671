//! The machine's first file system: an archive in cpio's format `newc`, which the kernel unpacks
//! into memory.

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::mkfs::{run, tool};

/// An archive in the making.
#[derive(Default)]
pub struct Initramfs {
    bytes: Vec<u8>,
    known: BTreeSet<PathBuf>,
    count: u32,
}

const DIRECTORY: u32 = 0o040_755;
const FILE: u32 = 0o100_644;
const CONSOLE: u32 = 0o020_600;

impl Initramfs {
    pub fn new() -> Initramfs {
        let mut archive = Initramfs::default();
        archive.directories(Path::new("/dev/console"));
        archive.entry("dev/console", CONSOLE, (5, 1), &[]);
        archive
    }

    /// Adds a file.
    pub fn file(&mut self, path: &Path, executable: bool, bytes: &[u8]) {
        if self.known.insert(path.to_owned()) {
            self.directories(path);
            let mode = if executable { FILE | 0o111 } else { FILE };
            self.entry(&path.to_string_lossy()[1..], mode, (0, 0), bytes);
        }
    }

    /// Adds an empty directory.
    pub fn directory(&mut self, path: &Path) {
        self.directories(&path.join("x"));
    }

    /// Adds a program or library under the path `at`, with the libraries it needs under their own
    /// paths.
    pub fn program(&mut self, from: &Path, at: &Path) -> Result<()> {
        self.copy(from, at)?;
        for library in libraries(from)? {
            self.copy(&library, &library)?;
        }
        Ok(())
    }

    fn copy(&mut self, from: &Path, at: &Path) -> Result<()> {
        let context = || from.display().to_string();
        let executable = std::fs::metadata(from).with_context(context)?.permissions().mode() & 0o111 != 0;
        self.file(at, executable, &std::fs::read(from).with_context(context)?);
        Ok(())
    }

    /// The finished archive.
    pub fn finish(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, (0, 0), &[]);
        self.bytes
    }

    fn directories(&mut self, path: &Path) {
        let above: Vec<&Path> = path.ancestors().skip(1).filter(|p| p.parent().is_some()).collect();
        for directory in above.into_iter().rev() {
            if self.known.insert(directory.to_owned()) {
                self.entry(&directory.to_string_lossy()[1..], DIRECTORY, (0, 0), &[]);
            }
        }
    }

    fn entry(&mut self, name: &str, mode: u32, device: (u32, u32), bytes: &[u8]) {
        self.count += 1;
        let (len, name_len) = (bytes.len() as u32, name.len() as u32 + 1);
        // inode, mode, owner, group, links, time, length, device of the file, device that it is,
        // length of the name, checksum (of another format)
        let header = [self.count, mode, 0, 0, 1, 0, len, 0, 0, device.0, device.1, name_len, 0];
        self.bytes.extend_from_slice(b"070701");
        for number in header {
            self.bytes.extend_from_slice(format!("{number:08x}").as_bytes());
        }
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(bytes);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

/// The shared libraries it needs, the loader included; none of a static program.
fn libraries(program: &Path) -> Result<Vec<PathBuf>> {
    // ldd fails for a static program.
    let text = run(Command::new(tool("ldd")?).arg(program)).unwrap_or_default();
    Ok(text.split_ascii_whitespace().filter(|word| word.starts_with('/')).map(PathBuf::from).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_archive_has_the_format_of_cpio() {
        let mut archive = Initramfs::new();
        archive.file(Path::new("/a/b"), true, b"12345");
        archive.file(Path::new("/a/b"), true, b"again");
        let bytes = archive.finish();
        let mut names = Vec::new();
        let mut at = 0;
        while at < bytes.len() {
            assert_eq!(&bytes[at..at + 6], b"070701");
            let number = |i: usize| {
                let from = at + 6 + 8 * i;
                usize::from_str_radix(std::str::from_utf8(&bytes[from..from + 8]).unwrap(), 16).unwrap()
            };
            let (mode, len, name_len) = (number(1), number(6), number(11));
            let name = String::from_utf8(bytes[at + 110..at + 109 + name_len].to_vec()).unwrap();
            let content = (at + 110 + name_len).next_multiple_of(4);
            if name == "a/b" {
                assert_eq!((mode, &bytes[content..content + len]), (0o100_755, &b"12345"[..]));
            }
            names.push(name);
            at = (content + len).next_multiple_of(4);
        }
        assert_eq!(names, ["dev", "dev/console", "a", "a/b", "TRAILER!!!"]);
    }

    #[test]
    fn this_program_has_libraries_or_none() {
        let found = libraries(&std::env::current_exe().unwrap()).unwrap();
        assert!(found.iter().all(|library| library.is_file()), "{found:?}");
    }
}
