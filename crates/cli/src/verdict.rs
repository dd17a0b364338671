//! The answer of `check` for one database: its findings, the parts that were checked, and the
//! verdict, in words or as JSON.

use crate::answer::Clock;
use crate::look::counted;
use onewrite_core::text::Printable;
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::path::Path;

/// The parts of a database that a check looks at, in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The header, the length and every byte of the database file.
    File,
    /// Slots, records and streamed images of the log.
    Log,
    /// Tables and indexes, by SQLite's integrity check.
    Tables,
}

impl Part {
    fn word(self) -> &'static str {
        match self {
            Part::File => "file",
            Part::Log => "log",
            Part::Tables => "tables",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grade {
    Ok,
    Note,
    Damage,
}

impl Grade {
    fn word(self) -> &'static str {
        match self {
            Grade::Ok => "ok",
            Grade::Note => "note",
            Grade::Damage => "DAMAGE",
        }
    }
}

/// The findings about one database.
#[derive(Default)]
pub struct Findings {
    list: Vec<(Grade, String)>,
    /// Parts that were checked.
    checked: Vec<Part>,
    /// Parts that were not checked, each with the reason.
    unchecked: Vec<(Part, String)>,
    /// A part was to be checked and could not be.
    pub is_incomplete: bool,
    /// Transactions that only the log holds.
    pub waiting: u64,
    /// It is sound by itself, but may lack transactions of the log beside it: the words that say
    /// so.
    pub apart: Option<&'static str>,
    /// Others use it.
    pub in_use: bool,
}

impl Findings {
    pub fn ok(&mut self, text: impl Into<String>) {
        self.list.push((Grade::Ok, text.into()));
    }

    pub fn note(&mut self, text: impl Into<String>) {
        self.list.push((Grade::Note, text.into()));
    }

    pub fn damage(&mut self, text: impl Into<String>) {
        self.list.push((Grade::Damage, text.into()));
    }

    /// Turns the damage found until now into notes, for this reason.
    pub fn excuse(&mut self, why: &str) {
        for (grade, text) in self.list.iter_mut().filter(|(grade, _)| *grade == Grade::Damage) {
            *grade = Grade::Note;
            text.push_str(why);
        }
    }

    pub fn damaged(&self) -> u64 {
        self.list.iter().filter(|(grade, _)| *grade == Grade::Damage).count() as u64
    }

    pub fn checked(&mut self, part: Part) {
        self.checked.push(part);
    }

    pub fn unchecked(&mut self, part: Part, why: impl Into<String>) {
        self.unchecked.push((part, why.into()));
    }

    /// The exit status: 0 sound, 1 damaged, 2 not all checked, or the log holds more.
    pub fn status(&self) -> u8 {
        match self.damaged() {
            0 if self.apart.is_some() || self.is_incomplete => 2,
            0 => 0,
            _ => 1,
        }
    }

    /// The verdict as JSON has it.
    fn verdict(&self) -> &'static str {
        match self.status() {
            0 => "sound",
            1 => "damaged",
            _ if self.apart.is_some() => "apart",
            _ => "incomplete",
        }
    }

    /// One line for each finding, and the verdict.
    pub fn text(&self, file: &Path, clock: &Clock) -> String {
        let mut out = String::new();
        for (grade, text) in &self.list {
            let _ = writeln!(out, "{:<8}{}", grade.word(), Printable(text));
        }
        let verdict = match (self.damaged(), self.waiting) {
            (0, _) if let Some(apart) = self.apart => format!("sound by itself; {apart}"),
            (0, _) if self.is_incomplete => "no damage found, but not all could be checked".to_owned(),
            (0, _) if self.in_use => "sound, and in use".to_owned(),
            (0, 0) => "sound".to_owned(),
            (0, n) => format!("sound; recovery waits ({} in the log)", counted(n, "transaction")),
            (n, _) => format!("DAMAGED: {} above", counted(n, "finding")),
        };
        let checked: Vec<_> = self.checked.iter().map(|part| part.word()).collect();
        let _ = write!(out, "{}: {verdict}. Checked: {}", Printable(file.display()), checked.join(", "));
        for (n, (part, why)) in self.unchecked.iter().enumerate() {
            let _ =
                write!(out, "{}{} ({})", if n == 0 { ". Not checked: " } else { ", " }, part.word(), Printable(why));
        }
        let _ = writeln!(out, "{}", clock.took());
        out
    }

    /// The same for machines.
    pub fn json(&self, file: &Path, clock: &Clock) -> Value {
        let findings =
            self.list.iter().map(|(grade, text)| json!({"grade": grade.word().to_lowercase(), "text": text}));
        let unchecked = self.unchecked.iter().map(|(part, why)| json!({"part": part.word(), "why": why}));
        json!({
            "file": file.to_string_lossy(),
            "verdict": self.verdict(),
            "status": self.status(),
            "in_use": self.in_use,
            "transactions_waiting": self.waiting,
            "checked": self.checked.iter().map(|part| part.word()).collect::<Vec<_>>(),
            "not_checked": unchecked.collect::<Vec<_>>(),
            "findings": findings.collect::<Vec<_>>(),
            "seconds": clock.seconds(),
        })
    }
}

/// The JSON of a database that could not be looked at, for the reason `why`.
pub fn not_checked(file: &Path, why: &str) -> Value {
    let parts = [Part::File, Part::Log, Part::Tables].map(|part| json!({"part": part.word(), "why": why}));
    json!({
        "file": file.to_string_lossy(),
        "verdict": "not_checked",
        "status": 2,
        "in_use": false,
        "transactions_waiting": 0,
        "checked": [],
        "not_checked": parts,
        "findings": [],
        "seconds": null,
    })
}
