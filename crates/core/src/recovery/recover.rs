//! Recovery: a marked home and its log become the newest committed state.
//!
//! Replays the live records (`pairing/replay.rs`), makes them durable, and runs a checkpoint. Pages
//! that home seems to hold are rewritten: a failed flush may have left them in the cache only.
//! Every step may crash and be run again (invariant I8).

#![deny(clippy::indexing_slicing, clippy::unwrap_used, clippy::expect_used)]

use std::sync::Arc;
use std::time::Duration;

use crate::base::error::{Error, IoContext, Result};
use crate::base::layout::slot::PAGE_COUNT_IN_HOME;
use crate::base::options::Options;
use crate::base::rules::{Case, keeps};
use crate::base::types::{LogOffset, Tid};
use crate::checkpoint::{fit_length, write_pages};
use crate::commit::record;
use crate::database::follow;
use crate::database::scheme::CrashedSession;
use crate::database::{Database, DatabaseState, HomeFile, LiveDatabase, Phase};
use crate::disk::beside;
use crate::disk::stats::CountedFile;
use crate::disk::sync::MutexGuard;
use crate::disk::{LockKind, OpenMode, locks, random};
use crate::log::file::{LogFile, log_path};
use crate::log::group::{Audience, Durability};
use crate::log::record::Encoder;
use crate::log::ring::{
    COUNTER_STEP, Log, TID_STEP, TIDS_APART, number_apart, slot_page_count, small_ring_bytes, told_tid,
};
use crate::log::slot::Slot;
use crate::pairing::Pairing;
use crate::pairing::evidence::{Closed, HomeAndLog};
use crate::pairing::replay::Replayed;
use crate::session::mark::lock_log;
use crate::shared::member::{self, Member};
use crate::shared::tail::Reach;
use crate::shared::words::{ProcessWords, RecoveryDebt};
use crate::shared::{kept, users};
use crate::sqlite_format::home::{FileKind, HomeMark, State};

pub fn open_log(db: &Database, session: u64, mode: OpenMode) -> Result<LogFile> {
    let log = find_log(db, session, mode)?;
    lock_log(&log, if mode == OpenMode::ReadOnly { LockKind::Shared } else { LockKind::Exclusive }, Duration::ZERO)?;
    check_name(db)?;
    Ok(log)
}

fn find_log(db: &Database, session: u64, mode: OpenMode) -> Result<LogFile> {
    if let Ok(Some(log)) = LogFile::open(&*db.disk, &log_path(&db.path), mode)
        && log.slots().is_ok_and(|slots| slots.iter().any(|slot| slot.session == session))
    {
        return Ok(log);
    }
    let path = db.path_of_log(session)?;
    let home = db.path.display();
    let log = LogFile::open(&*db.disk, &path, mode)?;
    let is_log = log.as_ref().map_or(Ok(false), |log| log.slots().map(|slots| !slots.is_empty()))?;
    if !is_log && locks::is_in_use(&*db.home)? {
        return Err(Error::Busy(format!(
            "the log {} is missing, and processes use {home}: they make a new one as they write next",
            path.display()
        )));
    }
    log.ok_or_else(|| {
        Error::CantOpen(format!(
            "{home} carries onewrite's mark, but its log {} is missing: the newest transactions are in that log. Put \
             it back beside the database. If it is lost for good, `onewrite recover --without-log` gives those \
             transactions up and takes the mark off",
            path.display()
        ))
    })
}

/// Repeats the close of [`Pairing::ClosedMarkBack`], durable.
pub fn end_again(db: &Database, log: &LogFile, evidence: &mut HomeAndLog<'_>) -> Result<()> {
    let Some(Closed { mark, state, newest, waits }) = evidence.closed()? else { return Ok(()) };
    kept::remove(&*db.disk, &log.path, mark.session)?;
    let what = || db.what("cannot fit the length of");
    if !waits && db.home.len().context(what)? > state.bytes() {
        db.home.set_len(state.bytes()).context(what)?;
    }
    db.write_header(&db.with_asked(state.final_header())?)?;
    if !newest.live {
        return log.give_back(&newest);
    }
    // The next session follows the one that ended.
    let ended = log.end(&newest, mark.session, mark.tid)?;
    log.flush()?;
    log.give_back(&ended)
}

