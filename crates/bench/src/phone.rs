//! The suite `phone`: what apps and the benchmarks of phones do, on simulated eMMC, UFS and SD card, in one table and on one
//! page: transactions per second, KiB, flushes, and how long a card lasts.

use crate::engines::{self, Engine};
use crate::html::{self, plots};
use crate::report::{Row, wrap};
use crate::runner::{self, Case, Job, Outcome};
use crate::simulated;
use crate::sql::Library;
use crate::stats::{self, Ratio};
use crate::workload::Asked;
use crate::{Args, Files, card, report};
use anyhow::{Context, Result, ensure};
use comfy_table::{CellAlignment, Table, TableStyle};
use onewrite_device::Profile;
use std::sync::Arc;

const DEVICES: [Profile; 3] = [Profile::Emmc, Profile::Ufs, Profile::SdCard];
const TRANSACTIONS: u64 = 100;
/// Of a database, and what the devices write whole or not at all, without which schemes in place refuse.
const PAGE_BYTES: u32 = 4096;
const RUNS: u64 = 1;

const WORKLOADS: [&str; 8] =
    ["open-insert-close", "mobibench", "androbench", "rl", "gmail", "facebook", "hangouts", "kakaotalk"];

/// Stock modes, onewrite's default, and schemes that write in place within a page.
const STOCK: [&str; 3] = ["delete", "truncate", "wal-full"];
const SCHEMES: [&str; 4] = ["log", "lsmvbt", "mvbt-opt", "dhl-cc"];
/// What ratios refer to.
const REFERENCE: &str = "stock/delete";

/// An engine that has its place in the table and no numbers here, and why.
const ELSEWHERE: (&str, &str) = (
    "stock/delete, batch-atomic",
    "batch-atomic writes need F2FS and a SQLite built with SQLITE_ENABLE_BATCH_ATOMIC_WRITE; simulated devices use this \
     kernel's file systems, and F2FS is not among them",
);

/// A number of each line.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Metric {
    Rate,
    Kib,
    Flushes,
    Years,
}

impl Metric {
    fn of(self, row: &Row) -> Option<f64> {
        match self {
            Metric::Rate => Some(row.tx_per_s),
            Metric::Kib => row.kib_per_tx.map(|kib| kib + row.blocks.map_or(0.0, |b| b.kib_left_per_tx)),
            Metric::Flushes => row.flushes_per_tx,
            Metric::Years => row.wear.map(|w| w.years),
        }
    }

    fn name(self) -> &'static str {
        match self {
            Metric::Rate => "transactions/s",
            Metric::Kib => "KiB per transaction",
            Metric::Flushes => "flushes per transaction",
            Metric::Years => "years of a card's life",
        }
    }

    fn shown(self, value: Option<f64>) -> String {
        match value {
            None => "n/a".to_owned(),
            Some(v) if self == Metric::Flushes => format!("{v:.2}"),
            Some(v) if v < 99.95 => format!("{v:.1}"),
            Some(v) => format!("{v:.0}"),
        }
    }
}

