//! `onewrite bench sweep`: one parameter at a time around a default, in one interleaved run.

use super::images;
use crate::engines::sql;
use crate::engines::{self, BenchEngine, EngineKind};
use crate::files::OutputFiles;
use crate::parameters::options::Common;
use crate::runner::{self, Case, Job};
use crate::workload::{Workload, WorkloadSelection};
use anyhow::{Context, Result, bail, ensure};
use clap::ValueEnum;
use onewrite_device::FileSystem;
use std::path::PathBuf;
use std::sync::Arc;

/// Vary one parameter and measure each of its values against the default
///
/// The published study's figures, one each:
///
///     onewrite bench sweep journal_mode --rows 100000
///     onewrite bench sweep synchronous --rows 100000
///     onewrite bench sweep synchronous --rows 100000 --engine stock/wal-full
///     onewrite bench sweep wal_size --rows 100000
///     onewrite bench sweep rows
///     onewrite bench sweep fs --engine stock/delete        (as root)
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub struct SweepOptions {
    /// The setting to vary
    #[arg(value_enum)]
    parameter: Parameter,
    /// The engine that everything else is taken from [default: stock/delete; stock/wal-full for
    /// wal_size]
    #[arg(long, value_name = "ENGINE/PRESET")]
    engine: Option<String>,
    /// The values, instead of those it has for the parameter; sizes in bytes
    #[arg(long, value_name = "VALUE,VALUE", value_delimiter = ',')]
    values: Vec<String>,
    /// Workloads [default: insert, update, delete; tabs for threads]; may be repeated
    #[arg(long, value_name = "NAME")]
    workload: Vec<WorkloadSelection>,
    /// Use the SQLite of this libsqlite3.so
    #[arg(long, value_name = "FILE")]
    library: Option<PathBuf>,
    /// Size of each image of a file system
    #[arg(long, value_name = "MIB", default_value_t = 512, value_parser = clap::value_parser!(u64).range(320..=65536))]
    image_mib: u64,
    #[command(flatten)]
    pub common: Common,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
enum Parameter {
    /// delete, truncate, persist, memory, off, wal
    JournalMode,
    /// off, normal, full, extra
    Synchronous,
    /// Bytes after which the WAL is checkpointed, and to which it is cut back
    WalSize,
    /// Bytes of a database page
    PageSize,
    /// Bytes of SQLite's page cache
    CacheSize,
    /// Rows before the transactions; 0: only those that they touch
    Rows,
    /// File systems on loop images, or with --device on simulated devices: ext4 with data=ordered,
    /// writeback and journal, xfs, btrfs, f2fs
    Fs,
    /// Rows that a transaction touches
    OpsPerTx,
    /// Threads, each with a connection
    Threads,
}

impl Parameter {
    /// Its values, and which of them is the default.
    fn values(self) -> (&'static [&'static str], &'static str) {
        match self {
            Parameter::JournalMode => (&["delete", "truncate", "persist", "memory", "off", "wal"], "delete"),
            Parameter::Synchronous => (&["off", "normal", "full", "extra"], "full"),
            Parameter::WalSize => {
                (&["65536", "131072", "262144", "524288", "1048576", "4194304", "16777216"], "4194304")
            }
            Parameter::PageSize => (&["512", "1024", "4096", "8192", "16384", "65536"], "4096"),
            Parameter::CacheSize => (&["65536", "262144", "2048000", "16777216"], "2048000"),
            Parameter::Rows => (&["0", "1000", "10000", "100000"], "0"),
            Parameter::Fs => (&images::NAMES, "ext4-ordered"),
            Parameter::OpsPerTx => (&["1", "2", "5", "10", "50"], "1"),
            Parameter::Threads => (&["1", "2", "4", "8"], "1"),
        }
    }
}

