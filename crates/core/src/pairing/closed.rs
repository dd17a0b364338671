//! A session that ended in order, of which a power cut brought the mark back: the last close does not flush the mark's removal.
//!
//! Home holds all of the session, for it was flushed before the mark came off. That this happened is proven by the log, in
//! whatever part of the close is on the medium (rule CloseProven).

#![deny(clippy::indexing_slicing, clippy::unwrap_used, clippy::expect_used, clippy::arithmetic_side_effects)]

use crate::base::error::{IoContext, Result};
use crate::base::layout::{be_u32, home as at};
use crate::database::Database;
use crate::log::file::LogFile;
use crate::log::slot::Slot;
use crate::log::tombstone::Tombstone;
use crate::pairing::evidence::HomeAndLog;
use crate::pairing::{self, Evidence};
use crate::sqlite_format::home::{self, Header, Mark, State};

/// A session that is over, of which home carries the mark.
pub struct Closed {
    /// The mark.
    mark: Mark,
    /// What home holds.
    pub state: State,
    /// The newest slot of the log.
    newest: Slot,
    /// A rollback journal waits, of SQLite without onewrite, which came behind the close.
    waits: bool,
}

/// Where home carries the mark of a session that the log proves to have ended with all of it in home: that mark, the state of home, and the
/// newest slot. The caller has the log to itself.
pub fn closed(db: &Database, log: &LogFile, session: u64) -> Result<Option<Closed>> {
    let mut evidence = HomeAndLog::new(db, log)?;
    let Some(mark) = evidence.mark().filter(|mark| mark.session == session) else { return Ok(None) };
    if !pairing::is_close_proven(&mut evidence, &mark)? {
        return Ok(None);
    }
    let Some(newest) = evidence.slots.into_iter().next() else { return Ok(None) };
    let mut first = [0; at::HEADER_BYTES];
    let (_, bytes) = db.read_first(&mut first)?;
    let mut state = without_mark(first, bytes);
    if pairing::is_next(&newest, &mark) {
        // As the close left it: page 1 in home may have an older one, for it alone changes no page.
        state.change_counter = newest.change_counter.wrapping_sub(2);
    }
    Ok(Some(Closed { mark, state, newest, waits: db.has_hot_journal()? }))
}

/// Takes the mark off, durable, from a home that is complete: it is as the close left it. The log holds nothing from here on; that is
/// not flushed, for the next session finds out.
pub fn close_again(db: &Database, log: &LogFile, closed: Closed) -> Result<()> {
    let Closed { mark, state, newest, waits } = closed;
    let what = || db.what("cannot fit the length of");
    if !waits && db.home.len().context(what)? > state.bytes() {
        db.home.set_len(state.bytes()).context(what)?;
    }
    db.write_header(&state.final_header())?;
    let newest = match newest.live && newest.session == mark.session {
        true => log.end(&newest, mark.tid)?,
        false => {
            log.wipe(&newest, newest.lap(), &Tombstone { session: mark.session, tid: mark.tid })?;
            newest
        }
    };
    log.give_back(&newest)
}

/// What a marked home with these first bytes and this length holds, as if the mark was off.
pub fn without_mark(mut first: Header, bytes: u64) -> State {
    let counter = be_u32(&first, at::CHANGE_COUNTER).unwrap_or(0);
    home::unmark(&mut first);
    // The marked header is one ahead of the state (format.md, home).
    home::put_counter(&mut first, counter.wrapping_sub(1));
    State::of_home(&first, bytes)
}
