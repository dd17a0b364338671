//! The runtime of the stores whose libraries need one.

use anyhow::{Context, Result};
use std::sync::OnceLock;
use tokio::runtime::{Builder, Runtime};

/// Its worker reads what servers send. Callers wait for their requests on their own threads.
pub(super) fn runtime() -> Result<&'static Runtime> {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    if let Some(runtime) = RUNTIME.get() {
        return Ok(runtime);
    }
    let made = Builder::new_multi_thread().worker_threads(1).enable_all().build().context("cannot make a runtime")?;
    Ok(RUNTIME.get_or_init(|| made))
}
