//! The suite `phone`: the work of apps and of the benchmarks of phones, on simulated eMMC, UFS and
//! SD card, in one table and on one page: transactions per second, KiB, flushes, and how long a
//! card lasts. On F2FS, which only a virtual machine has: the counts there, and the rates that the
//! devices would reach.

use super::vm::{self, OnF2fs};
use crate::counting::simulated;
use crate::counting::wear::Wear;
use crate::engines::sql::Library;
use crate::engines::{self, BenchEngine};
use crate::files::OutputFiles;
use crate::html::{self, plots};
use crate::numbers::stats::{self, Ratio};
use crate::parameters::card;
use crate::parameters::options::Common;
use crate::parameters::suite::SuiteOptions;
use crate::report;
use crate::report::Row;
use crate::runner::{self, Case, Job, RunOutcome};
use crate::text;
use crate::workload::Workload;
use crate::workload::WorkloadSelection;
use anyhow::{Context, Result, bail, ensure};
use onewrite_device::Profile;
use serde::Serialize;
use std::path::PathBuf;
use std::sync::Arc;

const DEVICES: [Profile; 3] = [Profile::Emmc, Profile::Ufs, Profile::SdCard];
const TRANSACTIONS: u64 = 100;
/// Of a database, and the unit that the devices write whole or not at all: schemes in place refuse
/// without it.
const PAGE_BYTES: u32 = 4096;
const RUNS: u64 = 1;

const WORKLOADS: [&str; 8] =
    ["open-insert-close", "mobibench", "androbench", "rl", "gmail", "facebook", "hangouts", "kakaotalk"];

/// Stock modes, onewrite's default, and schemes that write in place within a page.
const STOCK: [&str; 3] = ["delete", "truncate", "wal-full"];
const SCHEMES: [&str; 4] = ["log", "lsmvbt", "mvbt-opt", "dhl-cc"];
/// The engine that ratios refer to.
const REFERENCE: &str = "stock/delete";

/// Without numbers but those counted on F2FS, in a virtual machine: stock's rollback mode as
/// Android's SQLite runs it, and onewrite's default beside it.
const BATCH_ATOMIC: &str = "batch-atomic, F2FS";
const LOG: &str = "onewrite/log, F2FS";
/// How those are had.
const BATCH_ATOMIC_HOW: &str = "batch-atomic writes are left out: name with --library a libsqlite3 that was built with \
     SQLITE_ENABLE_BATCH_ATOMIC_WRITE, and they are counted on F2FS, in a virtual machine";
const ON_F2FS: &str = ", F2FS";

/// A number of each line.
#[derive(Clone, Copy, Debug, PartialEq)]
enum PhoneMetric {
    Rate,
    /// As many as the device could take, computed from its requests: the load of the machine
    /// changes nothing.
    DeviceRate,
    Kib,
    Flushes,
    Years,
}

impl PhoneMetric {
    fn of(self, row: &Row) -> Option<f64> {
        match self {
            PhoneMetric::Rate => Some(row.tx_per_s),
            PhoneMetric::DeviceRate => row.blocks?.device_ms_per_tx.map(|ms| 1000.0 / ms),
            PhoneMetric::Kib => row.kib_per_tx.map(|kib| kib + row.blocks.map_or(0.0, |b| b.kib_left_per_tx)),
            PhoneMetric::Flushes => row.flushes_per_tx,
            PhoneMetric::Years => row.wear.map(|w| w.years),
        }
    }

    fn name(self) -> &'static str {
        match self {
            PhoneMetric::Rate => "transactions/s",
            PhoneMetric::DeviceRate => "transactions/s, by the device alone",
            PhoneMetric::Kib => "KiB per transaction",
            PhoneMetric::Flushes => "flushes per transaction",
            PhoneMetric::Years => "years of a card's life",
        }
    }

    /// Whether each device has its own.
    fn is_rate(self) -> bool {
        matches!(self, PhoneMetric::Rate | PhoneMetric::DeviceRate)
    }

    fn shown(self, value: Option<f64>) -> String {
        match value {
            None => "n/a".to_owned(),
            Some(v) if self == PhoneMetric::Flushes => format!("{v:.2}"),
            Some(v) if v < 99.95 => format!("{v:.1}"),
            Some(v) => text::thousands(v),
        }
    }
}

