//! Many short sessions: processes open one database, do one task and end, up to four at once, and
//! half of them are killed. Some are stock SQLite, some commands of `onewrite`. Reads are compared
//! with the reports.

mod with_commands;

use std::collections::VecDeque;
use std::fs;
use std::io::{BufRead, BufReader, PipeWriter, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use fastrand::Rng;
use indicatif::{ProgressBar, ProgressStyle};
use onewrite_rusqlite::STOCK_VFS;
use rusqlite::{Connection, OpenFlags, ffi};

use crate::commands::{self, Run};
use crate::host::was_killed;
use crate::known::{Ids, Known, ROWS_MAX};
use crate::plan;
use crate::session::{Session, What};
use crate::whereabouts::whereabouts;

const SESSIONS_PER_DATABASE: u64 = 2000;
/// Sessions until the number of processes is drawn again.
const SESSIONS_PER_DRAW: u64 = 200;
const AT_ONCE_MAX: usize = 4;
/// Older rows may be deleted.
const ROWS_KEPT: u64 = 2000;
/// A process this old hangs: it waits for others for 15 s at most.
const PATIENCE: Duration = Duration::from_secs(90);
const NAP: Duration = Duration::from_micros(100);
/// Kept reports: in the file, and on the screen.
const EVENTS: (usize, usize) = (20_000, 60);
/// Each database draws one.
const PARAMETERS: [&str; 5] = [
    "",
    "stream_size=64k",
    "busy_ms=1&stream_size=64k",
    "log_size=256k&table_size=256k&stream_size=64k",
    "scheme=wal-opt",
];

/// The number and kinds of sessions.
#[derive(Args, Clone, Debug)]
pub struct Sessions {
    /// How long, in seconds [default: 60, unless --sessions is given]
    #[arg(long)]
    seconds: Option<f64>,
    /// End after so many sessions
    #[arg(long)]
    sessions: Option<u64>,
    /// Seed of the random numbers: it draws sessions and moments of kills, not their interleaving
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Directory for the databases; otherwise a temporary one. A violation keeps the files there
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Percentage of sessions that are stock SQLite's on the same file; 0: onewrite alone
    #[arg(long, default_value_t = 25, value_parser = clap::value_parser!(u32).range(0..=90))]
    stock: u32,
    /// Percentage of sessions that are commands of `onewrite` on the same file: backup, check,
    /// convert, dump, inspect, recover
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=90))]
    commands: u32,
    /// The program `onewrite` for --commands; otherwise the one beside this program
    #[arg(long, value_name = "FILE", requires = "commands")]
    onewrite: Option<PathBuf>,
    /// URI parameters of all sessions through onewrite, such as busy_ms=1&stream_size=64k;
    /// otherwise each database draws some
    #[arg(long)]
    parameters: Option<String>,
}

#[derive(Default)]
struct Totals {
    databases: u64,
    sessions: u64,
    kills: u64,
    /// Acknowledged transactions through onewrite, and through stock SQLite.
    commits: [u64; 2],
    reads: u64,
    busy: [u64; 2],
    /// Refusals of stock SQLite while onewrite has the file.
    refused: u64,
    /// Times that stock SQLite took a sound file for malformed.
    misread: u64,
    /// Refusals of `mode=ro` where only a writer could recover.
    refused_read_only: u64,
    /// Sessions whose open file `onewrite research convert` replaced.
    moved: u64,
    commands: commands::Totals,
}

pub fn run(sessions: &Sessions) -> ExitCode {
    let begun = Instant::now();
    let program = match sessions.program() {
        Ok(program) => program,
        Err(e) => {
            eprintln!("onewrite-kill: {e:#}");
            return ExitCode::from(2);
        }
    };
    let end = match (sessions.seconds, sessions.sessions) {
        (None, Some(_)) => None,
        (seconds, _) => Some(begun + Duration::from_secs_f64(seconds.unwrap_or(60.0).max(0.0))),
    };
    let bar = bar(sessions);
    let mut totals = Totals::default();
    let mut failed = None;
    let more = |totals: &Totals| {
        end.is_none_or(|end| Instant::now() < end) && sessions.sessions.is_none_or(|most| totals.sessions < most)
    };
    while more(&totals) && failed.is_none() {
        failed = database(sessions, program.as_deref(), &mut totals, &bar, &more).err();
    }
    bar.finish_and_clear();
    totals.print(begun.elapsed());
    if program.is_some() {
        println!("{}; another file had the name {} times", totals.commands.line(), totals.moved);
    }
    println!("kills: {}, violations: {}", totals.kills, u32::from(failed.is_some()));
    let Some(e) = failed else { return ExitCode::SUCCESS };
    println!("violation: {e:#}");
    ExitCode::FAILURE
}

