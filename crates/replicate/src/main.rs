//! The command `onewrite-replicate`, which runs `onewrite replicate`, `restore`, `follow`,
//! `promote`, `rejoin` and `verify`.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod assets;

use anyhow::{Context, Result, anyhow, bail, ensure};
use clap::{CommandFactory, Parser, Subcommand};
use onewrite_core::environment;
use onewrite_core::text::Printable;
use onewrite_replicate::compact::Levels;
use onewrite_replicate::ending::{end_at_signals, finish_at_signals};
use onewrite_replicate::fence::Fenced;
use onewrite_replicate::follow::{Applied, Follower, ReplicaEnded};
use onewrite_replicate::metrics;
use onewrite_replicate::plan::{Empty, Target};
use onewrite_replicate::promote::{Rejoined, Was, promote, rejoin, unsync};
use onewrite_replicate::report::{self, COUNTERS, Level, say, status_line, tell};
use onewrite_replicate::restore::restore;
use onewrite_replicate::secrets::{hide_user, scrubbed};
use onewrite_replicate::ship::{Settings, Shipped, Shipper, Taken};
use onewrite_replicate::source::{Source, is_signed};
use onewrite_replicate::store::{self, Away};
use onewrite_replicate::times;
use onewrite_replicate::verify::{Verdict, verify};
use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

/// Keep a copy of a database in a store, in Litestream's format, and bring it back.
#[derive(Parser)]
#[command(name = "onewrite-replicate", bin_name = "onewrite", version, arg_required_else_help = true)]
struct Cli {
    /// Print events as JSON, one a line
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    #[command(hide = true)]
    Assets(assets::AssetsArgs),
    Follow(Follow),
    Promote(Promote),
    Rejoin(Rejoin),
    Replicate(Replicate),
    Restore(Restore),
    Unsync(Unsync),
    Verify(Verify),
}

/// Ship a database to a store, and go on shipping what changes
///
/// Ships every page first, then, once an interval, the pages that have changed. Commits do not wait
/// for the store: the machine's loss takes all commits since the last file. Ends at SIGINT or
/// SIGTERM
/// after shipping what there is; if it is killed, the next start goes on from the store's state.
///
///     onewrite replicate app.db file:///backup/app
///     onewrite replicate --once app.db file:///backup/app
///     onewrite replicate app.db 's3://bucket/app?region=eu-central-1'
///
/// The store is this database's from the first start on. A process that ships from another machine
/// is
/// refused, unless it is promoted; then this one ends with status 3, at its next batch at the
/// latest.
///
/// The keys of a bucket are those of AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and, if set,
/// AWS_SESSION_TOKEN. Other servers: ?endpoint=https://host:port.
#[derive(clap::Args)]
#[command(verbatim_doc_comment)]
struct Replicate {
    /// The database
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// The store: a directory as file:///path, made if its parent is there, or s3://bucket/path;
    /// for this database alone
    #[arg(value_name = "URL")]
    url: String,
    /// Time between two looks at the database
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = interval)]
    interval: Duration,
    /// Time after which every page is shipped again, so that a restore reads less
    #[arg(long, value_name = "TIME", default_value = "24h", value_parser = duration)]
    snapshot_interval: Duration,
    /// Ages at which files are merged into one of level 1, 2, and so on
    #[arg(long, value_name = "TIME,...", default_value = "30s,5m,1h", value_delimiter = ',', value_parser = duration)]
    levels: Vec<Duration>,
    /// How long batches are kept by themselves after they were merged
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = duration)]
    keep_batches: Duration,
    /// Time of which every state can be restored; files for older states are removed
    #[arg(long, value_name = "TIME", default_value = "24h", value_parser = duration)]
    retention: Duration,
    /// Merge and remove nothing
    #[arg(long, conflicts_with_all = ["levels", "keep_batches", "retention"])]
    no_compaction: bool,
    /// Ship once, and end
    #[arg(long)]
    once: bool,
    /// Commits wait until the store has them, from now on until `onewrite unsync FILE`
    #[arg(long, conflicts_with_all = ["once", "interval"])]
    sync: bool,
    /// How long a commit waits for the store before it fails
    #[arg(long, value_name = "TIME", requires = "sync", default_value = "30s", value_parser = interval)]
    ship_timeout: Duration,
    /// Tell of each batch
    #[arg(short, long)]
    verbose: bool,
    /// Tell counters in Prometheus' text format as http://ADDR/metrics, on the loopback
    #[arg(long, value_name = "ADDR", conflicts_with = "once")]
    metrics: Option<SocketAddr>,
}

