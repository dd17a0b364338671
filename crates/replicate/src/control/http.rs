//! The requests, as HTTP. Those of Litestream's that mean the same here have its names.

use crate::fleet::Control;
use crate::metrics::{HttpPage, PLAIN, answer};
use anyhow::{Context, Result};
use serde::Deserialize;
use serde_json::json;
use std::io::{Read, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::Duration;
use tiny_http::{Method, Request, Server};

/// Longest wait for a database, unless a request names another.
const PATIENCE: Duration = Duration::from_secs(30);
/// Longest request and answer.
const BYTES_MAX: u64 = 16 << 20;
const JSON: &str = "application/json";

#[derive(Deserialize)]
struct SyncRequest {
    path: PathBuf,
    /// Seconds.
    timeout: Option<u64>,
}

/// Answers requests from now on, in threads; those that are not allowed with 403.
pub fn serve(server: Server, control: Control, allows: impl Fn(&Request) -> bool + Send + 'static) -> Result<()> {
    let control = Arc::new(control);
    thread::Builder::new().name("control".to_owned()).spawn(move || {
        for mut request in server.incoming_requests() {
            if !allows(&request) {
                answer(request, failed(403, "not allowed"));
                continue;
            }
            let control = control.clone();
            // One that waits for a database keeps no other waiting.
            thread::spawn(move || {
                let mut body = Vec::new();
                let read = request.as_reader().take(BYTES_MAX).read_to_end(&mut body);
                let page = match read {
                    Ok(_) => page(request.method(), request.url(), &body, &control),
                    Err(e) => failed(400, &e.to_string()),
                };
                answer(request, page);
            });
        }
    })?;
    Ok(())
}

fn failed(status: u16, error: &str) -> HttpPage {
    (status, JSON, crate::secrets::scrubbed(&json!({ "error": error }).to_string()))
}

fn page(method: &Method, url: &str, body: &[u8], control: &Control) -> HttpPage {
    match (method, url) {
        (Method::Post, "/sync") => match serde_json::from_slice::<SyncRequest>(body) {
            Err(e) => failed(400, &format!("invalid request: {e}")),
            Ok(request) => {
                let patience = request.timeout.filter(|seconds| *seconds > 0).map_or(PATIENCE, Duration::from_secs);
                match control.ship_now(&request.path, patience) {
                    Ok(txid) => {
                        let answer = json!({
                            "status": "synced",
                            "path": request.path.display().to_string(),
                            "txid": txid,
                            "replicated_txid": txid,
                        });
                        (200, JSON, answer.to_string())
                    }
                    Err((status, error)) => failed(status, &error),
                }
            }
        },
        (Method::Get, "/list") => {
            let all: Vec<_> = control.members().iter().map(|member| member.summary()).collect();
            (200, JSON, crate::secrets::scrubbed(&json!({ "databases": all }).to_string()))
        }
        (Method::Get, "/info") => (200, JSON, control.info().to_string()),
        (Method::Get, _) => control.page(url),
        _ => (404, PLAIN, "there are POST /sync, GET /list, /info, /replicas, /metrics and /healthz\n".to_owned()),
    }
}

/// Asks by a stream to the process that is `named`. Returns the status and the text of its answer.
/// `headers` end with a new line each.
pub fn ask(
    mut stream: impl Read + Write,
    named: &str,
    headers: &str,
    (method, url, body): (&str, &str, &str),
) -> Result<(u16, String)> {
    let length = body.len();
    write!(
        stream,
        "{method} {url} HTTP/1.0\r\nHost: localhost\r\n{headers}Content-Type: {JSON}\r\nContent-Length: {length}\r\n\r\n{body}"
    )?;
    let mut answer = String::new();
    let read = stream.take(BYTES_MAX).read_to_string(&mut answer);
    read.with_context(|| format!("no answer from {named}"))?;
    let parts = answer.split_once("\r\n\r\n");
    let status = parts.and_then(|(head, _)| head.split(' ').nth(1)?.parse().ok());
    let (status, (_, text)) = status.zip(parts).with_context(|| format!("{named} does not speak HTTP"))?;
    Ok((status, text.to_owned()))
}