pub fn run(options: &SweepOptions) -> Result<()> {
    let parameter = options.parameter;
    let name = parameter.to_possible_value().map(|v| v.get_name().to_owned()).unwrap_or_default();
    let (all, default) = parameter.values();
    let values: Vec<String> = match &options.values[..] {
        [] => all.iter().map(|v| (*v).to_owned()).collect(),
        given => given.to_vec(),
    };
    refuse(options, &name)?;
    let files = OutputFiles::create(&options.common)?;
    let engine = engine(options)?;
    ensure!(engine.library.is_some() || !engine.is_onewrite() || engines::register_onewrite().is_ok(), "no onewrite");
    let mut notes = vec![format!("everything but {name} as in {}", engine.name())];
    let mut cases = Vec::new();
    // Unmounted when they go, after the last measurement.
    let mut mounted = Vec::new();
    for value in &values {
        let mut case = Case { label: Some((name.clone(), value.clone())), ..Case::from(engine.clone()) };
        if parameter == Parameter::Fs {
            match place(&mut case, value, options) {
                Ok(image) => mounted.extend(image),
                Err(reason) => {
                    notes.push(format!("{value} was left out: {reason:#}"));
                    continue;
                }
            }
        } else {
            set(&mut case, parameter, value).with_context(|| format!("{name} {value}"))?;
        }
        cases.push(case);
    }
    if cases.is_empty() {
        bail!("nothing to measure: {}", notes.join("; "));
    }
    let workloads = match &options.workload[..] {
        [] if parameter == Parameter::Threads => vec!["tabs".parse().map_err(anyhow::Error::msg)?],
        [] => Workload::DEFAULT.to_vec(),
        asked => WorkloadSelection::all(asked),
    };
    if parameter == Parameter::Threads {
        ensure!(workloads.iter().all(|w| w.has_threads()), "only the workload tabs has threads");
    }
    if parameter == Parameter::OpsPerTx {
        ensure!(workloads.iter().all(|w| w.is_one_row()), "only insert, update and delete vary in operations");
    }
    let is_default = |c: &Case| c.label.as_ref().is_some_and(|(_, value)| value == default);
    let reference = cases.iter().position(is_default).unwrap_or(0);
    let shown = cases[reference].label.as_ref().map(|(_, value)| value.clone()).unwrap_or_default();
    let common = options.common.clone();
    let job = Job {
        common,
        cases,
        workloads,
        defaults_only: false,
        reference: Some((reference, shown)),
        count_calls: true,
        notes,
    };
    let outcome = runner::run(job)?;
    drop(mounted);
    files.finish(&options.common, &outcome)
}

/// Puts `case` on the file system `value`: of a simulated device, or of an image.
fn place(case: &mut Case, value: &str, options: &SweepOptions) -> Result<Option<images::MountedImage>> {
    if options.common.simulated.device.is_some() {
        if value == "f2fs" {
            bail!("simulated devices have no F2FS; without --device it is measured on a loop image");
        }
        let fs = value.parse::<FileSystem>().map_err(anyhow::Error::msg)?;
        let simulated = options.common.simulated.start(Some(fs))?.map(Arc::new);
        case.dir = simulated.as_ref().map(|s| s.dir().to_owned());
        case.simulated = simulated;
        return Ok(None);
    }
    let parent = options.common.dir.clone().unwrap_or_else(|| PathBuf::from("."));
    let image = images::MountedImage::mount(value, &parent, options.image_mib)?;
    case.dir = Some(image.point());
    Ok(Some(image))
}

/// The varied setting is not given, and images are for sweeps over file systems alone.
fn refuse(options: &SweepOptions, name: &str) -> Result<()> {
    let (given, parameter) = (&options.common.given, options.parameter);
    ensure!(!given.any(&["--svg"]), "--svg would change nothing in a sweep: the picture compares engines");
    let varied = match parameter {
        Parameter::Rows => "--rows",
        Parameter::Fs => "--fs",
        Parameter::OpsPerTx => "--ops-per-tx",
        Parameter::Threads => "--threads",
        _ => "",
    };
    ensure!(!given.any(&[varied]), "{varied} is what `sweep {name}` varies; give the values with --values");
    let images = parameter == Parameter::Fs && options.common.simulated.device.is_none();
    ensure!(
        images || !given.any(&["--image-mib"]),
        "--image-mib would change nothing: only `sweep fs` makes images, and with --device none (--device-mib)"
    );
    Ok(())
}