/// Make a database the one that is shipped to a store
///
/// Use it when the machine that ships is lost or to be replaced. Takes the store over, restores its
/// newest state as FILE, and shuts out the earlier shipper, which ends with status 3 at its next
/// batch.
/// Commits that it did not ship are lost to the new machine. A FILE that is a replica of
/// `onewrite follow`, which has to be stopped, is brought up to date instead; another FILE must
/// equal
/// the store's state. Of promotions that race one wins, the others end with status 3.
/// Then start `onewrite replicate`, and the application.
///
///     onewrite promote s3://bucket/app /var/lib/app/app.db
#[derive(clap::Args)]
#[command(verbatim_doc_comment)]
struct Promote {
    /// The store
    #[arg(value_name = "URL")]
    url: String,
    /// The database
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

/// Give way to the database that was promoted
///
/// Puts a replica of the store's state in the place of FILE, for `onewrite follow` to keep up to
/// date.
/// Keeps FILE, with the commits that were not shipped, as FILE.diverged. Stop all users of FILE
/// first:
/// a process that has written to it is seen, one that merely has it open may go on with
/// FILE.diverged.
///
///     onewrite rejoin s3://bucket/app /var/lib/app/app.db
#[derive(clap::Args)]
#[command(verbatim_doc_comment)]
struct Rejoin {
    /// The store
    #[arg(value_name = "URL")]
    url: String,
    /// The database
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

/// Restore a database from a store
///
/// Makes a plain SQLite file, under another name until it is whole; every checksum is verified.
/// Litestream (0.5.16 or newer) and onewrite restore each other's directories and buckets.
///
///     onewrite restore file:///backup/app app.db
///     onewrite restore --timestamp 2026-01-31T12:00:00Z file:///backup/app app.db
#[derive(clap::Args)]
#[command(verbatim_doc_comment)]
struct Restore {
    /// The store
    #[arg(value_name = "URL")]
    url: String,
    /// The database to make; must not be there
    #[arg(value_name = "DEST")]
    dest: PathBuf,
    /// The state of this transaction: the hexadecimal number in the name of its file
    #[arg(long, value_name = "TXID", value_parser = txid, conflicts_with = "timestamp")]
    txid: Option<u64>,
    /// The newest state from before this time, like 2026-01-31T12:00:00Z or
    /// 2026-01-31T13:00:00+01:00; without an offset, in UTC
    #[arg(long, value_name = "TIME", value_parser = timestamp)]
    timestamp: Option<i64>,
}

/// Keep a replica of a database up to date from a store
///
/// Restores the newest state if FILE is not there, and then applies each batch as one transaction:
/// a reader of FILE through onewrite keeps its snapshot meanwhile. The record FILE-follow has the
/// position; a killed process goes on from there. No other program may write FILE.
/// Ends at SIGINT or SIGTERM.
///
///     onewrite follow file:///backup/app replica.db
///     onewrite follow 's3://bucket/app?region=eu-central-1' replica.db
#[derive(clap::Args)]
#[command(verbatim_doc_comment)]
struct Follow {
    /// The store
    #[arg(value_name = "URL")]
    url: String,
    /// The replica
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Time between two looks at the store
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = interval)]
    interval: Duration,
    /// Apply all that is due, and end
    #[arg(long)]
    once: bool,
    /// Tell of each batch
    #[arg(short, long)]
    verbose: bool,
    /// Tell counters in Prometheus' text format as http://ADDR/metrics, on the loopback
    #[arg(long, value_name = "ADDR", conflicts_with = "once")]
    metrics: Option<SocketAddr>,
}

