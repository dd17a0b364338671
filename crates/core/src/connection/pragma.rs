//! `PRAGMA onewrite_*`: settings in force, costs and errors.

use std::fmt::Write;

use crate::base::error::{Error, Result};
use crate::base::options::Options;
use crate::base::text::printable;
use crate::connection::Connection;
use crate::database::Phase;
use crate::shared::users::DatabaseUser;
use crate::shared::words::Ship;

/// Pragmas besides the options.
pub const NAMES: [&str; 7] = ["stats", "status", "who", "changes", "checkpoint", "error", "version"];

const ANY_TIME: [&str; 7] = ["split", "reserve_cells", "updates", "table_size", "stream_size", "sticky", "idle"];

impl Connection {
    /// `PRAGMA onewrite_NAME` with or without a value; `None` if unknown.
    pub fn pragma(&mut self, name: &str, value: Option<&str>) -> Option<Result<String>> {
        let answer = answer(self, name, value)?;
        Some(match name {
            "error" => answer,
            _ => self.noted(answer),
        })
    }
}

fn answer(connection: &mut Connection, name: &str, value: Option<&str>) -> Option<Result<String>> {
    let name = name.to_ascii_lowercase();
    Some(match name.as_str() {
        "stats" => Ok(connection.database().stats.text()),
        "status" => Ok(status(connection)),
        "who" => connection.database().users().map(|users| who(&users)),
        "changes" => Ok(changes(connection)),
        "checkpoint" => connection.checkpoint().map(|()| "ok".to_owned()),
        "error" => Ok(printable(connection.last_error().unwrap_or("none")).into_owned()),
        "version" => Ok(env!("CARGO_PKG_VERSION").to_owned()),
        own if Options::OWN.contains(&own) => {
            let mut options = connection.own_options();
            value.map_or(Ok(()), |v| options.set(own, v)).map(|()| {
                connection.set_own_options(&options);
                options.get(own).unwrap_or_default()
            })
        }
        _ => match value {
            None => Ok(connection.database().inner.lock().options.get(&name)?),
            Some(value) => {
                Options::default().get(&name)?;
                set(connection, &name, value)
            }
        },
    })
}

fn set(connection: &mut Connection, name: &str, value: &str) -> Result<String> {
    let db = connection.database().clone();
    let mut options = (*db.inner.lock().options).clone();
    options.set(name, value)?;
    options.check()?;
    let changes = options != *db.inner.lock().options;
    if changes && !ANY_TIME.contains(&name) {
        if !connection.is_sole_and_idle() {
            return Err(Error::Busy(format!(
                "{name} can change only while this is the only connection to the database and in no transaction"
            )));
        }
        if db.inner.lock().phase == Phase::Live {
            // The next write uses the new options.
            db.detach_for_options()?;
        }
    }
    let mut inner = db.inner.lock();
    db.set_options(&mut inner, options);
    Ok(inner.options.get(name).unwrap_or_default())
}

/// The transaction's snapshot by session and TID, its pages in the log with the TID of their last
/// change, and the TID after which none is missing. Empty unless processes can share the log.
fn changes(connection: &Connection) -> String {
    let db = connection.database();
    let member = db.member();
    let (Some(member), Some(state)) = (member.as_ref(), connection.snapshot()) else { return "unknown".to_owned() };
    let session = member.tail.lock().slot.session;
    let Some((since, pages)) = db.table.read().changes(state.tid) else { return "unknown".to_owned() };
    let mut text = format!("session={session:016x}\ntid={}\nsince={since}\npages=", state.tid);
    for (n, (page, tid)) in pages.iter().enumerate() {
        let comma = if n > 0 { "," } else { "" };
        // Into a String: cannot fail.
        let _ = write!(text, "{comma}{page}:{tid}");
    }
    text
}

/// A line for each process, with a tab between its facts.
fn who(users: &[DatabaseUser]) -> String {
    let fact = |(name, value)| format!("{name}={value}");
    let line = |user: &DatabaseUser| user.facts().into_iter().map(fact).collect::<Vec<_>>().join("\t");
    users.iter().map(line).collect::<Vec<_>>().join("\n")
}

fn status(connection: &Connection) -> String {
    let db = connection.database();
    let inner = db.inner.lock();
    let phase = match &inner.phase {
        Phase::Unmarked => "plain file, no log in use".to_owned(),
        Phase::Live => "marked, commits go through the log".to_owned(),
        Phase::Aside(_) => "a connection has stepped aside".to_owned(),
        Phase::Poisoned(why) => format!("closed to use: {why}"),
    };
    let late = inner.member.as_ref().map_or(0, |member| member.words.late_for().as_secs());
    let late =
        format!("commits wait for it, and it takes nothing now, for {late} s: writers are refused until it is back");
    let store = match inner.ship() {
        Ship::Off => "commits wait for none",
        Ship::Begun => "commits wait for it, and nobody reads before it has the newest state",
        Ship::On => "commits wait for it",
        Ship::Late => &late,
        Ship::Replica => "this is a replica of it: the follower alone commits here",
        Ship::Fenced => "it belongs to another database: nothing is committed here any more",
    };
    let table = db.table.read();
    format!(
        "phase={phase}\nstore={store}\nscheme={}\ntid={}\npages={}\npage_bytes={}\nchange_counter={}\nconnections={}\nsnapshots={}\n\
         table_bytes={}\nkept_bytes={}",
        inner.options.preset,
        inner.latest.tid,
        inner.latest.page_count,
        inner.latest.page_bytes,
        inner.latest.change_counter,
        inner.connections,
        inner.snapshot_count(),
        table.new_bytes(),
        table.kept_bytes()
    )
}
