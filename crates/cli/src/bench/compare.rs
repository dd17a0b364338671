//! `onewrite bench compare`: two results side by side, if their parameter cards allow it.

use super::stats::Ratio;
use anyhow::{Context, Result, bail, ensure};
use comfy_table::{CellAlignment, Table, TableStyle};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Compare two files of --json; refuse where their cards differ in a value that matters
#[derive(Debug, clap::Args)]
pub struct Compare {
    /// The result to compare with
    a: PathBuf,
    /// The result to compare
    b: PathBuf,
    /// The value that is meant to differ, as the refusal names it (`machine.kernel`, `onewrite_version`); may be
    /// repeated
    #[arg(long, value_name = "NAME")]
    subject: Vec<String>,
}

/// Values of the card that do not change what a transaction costs: how the result was come by, and texts. Free
/// space matters only where it is scarce; a file system behaves alike with 20 and with 30 GiB free.
const NO_MATTER: [&str; 9] =
    ["notes", "syscalls", "syscall_counting", "runs", "runs_asked", "seed", "unknown", "floor", "wear"];
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
    let mut t = Table::new();
    t.load_style(TableStyle::new());
    t.set_header(["workload", "engine", "A tx/s", "B tx/s", "B / A", "interval", ""]);
    for (key, (a, b)) in &shared {
        let ratio = Ratio::unpaired(&rates(b)?, &rates(a)?).context("a result without runs")?;
        t.add_row([
            key.2.clone(),
            format!("{} {}", key.0, key.1),
            a["tx_per_s"].to_string(),
            b["tx_per_s"].to_string(),
            format!("{:.3}", ratio.median),
            format!("{:.3} to {:.3}", ratio.low, ratio.high),
            if ratio.safe { "" } else { "~" }.to_owned(),
        ]);
    }
    for column in t.column_iter_mut().skip(2) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    println!("{t}");
    println!(
        "interval: the lower bound of one median over the upper bound of the other, and the reverse, since the two were"
    );
    println!(
        "not measured in turn: drift between them is not in it. ~: not safe to quote (includes 1, wide, few runs)."
    );
    if !unknown.is_empty() {
        println!("Unknown in both, so nobody can say whether they agree: {}.", unknown.join(", "));
    }
    Ok(())
}

fn read(path: &Path) -> Result<Value> {
    let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
    let value: Value = serde_json::from_str(&text).with_context(|| format!("{} is not JSON", path.display()))?;
    let whole = value["parameters"].is_object() && value["results"].is_array();
    ensure!(whole, "{} is not a result of `onewrite bench --json`", path.display());
    Ok(value)
}

/// Engine, preset, workload, threads.
type Key = (String, String, String, u64);

/// Results that both have.
fn shared<'v>(a: &'v Value, b: &'v Value) -> BTreeMap<Key, (&'v Value, &'v Value)> {
    let rows = |v: &'v Value| -> BTreeMap<Key, &'v Value> {
        let text = |row: &Value, key: &str| row[key].as_str().unwrap_or_default().to_owned();
        let key = |row: &Value| {
            (text(row, "engine"), text(row, "preset"), text(row, "workload"), row["threads"].as_u64().unwrap_or(1))
        };
        v["results"].as_array().into_iter().flatten().map(|row| (key(row), row)).collect()
    };
    let (a, mut b) = (rows(a), rows(b));
    a.into_iter().filter_map(|(key, row)| b.remove(&key).map(|other| (key, (row, other)))).collect()
}

fn rates(row: &Value) -> Result<Vec<f64>> {
    let runs = row["tx_per_s_runs"].as_array().context("a result without tx_per_s_runs")?;
    runs.iter().map(|v| v.as_f64().context("a rate that is no number")).collect()
}

/// Every value that matters, by name, of both cards. Of engines and workloads those that both measured.
fn cards(
    a: &Value,
    b: &Value,
    shared: &BTreeMap<Key, (&Value, &Value)>,
) -> BTreeMap<String, (Option<Value>, Option<Value>)> {
    let (mut of_a, mut of_b) = (BTreeMap::new(), BTreeMap::new());
    flatten("", &a["parameters"], &mut of_a);
    flatten("", &b["parameters"], &mut of_b);
    let workloads: BTreeSet<&str> = shared.keys().map(|key| key.2.as_str()).collect();
    let engines: BTreeSet<String> =
        shared.keys().flat_map(|key| [key.0.clone(), format!("{}/{}", key.0, key.1)]).collect();
    // A group's entry `name` is `group.name.field`; engines and workloads may have dots in their names.
    let measured = |name: &str| {
        let entry = |group: &str, is: &dyn Fn(&str) -> bool| name.strip_prefix(group).is_none_or(is);
        entry("engines.", &|rest| engines.iter().any(|e| under(rest, e)))
            && entry("workloads.", &|rest| {
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
    fn values_of_what_only_one_measured_do_not_matter() {
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
