//! `onewrite bench compare`: two results side by side, if their parameter cards allow it.

use crate::numbers::stats::Ratio;
use crate::text;
use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Compare two files of --json; refuse where their cards differ in a value that matters
///
/// The values that differ are named, and nothing else is printed. Name the one that you compare:
///
///     onewrite bench compare before.json after.json --subject machine.kernel
///
/// Then each median of B is divided by that of A, as it is and after both were divided by the
/// floor's of the same run. The floor runs no database: its change is the machine's, and the rest
/// is the engine's.
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Compare {
    /// The result to compare with
    a: PathBuf,
    /// The result to compare
    b: PathBuf,
    /// The value that is meant to differ, as the refusal names it (`machine.kernel`,
    /// `onewrite_version`); may be repeated
    #[arg(long, value_name = "NAME")]
    subject: Vec<String>,
}

/// Values of the card that do not change the cost of a transaction: the way to the result, and
/// texts. Free space matters only where it is scarce: a file system behaves alike with 20 and with
/// 30 GiB free.
const NO_MATTER: [&str; 11] = [
    "notes",
    "syscalls",
    "syscall_counting",
    "runs",
    "minutes_max",
    "seed",
    "unknown",
    "floor",
    "wear",
    "made_at",
    "command",
];
const FREE_BYTES: &str = ".free_bytes";
/// Below this the file system may be hard put to find space.
const FREE_BYTES_SCARCE: f64 = 1e9;

/// Compares, or says why not.
pub fn run(options: &Compare) -> Result<()> {
    let (a, b) = (read(&options.a)?, read(&options.b)?);
    let shared = shared(&a, &b);
    ensure!(!shared.is_empty(), "the two results have no engine and workload in common");
    let (cards, unknown) = (cards(&a, &b, &shared), unknown(&a, &b));
    for subject in &options.subject {
        ensure!(
            cards.keys().any(|name| under(name, subject)),
            "--subject {subject}: no value of the cards has this name; they are {}",
            cards.keys().cloned().collect::<Vec<_>>().join(", ")
        );
    }
    let differing: Vec<String> = cards
        .iter()
        .filter(|(name, (a, b))| a != b && !options.subject.iter().any(|s| under(name, s)))
        .map(|(name, (a, b))| format!("  {name}: {} and {}", shown(a), shown(b)))
        .collect();
    if !differing.is_empty() {
        bail!(
            "the results are not comparable; these values of their cards differ:\n{}\nIf one of them is what you \
             compare, name it with --subject",
            differing.join("\n")
        );
    }
    let compared = shared.iter().map(|(key, (a, b))| Compared::of(key, (a, b), &shared)).collect::<Result<Vec<_>>>()?;
    print!("{}", told(&compared, &unknown, text::columns()));
    Ok(())
}

/// The text of the terminal.
fn told(compared: &[Compared], unknown: &[String], columns: u16) -> String {
    let heads = ["", "A", "B", "B / A", "interval", "by\nfloors", ""].map(str::to_owned);
    let mut rows: Vec<Vec<String>> = Vec::new();
    for (i, c) in compared.iter().enumerate() {
        if i == 0 || compared[i - 1].engine != c.engine {
            rows.push(vec![c.engine.clone()]);
        }
        rows.push(vec![
            format!(" {}", c.workload),
            c.medians.0.clone(),
            c.medians.1.clone(),
            format!("{:.3}{}", c.ratio.median, if c.ratio.safe { "" } else { "~" }),
            format!("{:.2}-{:.2}", c.ratio.low, c.ratio.high),
            c.by_floor.map_or(String::new(), |r| format!("{:.3}", r.median)),
            c.verdict().to_owned(),
        ]);
    }
    let mut lines = vec!["A, B: transactions per second, or what the figure shows.".to_owned()];
    lines.extend(below(compared));
    if !unknown.is_empty() {
        lines.push(format!("Unknown in both, so it is not known whether they agree: {}.", unknown.join(", ")));
    }
    format!("{}\n{}", text::table(&heads, &rows, columns), text::wrapped(lines, columns))
}

/// A line of the table.
struct Compared {
    workload: String,
    engine: String,
    medians: (String, String),
    ratio: Ratio,
    /// The same after each run of both was divided by the floor's of that run; of the floor itself
    /// nothing.
    by_floor: Option<Ratio>,
}

/// Medians that differ by less are the same.
const SAME: f64 = 1.1;

fn same(ratio: f64) -> bool {
    (1.0 / SAME..=SAME).contains(&ratio)
}

impl Compared {
    fn of(key: &RowKey, (a, b): (&Value, &Value), all: &BTreeMap<RowKey, (&Value, &Value)>) -> Result<Compared> {
        let ratio = Ratio::unpaired(&rates(b)?, &rates(a)?).context("a result without runs")?;
        let shown = |row: &Value| if row["figure"].is_string() { &row["median"] } else { &row["tx_per_s"] }.to_string();
        let floor = all.iter().find(|(other, _)| other.0 == "floor" && other.2 == key.2).filter(|_| key.0 != "floor");
        let by_floor = match floor {
            Some((_, (floor_a, floor_b))) => {
                let divided = |row: &Value, floor: &Value| -> Result<Vec<f64>> {
                    Ok(rates(row)?.iter().zip(rates(floor)?).map(|(row, floor)| row / floor).collect())
                };
                Ratio::unpaired(&divided(b, floor_b)?, &divided(a, floor_a)?)
            }
            None => None,
        };
        let (workload, engine) = (key.2.clone(), format!("{} {}", key.0, key.1));
        Ok(Compared { workload, engine, medians: (shown(a), shown(b)), ratio, by_floor })
    }

