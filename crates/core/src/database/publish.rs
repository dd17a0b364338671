//! Everything published becomes durable, for one process or for all that share the log.

use std::sync::atomic::Ordering::SeqCst;

use crate::base::error::Result;
use crate::database::{Database, LiveDatabase};
use crate::shared::words::ProcessWords;

impl Database {
    /// The caller has the writer's place.
    pub fn flush_published(&self, live: &mut LiveDatabase) -> Result<()> {
        let group = live.log.group().clone();
        let member = self.member();
        let Some(member) = member.as_ref() else { return group.flush(self) };
        let words = &member.words;
        group.hand_over(self)?;
        let flusher = words.flusher().load(SeqCst);
        let other = ProcessWords::flusher_of(flusher).filter(|other| *other != member.me);
        if let Some(dead) = other
            && member.is_dead(dead)?
        {
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
