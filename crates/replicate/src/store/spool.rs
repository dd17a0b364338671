//! A file on its way to a server, in a temporary file: a request needs the length first, and may
//! have to be repeated.

use super::Fill;
use anyhow::{Context, Result};
use onewrite_core::environment;
use std::fs::File;
use std::io::{BufReader, BufWriter, ErrorKind, Read, Seek, Write};

/// Bytes that are copied at once.
pub(super) const PART_BYTES: usize = 1 << 18;

/// The contents, and their length.
pub(super) fn spooled(fill: Fill<'_>) -> Result<(File, u64)> {
    let file = tempfile::tempfile_in(environment::temp_dir()).context("cannot make a temporary file")?;
    let mut to = BufWriter::with_capacity(PART_BYTES, &file);
    fill(&mut to)?;
    to.flush().context("cannot write a temporary file")?;
    drop(to);
    let bytes = file.metadata().context("cannot look at a temporary file")?.len();
    Ok((file, bytes))
}

/// Whether `there` has the same contents and no more.
pub(super) fn holds(there: &mut dyn Read, mut file: &File, bytes: u64) -> Result<bool> {
    file.rewind()?;
    let mut here = BufReader::with_capacity(PART_BYTES, file);
    let (mut one, mut other) = (vec![0; 1 << 16], vec![0; 1 << 16]);
    let mut left = bytes;
    while left > 0 {
        let n = usize::try_from(left.min(1 << 16))?;
        let (one, other) = (one.get_mut(..n).unwrap_or_default(), other.get_mut(..n).unwrap_or_default());
        here.read_exact(other)?;
        match there.read_exact(one) {
            Ok(()) if one == other => {}
            Err(e) if e.kind() != ErrorKind::UnexpectedEof => return Err(e.into()),
            _ => return Ok(false),
        }
        left -= n as u64;
    }
    Ok(there.read(&mut [0])? == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contents_are_compared_to_their_end() {
        let text = vec![7; (1 << 16) + 5];
        let (file, bytes) = spooled(&mut |to| Ok(to.write_all(&text)?)).unwrap();
        assert_eq!(bytes, text.len() as u64);
        let holds = |there: &[u8]| holds(&mut &*there, &file, bytes).unwrap();
        assert!(holds(&text));
        let mut other = text.clone();
        *other.last_mut().unwrap() = 8;
        assert!(!holds(&other) && !holds(&text[1..]) && !holds(&[text.clone(), vec![7]].concat()) && !holds(b""));
    }
}
