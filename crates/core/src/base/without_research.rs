//! Takes the place of `research.rs` in a build without the feature `research`: no scheme, no
//! preset, no option.

use crate::base::error::Result;
use crate::base::options::{Preset, SchemeName};

/// Names of schemes: none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResearchName {}

/// The scheme whose transactions leave trailers in home: this build has none.
pub const WITH_TRAILERS: Option<SchemeName> = None;

/// Options: none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extra;

impl Extra {
    /// No option.
    pub const DEFAULT: Extra = Extra;
    /// No name.
    pub const NAMES: [&'static str; 0] = [];

    /// Every name is unknown.
    pub fn set(&mut self, _name: &str, _value: &str) -> Result<bool> {
        Ok(false)
    }

    /// Every name is unknown.
    pub fn get(&self, _name: &str) -> Option<String> {
        None
    }
}

/// Presets: none.
pub const PRESETS: [Preset; 0] = [];
