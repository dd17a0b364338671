//! Commands of `onewrite` among the sessions: which one runs, how it is started, and whether what it answers is to be expected.
//!
//! Each has a directory of its own for what it prints and for the copy that it makes. A copy is judged by another process.

use std::fs::{self, File};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use anyhow::{Context, Result, bail, ensure};
use fastrand::Rng;

use crate::session::What;

/// The program, beside this one.
const NAME: &str = "onewrite";
/// What onewrite says where `onewrite convert` has put another file in the place of the one that is open: that file is in use already, or not.
const MOVED: [&str; 2] =
    ["is another file now than the one that was opened", "is a copy of a database that is in use (with the log"];
/// What a command says that meets others, a transaction that waits to be rolled back, or one that waits in the log: it is to be tried again,
/// or behind a connection that writes.
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
/// The same of `convert` alone, which needs a file that was closed.
const CONVERT_REFUSALS: [&str; 2] =
    ["carries onewrite's mark: it is in use, or a crash left it so", "to WAL mode meanwhile"];

/// Whether a process had the file that `onewrite convert` has put another one in the place of.
pub fn says_moved(said: &str) -> bool {
    MOVED.iter().any(|moved| said.contains(moved))
}

/// A command, with the options that it is given.
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
    /// One of them: those that copy more often than those that say something.
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

    /// Whether the database may be another file afterwards.
    pub fn renames(self) -> bool {
        matches!(self, Task::Convert { .. })
    }

    /// Whether what it copies holds a state of the database, and what a process does to read that.
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
            Task::Convert { to_plain: false } => &["convert", "--to", "trailers"],
            Task::Convert { to_plain: true } => &["convert", "--to", "plain"],
            Task::Dump => &["dump"],
            Task::Inspect => &["inspect"],
            Task::Recover => &["recover"],
        }
    }

    /// Whether this answer is one of a database that others use, or have left so.
    fn is_refused(self, status: i32, said: &str) -> bool {
        let among = |all: &[&str]| all.iter().any(|refusal| said.contains(refusal)) || says_moved(said);
        // 1 says that it is damaged, 2 that it could not be checked.
        let may_refuse = self != Task::Check || status == 2;
        may_refuse && (among(&REFUSALS) || (self.renames() && among(&CONVERT_REFUSALS)))
    }
}

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// It did what it is to do.
    Done,
    /// Others were in its way.
    Refused,
    /// By SIGKILL.
    Killed,
}

/// A command under way, or what it left.
pub struct Run {
    pub task: Task,
    dir: PathBuf,
}

impl Run {
    /// A directory for the one of this number, in `parent`.
    pub fn new(task: Task, number: u64, parent: &Path) -> Result<Run> {
        let dir = parent.join(format!("command-{number}"));
        fs::create_dir(&dir).with_context(|| dir.display().to_string())?;
        Ok(Run { task, dir })
    }

    /// The copy that it makes, or that is made of what it prints.
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

    /// Starts `program` on `database`.
    pub fn start(&self, program: &Path, database: &Path) -> Result<Child> {
        let mut command = Command::new(program);
        command.args(self.task.words()).arg(database);
        if let Task::Backup { .. } = self.task {
            command.arg(self.copy());
        }
        command.stdin(Stdio::null()).stdout(File::create(self.printed())?).stderr(File::create(self.errors())?);
        command.spawn().with_context(|| format!("cannot start {}", program.display()))
    }

    /// What it said: its errors, or else what it printed.
    ///
    /// # Errors
    ///
    /// An answer that no state of the database explains.
    pub fn judge(&self, status: ExitStatus) -> Result<(Ended, String)> {
        let errors = String::from_utf8_lossy(&fs::read(self.errors())?).into_owned();
        if status.signal() == Some(9) {
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

    /// Removes what it left: there is no violation that somebody looks for the reason of.
    pub fn remove(self) -> Result<()> {
        fs::remove_dir_all(&self.dir).with_context(|| self.dir.display().to_string())
    }
}

/// Where the SQL text lies that `copy` is made of.
pub fn printed_beside(copy: &Path) -> PathBuf {
    copy.with_extension("sql")
}

/// The program to run: the one named, or the one beside this one.
pub fn program(named: Option<&Path>) -> Result<PathBuf> {
    let beside = || Ok::<_, anyhow::Error>(std::env::current_exe()?.with_file_name(NAME));
    let path = named.map_or_else(beside, |path| Ok(path.to_owned()))?;
    // A name without a directory is not looked for on the PATH: which version runs is to be certain.
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

/// How many ran, and how they ended.
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

    /// As the summary has it.
    pub fn line(&self) -> String {
        let Totals { started, killed, refused, copies } = self;
        format!(
            "{started} commands: {killed} killed, {refused} refused (BUSY, or a recovery waits); {copies} copies read"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(task: Task, wait_status: i32, printed: &str, errors: &str) -> Result<Ended> {
        let dir = tempfile::tempdir()?;
        let run = Run::new(task, 7, dir.path())?;
        fs::write(run.printed(), printed)?;
        fs::write(run.errors(), errors)?;
        Ok(run.judge(ExitStatus::from_raw(wait_status))?.0)
    }

    #[test]
    fn what_a_command_answers_is_judged() {
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
