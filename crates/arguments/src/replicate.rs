//! The commands that `onewrite-replicate` runs, and their arguments.
//!
//! `onewrite` passes them on unread. It takes their description from here, for manual pages and
//! completions.

use std::ffi::{OsStr, OsString};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use clap::{CommandFactory, Parser, Subcommand};
use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;

use crate::order;

/// Keep a copy of a database in a store, in Litestream's format, and bring it back.
#[derive(Parser)]
#[command(name = "onewrite-replicate", bin_name = "onewrite", version, arg_required_else_help = true)]
pub struct StoreProgram {
    /// Print events as JSON, one a line
    #[arg(long, global = true)]
    pub json: bool,
    /// The command.
    #[command(subcommand)]
    pub command: StoreCommand,
}

/// A command about a database and its store.
#[derive(Subcommand)]
#[allow(missing_docs, reason = "each has the documentation of its arguments")]
pub enum StoreCommand {
    Completions(CompletionArgs),
    Follow(Follow),
    Ltx(Ltx),
    Promote(Promote),
    Rejoin(Rejoin),
    Replicas(Replicas),
    Replicate(Replicate),
    Restore(Restore),
    Ship(Ship),
    Unsync(Unsync),
    Verify(Verify),
}

/// Print the completions of `onewrite-replicate` for a shell
///
/// Those of `onewrite` have the same commands.
#[derive(clap::Args)]
#[command(hide = true)]
pub struct CompletionArgs {
    /// The shell
    pub shell: clap_complete::Shell,
}

/// The commands of [`StoreCommand`] that a user sees, each with the options of the program.
pub fn described() -> Vec<clap::Command> {
    let program = StoreProgram::command();
    let global: Vec<clap::Arg> = program.get_arguments().filter(|arg| arg.is_global_set()).cloned().collect();
    let seen = program.get_subcommands().filter(|command| !command.is_hide_set());
    seen.map(|command| command.clone().args(&global)).collect()
}

impl StoreCommand {
    /// Refuses a file in the place of the store, and the store in the place of the file. `words`
    /// are the arguments of the program as they were given.
    pub fn check_order(&self, words: &[OsString]) -> Result<(), clap::Error> {
        let (name, form, file, url, file_first) = match self {
            StoreCommand::Follow(a) => ("follow", "URL FILE", a.file.as_os_str(), &a.url, false),
            StoreCommand::Promote(a) => ("promote", "FILE URL", a.place.file.as_os_str(), &a.place.url, true),
            StoreCommand::Rejoin(a) => ("rejoin", "FILE URL", a.place.file.as_os_str(), &a.place.url, true),
            StoreCommand::Replicate(Replicate { file: Some(file), url: Some(url), .. }) => {
                ("replicate", "FILE URL", file.as_os_str(), url, true)
            }
            StoreCommand::Restore(a) => ("restore", "URL DEST", a.dest.as_os_str(), &a.url, false),
            StoreCommand::Verify(a) => ("verify", "FILE URL", a.place.file.as_os_str(), &a.place.url, true),
            StoreCommand::Completions(_)
            | StoreCommand::Ltx(_)
            | StoreCommand::Replicas(_)
            | StoreCommand::Replicate(_)
            | StoreCommand::Ship(_)
            | StoreCommand::Unsync(_) => return Ok(()),
        };
        let url = OsStr::new(url);
        if !order::is_url(file) || order::is_url(url) {
            return Ok(());
        }
        let given = if file_first { [file, url] } else { [url, file] };
        Err(order::swapped(name, form, given, words))
    }
}

