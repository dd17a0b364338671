//! Every scheme by its name in the options, also to recover the files that it left. A new scheme is
//! a file and a row here or in `research/`.

use std::sync::Arc;

use crate::base::options::SchemeName;
use crate::commit::log::LogScheme;
use crate::database::scheme::Scheme;

pub fn of(name: SchemeName) -> Arc<dyn Scheme> {
    match name {
        SchemeName::Log => Arc::new(LogScheme),
        #[cfg(feature = "research")]
        SchemeName::Research(name) => crate::research::of(name),
    }
}
