//! The command `onewrite-replicate`, which runs `onewrite replicate`, `restore`, `follow`,
//! `promote`, `rejoin` and `verify`.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod application;
mod completions;
mod inside;
mod many;

use anyhow::{Context, Result, bail, ensure};
use clap::{CommandFactory, Parser};
use completions::completions;
use onewrite_arguments::replicate::{
    DatabaseAndStore, Follow, IntegrityCheck, Promote, Rejoin, Replicate, Restore, StoreCommand, StoreProgram, Unsync,
    Verify,
};
use onewrite_core::environment;
use onewrite_core::text::Printable;
use onewrite_replicate::begin::{Beginning, begin_database, check_mode, tell_shipped};
use onewrite_replicate::compact::Levels;
use onewrite_replicate::config::STAYS_BELOW;
use onewrite_replicate::ending::{end_at_signals, finish_at_signals};
use onewrite_replicate::fence::Fenced;
use onewrite_replicate::follow::{Applied, Follower, ReplicaEnded};
use onewrite_replicate::host;
use onewrite_replicate::local::is_there;
use onewrite_replicate::metrics;
use onewrite_replicate::plan::{Empty, Target};
use onewrite_replicate::promote::{Rejoined, Was, promote, rejoin, unsync};
use onewrite_replicate::report::{self, COUNTERS, Level, say, seconds, status_line, tell, took};
use onewrite_replicate::restore::{RestoreOptions, check_dest, planned, restore};
use onewrite_replicate::secrets::{hide_user, scrubbed};
use onewrite_replicate::ship::{Merges, Settings, Shipped, Shipper, Taken};
use onewrite_replicate::source::Source;
use onewrite_replicate::store::{self, Away, Store};
use onewrite_replicate::times;
use onewrite_replicate::verify::{Verdict, verify};
use std::io::Write;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

/// Exit status of a process that may not write into the store: to start it again does not help.
const FENCED: u8 = 3;
/// With `--sync`: pause after an error, and between two looks for a signal to stop.
const RETRY: Duration = Duration::from_millis(200);
const LOOK: Duration = Duration::from_millis(100);
/// Pause before a store that was away at the start is tried again.
const AT_START: Duration = Duration::from_secs(1);

