//! The keys of a URI by owner: SQLite, onewrite, the binding or the application. A key without an
//! owner is a setting that would be lost silently.

use onewrite_core::Options;

/// The keys that SQLite documents.
const SQLITE: [&str; 8] = ["vfs", "mode", "cache", "psow", "nolock", "immutable", "modeof", "8_3_names"];

/// Names the first key without an owner, with the choices.
pub(crate) fn check(keys: &[String]) -> Result<(), String> {
    keys.iter().find(|key| !is_known(key)).map_or(Ok(()), |key| {
        let meant = Options::NAMES.iter().chain(&SQLITE).find(|name| plain(name) == plain(key));
        let meant = meant.map(|name| format!(" (do you mean {name}?)")).unwrap_or_default();
        Err(format!(
            "unknown URI parameter {key:?}{meant}; onewrite's parameters are {}; SQLite's are {}; \
             those that begin with x- are the application's, with _ the binding's",
            Options::NAMES.join(", "),
            SQLITE.join(", ")
        ))
    })
}

fn is_known(key: &str) -> bool {
    if SQLITE.contains(&key) || Options::NAMES.contains(&key) || key.starts_with("x-") {
        return true;
    }
    // Some bindings leave keys of their own in the URI (go-sqlite3: `_busy_timeout`). One of ours
    // with a bar in front is a slip.
    key.starts_with('_') && !Options::NAMES.iter().any(|name| plain(name) == plain(key))
}

/// A key without the parts that are easily mistaken.
fn plain(key: &str) -> String {
    let key = key.to_ascii_lowercase();
    let key = key.strip_prefix("onewrite").unwrap_or(&key);
    key.chars().filter(char::is_ascii_alphanumeric).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_keys_are_refused_with_the_choices() {
        for key in ["logsize", "Log_Size", "log-size", "onewrite_log_size", "_log_size", "VFS", "key", "", "xlog"] {
            let message = check(&["mode".to_owned(), key.to_owned()]).unwrap_err();
            assert!(message.contains(&format!("{key:?}")) && message.contains("log_size, table_size"), "{message}");
        }
        assert!(check(&["logsize".to_owned()]).unwrap_err().contains("do you mean log_size?"));
    }

    #[test]
    fn keys_of_sqlite_onewrite_the_binding_and_the_application_pass() {
        let keys: Vec<String> = SQLITE.iter().chain(&Options::NAMES).map(|key| (*key).to_owned()).collect();
        assert_eq!(check(&keys), Ok(()));
        assert_eq!(check(&["x-tenant".to_owned(), "_busy_timeout".to_owned(), "_txlock".to_owned()]), Ok(()));
    }
}
