//! Windows: a port of this machine. The file in the socket's place names it, with a word that each
//! request must have: who may read the file may ask.

use super::{ControlSocket, Listening, http, tell};
use crate::fleet::Control;
use crate::local::directory;
use anyhow::{Context, Result, anyhow, bail, ensure};
use std::fs;
use std::io::{ErrorKind, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::time::Duration;
use tempfile::NamedTempFile;
use tiny_http::{Request, Server};

const HEADER: &str = "Authorization";
/// Longest connection, within this machine.
const PATIENCE: Duration = Duration::from_secs(5);

/// What the file says.
struct Port {
    at: SocketAddr,
    word: String,
}

impl Port {
    /// `None`: there is no file.
    fn read(path: &Path) -> Result<Option<Port>> {
        let text = match fs::read_to_string(path) {
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
            read => read?,
        };
        let known = text.trim_end().split_once(' ').and_then(|(at, word)| Some((at.parse().ok()?, word.to_owned())));
        let known = known.filter(|(at, _): &(SocketAddr, String)| at.ip().is_loopback());
        let (at, word) = known.context("it is there, and names no port of this machine")?;
        Ok(Some(Port { at, word }))
    }

    fn ask(&self, named: &str, request: (&str, &str, &str), patience: Duration) -> Result<(u16, String)> {
        let stream = TcpStream::connect_timeout(&self.at, PATIENCE);
        let stream = stream.with_context(|| format!("no process listens at {named}"))?;
        stream.set_read_timeout(Some(patience))?;
        stream.set_write_timeout(Some(patience))?;
        http::ask(stream, named, &format!("{HEADER}: {}\r\n", self.word), request)
    }

    fn allows(&self, request: &Request) -> bool {
        request.headers().iter().any(|header| header.field.equiv(HEADER) && header.value.as_str() == self.word)
    }
}

/// Answers requests from now on, in threads.
pub fn listen(at: &ControlSocket, control: Control) -> Result<Listening> {
    let path = &at.path;
    let what = || format!("cannot listen on {}", path.display());
    ensure!(
        at.mode == 0o600,
        "permissions: leave them out on Windows, where the file at socket has those of its directory"
    );
    remove_stale(path).with_context(what)?;
    let server = Server::http((Ipv4Addr::LOCALHOST, 0)).map_err(|e| anyhow!("{}: {e}", what()))?;
    let address = server.server_addr().to_ip().with_context(what)?;
    let random = || getrandom::u64().context("no random numbers");
    let port = Port { at: address, word: format!("{:016x}{:016x}", random()?, random()?) };
    // It is whole when it gets its name.
    let mut file = NamedTempFile::new_in(directory(path)).with_context(what)?;
    writeln!(file, "{} {}", port.at, port.word).with_context(what)?;
    file.persist(path).with_context(what)?;
    let listening = Listening(path.clone());
    http::serve(server, control, move |request| port.allows(request))?;
    tell(path);
    Ok(listening)
}

/// Removes a file whose process is gone. Another program may have its port.
fn remove_stale(path: &Path) -> Result<()> {
    let Some(port) = Port::read(path)? else { return Ok(()) };
    match port.ask("it", ("GET", "/info", ""), PATIENCE) {
        Ok((200, _)) => bail!("another process listens there"),
        _ => Ok(fs::remove_file(path)?),
    }
}

/// Asks the process that listens at `path`. Returns the status and the text of its answer.
pub fn ask(path: &Path, method: &str, url: &str, body: &str, patience: Duration) -> Result<(u16, String)> {
    let named = path.display().to_string();
    let port = Port::read(path).with_context(|| named.clone())?;
    port.with_context(|| format!("no process listens at {named}"))?.ask(&named, (method, url, body), patience)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn a_file_is_taken_over_from_a_process_that_is_gone_and_from_no_other() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("control");
        remove_stale(&path).unwrap();
        let error = ask(&path, "GET", "/info", "", PATIENCE).unwrap_err().to_string();
        assert!(error.contains("no process listens"), "{error}");

        // No process has the port, or one that answers nothing.
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let at = listener.local_addr().unwrap();
        let other = std::thread::spawn(move || drop(listener.accept()));
        for _ in 0..2 {
            fs::write(&path, format!("{at} word\n")).unwrap();
            remove_stale(&path).unwrap();
            assert!(!path.exists());
        }
        other.join().unwrap();

        let port = Port { at, word: "word".to_owned() };
        let server = Server::http(at).unwrap();
        let answers = std::thread::spawn(move || {
            server
                .incoming_requests()
                .take(2)
                .map(|request| (port.allows(&request), crate::metrics::answer(request, (200, "", String::new()))).0)
                .collect::<Vec<_>>()
        });
        fs::write(&path, format!("{at} word\n")).unwrap();
        let error = remove_stale(&path).unwrap_err().to_string();
        assert!(error.contains("another process listens"), "{error}");
        fs::write(&path, format!("{at} other\n")).unwrap();
        ask(&path, "GET", "/info", "", PATIENCE).unwrap();
        assert_eq!(answers.join().unwrap(), [true, false]);

        for text in ["x", "192.0.2.1:1 word"] {
            fs::write(&path, text).unwrap();
            let refused = format!("{:#}", remove_stale(&path).unwrap_err());
            assert!(ask(&path, "GET", "/info", "", PATIENCE).is_err(), "{text}");
            assert!(refused.contains("names no port of this machine") && path.exists(), "{text}: {refused}");
        }
    }
}
