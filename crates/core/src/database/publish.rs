//! Everything published becomes durable, for one process or for all that share the log.

use std::sync::atomic::Ordering::SeqCst;

use crate::base::error::Result;
use crate::database::{Database, LiveDatabase};
use crate::shared::member::Member;
use crate::shared::words::ProcessWords;

/// The word of another process that died in a flush, which may have failed.
fn dead_flusher(member: &Member) -> Result<Option<u64>> {
    let flusher = member.words.flusher().load(SeqCst);
    match ProcessWords::flusher_of(flusher).filter(|other| *other != member.me) {
        Some(other) if member.is_dead(other)? => Ok(Some(flusher)),
        _ => Ok(None),
    }
}

impl Database {
    /// Behind a process that died in a flush, all is written again: another's own flush would not
    /// write what was lost (rule WrittenAgain). The caller has the writer's place.
    pub fn flush_of_dead(&self, live: &mut LiveDatabase) -> Result<()> {
        let is_left = live.member().map_or(Ok(None), dead_flusher)?.is_some();
        if is_left { self.flush_published(live) } else { Ok(()) }
    }

    /// The caller has the writer's place.
    pub fn flush_published(&self, live: &mut LiveDatabase) -> Result<()> {
        let group = live.log.group().clone();
        let member = self.member();
        let Some(member) = member.as_ref() else { return group.flush(self) };
        let words = &member.words;
        group.hand_over(self)?;
        if let Some(flusher) = dead_flusher(member)? {
            let cursor = live.log.cursor();
            // The failed flush may have covered streamed images.
            let streamed_end = live.log.stream_tail();
            member.log.rewrite_live(live.log.slot(), cursor.tail, streamed_end).map_err(|e| self.poison(e))?;
            if words.flushed() <= live.log.slot().base_tid {
                // Or one of home, with a new mark.
                self.repeat_header().map_err(|e| self.poison(e))?;
            }
            group.flushed_elsewhere(cursor.last_tid);
            let _ = words.flusher().compare_exchange(flusher, 0, SeqCst, SeqCst);
        } else {
            group.flushed_elsewhere(words.flushed());
            group.flush(self)?;
        }
        self.inner.lock().check()?;
        let mut inner = self.inner.lock();
        // Rule SeenWhenDurable.
        if self.is_told_at_once() {
            words.publish(inner.published.tid, group.durable());
            words.show();
            inner.advance();
            words.ring();
        }
        Ok(())
    }
}
