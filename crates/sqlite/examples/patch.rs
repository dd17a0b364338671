//! Patches another amalgamation than the pinned one: `patch FROM TO`. For SQLite's own tests
//! (`tests/sqlite-suite/build`).

#[allow(dead_code)]
#[path = "../build/patch.rs"]
mod patch;

use std::process::ExitCode;
use std::{env, fs};

fn main() -> ExitCode {
    let [from, to] = &env::args().skip(1).collect::<Vec<_>>()[..] else {
        eprintln!("usage: patch FROM TO");
        return ExitCode::from(2);
    };
    let source = fs::read_to_string(from).map_err(|e| e.to_string());
    let patched = source.and_then(|source| patch::patch(&source, "split.c"));
    match patched.and_then(|patched| fs::write(to, patched).map_err(|e| format!("{to}: {e}"))) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("{from} cannot be patched: {why}");
            ExitCode::FAILURE
        }
    }
}
