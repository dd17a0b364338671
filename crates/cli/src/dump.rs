//! `onewrite dump`: a database as SQL text, also while others write it.

use crate::answer::Clock;
use crate::live;
use crate::look::counted;
use anyhow::{Context, Result};
use indicatif::{ProgressBar, ProgressStyle};
use onewrite_core::text::Printable;
use rusqlite::Connection;
use rusqlite::types::ValueRef;
use std::io::{BufWriter, IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// Print a database as SQL text, also while others use it
///
/// The text is one snapshot: the newest state when it begins. Writers through onewrite are not kept
/// waiting. The status is not 0 if anything could not be read; the text then ends with ROLLBACK, so
/// that nothing of it is kept. At the end a line on standard error says how much there was.
///
///     onewrite dump app.db > app.sql
///     onewrite dump app.db | sqlite3 copy.db
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Args {
    /// The database
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Print no line about the work
    #[arg(short, long)]
    quiet: bool,
}

/// Prints it on standard output.
pub fn run(args: &Args) -> Result<ExitCode> {
    let clock = Clock::start();
    let db = live::open(&args.file)?;
    let mut out = Text { to: BufWriter::new(std::io::stdout().lock()), bytes: 0, tables: 0, rows: 0, bar: bar(args) };
    let dumped = dump(&db, &mut out);
    out.bar.finish_and_clear();
    if let Err(e) = dumped {
        // Perhaps it cannot be written, either; the status says that there was an error.
        let _ = writeln!(out, "ROLLBACK; -- because of an error");
        let _ = out.flush();
        return Err(match e {
            Failed::Read(e) => live::explain(&args.file, e),
            Failed::Write(e) => anyhow::Error::from(e).context("printing"),
        });
    }
    out.flush().context("printing")?;
    if !args.quiet {
        let (tables, rows, bytes) =
            (counted(out.tables, "table"), counted(out.rows, "row"), counted(out.bytes, "byte"));
        let said = format!("{}: {tables}, {rows}, {bytes} of SQL{}", args.file.display(), clock.took());
        let _nobody_reads = writeln!(std::io::stderr(), "{}", Printable(said));
    }
    Ok(ExitCode::SUCCESS)
}

/// Standard output, and how much was written to it.
struct Text<W: Write> {
    to: W,
    bytes: u64,
    tables: u64,
    rows: u64,
    bar: ProgressBar,
}

impl<W: Write> Write for Text<W> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let written = self.to.write(bytes)?;
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.to.flush()
    }
}

/// A count of rows on a terminal, where the text goes elsewhere.
fn bar(args: &Args) -> ProgressBar {
    if args.quiet || std::io::stdout().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("dumping {spinner} {human_pos} rows {elapsed}");
    let bar = ProgressBar::new_spinner().with_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()));
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}

enum Failed {
    Read(rusqlite::Error),
    Write(std::io::Error),
}

impl From<rusqlite::Error> for Failed {
    fn from(e: rusqlite::Error) -> Failed {
        Failed::Read(e)
    }
}

impl From<std::io::Error> for Failed {
    fn from(e: std::io::Error) -> Failed {
        Failed::Write(e)
    }
}

/// Something in the schema.
struct Item {
    name: String,
    sql: String,
}

fn items(db: &Connection, condition: &str) -> rusqlite::Result<Vec<Item>> {
    let mut all = db.prepare(&format!(
        "SELECT name, sql FROM sqlite_schema WHERE sql IS NOT NULL AND {condition} ORDER BY rowid"
    ))?;
    all.query_map([], |row| Ok(Item { name: row.get(0)?, sql: row.get(1)? }))?.collect()
}