/// A hot journal is of a transaction after the close. The caller has home to itself.
pub fn end_behind_journal(db: &Database, session: u64) -> Result<bool> {
    let log = match find_log(db, session, OpenMode::ReadWrite) {
        Err(Error::CantOpen(_)) => return Ok(false),
        log => log?,
    };
    if !member::try_alone(&log, LockKind::Exclusive)? {
        return Ok(false);
    }
    let mut evidence = HomeAndLog::new(db, &log)?;
    let is_closed = evidence.judge(false)? == Pairing::ClosedMarkBack;
    if is_closed { end_again(db, &log, &mut evidence).map(|()| true) } else { Ok(false) }
}

/// Recovers it, or joins its users. The caller holds SHARED. False if the mark went: look again.
pub fn attach(
    db: &Database,
    writer: &mut MutexGuard<'_, Option<LiveDatabase>>,
    inner: &mut DatabaseState,
    session: u64,
    options: &Options,
) -> Result<bool> {
    let (log, observes) = match find_log(db, session, OpenMode::ReadWrite) {
        // If it is not for want of permission, the error comes again.
        Err(Error::CantOpen(_)) if db.read_only => (find_log(db, session, OpenMode::ReadOnly)?, true),
        log => (log?, false),
    };
    let mut log = LogFile { file: CountedFile::wrap(log.file, db.stats.clone()), path: log.path };
    if observes {
        return observe(db, writer, inner, log, session, options);
    }
    member::admin(&log, Duration::from_millis(options.busy_ms))?;
    if db.read_state()?.1 != Some(session) {
        return Ok(false);
    }
    if member::try_alone(&log, LockKind::Exclusive)? {
        if !inner.recovers {
            member::give_back(&log)?;
            return Err(left_marked(db));
        }
        // Rule StoreHasIt.
        if let Err(e) = db.check_begins(inner, options.shipper, false) {
            member::give_back(&log)?;
            return Err(e);
        }
        check_name(db)?;
        let told = told_end(db, &log, session);
        let mut evidence = HomeAndLog::new(db, &log)?.ending(told).without_journal();
        let pairing = evidence.judge(false)?;
        if pairing == Pairing::ClosedMarkBack {
            return end_again(db, &log, &mut evidence).map(|()| false);
        }
        let (replayed, slot, slots) = evidence.into_replayed(&pairing)?;
        kept::remove(&*db.disk, &log.path, session)?;
        give_name(db, &mut log);
        let found = AbandonedLog { log, slots, slot, replayed, told };
        if rests(db, &found, options)? {
            return Ok(false);
        }
        match can_stay(db, &found, options)? {
            true => go_on(db, writer, inner, found, options)?,
            false => take_over(db, writer, inner, found.log, &found.slot, found.replayed, options)?,
        }
        return db.keep_stock_out(inner).map(|()| true);
    }
    // Before another may leave the database to this process.
    let kept_out = db.keep_stock_out(inner);
    let joined = kept_out.and_then(|()| join(db, writer, inner, &log, session, options));
    if joined.is_err() {
        **writer = None;
        db.table.write().clear();
        db.quit(inner)?;
    }
    member::end_admin(&log)?;
    joined.map(|()| true)
}

/// Attaches to the new log behind a lost one, and ends the session as the last. After an error the
/// next process does.
pub fn attach_to_close(db: &Database) {
    let mut writer = db.writer.lock();
    let mut inner = db.inner.lock();
    if !db.is_log_replaced(&inner) || db.leave_lost_log(&mut writer, &mut inner).is_err() {
        return;
    }
    let options = inner.options.clone();
    if let Ok((_, Some(session))) = db.read_state() {
        let _ = attach(db, &mut writer, &mut inner, session, &options);
    }
}

struct AbandonedLog {
    log: LogFile,
    /// Newest first.
    slots: Vec<Slot>,
    slot: Slot,
    replayed: Replayed,
    /// Newest written, if known (rule EndTold).
    told: Option<Tid>,
}