/// End `replicate --sync`: commits wait for the store no more
///
/// After `onewrite replicate --sync` commits to FILE wait for the store, and fail without a
/// shipper, until this command ends it. Stop everything that uses FILE first, also the shipper.
/// Then start `onewrite replicate` without --sync, which records it in the store: until then
/// `promote` on another machine makes commits wait there. Commits whose outcome was unknown count
/// from here on.
///
///     onewrite unsync app.db
#[derive(clap::Args)]
#[command(verbatim_doc_comment)]
struct Unsync {
    /// The database
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

/// Compare a database with its store
///
/// Compares every page, on one snapshot. While others write, waits until the store has the
/// database's
/// newest state. The status is 0 if all is the same, 1 if pages differ or there was an error,
/// 2 if the store did not catch up.
///
///     onewrite verify app.db file:///backup/app
#[derive(clap::Args)]
#[command(verbatim_doc_comment)]
struct Verify {
    /// The database
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// The store
    #[arg(value_name = "URL")]
    url: String,
    /// How long the store may take to catch up
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = duration)]
    wait: Duration,
}

/// Exit status of a process that may not write into the store: to start it again does not help.
const FENCED: u8 = 3;
/// With `--sync`: pause after an error, and between two looks for a signal to stop.
const RETRY: Duration = Duration::from_millis(200);
const LOOK: Duration = Duration::from_millis(100);
/// Pause before a store that was away at the start is tried again.
const AT_START: Duration = Duration::from_secs(1);
/// With a shorter interval the shipper stays among the database's processes during commits.
const STAYS_BELOW: Duration = Duration::from_millis(100);

/// Parses a length of time.
fn duration(text: &str) -> Result<Duration> {
    humantime::parse_duration(text).map_err(|e| anyhow!("{e}: write it like 500ms, 30s, 5m, 24h or 7d"))
}

/// Parses a length of time other than 0.
fn interval(text: &str) -> Result<Duration> {
    let time = duration(text)?;
    ensure!(!time.is_zero(), "it has to be longer than 0: write it like 500ms, 1s or 5m");
    Ok(time)
}

fn txid(text: &str) -> Result<u64> {
    let number = u64::from_str_radix(text, 16).context("not a hexadecimal number")?;
    ensure!(number > 0, "the first transaction is 1");
    Ok(number)
}

fn timestamp(text: &str) -> Result<i64> {
    times::parse(text).context("write it like 2026-01-31T12:00:00Z, or 2026-01-31T12:00:00+01:00")
}

fn main() -> ExitCode {
    if let Err(e) = environment::enter_program() {
        tell(&format!("onewrite: {e}"));
        return ExitCode::FAILURE;
    }
    let cli = Cli::try_parse().unwrap_or_else(|e| refuse(&e));
    if cli.json {
        report::speak_json();
    }
    let result = match cli.command {
        Command::Assets(args) => assets::run(&args, Cli::command()),
        Command::Follow(args) => run_follow(&args),
        Command::Promote(args) => run_promote(&args),
        Command::Rejoin(args) => run_rejoin(&args),
        Command::Replicate(args) => replicate(&args),
        Command::Restore(args) => run_restore(&args),
        Command::Unsync(args) => run_unsync(&args),
        Command::Verify(args) => run_verify(&args),
    };
    match result {
        Ok(code) => code,
        Err(e) => {
            let fenced = e.is::<Fenced>();
            say(Level::Error, if fenced { "fenced" } else { "failed" }, &[], &format!("{e:#}"));
            if fenced { ExitCode::from(FENCED) } else { ExitCode::FAILURE }
        }
    }
}

