//! The floor: the time of hardware and file system for one durable 4 KiB overwrite. A commit that
//! survives a power cut cannot cost less than this.

use crate::host;
use crate::numbers::measure::{Section, time_each};
use crate::workload::{SectionStage, Size, WARM_UP};
use anyhow::{Context, Result, ensure};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};

const BLOCK_BYTES: usize = 4096;
/// The file is a ring of this many blocks, overwritten in order as a log would be.
const BLOCKS: usize = 256;

pub fn description() -> String {
    let write = host::DURABLE_WRITE;
    format!("one 4 KiB overwrite of a preallocated file of written zeros with {write}, 256 blocks in turn")
}

/// Overwrites one block per transaction, each with one write that is also the flush.
pub fn run(stage: SectionStage<'_>, size: &Size) -> Result<Section> {
    let path = stage.dir.join("floor");
    let mut file = File::options().read(true).write(true).create_new(true).open(&path)?;
    // Written zeros: the first write to merely reserved blocks would go through the file system's
    // journal.
    file.write_all(&vec![0; BLOCK_BYTES * BLOCKS])?;
    file.sync_all()?;
    let mut block = [0; BLOCK_BYTES];
    for i in 0..WARM_UP {
        overwrite(&file, &mut block, i)?;
    }
    (stage.ready)()?;
    let section = time_each(size.transactions, size.limit, stage.probe, |i| overwrite(&file, &mut block, WARM_UP + i))?;
    let last = WARM_UP + section.transactions - 1;
    file.seek(SeekFrom::Start(((last % BLOCKS) * BLOCK_BYTES) as u64))?;
    file.read_exact(&mut block)?;
    ensure!(block == [stamp(last); BLOCK_BYTES], "floor: the last block does not read back");
    Ok(section)
}

fn overwrite(file: &File, block: &mut [u8; BLOCK_BYTES], i: usize) -> Result<()> {
    block.fill(stamp(i));
    let offset = ((i % BLOCKS) * BLOCK_BYTES) as u64;
    host::write_durable(file, block, offset).with_context(|| format!("floor: {}", host::DURABLE_WRITE))
}

fn stamp(i: usize) -> u8 {
    (i % 251) as u8 + 1
}