impl Sessions {
    fn program(&self) -> Result<Option<PathBuf>> {
        let (stock, commands) = (self.stock, self.commands);
        ensure!(
            stock + commands <= 100,
            "--stock {stock} and --commands {commands} are shares of 100 sessions: together at most 100"
        );
        ensure!(commands > 0 || self.onewrite.is_none(), "--onewrite is of no use with --commands 0: choose 1 to 90");
        if commands == 0 { Ok(None) } else { commands::program(self.onewrite.as_deref()).map(Some) }
    }
}

fn bar(sessions: &Sessions) -> ProgressBar {
    let bar = sessions.sessions.map_or_else(ProgressBar::no_length, ProgressBar::new);
    let template = if sessions.sessions.is_some() {
        "{bar:40} {pos}/{len} sessions  {msg}  {elapsed}, {eta} left"
    } else {
        "{spinner} {pos} sessions  {msg}  {elapsed}"
    };
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar
}

impl Totals {
    fn print(&self, took: Duration) {
        println!(
            "{} databases, {} sessions, {} commits through onewrite and {} through stock SQLite, {} reads; BUSY {} and {}, \
             stock SQLite refused {} times and misled {} times, mode=ro refused {} times; {:.0} s",
            self.databases,
            self.sessions,
            self.commits[0],
            self.commits[1],
            self.reads,
            self.busy[0],
            self.busy[1],
            self.refused,
            self.misread,
            self.refused_read_only,
            took.as_secs_f64()
        );
    }
}

fn database(
    sessions: &Sessions,
    program: Option<&Path>,
    totals: &mut Totals,
    bar: &ProgressBar,
    more: &dyn Fn(&Totals) -> bool,
) -> Result<()> {
    totals.databases += 1;
    let number = totals.databases;
    let parent = sessions.dir.clone().unwrap_or_else(std::env::temp_dir);
    let dir = tempfile::Builder::new().prefix("onewrite-sessions-").tempdir_in(parent)?;
    let mut one = Campaign::new(sessions, program, dir.path(), totals)?;
    let done = one.run(bar, more);
    // After this, the files do not change.
    one.kill_all();
    let Err(e) = done else { return Ok(()) };
    one.events.print();
    one.events.write(&dir.path().join("history"))?;
    let parameters = one.parameters.clone();
    let kept = dir.keep();
    Err(e).with_context(|| {
        let (seed, kept) = (sessions.seed, kept.display());
        format!("seed {seed}, database {number} ({parameters:?}); {kept} has the files and a history")
    })
}

struct Events {
    since: Instant,
    last: VecDeque<String>,
}

impl Events {
    fn add(&mut self, what: &str) {
        if self.last.len() >= EVENTS.0 {
            self.last.pop_front();
        }
        self.last.push_back(format!("{:.6} {what}", self.since.elapsed().as_secs_f64()));
    }

    fn print(&self) {
        for line in self.last.iter().skip(self.last.len().saturating_sub(EVENTS.1)) {
            println!("{line}");
        }
    }

    fn write(&self, path: &Path) -> Result<()> {
        let mut file = std::io::BufWriter::new(fs::File::create(path)?);
        for line in &self.last {
            writeln!(file, "{line}")?;
        }
        Ok(file.flush()?)
    }
}

struct Running {
    number: u64,
    child: Child,
    does: Does,
    since: Instant,
    /// Time from its first report to its kill.
    lives: Option<Duration>,
    dies: Option<Instant>,
}

enum Does {
    Session,
    /// A command of `onewrite`.
    Command(Run),
    /// Reads a command's copy.
    Judge(Run),
}

struct Begun {
    stock: bool,
    what: What,
    /// A command, or the session that reads its copy.
    is_command: bool,
}

struct Campaign<'a> {
    /// Of 100.
    stock: u32,
    /// Of 100, and the program.
    commands: (u32, Option<PathBuf>),
    at: PathBuf,
    plan: u64,
    parameters: String,
    rng: Rng,
    known: Known,
    /// By number.
    sessions: Vec<Begun>,
    next: u64,
    at_once: usize,
    running: Vec<Running>,
    /// One pipe keeps the order of all reports.
    pipe: PipeWriter,
    lines: Receiver<String>,
    events: Events,
    totals: &'a mut Totals,
    /// Stock SQLite's message about a malformed file, until it is checked.
    doubt: Option<String>,
}