/// Measures, prints the table, and writes the files asked for.
pub fn run(args: &SuiteOptions) -> Result<()> {
    let files = OutputFiles::create(&args.common)?;
    let mut common = args.common.clone();
    common.transactions = common.transactions.or(Some(TRANSACTIONS));
    common.runs = common.runs.or(Some(RUNS));
    let workloads = match &args.workload[..] {
        [] => WorkloadSelection::all(
            &WORKLOADS
                .map(|name| name.parse())
                .into_iter()
                .collect::<Result<Vec<_>, _>>()
                .map_err(anyhow::Error::msg)?,
        ),
        asked => WorkloadSelection::all(asked),
    };
    ensure!(workloads.iter().all(|w| !w.reads() && !w.recovers()), "the suite phone takes workloads that write");
    let libraries = PhoneLibraries::named(args)?;
    let (engines, mut notes) = engines(args, libraries.drop_in.clone())?;
    let (on_f2fs, lost) = match on_f2fs(args, &common, &workloads, &libraries, &mut notes) {
        Ok(counted) => (counted, None),
        Err(e) => {
            notes.push(format!("failed: F2FS was not counted: {e:#}"));
            (Vec::new(), Some(e))
        }
    };
    let mut cases = Vec::new();
    for profile in DEVICES.into_iter().filter(|p| common.simulated.device.is_none_or(|device| device == *p)) {
        let options = simulated::SimulatedOptions {
            device: Some(profile),
            trace: None,
            block_bytes: Some(PAGE_BYTES),
            ..common.simulated.clone()
        };
        let simulated = options.start(None)?.map(Arc::new).context("no simulated device")?;
        cases.extend(engines.iter().map(|engine| Case {
            label: Some((profile.name().to_owned(), engine.name())),
            dir: Some(simulated.dir().to_owned()),
            simulated: Some(simulated.clone()),
            ..Case::from(engine.clone())
        }));
    }
    ensure!(!cases.is_empty(), "--device: the suite phone has {}", DEVICES.map(Profile::name).join(", "));
    common.simulated.device = None;
    let job = Job { common, cases, workloads, defaults_only: false, reference: None, count_calls: false, notes };
    let mut outcome = runner::run(job)?;
    refer(&mut outcome.rows);
    // A device is the same under all its engines.
    let machines = std::mem::take(&mut outcome.parameters.machines);
    for (name, machine) in machines {
        let device = name.split('/').next().unwrap_or_default().to_owned();
        outcome.parameters.machines.entry(device).or_insert(machine);
    }
    print!("{}", told(&outcome, &on_f2fs, text::columns()));
    let json = PhoneJson {
        measured: report::ReportJson { parameters: &outcome.parameters, results: &outcome.rows },
        counted_on_f2fs: &on_f2fs,
    };
    files.write(&json, || page(&outcome, &on_f2fs))?;
    outcome.whole()?;
    lost.map_or(Ok(()), |e| Err(e.context("F2FS was not counted")))
}

#[derive(Serialize)]
struct PhoneJson<'a> {
    #[serde(flatten)]
    measured: report::ReportJson<'a>,
    counted_on_f2fs: &'a [OnF2fs],
}

/// The libraries that the command line names, by ability.
struct PhoneLibraries {
    drop_in: Option<PathBuf>,
    batch_atomic: Option<PathBuf>,
}

impl PhoneLibraries {
    fn named(args: &SuiteOptions) -> Result<PhoneLibraries> {
        let (mut drop_in, mut batch_atomic) = (None, None);
        for path in &args.library {
            let path = std::fs::canonicalize(path).with_context(|| path.display().to_string())?;
            let of = match (Library::load(&path)?.has_vfs("onewrite"), vm::has_batch_atomic(&path)?) {
                (true, _) => &mut drop_in,
                (false, true) => &mut batch_atomic,
                (false, false) => bail!(
                    "{} has neither onewrite in it, as the drop-in library, nor batch-atomic writes \
                     (SQLITE_ENABLE_BATCH_ATOMIC_WRITE): the suite phone takes one of each",
                    path.display()
                ),
            };
            ensure!(of.replace(path).is_none(), "the suite phone takes one --library of a kind");
        }
        if drop_in.is_none() {
            let built = super::schemes::built()?;
            drop_in = built.exists().then(|| std::fs::canonicalize(&built)).transpose()?;
        }
        Ok(PhoneLibraries { drop_in, batch_atomic })
    }
}

