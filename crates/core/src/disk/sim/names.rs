//! Names of simulated files: the processes' view, the medium, pending changes.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

use super::pick;
use crate::disk::NamesStamp;

#[derive(Clone, Debug, Default)]
pub(super) struct Names {
    view: Map,
    medium: Map,
    pending: Vec<NameChange>,
    crashes: u64,
    changes: u64,
}

type Map = BTreeMap<PathBuf, u64>;

#[derive(Clone, Debug)]
enum NameChange {
    /// Without a file, a removal.
    Set(PathBuf, Option<u64>),
    Exchange(PathBuf, PathBuf),
    /// To the second name.
    Rename(PathBuf, PathBuf),
}

impl NameChange {
    fn paths(&self) -> impl Iterator<Item = &PathBuf> {
        let (one, other) = match self {
            NameChange::Set(path, _) => (path, None),
            NameChange::Exchange(one, other) | NameChange::Rename(one, other) => (one, Some(other)),
        };
        std::iter::once(one).chain(other)
    }

    fn touches(&self, path: &Path) -> bool {
        self.paths().any(|own| own == path)
    }

    fn creates(&self, ino: u64) -> bool {
        matches!(self, NameChange::Set(_, Some(made)) if *made == ino)
    }

    fn apply(&self, names: &mut Map) {
        match self {
            NameChange::Set(path, ino) => set(names, path, *ino),
            NameChange::Exchange(one, other) => {
                let (a, b) = (names.get(one).copied(), names.get(other).copied());
                set(names, one, b);
                set(names, other, a);
            }
            NameChange::Rename(from, to) => {
                let ino = names.remove(from);
                set(names, to, ino);
            }
        }
    }
}

impl Names {
    pub fn get(&self, path: &Path) -> Option<u64> {
        self.view.get(path).copied()
    }

    pub fn paths(&self) -> impl Iterator<Item = &PathBuf> {
        self.view.keys()
    }

    /// `None` removes the name. All changes are pending until the directory is synced.
    pub fn set(&mut self, path: &Path, ino: Option<u64>) {
        self.change(NameChange::Set(path.to_owned(), ino));
    }

    pub fn exchange(&mut self, one: &Path, other: &Path) {
        self.change(NameChange::Exchange(one.to_owned(), other.to_owned()));
    }

    pub fn rename(&mut self, from: &Path, to: &Path) {
        self.change(NameChange::Rename(from.to_owned(), to.to_owned()));
    }

    fn change(&mut self, change: NameChange) {
        self.changes += 1;
        change.apply(&mut self.view);
        self.pending.push(change);
    }

    pub fn set_durable(&mut self, path: &Path, ino: u64) {
        self.changes += 1;
        self.pending.retain(|change| !change.touches(path));
        set(&mut self.view, path, Some(ino));
        set(&mut self.medium, path, Some(ino));
    }

    pub fn stamp(&self) -> NamesStamp {
        NamesStamp([self.start(), 0, self.changes, 0])
    }

    pub fn start(&self) -> u64 {
        1 + self.crashes
    }

    pub fn sync_dir_of(&mut self, path: &Path) {
        for change in std::mem::take(&mut self.pending) {
            if change.paths().any(|own| own.parent() == path.parent()) {
                change.apply(&mut self.medium);
            } else {
                self.pending.push(change);
            }
        }
    }

    pub fn sync_all(&mut self) {
        std::mem::take(&mut self.pending).into_iter().for_each(|change| change.apply(&mut self.medium));
    }

    /// Earlier changes of its name become durable, too.
    pub fn sync_creation_of(&mut self, ino: u64) {
        let Some(at) = self.pending.iter().position(|change| change.creates(ino)) else { return };
        let paths: Vec<PathBuf> = self.pending[at].paths().cloned().collect();
        let group = self.groups().into_iter().find(|group| paths.iter().any(|path| group.contains(path)));
        let group = group.unwrap_or_default();
        let mut index = 0;
        let medium = &mut self.medium;
        self.pending.retain(|change| {
            index += 1;
            let now = index - 1 <= at && change.paths().any(|path| group.contains(path));
            if now {
                change.apply(medium);
            }
            !now
        });
    }

    pub fn shows(&self, ino: u64) -> bool {
        self.view.values().any(|&named| named == ino)
    }

    pub fn refers_to(&self, ino: u64) -> bool {
        self.shows(ino)
            || self.medium.values().any(|&named| named == ino)
            || self.pending.iter().any(|change| change.creates(ino))
    }

    pub fn choices(&self) -> Vec<usize> {
        self.groups().iter().map(|group| self.changes_of(group).count() + 1).collect()
    }

    pub fn crash(&self, choose: &mut dyn FnMut(usize) -> usize) -> Names {
        let mut medium = self.medium.clone();
        for group in self.groups() {
            let arrived = pick(self.changes_of(&group).count() + 1, choose);
            self.changes_of(&group).take(arrived).for_each(|change| change.apply(&mut medium));
        }
        Names { view: medium.clone(), medium, pending: Vec::new(), crashes: self.crashes + 1, changes: 0 }
    }

    /// Exchanged names form a group, whose changes arrive in order.
    fn groups(&self) -> Vec<BTreeSet<PathBuf>> {
        let mut groups: Vec<BTreeSet<PathBuf>> = Vec::new();
        for change in &self.pending {
            let mut group: BTreeSet<PathBuf> = change.paths().cloned().collect();
            groups.retain(|other| {
                let joins = !other.is_disjoint(&group);
                if joins {
                    group.extend(other.iter().cloned());
                }
                !joins
            });
            groups.push(group);
        }
        groups.sort();
        groups
    }

    fn changes_of<'a>(&'a self, group: &'a BTreeSet<PathBuf>) -> impl Iterator<Item = &'a NameChange> {
        self.pending.iter().filter(|change| change.paths().any(|path| group.contains(path)))
    }
}

fn set(names: &mut Map, path: &Path, ino: Option<u64>) {
    match ino {
        Some(ino) => names.insert(path.to_owned(), ino),
        None => names.remove(path),
    };
}

/// Without `.` and `name/..`, as there are no links.
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
