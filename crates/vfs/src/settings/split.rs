//! The policy for page splits, which only onewrite's own libsqlite3 asks for, and the refusal of
//! such settings under any other SQLite.

use std::ffi::c_int;

use onewrite_core::Connection;
use onewrite_core::{Split, Updates};

use crate::sqlite::ffi::{SplitPolicy, split};

/// The options as a SQLite has them that splits its own way.
const OTHERWISE: [(&str, &str); 3] = [("split", "stock"), ("reserve_cells", "0"), ("updates", "over")];

/// The answer to `ONEWRITE_FCNTL_SPLIT`.
pub(crate) fn policy(conn: &Connection) -> SplitPolicy {
    let (how, reserve_cells, updates) = conn.split();
    let policy = match how {
        Split::Stock => split::STOCK,
        Split::Lazy => split::LAZY,
        Split::Legacy => split::LEGACY,
    };
    SplitPolicy { policy, reserve_cells, beside: c_int::from(updates == Updates::Beside) }
}

/// An option as it is under a SQLite that works on its pages its own way; `None` if it is not about
/// that. Asking for anything else is refused with a message.
pub(crate) fn without(option: &str, value: Option<&str>) -> Result<Option<String>, String> {
    let Some((_, only)) = OTHERWISE.iter().find(|(name, _)| *name == option) else { return Ok(None) };
    match value {
        Some(value) if !value.eq_ignore_ascii_case(only) => Err(format!(
            "{option}={value}: this SQLite works on its pages its own way ({option}={only}); \
                 only onewrite's own libsqlite3 can do otherwise"
        )),
        _ => Ok(Some((*only).to_owned())),
    }
}
