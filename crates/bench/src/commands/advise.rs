//! `onewrite bench advise`: measures a directory for half a minute, and says which settings to
//! choose there and how much durability each costs.

use crate::engines::{self, BenchEngine, EngineKind};
use crate::files::OutputFiles;
use crate::numbers::measure::median;
use crate::parameters::given::{CARD, RUNS, SIZES};
use crate::parameters::options::Common;
use crate::report::Row;
use crate::runner::{self, Case, Job, RunOutcome};
use crate::text::{self, thousands};
use crate::workload::Workload;
use anyhow::Result;
use std::path::PathBuf;

/// Measure a directory briefly and say which settings to choose there
///
/// Inserts and updates of one row at a time, as in `onewrite bench`. For another use (large
/// transactions, mostly reading) measure with --workload there.
#[derive(Debug, clap::Args)]
pub struct Advise {
    /// The directory your database lives in
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    #[command(flatten)]
    pub common: Common,
}

/// Transactions of a section by default: half a minute on a disk with one millisecond per flush.
const TRANSACTIONS: u64 = 200;

const MINUTES: f64 = 0.5;

/// Losses of a setting, from the most durable on.
#[derive(Clone, Copy, PartialEq)]
enum Loses {
    Nothing,
    Newest,
}

struct Choice {
    name: String,
    loses: Loses,
    how: String,
    /// Commits per second as a multiple of SQLite's default, the median over the workloads.
    gain: f64,
    safe: bool,
    tx_per_s: f64,
    kib: Option<f64>,
}

pub fn run(options: &Advise) -> Result<()> {
    let mut common = options.common.clone();
    common
        .given
        .all_in(&[&["--json", "--html", "--svg", "--runs", "--seed"], &RUNS, &SIZES, &CARD], "`bench advise DIR`")?;
    common.dir = Some(options.directory.clone());
    common.transactions = common.transactions.or(Some(TRANSACTIONS));
    common.minutes = common.minutes.or(Some(MINUTES));
    let files = OutputFiles::create(&common)?;
    let mut notes = Vec::new();
    let wanted = [
        "stock/delete",
        "stock/truncate",
        "stock/persist",
        "stock/wal-full",
        "stock/wal-normal",
        "onewrite/log",
        "onewrite/log-normal",
    ];
    let mut all: Vec<BenchEngine> = engines::all()
        .into_iter()
        .filter(|e| wanted.contains(&e.name().as_str()) || e.kind == EngineKind::Floor)
        .collect();
    if let Err(reason) = engines::register_onewrite() {
        all.retain(|e| !e.is_onewrite());
        notes.push(format!("onewrite was left out: {reason}"));
    }
    let reference = all.iter().position(engines::is_stock_default).map(|c| (c, "DELETE".to_owned()));
    let cases = all.into_iter().map(Case::from).collect();
    let workloads = vec![Workload::Insert, Workload::Update];
    let job =
        Job { common: common.clone(), cases, workloads, defaults_only: false, reference, count_calls: true, notes };
    let outcome = runner::run(job)?;
    let advice = advice(&outcome);
    let told = files.finish(&common, &outcome);
    print!("\n{}", text::wrapped(advice, text::columns()));
    told
}

