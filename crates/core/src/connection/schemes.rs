//! Every scheme by its name in the options, also to recover the files that it left. A new scheme is
//! a file and a row here.

use std::sync::Arc;

use crate::base::options::SchemeName;
use crate::commit::log::LogScheme;
use crate::database::scheme::Scheme;
use crate::research::auto::Auto;
use crate::research::dash::Dash;
use crate::research::in_page::InPage;
use crate::research::off::Off;

pub fn of(name: SchemeName) -> Arc<dyn Scheme> {
    match name {
        SchemeName::Log => Arc::new(LogScheme),
        SchemeName::Auto => Arc::new(Auto),
        SchemeName::InPage => Arc::new(InPage::default()),
        SchemeName::Off => Arc::new(Off),
        SchemeName::Dash => Arc::new(Dash::default()),
    }
}
