//! The state of an open main database: the engine's connection, and the file of the VFS underneath
//! for WAL mode and read-only opens. Decides which of the two a call is for.

#![allow(unsafe_code)]

use std::ffi::{c_char, c_int, c_void};
use std::path::{Path, PathBuf};
use std::time::Duration;

use onewrite_core::disk::system::clock_rough;
use onewrite_core::disk::{FileId, OpenMode, look, mapped};
use onewrite_core::inspect::home::mark;
use onewrite_core::inspect::layout::home::{CHANGE_COUNTER, HEADER_BYTES, VERSION_BYTES};
use onewrite_core::{Connection, Error, LockLevel, Mode};

use super::caller::Caller;
use super::open::{cannot_open, options};
use super::siblings::Siblings;
use crate::host::Host;
use crate::host::base::{BaseFile, check};
use crate::host::fault::{Fault, Outcome};
use crate::host::offsets::{fill_short, offset_from};
use crate::process::fork;
use crate::sqlite::ffi::{code, open};

/// A name SQLite passed to `xOpen`: it and the URI parameters behind it live until `xClose`
/// returns.
#[derive(Clone, Copy)]
pub(crate) struct OpenName(pub(crate) *const c_char);

// SAFETY: SQLite neither changes nor frees the text while the file is open, on any thread.
unsafe impl Send for OpenName {}

pub(crate) struct MainFileState {
    pub(super) host: &'static Host,
    pub(super) name: OpenName,
    pub(super) path: PathBuf,
    /// Flags for opening the file of the VFS underneath.
    pub(super) flags: c_int,
    /// The engine's connection; none for a read-only database that was not seen to be written.
    pub(super) conn: Option<Connection>,
    /// The file of the VFS underneath, opened when first needed and kept until `xClose`.
    pub(super) base: Option<BaseFile>,
    /// Lock SQLite holds.
    pub(super) level: LockLevel,
    /// Lock held on the file underneath.
    pub(super) base_level: LockLevel,
    /// Why it is left to SQLite's own modes, though it may be written.
    pub(super) left: Option<String>,
    /// `immutable=1`: the file is not written while it is open, so no engine ever takes over.
    immutable: bool,
    /// Set by `SQLITE_FCNTL_POWERSAFE_OVERWRITE`.
    psow: Option<bool>,
    /// `PRAGMA mmap_size`: so many of the first bytes may be mapped.
    pub(crate) mmap_limit: i64,
    /// SQLite closed its WAL, and has not looked since whether its cache is still current.
    closed_wal: bool,
    /// Device and inode of the file when it was opened.
    pub(super) identity: Option<(u64, u64)>,
    /// The next answer of [`MainFileState::has_moved`], if this transaction looked already.
    pub(super) moved: Option<bool>,
    /// When the name was found to be the file's last.
    pub(super) named_at: Option<Duration>,
    /// The other files of the same SQLite connection.
    pub(crate) siblings: Siblings,
    pub(crate) caller: Caller,
    /// `journal_mode=off`: SQLite keeps nothing that it could roll a statement back with.
    pub(crate) journal_off: bool,
    /// [`fork::generation`] at the open, or when it was opened anew.
    pub(super) generation: u32,
    /// Message of the last error, for `PRAGMA onewrite_error` where there is no connection to ask.
    pub(super) last_error: Option<String>,
    /// Why no call is served any more.
    pub(super) dead: Option<&'static str>,
}

/// How long a look at the name holds for later transactions, and at least until the rough clock's
/// next tick. A file may lose its name right behind a look as well, and neither mark nor recovery
/// depends on it (rule LogFoundBySession).
const NAMED: Duration = Duration::from_millis(1);

/// The error of an open that cannot write and finds a mark.
pub(crate) const MARKED: &str = "the database is in use through onewrite, or was when its process ended: its newest transactions are in its log, \
     which a read-only or immutable connection cannot use. Open it once for writing through onewrite, or run `onewrite recover` on it";

/// The error of a database that is marked and left to SQLite for this reason.
pub(super) fn marked_elsewhere(why: &str) -> String {
    format!(
        "the database is in use through onewrite, or was when its process ended, and its newest transactions are in its log: open it \
         with network=trust, once no other machine uses it. {why}"
    )
}

fn identity(path: &Path) -> Option<(u64, u64)> {
    look::at_path(path).ok().map(|found| (found.dev, found.ino))
}

fn level_number(level: LockLevel) -> c_int {
    match level {
        LockLevel::None => 0,
        LockLevel::Shared => 1,
        LockLevel::Reserved => 2,
        LockLevel::Pending => 3,
        LockLevel::Exclusive => 4,
    }
}