    fn verdict(&self) -> &'static str {
        match (same(self.ratio.median), self.by_floor.map(|r| same(r.median))) {
            (true, _) => "within 10 %",
            (false, Some(true)) => "moved with the floor",
            (false, _) => "differs",
        }
    }
}

/// The meaning of the table, in numbers.
fn below(compared: &[Compared]) -> Vec<String> {
    let mut lines = vec![
        "interval: the lower bound of one median over the upper bound of the other, and the reverse, since the two were \
         not measured in turn: drift between them is not in it. ~: not safe to quote (includes 1, wide, few runs)."
            .to_owned(),
    ];
    let count = |is: &dyn Fn(&Compared) -> bool| compared.iter().filter(|c| is(c)).count();
    let mut line =
        format!("{} of {} medians are within 10 % of each other", count(&|c| same(c.ratio.median)), compared.len());
    let by_floor = count(&|c| c.by_floor.is_some());
    if by_floor > 0 {
        let within = count(&|c| c.by_floor.is_some_and(|r| same(r.median)));
        line += &format!("; in units of the floor, {within} of {by_floor}");
        let floors = compared.iter().filter(|c| c.engine.starts_with("floor "));
        let floors: Vec<String> = floors.map(|c| format!("{:.3} ({})", c.ratio.median, c.workload)).collect();
        lines.push(format!(
            "by floors: after each run was divided by the floor's of that run. The floor, which runs no database, is at {} of \
             what it was: what moves with it is the machine, the rest is the engine.",
            floors.join(", ")
        ));
    }
    lines.push(line + ".");
    lines
}

fn read(path: &Path) -> Result<Value> {
    let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
    let value: Value = serde_json::from_str(&text).with_context(|| format!("{} is not JSON", path.display()))?;
    let whole = value["parameters"].is_object() && value["results"].is_array();
    ensure!(whole, "{} is not a result of `onewrite bench --json`", path.display());
    Ok(value)
}

/// Engine, preset, workload, threads.
type RowKey = (String, String, String, u64);

/// Results that both have.
fn shared<'v>(a: &'v Value, b: &'v Value) -> BTreeMap<RowKey, (&'v Value, &'v Value)> {
    let rows = |v: &'v Value| -> BTreeMap<RowKey, &'v Value> {
        let text = |row: &Value, key: &str| row[key].as_str().unwrap_or_default().to_owned();
        let key = |row: &Value| {
            let what = match row["figure"].as_str() {
                Some(figure) => format!("{figure} {}, {}", text(row, "at"), text(row, "metric")),
                None => text(row, "workload"),
            };
            (text(row, "engine"), text(row, "preset"), what, row["threads"].as_u64().unwrap_or(1))
        };
        // A figure may have cells that were not measured.
        let measured = |row: &&Value| row["runs"].as_array().is_none_or(|runs| !runs.is_empty());
        v["results"].as_array().into_iter().flatten().filter(measured).map(|row| (key(row), row)).collect()
    };
    let (a, mut b) = (rows(a), rows(b));
    a.into_iter().filter_map(|(key, row)| b.remove(&key).map(|other| (key, (row, other)))).collect()
}

/// Transactions per second run by run, or the other metric that a figure of the suite `schemes`
/// shows.
fn rates(row: &Value) -> Result<Vec<f64>> {
    let runs = row["tx_per_s_runs"].as_array().or_else(|| row["runs"].as_array());
    let runs = runs.context("a result without its runs")?;
    runs.iter().map(|v| v.as_f64().context("a rate that is no number")).collect()
}

