//! `onewrite-sim`: crash campaigns from the command line.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clap::builder::PossibleValuesParser;
use clap::{Parser, ValueEnum};
use indicatif::{ProgressBar, ProgressStyle};
use onewrite_core::Preset;
use onewrite_sim::check::{Counts, Violation};
use onewrite_sim::history::{self, Campaign};
use onewrite_sim::{small, sql, threads};
use parking_lot::Mutex;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum EngineKind {
    /// A pager that calls the core as SQLite's does: pages of random bytes, many crashes a second
    Pager,
    /// A stock SQLite on the VFS: random SQL
    Sql,
    /// Stock SQLite with transactions over two and three databases, one oracle for all
    Attached,
    /// The pager on threads, of one process or more, that run one at a time in a drawn order
    Threads,
    /// Stock SQLite on threads, in the same way: random SQL in two databases
    SqlThreads,
}

/// Cuts power at every operation of random histories and checks the database.
#[derive(Parser)]
#[command(name = "onewrite-sim", version)]
struct Arguments {
    /// Number of seeds to run; without it 1000, or as many as --crashes needs
    #[arg(long)]
    seeds: Option<u64>,
    /// The first seed; without --seeds, the only one, with the trace of a violation
    #[arg(long)]
    seed: Option<u64>,
    /// Preset (off and off-opt run without crashes); otherwise each seed draws one
    #[arg(long, value_parser = PossibleValuesParser::new(Preset::all().map(|preset| preset.name)))]
    scheme: Option<String>,
    /// Atomic unit of the device in bytes; otherwise each seed draws one
    #[arg(long, value_parser = ["512", "4096", "16384"])]
    atomic_unit: Option<String>,
    /// The program on the simulated disk
    #[arg(long, value_enum, default_value = "pager")]
    engine: EngineKind,
    /// Enumerate small histories of the engine pager instead of drawing long ones
    #[arg(long, conflicts_with = "engine")]
    exhaustive: bool,
    /// Break one safety rule at a time; each must be found out within --seeds seeds of both engines
    /// (needs the cargo feature `canary`). With the name of a rule or a case, only that
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "all", value_name = "RULE")]
    #[arg(conflicts_with_all = ["engine", "exhaustive", "seed"])]
    canary: Option<String>,
    /// Stop drawing seeds after this many crashes
    #[arg(long)]
    crashes: Option<u64>,
    /// Longest history, in steps
    #[arg(long, default_value_t = 60)]
    steps: usize,
    /// Threads
    #[arg(long)]
    threads: Option<usize>,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if let (EngineKind::Threads | EngineKind::SqlThreads, Some(scheme)) = (arguments.engine, &arguments.scheme)
        && !threads::history::SCHEMES.contains(&scheme.as_str())
    {
        let schemes = threads::history::SCHEMES.join(" and ");
        eprintln!("histories of threads: scheme={scheme} is for one process at a time; there are {schemes}");
        return ExitCode::FAILURE;
    }
    let campaign = Campaign {
        scheme: arguments.scheme.clone(),
        atomic_unit: arguments.atomic_unit.as_deref().and_then(|unit| unit.parse().ok()),
        trace: false,
        steps: arguments.steps,
        faults: false,
    };
    let threads = arguments.threads.or(std::thread::available_parallelism().ok().map(Into::into)).unwrap_or(1).max(1);
    if arguments.canary.is_some() {
        canaries(&arguments, &campaign, threads)
    } else {
        run(&arguments, &campaign, threads)
    }
}

const SEEDS: u64 = 1000;

/// Prints a line now and then where there is no terminal.
fn tell_log(bar: &ProgressBar, told: &Mutex<Instant>) {
    if !bar.is_hidden() {
        return;
    }
    let mut told = told.lock();
    if told.elapsed() >= LINE_EVERY {
        *told = Instant::now();
        eprintln!("{:?}: {}/{}, {}", bar.elapsed(), bar.position(), bar.length().unwrap_or(0), bar.message());
    }
}

const LINE_EVERY: Duration = Duration::from_secs(10);

fn progress(count: u64, what: &str) -> ProgressBar {
    let bar = ProgressBar::new(count);
    let template = format!("{{bar:40}} {{pos}}/{{len}} {what}  {{msg}}  {{elapsed}}, {{eta}} left");
    if let Ok(style) = ProgressStyle::with_template(&template) {
        bar.set_style(style);
    }
    bar.enable_steady_tick(Duration::from_millis(500));
    bar
}

