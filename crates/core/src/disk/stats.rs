//! A database's cost, for users who count writes to an SD card.

use std::fmt::Write as _;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::disk::DiskFile;
use crate::disk::sync::Mutex;

/// Since this process opened the database.
#[derive(Default, Debug)]
pub struct Stats {
    /// Write transactions.
    pub commits: AtomicU64,
    /// Of these, in place.
    pub in_place: AtomicU64,
    /// Pages of those.
    pub in_place_pages: AtomicU64,
    /// Bytes of their undo records.
    pub undo_bytes: AtomicU64,
    /// In-page transactions that used the log: no room for undo.
    pub undo_misfits: AtomicU64,
    /// Records appended.
    pub records: AtomicU64,
    /// Their bytes.
    pub record_bytes: AtomicU64,
    /// Their pages.
    pub record_pages: AtomicU64,
    /// Pages streamed.
    pub streamed_pages: AtomicU64,
    /// Checkpoints.
    pub checkpoints: AtomicU64,
    /// Pages brought home.
    pub checkpoint_pages: AtomicU64,
    /// Exchanges under `dash`.
    pub exchanges: AtomicU64,
    /// Passthrough transactions.
    pub asides: AtomicU64,
    /// Write calls, flushing ones included.
    pub writes: AtomicU64,
    /// Their bytes.
    pub write_bytes: AtomicU64,
    /// Syncs and flushing writes.
    pub flushes: AtomicU64,
    /// Sync calls.
    pub syncs: AtomicU64,
    /// Snapshots pinned now.
    pub snapshots: AtomicU64,
}

impl Stats {
    /// Adds to a counter.
    pub fn add(counter: &AtomicU64, n: u64) {
        counter.fetch_add(n, Relaxed);
    }

    /// Adds to a counter that changes under one lock, which the caller has: for an ordinary store.
    pub fn add_alone(counter: &AtomicU64, n: u64) {
        counter.store(counter.load(Relaxed).wrapping_add(n), Relaxed);
    }

    fn rows(&self) -> [(&'static str, &AtomicU64); 18] {
        [
            ("commits", &self.commits),
            ("in_place", &self.in_place),
            ("in_place_pages", &self.in_place_pages),
            ("undo_bytes", &self.undo_bytes),
            ("undo_misfits", &self.undo_misfits),
            ("records", &self.records),
            ("record_bytes", &self.record_bytes),
            ("record_pages", &self.record_pages),
            ("streamed_pages", &self.streamed_pages),
            ("checkpoints", &self.checkpoints),
            ("checkpoint_pages", &self.checkpoint_pages),
            ("exchanges", &self.exchanges),
            ("asides", &self.asides),
            ("writes", &self.writes),
            ("write_bytes", &self.write_bytes),
            ("flushes", &self.flushes),
            ("syncs", &self.syncs),
            ("snapshots", &self.snapshots),
        ]
    }

    /// One `name=value` a line.
    pub fn text(&self) -> String {
        let mut out = String::new();
        let commits = self.commits.load(Relaxed);
        let per_commit = |n: &AtomicU64| n.load(Relaxed) as f64 / commits.max(1) as f64;
        for (name, counter) in self.rows() {
            let _ = writeln!(out, "{name}={}", counter.load(Relaxed));
        }
        let _ = writeln!(out, "bytes_per_commit={:.1}", per_commit(&self.write_bytes));
        let _ = write!(out, "flushes_per_commit={:.3}", per_commit(&self.flushes));
        out
    }

    /// For a name in [`Stats::text`].
    pub fn unit(name: &str) -> &'static str {
        match name {
            "commits" | "in_place" | "undo_misfits" | "asides" => "transactions",
            "writes" | "syncs" => "system calls",
            "bytes_per_commit" => "bytes per transaction",
            "flushes_per_commit" => "flushes per transaction",
            "records" => "records",
            "checkpoints" => "checkpoints",
            "exchanges" => "exchanges",
            "flushes" => "flushes",
            "snapshots" => "snapshots",
            _ if name.ends_with("bytes") => "bytes",
            _ if name.ends_with("pages") => "pages",
            _ => "",
        }
    }
}

/// Counts writes and flushes. An open file is told of a failure once: another thread's flush, at
/// the same moment or later, fails as well (rule Poisons).
pub struct CountedFile {
    file: Arc<dyn DiskFile>,
    stats: Arc<Stats>,
    has_failed: Mutex<bool>,
}

impl CountedFile {
    pub fn wrap(file: Arc<dyn DiskFile>, stats: Arc<Stats>) -> Arc<dyn DiskFile> {
        Arc::new(CountedFile { file, stats, has_failed: Mutex::default() })
    }

    fn flush(&self, flush: impl FnOnce(&dyn DiskFile) -> io::Result<()>) -> io::Result<()> {
        Stats::add(&self.stats.flushes, 1);
        let mut has_failed = self.has_failed.lock();
        if *has_failed {
            return Err(io::Error::other(
                "a flush before it failed; close all connections and open the database again",
            ));
        }
        let flushed = flush(&*self.file);
        *has_failed = flushed.is_err();
        flushed
    }
}

impl DiskFile for CountedFile {
    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        Stats::add(&self.stats.writes, 1);
        Stats::add(&self.stats.write_bytes, buf.len() as u64);
        self.file.write_at(buf, offset)
    }

    fn write_durable_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        Stats::add(&self.stats.writes, 1);
        Stats::add(&self.stats.write_bytes, buf.len() as u64);
        self.flush(|file| file.write_durable_at(buf, offset))
    }

    fn sync(&self) -> io::Result<()> {
        Stats::add(&self.stats.syncs, 1);
        self.flush(|file| file.sync())
    }

    fn sync_from(&self, from: u64) -> io::Result<()> {
        Stats::add(&self.stats.syncs, 1);
        self.flush(|file| file.sync_from(from))
    }

    crate::forward_disk_file!(
        this => this.file;
        id, made, access, is_unlinked, len, read_once_at, next_data, begin_write_back, finish_write_back, seal, has_seal, set_len, reserve, try_lock, unlock, conflicts, posix_owner, shared_words, map,
        atomic_unit_bytes
    );
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::disk::sim::{Op, SimConfig, SimDisk};
    use crate::disk::{Disk, OpenMode};

    /// The disk tells of it once, the thread that asked first.
    #[test]
    fn a_flush_behind_a_failed_one_fails() {
        let disk = SimDisk::new(SimConfig::default());
        let open = || {
            let file = disk.open(Path::new("/f"), OpenMode::Create).unwrap();
            CountedFile::wrap(file, Arc::default())
        };
        for fails in [Op::Sync, Op::WriteDurable] {
            let file = open();
            file.write_at(b"1", 0).unwrap();
            disk.fail_nth(fails, 1, io::ErrorKind::Other);
            let flush = |fails| match fails {
                Op::Sync => file.sync(),
                _ => file.write_durable_at(b"2", 0),
            };
            flush(fails).unwrap_err();
            for fails in [Op::Sync, Op::WriteDurable] {
                flush(fails).unwrap_err();
            }
            open().sync().unwrap();
        }
    }

    #[test]
    fn everything_told_has_a_unit() {
        for line in Stats::default().text().lines() {
            let (name, _) = line.split_once('=').unwrap();
            assert_ne!(Stats::unit(name), "", "{name}");
        }
    }
}