pub(super) fn level_from(number: c_int, io_code: c_int) -> Outcome<LockLevel> {
    Ok(match number {
        0 => LockLevel::None,
        1 => LockLevel::Shared,
        2 => LockLevel::Reserved,
        3 => LockLevel::Pending,
        4 => LockLevel::Exclusive,
        _ => return Err(Fault::Own(io_code, format!("no such lock level: {number}"))),
    })
}

impl MainFileState {
    pub(super) fn new(
        host: &'static Host,
        name: OpenName,
        path: PathBuf,
        flags: c_int,
        conn: Option<Connection>,
        base: Option<BaseFile>,
        immutable: bool,
    ) -> MainFileState {
        let identity = identity(&path);
        MainFileState {
            host,
            name,
            path,
            flags,
            conn,
            base,
            level: LockLevel::None,
            base_level: LockLevel::None,
            left: None,
            immutable,
            psow: None,
            closed_wal: false,
            identity,
            moved: None,
            named_at: None,
            siblings: Siblings::default(),
            caller: Caller::default(),
            journal_off: false,
            mmap_limit: 0,
            generation: fork::generation(),
            last_error: None,
            dead: None,
        }
    }

    #[inline]
    pub(super) fn check_alive(&mut self, io_code: c_int) -> Outcome {
        if !self.is_carried() && self.dead.is_none() {
            return Ok(());
        }
        self.revive(io_code)
    }

    #[cold]
    fn revive(&mut self, io_code: c_int) -> Outcome {
        match self.dead {
            Some(why) => Err(Fault::Own(io_code, why.to_owned())),
            None => self.open_anew(),
        }
    }

    /// Whether calls are for the file underneath.
    pub(crate) fn forwards(&self) -> bool {
        self.conn.as_ref().is_none_or(|conn| matches!(conn.mode(), Mode::Wal))
    }

    /// The engine's connection, where calls are for it.
    pub(crate) fn engine(&mut self) -> Option<&mut Connection> {
        self.conn.as_mut().filter(|conn| !matches!(conn.mode(), Mode::Wal))
    }

    /// The engine's connection, in any mode.
    pub(crate) fn connection(&mut self) -> Option<&mut Connection> {
        self.conn.as_mut()
    }

    /// Whether onewrite answers for WAL mode, which any connection to the database asked for.
    pub(crate) fn asks_for_wal(&mut self) -> bool {
        self.engine().is_some_and(|conn| conn.absorbs_wal() && conn.asks_for_wal())
    }

    /// The connection, for calls that only a virtual journal makes.
    pub(crate) fn journal(&mut self, io_code: c_int) -> Outcome<&mut Connection> {
        self.conn.as_mut().ok_or_else(|| Fault::Own(io_code, "the journal has lost its database".to_owned()))
    }

    /// Flags for opening the file of the VFS underneath: read-only where SQLite was told that the
    /// file is.
    pub(crate) fn flags(&self) -> c_int {
        self.flags
    }

