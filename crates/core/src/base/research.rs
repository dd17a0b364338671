//! Names and options of the schemes of the research; `without_research.rs` has the same items in
//! other builds.

use crate::base::error::Result;
use crate::base::options::{Bundle, HeaderPage, OptionValue, Preset, SchemeName, Split, Updates};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResearchName {
    /// Pages in place, with undo records; one flush.
    InPage,
    /// Pages in place, one flush, no crash protection: a baseline, not for data.
    Off,
    /// Two files exchange names: a baseline.
    Dash,
}

/// The scheme whose transactions leave trailers in home, if this build has one.
pub const WITH_TRAILERS: Option<SchemeName> = Some(SchemeName::Research(ResearchName::InPage));

/// Proof that a transaction in place is whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommitMark {
    /// All pages are flushed at once and counted (counting commit of Doubleheader Logging).
    Count,
    /// One page is written and flushed last (its traditional commit).
    Page,
}

/// When an undo record is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Garbage {
    /// With the page's next change (lazy garbage collection of LS-MVBT).
    Lazy,
    /// With a write of its own, after the commit.
    Eager,
}

impl OptionValue for CommitMark {
    const ALL: &[(CommitMark, &str)] = &[(CommitMark::Count, "count"), (CommitMark::Page, "page")];
}

impl OptionValue for Garbage {
    const ALL: &[(Garbage, &str)] = &[(Garbage::Lazy, "lazy"), (Garbage::Eager, "eager")];
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extra {
    pub commit_mark: CommitMark,
    pub garbage: Garbage,
}

impl Extra {
    /// Where no preset says otherwise.
    pub const DEFAULT: Extra = Extra { commit_mark: CommitMark::Count, garbage: Garbage::Lazy };
    const PAGE: Extra = Extra { commit_mark: CommitMark::Page, ..Extra::DEFAULT };

    pub const NAMES: [&'static str; 2] = ["commit_mark", "gc"];

    /// False for an unknown name.
    pub fn set(&mut self, name: &str, value: &str) -> Result<bool> {
        match name {
            "commit_mark" => self.commit_mark = OptionValue::parse(name, value)?,
            "gc" => self.garbage = OptionValue::parse(name, value)?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// [`Extra::set`] accepts the value. `None`: unknown name.
    pub fn get(&self, name: &str) -> Option<String> {
        let value = match name {
            "commit_mark" => self.commit_mark.name(),
            "gc" => self.garbage.name(),
            _ => return None,
        };
        Some(value.to_owned())
    }
}

const IN_PAGE: Bundle = Bundle { scheme: SchemeName::Research(ResearchName::InPage), ..Bundle::LOG };
// Both halves of a split page have room for a record beside the old one.
const DHL: Bundle = Bundle { reserve_cells: 1, updates: Updates::Beside, ..IN_PAGE };
const MVBT: Bundle = Bundle { split: Split::Legacy, extra: Extra::PAGE, ..IN_PAGE };
const OFF: Bundle = Bundle { scheme: SchemeName::Research(ResearchName::Off), ..Bundle::STOCK };
const DASH: Bundle = Bundle { scheme: SchemeName::Research(ResearchName::Dash), ..Bundle::STOCK };

pub const PRESETS: [Preset; 8] = [
    // Doubleheader Logging: counting commit, traditional commit.
    Preset { name: "dhl-cc", bundle: DHL },
    Preset { name: "dhl-tc", bundle: Bundle { extra: Extra::PAGE, ..DHL } },
    // All optimisations of LS-MVBT.
    Preset { name: "lsmvbt", bundle: Bundle { split: Split::Lazy, reserve_cells: 1, ..MVBT } },
    // Only lazy garbage collection, as all of the paper's.
    Preset { name: "mvbt", bundle: Bundle { header_page: HeaderPage::Write, ..MVBT } },
    // With metadata embedding, as in the paper on Doubleheader Logging.
    Preset { name: "mvbt-opt", bundle: MVBT },
    // Page 1 at each commit, or not for counters alone.
    Preset { name: "off", bundle: Bundle { header_page: HeaderPage::Write, ..OFF } },
    Preset { name: "off-opt", bundle: OFF },
    Preset { name: "dash", bundle: Bundle { header_page: HeaderPage::Write, ..DASH } },
];
