//! A session that ended in order, whose mark a power cut brought back: the last close does not
//! flush the mark's removal, for the log proves that home has all of the session (rule
//! CloseProven).

#![deny(clippy::indexing_slicing, clippy::unwrap_used, clippy::expect_used, clippy::arithmetic_side_effects)]

use crate::base::error::Result;
use crate::base::layout::home as at;
use crate::database::Database;
use crate::log::file::LogFile;
use crate::log::slot::Slot;
use crate::pairing::evidence::HomeAndLog;
use crate::pairing::{self, Evidence};
use crate::sqlite_format::home::{HomeMark, State};

pub struct Closed {
    pub mark: HomeMark,
    /// State of home.
    pub state: State,
    pub newest: Slot,
    /// A hot journal of SQLite without onewrite, from after the close.
    pub waits: bool,
}

/// The caller has the log to itself.
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
        // A close changes no page, so home's page 1 may have an older counter.
        state.change_counter = newest.change_counter.wrapping_sub(2);
    }
    Ok(Some(Closed { mark, state, newest, waits: db.has_hot_journal()? }))
}
