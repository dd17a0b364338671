//! The worker of packages/testing/drill.py over diesel.

use diesel::connection::SimpleConnection as _;
use diesel::prelude::*;
use diesel::sql_types::{BigInt, Text};

// Its SQLite is linked in.
use libsqlite3_sys as _;

#[derive(QueryableByName)]
struct Line {
    #[diesel(sql_type = Text)]
    line: String,
}

fn lines(db: &mut SqliteConnection, sql: &str) -> QueryResult<()> {
    for row in diesel::sql_query(sql).load::<Line>(db)? {
        println!("{}", row.line);
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let given: Vec<String> = std::env::args().skip(1).collect();
    let (what, file) = (given[0].as_str(), &given[1]);
    if what == "stock" {
        let mut db = SqliteConnection::establish(file)?;
        lines(&mut db, "SELECT integrity_check AS line FROM pragma_integrity_check")?;
        return Ok(lines(&mut db, "SELECT cast(count(*) AS TEXT) AS line FROM t")?);
    }
    onewrite::register!()?;
    if what == "wrong" {
        let error = SqliteConnection::establish(&format!("file:{file}?vfs=onewrite&logsize=8m")).err();
        println!("{error:?}: {}", onewrite::last_error().unwrap_or_default());
        return Ok(());
    }
    let mut db = SqliteConnection::establish(&format!("file:{file}?vfs=onewrite"))?;
    db.batch_execute("PRAGMA busy_timeout=60000")?;
    if what == "read" {
        let sql = "SELECT writer || ' ' || count(*) || ' ' || max(n) AS line FROM t GROUP BY writer";
        return Ok(lines(&mut db, sql)?);
    }
    db.batch_execute("CREATE TABLE IF NOT EXISTS t(writer TEXT, n INTEGER)")?;
    if what == "status" {
        db.batch_execute("PRAGMA journal_mode=WAL; INSERT INTO t VALUES ('status', 0)")?;
        lines(&mut db, "SELECT onewrite_status() AS line")?;
        return Ok(lines(&mut db, "SELECT name || '=' || value AS line FROM onewrite_stats WHERE name = 'commits'")?);
    }
    for n in 0..given[3].parse::<i64>()? {
        let insert = diesel::sql_query("INSERT INTO t VALUES (?, ?)");
        insert.bind::<Text, _>(&given[2]).bind::<BigInt, _>(n).execute(&mut db)?;
        println!("{n}");
    }
    Ok(())
}