/// Every value that matters, by name, of both cards. Of engines and workloads those that both
/// measured.
fn cards(
    a: &Value,
    b: &Value,
    shared: &BTreeMap<RowKey, (&Value, &Value)>,
) -> BTreeMap<String, (Option<Value>, Option<Value>)> {
    let (mut of_a, mut of_b) = (BTreeMap::new(), BTreeMap::new());
    flatten("", &a["parameters"], &mut of_a);
    flatten("", &b["parameters"], &mut of_b);
    let workloads: BTreeSet<&str> = shared.keys().map(|key| key.2.as_str()).collect();
    let engines: BTreeSet<String> =
        shared.keys().flat_map(|key| [key.0.clone(), format!("{}/{}", key.0, key.1)]).collect();
    // A group's entry `name` is `group.name.field`; engines and workloads may have dots in their
    // names.
    let measured = |name: &str| {
        let entry = |group: &str, is: &dyn Fn(&str) -> bool| name.strip_prefix(group).is_none_or(is);
        // The suite `schemes` has an entry for each engine at each point.
        entry("engines.", &|rest| {
            engines.iter().any(|e| under(rest, e) || rest.strip_prefix(e.as_str()).is_some_and(|r| r.starts_with(' ')))
        }) && entry("workloads.", &|rest| {
            workloads.iter().any(|w| under(rest, w) || rest.strip_prefix(w).is_some_and(|r| r.starts_with(", ")))
        })
    };
    let names: BTreeSet<String> = of_a.keys().chain(of_b.keys()).cloned().collect();
    let mut cards: BTreeMap<_, _> = names
        .into_iter()
        .filter(|name| !NO_MATTER.iter().any(|no| under(name, no)) && !name.ends_with(FREE_BYTES) && measured(name))
        .map(|name| {
            let pair = (of_a.remove(&name), of_b.remove(&name));
            (name, pair)
        })
        .collect();
    // These describe the first workload of a file, which need not be a shared one.
    for name in ["preloaded_rows", "row_bytes", "key_order", "transactions"] {
        cards.remove(name);
    }
    let scarce = |v: &Value| {
        Some(Value::Bool(v["parameters"]["machine"]["free_bytes"].as_f64().is_some_and(|n| n < FREE_BYTES_SCARCE)))
    };
    cards.insert("machine.free space is scarce".to_owned(), (scarce(a), scarce(b)));
    cards
}

/// Leaves by their path. Lists are leaves; unknown values are left out.
fn flatten(path: &str, value: &Value, into: &mut BTreeMap<String, Value>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                flatten(&path, value, into);
            }
        }
        Value::Null => {}
        _ => drop(into.insert(path.to_owned(), value.clone())),
    }
}

fn unknown(a: &Value, b: &Value) -> Vec<String> {
    let of = |v: &Value| -> BTreeSet<String> {
        let names = v["parameters"]["unknown"].as_array().into_iter().flatten();
        names.filter_map(|n| n.as_str().map(str::to_owned)).collect()
    };
    of(a).intersection(&of(b)).cloned().collect()
}

/// Whether `name` is `of` or within it.
fn under(name: &str, of: &str) -> bool {
    name.strip_prefix(of).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

fn shown(value: &Option<Value>) -> String {
    value.as_ref().map_or("unknown".to_owned(), Value::to_string)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_machine_that_changed_is_told_from_an_engine_that_changed() {
        let row = |engine: &str, by: f64| {
            let runs: Vec<f64> = [100.0, 101.0, 99.0, 100.0, 102.0].iter().map(|v| v * by).collect();
            json!({"engine": engine, "preset": "x", "workload": "insert", "threads": 1, "tx_per_s": by, "tx_per_s_runs": runs})
        };
        let file = |engines: [(&str, f64); 3]| json!({"results": engines.map(|(engine, by)| row(engine, by))});
        let a = file([("floor", 10.0), ("same", 5.0), ("worse", 5.0)]);
        let b = file([("floor", 8.0), ("same", 4.0), ("worse", 2.0)]);
        let shared = shared(&a, &b);
        let verdict = |engine: &str| {
            let (key, (a, b)) = shared.iter().find(|(key, _)| key.0 == engine).unwrap();
            Compared::of(key, (a, b), &shared).unwrap().verdict()
        };
        assert_eq!(["floor", "same", "worse"].map(verdict), ["differs", "moved with the floor", "differs"]);
        let all: Vec<Compared> =
            shared.iter().map(|(key, (a, b))| Compared::of(key, (a, b), &shared).unwrap()).collect();
        let told = told(&all, &["FUA".to_owned()], 80);
        assert!(text::width(&told) <= 80 && told.contains("\nworse x\n insert   5.0  2.0  0.400"), "{told}");
        let text = below(&all).join(" ");
        assert!(
            text.contains("0 of 3 medians") && text.contains("1 of 2") && text.contains("0.800 (insert)"),
            "{text}"
        );
    }

    #[test]
    fn values_that_only_one_side_measured_do_not_matter() {
        let row = |engine: &str| json!({"engine": engine, "preset": "x", "workload": "insert", "threads": 1});
        let file = |extra: &str, kernel: Value| {
            json!({
                "parameters": {
                    "engines": {"stock/x": {"page_size": 4096}, extra: {"page_size": extra.len()}},
                    "machine": {"kernel": kernel, "free_bytes": 5_000_000_000u64},
                    "machines": {"stock/x": {"free_bytes": extra.len()}},
                    "notes": [extra],
                },
                "results": [row("stock"), row(extra.trim_end_matches("/x"))],
            })
        };
        let (a, b) = (file("a/x", json!("6.1")), file("bcd/x", Value::Null));
        let shared = shared(&a, &b);
        assert_eq!(shared.len(), 1);
        let cards = cards(&a, &b, &shared);
        let differing: Vec<&String> = cards.iter().filter(|(_, (a, b))| a != b).map(|(name, _)| name).collect();
        assert_eq!(differing, ["machine.kernel"]);
        assert!(cards.contains_key("engines.stock/x.page_size"));
    }
}
