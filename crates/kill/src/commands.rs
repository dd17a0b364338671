//! Runs commands of `onewrite` among the sessions and judges their answers.
//!
//! Each has a directory of its own for its output and its copy, which another process judges.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use anyhow::{Context, Result, bail, ensure};
use fastrand::Rng;

use crate::session::What;

const NAME: &str = if cfg!(windows) { "onewrite.exe" } else { "onewrite" };
/// onewrite's messages after `onewrite research convert` replaced the open file: the new file is in
/// use already, or not.
const MOVED: [&str; 2] =
    ["is another file now than the one that was opened", "is a copy of a database that is in use (with the log"];
/// A command meets another process, or a transaction that waits for rollback or recovery: it may be
/// tried again, or behind a connection that writes.
const REFUSALS: [&str; 9] = [
    "in use by another process",
    "has this database open",
    "database is locked",
    "database file was locked",
    "is busy",
    "come faster than it can be looked at",
    "Open it once for writing through onewrite, or run `onewrite recover`",
    "open it once to write, as `onewrite shell",
    "open it with SQLite once",
];
/// `convert` alone needs a closed file.
const CONVERT_REFUSALS: [&str; 2] =
    ["carries onewrite's mark: it is in use, or a crash left it so", "to WAL mode meanwhile"];

pub fn says_moved(said: &str) -> bool {
    MOVED.iter().any(|moved| said.contains(moved))
}

/// A command with its options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Task {
    Backup { vacuum: bool },
    Check,
    Convert { to_plain: bool },
    Dump,
    Inspect,
    Recover,
}

impl Task {
    /// Commands that copy are drawn more often.
    pub fn draw(rng: &mut Rng) -> Task {
        match rng.u32(0..10) {
            0..3 => Task::Backup { vacuum: rng.u32(0..4) == 0 },
            3 | 4 => Task::Check,
            5 => Task::Convert { to_plain: rng.bool() },
            6 | 7 => Task::Dump,
            8 => Task::Inspect,
            _ => Task::Recover,
        }
    }

    /// Whether another file may replace the database.
    pub fn renames(self) -> bool {
        matches!(self, Task::Convert { .. })
    }

    /// The session that judges the copy, if there is one.
    pub fn copies(self) -> Option<What> {
        match self {
            Task::Backup { .. } => Some(What::Last),
            Task::Dump => Some(What::Load),
            _ => None,
        }
    }

    fn words(self) -> &'static [&'static str] {
        match self {
            Task::Backup { vacuum: false } => &["backup"],
            Task::Backup { vacuum: true } => &["backup", "--vacuum"],
            Task::Check => &["check"],
            Task::Convert { to_plain: false } => &["research", "convert", "--to", "trailers"],
            Task::Convert { to_plain: true } => &["research", "convert", "--to", "plain"],
            Task::Dump => &["dump"],
            Task::Inspect => &["inspect"],
            Task::Recover => &["recover"],
        }
    }

    /// Whether the answer fits a database that others use or left in need of recovery.
    fn is_refused(self, status: i32, said: &str) -> bool {
        let among = |all: &[&str]| all.iter().any(|refusal| said.contains(refusal)) || says_moved(said);
        // 1 means damage; 2, that no check was possible.
        let may_refuse = self != Task::Check || status == 2;
        may_refuse && (among(&REFUSALS) || (self.renames() && among(&CONVERT_REFUSALS)))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    Done,
    /// Another process was in the way.
    Refused,
    /// Killed by SIGKILL.
    Killed,
}

pub struct Run {
    pub task: Task,
    dir: PathBuf,
}

impl Run {
    /// Makes a directory for it in `parent`.
    pub fn new(task: Task, number: u64, parent: &Path) -> Result<Run> {
        let dir = parent.join(format!("command-{number}"));
        fs::create_dir(&dir).with_context(|| dir.display().to_string())?;
        Ok(Run { task, dir })
    }

    /// The copy, made by the command or loaded from its output.
    pub fn copy(&self) -> PathBuf {
        self.dir.join("copy.db")
    }

    fn printed(&self) -> PathBuf {
        match self.task {
            Task::Dump => printed_beside(&self.copy()),
            _ => self.dir.join("printed"),
        }
    }

    fn errors(&self) -> PathBuf {
        self.dir.join("errors")
    }

    pub fn start(&self, program: &Path, database: &Path) -> Result<Child> {
        let mut command = Command::new(program);
        command.args(self.task.words()).arg(database);
        if let Task::Backup { .. } = self.task {
            command.arg(self.copy());
        }
        command.stdin(Stdio::null()).stdout(File::create(self.printed())?).stderr(File::create(self.errors())?);
        command.spawn().with_context(|| format!("cannot start {}", program.display()))
    }