fn left_marked(db: &Database) -> Error {
    Error::CantOpen(format!(
        "{} was in use through onewrite when its last process ended: its newest transactions are in its log, which a \
         read-only connection does not bring home. Open it once for writing through onewrite, or run `onewrite recover` on it",
        db.path.display()
    ))
}

fn observe(
    db: &Database,
    writer: &mut MutexGuard<'_, Option<LiveDatabase>>,
    inner: &mut DatabaseState,
    log: LogFile,
    session: u64,
    options: &Options,
) -> Result<bool> {
    check_fits(db, &log, options)?;
    let is_marked = || Ok(db.read_state()?.1 == Some(session));
    let Some(member) = Member::observe(db.files(), log, session, options.busy_ms, is_marked)? else {
        return if is_marked()? { Err(left_marked(db)) } else { Ok(false) };
    };
    let followed = follow(db, writer, inner, member, options);
    if followed.is_err() {
        **writer = None;
        db.table.write().clear();
        db.quit(inner)?;
    }
    followed.map(|()| true)
}

/// The end by the shared words of dead processes, in this start of the system (rule EndTold).
fn told_end(db: &Database, log: &LogFile, session: u64) -> Option<Tid> {
    ProcessWords::new(log.file.shared_words(1).ok()?).end(session, db.disk.system_start()?)
}

/// Another process may have exchanged or replaced the file. With the log locked, the answer stays
/// (rule NameAskedUnderLock).
fn check_name(db: &Database) -> Result<()> {
    db.check_name().map_err(|e| match e {
        Error::Moved(why) => Error::CantOpen(why),
        e => e,
    })
}

/// The name must be free. Logs are found by session, so nothing depends on it.
fn give_name(db: &Database, log: &mut LogFile) {
    let named = log_path(&db.path);
    if log.path != named
        && matches!(log.is_at(&*db.disk, &log.path), Ok(true))
        && db.disk.rename(&log.path, &named).is_ok()
    {
        log.path = named;
    }
}

fn join(
    db: &Database,
    writer: &mut MutexGuard<'_, Option<LiveDatabase>>,
    inner: &mut DatabaseState,
    log: &LogFile,
    session: u64,
    options: &Options,
) -> Result<()> {
    check_fits(db, log, options)?;
    let psow = inner.recovers.then_some(options.psow);
    let member = Member::join(db.files(), log.clone(), session, psow)?;
    follow(db, writer, inner, member, options)
}

fn named_in(log: &LogFile) -> String {
    log.file.shared_words(1).map_or(String::new(), |words| users::named(&ProcessWords::new(words), None))
}

fn check_fits(db: &Database, log: &LogFile, options: &Options) -> Result<()> {
    if options.concurrent {
        return Err(Error::Busy(format!(
            "{} is open in another process, and concurrent=1 needs it alone{}",
            db.path.display(),
            named_in(log)
        )));
    }
    if !db.facts().all_in_log() {
        return Err(Error::Busy(format!(
            "{} is open in another process, and scheme={} needs it alone{}",
            db.path.display(),
            options.preset,
            named_in(log)
        )));
    }
    let home = db.home.id().context(|| db.what("cannot look at"))?;
    if log.noted_home()?.is_some_and(|file| file != home.ino) {
        return Err(Error::CantOpen(format!(
            "{} is a copy of a database that is in use (with the log {}): copy it, with its log, when nobody uses it",
            db.path.display(),
            log.path.display()
        )));
    }
    Ok(())
}

