//! Takes the place of `research.rs` in a build without the feature `research`.

use crate::base::error::Result;
use crate::base::options::{Preset, SchemeName};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResearchName {}

pub const WITH_TRAILERS: Option<SchemeName> = None;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extra;

impl Extra {
    pub const DEFAULT: Extra = Extra;
    pub const NAMES: [&'static str; 0] = [];

    pub fn set(&mut self, _name: &str, _value: &str) -> Result<bool> {
        Ok(false)
    }

    pub fn get(&self, _name: &str) -> Option<String> {
        None
    }
}

pub const PRESETS: [Preset; 0] = [];
