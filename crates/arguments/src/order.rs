//! The order of arguments: FILE first, and FROM TO where a command copies. Another order is
//! answered with the right one.

use std::ffi::{OsStr, OsString};

use clap::Error;
use clap::error::ErrorKind;

/// Whether an argument names a store, and no file.
pub fn is_url(argument: &OsStr) -> bool {
    argument.to_string_lossy().contains("://")
}

/// The arguments `words` as a shell takes them.
pub fn quoted<'a>(words: impl IntoIterator<Item = &'a OsStr>) -> String {
    let words: Vec<String> = words.into_iter().map(|word| word.to_string_lossy().into_owned()).collect();
    // No argument of a program has a zero byte.
    shlex::try_join(words.iter().map(String::as_str)).unwrap_or_else(|_| words.join(" "))
}

/// The error of a command whose two arguments `given` stand in the wrong order in `words`, the
/// arguments of the program. `form` is the right order.
pub fn swapped(command: &str, form: &str, given: [&OsStr; 2], words: &[OsString]) -> Error {
    // The last words of the two texts: options come in between, and may have the same text.
    let place = |of: &OsStr| words.iter().rposition(|word| word == of);
    let mut words: Vec<&OsStr> = words.iter().map(OsString::as_os_str).collect();
    if let [Some(first), Some(second)] = given.map(place) {
        words.swap(first, second);
    }
    moved(
        &format!("`onewrite {command}` takes {form}, in this order"),
        std::iter::once(OsStr::new("onewrite")).chain(words),
    )
}

/// The error for a command that has another form, for the reason `why`, with the new command.
pub fn moved<'a>(why: &str, new: impl IntoIterator<Item = &'a OsStr>) -> Error {
    Error::raw(ErrorKind::ValueValidation, format!("{why}. The command is\n\n    {}\n", quoted(new)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_new_command_can_be_typed() {
        let words = ["restore", "--txid", "5", "my app.db", "s3://b/a?region=eu"].map(OsString::from);
        let said = swapped("restore", "URL DEST", [&words[3], &words[4]], &words).to_string();
        assert!(said.contains("takes URL DEST"), "{said}");
        assert!(said.contains("\n    onewrite restore --txid 5 's3://b/a?region=eu' 'my app.db'\n"), "{said}");
    }

    #[test]
    fn a_store_is_no_file() {
        let is_url = |text: &str| is_url(OsStr::new(text));
        assert!(is_url("s3://bucket/app") && is_url("file:///backup") && !is_url("/srv/app.db") && !is_url("a:b.db"));
    }
}
