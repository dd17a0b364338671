//! The counters over HTTP, on a loopback port.

use crate::report::COUNTERS;
use anyhow::{Result, anyhow, ensure};
use std::net::SocketAddr;
use std::thread;
use tiny_http::{Header, Method, Response, Server};

/// Answers `GET /metrics` from now on, in a thread. Returns the address, with the chosen port if
/// `at` has port 0.
pub fn serve(at: SocketAddr) -> Result<SocketAddr> {
    ensure!(
        at.ip().is_loopback(),
        "metrics are told on this machine alone: name an address like 127.0.0.1:9090, and put a proxy before it for others"
    );
    let server = Server::http(at).map_err(|e| anyhow!("cannot listen on {at}: {e}"))?;
    let at = server.server_addr().to_ip().ok_or_else(|| anyhow!("cannot listen on {at}"))?;
    thread::Builder::new().name("metrics".to_owned()).spawn(move || {
        for request in server.incoming_requests() {
            let known = request.url() == "/metrics" && matches!(request.method(), Method::Get | Method::Head);
            let (status, text) = if known { (200, COUNTERS.text()) } else { (404, "there is /metrics\n".to_owned()) };
            let mut answer = Response::from_string(text).with_status_code(status);
            if let Ok(kind) = Header::from_bytes("Content-Type", "text/plain; version=0.0.4; charset=utf-8") {
                answer.add_header(kind);
            }
            // The client may be gone.
            let _ = request.respond(answer);
        }
    })?;
    Ok(at)
}
