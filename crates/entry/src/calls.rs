//! Calls of up to three connections of one engine in arbitrary order, also orders that SQLite's
//! pager never uses.
//!
//! Asserted: a snapshot reads the same until its connection makes another call (invariant I4), and
//! the last connection's content is there after all have closed.

use std::path::Path;
use std::sync::Arc;

use arbitrary::{Result, Unstructured};
use onewrite_core::disk::OpenMode;
use onewrite_core::disk::sim::{SimConfig, SimDisk};
use onewrite_core::inspect::layout::home as at;
use onewrite_core::inspect::layout::put;
use onewrite_core::{Connection, Engine, Error, LockLevel};

use crate::Reach;
use crate::files::HOME;

/// Most calls of one input.
const CALLS_MAX: u32 = 300;
/// Most offsets in bytes are below.
const OFFSET_MAX: u64 = 192 << 10;
/// Most bytes of the database that are compared.
const READ_BYTES_MAX: u64 = 64 << 10;
const LEVELS: [LockLevel; 5] =
    [LockLevel::None, LockLevel::Shared, LockLevel::Reserved, LockLevel::Pending, LockLevel::Exclusive];
const PRAGMAS: [&str; 8] = ["stats", "status", "checkpoint", "error", "scheme", "table_size", "sticky", "header_page"];
const VALUES: [Option<&str>; 7] =
    [None, Some("log"), Some("wal-opt"), Some("64k"), Some("1"), Some("write"), Some("nonsense")];

/// Makes the calls that the input encodes.
pub fn run(input: &[u8]) -> Reach {
    let mut reach = Reach::default();
    // An input that ends within a call has made the calls before it.
    let _ = play(&mut Unstructured::new(input), &mut reach);
    reach
}

struct Client {
    db: Connection,
    /// Offset and bytes of the last read in this transaction.
    seen: Option<(u64, Vec<u8>)>,
}

fn play(input: &mut Unstructured<'_>, reach: &mut Reach) -> Result<()> {
    let page_bytes = 512usize << input.int_in_range(0..=3)?;
    let disk = SimDisk::new(SimConfig { atomic_unit: 512, capacity: 8 << 20, ..SimConfig::default() });
    match input.int_in_range(0..=5u8)? {
        0 => {}
        kind => disk.put_file(Path::new(HOME), &database(page_bytes, if kind == 1 { 2 } else { 1 }, 5)),
    }
    let scheme = *input.choose(&["log", "log", "wal-opt", "off", "off-opt"])?;
    let options =
        [("scheme", scheme), ("busy_ms", "0"), ("log_size", "256k"), ("table_size", "64k"), ("stream_size", "64k")];
    let options = options.map(|(n, v)| (n.to_owned(), v.to_owned()));
    let engine = Engine::new(Arc::new(disk.clone()));
    let mut clients: [Option<Client>; 3] = [None, None, None];
    for _ in 0..CALLS_MAX {
        if input.is_empty() {
            break;
        }
        let which = input.int_in_range(0..=2usize)?;
        let Some(place) = clients.get_mut(which) else { continue };
        let done = match place {
            None => match engine.open(Path::new(HOME), OpenMode::Create, &options) {
                Ok(db) => {
                    *place = Some(Client { db, seen: None });
                    Ok(())
                }
                Err(e) => Err(e),
            },
            Some(client) => match input.int_in_range(0..=31u8)? {
                0 => place.take().map_or(Ok(()), |client| client.db.close()),
                1 => {
                    *place = None;
                    Ok(())
                }
                2 => {
                    *place = None;
                    continue;
                }
                _ => call(client, page_bytes, input)?,
            },
        };
        if let Err(e) = &done {
            judge(e);
        }
        reach.accepted += u64::from(done.is_ok());
        reach.refused += u64::from(done.is_err());
    }
    finish(&engine, &disk, clients);
    Ok(())
}

fn call(client: &mut Client, page_bytes: usize, input: &mut Unstructured<'_>) -> Result<onewrite_core::Result<()>> {
    let kind = input.int_in_range(0..=27u8)?;
    let db = &mut client.db;
    if !matches!(kind, 0 | 4..=8) {
        client.seen = None;
    }
    Ok(match kind {
        0..=3 => db.lock(*input.choose(&LEVELS)?).map(|()| client.seen = None),
        4..=7 => return read(client, input),
        8 => db.size().map(drop),
        9..=10 => db.unlock(*input.choose(&LEVELS[..2])?),
        11..=13 => {
            let (offset, len) = (offset(page_bytes, input)?, length(page_bytes, input)?);
            db.write_at(&vec![input.arbitrary()?; len], offset)
        }
        14 => db.truncate(offset(page_bytes, input)?),
        15 => db.prepare(input.ratio(1, 4)?.then_some(Path::new("db-mj"))),
        16 => db.sync(),
        17 => db.commit(),
        18 => db.journal_open().and_then(|()| db.journal_exists().map(drop)),
        19 => {
            let bytes: [u8; 28] = input.arbitrary()?;
            db.journal_write_at(&bytes, u64::from(input.arbitrary::<u16>()?))
        }
        20 => db.journal_read_at(&mut [0; 100], u64::from(input.arbitrary::<u16>()?)).map(drop),
        21 => db.journal_sync().and_then(|()| db.journal_truncate(u64::from(input.arbitrary::<u8>().unwrap_or(0)))),
        22 => db.journal_delete(input.arbitrary()?).and_then(|()| db.journal_size().map(drop)),
        23 => db.wal_exists().and_then(|_| db.is_reserved().map(drop)),
        24 => {
            db.note_synchronous(input.choose(&["off", "normal", "full", "1", "?"])?);
            db.pragma(input.choose(&PRAGMAS)?, *input.choose(&VALUES)?).map_or(Ok(()), |answer| answer.map(drop))
        }
        _ => transaction(db, page_bytes, input)?,
    })
}

