//! xFetch: pages in mapped memory, where home rests.

use std::sync::Arc;

use super::Connection;
use super::role::Role;
use crate::database::Database;
use crate::database::mapped::Mapping;
use crate::sqlite_format::home::State;

#[derive(Default)]
pub(super) struct MappedHome {
    mapping: Option<Arc<Mapping>>,
    /// It has the length of home in this state.
    of: Option<Arc<State>>,
}

impl MappedHome {
    fn is_in_use(&self) -> bool {
        self.mapping.as_ref().is_some_and(|mapping| mapping.is_in_use())
    }

    /// The first `limit` bytes may be mapped.
    fn mapping(&mut self, db: &Database, state: &Arc<State>, limit: u64) -> Option<&Arc<Mapping>> {
        if !self.of.as_ref().is_some_and(|of| Arc::ptr_eq(of, state)) {
            let bytes = db.home.len().ok()?.min(limit);
            if self.mapping.as_ref().map_or(0, |mapping| mapping.bytes()) != bytes {
                if self.is_in_use() {
                    return None;
                }
                self.mapping = db.mappings.map(&*db.home, bytes);
            }
            self.of = Some(state.clone());
        }
        self.mapping.as_ref()
    }
}

impl Connection {
    /// xFetch: where a page is in memory, until [`Connection::unfetch`]; nothing writes there
    /// meanwhile. `None`: it has to be read. The file's first `limit` bytes may be mapped; behind
    /// another limit comes [`Connection::unmap`].
    pub fn fetch(&mut self, offset: u64, len: usize, limit: u64) -> Option<*const u8> {
        if limit == 0 || self.may_show_too_much() {
            return None;
        }
        let Role::Reader(reader) = &self.role else { return None };
        let page = reader.whole_page(offset, len)?;
        let mapping = self.mapped.mapping(&self.db, &reader.state, limit)?;
        let at = self.db.mappings.fetch(mapping, offset, len)?;
        self.habit.has_read = true;
        self.cache.note(page, false);
        Some(at)
    }

    /// xUnfetch. False if it is no page that [`Connection::fetch`] gave.
    pub fn unfetch(&mut self, offset: u64) -> bool {
        self.mapped.mapping.as_ref().is_some_and(|mapping| mapping.give_back(offset))
    }

    /// Whether SQLite holds a page that [`Connection::fetch`] gave.
    pub fn holds_mapped(&self) -> bool {
        self.mapped.is_in_use()
    }

    /// What is mapped is given up, if SQLite holds no page.
    pub fn unmap(&mut self) {
        if !self.holds_mapped() {
            self.mapped = MappedHome::default();
        }
    }
}