fn follow(
    db: &Database,
    writer: &mut MutexGuard<'_, Option<LiveDatabase>>,
    inner: &mut DatabaseState,
    member: Arc<Member>,
    options: &Options,
) -> Result<()> {
    let slot = member.tail.lock().slot.clone();
    let mark = HomeMark::new(slot.session, told_tid(&slot, db.facts()));
    let bytes = db.home.len().context(|| db.what("cannot read the length of"))?;
    let home = HomeFile::new(mark, bytes, db.atomic_unit(options));
    let psow = member.words.psow();
    if psow != options.psow {
        let shared = Options { psow, ..(*inner.options).clone() };
        db.set_options(inner, shared);
    }
    let log = Log::join(member.log.clone(), slot.clone(), psow);
    **writer = Some(db.begin(inner, log, home, Tid::HOME));
    inner.set_state(Arc::new(State::empty(Tid::HOME)));
    db.enrol(Some(member.clone()), writer, inner);
    if !member.observes && member.words.flushed() <= slot.base_tid && keeps(Case::MarkWithFirstRecord) {
        db.flush_mark_of_first(&member, inner)?;
    }
    follow::catch_up(db, &member, inner, Reach::Visible)?;
    inner.phase = Phase::Live;
    db.tell_attached(inner);
    Ok(())
}

/// An in-page home is complete: it becomes a plain file, and no new session is needed.
fn rests(db: &Database, found: &AbandonedLog, options: &Options) -> Result<bool> {
    let Some(in_page) = db.scheme_with_trailers().filter(|_| found.slot.is_in_page()) else { return Ok(false) };
    let AbandonedLog { log, slots, slot, replayed, .. } = found;
    let is_newest = slots.first().is_some_and(|s| s.session == slot.session && s.sequence == slot.sequence);
    let Replayed { table, state, report, .. } = replayed;
    in_page
        .rest(db, &CrashedSession { log, slot, is_newest, table, state, in_doubt: report.in_place.is_some(), options })
}

/// Whether records can stay. Some exist, so mark and names were durable before; memory has all of
/// their pages; nothing else may be in home or behind the ring; and one more record fits.
fn can_stay(db: &Database, found: &AbandonedLog, options: &Options) -> Result<bool> {
    let AbandonedLog { log, slots, slot, replayed, .. } = found;
    let Replayed { table, state, report, cursor, .. } = replayed;
    let log_bytes = log.file.len().context(|| format!("cannot read the length of {}", log.path.display()))?;
    Ok(db.facts().all_in_log()
        && !slot.in_place
        && slot.page_count != PAGE_COUNT_IN_HOME
        && report.transactions > 0
        && report.lost.is_none()
        && state.kind == FileKind::Database
        && !table.has_layer()
        && table.new_bytes() <= options.table_bytes
        // An older slot may lead further, when the space before its first record was in use.
        && cursor.tail.0.saturating_sub(slot.start.0) <= slot.ring_bytes
        && log_bytes == slot.ring_at() + slot.ring_bytes
        && cursor.last_tid.0.saturating_add(3 * TIDS_APART) < slot.tid_ceiling.0
        && slots.first().is_some_and(|newest| newest == slot)
        && !db.is_signed()?)
}

/// Whether killed processes left everything on the medium, and no part of a later record (rule
/// FlushedStays): by their words, of this start, session and file, and by the log.
fn is_flushed(db: &Database, found: &AbandonedLog, options: &Options) -> Result<bool> {
    let AbandonedLog { log, slot, replayed, told, .. } = found;
    let Replayed { cursor, decider, .. } = replayed;
    let last = cursor.last_tid;
    let what = || format!("cannot look at the log {}", log.path.display());
    let Ok(words) = log.file.shared_words(1) else { return Ok(false) };
    let Some(made) = log.file.made().context(what)? else { return Ok(false) };
    Ok(!options.concurrent
        && *told == Some(last)
        && ProcessWords::new(words).all_flushed(made, slot.sequence, last)
        && decider.is_none()
        && db.is_noted_in(log)?
        && !log.is_begun(slot, cursor)?)
}

