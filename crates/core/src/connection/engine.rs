use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustc_hash::FxHashMap;

use super::Connection;
use crate::base::clock::Instant;
use crate::base::error::{Error, IoContext, Result};
use crate::base::options::Options;
use crate::connection::schemes;
use crate::database::queue::ConnectionId;
use crate::database::{AttachHook, Database, Phase};
use crate::disk::locks;
use crate::disk::sync::Mutex;
use crate::disk::{Disk, DiskFile, FileId, OpenMode};
use crate::log::several::Several;

type Parked = (FileId, bool, Arc<dyn DiskFile>);

/// The databases of this process on one disk.
pub struct Engine {
    pub(super) disk: Arc<dyn Disk>,
    pub(super) databases: Mutex<FxHashMap<FileId, Arc<Database>>>,
    /// Files that cannot be closed yet: closing any descriptor drops all POSIX locks of this
    /// process on the file.
    parked: Mutex<Vec<Parked>>,
    pub(super) several: Mutex<FxHashMap<PathBuf, Arc<Several>>>,
    connections: AtomicU64,
    attached: AttachHook,
    /// A file that is closed while databases are looked at would stay open, with the lock that
    /// closing takes.
    pub(super) looking: Mutex<()>,
    /// The function tells processes apart; its first answer follows.
    pub(super) process: (fn() -> u32, u32),
}

impl Engine {
    /// An engine on `disk`.
    pub fn new(disk: Arc<dyn Disk>) -> Arc<Engine> {
        Engine::in_process(disk, std::process::id)
    }

    /// `process` must answer differently in a child of a fork. Every transaction calls it, so a
    /// system call is too slow.
    pub fn in_process(disk: Arc<dyn Disk>, process: fn() -> u32) -> Arc<Engine> {
        let (databases, parked, several, attached, looking) = Default::default();
        Arc::new(Engine {
            disk,
            databases,
            parked,
            several,
            connections: AtomicU64::new(1),
            attached,
            looking,
            process: (process, process()),
        })
    }

    /// The file is not read. Options in `given` must agree with those in force, unless all others
    /// only read. A reader joins writers and recovers nothing.
    pub fn open(self: &Arc<Self>, path: &Path, mode: OpenMode, given: &[(String, String)]) -> Result<Connection> {
        let options = Options::given(given)?;
        let what = || format!("cannot open the database {}", path.display());
        // Every link to the file finds one log.
        let path = self.disk.resolve(path).context(what)?;
        let mut databases = self.databases.lock();
        let id = self.disk.identify(&path).context(what)?;
        // A renamed file is opened like another process's: files beside it have the new name.
        let by_name = |db: &Arc<Database>| db.path == path || !matches!(db.has_name(), Ok(false));
        let known = id.and_then(|id| find(&databases, id)).filter(by_name);
        let reads = mode == OpenMode::ReadOnly;
        let db = match known {
            Some(db) => {
                use_as_well(&db, &options, given, reads)?;
                db
            }
            None => {
                let (home, read_only) = self.open_home(id, &path, mode).context(what)?;
                let id = home.id().context(what)?;
                let mut db = Database::new(self.disk.clone(), &path, home, options.clone(), schemes::of);
                db.read_only = read_only;
                db.attached = self.attached.clone();
                db.inner.get_mut().recovers = !reads;
                let db = Arc::new(db);
                databases.insert(id, db.clone());
                db
            }
        };
        db.inner.lock().connections += 1;
        let id = ConnectionId(self.connections.fetch_add(1, Ordering::Relaxed));
        Ok(Connection::new(self.clone(), db, id, &options, reads))
    }

    /// The file, and whether it can only be read: it is not to be written, and may not be.
    fn open_home(&self, id: Option<FileId>, path: &Path, mode: OpenMode) -> io::Result<(Arc<dyn DiskFile>, bool)> {
        let parked = |read_only| {
            let mut parked = self.parked.lock();
            let at = parked.iter().position(|(file, reads, _)| (Some(*file), *reads) == (id, read_only))?;
            Some(parked.swap_remove(at).2)
        };
        if let Some(home) = parked(false) {
            return Ok((home, false));
        }
        if mode != OpenMode::ReadOnly {
            return Ok((self.disk.open(path, mode)?, false));
        }
        match self.disk.open(path, OpenMode::ReadWrite) {
            Err(e) if matches!(e.kind(), ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem) => {
                let home = parked(true).map_or_else(|| self.disk.open(path, mode), Ok)?;
                Ok((home, true))
            }
            opened => Ok((opened?, false)),
        }
    }

