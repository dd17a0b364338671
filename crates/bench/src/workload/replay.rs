//! A user's own recorded SQL as a workload: the statements between BEGIN and COMMIT, or one
//! statement outside, are a transaction. The outcome is checked for soundness only: a trace may ask
//! for the time or for random numbers.

use super::script::{Conduct, Script, Transaction};
use super::{Scripted, Size};
use crate::engines::sql::Library;
use anyhow::{Context, Result, ensure};

pub const REPLAY: Scripted = Scripted {
    name: "replay",
    about: "the statements of the file given with --replay, from an empty database",
    rows: 0,
    transactions: 10_000_000,
    heeds: &["--replay", "--wal-start"],
    draw: |size, _| replay(size),
};

/// The line that ends the part before measuring.
const MARK: &str = "-- measure";

fn replay(size: &Size) -> Result<Script> {
    let path = size.replay.as_ref().context("needs --replay FILE")?;
    let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
    let marked = text.lines().position(|line| line.trim() == MARK);
    let (before, measured) = match marked {
        None => (String::new(), text.as_str()),
        Some(n) => {
            let at: usize = text.split_inclusive('\n').take(n + 1).map(str::len).sum();
            (text[..at].to_owned(), &text[at..])
        }
    };
    let mut transactions = transactions(measured).with_context(|| path.display().to_string())?;
    ensure!(!transactions.is_empty(), "{}: no statements", path.display());
    transactions.truncate(size.transactions);
    Ok(Script {
        schema: before,
        statements: Vec::new(),
        preload: Vec::new(),
        transactions: transactions.into_iter().map(Transaction::Text).collect(),
        phases: Vec::new(),
        conduct: Conduct { verify: false, ..Conduct::PLAIN },
        key_order: "as recorded",
        row_bytes: 0,
    })
}

/// A transaction that has begun.
#[derive(Default)]
struct OpenTransaction {
    text: String,
    /// Whether BEGIN began it: then the end of its savepoints is not its own.
    begun: bool,
    savepoints: Vec<String>,
}

impl OpenTransaction {
    /// Takes note of its next statement; whether the transaction ends with it.
    fn goes_over(&mut self, words: &[String]) -> bool {
        let word = |i: usize| words.get(i).map_or("", String::as_str);
        let after = |keyword: &str, i: usize| if word(i) == keyword { word(i + 1) } else { word(i) }.to_owned();
        match word(0) {
            "BEGIN" => self.begun = true,
            "SAVEPOINT" => self.savepoints.push(word(1).to_owned()),
            "RELEASE" => {
                let name = after("SAVEPOINT", 1);
                let at = self.savepoints.iter().rposition(|s| *s == name);
                self.savepoints.truncate(at.unwrap_or(self.savepoints.len()));
            }
            "COMMIT" | "END" => return true,
            // ROLLBACK [TRANSACTION] TO goes on with the transaction.
            "ROLLBACK" if after("TRANSACTION", 1) != "TO" => return true,
            _ => {}
        }
        !self.begun && self.savepoints.is_empty()
    }
}

/// The text cut into transactions.
fn transactions(text: &str) -> Result<Vec<String>> {
    let library = Library::linked();
    let (mut found, mut statement, mut transaction) = (Vec::new(), String::new(), None::<OpenTransaction>);
    for piece in text.split_inclusive(';') {
        statement.push_str(piece);
        if !library.is_complete(&statement) {
            continue;
        }
        let whole = std::mem::take(&mut statement);
        let words = words(&whole);
        let mut open = transaction.take().unwrap_or_default();
        let ended = open.goes_over(&words);
        open.text.push_str(&whole);
        if ended { found.push(open.text) } else { transaction = Some(open) }
    }
    ensure!(transaction.is_none(), "the last transaction has no end (COMMIT, ROLLBACK or RELEASE)");
    let rest = without_comments(&statement);
    ensure!(rest.trim().is_empty(), "the last statement has no end: {}", rest.trim());
    Ok(found)
}

fn without_comments(sql: &str) -> String {
    sql.lines().filter(|l| !l.trim_start().starts_with("--")).collect::<Vec<_>>().join("\n")
}

/// The first few, in capitals.
fn words(sql: &str) -> Vec<String> {
    let sql = without_comments(sql);
    let words = sql.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|w| !w.is_empty());
    words.take(5).map(str::to_uppercase).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_cut_at_transactions() {
        let sql = "CREATE TABLE t(a); -- one; two\nINSERT INTO t VALUES(';');\nBEGIN; DELETE FROM t;\nCOMMIT;";
        let found = transactions(sql).unwrap();
        assert_eq!(found.len(), 3, "{found:?}");
        assert!(found[2].trim().starts_with("BEGIN") && found[2].ends_with("COMMIT;"));
        assert!(transactions("BEGIN; DELETE FROM t;").is_err());
        let nested =
            "SAVEPOINT a; SAVEPOINT b; DELETE FROM t; ROLLBACK TO b; RELEASE b; RELEASE SAVEPOINT a; SELECT 1;";
        assert_eq!(transactions(nested).unwrap().len(), 2);
        let within = "BEGIN; SAVEPOINT a; RELEASE a; DELETE FROM t; ROLLBACK TRANSACTION TO a; END; SELECT 1;";
        assert_eq!(transactions(within).unwrap().len(), 2);
        assert!(transactions("SAVEPOINT a; DELETE FROM t;").is_err());
        assert!(transactions("DELETE FROM t").is_err());
        assert_eq!(transactions("SELECT 1;\n-- the end\n").unwrap().len(), 1);
    }
}
