//! Notes over HTTP with tiny_http and rusqlite, a connection for each of four threads: `cargo run`.

use std::env;
use std::error::Error;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use rusqlite::Connection;
use serde_json::{Value, json};
use tiny_http::{Header, Method, Request, Response, Server};

const THREADS: usize = 4;

fn connect(database: &str) -> rusqlite::Result<Connection> {
    let db = Connection::open(format!("file:{database}?vfs=onewrite"))?;
    db.busy_timeout(Duration::from_secs(5))?;
    Ok(db)
}

fn answer(db: &Connection, request: &mut Request) -> Result<(u16, Value), Box<dyn Error>> {
    Ok(match (request.method(), request.url()) {
        (Method::Get, "/notes") => {
            let mut notes = db.prepare_cached("SELECT text FROM note ORDER BY id")?;
            let texts = notes.query_map([], |row| row.get(0))?.collect::<Result<Vec<String>, _>>()?;
            (200, json!(texts))
        }
        (Method::Post, "/notes") => {
            let note: Value = serde_json::from_reader(request.as_reader())?;
            db.execute("INSERT INTO note (text) VALUES (?1)", [note["text"].as_str()])?;
            (201, json!({}))
        }
        (Method::Get, "/status") => {
            let status: String = db.query_row("SELECT onewrite_status()", [], |row| row.get(0))?;
            (200, json!({ "onewrite": status }))
        }
        _ => (404, json!({})),
    })
}

fn serve(server: &Server, db: &Connection) {
    for mut request in server.incoming_requests() {
        let (status, body) = answer(db, &mut request).unwrap_or_else(|e| (500, json!({ "error": e.to_string() })));
        let json = Header::from_bytes("Content-Type", "application/json").expect("a header");
        let response = Response::from_string(body.to_string()).with_status_code(status).with_header(json);
        if let Err(e) = request.respond(response) {
            eprintln!("an answer was not sent: {e}");
        }
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let database = env::var("DATABASE").unwrap_or_else(|_| "notes.db".into());
    let port = env::var("PORT").unwrap_or_else(|_| "8000".into());
    onewrite::register!()?;
    connect(&database)?.execute_batch("CREATE TABLE IF NOT EXISTS note (id INTEGER PRIMARY KEY, text TEXT NOT NULL)")?;
    let server = Arc::new(Server::http(format!("127.0.0.1:{port}")).map_err(|e| e.to_string())?);
    // At SIGINT and SIGTERM each thread returns, and the last connection that closes leaves a plain SQLite file.
    let stopped = Arc::clone(&server);
    ctrlc::set_handler(move || (0..THREADS).for_each(|_| stopped.unblock()))?;
    let connections = (0..THREADS).map(|_| connect(&database)).collect::<Result<Vec<_>, _>>()?;
    thread::scope(|scope| {
        for db in connections {
            let server = &server;
            scope.spawn(move || serve(server, &db));
        }
    });
    Ok(())
}
