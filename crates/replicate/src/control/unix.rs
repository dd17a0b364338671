//! POSIX: HTTP over a Unix socket.

use super::ControlSocket;
use crate::fleet::Control;
use crate::metrics::{HttpPage, PLAIN, answer};
use crate::report::{Level, say};
use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;
use serde_json::json;
use std::fs::{self, Permissions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;
use tiny_http::{Method, Server};

/// Longest wait for a database, unless a request names another.
const PATIENCE: Duration = Duration::from_secs(30);
/// Longest request and answer.
const BYTES_MAX: u64 = 16 << 20;
const JSON: &str = "application/json";

/// The file of a socket; removed when dropped.
pub struct Listening(PathBuf);

impl Drop for Listening {
    fn drop(&mut self) {
        // Another process may have removed it.
        let _ = fs::remove_file(&self.0);
    }
}

#[derive(Deserialize)]
struct SyncRequest {
    path: PathBuf,
    /// Seconds.
    timeout: Option<u64>,
}

/// Answers requests from now on, in threads.
pub fn listen(at: &ControlSocket, control: Control) -> Result<Listening> {
    let path = &at.path;
    let what = || format!("cannot listen on {}", path.display());
    remove_stale(path).with_context(what)?;
    // It gets its name when nobody else can connect to it.
    let mut other = path.clone().into_os_string();
    other.push(format!("-{}", std::process::id()));
    let other = PathBuf::from(other);
    let listener = UnixListener::bind(&other).with_context(what)?;
    let named = fs::set_permissions(&other, Permissions::from_mode(at.mode)).and_then(|()| fs::rename(&other, path));
    if let Err(e) = named {
        fs::remove_file(&other).with_context(what)?;
        return Err(e).with_context(what);
    }
    let listening = Listening(path.clone());
    let server = Server::from_listener(listener, None).map_err(|e| anyhow::anyhow!("{}: {e}", what()))?;
    let control = Arc::new(control);
    thread::Builder::new().name("control".to_owned()).spawn(move || {
        for mut request in server.incoming_requests() {
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
    say(
        Level::Info,
        "control",
        &[("socket", path.display().to_string().into())],
        &format!("control socket at {}", path.display()),
    );
    Ok(listening)
}

/// Removes a socket that no process listens on.
fn remove_stale(path: &Path) -> Result<()> {
    match fs::symlink_metadata(path) {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(e.into()),
        Ok(found) => ensure!(found.file_type().is_socket(), "it is there, and is no socket"),
    }
    match UnixStream::connect(path) {
        Ok(_) => bail!("another process listens there"),
        Err(e) if e.kind() == ErrorKind::ConnectionRefused => Ok(fs::remove_file(path)?),
        Err(e) => Err(e.into()),
    }
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

/// Asks the process that listens at `path`. Returns the status and the text of its answer.
pub fn ask(path: &Path, method: &str, url: &str, body: &str, patience: Duration) -> Result<(u16, String)> {
    let what = || format!("no process listens at {}", path.display());
    let mut stream = UnixStream::connect(path).with_context(what)?;
    stream.set_read_timeout(Some(patience))?;
    stream.set_write_timeout(Some(patience))?;
    let length = body.len();
    write!(
        stream,
        "{method} {url} HTTP/1.0\r\nHost: localhost\r\nContent-Type: {JSON}\r\nContent-Length: {length}\r\n\r\n{body}"
    )?;
    let mut answer = String::new();
    let read = stream.take(BYTES_MAX).read_to_string(&mut answer);
    read.with_context(|| format!("no answer from {}", path.display()))?;
    let (head, text) =
        answer.split_once("\r\n\r\n").with_context(|| format!("{} does not speak HTTP", path.display()))?;
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
    Ok((status.with_context(|| format!("{} does not speak HTTP", path.display()))?, text.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_is_taken_over_from_a_process_that_is_gone_and_from_no_other() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("control.sock");
        remove_stale(&path).unwrap();
        let listener = UnixListener::bind(&path).unwrap();
        let error = remove_stale(&path).unwrap_err().to_string();
        assert!(error.contains("another process listens"), "{error}");
        drop(listener);
        assert!(path.exists());
        remove_stale(&path).unwrap();
        assert!(!path.exists());
        fs::write(&path, "x").unwrap();
        let error = remove_stale(&path).unwrap_err().to_string();
        assert!(error.contains("no socket"), "{error}");
        assert!(path.exists());
    }
}
