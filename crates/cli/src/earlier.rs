//! Commands that had another form, or are left out of this build: each is answered with the one
//! that does the work.

use clap::Error;
use clap::error::ErrorKind;
use onewrite_arguments::order::moved;
use std::ffi::{OsStr, OsString};

/// The answer to the arguments `words` of the program, which clap does not know.
pub fn answer(words: &[OsString]) -> Option<Error> {
    let words: Vec<&OsStr> = words.iter().map(OsString::as_os_str).collect();
    let (command, rest) = words.split_first()?;
    match command.to_str()? {
        "convert" => {
            let why = "`onewrite convert` is for the schemes of the research, and stands there";
            Some(moved(why, words_of(&["onewrite", "research", "convert"], rest)))
        }
        "assets" => {
            let why = "`onewrite assets` is gone: `onewrite completions SHELL` prints completions, and `onewrite man` \
                       manual pages";
            Some(moved(why, words_of(&["onewrite", "man", "--dir"], rest)))
        }
        #[cfg(not(feature = "bench"))]
        "bench" => Some(Error::raw(
            ErrorKind::InvalidSubcommand,
            "this onewrite was built without `bench`. In a copy of the sources, `cargo run --release -- bench` builds and \
             runs it\n",
        )),
        _ => None,
    }
}

fn words_of<'a>(command: &[&'a str], rest: &[&'a OsStr]) -> Vec<&'a OsStr> {
    command.iter().map(|word| OsStr::new(*word)).chain(rest.iter().copied()).collect()
}

/// Whether clap's error is about the name of the command.
pub fn is_unknown(error: &Error) -> bool {
    error.kind() == ErrorKind::InvalidSubcommand
}