/// Counts in a virtual machine where F2FS is needed; nothing where that cannot be or is not asked
/// for, as `notes` then say.
fn on_f2fs(
    args: &SuiteOptions,
    common: &Common,
    workloads: &[Workload],
    libraries: &PhoneLibraries,
    notes: &mut Vec<String>,
) -> Result<Vec<OnF2fs>> {
    let Some(batch_atomic) = &libraries.batch_atomic else {
        notes.push(BATCH_ATOMIC_HOW.to_owned());
        return Ok(Vec::new());
    };
    let all = engines::all();
    let mode = |name: &str, library: Option<PathBuf>| -> Result<BenchEngine> {
        Ok(of_phone(engines::named(name, &all).map_err(anyhow::Error::msg)?, library))
    };
    let mut engines = vec![
        (BATCH_ATOMIC, mode(REFERENCE, Some(batch_atomic.clone()))?),
        (LOG, of_phone(engines::onewrite(SCHEMES[0]), libraries.drop_in.clone())),
    ];
    engines.retain(|(name, _)| args.only.is_empty() || args.only.iter().any(|only| only == name));
    if engines.is_empty() {
        return Ok(Vec::new());
    }
    match vm::on_f2fs(&engines, workloads, common)? {
        Ok(counted) => {
            notes.push(format!(
                "F2FS: counted in a virtual machine; batch-atomic is {REFERENCE} in a SQLite that uses F2FS's atomic writes, as Android's \
                 does"
            ));
            Ok(counted)
        }
        Err(why) => {
            notes.push(format!("F2FS and batch-atomic writes are left out: {why}"));
            Ok(Vec::new())
        }
    }
}

/// All in one SQLite: the drop-in library where there is one, since some schemes split pages as
/// only that does.
fn engines(args: &SuiteOptions, path: Option<PathBuf>) -> Result<(Vec<BenchEngine>, Vec<String>)> {
    let mut notes = Vec::new();
    let schemes: &[&str] = match &path {
        Some(path) => {
            notes.push(format!("everything runs in the SQLite of {}", path.display()));
            &SCHEMES
        }
        None => {
            engines::register_onewrite().map_err(anyhow::Error::msg)?;
            notes.push(
                "left out: the schemes that split pages as only the drop-in library does; `cargo build --release -p \
                 onewrite-sqlite --features research` puts it beside this program"
                    .to_owned(),
            );
            &SCHEMES[..1]
        }
    };
    let stock = engines::all().into_iter().filter(|e| e.engine == "stock" && STOCK.contains(&e.preset.as_str()));
    let all: Vec<BenchEngine> = stock
        .chain(schemes.iter().map(|scheme| engines::onewrite(scheme)))
        .map(|e| of_phone(e, path.clone()))
        .collect();
    let here = args.only.iter().filter(|name| ![BATCH_ATOMIC, LOG].contains(&name.as_str()));
    let named = here.map(|name| engines::named(name, &all).map_err(anyhow::Error::msg));
    let named = named.collect::<Result<Vec<_>>>().context("--only")?;
    ensure!(
        args.only.is_empty() || !named.is_empty(),
        "--only: one at least that is measured here, beside those on F2FS"
    );
    Ok((if named.is_empty() { all } else { named }, notes))
}

/// An engine in this library, with the pages of the suite.
fn of_phone(engine: BenchEngine, library: Option<PathBuf>) -> BenchEngine {
    BenchEngine { library, pragmas: vec![("page_size".to_owned(), PAGE_BYTES.to_string())], ..engine }
}

fn of<'r>(rows: &'r [Row], device: &str, workload: &str, engine: &str) -> Option<&'r Row> {
    rows.iter().find(|r| r.engine == device && r.workload == workload && r.preset == engine)
}

/// Makes every ratio one to the engine on the same device.
fn refer(rows: &mut [Row]) {
    let all = rows.to_vec();
    for row in rows {
        let to = |engine: &str| {
            let other = of(&all, &row.engine, row.workload, engine)?;
            Ratio::paired(&row.tx_per_s_runs, &other.tx_per_s_runs)
        };
        (row.ratio, row.ratio_to_wal_full) = (to(REFERENCE), to("stock/wal-full").map(|r| r.median));
    }
}