fn advice(outcome: &RunOutcome) -> Vec<String> {
    let mut choices = choices(&outcome.rows);
    choices.sort_by(|a, b| b.gain.total_cmp(&a.gain));
    let machine = &outcome.parameters.machine;
    let mut lines =
        vec!["ADVICE (commits per second as a multiple of SQLite's default, journal_mode=DELETE)".to_owned()];
    for (loses, title) in [
        (Loses::Nothing, "Every commit survives a power cut:"),
        (
            Loses::Newest,
            "A power cut may take the commits since the last checkpoint, of onewrite since the last checkpoint, FULL commit or \
             second of rest; never the database:",
        ),
    ] {
        lines.push(title.to_owned());
        for c in choices.iter().filter(|c| c.loses == loses) {
            let mark = if c.safe { "" } else { " (uncertain)" };
            let kib = c.kib.map_or(String::new(), |kib| format!(", {kib:.1} KiB written each"));
            lines.push(format!(
                "  {:<19} {:>6.2} times{mark}, {}/s{kib}: {}",
                c.name,
                c.gain,
                thousands(c.tx_per_s),
                c.how
            ));
        }
    }
    let best = |loses| choices.iter().find(|c| c.loses == loses);
    if let Some(best) = best(Loses::Nothing) {
        lines.push(format!("Choose {}: {}.", best.name, best.how));
        if let Some(faster) = best_of(&choices, best) {
            lines.push(format!(
                "If the newest commits may be lost in a power cut, {} is {:.1} times as fast again: {}.",
                faster.name,
                faster.gain / best.gain,
                faster.how
            ));
        }
    }
    lines.push(
        "synchronous=OFF and journal_mode=MEMORY or OFF are not among them: a power cut may corrupt the database."
            .to_owned(),
    );
    match machine.file_system.as_deref() {
        Some("tmpfs") => lines.push("This directory is in memory: nothing here survives a power cut.".to_owned()),
        Some("nfs" | "nfs4" | "cifs" | "9p" | "fuse.sshfs") => lines.push(
            "This directory is on a network: SQLite's locks, WAL mode and onewrite are not safe there.".to_owned(),
        ),
        _ => {}
    }
    if machine.device.as_ref().is_some_and(|d| d.write_cache.as_deref() == Some("write back") && d.fua != Some(true)) {
        lines.push(
            "The device has a volatile write cache without FUA: each durable commit empties that cache, which is what \
             most of the time goes to."
                .to_owned(),
        );
    }
    lines
}

fn level(synchronous: i64) -> &'static str {
    if synchronous == 1 { "NORMAL" } else { "FULL" }
}

fn best_of<'c>(choices: &'c [Choice], durable: &Choice) -> Option<&'c Choice> {
    choices.iter().find(|c| c.loses == Loses::Newest && c.gain > 1.1 * durable.gain)
}

fn choices(rows: &[Row]) -> Vec<Choice> {
    let mut choices: Vec<Choice> = Vec::new();
    for row in rows {
        let how = match &row.of.kind {
            EngineKind::Stock { journal_mode, synchronous } => {
                format!("PRAGMA journal_mode={journal_mode}; PRAGMA synchronous={}", level(*synchronous))
            }
            EngineKind::Onewrite { synchronous, .. } => format!(
                "load onewrite, open file:NAME?vfs=onewrite; PRAGMA synchronous={}; copy the file only together with its log",
                level(*synchronous)
            ),
            EngineKind::Store(_) | EngineKind::Floor => continue,
        };
        let name = format!("{}/{}", row.engine, row.preset);
        if choices.iter().any(|c| c.name == name) {
            continue;
        }
        let of: Vec<&Row> = rows.iter().filter(|r| r.of == row.of).collect();
        choices.push(Choice {
            name,
            loses: if row.of.caveat.is_none() { Loses::Nothing } else { Loses::Newest },
            how,
            gain: median(of.iter().filter_map(|r| Some(r.ratio?.median))).unwrap_or(0.0),
            safe: of.iter().all(|r| r.ratio.is_some_and(|ratio| ratio.safe)),
            tx_per_s: median(of.iter().map(|r| r.tx_per_s)).unwrap_or(0.0),
            kib: median(of.iter().filter_map(|r| r.kib_per_tx)),
        });
    }
    choices
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::rows;
    use crate::runner::tests::outcome;

    #[test]
    fn the_text_of_the_terminal_has_eighty_columns() {
        let told = text::wrapped(advice(&outcome(rows(), "DELETE")), 80);
        assert!(text::width(&told) <= 80 && told.contains("\nChoose stock/delete"), "{told}");
    }

    #[test]
    fn each_engine_is_one_choice_with_its_losses() {
        let rows: Vec<Row> = rows().into_iter().filter(|r| ["insert", "update"].contains(&r.workload)).collect();
        let choices = choices(&rows);
        let find = |name: &str| choices.iter().find(|c| c.name == name).unwrap();
        assert!(find("stock/delete").loses == Loses::Nothing);
        assert!(find("stock/wal-normal").loses == Loses::Newest);
        for name in ["stock/wal-normal", "onewrite/log-normal"] {
            assert!(find(name).loses == Loses::Newest && find(name).how.contains("NORMAL"));
        }
        assert!(find("onewrite/log").loses == Loses::Nothing && find("onewrite/log").how.contains("FULL"));
        assert!(choices.iter().all(|c| !c.safe && c.name != "floor/overwrite"));
    }
}