    /// How the command ended, which this campaign may have `killed`, with its errors or else its
    /// output.
    ///
    /// # Errors
    ///
    /// An answer that no state of the database explains.
    pub fn judge(&self, status: ExitStatus, killed: bool) -> Result<(Ended, String)> {
        let errors = String::from_utf8_lossy(&fs::read(self.errors())?).into_owned();
        if killed {
            return Ok((Ended::Killed, errors));
        }
        let text = if self.task == Task::Dump {
            errors
        } else {
            String::from_utf8_lossy(&fs::read(self.printed())?).into_owned() + &errors
        };
        let (what, text) = (self.task.words().join(" "), text.trim_end().to_owned());
        let Some(code) = status.code() else { bail!("onewrite {what} ended with {status}: {text}") };
        if code == 0 {
            ensure!(
                self.task != Task::Check || text.contains(": sound"),
                "onewrite {what} does not say that it is sound: {text}"
            );
            return Ok((Ended::Done, text));
        }
        ensure!(self.task.is_refused(code, &text), "onewrite {what} ended with status {code}: {text}");
        Ok((Ended::Refused, text))
    }

    /// Without a violation, its files are no evidence.
    pub fn remove(self) -> Result<()> {
        fs::remove_dir_all(&self.dir).with_context(|| self.dir.display().to_string())
    }
}

/// The SQL text from which `copy` is loaded.
pub fn printed_beside(copy: &Path) -> PathBuf {
    copy.with_extension("sql")
}

/// `named`, or the program beside this one.
pub fn program(named: Option<&Path>) -> Result<PathBuf> {
    let beside = || Ok::<_, anyhow::Error>(std::env::current_exe()?.with_file_name(NAME));
    let path = named.map_or_else(beside, |path| Ok(path.to_owned()))?;
    // No search on the PATH: the version must be certain.
    let path = path.canonicalize().with_context(|| {
        format!(
            "--commands needs the program {NAME}, and there is none at {}: build it with `cargo build --release -p onewrite-cli`, or name it \
             with --onewrite FILE",
            path.display()
        )
    })?;
    ensure!(path.is_file(), "--onewrite {} is not a program", path.display());
    Ok(path)
}

#[derive(Default)]
pub struct Totals {
    started: u64,
    killed: u64,
    refused: u64,
    /// Copies that another process read.
    pub copies: u64,
}

impl Totals {
    pub fn add(&mut self, ended: Ended) {
        self.started += 1;
        match ended {
            Ended::Killed => self.killed += 1,
            Ended::Refused => self.refused += 1,
            Ended::Done => {}
        }
    }

    /// The line of the summary.
    pub fn line(&self) -> String {
        let Totals { started, killed, refused, copies } = self;
        format!(
            "{started} commands: {killed} killed, {refused} refused (BUSY, or a recovery waits); {copies} copies read"
        )
    }
}

#[cfg(all(test, unix))]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use super::*;
    use crate::host::was_killed;

    fn judged(task: Task, wait_status: i32, printed: &str, errors: &str) -> Result<Ended> {
        let dir = tempfile::tempdir()?;
        let run = Run::new(task, 7, dir.path())?;
        fs::write(run.printed(), printed)?;
        fs::write(run.errors(), errors)?;
        let status = ExitStatus::from_raw(wait_status);
        Ok(run.judge(status, was_killed(status, false))?.0)
    }

    #[test]
    fn answers_of_commands_are_judged() {
        const STATUS_1: i32 = 1 << 8;
        const STATUS_2: i32 = 2 << 8;
        let busy = "a.db is in use by another process: close every program";
        assert_eq!(judged(Task::Check, 0, "a.db: sound, and in use\n", "").unwrap(), Ended::Done);
        assert_eq!(judged(Task::Check, STATUS_2, "", busy).unwrap(), Ended::Refused);
        assert_eq!(judged(Task::Recover, STATUS_1, "", busy).unwrap(), Ended::Refused);
        assert_eq!(judged(Task::Check, 9, "DAMAGE", "").unwrap(), Ended::Killed);
        let marked = "a.db carries onewrite's mark: it is in use, or a crash left it so. Run";
        assert_eq!(judged(Task::Convert { to_plain: true }, STATUS_1, "", marked).unwrap(), Ended::Refused);
        let told = |task, status, printed, errors| judged(task, status, printed, errors).unwrap_err().to_string();
        assert!(told(Task::Check, STATUS_1, "a.db: DAMAGED: 1 finding above", busy).contains("DAMAGED"));
        assert!(told(Task::Check, 0, "nothing", "").contains("does not say that it is sound"));
        assert!(
            told(Task::Recover, STATUS_1, "", marked).contains("onewrite recover ended with status 1: a.db carries")
        );
        assert!(told(Task::Dump, 11, "INSERT", "a panic").contains("signal: 11"), "a crash");
        assert!(
            told(Task::Backup { vacuum: true }, STATUS_1, "", "database disk image is malformed")
                .contains("backup --vacuum")
        );
    }
}