fn engine(options: &SweepOptions) -> Result<BenchEngine> {
    let mut choices = engines::all();
    if let Some(path) = &options.library {
        let path = std::fs::canonicalize(path).with_context(|| path.display().to_string())?;
        let library = sql::Library::load(&path)?;
        choices.retain(|e| matches!(e.kind, EngineKind::Stock { .. }));
        choices.iter_mut().for_each(|e| e.library = Some(path.clone()));
        drop(library);
    }
    let usual = if options.parameter == Parameter::WalSize { "stock/wal-full" } else { "stock/delete" };
    let name = options.engine.as_deref().unwrap_or(usual);
    engines::named(name, &choices).map_err(anyhow::Error::msg).context("--engine")
}

/// Makes `case` differ from its engine in this value.
fn set(case: &mut Case, parameter: Parameter, value: &str) -> Result<()> {
    let number = || value.parse::<usize>().context("is not a number");
    let pragma = |case: &mut Case, name: &str, value: String| case.engine.pragmas.push((name.to_owned(), value));
    let pragmas = [Parameter::WalSize, Parameter::PageSize, Parameter::CacheSize].contains(&parameter);
    ensure!(!pragmas || !case.engine.has_no_sql(), "only SQLite has it, and {} is none", case.engine.name());
    match parameter {
        Parameter::JournalMode | Parameter::Synchronous => {
            let EngineKind::Stock { journal_mode, synchronous } = &case.engine.kind else {
                bail!("only stock SQLite has it, and {} is not stock", case.engine.name());
            };
            let (mut mode, mut level) = (journal_mode.clone(), *synchronous);
            if parameter == Parameter::JournalMode {
                let (modes, _) = parameter.values();
                ensure!(modes.contains(&value), "choose from {}", modes.join(", "));
                mode = value.to_owned();
            } else {
                let (levels, _) = parameter.values();
                let found = levels.iter().position(|l| *l == value);
                level = found.with_context(|| format!("choose from {}", levels.join(", ")))? as i64;
            }
            let stock = engines::stock(&case.engine.preset, &mode, level);
            (case.engine.kind, case.engine.caveat) = (stock.kind, stock.caveat);
        }
        Parameter::WalSize => {
            ensure!(case.engine.is_stock_wal(), "only stock SQLite in WAL mode has it");
            // A frame is a page and 24 bytes, after a header of 32.
            let pages = (number()? / (4096 + 24)).max(1);
            pragma(case, "wal_autocheckpoint", pages.to_string());
            pragma(case, "journal_size_limit", value.to_owned());
        }
        Parameter::PageSize => pragma(case, "page_size", number()?.to_string()),
        Parameter::CacheSize => pragma(case, "cache_size", format!("-{}", number()?.div_ceil(1024))),
        Parameter::Rows => case.rows = Some(number()?),
        Parameter::OpsPerTx => case.ops_per_tx = Some(number()?.max(1)),
        Parameter::Threads => case.threads = Some(number()?.clamp(1, 64)),
        Parameter::Fs => {}
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_become_settings() {
        let wal = engines::stock("wal-full", "wal", 2);
        let mut case = Case::from(wal.clone());
        set(&mut case, Parameter::WalSize, "65536").unwrap();
        assert!(case.engine.pragmas.contains(&("wal_autocheckpoint".to_owned(), "15".to_owned())));
        let mut case = Case::from(wal);
        set(&mut case, Parameter::Synchronous, "off").unwrap();
        assert!(case.engine.caveat.unwrap().contains("corrupt"));
        let mut case = Case::from(engines::stock("delete", "delete", 2));
        assert!(set(&mut case, Parameter::WalSize, "65536").is_err());
        assert!(set(&mut case, Parameter::JournalMode, "wall").unwrap_err().to_string().contains("truncate"));
        set(&mut case, Parameter::Rows, "77").unwrap();
        assert_eq!(case.rows, Some(77));
    }

    #[test]
    fn every_default_is_among_the_values() {
        for parameter in Parameter::value_variants() {
            let (values, default) = parameter.values();
            assert!(values.contains(&default), "{parameter:?}");
        }
    }
}