/// The options that a seed does not draw, for the line that repeats it.
fn fixed_options(arguments: &Arguments, campaign: &Campaign) -> String {
    let fixed = [
        match arguments.engine {
            EngineKind::Pager => None,
            EngineKind::Sql => Some(" --engine sql".to_owned()),
            EngineKind::Attached => Some(" --engine attached".to_owned()),
            EngineKind::Threads => Some(" --engine threads".to_owned()),
            EngineKind::SqlThreads => Some(" --engine sql-threads".to_owned()),
        },
        campaign.scheme.as_ref().map(|scheme| format!(" --scheme {scheme}")),
        campaign.atomic_unit.map(|unit| format!(" --atomic-unit {unit}")),
        arguments.exhaustive.then(|| " --exhaustive".to_owned()),
    ];
    fixed.into_iter().flatten().collect()
}

fn run_seed(seed: u64, arguments: &Arguments, campaign: &Campaign, counts: &Arc<Counts>) -> Result<(), Violation> {
    match arguments.engine {
        _ if arguments.exhaustive => small::all(seed)
            .into_iter()
            .filter(|s| campaign.scheme.as_deref().is_none_or(|scheme| scheme == s.scheme))
            .filter(|s| campaign.atomic_unit.is_none_or(|unit| unit == s.atomic_unit))
            .try_for_each(|s| small::run(s, campaign.trace, counts)),
        EngineKind::Pager => history::run(seed, campaign, counts),
        EngineKind::Sql => sql::history::run(seed, campaign, counts),
        EngineKind::Attached => sql::attached::run(seed, arguments.steps, campaign.trace, counts),
        EngineKind::Threads => threads::history::run(seed, campaign, counts),
        EngineKind::SqlThreads => sql::threads::run(seed, campaign, counts),
    }
}

fn run(arguments: &Arguments, campaign: &Campaign, threads: usize) -> ExitCode {
    let first = arguments.seed.unwrap_or(1);
    let count = match (arguments.seeds, arguments.seed, arguments.crashes) {
        (Some(count), ..) => count,
        (None, Some(_), None) => 1,
        (None, None, None) => SEEDS,
        (None, _, Some(_)) => u64::MAX,
    };
    let counts: Arc<Counts> = Arc::default();
    let run = |seed: u64, trace: bool| {
        let campaign = Campaign { trace, ..campaign.clone() };
        let ended = catch_unwind(AssertUnwindSafe(|| run_seed(seed, arguments, &campaign, &counts)));
        ended.unwrap_or_else(|_| Err(Violation { what: "a panic".to_owned(), trace: Vec::new(), notes: Vec::new() }))
    };
    let bar = match arguments.crashes {
        Some(most) => progress(most, "crashes"),
        None => progress(count, "seeds"),
    };
    let started = Instant::now();
    let told = Mutex::new(started);
    let (next, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let failed: Mutex<Option<(u64, String)>> = Mutex::new(None);
    std::thread::scope(|scope| {
        for _ in 0..threads.min(usize::try_from(count).unwrap_or(usize::MAX)).max(1) {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let n = next.fetch_add(1, Ordering::Relaxed);
                    let crashes = counts.crashes.load(Ordering::Relaxed);
                    if n >= count || arguments.crashes.is_some_and(|most| crashes >= most) {
                        return;
                    }
                    let seed = first.wrapping_add(n);
                    if let Err(Violation { what, .. }) = run(seed, false) {
                        let mut failed = failed.lock();
                        if failed.as_ref().is_none_or(|(other, _)| seed < *other) {
                            *failed = Some((seed, what));
                        }
                        stop.store(true, Ordering::Relaxed);
                    }
                    let crashes = counts.crashes.load(Ordering::Relaxed);
                    let second = started.elapsed().as_secs_f64().max(0.001);
                    bar.set_position(if arguments.crashes.is_some() { crashes } else { n + 1 });
                    bar.set_message(format!("seed {seed}, {crashes} crashes, {:.0}/s", crashes as f64 / second));
                    tell_log(&bar, &told);
                }
            });
        }
    });
    bar.finish_and_clear();
    let crashes = counts.crashes.load(Ordering::Relaxed);
    let Some((seed, what)) = failed.into_inner() else {
        println!("crashes: {crashes}, violations: 0");
        return ExitCode::SUCCESS;
    };
    println!("crashes: {crashes}, violations: 1");
    match run(seed, true) {
        Err(violation) => tell(violation),
        Ok(()) => println!("violation, not repeated with the trace on: {what}"),
    }
    let fixed = fixed_options(arguments, campaign);
    println!("repeat: onewrite-sim --seed {seed}{fixed} --steps {}", arguments.steps);
    ExitCode::FAILURE
}