impl Campaign<'_> {
    fn new<'a>(
        sessions: &Sessions,
        program: Option<&Path>,
        dir: &Path,
        totals: &'a mut Totals,
    ) -> Result<Campaign<'a>> {
        let mut rng = Rng::with_seed(plan::mix(&[sessions.seed, totals.databases]));
        let drawn = PARAMETERS[rng.usize(0..PARAMETERS.len())].to_owned();
        let (pipe, lines) = listen()?;
        let mut one = Campaign {
            stock: sessions.stock,
            commands: (sessions.commands, program.map(Path::to_owned)),
            at: dir.join("sessions.db"),
            plan: rng.u64(..),
            parameters: sessions.parameters.clone().unwrap_or(drawn),
            rng,
            known: Known::default(),
            sessions: Vec::new(),
            next: 1,
            at_once: 1,
            running: Vec::new(),
            pipe,
            lines,
            events: Events { since: Instant::now(), last: VecDeque::new() },
            totals,
            doubt: None,
        };
        one.create()?;
        Ok(one)
    }

    fn create(&mut self) -> Result<()> {
        let page = [512, 1024, 4096, 4096, 8192, 65536][self.rng.usize(0..6)];
        let vacuum = self.rng.u32(0..3);
        let (plan, parameters) = (self.plan, &self.parameters);
        self.events.add(&format!("page_size {page}, auto_vacuum {vacuum}, parameters {parameters:?}, plan {plan}"));
        let db = Connection::open_with_flags_and_vfs(&self.at, OpenFlags::default(), STOCK_VFS)?;
        db.execute_batch(&format!(
            "PRAGMA page_size={page}; PRAGMA auto_vacuum={vacuum}; \
             CREATE TABLE t(id INTEGER PRIMARY KEY, v BLOB, sum INTEGER)"
        ))?;
        db.close().map_err(|(_, e)| e.into())
    }

    fn run(&mut self, bar: &ProgressBar, more: &dyn Fn(&Totals) -> bool) -> Result<()> {
        let mut left = SESSIONS_PER_DATABASE;
        while left > 0 && more(self.totals) {
            if left.is_multiple_of(SESSIONS_PER_DRAW) {
                self.at_once = self.rng.usize(1..=AT_ONCE_MAX);
            }
            if self.running.len() < self.at_once {
                self.draw()?;
                left -= 1;
                bar.set_position(self.totals.sessions);
                bar.set_message(format!("{} kills, {} commits", self.totals.kills, self.totals.commits[0]));
            }
            self.listen(NAP)?;
            self.reap()?;
            if let Some(doubt) = self.doubt.take() {
                self.kill_and_judge(true).context(doubt)?;
                self.totals.misread += 1;
            }
        }
        self.kill_and_judge(false).context("at the end")
    }

    /// One process reads, writes and closes in order, and stock SQLite finds every page in order.
    /// With `copies`, the directory `before` gets the files first.
    fn kill_and_judge(&mut self, copies: bool) -> Result<()> {
        for one in &mut self.running {
            // A session on a copy disturbs no other, so it may end.
            one.dies = (!matches!(one.does, Does::Judge(_))).then(Instant::now);
        }
        self.finish()?;
        if copies {
            self.copy()?;
        }
        self.last(false).context("through onewrite")?;
        self.last(true).context("through stock SQLite")
    }

    fn copy(&self) -> Result<()> {
        let dir = self.at.parent().context("a directory")?;
        let before = dir.join("before");
        fs::create_dir_all(&before)?;
        for entry in fs::read_dir(dir)? {
            let path = entry?.path();
            if path.is_file() {
                fs::copy(&path, before.join(path.file_name().unwrap_or_default()))?;
            }
        }
        Ok(())
    }

    fn draw(&mut self) -> Result<()> {
        use What::*;
        let drawn = self.rng.u32(0..100);
        if (self.stock..self.stock + self.commands.0).contains(&drawn) {
            return self.draw_command();
        }
        // Stock SQLite would keep using the replaced file, with a journal beside the new one.
        let is_renaming = self.running.iter().any(|one| matches!(&one.does, Does::Command(run) if run.task.renames()));
        let stock = drawn < self.stock && !is_renaming;
        let onewrite = [Short, Short, Short, Short, Short, Read, Read, Large, Clean, ReadOnly, Many, Checkpoint];
        let what = match stock {
            true => [Short, Short, Read, Large, Large, Large, Clean, Checkpoint][self.rng.usize(0..8)],
            false => onewrite[self.rng.usize(0..onewrite.len())],
        };
        let (transactions, rows) = match what {
            Large => (1, self.rng.u64(50..=ROWS_MAX)),
            Many => (40, 1),
            Short | Clean | Checkpoint => (self.rng.u64(1..=4), 1),
            Read | ReadOnly | Last | Load => (0, 0),
        };
        let lives = match self.rng.u32(0..12) {
            0..6 => Some(self.rng.u64(0..8_000)),
            6 => Some(self.rng.u64(0..60_000)),
            _ => None,
        };
        let first = self.next;
        self.next += transactions * rows;
        self.totals.sessions += 1;
        self.start(what, stock, (first, transactions, rows), lives.map(Duration::from_micros))
    }

    fn start(&mut self, what: What, stock: bool, ids: (u64, u64, u64), lives: Option<Duration>) -> Result<()> {
        let number = self.sessions.len() as u64;
        self.sessions.push(Begun { stock, what, is_command: false });
        let session = Session {
            at: self.at.clone(),
            number,
            plan: self.plan,
            parameters: self.parameters.clone(),
            what,
            stock,
            transactions: ids.1,
            rows: ids.2,
            first: ids.0,
            below: self.next.saturating_sub(ROWS_KEPT),
        };
        let child = self.spawn(&session)?;
        let through = if stock { "stock SQLite" } else { "onewrite" };
        let (transactions, rows, first) = (session.transactions, session.rows, session.first);
        let does = format!("{what:?} through {through}, {transactions} transactions of {rows} rows from {first} on");
        self.events.add(&format!("{number} starts: {does}, process {}", child.id()));
        self.running.push(Running { number, child, does: Does::Session, since: Instant::now(), lives, dies: None });
        Ok(())
    }

    fn spawn(&self, session: &Session) -> Result<Child> {
        let mut command = session.command()?;
        command.stdin(Stdio::null()).stdout(self.pipe.try_clone()?).spawn().context("cannot start a session")
    }

    fn listen(&mut self, wait: Duration) -> Result<()> {
        let mut line = self.lines.recv_timeout(wait).ok();
        while let Some(told) = line {
            self.told(&told)?;
            line = self.lines.try_recv().ok();
        }
        Ok(())
    }

    /// Reads all reports until now.
    fn hear_all(&mut self) -> Result<()> {
        const MARK: &str = "heard";
        // In one piece, as other lines.
        self.pipe.write_all(format!("{MARK}\n").as_bytes())?;
        loop {
            let line = self.lines.recv_timeout(PATIENCE).context("the pipe")?;
            if line == MARK {
                return Ok(());
            }
            self.told(&line)?;
        }
    }

    fn told(&mut self, line: &str) -> Result<()> {
        let mut words = line.splitn(3, ' ');
        let number = words.next().and_then(|n| n.parse::<u64>().ok());
        let (Some(number), Some(what), rest) = (number, words.next(), words.next().unwrap_or("")) else {
            bail!("a process says {line:?}");
        };
        let &Begun { stock, is_command, .. } = self.sessions.get(number as usize).context("no such session")?;
        let short: String = line.chars().take(300).collect();
        self.events.add(&short);
        let numbers: Vec<u64> = rest.split(' ').map_while(|n| n.parse().ok()).collect();
        match (what, numbers[..].as_ref()) {
            ("H", _) => self.is_there(number),
            ("T", &[first, rows]) => self.known.begins(first, rows),
            ("A", &[first, rows]) => {
                self.known.acknowledged(first, rows);
                self.totals.commits[usize::from(stock)] += 1;
            }
            ("D", &[below]) => self.known.deletes(number, below),
            ("K", _) => self.known.deleted(number)?,
            // The copy's read counts from the begin of its command.
            ("R", _) if is_command => {}
            ("R", _) => self.known.reads(number),
            ("S", _) => self.known.found(number, &ids(rest)?)?,
            ("E", _) => {
                self.totals.reads += 1;
                self.known.judge(number).with_context(|| format!("session {number}"))?;
            }
            ("F", &[code, extended]) => self.failed(number, (code as i32, extended as i32), line)?,
            ("N", _) => {}
            _ => bail!("session {number}: {rest}"),
        }
        Ok(())
    }

    /// A process is about to open the database.
    fn is_there(&mut self, number: u64) {
        if self.sessions.get(number as usize).is_some_and(|begun| begun.is_command) {
            return;
        }
        self.known.opens(number);
        for one in self.running.iter_mut().filter(|one| one.number == number) {
            one.dies = one.lives.map(|lives| Instant::now() + lives);
        }
    }

    fn failed(&mut self, number: u64, (code, extended): (i32, i32), line: &str) -> Result<()> {
        const RECOVERY: [i32; 2] = [ffi::SQLITE_CANTOPEN, ffi::SQLITE_READONLY_ROLLBACK];
        let &Begun { stock, what: session, .. } = self.sessions.get(number as usize).context("no such session")?;
        match code {
            _ if session.is_alone() => bail!("{line}"),
            _ if self.is_moved(number, extended, line) => self.totals.moved += 1,
            ffi::SQLITE_BUSY => self.totals.busy[usize::from(stock)] += 1,
            ffi::SQLITE_NOTADB if stock => self.totals.refused += 1,
            // SQLite read the file's length before a close brought pages home, and the header after
            // it.
            ffi::SQLITE_CORRUPT if stock => self.doubt = Some(line.to_owned()),
            _ if session == What::ReadOnly && RECOVERY.contains(&extended) => self.totals.refused_read_only += 1,
            _ => bail!("{line}"),
        }
        Ok(())
    }

    fn reap(&mut self) -> Result<()> {
        let mut all = std::mem::take(&mut self.running).into_iter();
        let mut done = Ok(());
        while let (Ok(()), Some(one)) = (&done, all.next()) {
            match self.ended(one) {
                Ok(one) => self.running.extend(one),
                Err(e) => done = Err(e),
            }
        }
        // `kill_all` kills the remaining ones.
        self.running.extend(all);
        done
    }

    /// `None` if the process has ended.
    fn ended(&mut self, mut one: Running) -> Result<Option<Running>> {
        let number = one.number;
        let asked = one.dies.is_some_and(|dies| Instant::now() >= dies);
        let status = if asked {
            one.child.kill().with_context(|| format!("cannot kill session {number}"))?;
            one.child.wait()?
        } else if let Some(status) = one.child.try_wait().with_context(|| format!("cannot look at session {number}"))? {
            status
        } else {
            let hangs = one.since.elapsed() > PATIENCE;
            let id = one.child.id();
            self.running.push(one);
            ensure!(!hangs, "session {number} hangs: {}", whereabouts(id));
            return Ok(self.running.pop());
        };
        let killed = was_killed(status, asked);
        self.totals.kills += u64::from(killed);
        match one.does {
            Does::Command(run) => return self.command_ended(number, run, status, killed),
            Does::Judge(run) => {
                self.judged(number, status)?;
                run.remove()?;
            }
            Does::Session if killed => self.events.add(&format!("{number} killed")),
            Does::Session => self.ended_in_order(number, status)?,
        }
        Ok(None)
    }

    fn ended_in_order(&mut self, number: u64, status: ExitStatus) -> Result<()> {
        if !status.success() {
            self.hear_all()?;
            bail!("session {number} ended with {status}");
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<()> {
        while !self.running.is_empty() {
            self.listen(NAP)?;
            self.reap()?;
        }
        self.hear_all()
    }

    fn last(&mut self, stock: bool) -> Result<()> {
        self.start(What::Last, stock, (0, 0, 0), None)?;
        self.finish()
    }

    fn kill_all(&mut self) {
        for one in &mut self.running {
            // The process may already have ended.
            let _ = one.child.kill();
            let _ = one.child.wait();
        }
    }
}

fn listen() -> Result<(PipeWriter, Receiver<String>)> {
    let (from, pipe) = std::io::pipe()?;
    let (send, lines) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(from).lines().map_while(Result::ok) {
            if send.send(line).is_err() {
                return;
            }
        }
    });
    Ok((pipe, lines))
}

fn ids(text: &str) -> Result<Vec<Ids>> {
    let all = text.split_whitespace().map(|ids| {
        let (from, to) = ids.split_once('-').context("no ids")?;
        Ok((from.parse()?, to.parse()?))
    });
    all.collect()
}

impl Drop for Campaign<'_> {
    fn drop(&mut self) {
        self.kill_all();
    }
}

impl Session {
    fn command(&self) -> Result<Command> {
        let value = |what: What| clap::ValueEnum::to_possible_value(&what).map(|v| v.get_name().to_owned());
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("session").arg("--at").arg(&self.at);
        command.args(["--what", &value(self.what).unwrap_or_default(), "--parameters", &self.parameters]);
        let numbers = [
            ("--number", self.number),
            ("--plan", self.plan),
            ("--transactions", self.transactions),
            ("--rows", self.rows),
            ("--first", self.first),
            ("--below", self.below),
        ];
        for (name, number) in numbers {
            command.args([name, &number.to_string()]);
        }
        if self.stock {
            command.arg("--stock");
        }
        Ok(command)
    }
}