/// Arguments may contain a password.
fn refuse(error: &clap::Error) -> ! {
    std::env::args_os().for_each(|argument| hide_user(&argument.to_string_lossy()));
    let text = error.render().to_string();
    let shown = scrubbed(&text);
    if shown == text {
        error.exit();
    }
    tell(shown.trim_end());
    std::process::exit(error.exit_code())
}

fn settings(args: &Replicate) -> Result<Settings> {
    ensure!(args.levels.len() <= 8, "--levels names {} times: there are levels 1 to 8", args.levels.len());
    ensure!(args.levels.is_sorted(), "--levels: each level merges files of the one before, its time cannot be shorter");
    let levels = Levels { intervals: args.levels.clone(), keep_batches: args.keep_batches, retention: args.retention };
    let levels = (!args.no_compaction).then_some(levels);
    ensure!(
        args.sync || !is_signed(&args.file)?,
        "commits to {} wait for a store: add --sync. Where they are to wait no more, stop what uses the database, and `onewrite \
         unsync {0}` first",
        args.file.display()
    );
    let sync = args.sync.then_some(args.ship_timeout);
    let stays = args.interval <= STAYS_BELOW;
    Ok(Settings { snapshot_interval: args.snapshot_interval, levels, sync, background: !args.once, stays })
}

fn tell_shipped(shipped: &Shipped, verbose: bool) {
    if verbose || shipped.name.min == 1 {
        let name = shipped.name;
        let fields = [
            ("level_of_file", name.level.into()),
            ("txid", format!("{:016x}", name.max).into()),
            ("pages", shipped.pages.into()),
            ("bytes", shipped.bytes.into()),
        ];
        say(Level::Info, "shipped", &fields, &shipped.to_string());
    }
}

fn replicate(args: &Replicate) -> Result<ExitCode> {
    let Replicate { file, url, interval, .. } = args;
    let there = file.try_exists().with_context(|| format!("cannot look at {}", file.display()))?;
    ensure!(there, "there is no database {}", file.display());
    end_at_signals()?;
    let settings = settings(args)?;
    let store = store::open(url)?;
    let is_empty = !Source::look(file)?;
    // A store that cannot be listed may be one that is not there yet.
    let nothing_is_stored = || store::list_all(&*store).map_or(true, |files| files.is_empty());
    if is_empty && args.once && nothing_is_stored() {
        let message = format!("{} is empty: there is nothing to ship, and the store is left as it is", file.display());
        say(Level::Warning, "empty", &[], &message);
        return Ok(ExitCode::SUCCESS);
    }
    let mut store = Some(store);
    let begin = || Shipper::new(file, store.take().map_or_else(|| store::open(url), Ok)?, settings.clone());
    let mut shipper = patiently(begin, |e| !args.once && e.is::<Away>(), "not_shipped")?;
    let mut tell = |shipped: &Shipped| tell_shipped(shipped, args.verbose);
    if args.once {
        shipper.last_step(&mut tell)?;
        return Ok(ExitCode::SUCCESS);
    }
    serve_metrics(args.metrics)?;
    let stopped = finish_at_signals();
    if args.sync {
        return replicate_sync(args, shipper, &mut tell, &stopped);
    }
    let every = humantime::format_duration(*interval);
    say(Level::Info, "began", &[], &format!("shipping {} to {url} every {every}", file.display()));
    if is_empty {
        let message = format!("{} is empty: what is shipped begins with its first page", file.display());
        say(Level::Warning, "empty", &[], &message);
    }
    let status = status_line();
    let mut trouble: Option<String> = None;
    let mut next = Instant::now();
    let mut last = false;
    loop {
        match if last { shipper.last_step(&mut tell) } else { shipper.step(&mut tell) } {
            Ok(()) => {
                if trouble.take().is_some() {
                    say(Level::Info, "goes_on", &[], "shipping goes on");
                }
            }
            Err(e) if e.is::<Taken>() || e.is::<Fenced>() => return Err(e),
            Err(e) if last => bail!("not all is shipped: {e:#}"),
            Err(e) => {
                COUNTERS.error();
                shipper.look_behind();
                let what = format!("{e:#}");
                if trouble.as_ref() != Some(&what) {
                    let message = format!("not shipped, trying again every {every}, commits go on: {what}");
                    say(Level::Warning, "not_shipped", &[], &message);
                    trouble = Some(what);
                }
            }
        }
        if last {
            return Ok(ExitCode::SUCCESS);
        }
        status.set_message(format!("{}: {}", Printable(file.display()), COUNTERS.summary()));
        // A step that overruns the interval is followed by one step at once, not by several.
        next = (next + *interval).max(Instant::now());
        match stopped.recv_timeout(next.saturating_duration_since(Instant::now())) {
            Err(RecvTimeoutError::Timeout) => {}
            Ok(()) | Err(RecvTimeoutError::Disconnected) => last = true,
        }
    }
}

