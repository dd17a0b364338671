//! Images kept out of memory: old ones for snapshots, those of a long replay.

use std::path::Path;
use std::sync::Arc;

use crate::base::clock;
use crate::base::error::{IoContext, Result};
use crate::disk::{Disk, DiskFile};

/// Bytes that stay in memory, at most `most`; others go to a file. A schedule draws few.
pub fn in_memory(most: u64) -> u64 {
    clock::random().map_or(most, |drawn| drawn % most.min(64 << 10))
}

/// Images in a temporary file, made with the first.
#[derive(Default)]
pub struct ImageFile(Option<(Arc<dyn DiskFile>, u64)>);

impl ImageFile {
    pub fn append(
        &mut self,
        disk: &dyn Disk,
        near: &Path,
        image: &[u8],
        what: impl Fn() -> String,
    ) -> Result<(Arc<dyn DiskFile>, u64)> {
        let (file, len) = match &mut self.0 {
            Some(file) => file,
            none => none.insert((disk.temp_file(near).context(&what)?, 0)),
        };
        file.write_at(image, *len).context(&what)?;
        let position = std::mem::replace(len, *len + image.len() as u64);
        Ok((file.clone(), position))
    }

    pub fn is(&self, file: &Arc<dyn DiskFile>) -> bool {
        self.0.as_ref().is_some_and(|(ours, _)| Arc::ptr_eq(ours, file))
    }
}