fn distinct<'r>(names: impl Iterator<Item = &'r str>) -> Vec<&'r str> {
    let mut found: Vec<&str> = Vec::new();
    names.for_each(|name| {
        if !found.contains(&name) {
            found.push(name)
        }
    });
    found
}

/// All that is known: measured, and counted on F2FS.
#[derive(Clone, Copy)]
struct Figures<'r> {
    rows: &'r [Row],
    on_f2fs: &'r [OnF2fs],
    wear: &'r Wear,
}

impl Figures<'_> {
    fn value(self, (metric, device): (PhoneMetric, &str), workload: &str, engine: &str) -> Option<f64> {
        if let Some(row) = of(self.rows, device, workload, engine) {
            return metric.of(row);
        }
        let counted = self.on_f2fs.iter().find(|c| c.workload == workload && c.engine == engine)?;
        match metric {
            PhoneMetric::Rate => None,
            PhoneMetric::DeviceRate => counted.tx_per_s.iter().find(|(name, _)| *name == device).map(|(_, rate)| *rate),
            PhoneMetric::Kib => Some(counted.kib),
            PhoneMetric::Flushes => Some(counted.flushes),
            PhoneMetric::Years => self.wear.of(counted.kib).map(|worn| worn.years),
        }
    }
}

/// Devices, workloads and engines of these figures.
struct FigureNames<'r> {
    devices: Vec<&'r str>,
    workloads: Vec<&'r str>,
    engines: Vec<&'r str>,
}