    pub(crate) fn host(&self) -> &'static Host {
        self.host
    }

    pub(crate) fn last_error(&self) -> Option<&str> {
        self.last_error.as_deref()
    }

    /// Why calls go past the engine where there is no connection of its.
    pub(crate) fn why_past(&self) -> &str {
        self.left.as_deref().unwrap_or("this connection only reads the file, past onewrite's engine")
    }

    pub(crate) fn level_number(&self) -> c_int {
        level_number(self.level)
    }

    /// The file underneath, opened if it is not yet.
    pub(crate) fn base(&mut self) -> Outcome<&mut BaseFile> {
        if self.base.is_none() {
            if !self.host.passes_through() {
                let message = "this disk has no VFS underneath: WAL mode and read-only opens are not available on it";
                return Err(Fault::Own(code::CANTOPEN, message.to_owned()));
            }
            // SAFETY: the name lives until `xClose`, which drops this file.
            let (mut file, _) = unsafe { BaseFile::open(self.host.base, self.name.0, self.flags)? };
            file.limit_mmap(self.base_mmap_limit());
            self.base = Some(file);
        }
        match &mut self.base {
            Some(file) => Ok(file),
            None => Err(Fault::Own(code::INTERNAL, "the file underneath is gone".to_owned())),
        }
    }

    /// The file underneath with the lock SQLite holds, for forwarding a call. The locks differ only
    /// when the connection turned to WAL mode under a lock (`locking_mode=EXCLUSIVE`).
    pub(crate) fn forward(&mut self) -> Outcome<&mut BaseFile> {
        if self.base_level < self.level {
            self.raise_base(self.level)?;
        }
        self.base()
    }

    fn raise_base(&mut self, level: LockLevel) -> Outcome {
        if self.base_level == LockLevel::None {
            check(self.base()?.lock(level_number(LockLevel::Shared)))?;
            self.base_level = LockLevel::Shared;
        }
        // In this order the file is never without a lock, and the engine's is not in the way of a
        // higher one.
        if let Some(conn) = &mut self.conn {
            conn.hand_over()?;
        }
        let in_wal_mode = self.conn.is_some();
        if in_wal_mode && level > LockLevel::Reserved && self.base_level < LockLevel::Reserved {
            // On Windows SQLite gives SHARED up while it tries for EXCLUSIVE: without RESERVED, two
            // that try may lose it (rule ModeUnderLock).
            check(self.base()?.lock(level_number(LockLevel::Reserved)))?;
            self.base_level = LockLevel::Reserved;
        }
        if self.base_level < level {
            check(self.base()?.lock(level_number(level)))?;
            self.base_level = level;
        }
        Ok(())
    }

    pub(crate) fn lock(&mut self, number: c_int) -> Outcome<c_int> {
        let level = level_from(number, code::IOERR_LOCK)?;
        if level <= self.level {
            if self.forwards() && self.base_level < level {
                // It turned to WAL mode under this lock.
                self.raise_base(level)?;
            }
            return Ok(code::OK);
        }
        self.adopt_engine()?;
        if level == LockLevel::Shared && self.engine().is_some_and(|conn| conn.probably_writes() && conn.is_live()) {
            // SQLite asks when it opens the journal, while others wait for the writer's place: look
            // now. A file that is not in use yet may be replaced while this lock waits: look then.
            let lately = self.named_at.is_some_and(|at| clock_rough().saturating_sub(at) < NAMED);
            self.moved = Some(!lately && self.look_whether_moved());
        }
        if self.conn.is_none() {
            let raised = self.raise_base(level);
            // A process that uses it through onewrite keeps the base from its lock (rule
            // StockKeptOut).
            if level == LockLevel::Shared && self.sees_mark()? {
                self.base_level = LockLevel::None;
                check(self.base()?.unlock(level_number(LockLevel::None)))?;
                if let Some(why) = &self.left {
                    return Err(Fault::Own(code::CANTOPEN, marked_elsewhere(why)));
                }
                self.conn = Some(self.open_with(OpenMode::ReadOnly, &self.given()?, &[])?);
            } else {
                raised?;
            }
        }
        if level == LockLevel::Reserved && self.host.passes_through() {
            self.conn.as_mut().map(Connection::leaves_foreign_file);
        }
        let spans = level == LockLevel::Exclusive && self.siblings.spans();
        let (explicit, has_read) = self.caller.transaction(&self.host.api);
        let may_ask = self.caller.busy().is_some();
        match self.engine() {
            None => {
                if self.base_level < level {
                    self.raise_base(level)?;
                }
            }
            Some(conn) => {
                conn.note_span(spans);
                conn.note_transaction(explicit, has_read, may_ask);
                conn.lock(level)?;
                // The first lock decides the mode: in WAL mode the file underneath is locked alike.
                if self.forwards()
                    && let Err(fault) = self.raise_base(level)
                {
                    if let Some(conn) = &mut self.conn {
                        conn.unlock(self.level)?;
                    }
                    return Err(fault);
                }
            }
        }
        self.level = level;
        self.siblings.set_writes(level >= LockLevel::Reserved);
        Ok(code::OK)
    }

    /// A connection past the engine joins it at the begin of a transaction if this process writes
    /// the database by now: the file alone is then behind.
    fn adopt_engine(&mut self) -> Outcome {
        if self.conn.is_some() || self.immutable || self.level != LockLevel::None {
            return Ok(());
        }
        if self.host.engine().is_attached(&self.path) {
            let writes = self.left.is_some() && self.flags & open::READWRITE != 0;
            let mode = if writes { OpenMode::ReadWrite } else { OpenMode::ReadOnly };
            self.conn = Some(self.open_with(mode, &self.given()?, &[])?);
        }
        Ok(())
    }

    /// The settings that it was opened with.
    pub(super) fn given(&self) -> Outcome<Vec<(String, String)>> {
        // SAFETY: the name is that of `xOpen`, which lives until `xClose`.
        unsafe { options(self.host, self.name.0) }
    }

    /// Opens a connection with these settings, or the others where another connection of this
    /// process contradicts them.
    pub(super) fn open_with(
        &self,
        mode: OpenMode,
        settings: &[(String, String)],
        otherwise: &[(String, String)],
    ) -> Outcome<Connection> {
        let engine = self.host.engine();
        let opened = match engine.open(&self.path, mode, settings) {
            Err(Error::Option(_)) => engine.open(&self.path, mode, otherwise),
            opened => opened,
        };
        opened.map_err(cannot_open)
    }

    /// Whether another process has marked the file since this read-only connection opened it. The
    /// mark neither comes nor goes under SHARED; without it the engine looks again.
    fn sees_mark(&mut self) -> Outcome<bool> {
        let mut header = [0; HEADER_BYTES];
        let read = self.base()?.read(&mut header, 0);
        Ok(!self.immutable && read == code::OK && mark(&header).is_some())
    }

    pub(crate) fn unlock(&mut self, number: c_int) -> Outcome<c_int> {
        let level = level_from(number, code::IOERR_UNLOCK)?;
        self.moved = None;
        if level < LockLevel::Reserved {
            self.siblings.set_writes(false);
        }
        let forwards = self.forwards();
        // Also at this level already: a lock that was refused may have left PENDING.
        if self.base_level > LockLevel::None && self.base_level >= level {
            check(self.base()?.unlock(level_number(level)))?;
            self.base_level = level;
        }
        if let Some(conn) = &mut self.conn
            && (!forwards || level == LockLevel::None)
        {
            // Level NONE even after an error, as SQLite sees it: the next lock starts afresh.
            self.level = self.level.min(level);
            conn.unlock(level)?;
        }
        self.level = self.level.min(level);
        Ok(code::OK)
    }

    pub(crate) fn check_reserved_lock(&mut self) -> Outcome<bool> {
        match self.engine() {
            Some(conn) => Ok(conn.is_reserved()?),
            None => {
                let mut answer = 0;
                check(self.forward()?.check_reserved_lock(&mut answer))?;
                Ok(answer != 0)
            }
        }
    }

    pub(crate) fn read(&mut self, buf: &mut [u8], offset: i64) -> Outcome<c_int> {
        let rc = self.read_at(buf, offset)?;
        if self.closed_wal && (buf.len(), offset) == (VERSION_BYTES, CHANGE_COUNTER as i64) {
            self.closed_wal = false;
            buf.iter_mut().for_each(|byte| *byte = !*byte);
        }
        Ok(rc)
    }

    fn read_at(&mut self, buf: &mut [u8], offset: i64) -> Outcome<c_int> {
        match self.engine() {
            Some(conn) => {
                let got = conn.read_at(buf, offset_from(offset, code::IOERR_READ)?)?;
                Ok(fill_short(buf, got))
            }
            None => {
                let rc = self.forward()?.read(buf, offset);
                // Behind the open SQLite reads the header without a lock; the first lock looks.
                let is_early = self.level == LockLevel::None && buf.len() == HEADER_BYTES;
                if self.conn.is_none()
                    && offset == 0
                    && !is_early
                    && buf.get(..HEADER_BYTES).is_some_and(|header| mark(header).is_some())
                {
                    let why = self.left.as_deref().map_or_else(|| MARKED.to_owned(), marked_elsewhere);
                    return Err(Fault::Own(code::CANTOPEN, why));
                }
                Ok(rc)
            }
        }
    }

    pub(crate) fn write(&mut self, data: &[u8], offset: i64) -> Outcome<c_int> {
        match self.engine() {
            Some(conn) => conn.write_at(data, offset_from(offset, code::IOERR_WRITE)?)?,
            None => return Ok(self.forward()?.write(data, offset)),
        }
        Ok(code::OK)
    }

    pub(crate) fn truncate(&mut self, len: i64) -> Outcome<c_int> {
        match self.engine() {
            Some(conn) => conn.truncate(offset_from(len, code::IOERR_TRUNCATE)?)?,
            None => return Ok(self.forward()?.truncate(len)),
        }
        Ok(code::OK)
    }

    pub(crate) fn sync(&mut self, flags: c_int) -> Outcome<c_int> {
        match self.engine() {
            Some(conn) => conn.sync()?,
            None => return Ok(self.forward()?.sync(flags)),
        }
        Ok(code::OK)
    }

    pub(crate) fn size(&mut self) -> Outcome<i64> {
        match self.engine() {
            Some(conn) => Ok(i64::try_from(conn.size()?).unwrap_or(i64::MAX)),
            None => {
                let mut size = 0;
                check(self.forward()?.size(&mut size))?;
                Ok(size)
            }
        }
    }

    /// Whether a write may be assumed to leave the bytes around it alone when the power fails.
    pub(crate) fn psow(&self) -> bool {
        self.psow.unwrap_or_else(|| self.conn.as_ref().is_none_or(Connection::psow))
    }

    pub(crate) fn set_psow(&mut self, on: bool) {
        self.psow = Some(on);
    }

    /// Negative leaves it, and so does SQLite while it holds a page. Its own limit holds, too:
    /// `SQLITE_MAX_MMAP_SIZE`.
    pub(crate) fn limit_mmap(&mut self, bytes: i64) {
        if bytes >= 0 && !self.conn.as_ref().is_some_and(Connection::holds_mapped) {
            self.mmap_limit = bytes.min(0x7fff_0000);
            self.conn.as_mut().map(Connection::unmap);
            let limit = self.base_mmap_limit();
            if let Some(base) = &mut self.base {
                base.limit_mmap(limit);
            }
        }
    }

    /// None where SQLite's own VFS only reads the file, and a writer may get a copy of it.
    fn base_mmap_limit(&self) -> i64 {
        let only_reads = self.flags & open::READWRITE == 0;
        let may_be_stale = self.mmap_limit > 0 && only_reads && mapped::is_copied_to_write(&self.path);
        if may_be_stale { 0 } else { self.mmap_limit }
    }

    /// `xFetch`: where a page is in memory; null: SQLite reads it.
    pub(crate) fn fetch(&mut self, offset: i64, amount: c_int) -> Outcome<(c_int, *mut c_void)> {
        let limit = u64::try_from(self.mmap_limit).unwrap_or(0);
        match self.engine() {
            Some(conn) => {
                let len = usize::try_from(amount).unwrap_or(0);
                let at = conn.fetch(offset_from(offset, code::IOERR_MMAP)?, len, limit);
                Ok((code::OK, at.map_or(std::ptr::null_mut(), |at| at.cast_mut().cast())))
            }
            None => Ok(self.forward()?.fetch(offset, amount)),
        }
    }

    /// `xUnfetch`; null: nothing needs to be mapped any more.
    pub(crate) fn unfetch(&mut self, offset: i64, page: *mut c_void) -> c_int {
        if let (Some(conn), Ok(offset)) = (&mut self.conn, u64::try_from(offset)) {
            if page.is_null() {
                conn.unmap();
            } else if conn.unfetch(offset) {
                return code::OK;
            }
        }
        self.base.as_mut().map_or(code::OK, |base| base.unfetch(offset, page))
    }

    /// `xShmUnmap`, which ends a WAL: others' commits to it may have left the change counter as it
    /// was, by which SQLite knows its cache (rule CacheKnowsItsState).
    pub(crate) fn shm_unmap(&mut self, delete: c_int) -> Outcome<c_int> {
        self.closed_wal = true;
        Ok(self.base()?.shm_unmap(delete))
    }

    /// Whether the name leads to another file than the one that was opened. In WAL mode, where a
    /// lock is not given back before the close, it is looked for each time (rule ModeUnderLock).
    pub(crate) fn has_moved(&mut self) -> bool {
        let forwards = self.forwards();
        let moved = self.moved.take().filter(|_| !forwards).unwrap_or_else(|| self.look_whether_moved());
        if moved && self.conn.is_some() {
            // SQLite's own message says "readonly database".
            let why = format!(
                "{} is not the file any more that was opened, which was moved, renamed, removed or replaced while it is in use: move it \
                 back, or close it and open it again. In another directory it does not find its log, which is moved with it when nobody \
                 uses it",
                self.path.display()
            );
            self.last_error = Some(why.clone());
            let fault = Fault::Own(code::READONLY_DBMOVED, why);
            fault.report(&self.host.api, &self.path.to_string_lossy(), code::READONLY_DBMOVED);
        }
        moved
    }

    fn look_whether_moved(&mut self) -> bool {
        if !self.host.passes_through() {
            return false;
        }
        if self.identity.is_none() {
            self.identity = identity(&self.path);
            return false;
        }
        let named = identity(&self.path);
        // Two files may take turns in having the name.
        let is_ours = |(dev, ino)| self.conn.as_ref().is_some_and(|conn| conn.has_file(FileId { dev, ino }));
        let moved = self.identity != named && !named.is_some_and(is_ours);
        self.named_at = (!moved).then(clock_rough);
        moved
    }
}