/// Tries again while the error is one that `passes`; tells of it once.
fn patiently<T>(
    mut begin: impl FnMut() -> Result<T>,
    passes: impl Fn(&anyhow::Error) -> bool,
    event: &str,
) -> Result<T> {
    let mut is_told = false;
    loop {
        match begin() {
            Ok(done) => {
                if is_told {
                    say(Level::Info, "goes_on", &[], "the store is there");
                }
                return Ok(done);
            }
            Err(e) if passes(&e) => {
                COUNTERS.error();
                if !std::mem::replace(&mut is_told, true) {
                    say(Level::Warning, event, &[], &format!("waiting for the store before anything begins: {e:#}"));
                }
                thread::sleep(AT_START);
            }
            Err(e) => return Err(e),
        }
    }
}

/// Ships as soon as a commit waits.
fn replicate_sync(
    args: &Replicate,
    mut shipper: Shipper,
    tell: &mut dyn FnMut(&Shipped),
    stopped: &mpsc::Receiver<()>,
) -> Result<ExitCode> {
    let Replicate { file, url, .. } = args;
    let mut began = false;
    let status = status_line();
    let mut trouble: Option<String> = None;
    loop {
        let last = !matches!(stopped.try_recv(), Err(mpsc::TryRecvError::Empty));
        match if last { shipper.last_step(tell) } else { shipper.step(tell) } {
            Ok(()) => {
                if trouble.take().is_some() {
                    say(Level::Info, "goes_on", &[], "shipping goes on");
                }
                if !std::mem::replace(&mut began, true) {
                    say(
                        Level::Info,
                        "began",
                        &[],
                        &format!("shipping {} to {url}, and commits wait for it", file.display()),
                    );
                }
            }
            Err(e) if e.is::<Taken>() || e.is::<Fenced>() => return Err(e),
            Err(e) if last => bail!("not all is shipped, commits wait for the next shipper: {e:#}"),
            Err(e) => {
                COUNTERS.error();
                let what = format!("{e:#}");
                if trouble.as_ref() != Some(&what) {
                    say(
                        Level::Warning,
                        "not_shipped",
                        &[],
                        &format!("not shipped, trying again, commits wait: {what}"),
                    );
                    trouble = Some(what);
                }
                thread::sleep(RETRY);
            }
        }
        if last {
            return Ok(ExitCode::SUCCESS);
        }
        status.set_message(format!("{}: {}", Printable(file.display()), COUNTERS.summary()));
        shipper.wait(LOOK)?;
    }
}

