//! A panic inside the engine is an I/O error to SQLite, and the connection serves nothing more. The
//! disk is one that panics on request.

#![allow(unsafe_code)]

use crate::common;

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use common::{explain, logged, setup};
use onewrite_core::disk::real::RealDisk;
use onewrite_core::disk::{Disk, DiskFile, OpenMode};
use rusqlite::{Connection, OpenFlags, ffi};

static ARMED: AtomicBool = AtomicBool::new(false);

struct FaultyDisk(RealDisk);
struct FaultyFile(Arc<dyn DiskFile>);

impl Disk for FaultyDisk {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn DiskFile>> {
        Ok(Arc::new(FaultyFile(self.0.open(path, mode)?)))
    }

    onewrite_core::forward_disk!(
        this => this.0;
        remove, rename, names_beside, exchange, identify, resolve, exists, sync_dir_of, sync_all_beside, syncs_all, temp_file
    );
}

impl DiskFile for FaultyFile {
    fn write_durable_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        assert!(!ARMED.load(Ordering::SeqCst), "the disk panics as asked");
        self.0.write_durable_at(buf, offset)
    }

    onewrite_core::forward_disk_file!(
        this => this.0;
        id, len, read_once_at, write_at, sync, set_len, reserve, try_lock, unlock, atomic_unit_bytes
    );
}

#[test]
fn a_panic_is_an_error_and_the_connection_serves_nothing_more() {
    let dir = setup();
    let path = dir.path().join("panic.db");
    // SAFETY: SQLite's own functions.
    unsafe {
        onewrite::register_with_disk(&onewrite_rusqlite::api(), c"faulty", Arc::new(FaultyDisk(RealDisk::new())))
            .unwrap();
    }
    let db = Connection::open_with_flags_and_vfs(&path, OpenFlags::default(), c"faulty").unwrap();
    db.execute_batch("CREATE TABLE t(x); INSERT INTO t VALUES (1)").unwrap();
    ARMED.store(true, Ordering::SeqCst);
    let (code, _) = explain(db.execute_batch("INSERT INTO t VALUES (2)").unwrap_err());
    ARMED.store(false, Ordering::SeqCst);
    assert_eq!(code & 0xff, ffi::SQLITE_IOERR);
    let (_, line) = logged(&path).unwrap();
    assert!(line.contains("onewrite:"), "{line}");
    let (code, _) = explain(db.execute_batch("INSERT INTO t VALUES (3)").unwrap_err());
    assert_eq!(code & 0xff, ffi::SQLITE_IOERR);
    drop(db);
}
