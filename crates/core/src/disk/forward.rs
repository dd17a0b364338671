//! Delegation for a disk in front of another: calls that pass through unchanged.

/// Within `impl Disk for …`: delegates these methods to the disk found from `self`.
///
/// ```ignore
/// forward_disk!(this => this.0; remove, exists);
/// ```
#[macro_export]
macro_rules! forward_disk {
    ($this:ident => $to:expr; $($method:ident),+ $(,)?) => {
        $($crate::forward_disk!(@ $method $this $to);)+
    };
    (@ remove $this:ident $to:expr) => {
        fn remove(&self, path: &std::path::Path) -> std::io::Result<()> { let $this = self; $to.remove(path) }
    };
    (@ identify $this:ident $to:expr) => {
        fn identify(&self, path: &std::path::Path) -> std::io::Result<Option<$crate::disk::FileId>> {
            let $this = self;
            $to.identify(path)
        }
    };
    (@ resolve $this:ident $to:expr) => {
        fn resolve(&self, path: &std::path::Path) -> std::io::Result<std::path::PathBuf> {
            let $this = self;
            $to.resolve(path)
        }
    };
    (@ exists $this:ident $to:expr) => {
        fn exists(&self, path: &std::path::Path) -> std::io::Result<bool> { let $this = self; $to.exists(path) }
    };
    (@ exchange $this:ident $to:expr) => {
        fn exchange(&self, one: &std::path::Path, other: &std::path::Path) -> std::io::Result<()> {
            let $this = self;
            $to.exchange(one, other)
        }
    };
    (@ rename $this:ident $to:expr) => {
        fn rename(&self, from: &std::path::Path, to: &std::path::Path) -> std::io::Result<()> {
            let $this = self;
            $to.rename(from, to)
        }
    };
    (@ names_beside $this:ident $to:expr) => {
        fn names_beside(&self, path: &std::path::Path) -> std::io::Result<Vec<std::path::PathBuf>> {
            let $this = self;
            $to.names_beside(path)
        }
    };
    (@ sync_dir_of $this:ident $to:expr) => {
        fn sync_dir_of(&self, path: &std::path::Path) -> std::io::Result<()> {
            let $this = self;
            $to.sync_dir_of(path)
        }
    };
    (@ sync_all_beside $this:ident $to:expr) => {
        fn sync_all_beside(&self, path: &std::path::Path) -> std::io::Result<()> {
            let $this = self;
            $to.sync_all_beside(path)
        }
    };
    (@ syncs_all $this:ident $to:expr) => {
        fn syncs_all(&self) -> bool { let $this = self; $to.syncs_all() }
    };
    (@ names_stamp $this:ident $to:expr) => {
        fn names_stamp(&self, path: &std::path::Path) -> std::io::Result<Option<$crate::disk::NamesStamp>> {
            let $this = self;
            $to.names_stamp(path)
        }
    };
    (@ system_start $this:ident $to:expr) => {
        fn system_start(&self) -> Option<u64> { let $this = self; $to.system_start() }
    };
    (@ temp_file $this:ident $to:expr) => {
        fn temp_file(
            &self,
            near: &std::path::Path,
        ) -> std::io::Result<std::sync::Arc<dyn $crate::disk::DiskFile>> {
            let $this = self;
            $to.temp_file(near)
        }
    };
}