/// Compares with the last read if no other call came between.
fn read(client: &mut Client, input: &mut Unstructured<'_>) -> Result<onewrite_core::Result<()>> {
    let (from, len) = match &client.seen {
        Some((from, bytes)) if input.ratio(3, 4)? => (*from, bytes.len()),
        _ => {
            client.seen = None;
            (input.int_in_range(0..=OFFSET_MAX)?, input.int_in_range(0..=3000usize)?)
        }
    };
    let mut bytes = vec![0; len];
    let read = match client.db.read_at(&mut bytes, from) {
        Ok(read) => read,
        Err(e) => return Ok(Err(e)),
    };
    assert!(read <= len);
    bytes.truncate(read);
    if let Some((_, before)) = &client.seen {
        assert_eq!(before, &bytes, "a snapshot changed");
    }
    let pinned = client.db.mode() == onewrite_core::Mode::Engine;
    client.seen = pinned.then_some((from, bytes));
    Ok(Ok(()))
}

fn transaction(
    db: &mut Connection,
    page_bytes: usize,
    input: &mut Unstructured<'_>,
) -> Result<onewrite_core::Result<()>> {
    let pages = if input.ratio(1, 10)? { 200 } else { input.int_in_range(1..=4u64)? };
    let first = input.int_in_range(0..=9u64)?;
    let (fill, commits): (u8, bool) = (input.arbitrary()?, input.ratio(4, 5)?);
    let mut all = || {
        db.unlock(LockLevel::None)?;
        db.lock(LockLevel::Shared)?;
        db.lock(LockLevel::Reserved)?;
        db.journal_open()?;
        db.journal_write_at(&[fill; 40], 0)?;
        db.journal_sync()?;
        let (mut begins, old) = (vec![0; page_bytes], db.size()? / page_bytes as u64);
        let count = old.max(first + pages);
        db.read_at(&mut begins, 0)?;
        let header = database(page_bytes, 1, u32::try_from(count).unwrap_or(1));
        put(&mut begins, 0, header.get(..at::HEADER_BYTES).unwrap_or_default());
        db.write_at(&begins, 0)?;
        for page in first.max(1)..first + pages {
            db.write_at(&vec![fill; page_bytes], page * page_bytes as u64)?;
        }
        if commits {
            db.prepare(None)?;
            db.sync()?;
            db.commit()?;
        }
        db.journal_delete(false)?;
        db.unlock(LockLevel::None)
    };
    Ok(all())
}

/// A database of `pages` pages in rollback-journal (1) or WAL (2) mode.
fn database(page_bytes: usize, version: u8, pages: u32) -> Vec<u8> {
    let mut b = vec![0; page_bytes * pages as usize];
    put(&mut b, 0, at::MAGIC);
    put(&mut b, at::PAGE_SIZE, &u16::try_from(page_bytes).unwrap_or(1).to_be_bytes());
    put(&mut b, at::WRITE_VERSION, &[version, version, 0, 64, 32, 32]);
    put(&mut b, at::CHANGE_COUNTER, &1u32.to_be_bytes());
    put(&mut b, at::PAGE_COUNT, &pages.to_be_bytes());
    put(&mut b, at::VERSION_VALID_FOR, &1u32.to_be_bytes());
    b
}

fn offset(page_bytes: usize, input: &mut Unstructured<'_>) -> Result<u64> {
    let page = input.int_in_range(0..=OFFSET_MAX / page_bytes as u64)? * page_bytes as u64;
    Ok(match input.int_in_range(0..=15u8)? {
        0 => input.arbitrary()?,
        1 => page + input.int_in_range(0..=page_bytes as u64)?,
        _ => page,
    })
}

fn length(page_bytes: usize, input: &mut Unstructured<'_>) -> Result<usize> {
    Ok(if input.ratio(1, 8)? { input.int_in_range(0..=5000)? } else { page_bytes })
}

/// The simulated disk has no errors, so no order of calls may give one.
fn judge(e: &Error) {
    assert!(!matches!(e, Error::Io { .. }), "an error of the disk, which has none: {e}");
}

/// A new process reads the same as the last connection.
fn finish(engine: &Arc<Engine>, disk: &SimDisk, mut clients: [Option<Client>; 3]) {
    for client in clients.iter_mut().flatten() {
        if let Err(e) = client.db.unlock(LockLevel::None) {
            judge(&e);
        }
    }
    let before = content(engine);
    let mut failed = false;
    for client in clients.into_iter().flatten() {
        failed |= client.db.close().inspect_err(judge).is_err();
    }
    let after = content(&Engine::new(Arc::new(disk.clone())));
    if let (Some(before), Some(after), false) = (before, after, failed) {
        assert!(before == after, "what was read before all connections closed is not there afterwards");
    }
}

fn content(engine: &Arc<Engine>) -> Option<Vec<u8>> {
    let options = [("busy_ms".to_owned(), "0".to_owned())];
    let mut db = engine.open(Path::new(HOME), OpenMode::ReadWrite, &options).ok()?;
    db.lock(LockLevel::Shared).ok()?;
    if db.mode() != onewrite_core::Mode::Engine {
        return None;
    }
    let bytes = db.size().ok()?;
    let mut content = vec![0; usize::try_from(bytes.min(READ_BYTES_MAX)).unwrap_or(0)];
    let read = db.read_at(&mut content, 0).ok()?;
    content.truncate(read);
    for counter in [24..28, 92..96] {
        content.get_mut(counter).unwrap_or_default().fill(0);
    }
    Some(content)
}