/// Ship a database to a store, and go on shipping what changes
///
/// Ships every page first, then, once an interval, the pages that have changed. Commits do not wait
/// for the store: the machine's loss takes all commits since the last file. Ends at SIGINT or
/// SIGTERM after shipping what there is; if it is killed, the next start goes on from the store's
/// state.
///
///     onewrite replicate app.db file:///backup/app
///     onewrite replicate --once app.db file:///backup/app
///     onewrite replicate app.db 's3://bucket/app?region=eu-central-1'
///
/// A FILE that is not there is waited for. With --sync it is made, empty, so that commits wait from
/// the first one on. systemd (Type=notify) gets READY when it has begun: start the application
/// then.
///
/// The store is this database's from the first start on. A process that ships from another machine
/// is refused, unless it is promoted; then this one ends with status 3, at its next batch at the
/// latest.
///
/// The keys of a bucket come from AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY. Without these they
/// are those of a profile (AWS_PROFILE, ~/.aws), of a web identity, of a container or of a machine.
/// Other servers: ?endpoint=https://host:port.
///
/// With --config it ships all databases of a file with Litestream's keys, in one process, and can
/// run an application that ends with it.
///
///     onewrite replicate --config /etc/onewrite.yml
#[derive(clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Replicate {
    /// The database
    #[arg(value_name = "FILE", required_unless_present = "config", requires = "url")]
    pub file: Option<PathBuf>,
    /// The store, for this database alone. A directory (its parent must be there): file:///path.
    /// A bucket: s3://bucket/path, gs://bucket/path, abs://account@container/path. A server:
    /// sftp://user@host/path, webdavs://user@host/path, nats://user@host/bucket
    #[arg(value_name = "URL")]
    pub url: Option<String>,
    /// Ship the databases of this file, a YAML file as Litestream's
    #[arg(long, value_name = "CONFIG", conflicts_with_all = ["file", "url", "interval", "snapshot_interval", "levels",
        "keep_batches", "retention", "no_compaction", "once", "restore_if_db_not_exists", "sync", "ship_timeout", "metrics"])]
    pub config: Option<PathBuf>,
    /// With --config: in its values a $ is a plain character, and names no variable
    #[arg(long, requires = "config")]
    pub no_expand_env: bool,
    /// With --config: run this command, pass signals on to it, and end with its status
    #[arg(long, value_name = "COMMAND", requires = "config")]
    pub exec: Option<String>,
    /// Time between two looks at the database
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = interval)]
    pub interval: Duration,
    /// Time after which every page is shipped again, so that a restore reads less
    #[arg(long, value_name = "TIME", default_value = "24h", value_parser = duration)]
    pub snapshot_interval: Duration,
    /// Ages at which files are merged into one of level 1, 2, and so on
    #[arg(long, value_name = "TIME,...", default_value = "30s,5m,1h", value_delimiter = ',', value_parser = duration)]
    pub levels: Vec<Duration>,
    /// How long batches are kept by themselves after they were merged
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = duration)]
    pub keep_batches: Duration,
    /// Time of which every state can be restored; files for older states are removed
    #[arg(long, value_name = "TIME", default_value = "24h", value_parser = duration)]
    pub retention: Duration,
    /// Merge and remove nothing
    #[arg(long, conflicts_with_all = ["levels", "keep_batches", "retention"])]
    pub no_compaction: bool,
    /// Ship once, and end
    #[arg(long)]
    pub once: bool,
    /// If FILE is not there, and the store is not empty, restore FILE first
    #[arg(long)]
    pub restore_if_db_not_exists: bool,
    /// Commits wait until the store has them, from now on until `onewrite unsync FILE`
    #[arg(long, conflicts_with_all = ["once", "interval"])]
    pub sync: bool,
    /// How long a commit waits for the store before it fails
    #[arg(long, value_name = "TIME", requires = "sync", default_value = "30s", value_parser = interval)]
    pub ship_timeout: Duration,
    /// How it tells of its work.
    #[command(flatten)]
    pub news: ProgressNews,
}

impl Replicate {
    /// The values of options that are not given.
    pub fn defaults() -> Result<Replicate> {
        let command = <Replicate as clap::Args>::augment_args(clap::Command::new("replicate"));
        let matches = command.try_get_matches_from(["replicate", "--config", "CONFIG"])?;
        Ok(<Replicate as clap::FromArgMatches>::from_arg_matches(&matches)?)
    }

