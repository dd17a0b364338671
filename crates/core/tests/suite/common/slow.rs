//! For tests in which threads commit at the same time.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use onewrite_core::disk::sim::SimDisk;
use onewrite_core::disk::{Disk, DiskFile, OpenMode};

pub struct Slow(pub SimDisk);
struct SlowFile(Arc<dyn DiskFile>);

impl Disk for Slow {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn DiskFile>> {
        Ok(Arc::new(SlowFile(self.0.open(path, mode)?)))
    }

    onewrite_core::forward_disk!(
        this => this.0;
        remove, rename, names_beside, exchange, identify, resolve, exists, sync_dir_of, sync_all_beside, syncs_all, temp_file
    );
}

fn pause() {
    std::thread::sleep(Duration::from_micros(20));
}

impl DiskFile for SlowFile {
    fn write_durable_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        pause();
        let written = self.0.write_durable_at(buf, offset);
        pause();
        written
    }

    fn sync(&self) -> io::Result<()> {
        pause();
        self.0.sync()
    }

    onewrite_core::forward_disk_file!(
        this => this.0;
        id, len, read_once_at, write_at, set_len, reserve, try_lock, unlock, atomic_unit_bytes
    );
}