fn run_promote(args: &Promote) -> Result<ExitCode> {
    end_at_signals()?;
    let file = args.file.display();
    let done = promote(&args.url, &args.file);
    let done = done.with_context(|| format!("cannot promote {file} at {}", args.url))?;
    if !done.heeds {
        let message = "the server does not heed the conditions of requests: make sure that nobody else ships into the store or is \
                       promoted";
        say(Level::Warning, "unconditional", &[], message);
    }
    let before = done.before.map(|before| before.to_string());
    if let Some(before) = &before
        && !report::is_json()
    {
        tell(&format!("onewrite: the store belonged to {before}"));
    }
    let (was, what) = match done.was {
        Was::Missing => ("missing", "was restored"),
        Was::Replica => ("replica", "was a replica, is up to date"),
        Was::Same => ("same", "is as the store has it"),
    };
    let (epoch, txid) = (done.epoch, format!("{:016x}", done.txid));
    let sync = if done.sync { " --sync`: commits wait for it" } else { "`" };
    let message = format!(
        "{file} {what}, and owns the store, epoch {epoch} from transaction {txid} on: start `onewrite replicate{sync}"
    );
    let fields = [("txid", txid.into()), ("epoch", epoch.into()), ("was", was.into()), ("before", before.into())];
    say(Level::Info, "promoted", &fields, &message);
    Ok(ExitCode::SUCCESS)
}

fn run_rejoin(args: &Rejoin) -> Result<ExitCode> {
    end_at_signals()?;
    let file = args.file.display();
    let done = rejoin(&args.url, &args.file).with_context(|| format!("cannot rejoin {file}"))?;
    let (txid, pages, kept, message) = match done {
        Rejoined::Same { txid } => (txid, 0, None, format!("{file} is as transaction {txid:016x} of the store has it")),
        Rejoined::Replaced { txid, pages, kept } => {
            let kept = kept.display().to_string();
            let message = format!(
                "{file} has the state of transaction {txid:016x}; {pages} pages differed, what was there is {kept}"
            );
            (txid, pages, Some(kept), message)
        }
    };
    let fields = [("txid", format!("{txid:016x}").into()), ("pages_differed", pages.into()), ("kept", kept.into())];
    say(Level::Info, "rejoined", &fields, &message);
    Ok(ExitCode::SUCCESS)
}

/// Serves the counters if asked to, and prints the address.
fn serve_metrics(at: Option<SocketAddr>) -> Result<()> {
    let Some(at) = at else { return Ok(()) };
    let at = metrics::serve(at)?;
    say(Level::Info, "metrics", &[("address", at.to_string().into())], &format!("counters at http://{at}/metrics"));
    Ok(())
}

fn run_restore(args: &Restore) -> Result<ExitCode> {
    end_at_signals()?;
    let target = match (args.txid, args.timestamp) {
        (Some(txid), _) => Target::Txid(txid),
        (_, Some(time_ms)) => Target::Before(time_ms),
        _ => Target::Newest,
    };
    let restored = restore(&*store::open(&args.url)?, &args.dest, target)
        .with_context(|| format!("cannot restore {}", args.url))?;
    let (txid, of) = (format!("{:016x}", restored.txid), times::shown(restored.time_ms));
    let mut message = format!("{} has the state of transaction {txid}, of {of}", args.dest.display());
    let mut level = Level::Info;
    // No error: an idle database ships nothing, so this is its state of that time.
    if let Some(time_ms) = args.timestamp.filter(|_| restored.is_newest) {
        level = Level::Warning;
        let asked = times::shown(time_ms);
        message += &format!(
            ". It is the newest: the store has no state of {asked} or later, and not what was committed after {of} and not shipped"
        );
    }
    let fields = [("txid", txid.into()), ("state_time", of.into()), ("is_newest", restored.is_newest.into())];
    say(level, "restored", &fields, &message);
    Ok(ExitCode::SUCCESS)
}

