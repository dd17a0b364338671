//! Every scheme by its name in the options, and how what each leaves behind is recovered. A new scheme is a file and a row
//! here or in `research/`.

use std::sync::Arc;

use crate::base::options::SchemeName;
use crate::commit::log::Log;
use crate::database::scheme::Scheme;

/// The scheme called `name`, with nothing under way.
pub fn of(name: SchemeName) -> Arc<dyn Scheme> {
    match name {
        SchemeName::Log => Arc::new(Log),
        #[cfg(feature = "research")]
        SchemeName::Research(name) => crate::research::of(name),
    }
}
