//! A user's own recorded SQL as a workload: what stands between BEGIN and COMMIT, or one statement outside, is a
//! transaction. The outcome is checked for soundness only: a trace may ask for the time or for random numbers.

use super::script::{Conduct, Script, Transaction};
use super::{Scripted, Size};
use crate::bench::sql::Library;
use anyhow::{Context, Result, ensure};

pub const REPLAY: Scripted = Scripted {
    name: "replay",
    about: "the statements of the file given with --replay, from an empty database",
    rows: 0,
    transactions: 10_000_000,
    heeds: &["--replay", "--wal-start"],
    draw: |size, _| replay(size),
};

/// The line that ends what is done before measuring.
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

/// The text cut into transactions.
fn transactions(text: &str) -> Result<Vec<String>> {
    let library = Library::linked();
    let (mut found, mut statement, mut transaction) = (Vec::new(), String::new(), None::<String>);
    for piece in text.split_inclusive(';') {
        statement.push_str(piece);
        if !library.is_complete(&statement) {
            continue;
        }
        let whole = std::mem::take(&mut statement);
        let word = first_word(&whole);
        match (&mut transaction, word.as_str()) {
            (None, "BEGIN" | "SAVEPOINT") => transaction = Some(whole),
            (None, _) => found.push(whole),
            (Some(open), "COMMIT" | "END" | "ROLLBACK") => {
                open.push_str(&whole);
                // ROLLBACK TO goes on with the transaction.
                if !whole.to_uppercase().split_whitespace().any(|w| w == "TO") {
                    found.extend(transaction.take());
                }
            }
            (Some(open), _) => open.push_str(&whole),
        }
    }
    ensure!(transaction.is_none(), "the last transaction has no COMMIT");
    let rest = without_comments(&statement);
    ensure!(rest.trim().is_empty(), "the last statement has no end: {}", rest.trim());
    Ok(found)
}

fn without_comments(sql: &str) -> String {
    sql.lines().filter(|l| !l.trim_start().starts_with("--")).collect::<Vec<_>>().join("\n")
}

fn first_word(sql: &str) -> String {
    let sql = without_comments(sql);
    sql.split(|c: char| !c.is_alphanumeric()).find(|w| !w.is_empty()).unwrap_or("").to_uppercase()
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
        assert!(transactions("DELETE FROM t").is_err());
        assert_eq!(transactions("SELECT 1;\n-- the end\n").unwrap().len(), 1);
    }
}