    /// The database and its store; empty with --config.
    pub fn place(&self) -> (&Path, &str) {
        (self.file.as_deref().unwrap_or(Path::new("")), self.url.as_deref().unwrap_or_default())
    }
}

/// Show the databases of a configuration and their stores
///
/// Prints for each database its store, the newest transaction there, the lag, and the last error.
/// The lag and the error are those that `onewrite replicate --config CONFIG` tells at the
/// configuration's socket or addr. If neither answers, the stores are listed. The status is 1 if a
/// database has an error.
///
///     onewrite replicas --config /etc/onewrite.yml
#[derive(clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Replicas {
    /// The configuration
    #[arg(long, value_name = "CONFIG")]
    pub config: PathBuf,
    /// In its values a $ is a plain character, and names no variable
    #[arg(long)]
    pub no_expand_env: bool,
}

/// Ship a database now, and wait until the store has it
///
/// Asks the process `onewrite replicate --config CONFIG`, at the configuration's socket, to look
/// at FILE before its interval is over: before a machine is stopped, or after a batch of work. The
/// status is 1 if the store does not have all within --wait, or if no process listens.
///
///     onewrite ship --config /etc/onewrite.yml /var/lib/app/app.db
#[derive(clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Ship {
    /// The database
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// The configuration
    #[arg(long, value_name = "CONFIG")]
    pub config: PathBuf,
    /// In its values a $ is a plain character, and names no variable
    #[arg(long)]
    pub no_expand_env: bool,
    /// How long the store may take
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = interval)]
    pub wait: Duration,
}

/// List the files of a store
///
/// Prints a line for each LTX file: its level, first and last transaction, bytes and time, batches
/// first.
///
///     onewrite ltx file:///backup/app
///     onewrite ltx --config /etc/onewrite.yml /var/lib/app/app.db
#[derive(clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Ltx {
    /// The store; with --config a database of it
    #[arg(value_name = "URL")]
    pub place: String,
    /// The configuration that names the store
    #[arg(long, value_name = "CONFIG")]
    pub config: Option<PathBuf>,
    /// In its values a $ is a plain character, and names no variable
    #[arg(long, requires = "config")]
    pub no_expand_env: bool,
    /// The files of this level alone: 0 batches, 1 to 8 merged files, 9 snapshots
    #[arg(long, value_name = "LEVEL", value_parser = clap::value_parser!(u8).range(0..=9))]
    pub level: Option<u8>,
}

/// Make a database the one that is shipped to a store
///
/// Use it when the machine that ships is lost or to be replaced. Takes the store over, restores its
/// newest state as FILE, and shuts out the earlier shipper, which ends with status 3 at its next
/// batch. Commits that it did not ship are lost to the new machine. A FILE that is a replica of
/// `onewrite follow`, which has to be stopped, is brought up to date instead; another FILE must
/// equal the store's state. Of promotions that race one wins, the others end with status 3.
/// Then start `onewrite replicate`, and the application.
///
///     onewrite promote /var/lib/app/app.db s3://bucket/app
#[derive(clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Promote {
    /// The database and its store.
    #[command(flatten)]
    pub place: DatabaseAndStore,
}

/// Give way to the database that was promoted
///
/// Puts a replica of the store's state in the place of FILE, for `onewrite follow` to keep up to
/// date. Keeps FILE, with the commits that were not shipped, as FILE.diverged. Stop all users of
/// FILE first: a process that has written to it is seen, one that merely has it open may go on with
/// FILE.diverged.
///
///     onewrite rejoin /var/lib/app/app.db s3://bucket/app
#[derive(clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Rejoin {
    /// The database and its store.
    #[command(flatten)]
    pub place: DatabaseAndStore,
}

