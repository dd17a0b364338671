//! The command `onewrite-replicate`, which `onewrite replicate`, `restore`, `follow`, `promote`, `rejoin` and `verify` run.

mod assets;

use anyhow::{Context, Result, anyhow, bail, ensure};
use clap::{CommandFactory, Parser, Subcommand};
use onewrite_replicate::compact::Levels;
use onewrite_replicate::fence::Fenced;
use onewrite_replicate::follow::{Applied, Ended, Follower};
use onewrite_replicate::local::end_at_signals;
use onewrite_replicate::metrics;
use onewrite_replicate::plan::Target;
use onewrite_replicate::promote::{Rejoined, Was, promote, rejoin};
use onewrite_replicate::report::{self, COUNTERS, Level, say, status_line, tell};
use onewrite_replicate::restore::restore;
use onewrite_replicate::ship::{Settings, Shipped, Shipper, Taken};
use onewrite_replicate::source::{Source, is_signed};
use onewrite_replicate::store;
use onewrite_replicate::verify::{Verdict, verify};
use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Keep a copy of a database in a store, in Litestream's format, and bring it back.
#[derive(Parser)]
#[command(name = "onewrite-replicate", bin_name = "onewrite", version, arg_required_else_help = true)]
struct Cli {
    /// Tell what happens as JSON, a line each
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    #[command(hide = true)]
    Assets(assets::Args),
    Follow(Follow),
    Promote(Promote),
    Rejoin(Rejoin),
    Replicate(Replicate),
    Restore(Restore),
    Verify(Verify),
}

/// Ship a database to a store, and go on shipping what changes
///
/// First every page, then, once an interval, the pages that have changed. What was committed since the last file is lost with
/// the machine: commits do not wait for the store. Ends at SIGINT or SIGTERM, after shipping what there is; if it is
/// killed, the next start goes on from what the store has.
///
///     onewrite replicate app.db file:///backup/app
///     onewrite replicate --once app.db file:///backup/app
///     onewrite replicate app.db 's3://bucket/app?region=eu-central-1'
///
/// The store is this database's from the first start on. A process that ships from elsewhere is refused, unless it is
/// promoted; then this one ends with status 3, at its next batch at the latest.
///
/// The keys of a bucket are those of AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and, if set, AWS_SESSION_TOKEN. Other servers:
/// ?endpoint=https://host:port.
#[derive(clap::Args)]
#[command(verbatim_doc_comment)]
struct Replicate {
    /// The database
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// The store: a directory as file:///path, made if the one it lies in is there, or s3://bucket/path; for this database alone
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
    /// Every state of this time can be restored; what only older ones need is removed
    #[arg(long, value_name = "TIME", default_value = "24h", value_parser = duration)]
    retention: Duration,
    /// Merge and remove nothing
    #[arg(long, conflicts_with_all = ["levels", "keep_batches", "retention"])]
    no_compaction: bool,
    /// Ship once, and end
    #[arg(long)]
    once: bool,
    /// Commits wait until the store has them
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
/// For when the machine that ships is lost, or is to be replaced. Takes the store over, restores its newest state as FILE, and
/// shuts out who shipped before: that one ends with status 3 at its next batch. What it had committed and not shipped
/// is lost to the new one. If FILE is a replica of `onewrite follow`, which has to be stopped, it is brought up to date
/// instead; another FILE that is there has to be what the store has. Of promotions that race one wins, the others end
/// with status 3. Then start `onewrite replicate`, and what uses the database.
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
/// Puts a replica of what the store has, as `onewrite follow` goes on with, in the place of FILE, which is kept as
/// FILE.diverged, with what was committed there and not shipped. Stop what uses FILE first: a process that has written to it
/// is seen, one that merely has it open may go on with FILE.diverged.
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
/// Makes a plain SQLite file, under another name until it is whole; every checksum is verified. Also restores what
/// Litestream (0.5.16 or newer) has shipped to a directory or a bucket, and Litestream restores what `onewrite replicate` has shipped.
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
    /// The newest state of before this time, in UTC, like 2026-01-31T12:00:00Z
    #[arg(long, value_name = "TIME", value_parser = timestamp)]
    timestamp: Option<i64>,
}

/// Keep a replica of a database up to date from a store
///
/// Restores the newest state if FILE is not there, and then applies what is shipped, each batch one transaction: who reads FILE
/// through onewrite meanwhile keeps its snapshot. The record FILE-follow says where it is; killed, it goes on from there. Nobody
/// else may write FILE. Ends at SIGINT or SIGTERM.
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
    /// Apply what there is, and end
    #[arg(long)]
    once: bool,
    /// Tell of each batch
    #[arg(short, long)]
    verbose: bool,
    /// Tell counters in Prometheus' text format as http://ADDR/metrics, on the loopback
    #[arg(long, value_name = "ADDR", conflicts_with = "once")]
    metrics: Option<SocketAddr>,
}

/// Compare a database with what a store has
///
/// Compares every page, on one snapshot. While others write, waits for a moment at which the store has the database's newest
/// state. The status is 0 if all is the same, 1 if pages differ or there was an error, 2 if there was no such moment.
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

