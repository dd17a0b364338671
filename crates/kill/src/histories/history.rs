//! The history of a client: a file of lines. It grows by one `write` at the beginning and the end
//! of each transaction, so a killed process leaves all that it told.
//!
//! | line | says |
//! |---|---|
//! | `I TIME MODE FILE.KEY+VALUE ...` | a transaction begins, and will append these |
//! | `O TIME STEP ...` | it is committed; `FILE.KEY+VALUE` appended, `FILE.KEY?VALUES` read |
//! | `F TIME WHY` | it is rolled back |
//! | `V TIME WHY` | the client saw a violation |
//!
//! Times are nanoseconds of the clock that all processes of the machine share. A value is
//! eight characters.

use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result, bail};
use onewrite_core::disk;

use super::judge::{List, Outcome, Step, Transaction, Value};

/// Characters of a value.
pub const VALUE_LEN: usize = 8;
const DIGITS: &[u8; 64] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz-";

/// How a transaction begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// One statement without BEGIN.
    Autocommit,
    Deferred,
    Immediate,
}

impl Mode {
    fn letter(self) -> char {
        match self {
            Mode::Autocommit => 'a',
            Mode::Deferred => 'd',
            Mode::Immediate => 'i',
        }
    }
}

/// Now, in nanoseconds of the clock that all processes share.
pub fn now() -> Result<u64> {
    Ok(u64::try_from(disk::system::clock().as_nanos())?)
}

/// The eight characters of a value below 2^48.
pub fn text_of(value: Value) -> String {
    (0..VALUE_LEN).rev().map(|at| char::from(DIGITS[(value >> (6 * at)) as usize & 63])).collect()
}

/// The values of a list as it is stored.
pub fn values_of(text: &[u8]) -> Result<Vec<Value>> {
    let (values, rest) = text.as_chunks::<VALUE_LEN>();
    if !rest.is_empty() {
        bail!("a list of {} bytes ends within a value", text.len());
    }
    values.iter().map(value_of).collect()
}

fn value_of(text: &[u8; VALUE_LEN]) -> Result<Value> {
    text.iter().try_fold(0, |value, character| {
        let digit = match character {
            b'0'..=b'9' => character - b'0',
            b'A'..=b'Z' => character - b'A' + 10,
            b'_' => 36,
            b'a'..=b'z' => character - b'a' + 37,
            b'-' => 63,
            _ => bail!("{:?} is no value", String::from_utf8_lossy(text)),
        };
        Ok(value << 6 | u64::from(digit))
    })
}

/// A step as the client did it; a read has the list as it was stored.
#[derive(Clone, Debug)]
pub enum Did {
    Append(List, Value),
    Read(List, Vec<u8>),
}

/// Where a client tells its transactions.
pub struct Told {
    file: File,
    line: String,
}

impl Told {
    pub fn create(path: &Path) -> Result<Told> {
        let file = OpenOptions::new().append(true).create_new(true).open(path);
        Ok(Told { file: file.with_context(|| path.display().to_string())?, line: String::new() })
    }

    fn write(&mut self, kind: char, rest: impl FnOnce(&mut String) -> std::fmt::Result) -> Result<()> {
        self.line.clear();
        write!(self.line, "{kind} {}", now()?)?;
        rest(&mut self.line)?;
        self.line.push('\n');
        Ok(self.file.write_all(self.line.as_bytes())?)
    }

    pub fn begins(&mut self, mode: Mode, appends: impl Iterator<Item = (List, Value)>) -> Result<()> {
        self.write('I', |line| {
            write!(line, " {}", mode.letter())?;
            appends.into_iter().try_for_each(|(list, value)| write!(line, " {list}+{}", text_of(value)))
        })
    }

    pub fn committed(&mut self, did: &[Did]) -> Result<()> {
        self.write('O', |line| {
            did.iter().try_for_each(|step| match step {
                Did::Append(list, value) => write!(line, " {list}+{}", text_of(*value)),
                Did::Read(list, text) => write!(line, " {list}?{}", String::from_utf8_lossy(text)),
            })
        })
    }

    pub fn rolled_back(&mut self, why: &str) -> Result<()> {
        self.write('F', |line| write!(line, " {}", why.replace('\n', " ")))
    }

    pub fn wrong(&mut self, why: &str) -> Result<()> {
        self.write('V', |line| write!(line, " {}", why.replace('\n', " ")))
    }
}

/// A history that was read.
#[derive(Default)]
pub struct Read {
    pub transactions: Vec<Transaction>,
    /// The file of each, and the number of its line there.
    pub from: Vec<(u32, u32)>,
    pub files: Vec<String>,
    /// Violations that clients saw.
    pub wrong: Vec<String>,
}

impl Read {
    /// Adds the history of a client. The last line of one that was killed may be cut.
    pub fn add(&mut self, path: &Path) -> Result<()> {
        let text = std::fs::read(path)?;
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let file = u32::try_from(self.files.len())?;
        self.files.push(name.clone());
        let whole = text.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        let text = String::from_utf8_lossy(text.get(..whole).unwrap_or_default());
        for (number, line) in text.lines().enumerate() {
            let number = u32::try_from(number)? + 1;
            self.line(line, (file, number)).with_context(|| format!("line {number} of {name}"))?;
        }
        Ok(())
    }

    fn line(&mut self, line: &str, from: (u32, u32)) -> Result<()> {
        let mut words = line.split(' ');
        let kind = words.next().unwrap_or_default();
        let time = words.next().context("no time")?.parse()?;
        if kind == "V" {
            self.wrong.push(format!("{}: {line}", self.files.last().map_or("", String::as_str)));
            return Ok(());
        }
        if kind == "I" {
            let mode = words.next().context("no mode")?;
            let steps = words.map(step).collect::<Result<_>>()?;
            let (outcome, completed) = (Outcome::Unknown, u64::MAX);
            self.transactions.push(Transaction { invoked: time, completed, outcome, holds_all: mode == "i", steps });
            self.from.push(from);
            return Ok(());
        }
        let last = self.transactions.last_mut().context("an end without a beginning")?;
        last.completed = time;
        match kind {
            "O" => {
                last.outcome = Outcome::Ok;
                last.steps = words.map(step).collect::<Result<_>>()?;
            }
            "F" => last.outcome = Outcome::Failed,
            _ => bail!("{kind:?} is none of I, O, F, V"),
        }
        Ok(())
    }
}

fn step(word: &str) -> Result<Step> {
    let at = word.find(['+', '?']).context("no step")?;
    let (list, rest) = word.split_at(at);
    let (file, key) = list.split_once('.').context("no list")?;
    let list = List { file: file.parse()?, key: key.parse()? };
    let values = values_of(rest.get(1..).unwrap_or_default().as_bytes())?;
    match (rest.as_bytes().first(), &values[..]) {
        (Some(b'+'), [value]) => Ok(Step::Append(list, *value)),
        (Some(b'?'), _) => Ok(Step::Read(list, values)),
        _ => bail!("{word:?} is no step"),
    }
}
