//! The suite `commit`: the cost of one durable commit, engine by engine.

use crate::engines::{self, sql};
use crate::files::OutputFiles;
use crate::host::Mount;
use crate::parameters::card;
use crate::parameters::suite::SuiteOptions;
use crate::runner::{self, Case, Job};
use crate::workload::{Workload, WorkloadSelection};
use anyhow::{Context, Result, bail};
use std::path::PathBuf;

/// The suite `commit`: measures, prints the table and its card, and writes the files asked for.
pub fn run(args: &SuiteOptions) -> Result<()> {
    let files = OutputFiles::create(&args.common)?;
    let outcome = runner::run(job(args)?)?;
    files.finish(&args.common, &outcome)
}

/// The job that the options of the suite `commit` ask for.
fn job(args: &SuiteOptions) -> Result<Job> {
    let mut notes = Vec::new();
    let workloads: Vec<Workload> = match &args.workload[..] {
        [] => Workload::DEFAULT.to_vec(),
        asked => WorkloadSelection::all(asked),
    };
    let mut choices = engines::all();
    for path in &args.library {
        let path = std::fs::canonicalize(path).with_context(|| path.display().to_string())?;
        let library = sql::Library::load(&path)?;
        choices.extend(engines::of_library(&path, library.has_vfs("onewrite")));
    }
    for engine in choices.iter_mut().filter(|e| matches!(e.kind, engines::EngineKind::Store(_))) {
        engine.default = args.peers;
    }
    if args.peers {
        notes.push(batch_atomic(args)?);
    }
    let named = args.only.iter().map(|name| engines::named(name, &choices).map_err(anyhow::Error::msg));
    let named = named.collect::<Result<Vec<_>>>().context("--only")?;
    let mut engines: Vec<engines::BenchEngine> = match &named[..] {
        [] => choices.into_iter().filter(|e| workloads.iter().any(|w| w.suits(e) && w.is_default_of(e))).collect(),
        named => choices.into_iter().filter(|e| named.contains(e)).collect(),
    };
    if let Some(idle) = engines.iter().find(|e| !workloads.iter().any(|w| w.suits(e))) {
        let its: Vec<_> = Workload::all().into_iter().filter(|w| w.suits(idle)).map(Workload::name).collect();
        bail!("{} has none of these workloads; give --workload one of {}", idle.name(), its.join(", "));
    }
    let wanted = engines.iter().any(|e| e.is_onewrite() && e.library.is_none());
    if let Some(reason) = wanted.then(engines::register_onewrite).and_then(Result::err) {
        if !args.only.is_empty() {
            bail!("onewrite cannot be measured: {reason}");
        }
        engines.retain(|e| !e.is_onewrite());
        notes.push(format!("onewrite was left out: {reason}"));
    }
    let reference = engines.iter().position(engines::is_reference).map(|c| (c, "WAL/FULL".to_owned()));
    Ok(Job {
        common: args.common.clone(),
        cases: engines.into_iter().map(Case::from).collect(),
        workloads,
        defaults_only: args.only.is_empty(),
        reference,
        count_calls: true,
        notes,
    })
}

/// Whether SQLite can commit with batch-atomic writes here, in words.
fn batch_atomic(args: &SuiteOptions) -> Result<String> {
    let dir = args.common.dir.clone().unwrap_or_else(|| PathBuf::from("."));
    let dir = std::fs::canonicalize(&dir).with_context(|| dir.display().to_string())?;
    let file_system = Mount::of(&dir).map_or("this file system".to_owned(), |m| m.fs_type);
    let (_, options) = card::sqlite()?;
    let built = options.iter().any(|o| o == "ENABLE_BATCH_ATOMIC_WRITE");
    Ok(match (file_system == "f2fs", built) {
        (true, true) => "batch-atomic writes: F2FS has them, and stock's rollback modes use them".to_owned(),
        (true, false) => "batch-atomic writes: F2FS has them, the SQLite in this program is built without; give a \
                          --library built with SQLITE_ENABLE_BATCH_ATOMIC_WRITE"
            .to_owned(),
        (false, _) => format!("batch-atomic writes are not measured: {file_system} has none, only F2FS does"),
    })
}