/// Measures, prints the table, and writes the files asked for.
pub fn run(args: &Args) -> Result<()> {
    let files = Files::create(&args.common)?;
    let mut common = args.common.clone();
    common.transactions = common.transactions.or(Some(TRANSACTIONS));
    common.runs = common.runs.or(Some(RUNS));
    let workloads = match &args.workload[..] {
        [] => Asked::all(
            &WORKLOADS
                .map(|name| name.parse())
                .into_iter()
                .collect::<Result<Vec<_>, _>>()
                .map_err(anyhow::Error::msg)?,
        ),
        asked => Asked::all(asked),
    };
    ensure!(workloads.iter().all(|w| !w.reads() && !w.recovers()), "the suite phone takes workloads that write");
    let (engines, mut notes) = engines(args)?;
    let mut cases = Vec::new();
    for profile in DEVICES.into_iter().filter(|p| common.simulated.device.is_none_or(|device| device == *p)) {
        let options = simulated::Options {
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
    notes.push(format!("{}: n/a: {}", ELSEWHERE.0, ELSEWHERE.1));
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
    print(&outcome);
    let json = report::Json { parameters: &outcome.parameters, results: &outcome.rows };
    files.write(&json, || page(&outcome))
}

/// All in one SQLite: the drop-in library where there is one, since some schemes split pages as only that does.
fn engines(args: &Args) -> Result<(Vec<Engine>, Vec<String>)> {
    let mut notes = Vec::new();
    let path = crate::schemes::drop_in(args)?;
    let schemes: &[&str] = match &path {
        Some(path) => {
            let has = Library::load(path)?.has_vfs("onewrite");
            ensure!(has, "{} has no onewrite in it: the suite phone needs the drop-in library", path.display());
            notes.push(format!("everything runs in the SQLite of {}", path.display()));
            &SCHEMES
        }
        None => {
            engines::register_onewrite().map_err(anyhow::Error::msg)?;
            notes.push(
                "left out: the schemes that split pages as only the drop-in library does; `cargo build --release -p \
                 onewrite-sqlite` puts it beside this program"
                    .to_owned(),
            );
            &SCHEMES[..1]
        }
    };
    let stock = engines::all().into_iter().filter(|e| e.engine == "stock" && STOCK.contains(&e.preset.as_str()));
    let all: Vec<Engine> = stock
        .chain(schemes.iter().map(|scheme| engines::onewrite(scheme)))
        .map(|e| Engine { library: path.clone(), pragmas: vec![("page_size".to_owned(), PAGE_BYTES.to_string())], ..e })
        .collect();
    let named = args.only.iter().map(|name| engines::named(name, &all).map_err(anyhow::Error::msg));
    let named = named.collect::<Result<Vec<_>>>().context("--only")?;
    Ok((if named.is_empty() { all } else { named }, notes))
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

/// In the order in which they come.
fn distinct<'r>(names: impl Iterator<Item = &'r str>) -> Vec<&'r str> {
    let mut found: Vec<&str> = Vec::new();
    names.for_each(|name| {
        if !found.contains(&name) {
            found.push(name)
        }
    });
    found
}

/// Devices, workloads and engines of these rows.
struct Names<'r> {
    devices: Vec<&'r str>,
    workloads: Vec<&'r str>,
    engines: Vec<&'r str>,
}

