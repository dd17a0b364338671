//! POSIX: a Unix socket.

use super::{ControlSocket, Listening, http, tell};
use crate::fleet::Control;
use anyhow::{Context, Result, bail, ensure};
use std::fs::{self, Permissions};
use std::io::ErrorKind;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tiny_http::Server;

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
    http::serve(server, control, |_| true)?;
    tell(path);
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

/// Asks the process that listens at `path`. Returns the status and the text of its answer.
pub fn ask(path: &Path, method: &str, url: &str, body: &str, patience: Duration) -> Result<(u16, String)> {
    let stream = UnixStream::connect(path).with_context(|| format!("no process listens at {}", path.display()))?;
    stream.set_read_timeout(Some(patience))?;
    stream.set_write_timeout(Some(patience))?;
    http::ask(stream, &path.display().to_string(), "", (method, url, body))
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
