//! `onewrite replicas` lists databases and their stores. It asks the process that ships them, or
//! lists the stores. `onewrite ltx` lists the files of one store.

use anyhow::{Context, Result, bail};
use onewrite_arguments::replicate::{Ltx, Replicas, Ship};
use onewrite_core::text::Printable;
use onewrite_replicate::config::FleetConfig;
use onewrite_replicate::control;
use onewrite_replicate::ending::end_at_signals;
use onewrite_replicate::report::is_json;
use onewrite_replicate::secrets::scrubbed;
use onewrite_replicate::store::{self, Entry, StoreKeys};
use onewrite_replicate::times;
use serde_json::{Value, json};
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

/// Longest wait for the process that ships.
const PATIENCE: Duration = Duration::from_secs(5);

fn print(line: &str) {
    // The status says the same if stdout is closed.
    let _is_closed = writeln!(std::io::stdout(), "{}", Printable(scrubbed(line)));
}

/// Prints objects: as JSON, or as a table of these members with a title and widths of its own.
fn print_objects(objects: Vec<Value>, members: &[&str]) {
    if is_json() {
        return print(&Value::from(objects).to_string());
    }
    let text = |of: &Value, name: &str| match of.get(name) {
        None | Some(Value::Null) => "-".to_owned(),
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
    };
    let title = members.iter().map(|name| (*name).to_owned()).collect();
    let rows = objects.iter().map(|of| members.iter().map(|name| text(of, name)).collect());
    let rows: Vec<Vec<String>> = std::iter::once(title).chain(rows).collect();
    let width =
        |at: usize| rows.iter().filter_map(|row| row.get(at)).map(|text| text.chars().count()).max().unwrap_or(0);
    for row in &rows {
        let cells: Vec<String> = row.iter().enumerate().map(|(at, text)| format!("{text:<0$}", width(at))).collect();
        print(cells.join("  ").trim_end());
    }
}

/// Prints the files of a store.
pub fn ltx(args: &Ltx) -> Result<ExitCode> {
    end_at_signals()?;
    let (url, keys) = match &args.config {
        None => (args.place.clone(), None),
        Some(config) => {
            let config = FleetConfig::read(config, !args.no_expand_env)?;
            let file = std::path::absolute(&args.place)?;
            let found = config.files()?.into_iter().find(|(of, ..)| *of == file);
            let (_, url, of) =
                found.with_context(|| format!("the configuration has no database {}", file.display()))?;
            (url, of.keys.clone())
        }
    };
    let store = store::open_with(&url, keys.as_ref())?;
    let mut entries = match args.level {
        Some(level) => store.list(level)?,
        None => store::list_all(&*store)?,
    };
    entries.sort();
    let object = |entry: &Entry| {
        json!({
            "level": entry.name.level,
            "min_txid": format!("{:016x}", entry.name.min),
            "max_txid": format!("{:016x}", entry.name.max),
            "size": entry.bytes,
            "created": times::shown(entry.time_ms),
        })
    };
    let objects = entries.iter().map(object).collect();
    print_objects(objects, &["level", "min_txid", "max_txid", "size", "created"]);
    Ok(ExitCode::SUCCESS)
}

/// Prints the databases of a configuration; status 1 if one has an error.
pub fn replicas(args: &Replicas) -> Result<ExitCode> {
    end_at_signals()?;
    let config = FleetConfig::read(&args.config, !args.no_expand_env)?;
    let by_socket = config.socket.as_ref().and_then(|socket| ask_socket(&socket.path).ok());
    let all = match by_socket.or_else(|| config.addr.and_then(|addr| ask(addr).ok())) {
        Some(all) => all,
        None => config.files()?.into_iter().map(|(file, url, of)| look(&file, &url, of.keys.as_ref())).collect(),
    };
    let fails = all.iter().any(|one| one.get("error").is_some_and(|error| !error.is_null()));
    print_objects(all, &["db", "replica", "status", "txid", "lag_ms", "error"]);
    Ok(if fails { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Has the process that ships look at a database now; status 1 if the store does not have it.
pub fn ship(args: &Ship) -> Result<ExitCode> {
    end_at_signals()?;
    let config = FleetConfig::read(&args.config, !args.no_expand_env)?;
    let socket = config.socket.with_context(|| {
        format!(
            "{} has no socket: add socket: {{path: /run/onewrite/control.sock}}, and start again",
            args.config.display()
        )
    })?;
    let file = std::path::absolute(&args.file)?;
    let begun = std::time::Instant::now();
    let seconds = args.wait.as_secs().max(1);
    let request = json!({ "path": file.display().to_string(), "wait": true, "timeout": seconds }).to_string();
    let (status, text) = control::ask(&socket.path, "POST", "/sync", &request, args.wait + PATIENCE)?;
    let answer: Value =
        serde_json::from_str(&text).with_context(|| format!("{} answers: {text}", socket.path.display()))?;
    if status != 200 {
        bail!("{}: {}", file.display(), answer.get("error").and_then(Value::as_str).unwrap_or(&text));
    }
    let txid = answer.get("replicated_txid").and_then(Value::as_u64).unwrap_or(0);
    let (txid, ms) = (format!("{txid:016x}"), begun.elapsed().as_millis());
    if is_json() {
        let ms = u64::try_from(ms).unwrap_or(u64::MAX);
        print(&json!({ "db": file.display().to_string(), "txid": txid, "ms": ms }).to_string());
    } else {
        print(&format!("the store has transaction {txid} of {}, after {ms} ms", file.display()));
    }
    Ok(ExitCode::SUCCESS)
}

/// The databases of the process that listens at a socket.
fn ask_socket(path: &Path) -> Result<Vec<Value>> {
    let (status, text) = control::ask(path, "GET", "/replicas", "", PATIENCE)?;
    match serde_json::from_str(&text)? {
        Value::Array(all) if status == 200 => Ok(all),
        _ => bail!("{} is no process that ships", path.display()),
    }
}

/// The databases of the process that ships, as it shows them.
fn ask(mut addr: SocketAddr) -> Result<Vec<Value>> {
    if addr.ip().is_unspecified() {
        addr.set_ip(IpAddr::V4(Ipv4Addr::LOCALHOST));
    }
    let agent = ureq::Agent::config_builder().proxy(None).timeout_global(Some(PATIENCE)).build().new_agent();
    let mut answer = agent.get(format!("http://{addr}/replicas")).call()?;
    let text = answer.body_mut().read_to_string()?;
    match serde_json::from_str(&text)? {
        Value::Array(all) => Ok(all),
        _ => bail!("{addr} is no process that ships"),
    }
}

/// A database whose store is listed: no process ships it.
fn look(file: &Path, url: &str, keys: Option<&StoreKeys>) -> Value {
    let listed = store::open_with(url, keys).and_then(|store| store::list_all(&*store));
    let newest = listed.as_ref().ok().and_then(|all| all.iter().max_by_key(|entry| (entry.name.max, entry.time_ms)));
    json!({
        "db": file.display().to_string(),
        "replica": url,
        "status": if listed.is_ok() { "not running" } else { "error" },
        "txid": newest.map(|entry| format!("{:016x}", entry.name.max)),
        "lag_ms": Value::Null,
        "created": newest.map(|entry| times::shown(entry.time_ms)),
        "error": listed.as_ref().err().map(|e| format!("{e:#}")),
    })
}
