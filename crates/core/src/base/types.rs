//! Numbers that must not be mixed up, each a type.

use std::fmt;

/// Grows by write transaction, never reused in a database file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tid(pub u64);

impl Tid {
    /// Home when this process attached.
    pub const HOME: Tid = Tid(0);

    /// The one after this.
    pub fn next(self) -> Tid {
        Tid(self.0.saturating_add(1))
    }
}

impl fmt::Display for Tid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// From 1 (SQLite file format, section 1.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PageNo(pub u32);

impl PageNo {
    /// The page with the database header.
    pub const HEADER: PageNo = PageNo(1);

    /// Zero for the impossible page 0.
    pub fn offset(self, page_bytes: u32) -> u64 {
        u64::from(self.0.saturating_sub(1)) * u64::from(page_bytes)
    }

    /// `None` beyond the largest page number.
    pub fn containing(offset: u64, page_bytes: u32) -> Option<PageNo> {
        u32::try_from(offset.checked_div(u64::from(page_bytes))?).ok()?.checked_add(1).map(PageNo)
    }
}

/// Number of whole pages in a file of so many bytes.
pub fn whole_pages(bytes: u64, page_bytes: u32) -> u32 {
    u32::try_from(bytes / u64::from(page_bytes.max(1))).unwrap_or(u32::MAX)
}

/// Bytes of a page from `at` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PagePart {
    /// The page.
    pub page: PageNo,
    pub page_bytes: u32,
    pub at: usize,
}

impl PagePart {
    pub fn offset(self) -> u64 {
        self.page.offset(self.page_bytes) + self.at as u64
    }
}

impl fmt::Display for PageNo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Byte position that grows for ever; modulo the ring's size it is the place in the file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LogOffset(pub u64);
