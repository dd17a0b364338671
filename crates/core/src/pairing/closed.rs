//! A session that ended in order, of which a power cut brought the mark back: the last close does not flush the mark's removal.
//!
//! Home holds all of the session, for it was flushed before the mark came off. That this happened is proven by the log, in
//! whatever part of the close is on the medium (rule CloseProven).

#![deny(clippy::indexing_slicing, clippy::unwrap_used, clippy::expect_used, clippy::arithmetic_side_effects)]

use crate::base::error::Result;
use crate::base::layout::home as at;
use crate::database::Database;
use crate::log::file::LogFile;
use crate::log::slot::Slot;
use crate::pairing::evidence::HomeAndLog;
use crate::pairing::{self, Evidence};
use crate::sqlite_format::home::{HomeMark, State};

/// A session that is over, of which home carries the mark.
pub struct Closed {
    /// The mark.
    pub mark: HomeMark,
    /// What home holds.
    pub state: State,
    /// The newest slot of the log.
    pub newest: Slot,
    /// A rollback journal waits, of SQLite without onewrite, which came behind the close.
    pub waits: bool,
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
    let mut state = State::without_mark(first, bytes);
    if pairing::is_next(&newest, &mark) {
        // As the close left it: page 1 in home may have an older one, for it alone changes no page.
        state.change_counter = newest.change_counter.wrapping_sub(2);
    }
    Ok(Some(Closed { mark, state, newest, waits: db.has_hot_journal()? }))
}
