//! Windows: no control socket, since Rust's standard library has no Unix sockets there.

use super::ControlSocket;
use crate::fleet::Control;
use anyhow::{Result, bail};
use std::path::Path;
use std::time::Duration;

const WHY: &str = "there is no control socket on Windows: `addr:` serves the counters, /healthz and /replicas";

/// None is ever listened on.
pub struct Listening;

/// Refused, with the reason.
pub fn listen(_at: &ControlSocket, _control: Control) -> Result<Listening> {
    bail!(WHY)
}

/// Refused, with the reason.
pub fn ask(_path: &Path, _method: &str, _url: &str, _body: &str, _patience: Duration) -> Result<(u16, String)> {
    bail!(WHY)
}