/// The status of one that may not write into the store: starting it again does not help.
const FENCED: u8 = 3;
/// Where commits wait for the store: the pause behind an error, and how often it is seen whether there is something else to do.
const RETRY: Duration = Duration::from_millis(200);
const LOOK: Duration = Duration::from_millis(100);
/// With a shorter interval the shipper stays among the database's processes while there are commits.
const STAYS_BELOW: Duration = Duration::from_millis(100);

/// A length of time.
fn duration(text: &str) -> Result<Duration> {
    humantime::parse_duration(text).map_err(|e| anyhow!("{e}: write it like 500ms, 30s, 5m, 24h or 7d"))
}

/// A length of time other than 0.
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
    let time: SystemTime = humantime::parse_rfc3339_weak(text).context("write it like 2026-01-31T12:00:00Z")?;
    Ok(i64::try_from(time.duration_since(UNIX_EPOCH)?.as_millis())?)
}

fn main() -> ExitCode {
    let cli = Cli::parse();
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

fn replicate(args: &Replicate) -> Result<ExitCode> {
    let Replicate { file, url, interval, .. } = args;
    ensure!(file.try_exists()?, "there is no database {}", file.display());
    let (stop, stopped) = mpsc::channel();
    ctrlc::set_handler(move || _ = stop.send(()))?;
    ensure!(args.levels.len() <= 8, "--levels names {} times: there are levels 1 to 8", args.levels.len());
    ensure!(args.levels.is_sorted(), "--levels: each level merges files of the one before, its time cannot be shorter");
    let levels = Levels { intervals: args.levels.clone(), keep_batches: args.keep_batches, retention: args.retention };
    let levels = (!args.no_compaction).then_some(levels);
    ensure!(
        args.sync || !is_signed(file)?,
        "commits to {} wait for a store: add --sync. Where they are to wait no more, remove {0}-onewrite-sync first, while nothing \
         uses the database",
        file.display()
    );
    let sync = args.sync.then_some(args.ship_timeout);
    let stays = *interval <= STAYS_BELOW;
    let settings = Settings { snapshot_interval: args.snapshot_interval, levels, sync, background: !args.once, stays };
    let store = store::open(url)?;
    let is_empty = !Source::look(file)?;
    // What is no error here is none for a store that is not there yet.
    let nothing_is_stored = || store::list_all(&*store).map_or(true, |files| files.is_empty());
    if is_empty && args.once && nothing_is_stored() {
        let message = format!("{} is empty: there is nothing to ship, and the store is left as it is", file.display());
        say(Level::Warning, "empty", &[], &message);
        return Ok(ExitCode::SUCCESS);
    }
    let mut shipper = Shipper::new(file, store, settings)?;
    let mut tell = |shipped: &Shipped| {
        if args.verbose || shipped.name.min == 1 {
            let name = shipped.name;
            let fields = [
                ("level_of_file", name.level.into()),
                ("txid", format!("{:016x}", name.max).into()),
                ("pages", shipped.pages.into()),
                ("bytes", shipped.bytes.into()),
            ];
            say(Level::Info, "shipped", &fields, &shipped.to_string());
        }
    };
    if args.once {
        shipper.last_step(&mut tell)?;
        return Ok(ExitCode::SUCCESS);
    }
    serve_metrics(args.metrics)?;
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
        status.set_message(format!("{}: {}", file.display(), COUNTERS.summary()));
        // A step that took longer than the interval is followed by the next one at once, and no more of them.
        next = (next + *interval).max(Instant::now());
        match stopped.recv_timeout(next.saturating_duration_since(Instant::now())) {
            Err(RecvTimeoutError::Timeout) => {}
            Ok(()) | Err(RecvTimeoutError::Disconnected) => last = true,
        }
    }
}

/// Ships whenever a commit waits for it.
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
        status.set_message(format!("{}: {}", file.display(), COUNTERS.summary()));
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
    let message = format!(
        "{file} {what}, and owns the store, epoch {epoch} from transaction {txid} on: start `onewrite replicate`"
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

/// Serves the counters if asked to, and says where.
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
    let txid = restore(&*store::open(&args.url)?, &args.dest, target)
        .with_context(|| format!("cannot restore {}", args.url))?;
    let fields = [("txid", format!("{txid:016x}").into())];
    let message = format!("{} has the state of transaction {txid:016x}", args.dest.display());
    say(Level::Info, "restored", &fields, &message);
    Ok(ExitCode::SUCCESS)
}

fn run_follow(args: &Follow) -> Result<ExitCode> {
    let Follow { url, file, interval, .. } = args;
    let (stop, stopped) = mpsc::channel();
    ctrlc::set_handler(move || _ = stop.send(()))?;
    serve_metrics(args.metrics)?;
    let mut follower = Follower::open(file, url, store::open(url)?)?;
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
            Err(e) if args.once || e.is::<Ended>() => return Err(e),
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
        status.set_message(format!("{path}: {}", COUNTERS.summary()));
        if args.once || !matches!(stopped.recv_timeout(*interval), Err(RecvTimeoutError::Timeout)) {
            follower.close()?;
            return Ok(ExitCode::SUCCESS);
        }
    }
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
        // The status says the same where nobody reads this.
        let _nobody_reads = writeln!(std::io::stdout(), "{said}");
    }
    Ok(status)
}
