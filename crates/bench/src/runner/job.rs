//! A job: the cases and workloads to measure; and its outcome.

use crate::counting::blocks::Blocks;
use crate::counting::device::DeviceCounters;
use crate::counting::simulated::Simulated;
use crate::engines::{BenchEngine, EngineKind};
use crate::numbers::measure::Section;
use crate::parameters::card::Parameters;
use crate::parameters::given::SIZES;
use crate::parameters::options::Common;
use crate::report::Row;
use crate::workload::{Size, Workload};
use anyhow::{Result, bail};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// One line of each group of the table: an engine, and the differences of its surroundings from the
/// other lines.
#[derive(Clone, Debug)]
pub struct Case {
    /// Shown instead of the engine's own names.
    pub label: Option<(String, String)>,
    pub engine: BenchEngine,
    pub rows: Option<usize>,
    pub ops_per_tx: Option<usize>,
    pub threads: Option<usize>,
    /// Measured here instead of in the job's directory.
    pub dir: Option<PathBuf>,
    /// The simulated device that is under `dir`.
    pub simulated: Option<Arc<Simulated>>,
}

impl From<BenchEngine> for Case {
    fn from(engine: BenchEngine) -> Case {
        Case { label: None, engine, rows: None, ops_per_tx: None, threads: None, dir: None, simulated: None }
    }
}

impl Case {
    /// Its name on the card.
    pub fn name(&self) -> String {
        self.label.as_ref().map_or_else(|| self.engine.name(), |(group, value)| format!("{group}/{value}"))
    }

    pub(super) fn size(&self, common: &Common, workload: Workload, limit: Option<Duration>) -> Size {
        let size = common.size(workload, limit);
        Size {
            rows: self.rows.unwrap_or(size.rows),
            ops_per_tx: self.ops_per_tx.unwrap_or(size.ops_per_tx),
            threads: self.threads.unwrap_or(size.threads),
            ..size
        }
    }
}

#[derive(Debug)]
pub struct Job {
    pub common: Common,
    pub cases: Vec<Case>,
    pub workloads: Vec<Workload>,
    /// Leave out engines that are not measured by default for a workload.
    pub defaults_only: bool,
    /// The case that ratios refer to, with its name at the head of the column.
    pub reference: Option<(usize, String)>,
    /// Do each section once more in a process that is traced.
    pub count_calls: bool,
    pub notes: Vec<String>,
}

pub struct MeasuredSection {
    pub section: Section,
    pub device: Option<DeviceCounters>,
    pub blocks: Option<Blocks>,
    /// Zeros by which onewrite's log grew meanwhile.
    pub log_grown_bytes: u64,
    /// Writes of others, as a share of the device's writes during the section.
    pub noise: f64,
}

/// A case's and a workload's number.
pub type SectionKey = (usize, usize);

pub struct RunOutcome {
    pub parameters: Parameters,
    pub rows: Vec<Row>,
    /// Of each row, the block trace of the first run.
    pub traces: Vec<Option<Blocks>>,
    pub reference: String,
    /// Sections that failed, and runs that were interrupted, with the reasons.
    pub failed: Vec<String>,
}

impl RunOutcome {
    /// The error of a measurement of which a part failed, once the rest is told.
    pub fn whole(&self) -> Result<()> {
        if self.failed.is_empty() { Ok(()) } else { bail!("a part failed: {}", self.failed.join("; ")) }
    }
}

impl Job {
    /// The numbers of the cases that do workload number `w`.
    pub fn cases_of(&self, w: usize) -> impl Iterator<Item = usize> {
        let workload = self.workloads[w];
        let does = move |e: &BenchEngine| workload.suits(e) && (!self.defaults_only || workload.is_default_of(e));
        (0..self.cases.len()).filter(move |c| does(&self.cases[*c].engine))
    }

    /// The size a section of this case should have.
    pub fn size(&self, case: usize, workload: usize) -> Size {
        self.cases[case].size(&self.common, self.workloads[workload], None)
    }

    pub fn position(&self, is: impl Fn(&BenchEngine) -> bool) -> Option<usize> {
        self.cases.iter().position(|c| is(&c.engine))
    }

    pub fn floor(&self) -> Option<usize> {
        self.position(|e| e.kind == EngineKind::Floor)
    }

    /// Refuses sizes that no workload or engine of the job heeds; those that only some heed are a
    /// note.
    pub(super) fn check_sizes(&self) -> Result<Vec<String>> {
        let mut notes = Vec::new();
        for option in SIZES.iter().filter(|option| self.common.given.any(&[option])) {
            let names = |of: Vec<Workload>| of.into_iter().map(Workload::name).collect::<Vec<_>>().join(", ");
            let (heed, pass_over): (Vec<Workload>, Vec<Workload>) =
                self.workloads.iter().partition(|w| w.heeds(option));
            if heed.is_empty() {
                let all = Workload::all().into_iter().filter(|w| w.heeds(option)).collect();
                bail!("{option} would change nothing in {}; it concerns {}", names(pass_over), names(all));
            }
            if !pass_over.is_empty() {
                notes.push(format!("{option} does not concern {}", names(pass_over)));
            }
            let stores: Vec<String> = self.cases.iter().filter(|c| c.engine.has_no_sql()).map(|c| c.name()).collect();
            match *option {
                "--wal-start" if !self.cases.iter().any(|c| c.engine.is_stock_wal()) => {
                    bail!("--wal-start concerns stock SQLite in WAL mode, and none is measured");
                }
                "--indexes" if stores.len() == self.cases.len() => {
                    bail!("--indexes concerns tables of SQLite, and none is measured");
                }
                "--indexes" if !stores.is_empty() => {
                    notes.push(format!("--indexes does not concern {}", stores.join(", ")));
                }
                _ => {}
            }
        }
        Ok(notes)
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::parameters::card::tests::parameters;

    /// Of these rows, without a trace.
    pub fn outcome(rows: Vec<Row>, reference: &str) -> RunOutcome {
        RunOutcome {
            parameters: parameters(),
            traces: rows.iter().map(|_| None).collect(),
            rows,
            reference: reference.to_owned(),
            failed: Vec::new(),
        }
    }
}