/// Records stay in place; pages go home with the next checkpoint. One flush covers slot, records
/// and one of this recovery; none if all are flushed.
fn go_on(
    db: &Database,
    writer: &mut MutexGuard<'_, Option<LiveDatabase>>,
    inner: &mut DatabaseState,
    found: AbandonedLog,
    options: &Options,
) -> Result<()> {
    let is_flushed = is_flushed(db, &found, options)?;
    let AbandonedLog { log, slots, slot, replayed, .. } = found;
    let mut encoder = Encoder::default();
    encoder.clear();
    let own_block = record::own_block(options);
    let mut ring = Log::join(log.clone(), slot.clone(), options.psow);
    let durable = if is_flushed { replayed.cursor.last_tid } else { slot.base_tid };
    ring.resume(&slot, &replayed.cursor, durable)?;
    if !is_flushed && !ring.has_room(encoder.record_bytes() as u64, own_block) {
        return take_over(db, writer, inner, log, &slot, replayed, options);
    }
    let Replayed { table, state, decider, .. } = replayed;
    decider.map_or(Ok(()), |decider| db.keep_decision(&decider, &log, &slot))?;
    let home = db.home.id().context(|| db.what("cannot look at"))?;
    if log.noted_home()? != Some(home.ino) {
        log.note_first_home(home)?;
    }
    let Some(mark) = db.read_mark()? else { return Err(Error::Corrupt(db.what("the mark is gone from"))) };
    let (recovered, due) = if is_flushed {
        // Flushed before the next commit: home may have been put there by hand.
        (Arc::new(state), RecoveryDebt { untold: Some(ring.last_tid()), stayed: Some(ring.last_tid()) })
    } else {
        // After a dead process's failed flush, they may be in the cache only.
        if keeps(Case::RecordsRewritten) {
            log.write_again(&slot, replayed.told_durable, replayed.cursor.tail)?;
        }
        flush_mark(db, &mark, &slot, replayed.told_durable)?;
        // Else the scan could find a cancelled record behind the next one (rule
        // PreparedThenDecided).
        log.wipe_tail(&slot, replayed.cursor.tail)?;
        let recovered = State { tid: number_apart(ring.last_tid())?, ..state };
        let head = ring.head(&recovered);
        let recovered = Arc::new(recovered);
        let (record, crc) = encoder.finish(&head);
        ring.reserve(record.len(), own_block)?;
        let way = ring.make_way(record, own_block, &Unseen)?;
        let durability = if keeps(Case::RecordsRewritten) { Durability::Flushed } else { Durability::Written };
        ring.push(&way, record, crc, &recovered, durability);
        ring.group().wait(recovered.tid, durability, &Unseen)?;
        let untold = Some(recovered.tid);
        (recovered, RecoveryDebt { untold, stayed: None })
    };
    match slots.get(1) {
        Some(older) if older.live && older.session != slot.session => ring.distrust_older_slot(),
        // Its maker died before the older slot said so (rule SlotBeforeReuse).
        Some(older) if older.ring_bytes < slot.ring_bytes => ring.settle_slots()?,
        _ => {}
    }
    let bytes = db.home.len().context(|| db.what("cannot read the length of"))?;
    // The process that writes home gives it back.
    let home = HomeFile { reserved_bytes: bytes, ..HomeFile::new(mark, bytes, db.atomic_unit(options)) };
    *db.table.write() = table;
    inner.set_state(recovered);
    let live = LiveDatabase { due, ..db.begin(inner, ring, home, slot.base_tid) };
    db.share(live, writer, inner, 0)
}

/// Before other writes to home, unless a record proves that a flush covered the mark (rule
/// MarkWithFirstRecord).
fn flush_mark(db: &Database, mark: &HomeMark, slot: &Slot, told_durable: LogOffset) -> Result<()> {
    let may_be_new = mark.tentative && told_durable <= slot.start;
    if may_be_new && keeps(Case::MarkWithFirstRecord) { db.repeat_header() } else { Ok(()) }
}

struct Unseen;

impl Audience for Unseen {
    fn show(&self, _: Arc<State>) {}

    fn poison(&self, error: Error) -> Error {
        error
    }
}