impl<'r> FigureNames<'r> {
    fn of(figures: Figures<'r>) -> FigureNames<'r> {
        let engines = figures.rows.iter().map(|r| r.preset.as_str());
        FigureNames {
            devices: distinct(figures.rows.iter().map(|r| r.engine.as_str())),
            workloads: distinct(figures.rows.iter().map(|r| r.workload)),
            engines: distinct(engines.chain(figures.on_f2fs.iter().map(|c| c.engine.as_str()))),
        }
    }

    /// The metrics shown of each device: rates of each, counts of the first, which the others
    /// share.
    fn parts(&self) -> Vec<(PhoneMetric, &'r str)> {
        let counts = [PhoneMetric::Kib, PhoneMetric::Flushes, PhoneMetric::Years];
        let rates =
            self.devices.iter().flat_map(|device| [(PhoneMetric::Rate, *device), (PhoneMetric::DeviceRate, *device)]);
        rates.chain(counts.map(|metric| (metric, self.devices[0]))).collect()
    }

    fn heads(&self, first: &str) -> Vec<String> {
        std::iter::once(first).chain(self.engines.iter().copied()).map(str::to_owned).collect()
    }

    fn cells(&self, figures: Figures<'_>, part: (PhoneMetric, &str), workload: &str) -> Vec<String> {
        let value = |engine: &&str| part.0.shown(figures.value(part, workload, engine));
        std::iter::once(workload.to_owned()).chain(self.engines.iter().map(value)).collect()
    }

    /// By how many percent a count differs between devices at most.
    fn apart(&self, rows: &[Row], metric: PhoneMetric) -> f64 {
        let mut most = 0.0f64;
        for (workload, engine) in self.workloads.iter().flat_map(|w| self.engines.iter().map(move |e| (w, e))) {
            let each = self.devices.iter().filter_map(|d| metric.of(of(rows, d, workload, engine)?));
            let (low, high) = each.fold((f64::INFINITY, 0.0f64), |(low, high), v| (low.min(v), high.max(v)));
            if low > 0.0 && high > 0.0 {
                most = most.max(100.0 * (high / low - 1.0));
            }
        }
        most
    }
}

/// How far one must be ahead to have won, where runs are too few to tell.
const AHEAD: f64 = 1.1;

/// A sentence for each workload: the fastest on each device, and by how much; and among those that
/// are computed.
fn leads(figures: Figures<'_>) -> Vec<String> {
    let (rows, names) = (figures.rows, FigureNames::of(figures));
    let shown = |rate: f64| PhoneMetric::Rate.shown(Some(rate));
    // What is certain of the fastest on a device, and the fastest.
    let on = |workload: &str, device: &str| -> Option<(&str, String)> {
        let mut all: Vec<&Row> = rows.iter().filter(|r| r.engine == device && r.workload == workload).collect();
        all.sort_by(|a, b| b.tx_per_s.total_cmp(&a.tx_per_s));
        let (first, next) = (all.first()?, all.get(1)?);
        let ratio = Ratio::paired(&first.tx_per_s_runs, &next.tx_per_s_runs)?;
        let is_known = if ratio.confidence > 0.0 { ratio.low > 1.0 } else { ratio.median >= AHEAD };
        if !is_known {
            let rates = [first, next].map(|row| format!("{} {}/s", row.preset, shown(row.tx_per_s)));
            return Some(("no engine won for certain on", format!("{device} ({})", rates.join(", "))));
        }
        let (verdict, mark) =
            if ratio.safe { ("won by", "") } else { ("ahead, which is not safe to quote (~), is", "~") };
        let rate = shown(first.tx_per_s);
        let by = format!("{} on {device} ({rate}/s, {:.2}{mark} times {})", first.preset, ratio.median, next.preset);
        Some((verdict, by))
    };
    let computed = |workload: &str| -> Option<String> {
        let each = names.devices.iter().filter_map(|device| {
            let rate = |c: &OnF2fs| c.tx_per_s.iter().find(|(name, _)| name == device).map(|(_, rate)| *rate);
            let counted = figures.on_f2fs.iter().filter(|c| c.workload == workload);
            let mut all: Vec<(f64, &str)> = counted.filter_map(|c| Some((rate(c)?, c.engine.as_str()))).collect();
            all.sort_by(|a, b| b.0.total_cmp(&a.0));
            let (first, next) = (all.first()?, all.get(1)?);
            let [name, other] = [first, next].map(|(_, name)| name.trim_end_matches(ON_F2FS));
            Some(format!("{name} on {device} ({}/s, {:.2} times {other})", shown(first.0), first.0 / next.0))
        });
        let each: Vec<String> = each.collect();
        (!each.is_empty()).then(|| format!(" On F2FS, by the device alone: {}.", each.join(", ")))
    };
    let sentence = |workload: &&str| {
        let each: Vec<(&str, String)> = names.devices.iter().filter_map(|device| on(workload, device)).collect();
        let alike = each.chunk_by(|a, b| a.0 == b.0).map(|of| {
            let which: Vec<&str> = of.iter().map(|(_, which)| which.as_str()).collect();
            format!("{} {}", of[0].0, which.join(", "))
        });
        let computed = computed(workload).unwrap_or_default();
        (!each.is_empty()).then(|| format!("{workload}: {}.{computed}", alike.collect::<Vec<_>>().join("; ")))
    };
    names.workloads.iter().filter_map(sentence).collect()
}

fn notes(outcome: &RunOutcome, figures: Figures<'_>) -> Vec<String> {
    let (rows, parameters) = (&outcome.rows, &outcome.parameters);
    let names = FigureNames::of(figures);
    let apart = [PhoneMetric::Kib, PhoneMetric::Flushes].map(|metric| names.apart(rows, metric));
    let mut lines = vec![
        format!(
            "KiB, flushes and years are those on {}; between the devices KiB differ by up to {:.0} %, flushes by up to {:.0} %. KiB \
             include the file system's journal, and what the last transaction left in the kernel's cache.",
            names.devices[0], apart[0], apart[1]
        ),
        "By the device alone: computed from the requests, for a device that has nothing else to do and a processor that takes no \
         time. What others do with the machine does not disturb it, and it is all that is known of F2FS, which runs in a virtual machine."
            .to_owned(),
        format!("Years: {}; a transaction that only reads counts as one, too.", parameters.wear.describe()),
        stats::EXPLAINED.to_owned(),
    ];
    lines.extend(parameters.notes.iter().map(|n| format!("Note: {n}")));
    lines
}

/// The text of the terminal.
fn told(outcome: &RunOutcome, on_f2fs: &[OnF2fs], columns: u16) -> String {
    let figures = Figures { rows: &outcome.rows, on_f2fs, wear: &outcome.parameters.wear };
    let names = FigureNames::of(figures);
    // A name takes more room than the numbers below it.
    let breaking = |head: String| head.replace('/', "/\n").replace(", ", ",\n").replace('-', "-\n");
    let mut out = String::new();
    for part in names.parts() {
        let device = if part.0.is_rate() { format!(", {}", part.1) } else { String::new() };
        let heads: Vec<String> = names.heads("").into_iter().map(breaking).collect();
        let lines: Vec<Vec<String>> = names.workloads.iter().map(|w| names.cells(figures, part, w)).collect();
        out += &format!("{}{device}\n{}\n\n", part.0.name(), text::table(&heads, &lines, columns));
    }
    out += &text::wrapped(leads(figures).iter().chain(&notes(outcome, figures)), columns);
    format!("{out}\n{}\n", card::lines(&outcome.parameters.short(), text::line(columns)).join("\n"))
}

/// The geometric mean over the workloads of a metric, by that of the engine that ratios refer to.
fn overall(figures: Figures<'_>, names: &FigureNames<'_>, part: (PhoneMetric, &str), engine: &str) -> Option<f64> {
    let by = |workload: &&str| {
        let value = |engine| figures.value(part, workload, engine);
        Some((value(engine)? / value(REFERENCE)?).ln()).filter(|v| v.is_finite())
    };
    let all: Option<Vec<f64>> = names.workloads.iter().map(by).collect();
    all.filter(|all| !all.is_empty()).map(|all| (all.iter().sum::<f64>() / all.len() as f64).exp())
}

fn page(outcome: &RunOutcome, on_f2fs: &[OnF2fs]) -> Result<String> {
    let (rows, parameters) = (&outcome.rows, &outcome.parameters);
    let figures = Figures { rows, on_f2fs, wear: &parameters.wear };
    let names = FigureNames::of(figures);
    let text = format!(
        "Simulated {}, which write 4 KiB whole or not at all; {} transactions each, {} runs, SQLite {}. Transactions per second are of one app that does nothing else; the parameter \
         card is at the end.",
        names.devices.join(", "),
        parameters.transactions,
        parameters.runs,
        parameters.sqlite_version
    );
    let mut out =
        html::begin("Phones and small computers", &leads(figures), [&parameters.made(), &text], &parameters.unknown)?;
    out.push_str("<h2>All workloads</h2>\n<div class=\"plots\">\n");
    for part in names.parts() {
        let lines = names.engines.iter().enumerate().filter_map(|(color, engine)| {
            let median = overall(figures, &names, part, engine)?;
            Some(plots::MeasuredLine { label: (*engine).to_owned(), color, median, runs: Vec::new() })
        });
        let lines: Vec<_> = lines.collect();
        if !lines.is_empty() {
            let title =
                if part.0.is_rate() { format!("{} on {}", part.0.name(), part.1) } else { part.0.name().to_owned() };
            let svg = plots::medians(&lines, &format!("× {REFERENCE}"))?;
            let text = "geometric mean over the workloads";
            html::figure(&mut out, &html::escape(&title), text, &svg)?;
        }
    }
    out.push_str("</div>\n");
    for part in names.parts() {
        let title = if part.0.is_rate() { format!("{}, {}", part.0.name(), part.1) } else { part.0.name().to_owned() };
        let lines: Vec<_> = names.workloads.iter().map(|w| (None, names.cells(figures, part, w))).collect();
        html::table(&mut out, &names.heads(&title), &lines)?;
    }
    for workload in &names.workloads {
        out.push_str(&format!("<h2>{}</h2>\n<div class=\"plots\">\n", html::escape(workload)));
        for (metric, device) in names.parts() {
            let measured = |(color, engine): (usize, &&str)| {
                let measured = of(rows, device, workload, engine).filter(|_| metric == PhoneMetric::Rate);
                let runs = measured.map_or(Vec::new(), |row| row.tx_per_s_runs.clone());
                let median = figures.value((metric, device), workload, engine)?;
                Some(plots::MeasuredLine { label: (*engine).to_owned(), color, median, runs })
            };
            let lines: Vec<_> = names.engines.iter().enumerate().filter_map(measured).collect();
            // By where they went, of those measured here.
            if metric == PhoneMetric::Kib {
                let group: Vec<&Row> = names.engines.iter().filter_map(|e| of(rows, device, workload, e)).collect();
                if let Some(svg) = plots::volume(&group, |row| row.preset.clone())? {
                    html::figure(&mut out, metric.name(), &html::parts(plots::volume_parts(&group).into_iter()), &svg)?;
                }
            }
            if !lines.is_empty() && (metric != PhoneMetric::Kib || !on_f2fs.is_empty()) {
                let title = match metric {
                    PhoneMetric::Rate => format!("on {device}"),
                    PhoneMetric::DeviceRate => format!("by {device} alone"),
                    _ => metric.name().to_owned(),
                };
                html::figure(&mut out, &html::escape(&title), "", &plots::medians(&lines, metric.name())?)?;
            }
        }
        out.push_str("</div>\n");
    }
    html::card(&mut out, outcome, &parameters.wear)?;
    html::end(out, &notes(outcome, figures))
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::counting::blocks::PerTx;
    use crate::engines::EngineKind;
    use crate::report::tests::rows as all_rows;
    use crate::runner::tests::outcome;

    fn rows() -> Vec<Row> {
        let mut rows = Vec::new();
        for (device, rate) in [("emmc", 100.0), ("ufs", 300.0)] {
            let of = all_rows().into_iter().filter(|r| ["gmail", "rl"].contains(&r.workload));
            for (i, mut row) in of.filter(|r| ["delete", "wal-full", "log"].contains(&r.preset.as_str())).enumerate() {
                row.preset = row.of.name();
                row.engine = device.to_owned();
                row.tx_per_s = rate * (1 + i % 3) as f64;
                row.tx_per_s_runs = vec![row.tx_per_s];
                // The device could take five times as many.
                let device_ms_per_tx = Some(200.0 / row.tx_per_s);
                row.blocks = Some(PerTx { device_ms_per_tx, ..all_rows().iter().find_map(|r| r.blocks).unwrap() });
                rows.push(row);
            }
        }
        refer(&mut rows);
        rows
    }

    /// All devices, workloads and engines of the suite, and those on F2FS.
    fn sample() -> (RunOutcome, Vec<OnF2fs>) {
        let workloads = WorkloadSelection::all(&WORKLOADS.map(|name| name.parse().unwrap()));
        let engines = STOCK.into_iter().chain(SCHEMES);
        let (mut rows, mut on_f2fs) = (Vec::new(), Vec::new());
        for workload in workloads {
            for (device, (i, engine)) in DEVICES.iter().flat_map(|d| engines.clone().enumerate().map(move |e| (d, e))) {
                let like =
                    all_rows().into_iter().find(|r| r.workload == workload.name() && r.preset == "delete").unwrap();
                let rate = 1234.5 * 1.5_f64.powi(i as i32);
                rows.push(Row {
                    engine: device.name().to_owned(),
                    preset: format!("{}/{engine}", if STOCK.contains(&engine) { "stock" } else { "onewrite" }),
                    tx_per_s: rate,
                    tx_per_s_runs: vec![rate],
                    kib_per_tx: Some(1234.5),
                    flushes_per_tx: Some(12.34),
                    blocks: like.blocks.map(|b| PerTx { device_ms_per_tx: Some(200.0 / rate), ..b }),
                    ..like
                });
            }
            on_f2fs.extend([BATCH_ATOMIC, LOG].map(|engine| OnF2fs {
                workload: workload.name(),
                engine: engine.to_owned(),
                kib: 20.0,
                flushes: 3.0,
                tx_per_s: DEVICES.map(|device| (device.name(), 4567.8)).to_vec(),
            }));
        }
        refer(&mut rows);
        (outcome(rows, ""), on_f2fs)
    }

    pub fn sample_page() -> String {
        let (mut outcome, mut on_f2fs) = sample();
        // Each workload has the same pictures.
        outcome.rows.retain(|row| ["open-insert-close", "mobibench-insert"].contains(&row.workload));
        on_f2fs.retain(|row| ["open-insert-close", "mobibench-insert"].contains(&row.workload));
        page(&outcome, &on_f2fs).unwrap()
    }

    #[test]
    fn the_text_of_the_terminal_has_eighty_columns() {
        let (outcome, on_f2fs) = sample();
        for on_f2fs in [&on_f2fs[..], &[]] {
            let told = told(&outcome, on_f2fs, 80);
            assert!(text::width(&told) <= 80, "{told}");
            assert!(told.contains("\nopen-insert-close") && told.contains("transactions/s, sdcard\n"), "{told}");
        }
    }

    fn wear() -> Wear {
        Wear { wear: true, card_gb: 32.0, card_cycles: 3000.0, card_amplification: 4.0, commits_per_s: 10.0 }
    }

    #[test]
    fn ratios_are_to_the_same_device() {
        let (rows, wear) = (rows(), wear());
        for device in ["emmc", "ufs"] {
            assert_eq!(of(&rows, device, "rl", "onewrite/log").unwrap().ratio.unwrap().median, 3.0);
            assert_eq!(of(&rows, device, "rl", "onewrite/log").unwrap().ratio_to_wal_full, Some(1.5));
        }
        let figures = Figures { rows: &rows, on_f2fs: &[], wear: &wear };
        let names = FigureNames::of(figures);
        assert_eq!(names.apart(&rows, PhoneMetric::Kib), 0.0);
        assert_eq!(names.apart(&rows, PhoneMetric::Rate).round(), 200.0);
        let overall = overall(figures, &names, (PhoneMetric::Rate, "ufs"), "onewrite/log").unwrap();
        assert!((overall - 3.0).abs() < 1e-9);
        let leads = leads(figures);
        assert_eq!(leads.len(), 2);
        let expected = "rl: ahead, which is not safe to quote (~), is onewrite/log on emmc (300/s, 1.50~ times stock/wal-full), onewrite/log on ufs";
        assert!(leads[0].contains(expected), "{leads:?}");
        let mut near = rows.clone();
        for row in near.iter_mut().filter(|r| r.preset == "onewrite/log") {
            row.tx_per_s *= 1.05 * 2.0 / 3.0;
            row.tx_per_s_runs = vec![row.tx_per_s];
        }
        let near = super::leads(Figures { rows: &near, ..figures });
        assert!(
            near[0].contains("no engine won for certain on emmc (onewrite/log 210/s, stock/wal-full 200/s)"),
            "{near:?}"
        );
    }

    #[test]
    fn counts_on_f2fs_have_columns_in_the_same_table() {
        let (rows, wear) = (rows(), wear());
        let counted = |workload| OnF2fs {
            workload,
            engine: BATCH_ATOMIC.to_owned(),
            kib: 20.0,
            flushes: 3.0,
            tx_per_s: vec![("emmc", 400.0), ("ufs", 600.0)],
        };
        let on_f2fs = [counted("gmail"), counted("rl")];
        let figures = Figures { rows: &rows, on_f2fs: &on_f2fs, wear: &wear };
        let names = FigureNames::of(figures);
        assert_eq!(names.heads("x").last().unwrap(), BATCH_ATOMIC);
        assert_eq!(names.cells(figures, (PhoneMetric::Rate, "emmc"), "gmail"), ["gmail", "100", "200", "300", "n/a"]);
        assert_eq!(
            names.cells(figures, (PhoneMetric::DeviceRate, "emmc"), "gmail"),
            ["gmail", "500", "1,000", "1,500", "400"]
        );
        assert_eq!(names.cells(figures, (PhoneMetric::Flushes, "emmc"), "rl").last().unwrap(), "3.00");
        let years = figures.value((PhoneMetric::Years, "ufs"), "rl", BATCH_ATOMIC).unwrap();
        assert!((years - wear.years(20.0 * 1024.0)).abs() < 0.001);
        let overall = |metric| overall(figures, &names, (metric, "ufs"), BATCH_ATOMIC);
        assert!((overall(PhoneMetric::DeviceRate).unwrap() - 0.4).abs() < 1e-9, "600/s by DELETE's 1500");
        assert_eq!(overall(PhoneMetric::Rate), None);
        assert!(leads(figures).iter().all(|lead| !lead.contains("F2FS")), "one alone wins nothing");
        let log = OnF2fs { engine: LOG.to_owned(), tx_per_s: vec![("emmc", 200.0), ("ufs", 1200.0)], ..counted("rl") };
        let on_f2fs = [counted("gmail"), counted("rl"), log];
        let leads = leads(Figures { on_f2fs: &on_f2fs, ..figures });
        let expected = " On F2FS, by the device alone: batch-atomic on emmc (400/s, 2.00 times onewrite/log), onewrite/log on ufs (1,200/s, 2.00 times batch-atomic).";
        assert!(leads.iter().any(|lead| lead.starts_with("rl") && lead.ends_with(expected)), "{leads:?}");
    }

    #[test]
    fn workloads_and_schemes_that_it_names_exist() {
        for name in WORKLOADS {
            assert!(name.parse::<WorkloadSelection>().is_ok(), "{name}");
        }
        assert!(SCHEMES.iter().all(|s| matches!(engines::onewrite(s).kind, EngineKind::Onewrite { .. })));
    }
}