fn run_follow(args: &Follow) -> Result<ExitCode> {
    let Follow { url, file, interval, .. } = args;
    end_at_signals()?;
    serve_metrics(args.metrics)?;
    let open = || Follower::open(file, url, store::open(url)?);
    let passes = |e: &anyhow::Error| !args.once && (e.is::<Away>() || e.is::<Empty>());
    let mut follower = patiently(open, passes, "not_applied")?;
    let stopped = finish_at_signals();
    let path = file.display();
    let fields = [("txid", format!("{:016x}", follower.txid()).into())];
    say(Level::Info, "began", &fields, &format!("{path} has transaction {:016x} of {url}", follower.txid()));
    let mut tell = |applied: &Applied| {
        if args.verbose {
            let Applied { name, pages, lag } = *applied;
            let lag = lag.as_secs_f64();
            let txid = format!("{:016x}", name.max);
            let fields = [("txid", txid.into()), ("pages", pages.into()), ("lag_seconds", lag.into())];
            say(Level::Info, "applied", &fields, &format!("{name} applied, {pages} pages, {lag:.1} s old"));
        }
    };
    let status = status_line();
    let mut trouble: Option<String> = None;
    loop {
        match follower.step(&mut tell) {
            Ok(()) if trouble.take().is_some() => say(Level::Info, "goes_on", &[], "following goes on"),
            Ok(()) => {}
            Err(e) if args.once || e.is::<ReplicaEnded>() => return Err(e),
            Err(e) => {
                COUNTERS.error();
                let what = format!("{e:#}");
                if trouble.as_ref() != Some(&what) {
                    let every = humantime::format_duration(*interval);
                    say(
                        Level::Warning,
                        "not_applied",
                        &[],
                        &format!("nothing applied, trying again every {every}: {what}"),
                    );
                    trouble = Some(what);
                }
            }
        }
        status.set_message(format!("{}: {}", Printable(&path), COUNTERS.summary()));
        if args.once || !matches!(stopped.recv_timeout(*interval), Err(RecvTimeoutError::Timeout)) {
            follower.close()?;
            return Ok(ExitCode::SUCCESS);
        }
    }
}

fn run_unsync(args: &Unsync) -> Result<ExitCode> {
    let file = args.file.canonicalize().with_context(|| format!("there is no database {}", args.file.display()))?;
    let path = args.file.display();
    let message = match unsync(&file).with_context(|| format!("commits to {path} wait for the store as before"))? {
        true => format!("commits to {path} wait for the store no more"),
        false => format!("commits to {path} do not wait for a store"),
    };
    say(Level::Info, "unsynced", &[], &message);
    Ok(ExitCode::SUCCESS)
}

fn run_verify(args: &Verify) -> Result<ExitCode> {
    let (file, url) = (args.file.display(), &args.url);
    let (event, level, txid, differ, said, status) = match verify(&*store::open(url)?, &args.file, args.wait)? {
        Verdict::Same { txid, pages } => {
            let said = format!("all {pages} pages are as transaction {txid:016x} of {url} has them");
            ("same", Level::Info, txid, Some(0), said, ExitCode::SUCCESS)
        }
        Verdict::Differ { txid, pages } => {
            let said = format!("{pages} pages differ from transaction {txid:016x} of {url}");
            ("differs", Level::Error, txid, Some(pages), said, ExitCode::FAILURE)
        }
        Verdict::Behind { txid } => {
            let said = format!(
                "{url} has another state, transaction {txid:016x}: is it being shipped to? Try again with a longer --wait, or when \
                 less is written"
            );
            ("behind", Level::Warning, txid, None, said, ExitCode::from(2))
        }
    };
    let said = format!("{file}: {said}");
    if report::is_json() {
        let fields = [("txid", format!("{txid:016x}").into()), ("pages_differ", differ.into())];
        say(level, event, &fields, &said);
    } else {
        // The status says the same if stdout is closed.
        let _nobody_reads = writeln!(std::io::stdout(), "{}", Printable(scrubbed(&said)));
    }
    Ok(status)
}
