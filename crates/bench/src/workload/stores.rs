//! The bare commit of key-value stores: the rows of the SQL workloads, one durable write
//! transaction for each.

use super::rows::{Rows, StoredRow};
use super::{SectionStage, Size, Workload};
use crate::engines::KeyValueStore;
use crate::numbers::measure::{Section, time_each};
use crate::numbers::random::Random;
use anyhow::{Context, Result, ensure};
use heed::types::Bytes;
use std::collections::BTreeMap;
use std::path::Path;

/// Address space for LMDB; the file is as large as its content.
const MAP_BYTES: usize = 4 << 30;
const TABLE: redb::TableDefinition<'_, u64, &[u8]> = redb::TableDefinition::new("t");

/// The work that both stores can do. `None` deletes; every call is one durable transaction.
trait KeyValue {
    fn write(&self, rows: &[(u64, Option<&[u8]>)]) -> Result<()>;
    fn read_all(&self) -> Result<BTreeMap<u64, Vec<u8>>>;
}

struct Lmdb {
    env: heed::Env,
    table: heed::Database<Bytes, Bytes>,
}

impl Lmdb {
    #[allow(unsafe_code)]
    fn open(dir: &Path) -> Result<Lmdb> {
        // SAFETY: no other program opens the files of this temporary directory, and no flag weakens
        // the commit.
        let env = unsafe { heed::EnvOpenOptions::new().map_size(MAP_BYTES).open(dir) }?;
        let mut txn = env.write_txn()?;
        let table = env.create_database(&mut txn, None)?;
        txn.commit()?;
        Ok(Lmdb { env, table })
    }
}

impl KeyValue for Lmdb {
    fn write(&self, rows: &[(u64, Option<&[u8]>)]) -> Result<()> {
        let mut txn = self.env.write_txn()?;
        for (key, value) in rows {
            match value {
                Some(value) => self.table.put(&mut txn, &key.to_be_bytes(), value)?,
                None => ensure!(self.table.delete(&mut txn, &key.to_be_bytes())?, "no key {key}"),
            }
        }
        Ok(txn.commit()?)
    }

    fn read_all(&self) -> Result<BTreeMap<u64, Vec<u8>>> {
        let txn = self.env.read_txn()?;
        let row = |row: heed::Result<(&[u8], &[u8])>| -> Result<(u64, Vec<u8>)> {
            let (key, value) = row?;
            Ok((u64::from_be_bytes(key.try_into()?), value.to_vec()))
        };
        self.table.iter(&txn)?.map(row).collect()
    }
}

impl KeyValue for redb::Database {
    fn write(&self, rows: &[(u64, Option<&[u8]>)]) -> Result<()> {
        let txn = self.begin_write()?;
        {
            let mut table = txn.open_table(TABLE)?;
            for (key, value) in rows {
                match value {
                    Some(value) => drop(table.insert(key, value)?),
                    None => ensure!(table.remove(key)?.is_some(), "no key {key}"),
                }
            }
        }
        Ok(txn.commit()?)
    }

    fn read_all(&self) -> Result<BTreeMap<u64, Vec<u8>>> {
        use redb::{ReadableDatabase, ReadableTable};
        let txn = self.begin_read()?;
        let table = txn.open_table(TABLE)?;
        let rows = table.iter()?.map(|row| row.map(|(key, value)| (key.value(), value.value().to_vec())));
        Ok(rows.collect::<Result<_, _>>()?)
    }
}

pub fn run(store: KeyValueStore, plan: &Rows, size: &Size, stage: SectionStage<'_>) -> Result<Section> {
    let open = |dir: &Path| -> Result<Box<dyn KeyValue>> {
        Ok(match store {
            KeyValueStore::Lmdb => Box::new(Lmdb::open(dir)?),
            KeyValueStore::Redb => Box::new(redb::Database::create(dir.join("redb"))?),
        })
    };
    let value_of = |(_, seed): StoredRow| {
        let mut value = vec![0; size.row_bytes];
        Random::new(seed).fill(&mut value);
        value
    };
    let db = open(stage.dir)?;
    let write = |rows: &[StoredRow], delete: bool| -> Result<()> {
        let values: Vec<Vec<u8>> = rows.iter().map(|row| value_of(*row)).collect();
        let pairs = rows.iter().zip(&values);
        let changes: Vec<_> = pairs.map(|((key, _), v)| (*key as u64, (!delete).then_some(&v[..]))).collect();
        db.write(&changes)
    };
    write(&plan.preload, false)?;
    plan.warm_up.iter().try_for_each(|row| write(&[*row], false))?;
    let ops = size.ops_per_tx;
    (stage.ready)()?;
    let section = time_each(plan.steps.len() / ops, size.limit, stage.probe, |i| {
        write(&plan.steps[i * ops..(i + 1) * ops], plan.workload == Workload::Delete)
    })?;
    drop(db);
    let found = open(stage.dir)?.read_all()?;
    let wanted = plan.expected(section.transactions * ops);
    ensure!(found.len() == wanted.len(), "{} keys instead of {}", found.len(), wanted.len());
    for (key, seed) in wanted {
        let value = found.get(&(key as u64)).with_context(|| format!("key {key} is missing"))?;
        ensure!(*value == value_of((key, seed)), "key {key} has a value nobody wrote last");
    }
    Ok(section)
}
