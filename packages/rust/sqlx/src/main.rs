//! The worker of packages/testing/drill.py over sqlx.

use std::time::Duration;

use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions};
use sqlx::{Row as _, SqlitePool};

async fn lines(db: &SqlitePool, sql: &str) -> sqlx::Result<()> {
    for row in sqlx::query(sql).fetch_all(db).await? {
        println!("{}", row.get::<String, _>(0));
    }
    Ok(())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let given: Vec<String> = std::env::args().skip(1).collect();
    let (what, file) = (given[0].as_str(), &given[1]);
    let mut options = SqliteConnectOptions::new().create_if_missing(true).busy_timeout(Duration::from_secs(60));
    if what == "stock" {
        let db = SqlitePool::connect_with(options.filename(file)).await?;
        lines(&db, "PRAGMA integrity_check").await?;
        lines(&db, "SELECT cast(count(*) AS TEXT) FROM t").await?;
        db.close().await;
        return Ok(());
    }
    onewrite::register!()?;
    // sqlx makes URIs of its own; settings are pragmas.
    options = options.filename(file).vfs("onewrite");
    if what == "wrong" {
        let error = SqlitePool::connect_with(options.pragma("onewrite_logsize", "'8m'")).await.unwrap_err();
        println!("{error}");
        return Ok(());
    }
    if what == "status" {
        options = options.journal_mode(SqliteJournalMode::Wal);
    }
    let db = SqlitePoolOptions::new().max_connections(2).connect_with(options).await?;
    if what == "read" {
        lines(&db, "SELECT writer || ' ' || count(*) || ' ' || max(n) FROM t GROUP BY writer").await?;
    } else {
        sqlx::query("CREATE TABLE IF NOT EXISTS t(writer TEXT, n INTEGER)").execute(&db).await?;
        if what == "status" {
            sqlx::query("INSERT INTO t VALUES ('status', 0)").execute(&db).await?;
            lines(&db, "SELECT onewrite_status()").await?;
            lines(&db, "SELECT name || '=' || value FROM onewrite_stats WHERE name = 'commits'").await?;
        } else {
            for n in 0..given[3].parse::<i64>()? {
                sqlx::query("INSERT INTO t VALUES (?, ?)").bind(&given[2]).bind(n).execute(&db).await?;
                println!("{n}");
            }
        }
    }
    db.close().await;
    Ok(())
}
