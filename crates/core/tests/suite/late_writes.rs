//! Pages written after FCNTL_SYNC, by a VFS on top that keeps writes back until xSync, belong to
//! the committed transaction (rule WholeTransaction, invariant I7).

use crate::common;

use common::{PAGE, crashed, ends_with_all, engine, page};
use onewrite_core::disk::OpenMode;
use onewrite_core::{Connection, Error, LockLevel};

fn begin(c: &mut Connection) {
    c.lock(LockLevel::Shared).unwrap();
    c.lock(LockLevel::Reserved).unwrap();
}

#[test]
fn pages_behind_fcntl_sync_are_committed() {
    let pair = crashed(1);
    let mut c = engine().open(&pair.home, OpenMode::ReadWrite, &[]).unwrap();
    begin(&mut c);
    c.prepare(None).unwrap();
    c.write_at(&page(2), PAGE as u64).unwrap();
    c.sync().unwrap();
    c.commit().unwrap();
    c.unlock(LockLevel::None).unwrap();
    ends_with_all(&pair.copy().home, 2);
}

#[test]
fn pages_before_and_behind_fcntl_sync_are_one_transaction() {
    let pair = crashed(1);
    let mut c = engine().open(&pair.home, OpenMode::ReadWrite, &[]).unwrap();
    begin(&mut c);
    c.write_at(&page(2), PAGE as u64).unwrap();
    c.prepare(None).unwrap();
    c.write_at(&page(7), 2 * PAGE as u64).unwrap();
    c.sync().unwrap();
    c.commit().unwrap();
    c.unlock(LockLevel::None).unwrap();
    let copy = pair.copy();
    ends_with_all(&copy.home, 2);
    assert!(std::fs::read(&copy.home).unwrap()[2 * PAGE..] == page(7));
}

#[test]
fn a_transaction_that_is_prepared_twice_is_committed() {
    let pair = crashed(1);
    let mut c = engine().open(&pair.home, OpenMode::ReadWrite, &[]).unwrap();
    begin(&mut c);
    c.write_at(&page(2), PAGE as u64).unwrap();
    c.prepare(None).unwrap();
    c.prepare(None).unwrap();
    c.sync().unwrap();
    c.commit().unwrap();
    c.unlock(LockLevel::None).unwrap();
    ends_with_all(&pair.copy().home, 2);
}

#[test]
fn a_rollback_behind_fcntl_sync_leaves_nothing() {
    let pair = crashed(1);
    let mut c = engine().open(&pair.home, OpenMode::ReadWrite, &[]).unwrap();
    begin(&mut c);
    c.write_at(&page(9), PAGE as u64).unwrap();
    c.prepare(None).unwrap();
    c.write_at(&page(1), PAGE as u64).unwrap();
    c.prepare(None).unwrap();
    c.write_at(&page(7), 2 * PAGE as u64).unwrap();
    c.prepare(None).unwrap();
    c.sync().unwrap();
    c.commit().unwrap();
    c.unlock(LockLevel::None).unwrap();
    ends_with_all(&pair.copy().home, 1);
}

/// SQLite ignores errors after FCNTL_SYNC.
#[test]
fn several_files_whose_pages_come_later_are_refused_in_time() {
    let pair = crashed(1);
    let mut c = engine().open(&pair.home, OpenMode::ReadWrite, &[]).unwrap();
    begin(&mut c);
    assert!(matches!(c.prepare(Some(std::path::Path::new("/db-mj"))), Err(Error::WrittenLate(_))));
    c.unlock(LockLevel::None).unwrap();
    c.close().unwrap();
    ends_with_all(&pair.home, 1);
}

/// SQLite does not, for it has no page size then.
#[test]
fn an_empty_database_gets_no_length_without_a_page() {
    let dir = tempfile::tempdir().unwrap();
    let home = dir.path().join("db");
    let mut c = engine().open(&home, OpenMode::Create, &[]).unwrap();
    begin(&mut c);
    c.truncate(PAGE as u64).unwrap();
    c.prepare(None).unwrap();
    c.sync().unwrap();
    c.commit().unwrap();
    assert_eq!(c.size().unwrap(), 0);
    c.unlock(LockLevel::None).unwrap();
    c.close().unwrap();
    assert_eq!(std::fs::read(&home).unwrap().len(), 0);
}