impl<'r> Names<'r> {
    fn of(rows: &'r [Row]) -> Names<'r> {
        Names {
            devices: distinct(rows.iter().map(|r| r.engine.as_str())),
            workloads: distinct(rows.iter().map(|r| r.workload)),
            engines: distinct(rows.iter().map(|r| r.preset.as_str())),
        }
    }

    /// What is shown of which device: rates of all, counts of the first, which the others share.
    fn parts(&self) -> Vec<(Metric, &'r str)> {
        let counts = [Metric::Kib, Metric::Flushes, Metric::Years];
        let rates = self.devices.iter().map(|device| (Metric::Rate, *device));
        rates.chain(counts.map(|metric| (metric, self.devices[0]))).collect()
    }

    fn heads(&self, first: &str) -> Vec<String> {
        let engines = self.engines.iter().copied().chain([ELSEWHERE.0]);
        std::iter::once(first).chain(engines).map(str::to_owned).collect()
    }

    fn cells(&self, rows: &[Row], (metric, device): (Metric, &str), workload: &str) -> Vec<String> {
        let value = |engine: &&str| metric.shown(of(rows, device, workload, engine).and_then(|r| metric.of(r)));
        let own = std::iter::once(workload.to_owned()).chain(self.engines.iter().map(value));
        own.chain(["n/a".to_owned()]).collect()
    }

    /// By how many percent a count differs between devices at most.
    fn apart(&self, rows: &[Row], metric: Metric) -> f64 {
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

/// A sentence for each workload: who won on which device, and by how much.
fn leads(rows: &[Row]) -> Vec<String> {
    let names = Names::of(rows);
    let on = |workload: &str, device: &str| -> Option<String> {
        let mut all: Vec<&Row> = rows.iter().filter(|r| r.engine == device && r.workload == workload).collect();
        all.sort_by(|a, b| b.tx_per_s.total_cmp(&a.tx_per_s));
        let (first, next) = (all.first()?, all.get(1)?);
        let ratio = Ratio::paired(&first.tx_per_s_runs, &next.tx_per_s_runs)?;
        let mark = if ratio.safe { "" } else { "~" };
        Some(format!(
            "{} on {device} ({}/s, {:.2}{mark} times {})",
            first.preset,
            Metric::Rate.shown(Some(first.tx_per_s)),
            ratio.median,
            next.preset
        ))
    };
    let sentence = |workload: &&str| {
        let each: Vec<String> = names.devices.iter().filter_map(|device| on(workload, device)).collect();
        (!each.is_empty()).then(|| format!("{workload}: won by {}.", each.join(", ")))
    };
    names.workloads.iter().filter_map(sentence).collect()
}

fn notes(outcome: &Outcome) -> Vec<String> {
    let (rows, parameters) = (&outcome.rows, &outcome.parameters);
    let names = Names::of(rows);
    let apart = [Metric::Kib, Metric::Flushes].map(|metric| names.apart(rows, metric));
    let mut lines = vec![
        format!(
            "KiB, flushes and years are those on {}; between the devices KiB differ by up to {:.0} %, flushes by up to {:.0} %. KiB \
             include the file system's journal, and what the last transaction left in the kernel's cache.",
            names.devices[0], apart[0], apart[1]
        ),
        format!("Years: {}; a transaction that only reads counts as one, too.", parameters.wear.describe()),
        stats::EXPLAINED.to_owned(),
    ];
    lines.extend(parameters.notes.iter().map(|n| format!("Note: {n}")));
    lines
}

fn print(outcome: &Outcome) {
    let rows = &outcome.rows;
    let names = Names::of(rows);
    for part in names.parts() {
        let mut t = Table::new();
        t.load_style(TableStyle::new());
        let breaking = |head: String| head.replacen('/', "/\n", 1).replace(", ", ",\n");
        let title = format!("{}\n{}", part.0.name(), if part.0 == Metric::Rate { part.1 } else { "" });
        t.set_header(names.heads(&title).into_iter().enumerate().map(|(i, h)| if i == 0 { h } else { breaking(h) }));
        for workload in &names.workloads {
            t.add_row(names.cells(rows, part, workload));
        }
        for (i, column) in t.column_iter_mut().enumerate() {
            column.set_cell_alignment(if i == 0 { CellAlignment::Left } else { CellAlignment::Right });
            column.set_padding((0, 2));
        }
        println!("{t}\n");
    }
    for line in leads(rows).iter().chain(&notes(outcome)) {
        println!("{}", wrap(line, 118, 2));
    }
    println!();
    for line in card::lines(&outcome.parameters.short(), 118) {
        println!("{line}");
    }
}

/// The geometric mean over the workloads of a metric, by that of the engine that ratios refer to.
fn overall(rows: &[Row], names: &Names<'_>, (metric, device): (Metric, &str), engine: &str) -> Option<f64> {
    let by = |workload: &&str| {
        let value = |engine| metric.of(of(rows, device, workload, engine)?);
        Some((value(engine)? / value(REFERENCE)?).ln()).filter(|v| v.is_finite())
    };
    let all: Option<Vec<f64>> = names.workloads.iter().map(by).collect();
    all.filter(|all| !all.is_empty()).map(|all| (all.iter().sum::<f64>() / all.len() as f64).exp())
}

fn page(outcome: &Outcome) -> Result<String> {
    let (rows, parameters) = (&outcome.rows, &outcome.parameters);
    let names = Names::of(rows);
    let text = format!(
        "Simulated {}, which write 4 KiB whole or not at all; {} transactions each, {} runs, SQLite {}. Transactions per second are of one app that does nothing else; the parameter \
         card is at the end.",
        names.devices.join(", "),
        parameters.transactions,
        parameters.runs,
        parameters.sqlite_version
    );
    let mut out = html::begin("Phones and small computers", &leads(rows), &text, &parameters.unknown)?;
    out.push_str("<h2>All workloads</h2>\n<div class=\"plots\">\n");
    for part in names.parts() {
        let lines = names.engines.iter().enumerate().filter_map(|(color, engine)| {
            let median = overall(rows, &names, part, engine)?;
            Some(plots::Measured { label: (*engine).to_owned(), color, median, runs: Vec::new() })
        });
        let lines: Vec<_> = lines.collect();
        if !lines.is_empty() {
            let title = if part.0 == Metric::Rate {
                format!("{} on {}", part.0.name(), part.1)
            } else {
                part.0.name().to_owned()
            };
            let svg = plots::medians(&lines, &format!("× {REFERENCE}"))?;
            html::figure(&mut out, &html::escape(&title), "geometric mean over the workloads", &svg)?;
        }
    }
    out.push_str("</div>\n");
    for part in names.parts() {
        let title =
            if part.0 == Metric::Rate { format!("{}, {}", part.0.name(), part.1) } else { part.0.name().to_owned() };
        let lines: Vec<_> = names.workloads.iter().map(|w| (None, names.cells(rows, part, w))).collect();
        html::table(&mut out, &names.heads(&title), &lines)?;
    }
    for workload in &names.workloads {
        out.push_str(&format!("<h2>{}</h2>\n<div class=\"plots\">\n", html::escape(workload)));
        for (metric, device) in names.parts() {
            let measured = |(color, engine): (usize, &&str)| {
                let row = of(rows, device, workload, engine)?;
                let runs = if metric == Metric::Rate { row.tx_per_s_runs.clone() } else { Vec::new() };
                Some(plots::Measured { label: (*engine).to_owned(), color, median: metric.of(row)?, runs })
            };
            let lines: Vec<_> = names.engines.iter().enumerate().filter_map(measured).collect();
            if metric == Metric::Kib {
                let group: Vec<&Row> = names.engines.iter().filter_map(|e| of(rows, device, workload, e)).collect();
                if let Some(svg) = plots::volume(&group, |row| row.preset.clone())? {
                    html::figure(&mut out, metric.name(), &html::parts(plots::volume_parts(&group).into_iter()), &svg)?;
                }
            } else if !lines.is_empty() {
                let title = if metric == Metric::Rate { format!("on {device}") } else { metric.name().to_owned() };
                html::figure(&mut out, &html::escape(&title), "", &plots::medians(&lines, metric.name())?)?;
            }
        }
        out.push_str("</div>\n");
    }
    html::card(&mut out, outcome, &parameters.wear)?;
    html::end(out, &notes(outcome))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engines::Kind;
    use crate::report::tests::rows as all_rows;

    fn rows() -> Vec<Row> {
        let mut rows = Vec::new();
        for (device, rate) in [("emmc", 100.0), ("ufs", 300.0)] {
            let of = all_rows().into_iter().filter(|r| ["gmail", "rl"].contains(&r.workload));
            for (i, mut row) in of.filter(|r| ["delete", "wal-full", "log"].contains(&r.preset.as_str())).enumerate() {
                row.preset = row.of.name();
                row.engine = device.to_owned();
                row.tx_per_s = rate * (1 + i % 3) as f64;
                row.tx_per_s_runs = vec![row.tx_per_s];
                rows.push(row);
            }
        }
        refer(&mut rows);
        rows
    }

    #[test]
    fn ratios_are_to_the_same_device() {
        let rows = rows();
        for device in ["emmc", "ufs"] {
            assert_eq!(of(&rows, device, "rl", "onewrite/log").unwrap().ratio.unwrap().median, 3.0);
            assert_eq!(of(&rows, device, "rl", "onewrite/log").unwrap().ratio_to_wal_full, Some(1.5));
        }
        let names = Names::of(&rows);
        assert_eq!(names.apart(&rows, Metric::Kib), 0.0);
        assert_eq!(names.apart(&rows, Metric::Rate).round(), 200.0);
        let overall = overall(&rows, &names, (Metric::Rate, "ufs"), "onewrite/log").unwrap();
        assert!((overall - 3.0).abs() < 1e-9);
        let leads = leads(&rows);
        assert_eq!(leads.len(), 2);
        assert!(
            leads[0]
                .contains("rl: won by onewrite/log on emmc (300/s, 1.50~ times stock/wal-full), onewrite/log on ufs"),
            "{leads:?}"
        );
    }

    #[test]
    fn batch_atomic_writes_have_their_place() {
        let rows = rows();
        let names = Names::of(&rows);
        assert_eq!(names.heads("x").last().unwrap(), ELSEWHERE.0);
        let cells = names.cells(&rows, (Metric::Rate, "emmc"), "gmail");
        assert_eq!(cells, ["gmail", "100", "200", "300", "n/a"]);
    }

    #[test]
    fn what_it_names_exists() {
        for name in WORKLOADS {
            assert!(name.parse::<Asked>().is_ok(), "{name}");
        }
        assert!(SCHEMES.iter().all(|s| matches!(engines::onewrite(s).kind, Kind::Onewrite { .. })));
    }
}
