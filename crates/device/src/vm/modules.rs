//! Kernel modules in an order in which they load: a section of each module names the modules it
//! needs.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::mkfs::{run, tool};

/// A kernel's modules by name.
pub struct Modules {
    files: BTreeMap<String, PathBuf>,
    builtin: Vec<String>,
}

impl Modules {
    /// `directory` is the folder `kernel` of a version's modules; the list of built-in modules lies
    /// beside it.
    pub fn of(directory: &Path) -> Result<Modules> {
        let mut files = BTreeMap::new();
        let mut directories = vec![directory.to_owned()];
        while let Some(directory) = directories.pop() {
            for entry in std::fs::read_dir(&directory).with_context(|| directory.display().to_string())? {
                let path = entry?.path();
                if path.is_dir() {
                    directories.push(path);
                } else {
                    files.insert(name(&path.to_string_lossy()), path);
                }
            }
        }
        let builtin = std::fs::read_to_string(directory.with_file_name("modules.builtin"))?;
        Ok(Modules { files, builtin: builtin.lines().map(name).collect() })
    }

    /// These modules and all that they need, in an order in which they load.
    pub fn in_order(&self, wanted: &[&str]) -> Result<Vec<(String, Vec<u8>)>> {
        let mut loaded = Vec::new();
        for wanted in wanted {
            self.add(wanted, &mut loaded)?;
        }
        Ok(loaded)
    }

    fn add(&self, wanted: &str, loaded: &mut Vec<(String, Vec<u8>)>) -> Result<()> {
        let wanted = name(wanted);
        if self.builtin.contains(&wanted) || loaded.iter().any(|(name, _)| *name == wanted) {
            return Ok(());
        }
        let path = self.files.get(&wanted).with_context(|| format!("the kernel has no module {wanted}"))?;
        let bytes = read(path)?;
        for needed in needs(&bytes) {
            self.add(&needed, loaded).with_context(|| format!("for {wanted}"))?;
        }
        loaded.push((wanted, bytes));
        Ok(())
    }
}

/// `-` and `_` are the same.
fn name(path: &str) -> String {
    let file = path.rsplit('/').next().unwrap_or(path);
    file.split(".ko").next().unwrap_or(file).replace('-', "_")
}

fn read(path: &Path) -> Result<Vec<u8>> {
    let compressed = path.extension().is_some_and(|e| e == "xz");
    if !compressed {
        return std::fs::read(path).with_context(|| path.display().to_string());
    }
    let place = tempfile::tempdir()?;
    let copy = place.path().join("module.ko.xz");
    std::fs::copy(path, &copy)?;
    run(Command::new(tool("xz")?).arg("-d").arg(&copy))?;
    Ok(std::fs::read(copy.with_extension(""))?)
}

/// The names after `depends=`.
fn needs(module: &[u8]) -> Vec<String> {
    let entries = module.split(|byte| *byte == 0);
    let found = entries.filter_map(|entry| std::str::from_utf8(entry.strip_prefix(b"depends=")?).ok());
    found.flat_map(|names| names.split(',')).filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_come_before_those_that_need_them() {
        let root = tempfile::tempdir().unwrap();
        let kernel = root.path().join("kernel");
        std::fs::create_dir_all(kernel.join("fs/a")).unwrap();
        std::fs::write(root.path().join("modules.builtin"), "kernel/lib/built-in.ko\n").unwrap();
        let module = |path: &str, depends: &str| {
            std::fs::write(kernel.join(path), format!("ELF\0license=GPL\0depends={depends}\0name=x\0")).unwrap();
        };
        module("fs/a/a.ko", "b-c,built_in");
        module("fs/b-c.ko", "");
        module("other.ko", "gone");
        let modules = Modules::of(&kernel).unwrap();
        let names = |wanted: &[&str]| -> Vec<String> {
            modules.in_order(wanted).unwrap().into_iter().map(|(name, _)| name).collect()
        };
        assert_eq!(names(&["a", "b_c"]), ["b_c", "a"]);
        assert!(format!("{:#}", modules.in_order(&["other"]).unwrap_err()).contains("gone"));
    }
}
