//! `onewrite-sim`: crash campaigns from the command line.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use clap::Parser;
use indicatif::{ProgressBar, ProgressStyle};
use onewrite_sim::check::{Counts, Violation};
use onewrite_sim::history::{self, Campaign};
use onewrite_sim::small;
use parking_lot::Mutex;

/// Cuts power at every operation of random histories and checks what is left.
#[derive(Parser)]
#[command(name = "onewrite-sim", version)]
struct Arguments {
    /// Number of seeds to run
    #[arg(long, default_value_t = 1000)]
    seeds: u64,
    /// The first seed; without --seeds, the only one, with the trace of a violation
    #[arg(long)]
    seed: Option<u64>,
    /// Preset: log, wal-opt, off or off-opt (off without crashes); otherwise each seed draws one
    #[arg(long, value_parser = ["log", "wal-opt", "off", "off-opt"])]
    scheme: Option<String>,
    /// Atomic unit of the device in bytes; otherwise each seed draws one
    #[arg(long, value_parser = ["512", "4096", "16384"])]
    atomic_unit: Option<String>,
    /// Enumerate small histories instead of drawing long ones
    #[arg(long)]
    exhaustive: bool,
    /// Longest history, in steps
    #[arg(long, default_value_t = 60)]
    steps: usize,
    /// Threads
    #[arg(long)]
    threads: Option<usize>,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let single = arguments.seed.is_some() && !std::env::args().any(|a| a.starts_with("--seeds"));
    let first = arguments.seed.unwrap_or(1);
    let count = if single { 1 } else { arguments.seeds };
    let campaign = Campaign {
        scheme: arguments.scheme.clone(),
        atomic_unit: arguments.atomic_unit.as_deref().and_then(|unit| unit.parse().ok()),
        trace: false,
        steps: arguments.steps,
    };
    let counts: Arc<Counts> = Arc::default();
    let run = |seed: u64, trace: bool| -> Result<(), Violation> {
        if arguments.exhaustive {
            small::all(seed)
                .into_iter()
                .filter(|s| campaign.scheme.as_deref().is_none_or(|scheme| scheme == s.scheme))
                .filter(|s| campaign.atomic_unit.is_none_or(|unit| unit == s.atomic_unit))
                .try_for_each(|s| small::run(s, trace, &counts))
        } else {
            history::run(seed, &Campaign { trace, ..campaign.clone() }, &counts)
        }
    };
    let threads = arguments.threads.or(std::thread::available_parallelism().ok().map(Into::into)).unwrap_or(1);
    let bar = ProgressBar::new(count);
    if let Ok(style) = ProgressStyle::with_template("{bar:40} {pos}/{len} seeds  {msg}  {elapsed}, {eta} left") {
        bar.set_style(style);
    }
    bar.enable_steady_tick(Duration::from_millis(500));
    let (next, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let failed: Mutex<Option<u64>> = Mutex::new(None);
    std::thread::scope(|scope| {
        for _ in 0..threads.min(usize::try_from(count).unwrap_or(usize::MAX)).max(1) {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let n = next.fetch_add(1, Ordering::Relaxed);
                    if n >= count {
                        return;
                    }
                    let seed = first.wrapping_add(n);
                    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run(seed, false)));
                    if !matches!(panicked, Ok(Ok(()))) {
                        let mut failed = failed.lock();
                        *failed = Some(failed.map_or(seed, |other| other.min(seed)));
                        stop.store(true, Ordering::Relaxed);
                    }
                    bar.inc(1);
                    bar.set_message(format!("{} crashes", counts.crashes.load(Ordering::Relaxed)));
                }
            });
        }
    });
    bar.finish_and_clear();
    let crashes = counts.crashes.load(Ordering::Relaxed);
    let Some(seed) = failed.into_inner() else {
        println!("crashes: {crashes}, violations: 0");
        return ExitCode::SUCCESS;
    };
    println!("crashes: {crashes}, violations: 1");
    match run(seed, true) {
        Err(violation) => {
            violation.notes.iter().for_each(|line| println!("{line}"));
            let skipped = violation.trace.len().saturating_sub(200);
            if skipped > 0 {
                println!("({skipped} earlier operations)");
            }
            violation.trace.iter().skip(skipped).for_each(|line| println!("{line}"));
            println!("violation: {}", violation.what);
        }
        Ok(()) => println!("violation: not repeated with the trace on"),
    }
    let fixed = [
        campaign.scheme.map(|scheme| format!(" --scheme {scheme}")),
        campaign.atomic_unit.map(|unit| format!(" --atomic-unit {unit}")),
        arguments.exhaustive.then(|| " --exhaustive".to_owned()),
    ];
    let fixed: String = fixed.into_iter().flatten().collect();
    println!("repeat: onewrite-sim --seed {seed}{fixed} --steps {}", arguments.steps);
    ExitCode::FAILURE
}
