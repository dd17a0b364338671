//! Names of the simulated files: as processes see them, as the medium has them, and what is pending.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

use super::pick;

#[derive(Clone, Debug, Default)]
pub(super) struct Names {
    view: BTreeMap<PathBuf, u64>,
    medium: BTreeMap<PathBuf, u64>,
    /// Creations (`Some`) and removals since the directory was last synced, in order.
    pending: Vec<(PathBuf, Option<u64>)>,
}

impl Names {
    pub fn get(&self, path: &Path) -> Option<u64> {
        self.view.get(path).copied()
    }

    pub fn paths(&self) -> impl Iterator<Item = &PathBuf> {
        self.view.keys()
    }

    /// Names a file, or with `None` removes the name; pending until the directory is synced.
    pub fn set(&mut self, path: &Path, ino: Option<u64>) {
        change(&mut self.view, path, ino);
        self.pending.push((path.to_owned(), ino));
    }

    /// Names a file on the medium too.
    pub fn set_durable(&mut self, path: &Path, ino: u64) {
        self.pending.retain(|(pending, _)| pending != path);
        change(&mut self.view, path, Some(ino));
        change(&mut self.medium, path, Some(ino));
    }

    /// Makes what is pending in the directory that holds `path` durable.
    pub fn sync_dir_of(&mut self, path: &Path) {
        for (pending, ino) in std::mem::take(&mut self.pending) {
            if pending.parent() == path.parent() {
                change(&mut self.medium, &pending, ino);
            } else {
                self.pending.push((pending, ino));
            }
        }
    }

    /// Makes the creation of file `ino` durable, and what happened to its name before.
    pub fn sync_creation_of(&mut self, ino: u64) {
        let Some(at) = self.pending.iter().position(|(_, pending)| *pending == Some(ino)) else { return };
        let path = self.pending[at].0.clone();
        let mut index = 0;
        self.pending.retain(|(pending, _)| {
            index += 1;
            index - 1 > at || *pending != path
        });
        change(&mut self.medium, &path, Some(ino));
    }

    /// Whether processes see a name of the file.
    pub fn shows(&self, ino: u64) -> bool {
        self.view.values().any(|&named| named == ino)
    }

    /// Whether the file has a name, or may have one after a crash.
    pub fn refers_to(&self, ino: u64) -> bool {
        self.shows(ino)
            || self.medium.values().any(|&named| named == ino)
            || self.pending.iter().any(|(_, pending)| *pending == Some(ino))
    }

    /// Options of each name with something pending: the medium's state, then after each operation.
    pub fn choices(&self) -> Vec<usize> {
        self.uncertain().into_iter().map(|path| self.states_of(path).len()).collect()
    }

    /// The names after a crash, on view and medium alike.
    pub fn crash(&self, choose: &mut dyn FnMut(usize) -> usize) -> Names {
        let mut medium = self.medium.clone();
        for path in self.uncertain() {
            let states = self.states_of(path);
            change(&mut medium, path, states[pick(states.len(), choose)]);
        }
        Names { view: medium.clone(), medium, pending: Vec::new() }
    }

    fn uncertain(&self) -> BTreeSet<&PathBuf> {
        self.pending.iter().map(|(path, _)| path).collect()
    }

    fn states_of(&self, path: &Path) -> Vec<Option<u64>> {
        let pending = self.pending.iter().filter(|(pending, _)| pending == path).map(|(_, ino)| *ino);
        std::iter::once(self.medium.get(path).copied()).chain(pending).collect()
    }
}

fn change(names: &mut BTreeMap<PathBuf, u64>, path: &Path, ino: Option<u64>) {
    match ino {
        Some(ino) => names.insert(path.to_owned(), ino),
        None => names.remove(path),
    };
}

/// `path` without `.` and `name/..`: the simulated disk has no links, so this is what it names.
pub(super) fn normal(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir if matches!(normal.components().next_back(), Some(Component::Normal(_))) => {
                normal.pop();
            }
            other => normal.push(other),
        }
    }
    normal
}
