//! The databases that sections begin with: made once by stock SQLite, as fast as it can, and copied
//! for each section. So every engine begins with the same file to the byte, and 2 million rows are
//! loaded once.

use super::rows::{Binder, Rows, schema, sql};
use super::{Plan, Size, Workload};
use crate::engines::sql::{Db, Libraries};
use crate::engines::{self, BenchEngine};
use anyhow::{Context, Result};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// SQLite's cache while rows are loaded in the order of their random keys: all pages should fit.
const CACHE_KIB_MIN: usize = 256 << 10;
const CACHE_KIB_MAX: usize = 4 << 20;

/// All that a database depends on: rows, their bytes, indexes, seed, pragmas of the file.
type OriginalKey = (usize, usize, usize, u64, Vec<(String, String)>);

#[derive(Debug)]
pub struct Originals {
    dir: tempfile::TempDir,
    made: BTreeMap<OriginalKey, PathBuf>,
}

impl Originals {
    /// Kept in a directory of their own inside `parent`.
    pub fn in_dir(parent: &Path) -> Result<Originals> {
        let dir = tempfile::Builder::new().prefix("onewrite-bench-").tempdir_in(parent);
        let dir = dir.with_context(|| format!("no temporary directory in {}", parent.display()))?;
        Ok(Originals { dir, made: BTreeMap::new() })
    }

    /// The one that a section of this plan begins with; `None` of a plan or an engine that makes
    /// its own.
    pub fn of(
        &mut self,
        libraries: &Libraries,
        engine: &BenchEngine,
        plan: &Plan,
        size: &Size,
    ) -> Result<Option<PathBuf>> {
        let Plan::Rows(rows) = plan else { return Ok(None) };
        if engine.has_no_sql() {
            return Ok(None);
        }
        let key = (rows.preload.len(), size.row_bytes, size.indexes, rows.seed, of_the_file(engine));
        if let Some(path) = self.made.get(&key) {
            return Ok(Some(path.clone()));
        }
        let path = self.dir.path().join(format!("{}.db", self.made.len()));
        make(libraries, engine, rows, size, &path)?;
        self.made.insert(key, path.clone());
        Ok(Some(path))
    }
}

/// The engine's pragmas that a file remembers.
fn of_the_file(engine: &BenchEngine) -> Vec<(String, String)> {
    engine.pragmas.iter().filter(|(name, _)| name == "page_size" || name == "auto_vacuum").cloned().collect()
}

/// Makes `path`, by random keys in one transaction that nothing protects: the B-tree is as inserts
/// leave it, not packed.
pub fn make(libraries: &Libraries, engine: &BenchEngine, plan: &Rows, size: &Size, path: &Path) -> Result<()> {
    let c = engines::open_stock(libraries, path)?;
    for (name, value) in of_the_file(engine) {
        c.execute_batch(&format!("PRAGMA {name} = {value}"))?;
    }
    let row_bytes = size.row_bytes + 32 + 32 * size.indexes;
    let cache_kib = (plan.preload.len() * row_bytes * 2 / 1024).clamp(CACHE_KIB_MIN, CACHE_KIB_MAX);
    c.execute_batch(&format!(
        "PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; PRAGMA locking_mode = EXCLUSIVE; \
         PRAGMA cache_size = -{cache_kib}"
    ))?;
    load(&c, plan, size)?;
    c.close()
}

fn load(c: &Db, plan: &Rows, size: &Size) -> Result<()> {
    c.execute_batch("BEGIN")?;
    c.execute_batch(&schema(size.indexes))?;
    {
        let mut row = Binder::new(size);
        let mut insert = c.prepare(&sql(Workload::Insert, size.indexes))?;
        for preload in &plan.preload {
            row.execute(&mut insert, *preload)?;
        }
    }
    c.execute_batch("COMMIT")
}

#[cfg(test)]
mod tests {
    use super::super::tests::SIZE;
    use super::*;
    use crate::workload::rows::verify;

    #[test]
    fn a_database_is_made_once_and_holds_its_rows() {
        let dir = tempfile::tempdir().unwrap();
        let libraries = Libraries::load([]).unwrap();
        let mut originals = Originals::in_dir(dir.path()).unwrap();
        let size = Size { indexes: 2, ..SIZE };
        let mut of = |workload, engine: &BenchEngine, run| {
            let plan = Plan::draw(workload, &size, 9, run).unwrap();
            (originals.of(&libraries, engine, &plan, &size).unwrap(), plan)
        };
        let all = engines::all();
        let (update, plan) = of(Workload::Update, &all[0], 0);
        let Plan::Rows(rows) = &plan else { panic!("rows") };
        let mut rows = rows.preload.clone();
        rows.sort_unstable();
        verify(&libraries, update.as_deref().unwrap(), &rows, &size).unwrap();
        // Another run, workload and engine begin with the same; another page size does not.
        assert_eq!(of(Workload::Insert, &all[3], 1).0, update);
        let mut large = all[0].clone();
        large.pragmas.push(("page_size".to_owned(), "8192".to_owned()));
        assert_ne!(of(Workload::Update, &large, 0).0, update);
        let floor = all.iter().find(|e| e.has_no_sql()).unwrap();
        assert_eq!(of(Workload::Update, floor, 0).0, None);
    }
}