fn main() -> ExitCode {
    if let Err(e) = environment::enter_program() {
        tell(&format!("onewrite: {e}"));
        return ExitCode::FAILURE;
    }
    let cli = StoreProgram::try_parse().unwrap_or_else(|e| refuse(&e));
    let words: Vec<_> = std::env::args_os().skip(1).collect();
    cli.command.check_order(&words).unwrap_or_else(|e| refuse(&e));
    if cli.json {
        report::speak_json();
    }
    let began = Instant::now();
    let goes_on = matches!(cli.command, StoreCommand::Follow(_) | StoreCommand::Replicate(_));
    let result = match cli.command {
        StoreCommand::Completions(args) => completions(args.shell, StoreProgram::command()),
        StoreCommand::Follow(args) => run_follow(&args),
        StoreCommand::Ltx(args) => inside::ltx(&args),
        StoreCommand::Promote(args) => run_promote(&args),
        StoreCommand::Rejoin(args) => run_rejoin(&args),
        StoreCommand::Replicate(args) => match &args.config {
            Some(config) => many::replicate(config, &args),
            None => replicate(&args),
        },
        StoreCommand::Replicas(args) => inside::replicas(&args),
        StoreCommand::Ship(args) => inside::ship(&args),
        StoreCommand::Restore(args) => run_restore(&args),
        StoreCommand::Unsync(args) => run_unsync(&args),
        StoreCommand::Verify(args) => run_verify(&args),
    };
    match result {
        Ok(code) => {
            if goes_on {
                let (fields, message) = COUNTERS.work(began.elapsed());
                say(Level::Info, "ended", &fields, &message);
            }
            code
        }
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
    shown.trim_end().lines().for_each(tell);
    std::process::exit(error.exit_code())
}

fn settings(args: &Replicate) -> Result<Settings> {
    ensure!(args.levels.len() <= 8, "--levels names {} times: there are levels 1 to 8", args.levels.len());
    ensure!(args.levels.is_sorted(), "--levels: each level merges files of the one before, its time cannot be shorter");
    let levels = Levels { intervals: args.levels.clone(), keep_batches: args.keep_batches, retention: args.retention };
    let levels = (!args.no_compaction).then_some(levels);
    check_mode(args.place().0, args.sync)?;
    let sync = args.sync.then_some(args.ship_timeout);
    let stays = args.interval <= STAYS_BELOW;
    let merges = if args.once { Merges::InStep } else { Merges::OnThread };
    Ok(Settings { snapshot_interval: args.snapshot_interval, levels, sync, merges, stays })
}

/// Restores the database that is not there, makes it, or waits for it.
fn wait_for_database(args: &Replicate) -> Result<()> {
    let (file, url) = args.place();
    let of = Beginning { file, url, keys: None, sync: args.sync, restores: args.restore_if_db_not_exists };
    // With --once there is no --sync, so it is restored or not there.
    let is_there_now = patiently(|| begin_database(&of), |e| !args.once && e.is::<Away>(), "not_shipped")?;
    if is_there_now {
        return Ok(());
    }
    ensure!(!args.once, "there is no database {}", file.display());
    say(Level::Info, "waiting", &[], &format!("there is no database {} yet: it is waited for", file.display()));
    while !is_there(file)? {
        thread::sleep(args.interval.min(AT_START));
    }
    Ok(())
}

fn replicate(args: &Replicate) -> Result<ExitCode> {
    let ((file, url), interval) = (args.place(), &args.interval);
    end_at_signals()?;
    if !is_there(file)? {
        wait_for_database(args)?;
    }
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
    let mut tell = |shipped: &Shipped| tell_shipped(shipped, args.news.verbose);
    if args.once {
        shipper.last_step(&mut tell)?;
        return Ok(ExitCode::SUCCESS);
    }
    serve_metrics(args.news.metrics)?;
    let stopped = finish_at_signals();
    if args.sync {
        return replicate_sync(args, shipper, &mut tell, &stopped);
    }
    let every = humantime::format_duration(*interval);
    say(Level::Info, "began", &[], &format!("shipping {} to {url} every {every}", file.display()));
    is_ready();
    if is_empty {
        let message = format!("{} is empty: what is shipped begins with its first page", file.display());
        say(Level::Warning, "empty", &[], &message);
    }
    let status = status_line();
    let mut trouble: Option<String> = None;
    let mut next = Instant::now();
    let mut last = false;
    loop {
        match if last { shipper.last_step(&mut tell) } else { shipper.step_unless_at_rest(&mut tell) } {
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

/// Tells the service manager, if there is one, that applications may begin.
fn is_ready() {
    #[cfg(unix)]
    if let Err(e) = sd_notify::notify(&[sd_notify::NotifyState::Ready]) {
        say(Level::Warning, "not_told", &[], &format!("cannot tell the service manager that it has begun: {e}"));
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
    let (file, url) = args.place();
    let mut began = false;
    if !shipper.makes_wait() {
        let message = format!("{url} gets every page of {} first: commits do not wait for it yet", file.display());
        say(Level::Info, "filling", &[], &message);
    }
    let status = status_line();
    let mut trouble: Option<String> = None;
    loop {
        let last = !matches!(stopped.try_recv(), Err(mpsc::TryRecvError::Empty));
        match if last { shipper.last_step(tell) } else { shipper.step(tell) } {
            Ok(()) => {
                if trouble.take().is_some() {
                    say(Level::Info, "goes_on", &[], "shipping goes on");
                }
                if shipper.makes_wait() && !std::mem::replace(&mut began, true) {
                    say(
                        Level::Info,
                        "began",
                        &[],
                        &format!("shipping {} to {url}, and commits wait for it", file.display()),
                    );
                    is_ready();
                }
            }
            Err(e) if e.is::<Taken>() || e.is::<Fenced>() => return Err(e),
            Err(e) if last && began => bail!("not all is shipped, commits wait for the next shipper: {e:#}"),
            Err(e) if last => bail!("not all is shipped: {e:#}"),
            Err(e) => {
                COUNTERS.error();
                let what = format!("{e:#}");
                if trouble.as_ref() != Some(&what) {
                    let commits = if shipper.makes_wait() { "commits wait" } else { "commits go on" };
                    let message = format!("not shipped, trying again, {commits}: {what}");
                    say(Level::Warning, "not_shipped", &[], &message);
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
    let began = Instant::now();
    let file = args.place.file.display();
    let done = promote(&args.place.url, &args.place.file);
    let done = done.with_context(|| format!("cannot promote {file} at {}", args.place.url))?;
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
        "{file} {what}, and owns the store, epoch {epoch} from transaction {txid} on: start `onewrite replicate{sync}{}",
        took(began)
    );
    let fields = [
        ("txid", txid.into()),
        ("epoch", epoch.into()),
        ("was", was.into()),
        ("before", before.into()),
        ("seconds", seconds(began)),
    ];
    say(Level::Info, "promoted", &fields, &message);
    Ok(ExitCode::SUCCESS)
}

fn run_rejoin(args: &Rejoin) -> Result<ExitCode> {
    end_at_signals()?;
    let began = Instant::now();
    let file = args.place.file.display();
    let done = rejoin(&args.place.url, &args.place.file).with_context(|| format!("cannot rejoin {file}"))?;
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
    let fields = [
        ("txid", format!("{txid:016x}").into()),
        ("pages_differed", pages.into()),
        ("kept", kept.into()),
        ("seconds", seconds(began)),
    ];
    say(Level::Info, "rejoined", &fields, &format!("{message}{}", took(began)));
    Ok(ExitCode::SUCCESS)
}

/// Serves the counters if asked to, and prints the address.
fn serve_metrics(at: Option<SocketAddr>) -> Result<()> {
    let Some(at) = at else { return Ok(()) };
    let at = metrics::serve(at)?;
    say(Level::Info, "metrics", &[("address", at.to_string().into())], &format!("counters at http://{at}/metrics"));
    Ok(())
}

fn show_plan(store: &dyn Store, args: &Restore, target: Target) -> Result<()> {
    if !args.force {
        check_dest(&args.dest)?;
    }
    let (plan, is_newest) = planned(store, target)?;
    for entry in &plan {
        let of = times::shown(entry.time_ms);
        let fields =
            [("file", entry.name.to_string().into()), ("bytes", entry.bytes.into()), ("time", of.clone().into())];
        say(Level::Info, "would_read", &fields, &format!("{}, {} bytes, of {of}", entry.name, entry.bytes));
    }
    let txid = plan.last().map_or(0, |last| last.name.max);
    let bytes = plan.iter().fold(0u64, |sum, entry| sum.saturating_add(entry.bytes));
    let message = format!(
        "{} would get the state of transaction {txid:016x}, from {} files of {} bytes: nothing is written",
        args.dest.display(),
        plan.len(),
        indicatif::HumanCount(bytes)
    );
    let fields = [
        ("txid", format!("{txid:016x}").into()),
        ("is_newest", is_newest.into()),
        ("files", plan.len().into()),
        ("bytes", bytes.into()),
    ];
    say(Level::Info, "would_restore", &fields, &message);
    Ok(())
}

fn run_restore(args: &Restore) -> Result<ExitCode> {
    end_at_signals()?;
    let began = Instant::now();
    let target = match (args.txid, args.timestamp) {
        (Some(txid), _) => Target::Txid(txid),
        (_, Some(time_ms)) => Target::Before(time_ms),
        _ => Target::Newest,
    };
    let dest = args.dest.display();
    if args.if_db_not_exists && is_there(&args.dest)? {
        say(Level::Info, "nothing_restored", &[], &format!("{dest} is there: nothing is restored"));
        return Ok(ExitCode::SUCCESS);
    }
    let check = args.integrity_check.map(|how| match how {
        IntegrityCheck::Quick => "quick_check",
        IntegrityCheck::Full => "integrity_check",
    });
    let how = RestoreOptions { replaces: args.force, check };
    let done = store::open(&args.url).and_then(|store| match args.dry_run {
        true => show_plan(&*store, args, target).map(|()| None),
        false => restore(&*store, &args.dest, target, how).map(Some),
    });
    let restored = match done {
        Ok(Some(restored)) => restored,
        Ok(None) => return Ok(ExitCode::SUCCESS),
        Err(e) if args.if_replica_exists && e.is::<Empty>() => {
            say(Level::Info, "nothing_restored", &[], &format!("{} is empty: nothing is restored", args.url));
            return Ok(ExitCode::SUCCESS);
        }
        Err(e) => return Err(e).with_context(|| format!("cannot restore {}", args.url)),
    };
    let (txid, of) = (format!("{:016x}", restored.txid), times::shown(restored.time_ms));
    let bytes = std::fs::metadata(&args.dest).map_or(0, |made| made.len());
    let size = indicatif::HumanCount(bytes);
    let mut message = format!("{} has the state of transaction {txid}, of {of}: {size} bytes", args.dest.display());
    let mut level = Level::Info;
    // No error: an idle database ships nothing, so this is its state of that time.
    if let Some(time_ms) = args.timestamp.filter(|_| restored.is_newest) {
        level = Level::Warning;
        let asked = times::shown(time_ms);
        message += &format!(
            ". It is the newest: the store has no state of {asked} or later, and not what was committed after {of} and not shipped"
        );
    }
    let fields = [
        ("txid", txid.into()),
        ("state_time", of.into()),
        ("is_newest", restored.is_newest.into()),
        ("bytes", bytes.into()),
        ("seconds", seconds(began)),
    ];
    say(level, "restored", &fields, &format!("{message}{}", took(began)));
    Ok(ExitCode::SUCCESS)
}

fn run_follow(args: &Follow) -> Result<ExitCode> {
    let Follow { url, file, interval, .. } = args;
    end_at_signals()?;
    serve_metrics(args.news.metrics)?;
    let open = || Follower::open(file, url, store::open(url)?);
    let passes = |e: &anyhow::Error| !args.once && (e.is::<Away>() || e.is::<Empty>());
    let mut follower = patiently(open, passes, "not_applied")?;
    let stopped = finish_at_signals();
    let path = file.display();
    let fields = [("txid", format!("{:016x}", follower.txid()).into())];
    say(Level::Info, "began", &fields, &format!("{path} has transaction {:016x} of {url}", follower.txid()));
    is_ready();
    let mut tell = |applied: &Applied| {
        if args.news.verbose {
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
    let file = host::resolved(&args.file).with_context(|| format!("there is no database {}", args.file.display()))?;
    let path = args.file.display();
    let message = match unsync(&file).with_context(|| format!("commits to {path} wait for the store as before"))? {
        true => format!("commits to {path} wait for the store no more"),
        false => format!("commits to {path} do not wait for a store"),
    };
    say(Level::Info, "unsynced", &[], &message);
    Ok(ExitCode::SUCCESS)
}

fn run_verify(args: &Verify) -> Result<ExitCode> {
    let began = Instant::now();
    let DatabaseAndStore { file: path, url } = &args.place;
    let file = path.display();
    let (event, level, txid, differ, said, status) = match verify(&*store::open(url)?, path, args.wait)? {
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
    let said = format!("{file}: {said}{}", took(began));
    if report::is_json() {
        let fields =
            [("txid", format!("{txid:016x}").into()), ("pages_differ", differ.into()), ("seconds", seconds(began))];
        say(level, event, &fields, &said);
    } else {
        // The status says the same if stdout is closed.
        let _nobody_reads = writeln!(std::io::stdout(), "{}", Printable(scrubbed(&said)));
    }
    Ok(status)
}
