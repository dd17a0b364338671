//! Names and options of the schemes of the research. A build without the feature `research` has `without_research.rs` instead.

use crate::base::error::Result;
use crate::base::options::{Bundle, HeaderPage, Preset, SchemeName, Split, Updates, bad};

/// Names of the schemes in `research/`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Name {
    /// Pages in place, each with the record that undoes its change; one flush.
    InPage,
    /// Pages in place and one flush; no protection against crashes. A baseline, not for data.
    Off,
    /// Two files that take turns, exchanged by name. A baseline.
    Dash,
}

/// The scheme whose transactions leave trailers in home, if this build has one.
pub const WITH_TRAILERS: Option<SchemeName> = Some(SchemeName::Research(Name::InPage));

/// By what recovery knows that a transaction in place is whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommitMark {
    /// Its pages are counted: all are flushed at once (counting commit of Doubleheader Logging).
    Count,
    /// One page is written when the others are flushed, and flushed in turn (its traditional commit).
    Page,
}

/// When an undo record goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Garbage {
    /// When its page is next modified (lazy garbage collection of LS-MVBT).
    Lazy,
    /// With a write of its own, once the transaction is durable.
    Eager,
}

/// The options of these schemes alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extra {
    /// How an in-page scheme commits.
    pub commit_mark: CommitMark,
    /// When its undo records go.
    pub garbage: Garbage,
}

impl Extra {
    /// What they are where no preset says otherwise.
    pub const DEFAULT: Extra = Extra { commit_mark: CommitMark::Count, garbage: Garbage::Lazy };
    const PAGE: Extra = Extra { commit_mark: CommitMark::Page, ..Extra::DEFAULT };

    /// Their names.
    pub const NAMES: [&'static str; 2] = ["commit_mark", "gc"];

    /// Sets one from text; false for an unknown name.
    pub fn set(&mut self, name: &str, value: &str) -> Result<bool> {
        match (name, value.to_ascii_lowercase().as_str()) {
            ("commit_mark", "count") => self.commit_mark = CommitMark::Count,
            ("commit_mark", "page") => self.commit_mark = CommitMark::Page,
            ("commit_mark", _) => return Err(bad(name, value, "count, page")),
            ("gc", "lazy") => self.garbage = Garbage::Lazy,
            ("gc", "eager") => self.garbage = Garbage::Eager,
            ("gc", _) => return Err(bad(name, value, "lazy, eager")),
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// What is in force for one; `None` for an unknown name.
    pub fn get(&self, name: &str) -> Option<String> {
        let value = match name {
            "commit_mark" => match self.commit_mark {
                CommitMark::Count => "count",
                CommitMark::Page => "page",
            },
            "gc" => match self.garbage {
                Garbage::Lazy => "lazy",
                Garbage::Eager => "eager",
            },
            _ => return None,
        };
        Some(value.to_owned())
    }
}

const IN_PAGE: Bundle = Bundle { scheme: SchemeName::Research(Name::InPage), ..Bundle::LOG };
// Both halves of a split page have room for a record to be written beside the old one.
const DHL: Bundle = Bundle { reserve_cells: 1, updates: Updates::Beside, ..IN_PAGE };
const MVBT: Bundle = Bundle { split: Split::Legacy, extra: Extra::PAGE, ..IN_PAGE };
const OFF: Bundle = Bundle { scheme: SchemeName::Research(Name::Off), ..Bundle::STOCK };
const DASH: Bundle = Bundle { scheme: SchemeName::Research(Name::Dash), ..Bundle::STOCK };

/// Their presets.
pub const PRESETS: [Preset; 8] = [
    // Doubleheader Logging with counting commit, and with traditional commit.
    Preset { name: "dhl-cc", bundle: DHL },
    Preset { name: "dhl-tc", bundle: Bundle { extra: Extra::PAGE, ..DHL } },
    // The multi-version B-tree with all optimisations of LS-MVBT.
    Preset { name: "lsmvbt", bundle: Bundle { split: Split::Lazy, reserve_cells: 1, ..MVBT } },
    // Without them but for the lazy garbage collection, which all of the paper's have.
    Preset { name: "mvbt", bundle: Bundle { header_page: HeaderPage::Write, ..MVBT } },
    // `mvbt` with metadata embedding, as the paper on Doubleheader Logging measures it.
    Preset { name: "mvbt-opt", bundle: MVBT },
    // Pages in place, one flush, page 1 written at each commit; and without writing it for its counters alone.
    Preset { name: "off", bundle: Bundle { header_page: HeaderPage::Write, ..OFF } },
    Preset { name: "off-opt", bundle: OFF },
    // Database shadowing: two files that take turns.
    Preset { name: "dash", bundle: Bundle { header_page: HeaderPage::Write, ..DASH } },
];
