//! The worker of packages/testing/drill.py over rusqlite; an older one than the workspace's, with its own SQLite.

use rusqlite::Connection;

fn lines(db: &Connection, sql: &str) -> rusqlite::Result<()> {
    let mut statement = db.prepare(sql)?;
    let columns = statement.column_count();
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let values: Vec<String> = (0..columns)
            .map(|i| row.get::<_, rusqlite::types::Value>(i))
            .map(|value| {
                Ok(match value? {
                    rusqlite::types::Value::Integer(n) => n.to_string(),
                    rusqlite::types::Value::Text(text) => text,
                    other => format!("{other:?}"),
                })
            })
            .collect::<rusqlite::Result<_>>()?;
        println!("{}", values.join(" "));
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let given: Vec<String> = std::env::args().skip(1).collect();
    let (what, file) = (given[0].as_str(), &given[1]);
    if what == "stock" {
        let db = Connection::open(file)?;
        lines(&db, "PRAGMA integrity_check")?;
        return Ok(lines(&db, "SELECT count(*) FROM t")?);
    }
    onewrite::register!()?;
    if what == "wrong" {
        let error = Connection::open(format!("file:{file}?vfs=onewrite&logsize=8m")).unwrap_err();
        println!("{error}: {}", onewrite::last_error().unwrap_or_default());
        return Ok(());
    }
    let db = Connection::open(format!("file:{file}?vfs=onewrite"))?;
    db.busy_timeout(std::time::Duration::from_secs(60))?;
    if what == "read" {
        return Ok(lines(&db, "SELECT writer, count(*), max(n) FROM t GROUP BY writer")?);
    }
    db.execute_batch("CREATE TABLE IF NOT EXISTS t(writer TEXT, n INTEGER)")?;
    if what == "status" {
        db.execute_batch("PRAGMA journal_mode=WAL; INSERT INTO t VALUES ('status', 0)")?;
        lines(&db, "SELECT onewrite_status()")?;
        return Ok(lines(&db, "SELECT name || '=' || value FROM onewrite_stats WHERE name = 'commits'")?);
    }
    for n in 0..given[3].parse::<i64>()? {
        db.execute("INSERT INTO t VALUES (?1, ?2)", (&given[2], n))?;
        println!("{n}");
    }
    Ok(())
}
