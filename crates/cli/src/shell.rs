//! `onewrite shell`: the program `sqlite3`, with the extension loaded and the database open through
//! onewrite.

use crate::program::goes_on_as;
use anyhow::{Result, anyhow, bail};
use onewrite_core::environment;
use std::env::consts::{DLL_PREFIX, DLL_SUFFIX};
use std::ffi::OsString;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// Open a database in the program sqlite3, through onewrite
///
/// Runs sqlite3 with the extension loaded and FILE open. The arguments behind FILE go to sqlite3:
/// options, SQL, dot-commands. The extension (libonewrite.so, on Windows onewrite.dll) is looked
/// for beside this program, in ../lib and where Debian and Fedora have libraries, unless
/// --extension or the environment variable ONEWRITE_EXTENSION names it; `cargo build --release -p
/// onewrite` makes it.
///
///     onewrite shell app.db
///     onewrite shell app.db 'SELECT count(*) FROM t' 'PRAGMA onewrite_stats'
///     onewrite shell app.db -json 'SELECT * FROM t'
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Args {
    /// The library libonewrite.so, on Windows onewrite.dll
    #[arg(long, value_name = "LIBRARY")]
    extension: Option<PathBuf>,
    /// The program to run
    #[arg(long, value_name = "PROGRAM", default_value = "sqlite3")]
    sqlite3: PathBuf,
    /// The database; made if it is not there
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// For sqlite3
    #[arg(value_name = "ARGS", trailing_var_arg = true, allow_hyphen_values = true)]
    args: Vec<OsString>,
}

/// Becomes sqlite3.
pub fn run(args: &Args) -> Result<ExitCode> {
    let extension = extension(args)?;
    let file = std::path::absolute(&args.file)?;
    let command = |more: &[&str]| {
        let mut command = Command::new(&args.sqlite3);
        command.args(more).arg("-cmd").arg(format!(".load '{}'", loadable(&extension)));
        let open = format!(".open {}'file:{}?vfs=onewrite'", opening(&args.args), encoded(&file));
        command.arg("-cmd").arg(open).arg(":memory:");
        command
    };
    // Where either fails, sqlite3 goes on with a database in memory.
    let attempt = || {
        let mut tried = command(&["-bail", "-batch", "-init", "/dev/null"]);
        tried.arg("PRAGMA onewrite_scheme; SELECT 1 FROM sqlite_schema LIMIT 1");
        tried
    };
    let tried = attempt().output().map_err(|e| missing(&args.sqlite3, &e))?;
    if !tried.status.success() || !tried.stderr.is_empty() {
        let said = String::from_utf8_lossy(&tried.stderr);
        let mut why = said.trim().lines().collect::<Vec<_>>().join("; ");
        // sqlite3 tells the code alone.
        let again = attempt().env("ONEWRITE_LOG", "stderr").output();
        if let Some(reason) = again.ok().and_then(|again| reason(&String::from_utf8_lossy(&again.stderr))) {
            why += &format!(": {reason}");
        }
        bail!("{} cannot open {} through {}: {why}", args.sqlite3.display(), args.file.display(), extension.display());
    }
    Err(missing(&args.sqlite3, &goes_on_as(command(&[]).args(&args.args))))
}

/// The given options of sqlite3 that say how to open a file. They go to `.open`, for the file that
/// sqlite3 opens by itself is in memory.
fn opening(args: &[OsString]) -> String {
    let known = ["readonly", "nofollow"];
    let given = |name: &&&str| {
        args.iter().filter_map(|arg| arg.to_str()).any(|arg| arg == format!("-{name}") || arg == format!("--{name}"))
    };
    known.iter().filter(given).map(|name| format!("--{name} ")).collect()
}

/// The last one that the extension logged.
fn reason(log: &str) -> Option<String> {
    log.lines().rev().find_map(|line| Some(line.split_once(") onewrite: ")?.1.to_owned()))
}

fn missing(program: &Path, e: &std::io::Error) -> anyhow::Error {
    let program = program.display();
    if e.kind() != std::io::ErrorKind::NotFound {
        return anyhow!("cannot run {program}: {e}");
    }
    anyhow!(
        "there is no program {program}. Install it: `apt install sqlite3` (Debian, Ubuntu), `dnf install sqlite` (Fedora), \
         `apk add sqlite` (Alpine), `pacman -S sqlite` (Arch); or name another with --sqlite3"
    )
}

fn extension(args: &Args) -> Result<PathBuf> {
    let name = format!("{DLL_PREFIX}onewrite{DLL_SUFFIX}");
    let named = args.extension.clone().or_else(|| environment::variable("ONEWRITE_EXTENSION").map(PathBuf::from));
    if let Some(named) = named {
        let path = std::path::absolute(&named)?;
        return if path.is_file() { Ok(path) } else { Err(anyhow!("there is no library {}", named.display())) };
    }
    let program = std::env::current_exe()?;
    let dir = program.parent().unwrap_or(Path::new("/"));
    // Debian's directories for libraries are named for the machine.
    let debian = format!("../lib/{}-linux-gnu", std::env::consts::ARCH);
    let places = ["", "../lib", &debian, "../lib64"].map(|place| dir.join(place).join(&name));
    places.iter().find(|path| path.is_file()).cloned().ok_or_else(|| {
        let places = places.map(|path| path.display().to_string());
        anyhow!(
            "there is no {}: build it with `cargo build --release -p onewrite`, or name it with --extension or \
             ONEWRITE_EXTENSION",
            places.join(" and no ")
        )
    })
}

/// As sqlite3's .load takes it in quotes.
fn loadable(path: &Path) -> String {
    path.display().to_string().replace('\'', "\\'")
}

/// As a URI has it.
fn encoded(path: &Path) -> String {
    let mut text = String::new();
    for &byte in path.as_os_str().as_encoded_bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'/' | b'.' | b'-' | b'_' | b'~' => text.push(char::from(byte)),
            _ => _ = write!(text, "%{byte:02X}"),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_of_opening_are_passed_on_for_this_file() {
        let of = |args: &[&str]| opening(&args.iter().map(OsString::from).collect::<Vec<_>>());
        assert_eq!(of(&["-json", "SELECT 1"]), "");
        assert_eq!(of(&["-nofollow", "--readonly", "SELECT 1"]), "--readonly --nofollow ");
    }

    #[test]
    fn a_path_in_a_uri() {
        assert_eq!(encoded(Path::new("/a b/ü?#'%.db")), "/a%20b/%C3%BC%3F%23%27%25.db");
    }
}
