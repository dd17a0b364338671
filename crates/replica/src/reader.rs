//! One connection: the state of its transaction, and its pragmas.

use crate::replica::Replica;
use crate::settings::Settings;
use crate::state::ReplicaState;
use anyhow::{Context, Result, bail, ensure};
use onewrite_arguments::replicate::time_ms;
use onewrite_replicate::plan::Target;
use onewrite_replicate::report::now_ms;
use onewrite_replicate::times::{millis, shown};
use std::sync::Arc;
use std::time::Duration;

/// Frames read beside the wanted one: a few at first, more each time while pages are read in order.
const AHEAD: usize = 3;
const AHEAD_MAX: usize = 255;

/// Bytes of page 1: file format (1: no WAL), change counter, page count, the counter at which that
/// is valid. SQLite file-format section 1.3.
const FORMATS: std::ops::Range<usize> = 18..20;
const COUNTER: std::ops::Range<usize> = 24..28;
const PAGES: std::ops::Range<usize> = 28..32;
const VALID_FOR: std::ops::Range<usize> = 92..96;

/// A connection to a database in a store.
pub struct Reader {
    replica: Arc<Replica>,
    poll: Duration,
    /// The state of the transaction, or of the last one.
    state: Arc<ReplicaState>,
    /// It stays at a state that a pragma chose.
    stays: bool,
    /// Between xLock and xUnlock.
    reads: bool,
    last_page: u32,
    ahead: usize,
}

impl Reader {
    /// Opens the database of these settings at its newest known state.
    pub fn open(settings: &Settings) -> Result<Reader> {
        let replica = Replica::open(settings)?;
        let state = replica.known();
        let (poll, ahead) = (settings.poll, AHEAD);
        Ok(Reader { replica, poll, state, stays: false, reads: false, last_page: 0, ahead })
    }

    /// A transaction begins. The error is that of looking for a newer state: it reads the newest
    /// known one.
    pub fn begin(&mut self) -> Result<()> {
        if std::mem::replace(&mut self.reads, true) || self.stays {
            return Ok(());
        }
        let (state, looked) = self.replica.newest(self.poll);
        self.state = state;
        looked
    }

    /// The transaction ends.
    pub fn end(&mut self) {
        self.reads = false;
    }

    /// Bytes of the database.
    pub fn size(&self) -> u64 {
        self.state.bytes()
    }

    /// Reads from `offset` on; returns the bytes that there are.
    pub fn read_at(&mut self, to: &mut [u8], offset: u64) -> Result<usize> {
        let left = self.size().saturating_sub(offset);
        let len = usize::try_from(left).unwrap_or(usize::MAX).min(to.len());
        let page_bytes = u64::from(self.state.page_bytes()).max(1);
        let mut done = 0usize;
        while done < len {
            let at = offset.saturating_add(done as u64);
            let page = u32::try_from(at.div_euclid(page_bytes).saturating_add(1))?;
            let begin = usize::try_from(at.rem_euclid(page_bytes))?;
            let image = self.page(page)?;
            let rest = image.get(begin..).unwrap_or_default();
            let part = to.get_mut(done..len).unwrap_or_default();
            let n = rest.len().min(part.len());
            ensure!(n > 0, "page {page} is too short");
            part.iter_mut().zip(rest).for_each(|(to, from)| *to = *from);
            done = done.saturating_add(n);
        }
        Ok(done)
    }

    fn page(&mut self, page: u32) -> Result<Arc<[u8]>> {
        let goes_on = page == self.last_page.saturating_add(1);
        self.ahead = if goes_on { self.ahead.saturating_mul(2).min(AHEAD_MAX) } else { AHEAD };
        self.last_page = page;
        let image = self.replica.page(&mut self.state, page, self.ahead)?;
        Ok(if page == 1 { Arc::from(first_page(&self.state, &image)) } else { image })
    }

    /// `PRAGMA name` or `PRAGMA name = value`; `None`: it is not one of these.
    pub fn pragma(&mut self, name: &str, value: Option<&str>) -> Option<Result<String>> {
        let shown = match name {
            "onewrite_time" => |reader: &Reader| shown(reader.state.time_ms()),
            "onewrite_txid" => |reader: &Reader| format!("{:x}", reader.state.txid()),
            "onewrite_lag" => |reader: &Reader| format!("{:.3}", reader.replica.lag().as_secs_f64()),
            _ => return None,
        };
        let set = match (name, value) {
            (_, None) => Ok(()),
            ("onewrite_lag", Some(_)) => Err(anyhow::anyhow!("onewrite_lag is only read")),
            ("onewrite_time", Some(value)) => time(value).and_then(|target| self.stay_at(target)),
            (_, Some(value)) => txid(value).and_then(|target| self.stay_at(target)),
        };
        Some(set.map(|()| shown(self)))
    }

    fn stay_at(&mut self, target: Option<Target>) -> Result<()> {
        ensure!(!self.reads, "a transaction has one state: end it first");
        let (state, looked) = match target {
            Some(target) => (self.replica.at(target)?, Ok(())),
            None => self.replica.newest(self.poll),
        };
        (self.state, self.stays) = (state, target.is_some());
        looked
    }
}

/// The word for the newest state.
const LATEST: &str = "latest";

fn time(value: &str) -> Result<Option<Target>> {
    if value.eq_ignore_ascii_case(LATEST) {
        return Ok(None);
    }
    let before = match value.strip_suffix("ago") {
        Some(age) => humantime::parse_duration(age.trim()).ok().map(|age| now_ms().saturating_sub(millis(age))),
        None => time_ms(value),
    };
    let examples = "write it like '5 minutes ago', '2026-01-31T12:00:00Z' or 'latest'";
    Ok(Some(Target::Before(before.with_context(|| format!("{value} is no time: {examples}"))?)))
}

fn txid(value: &str) -> Result<Option<Target>> {
    if value.eq_ignore_ascii_case(LATEST) {
        return Ok(None);
    }
    match u64::from_str_radix(value, 16) {
        Ok(txid) if txid > 0 => Ok(Some(Target::Txid(txid))),
        _ => bail!("{value} is no transaction: write it in hexadecimal digits, as `onewrite ltx` does, or 'latest'"),
    }
}

/// Page 1 as SQLite needs it: not in WAL mode, and with another change counter in each state.
/// Databases in WAL mode do not count, and a pragma goes back.
fn first_page(state: &ReplicaState, image: &[u8]) -> Vec<u8> {
    let mut page = image.to_vec();
    let low = u32::try_from(state.txid() & u64::from(u32::MAX)).unwrap_or(0);
    for (range, bytes) in [(COUNTER, low), (PAGES, state.pages()), (VALID_FOR, low)] {
        page.get_mut(range).unwrap_or_default().iter_mut().zip(bytes.to_be_bytes()).for_each(|(to, from)| *to = from);
    }
    page.get_mut(FORMATS).unwrap_or_default().fill(1);
    page
}