/// Within `impl DiskFile for …`: delegates these methods to the file found from `self`.
#[macro_export]
macro_rules! forward_disk_file {
    ($this:ident => $to:expr; $($method:ident),+ $(,)?) => {
        $($crate::forward_disk_file!(@ $method $this $to);)+
    };
    (@ id $this:ident $to:expr) => {
        fn id(&self) -> std::io::Result<$crate::disk::FileId> { let $this = self; $to.id() }
    };
    (@ made $this:ident $to:expr) => {
        fn made(&self) -> std::io::Result<Option<u64>> { let $this = self; $to.made() }
    };
    (@ access $this:ident $to:expr) => {
        fn access(&self) -> std::io::Result<Option<$crate::disk::Access>> { let $this = self; $to.access() }
    };
    (@ is_unlinked $this:ident $to:expr) => {
        fn is_unlinked(&self) -> std::io::Result<bool> { let $this = self; $to.is_unlinked() }
    };
    (@ len $this:ident $to:expr) => {
        fn len(&self) -> std::io::Result<u64> { let $this = self; $to.len() }
    };
    (@ read_once_at $this:ident $to:expr) => {
        fn read_once_at(&self, buf: &mut [u8], offset: u64) -> std::io::Result<usize> {
            let $this = self;
            $to.read_once_at(buf, offset)
        }
    };
    (@ write_at $this:ident $to:expr) => {
        fn write_at(&self, buf: &[u8], offset: u64) -> std::io::Result<()> {
            let $this = self;
            $to.write_at(buf, offset)
        }
    };
    (@ write_durable_at $this:ident $to:expr) => {
        fn write_durable_at(&self, buf: &[u8], offset: u64) -> std::io::Result<()> {
            let $this = self;
            $to.write_durable_at(buf, offset)
        }
    };
    (@ sync $this:ident $to:expr) => {
        fn sync(&self) -> std::io::Result<()> { let $this = self; $to.sync() }
    };
    (@ next_data $this:ident $to:expr) => {
        fn next_data(&self, offset: u64) -> std::io::Result<Option<u64>> { let $this = self; $to.next_data(offset) }
    };
    (@ begin_write_back $this:ident $to:expr) => {
        fn begin_write_back(&self, offset: u64, len: u64) { let $this = self; $to.begin_write_back(offset, len) }
    };
    (@ sync_from $this:ident $to:expr) => {
        fn sync_from(&self, from: u64) -> std::io::Result<()> { let $this = self; $to.sync_from(from) }
    };
    (@ finish_write_back $this:ident $to:expr) => {
        fn finish_write_back(&self, from: u64) -> std::io::Result<()> { let $this = self; $to.finish_write_back(from) }
    };
    (@ seal $this:ident $to:expr) => {
        fn seal(&self) -> std::io::Result<Option<$crate::disk::FileSeal>> { let $this = self; $to.seal() }
    };
    (@ has_seal $this:ident $to:expr) => {
        fn has_seal(&self, seal: $crate::disk::FileSeal) -> std::io::Result<bool> { let $this = self; $to.has_seal(seal) }
    };
    (@ set_len $this:ident $to:expr) => {
        fn set_len(&self, len: u64) -> std::io::Result<()> { let $this = self; $to.set_len(len) }
    };
    (@ reserve $this:ident $to:expr) => {
        fn reserve(&self, len: u64) -> std::io::Result<()> { let $this = self; $to.reserve(len) }
    };
    (@ try_lock $this:ident $to:expr) => {
        fn try_lock(&self, offset: u64, len: u64, kind: $crate::disk::LockKind) -> std::io::Result<bool> {
            let $this = self;
            $to.try_lock(offset, len, kind)
        }
    };
    (@ unlock $this:ident $to:expr) => {
        fn unlock(&self, offset: u64, len: u64) -> std::io::Result<()> { let $this = self; $to.unlock(offset, len) }
    };
    (@ conflicts $this:ident $to:expr) => {
        fn conflicts(&self, offset: u64, len: u64, kind: $crate::disk::LockKind) -> std::io::Result<bool> {
            let $this = self;
            $to.conflicts(offset, len, kind)
        }
    };
    (@ posix_owner $this:ident $to:expr) => {
        fn posix_owner(&self, offset: u64, len: u64) -> Option<u32> { let $this = self; $to.posix_owner(offset, len) }
    };
    (@ atomic_unit_bytes $this:ident $to:expr) => {
        fn atomic_unit_bytes(&self) -> u32 { let $this = self; $to.atomic_unit_bytes() }
    };
    (@ map $this:ident $to:expr) => {
        fn map(&self, bytes: u64) -> std::io::Result<Option<$crate::disk::mapped::MappedFile>> {
            let $this = self;
            $to.map(bytes)
        }
    };
    (@ shared_words $this:ident $to:expr) => {
        fn shared_words(
            &self,
            blocks: usize,
        ) -> std::io::Result<std::sync::Arc<$crate::disk::shared::SharedWords>> {
            let $this = self;
            $to.shared_words(blocks)
        }
    };
}