    pub(super) fn close_home(&self, db: &Database) {
        let mut parked = self.parked.lock();
        if let Ok(id) = db.home.id() {
            parked.push((id, db.read_only, db.home.clone()));
        }
        parked.retain(|(_, read_only, home)| {
            // With all locks obtainable, no other holder exists. They go with the file.
            let free = if *read_only { locks::nobody(&**home) } else { locks::everything(&**home) };
            !matches!(free, Ok(true))
        });
    }

    pub(super) fn find(&self, id: FileId) -> Option<Arc<Database>> {
        find(&self.databases.lock(), id)
    }

    /// Calls `hook` with `None` whenever this process attaches to a log. Behind the transaction
    /// that did, and where it begins to keep SHARED, it is called with the time in which
    /// [`Engine::look_after`] is due, or `None`: never. `hook` returns whether a thread calls that.
    /// Set once; runs with locks held.
    pub fn on_attach(&self, hook: impl Fn(Option<Duration>) -> bool + Send + Sync + 'static) {
        let _ = self.attached.set(Box::new(hook));
    }

    /// Detaches from databases idle for the time of `idle`, or longer where they commit regularly,
    /// and gives back SHARED of those at rest that are read no longer. Returns the time to the next
    /// look; `None`: there is neither.
    pub fn look_after(&self, now: Instant, failed: impl Fn(&Path, &Error)) -> Option<Duration> {
        let _closes_wait = self.looking.lock();
        let databases: Vec<_> = self.databases.lock().values().cloned().collect();
        let look = |db: &Arc<Database>| {
            let told = |e: Error| failed(&db.path, &e);
            let kept = db.give_up_kept(now).map_err(told).ok().flatten();
            let attached = db.looks_in().and_then(|_| {
                db.rest_if_quiet(now).unwrap_or_else(told);
                db.looks_in()
            });
            [kept, attached].into_iter().flatten().min()
        };
        databases.iter().filter_map(look).min()
    }

    /// Whether this process surely has no database open. Waits for no lock.
    pub fn is_unused(&self) -> bool {
        self.databases.try_lock().is_some_and(|databases| databases.is_empty())
    }

    /// Detaches from all databases without a transaction, as the process ends.
    pub fn rest(&self, failed: impl Fn(&Path, &Error)) {
        if (self.process.0)() != self.process.1 {
            // In a child of a fork they are the parent's.
            return;
        }
        let _closes_wait = self.looking.lock();
        let databases: Vec<_> = self.databases.lock().values().cloned().collect();
        for db in databases {
            if let Err(e) = db.rest_for_good() {
                failed(&db.path, &e);
            }
        }
    }

    /// Whether this process has the file at `path` open.
    pub fn is_attached(&self, path: &Path) -> bool {
        let id = self.disk.identify(path).ok().flatten();
        id.is_some_and(|id| self.find(id).is_some())
    }
}

fn use_as_well(db: &Database, options: &Options, given: &[(String, String)], reads: bool) -> Result<()> {
    if db.read_only && !reads {
        return Err(Error::ReadOnly(format!("{} may only be read in this process", db.path.display())));
    }
    let mut inner = db.inner.lock();
    let fits = inner.phase != Phase::Live
        || (db.facts().all_in_log()
            && options.bundle.scheme == inner.options.bundle.scheme
            && !options.concurrent
            && options.psow == inner.options.psow);
    if !reads && !inner.recovers && fits {
        inner.recovers = true;
        db.set_options(&mut inner, options.clone());
    }
    let is_own = |name: &str| Options::OWN.contains(&name) || (reads && name == "psow");
    for (name, _) in given.iter().filter(|(name, _)| !is_own(name)) {
        let (asked, in_force) = (options.get(name), inner.options.get(name));
        if asked != in_force {
            return Err(Error::Option(format!(
                "{name}={} was asked for, but {} is open in this process with {name}={}",
                asked.unwrap_or_default(),
                db.path.display(),
                in_force.unwrap_or_default()
            )));
        }
    }
    Ok(())
}

/// A file of the scheme may have home's name.
fn find(databases: &FxHashMap<FileId, Arc<Database>>, id: FileId) -> Option<Arc<Database>> {
    let second = || databases.values().find(|db| db.takes_name(id));
    databases.get(&id).or_else(second).cloned()
}
