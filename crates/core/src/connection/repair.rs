//! A repair knows every scheme, as a connection does.

use std::path::Path;
use std::sync::Arc;

use super::schemes;
use crate::base::error::Result;
use crate::disk::{Disk, OpenMode};
use crate::recovery::repair::Repair;

impl Repair {
    /// Locks the database. `ReadOnly` writes no byte and lets others read. `Busy` if in use.
    pub fn open(disk: Arc<dyn Disk>, path: &Path, mode: OpenMode) -> Result<Repair> {
        Repair::open_with(disk, path, mode, schemes::of)
    }

    /// Inspects a database in use: nothing is locked, so it changes meanwhile.
    pub fn beside(disk: Arc<dyn Disk>, path: &Path) -> Result<Repair> {
        Repair::beside_with(disk, path, schemes::of)
    }
}
