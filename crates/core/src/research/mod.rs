//! Schemes of the research, to compare the ring with. Only the table of schemes names them;
//! [`place`] is the commit in place of the in-page schemes.

use std::sync::Arc;

use crate::base::research::ResearchName;
use crate::database::scheme::Scheme;

pub mod dash;
pub mod in_page;
pub mod off;
pub mod place;
pub mod roll_back;
pub mod trailer;
pub mod undo;

pub fn of(name: ResearchName) -> Arc<dyn Scheme> {
    match name {
        ResearchName::InPage => Arc::new(in_page::InPage::default()),
        ResearchName::Off => Arc::new(off::Off),
        ResearchName::Dash => Arc::new(dash::Dash::default()),
    }
}