/// Restore a database from a store
///
/// Makes a plain SQLite file, under another name until it is whole; every checksum is verified.
/// Litestream (0.5.16 or newer) and onewrite restore each other's directories and buckets.
///
///     onewrite restore file:///backup/app app.db
///     onewrite restore --timestamp 2026-01-31T12:00:00Z file:///backup/app app.db
///     onewrite restore --dry-run --txid 2a file:///backup/app app.db
///
/// Before an application starts, on a disk that may be new:
///
///     onewrite restore --if-db-not-exists --if-replica-exists file:///backup/app app.db
#[derive(clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Restore {
    /// The store
    #[arg(value_name = "URL")]
    pub url: String,
    /// The database to make; must not be there, without --force
    #[arg(value_name = "DEST")]
    pub dest: PathBuf,
    /// The state of this transaction: the hexadecimal number in the name of its file
    #[arg(long, value_name = "TXID", value_parser = txid, conflicts_with = "timestamp")]
    pub txid: Option<u64>,
    /// The newest state from before this time, like 2026-01-31T12:00:00Z or
    /// 2026-01-31T13:00:00+01:00; without an offset, in UTC
    #[arg(long, value_name = "TIME", value_parser = timestamp)]
    pub timestamp: Option<i64>,
    /// Do nothing, with status 0, if DEST is there
    #[arg(long, conflicts_with = "force")]
    pub if_db_not_exists: bool,
    /// Do nothing, with status 0, if the store is empty
    #[arg(long)]
    pub if_replica_exists: bool,
    /// Only show the state that would be restored, and its files
    #[arg(long)]
    pub dry_run: bool,
    /// Replace DEST, with its log and journal, once the new database is whole; refused while a
    /// process uses DEST
    #[arg(long)]
    pub force: bool,
    /// Let SQLite check the database before it gets its name
    #[arg(long, value_name = "HOW", conflicts_with = "dry_run")]
    pub integrity_check: Option<IntegrityCheck>,
}

/// A check by SQLite.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum IntegrityCheck {
    /// `PRAGMA quick_check`: all but the contents of indexes
    Quick,
    /// `PRAGMA integrity_check`
    Full,
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
pub struct Follow {
    /// The store
    #[arg(value_name = "URL")]
    pub url: String,
    /// The replica
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Time between two looks at the store
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = interval)]
    pub interval: Duration,
    /// Apply all that is due, and end
    #[arg(long)]
    pub once: bool,
    /// How it tells of its work.
    #[command(flatten)]
    pub news: ProgressNews,
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
pub struct Unsync {
    /// The database
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
}

/// Compare a database with its store
///
/// Compares every page, on one snapshot. While others write, waits until the store has the
/// database's newest state. The status is 0 if all is the same, 1 if pages differ or there was an
/// error, 2 if the store did not catch up.
///
///     onewrite verify app.db file:///backup/app
#[derive(clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Verify {
    /// The database and its store.
    #[command(flatten)]
    pub place: DatabaseAndStore,
    /// How long the store may take to catch up
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = duration)]
    pub wait: Duration,
}

/// A database and its store, in the order of most commands.
#[derive(clap::Args)]
pub struct DatabaseAndStore {
    /// The database
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// The store
    #[arg(value_name = "URL")]
    pub url: String,
}

/// How a command that goes on tells of its work.
#[derive(clap::Args)]
pub struct ProgressNews {
    /// Tell of each batch
    #[arg(short, long)]
    pub verbose: bool,
    /// Tell counters in Prometheus' text format as http://ADDR/metrics, on the loopback
    #[arg(long, value_name = "ADDR", conflicts_with = "once")]
    pub metrics: Option<SocketAddr>,
}

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
    time_ms(text).context("write it like 2026-01-31T12:00:00Z, or 2026-01-31T12:00:00+01:00")
}

/// Parses a time of RFC 3339 into milliseconds since 1970, rounded up; without an offset it is in
/// UTC.
pub fn time_ms(text: &str) -> Option<i64> {
    let is_plain = || text.bytes().all(|b| b.is_ascii_digit() || b"-: T.".contains(&b));
    let utc = || text.parse::<DateTime>().ok()?.to_zoned(TimeZone::UTC).ok().map(|time| time.timestamp());
    let time = text.parse::<Timestamp>().ok().or_else(|| is_plain().then(utc).flatten())?;
    i64::try_from(time.as_nanosecond().saturating_add(999_999).div_euclid(1_000_000)).ok()
}
