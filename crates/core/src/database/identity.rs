//! Whether home and log are those of the session.

use std::sync::Arc;

use crate::base::error::{Error, IoContext, Result};
use crate::base::layout::lock_bytes::ATTACH;
use crate::base::types::Tid;
use crate::database::{Database, DatabaseState, LiveDatabase};
use crate::disk::LockKind;
use crate::log::file::LogFile;
use crate::shared::member::Member;
use crate::sqlite_format::home::HomeMark;

/// Whether home, which has this mark, can be the one in use.
pub fn may_have_mark(live: &LiveDatabase, mark: Option<HomeMark>) -> bool {
    let fits = |mark: HomeMark| {
        mark.session == live.home.mark.session && (mark.tid == Tid(0) || mark.whole >= live.log.slot().base_tid)
    };
    !live.scheme.facts().checkpoints || mark.is_some_and(fits)
}

impl Database {
    /// Home's mark. Another file copied over home poisons every process (rule HomeFitsLog).
    pub fn check_mark(&self, live: &LiveDatabase) -> Result<Option<HomeMark>> {
        let mark = self.read_mark()?;
        if may_have_mark(live, mark) { Ok(mark) } else { Err(self.overwritten(live, &mut self.inner.lock())) }
    }

    pub fn overwritten(&self, live: &LiveDatabase, inner: &mut DatabaseState) -> Error {
        if let Some(member) = &inner.member {
            member.words.poison_overwritten();
        }
        inner.poison(Error::Moved(format!(
"the file of {} was overwritten while it is in use: it does not carry the mark of this session ({:016x}) any more, or an \
             older one. Nothing is written to it any more. The transactions since the last checkpoint are in the log {}",
self.path.display(),
live.home.mark.session,
live.log.file().path.display()
)))
    }

    pub fn is_noted_in(&self, log: &LogFile) -> Result<bool> {
        let home = self.home.id().context(|| self.what("cannot look at"))?;
        Ok(log.noted_home()? == Some(home.ino))
    }

    pub fn check_replaced(&self, member: &Arc<Member>) -> Result<()> {
        if member.words.is_replaced() { Err(replaced()) } else { Ok(()) }
    }

    /// Whether another process with locks on home uses a lost log.
    pub fn has_stragglers(&self) -> Result<bool> {
        let mut lost = self.lost_logs.lock();
        let mut attached = Vec::new();
        for log in lost.drain(..) {
            let what = || format!("cannot lock the log {}", log.path.display());
            if log.file.conflicts(ATTACH, 1, LockKind::Exclusive).context(what)? {
                attached.push(log);
            }
        }
        *lost = attached;
        Ok(!lost.is_empty())
    }
}

pub fn replaced() -> Error {
    Error::Busy(
        "the log was lost, and another process has made a new one: this one goes over to it with its next transaction"
            .into(),
    )
}