/// Prints the history's steps, then the disk's operations, writes and flushes.
fn tell(mut violation: Violation) {
    violation.notes.iter().for_each(|line| println!("{line}"));
    violation.trace.retain(|line| ![" Read ", " Open ", " Lock "].iter().any(|call| line.contains(call)));
    let skipped = violation.trace.len().saturating_sub(200);
    if skipped > 0 {
        println!("({skipped} earlier operations)");
    }
    violation.trace.iter().skip(skipped).for_each(|line| println!("{line}"));
    println!("violation: {}", violation.what);
}

#[cfg(not(feature = "canary"))]
fn canaries(_: &Arguments, _: &Campaign, _: usize) -> ExitCode {
    eprintln!(
        "--canary: this build keeps every rule; run `cargo run --release -p onewrite-sim --features canary -- --canary`"
    );
    ExitCode::FAILURE
}

#[cfg(feature = "canary")]
fn canaries(arguments: &Arguments, campaign: &Campaign, threads: usize) -> ExitCode {
    use comfy_table::{LineStyle, Table, TableStyle};
    use onewrite_core::rules::Case;
    use onewrite_sim::canary::{Caught, hunt};

    let name = |case: Option<Case>| case.map_or("none".to_owned(), |case| format!("{case:?}"));
    let rule_of = |case: Option<Case>| case.map_or("", Case::rule);
    // A violation without a broken rule would be found with any rule.
    let mut all: Vec<Option<Case>> = std::iter::once(None).chain(Case::ALL.map(Some)).collect();
    let asked = arguments.canary.as_deref().filter(|asked| *asked != "all");
    all.retain(|case| asked.is_none_or(|asked| name(*case) == asked || rule_of(*case) == asked));
    if all.is_empty() {
        let names: Vec<String> = Case::ALL.map(|case| name(Some(case))).to_vec();
        eprintln!("--canary={}: no such rule or case; there are {}", asked.unwrap_or_default(), names.join(", "));
        return ExitCode::FAILURE;
    }
    let bar = progress(all.len() as u64, "cases");
    let next = AtomicU64::new(0);
    let found: Mutex<Vec<(usize, Option<Caught>)>> = Mutex::default();
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Ok(n) = usize::try_from(next.fetch_add(1, Ordering::Relaxed))
                    && let Some(case) = all.get(n)
                {
                    let seeds = arguments.seeds.unwrap_or(SEEDS);
                    let seeds = if case.is_some() { seeds } else { seeds.min(12) };
                    let caught = hunt(*case, seeds, campaign);
                    bar.suspend(|| eprintln!("{}: {}", name(*case), caught.as_ref().map_or("nothing", |c| &c.what)));
                    found.lock().push((n, caught));
                    bar.inc(1);
                }
            });
        }
    });
    bar.finish_and_clear();
    let mut found = found.into_inner();
    found.sort_by_key(|(n, _)| *n);
    const LINE: LineStyle = LineStyle::new('─', '─', '─', '─');
    let mut table = Table::new();
    table.load_style(TableStyle::new().top_border(LINE).header_separator(LINE).bottom_border(LINE));
    table.set_header(["rule", "broken case", "found out by", "crashes", "how"]);
    let mut right = true;
    for (n, caught) in found {
        let case = all.get(n).copied().flatten();
        right &= case.is_some() == caught.is_some();
        let (by, crashes, how) = caught.map_or(("nothing".to_owned(), String::new(), String::new()), |c| {
            (format!("{}, seed {}", c.engine, c.seed), c.crashes.to_string(), c.what.chars().take(90).collect())
        });
        table.add_row([rule_of(case).to_owned(), name(case), by, crashes, how]);
    }
    println!("{table}");
    if right { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