pub fn take_over(
    db: &Database,
    writer: &mut MutexGuard<'_, Option<LiveDatabase>>,
    inner: &mut DatabaseState,
    log: LogFile,
    slot: &Slot,
    replayed: Replayed,
    options: &Options,
) -> Result<()> {
    let Replayed { table, state, report, cursor, decider, told_durable } = replayed;
    decider.map_or(Ok(()), |decider| db.keep_decision(&decider, &log, slot))?;
    log.note_home(db.home.id().context(|| db.what("cannot look at"))?)?;
    let counted = report.transactions > 0 || slot.in_place;
    let change_counter = if counted { slot.counter_ceiling } else { state.change_counter };
    let header = Some(state.header);
    let recovered = match state.kind {
        FileKind::Empty => State { tid: Tid::HOME, ..state },
        _ => state.after(Tid::HOME, state.page_bytes, state.page_count, change_counter, header),
    };
    let bytes = db.home.len().context(|| db.what("cannot read the length of"))?;
    // Until the new session begins. All records follow the slot's TID, and an older log lacks the
    // last (rule HomeFitsLog). Tentative, it says that the session's slot may be missing.
    let tentative = db.read_mark()?.is_some_and(|mark| mark.tentative);
    let mark = HomeMark { tid: cursor.last_tid, tentative, ..HomeMark::new(slot.session, slot.base_tid) };
    let mut home = HomeFile::new(mark, bytes, db.atomic_unit(options));
    if report.transactions > 0 {
        // Records and slot may be in the cache only, and home will depend on them (invariant I3).
        log.rewrite_live(slot, cursor.tail, table.streamed_end())?;
        flush_mark(db, &mark, slot, told_durable)?;
    }
    if report.transactions > 0 {
        write_pages(db, &*db.home, &mut home, &recovered, table.dirty(recovered.page_count)?)?;
        fit_length(db, &*db.home, &mut home, &recovered)?;
    } else if report.in_place.is_some() {
        let in_page = db.scheme_with_trailers();
        let pages = table.dirty(recovered.page_count)?;
        in_page.map_or(Ok(()), |in_page| in_page.write_again(db, &mut home, &recovered, pages))?;
    }
    // As the mark may be.
    db.write_header(&db.with_asked(recovered.marked_or_empty(mark))?)?;
    // The next slot overwrites the other one, and recovery needs one of the two until home is
    // marked anew: this one must be durable.
    let slot_at = slot.position();
    if keeps(Case::LeftoversFlushed) {
        log.file
            .write_durable_at(&slot.encode(), slot_at)
            .context(|| format!("cannot write {}", log.path.display()))?;
        // A commit on top would be lost with the names (invariant I3).
        db.flush_names(&log)?;
    }
    // The name is certain now.
    beside::remove_second(&*db.disk, &db.path)?;
    let next = slot_after(db, slot, &recovered, change_counter)?;
    let session = next.session;
    let mut log = Log::start(log, next, options.psow, false)?;
    log.distrust_older_slot();
    home.mark = HomeMark::new(session, told_tid(log.slot(), db.facts()));
    db.write_header(&db.with_asked(recovered.marked_or_empty(home.mark))?)?;
    // No image there is needed any more (rule SlotBeforeReuse).
    log.give_rest_back(slot.ring_bytes)?;
    inner.set_state(Arc::new(recovered));
    let home_tid = log.slot().base_tid;
    let live = db.begin(inner, log, home, home_tid);
    db.share(live, writer, inner, 0)
}

/// A new session: older copies of log or home do not fit, nor does the older slot if this one is
/// damaged.
fn slot_after(db: &Database, slot: &Slot, recovered: &State, change_counter: u32) -> Result<Slot> {
    Ok(Slot {
        session: if keeps(Case::NewSession) { random()? } else { slot.session },
        salt: random()?,
        start: LogOffset(0),
        ring_bytes: small_ring_bytes(slot.block_bytes).min(slot.ring_bytes),
        // Above all earlier ones (rule OneNumberOneState).
        base_tid: slot.tid_ceiling,
        tid_ceiling: Tid(slot.tid_ceiling.0.saturating_add(TID_STEP)),
        prev_crc: 0,
        page_count: slot_page_count(recovered, db.facts()),
        page_bytes: recovered.page_bytes.max(512),
        change_counter,
        counter_ceiling: change_counter.wrapping_add(COUNTER_STEP),
        in_place: db.facts().in_place,
        ..slot.clone()
    })
}