fn dump<W: Write>(db: &Connection, out: &mut Text<W>) -> Result<(), Failed> {
    writeln!(out, "PRAGMA foreign_keys=OFF;\nBEGIN TRANSACTION;")?;
    let mut writable_schema = false;
    let mut last = Vec::new();
    for Item { name, sql } in items(db, "type = 'table'")? {
        if name == "sqlite_sequence" {
            // Made with the first table that has AUTOINCREMENT, filled when all of them are.
            last.push(("DELETE FROM sqlite_sequence;", name));
        } else if name.starts_with("sqlite_stat") {
            last.push(("ANALYZE sqlite_schema;", name));
        } else if is_virtual(&sql) {
            // Its module makes tables of its own, which are here, too.
            if !std::mem::replace(&mut writable_schema, true) {
                writeln!(out, "PRAGMA writable_schema=ON;")?;
            }
            let (name, sql) = (text(name.as_bytes()), text(sql.as_bytes()));
            writeln!(
                out,
                "INSERT INTO sqlite_schema(type, name, tbl_name, rootpage, sql) VALUES('table', {name}, {name}, 0, {sql});"
            )?;
        } else {
            writeln!(out, "{sql};")?;
            rows(db, &name, out)?;
        }
    }
    let mut analyzed = false;
    for (before, name) in last {
        if !(before.starts_with("ANALYZE") && std::mem::replace(&mut analyzed, true)) {
            writeln!(out, "{before}")?;
        }
        rows(db, &name, out)?;
    }
    for kind in ["index", "trigger", "view"] {
        for Item { sql, .. } in items(db, &format!("type = '{kind}'"))? {
            writeln!(out, "{sql};")?;
        }
    }
    if writable_schema {
        writeln!(out, "PRAGMA writable_schema=OFF;")?;
    }
    writeln!(out, "COMMIT;")?;
    Ok(())
}

fn is_virtual(sql: &str) -> bool {
    sql.get(..20).is_some_and(|begin| begin.eq_ignore_ascii_case("create virtual table"))
}

/// A name as SQL takes any.
fn identifier(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

fn rows<W: Write>(db: &Connection, table: &str, out: &mut Text<W>) -> Result<(), Failed> {
    out.tables += 1;
    let mut columns = Vec::new();
    // Neither generated columns nor hidden ones take a value.
    let mut all = db.prepare("SELECT name FROM pragma_table_xinfo(?1) WHERE hidden = 0")?;
    for name in all.query_map([table], |row| row.get::<_, String>(0))? {
        columns.push(identifier(&name?));
    }
    let (table, columns) = (identifier(table), columns.join(", "));
    let mut all = db.prepare(&format!("SELECT {columns} FROM {table}"))?;
    let count = all.column_count();
    let mut found = all.query([])?;
    while let Some(row) = found.next()? {
        write!(out, "INSERT INTO {table}({columns}) VALUES(")?;
        for n in 0..count {
            out.write_all(if n == 0 { b"" } else { b", " })?;
            value(row.get_ref(n)?, out)?;
        }
        writeln!(out, ");")?;
        out.rows += 1;
        if out.rows.is_multiple_of(1024) {
            out.bar.set_position(out.rows);
        }
    }
    Ok(())
}

fn value(value: ValueRef<'_>, out: &mut impl Write) -> std::io::Result<()> {
    match value {
        ValueRef::Null => write!(out, "NULL"),
        ValueRef::Integer(n) => write!(out, "{n}"),
        ValueRef::Real(x) if x.is_infinite() => write!(out, "{}9.0e+999", if x < 0.0 { "-" } else { "" }),
        // As many digits as bring the same number back, and a point, so that it stays a real
        // number.
        ValueRef::Real(x) => write!(out, "{x:?}"),
        ValueRef::Text(bytes) if bytes.contains(&0) => write!(out, "CAST(X'{}' AS TEXT)", hex(bytes)),
        // The program sqlite3 takes a carriage return for part of a line's end.
        ValueRef::Text(bytes) if bytes.contains(&b'\r') => {
            let sign = sign_for_return(bytes);
            write!(out, "replace(")?;
            write_quoted(out, &bytes.split(|b| *b == b'\r').collect::<Vec<_>>().join(sign.as_bytes()))?;
            write!(out, ",'{sign}',char(13))")
        }
        ValueRef::Text(bytes) => write_quoted(out, bytes),
        ValueRef::Blob(bytes) => write!(out, "X'{}'", hex(bytes)),
    }
}

fn write_quoted(out: &mut impl Write, bytes: &[u8]) -> std::io::Result<()> {
    out.write_all(b"'")?;
    for (n, part) in bytes.split(|b| *b == b'\'').enumerate() {
        out.write_all(if n == 0 { b"" } else { b"''" })?;
        out.write_all(part)?;
    }
    out.write_all(b"'")
}

/// A text that stands for a carriage return, and is not in `bytes`.
fn sign_for_return(bytes: &[u8]) -> String {
    let is_free = |sign: &String| !bytes.windows(sign.len()).any(|part| part == sign.as_bytes());
    (0u64..).map(|n| if n == 0 { "\\r".to_owned() } else { format!("\\r{n}") }).find(is_free).unwrap_or_default()
}

fn text(bytes: &[u8]) -> String {
    format!("'{}'", String::from_utf8_lossy(bytes).replace('\'', "''"))
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    let mut hex = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        let _ = write!(hex, "{byte:02x}");
    }
    hex
}
