//! The counters over HTTP.

use crate::report::COUNTERS;
use anyhow::{Result, anyhow, ensure};
use std::net::SocketAddr;
use std::thread;
use tiny_http::{Header, Method, Request, Response, Server};

/// A page: its status, its kind, its text.
pub type HttpPage = (u16, &'static str, String);

/// The kind of a page of counters, and of other pages.
pub const COUNTED: &str = "text/plain; version=0.0.4; charset=utf-8";
/// See [`COUNTED`].
pub const PLAIN: &str = "text/plain; charset=utf-8";

/// Answers `GET /metrics` from now on, in a thread, on the loopback. Returns the address, with the
/// chosen port if `at` has port 0.
pub fn serve(at: SocketAddr) -> Result<SocketAddr> {
    ensure!(
        at.ip().is_loopback(),
        "metrics are told on this machine alone: name an address like 127.0.0.1:9090, and put a proxy before it for others"
    );
    serve_pages(at, |path| match path {
        "/metrics" => (200, COUNTED, COUNTERS.text()),
        _ => (404, PLAIN, "there is /metrics\n".to_owned()),
    })
}

/// Answers requests for pages from now on, in a thread. Returns the address as [`serve`] does.
pub fn serve_pages(at: SocketAddr, page: impl Fn(&str) -> HttpPage + Send + 'static) -> Result<SocketAddr> {
    let server = Server::http(at).map_err(|e| anyhow!("cannot listen on {at}: {e}"))?;
    let at = server.server_addr().to_ip().ok_or_else(|| anyhow!("cannot listen on {at}"))?;
    thread::Builder::new().name("metrics".to_owned()).spawn(move || {
        for request in server.incoming_requests() {
            let (status, kind, text) = match request.method() {
                Method::Get | Method::Head => page(request.url()),
                _ => (405, PLAIN, "pages are read alone\n".to_owned()),
            };
            answer(request, (status, kind, text));
        }
    })?;
    Ok(at)
}

pub(crate) fn answer(request: Request, (status, kind, text): HttpPage) {
    let mut answer = Response::from_string(text).with_status_code(status);
    if let Ok(kind) = Header::from_bytes("Content-Type", kind) {
        answer.add_header(kind);
    }
    // The client may be gone.
    let _ = request.respond(answer);
}
