//! The configuration of `onewrite replicate --config`: YAML with Litestream's keys. A key or value
//! that is not served is an error with its line.

use crate::compact::Levels;
use crate::control::ControlSocket;
use crate::host;
use crate::secrets::{hide, hide_user};
use crate::ship::{Merges, Settings};
use crate::store::StoreKeys;
use anyhow::{Context, Result, anyhow, bail, ensure};
use glob::Pattern;
use onewrite_arguments::replicate::Replicate;
use onewrite_core::environment;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_encode, utf8_percent_encode};
use serde::Deserialize;
use serde_saphyr::{Error, Options, Spanned};
use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;
use url::Url;

/// The characters of a path in a URL that stay as they are.
const IN_PATH: &AsciiSet = &NON_ALPHANUMERIC.remove(b'/').remove(b'-').remove(b'.').remove(b'_').remove(b'~');
const LEVELS_MAX: usize = 8;
/// With a shorter interval the shipper stays among the database's processes during commits.
pub const STAYS_BELOW: Duration = Duration::from_millis(100);

type Text = Option<Spanned<String>>;

/// A configuration.
#[derive(Debug)]
pub struct FleetConfig {
    /// Its databases, in the order of the file.
    pub databases: Vec<ConfiguredDatabases>,
    /// Where counters and health are served.
    pub addr: Option<SocketAddr>,
    /// Where requests of this machine are served.
    pub socket: Option<ControlSocket>,
    /// The application, in words.
    pub exec: Option<Vec<String>>,
    /// How it tells of its work.
    pub logging: Logging,
}

/// A database, or those of a directory.
#[derive(Debug)]
pub struct ConfiguredDatabases {
    /// Where they are.
    pub place: DatabasesPlace,
    /// The store of the database, or the one that those of the directory have theirs below.
    pub url: String,
    /// Keys of the bucket, if the file names them.
    pub keys: Option<StoreKeys>,
    /// Time between two looks.
    pub interval: Duration,
    /// How to ship.
    pub settings: Settings,
    /// Restore it first where it is not there.
    pub restores: bool,
}

/// Where databases are.
#[derive(Debug)]
pub enum DatabasesPlace {
    /// One.
    File(PathBuf),
    /// Those of a directory.
    Directory {
        /// The directory.
        dir: PathBuf,
        /// Their names.
        pattern: Pattern,
        /// Also those in directories below.
        recursive: bool,
        /// Also those that come later.
        watch: bool,
    },
}

/// How it tells of its work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Logging {
    /// Lines are JSON.
    pub json: bool,
    /// The least level: 0 each batch, 1 all else, 2 warnings, 3 errors.
    pub least: u8,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct RootKeys {
    dbs: Option<Vec<DatabaseKeys>>,
    addr: Text,
    socket: Option<SocketKeys>,
    exec: Text,
    logging: Option<LoggingKeys>,
    snapshot: Option<SnapshotKeys>,
    levels: Option<Vec<LevelKeys>>,
    l0_retention: Text,
    sync_interval: Text,
    access_key_id: Text,
    secret_access_key: Text,
    account_name: Text,
    account_key: Text,
    sas_token: Text,
    region: Text,
    endpoint: Text,
    bucket: Text,
    force_path_style: Text,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct SocketKeys {
    enabled: Text,
    path: Text,
    permissions: Text,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct LoggingKeys {
    level: Text,
    r#type: Text,
    stderr: Text,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct SnapshotKeys {
    interval: Text,
    retention: Text,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct LevelKeys {
    interval: Spanned<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct DatabaseKeys {
    path: Text,
    dir: Text,
    pattern: Text,
    recursive: Text,
    watch: Text,
    replica: Option<Spanned<ReplicaKeys>>,
    replicas: Option<Spanned<Vec<Spanned<ReplicaKeys>>>>,
    restore_if_db_not_exists: Text,
    sync: Text,
    ship_timeout: Text,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct ReplicaKeys {
    r#type: Text,
    url: Text,
    path: Text,
    bucket: Text,
    region: Text,
    endpoint: Text,
    force_path_style: Text,
    access_key_id: Text,
    secret_access_key: Text,
    account_name: Text,
    account_key: Text,
    sas_token: Text,
    host: Text,
    user: Text,
    username: Text,
    password: Text,
    key_path: Text,
    host_key: Text,
    webdav_url: Text,
    webdav_username: Text,
    webdav_password: Text,
    token: Text,
    creds: Text,
    tls: Text,
    root_cas: Option<Vec<Spanned<String>>>,
    client_cert: Text,
    client_key: Text,
    sync_interval: Text,
}

/// Reads values of one file.
struct Values<'a> {
    file: &'a Path,
    expands: bool,
    /// Of the options.
    defaults: Replicate,
}

impl Values<'_> {
    fn fail(&self, line: u64, why: impl std::fmt::Display) -> anyhow::Error {
        anyhow!("{}:{line}: {why}", self.file.display())
    }

    /// The value, with variables of the environment, and its line.
    fn text(&self, of: Option<&Spanned<String>>) -> Result<Option<(String, u64)>> {
        let Some(of) = of else { return Ok(None) };
        let line = of.referenced.line();
        let text = if self.expands { expanded(&of.value).map_err(|e| self.fail(line, e))? } else { of.value.clone() };
        Ok(Some((text, line)))
    }

    fn plain(&self, of: Option<&Spanned<String>>) -> Result<Option<String>> {
        Ok(self.text(of)?.map(|(text, _)| text))
    }

    fn parsed<T>(&self, of: Option<&Spanned<String>>, parse: impl Fn(&str) -> Result<T>) -> Result<Option<T>> {
        let Some((text, line)) = self.text(of)? else { return Ok(None) };
        parse(&text).map(Some).map_err(|e| self.fail(line, format!("{e:#}")))
    }

    fn time(&self, of: Option<&Spanned<String>>) -> Result<Option<Duration>> {
        self.parsed(of, |text| {
            humantime::parse_duration(text).map_err(|e| anyhow!("{text}: {e}: write it like 500ms, 30s, 5m or 24h"))
        })
    }

    fn flag(&self, of: Option<&Spanned<String>>) -> Result<Option<bool>> {
        self.parsed(of, |text| text.parse().map_err(|_| anyhow!("{text} is neither true nor false")))
    }

    fn path(&self, of: Option<&Spanned<String>>) -> Result<Option<PathBuf>> {
        self.parsed(of, |text| match text.strip_prefix("~/") {
            Some(rest) => {
                let home = environment::variable(host::HOME).with_context(|| format!("{} is not set", host::HOME))?;
                Ok(PathBuf::from(home).join(rest))
            }
            None => std::path::absolute(text).with_context(|| format!("cannot find {text}")),
        })
    }
}

/// The text with the values of `$NAME` and `${NAME}`.
fn expanded(text: &str) -> Result<String> {
    let (mut all, mut rest) = (String::new(), text);
    while let Some((before, behind)) = rest.split_once('$') {
        all += before;
        let (name, after) = match behind.strip_prefix('{') {
            Some(braced) => braced.split_once('}').with_context(|| format!("there is no }} behind ${behind}"))?,
            None => {
                let end = behind.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(behind.len());
                behind.split_at(end)
            }
        };
        ensure!(!name.is_empty(), "a $ names no variable: write ${{NAME}}, or give --no-expand-env");
        let value = match name {
            "PID" => std::process::id().to_string(),
            _ => environment::variable(name)
                .with_context(|| {
                    format!("the variable {name} is not set (with --no-expand-env a $ is a plain character)")
                })?
                .into_string()
                .map_err(|_| anyhow!("the variable {name} is no text in UTF-8"))?,
        };
        all += &value;
        rest = after;
    }
    Ok(all + rest)
}

impl FleetConfig {
    /// Reads the file; `expands`: values have variables of the environment.
    pub fn read(file: &Path, expands: bool) -> Result<FleetConfig> {
        let text = std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
        FleetConfig::parse(file, &text, expands)
    }

    fn parse(file: &Path, text: &str, expands: bool) -> Result<FleetConfig> {
        let mut options = Options::default();
        // The lines of a file may have secrets.
        options.with_snippet = false;
        let root: RootKeys = serde_saphyr::from_str_with_options(text, options).map_err(|e| wrong(file, &e))?;
        let values = Values { file, expands, defaults: Replicate::defaults()? };
        let mut databases = Vec::new();
        for keys in root.dbs.iter().flatten() {
            databases.push(values.database(&root, keys)?);
        }
        only_once(&databases).map_err(|e| anyhow!("{}: {e}", file.display()))?;
        ensure!(!databases.is_empty(), "{} names no database: dbs: has path: or dir: of each", file.display());
        let exec = values.parsed(root.exec.as_ref(), |text| {
            let words = shlex::split(text).filter(|words| !words.is_empty());
            words.context("exec: is no command: a quote does not end")
        })?;
        let addr = values.parsed(root.addr.as_ref(), address)?;
        let socket = values.socket(root.socket.as_ref())?;
        Ok(FleetConfig { databases, addr, socket, exec, logging: values.logging(root.logging.as_ref())? })
    }

    /// The databases that are files, and those that a directory has now.
    pub fn files(&self) -> Result<Vec<(PathBuf, String, &ConfiguredDatabases)>> {
        let mut all = Vec::new();
        for of in &self.databases {
            for file in of.files()? {
                let url = of.url_of(&file);
                all.push((file, url, of));
            }
        }
        Ok(all)
    }
}

/// An address as `:9090` is of all networks of this machine, as with Litestream.
fn address(text: &str) -> Result<SocketAddr> {
    let all = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
    let port = text.strip_prefix(':').and_then(|port| Some(SocketAddr::new(all, port.parse().ok()?)));
    let parsed = || text.parse().ok();
    port.or_else(parsed).with_context(|| format!("{text} is no address: write it like 127.0.0.1:9090 or :9090"))
}

/// Refuses two databases in one store, and two stores of one database.
fn only_once(databases: &[ConfiguredDatabases]) -> Result<()> {
    let mut known = BTreeSet::new();
    for of in databases {
        let path = of.place.path().display();
        ensure!(known.insert(path.to_string()), "{path} is there twice: a database has one replica");
        let url = of.url.split_once('?').map_or(of.url.as_str(), |(base, _)| base).trim_end_matches('/');
        ensure!(known.insert(url.to_owned()), "{url} is there twice: each database has a store of its own");
    }
    Ok(())
}

fn wrong(file: &Path, error: &Error) -> anyhow::Error {
    let place = error.location().map(|at| at.line());
    let why = match error.without_snippet() {
        Error::SerdeUnknownField { field, expected, .. } => {
            format!("{field}: is not served; those served here are {}", expected.join(", "))
        }
        other => other.to_string(),
    };
    match place {
        Some(line) => anyhow!("{}:{line}: {why}", file.display()),
        None => anyhow!("{}: {why}", file.display()),
    }
}

impl Values<'_> {
    /// Named, it is on, unless `enabled` says otherwise. Litestream's default path is of root.
    fn socket(&self, keys: Option<&SocketKeys>) -> Result<Option<ControlSocket>> {
        let Some(keys) = keys else { return Ok(None) };
        let enabled = self.parsed(keys.enabled.as_ref(), |text| {
            text.parse::<bool>().with_context(|| format!("enabled: {text} is neither true nor false"))
        })?;
        let mode = self.parsed(keys.permissions.as_ref(), |text| {
            let digits = text.strip_prefix("0o").unwrap_or(text);
            let mode = u32::from_str_radix(digits, 8).ok().filter(|mode| *mode <= 0o777);
            mode.with_context(|| format!("permissions: {text} are none: write them like 0600"))
        })?;
        let path = self.plain(keys.path.as_ref())?.unwrap_or_else(|| "/var/run/litestream.sock".to_owned());
        let socket = ControlSocket { path: PathBuf::from(path), mode: mode.unwrap_or(0o600) };
        Ok((enabled != Some(false)).then_some(socket))
    }

    fn logging(&self, keys: Option<&LoggingKeys>) -> Result<Logging> {
        let Some(keys) = keys else { return Ok(Logging { json: false, least: 1 }) };
        let least = self.parsed(keys.level.as_ref(), |text| match text.to_ascii_lowercase().as_str() {
            "trace" | "debug" => Ok(0),
            "info" => Ok(1),
            "warn" => Ok(2),
            "error" => Ok(3),
            _ => bail!("level {text} is not served: debug, info, warn, error"),
        })?;
        let json = self.parsed(keys.r#type.as_ref(), |text| match text {
            "text" => Ok(false),
            "json" => Ok(true),
            _ => bail!("type {text} is not served: text, json"),
        })?;
        self.parsed(keys.stderr.as_ref(), |text| {
            ensure!(text == "true", "all lines go to stderr: leave it out, or write true");
            Ok(())
        })?;
        Ok(Logging { json: json.unwrap_or(false), least: least.unwrap_or(1) })
    }

    fn database(&self, root: &RootKeys, keys: &DatabaseKeys) -> Result<ConfiguredDatabases> {
        let of_one = [&keys.restore_if_db_not_exists, &keys.sync, &keys.ship_timeout];
        let of_many = [&keys.pattern, &keys.recursive, &keys.watch];
        let place = match (&keys.path, &keys.dir) {
            (Some(path), None) => {
                if let Some(other) = of_many.into_iter().flatten().next() {
                    return Err(self.fail(other.referenced.line(), "pattern, recursive and watch are of a dir:"));
                }
                DatabasesPlace::File(self.path(Some(path))?.unwrap_or_default())
            }
            (None, Some(dir)) => {
                let line = dir.referenced.line();
                if let Some(other) = of_one.into_iter().flatten().next() {
                    let why = "sync, ship-timeout and restore-if-db-not-exists are of a path:, since the application must wait";
                    return Err(self.fail(other.referenced.line(), why));
                }
                let pattern = self.parsed(keys.pattern.as_ref(), |text| Ok(Pattern::new(text)?))?;
                DatabasesPlace::Directory {
                    dir: self.path(Some(dir))?.unwrap_or_default(),
                    pattern: pattern.ok_or_else(|| self.fail(line, "dir: needs pattern:, like \"*.db\""))?,
                    recursive: self.flag(keys.recursive.as_ref())?.unwrap_or(false),
                    watch: self.flag(keys.watch.as_ref())?.unwrap_or(false),
                }
            }
            (Some(path), Some(_)) => return Err(self.fail(path.referenced.line(), "path: and dir: exclude each other")),
            (None, None) => bail!("{}: an entry of dbs: has neither path: nor dir:", self.file.display()),
        };
        let replica = self.replica(keys, &place)?;
        let (url, store_keys) = self.store(root, replica)?;
        let interval = replica.value.sync_interval.as_ref().or(root.sync_interval.as_ref());
        let interval = self.time(interval)?.unwrap_or(self.defaults.interval);
        ensure!(!interval.is_zero(), self.fail(replica.referenced.line(), "sync-interval has to be longer than 0"));
        let settings = self.settings(root, keys, interval)?;
        let restores = self.flag(keys.restore_if_db_not_exists.as_ref())?.unwrap_or(false);
        Ok(ConfiguredDatabases { place, url, keys: store_keys, interval, settings, restores })
    }

    fn replica<'b>(&self, keys: &'b DatabaseKeys, place: &DatabasesPlace) -> Result<&'b Spanned<ReplicaKeys>> {
        let all = keys.replicas.as_ref();
        match (&keys.replica, all.map(|all| (all.value.as_slice(), all.referenced.line()))) {
            (Some(one), None) | (None, Some(([one], _))) => Ok(one),
            (_, Some((_, line))) => Err(self.fail(line, "a database has one replica")),
            (None, None) => bail!("{}: {} has no replica:", self.file.display(), place.path().display()),
        }
    }

    fn settings(&self, root: &RootKeys, keys: &DatabaseKeys, interval: Duration) -> Result<Settings> {
        let defaults = &self.defaults;
        let mut intervals = Vec::new();
        for level in root.levels.iter().flatten() {
            let line = level.interval.referenced.line();
            let time = self.time(Some(&level.interval))?.unwrap_or_default();
            ensure!(
                intervals.last().is_none_or(|before| *before <= time),
                self.fail(line, "each level merges files of the one before, its interval cannot be shorter")
            );
            intervals.push(time);
            ensure!(intervals.len() <= LEVELS_MAX, self.fail(line, "there are levels 1 to 8"));
        }
        if root.levels.is_none() {
            intervals.clone_from(&defaults.levels);
        }
        let snapshot = root.snapshot.as_ref();
        let retention = self.time(snapshot.and_then(|keys| keys.retention.as_ref()))?.unwrap_or(defaults.retention);
        let keep_batches = self.time(root.l0_retention.as_ref())?.unwrap_or(defaults.keep_batches);
        let patience = self.time(keys.ship_timeout.as_ref())?;
        let sync = self.flag(keys.sync.as_ref())?.unwrap_or(false);
        if let (Some(of), false) = (&keys.ship_timeout, sync) {
            return Err(self.fail(of.referenced.line(), "ship-timeout is of sync: true"));
        }
        Ok(Settings {
            snapshot_interval: self
                .time(snapshot.and_then(|keys| keys.interval.as_ref()))?
                .unwrap_or(defaults.snapshot_interval),
            levels: Some(Levels { intervals, keep_batches, retention }),
            sync: sync.then(|| patience.unwrap_or(defaults.ship_timeout)),
            merges: if sync { Merges::OnThread } else { Merges::ByCaller },
            stays: interval <= STAYS_BELOW,
        })
    }

    /// The store's URL, and its keys.
    fn store(&self, root: &RootKeys, replica: &Spanned<ReplicaKeys>) -> Result<(String, Option<StoreKeys>)> {
        let (keys, line) = (&replica.value, replica.referenced.line());
        let kind = self.plain(keys.r#type.as_ref())?;
        let url = self.plain(keys.url.as_ref())?;
        let path = self.plain(keys.path.as_ref())?;
        if let Some(url) = &url {
            hide_user(url);
            ensure!(path.is_none(), self.fail(line, "url: and path: exclude each other"));
        }
        let scheme = url.as_ref().and_then(|url| url.split_once("://")).map(|(scheme, _)| scheme.to_owned());
        let bucket = self.plain(keys.bucket.as_ref().or(root.bucket.as_ref()))?;
        let kind = scheme.or(kind).unwrap_or_else(|| "file".to_owned());
        let account = self.plain(keys.account_name.as_ref().or(root.account_name.as_ref()))?;
        let mut base = match (kind.as_str(), url, path) {
            ("file" | "s3" | "gs" | "abs", Some(url), _) => url,
            ("sftp" | "webdav" | "webdavs" | "nats", url, path) => self.url_of_server(&kind, url, path, replica)?,
            ("file", None, Some(path)) => {
                let path =
                    std::path::absolute(&path).map_err(|e| self.fail(line, format!("cannot find {path}: {e}")))?;
                format!("file://{}", percent_encode(&host::url_path(&path), IN_PATH))
            }
            ("s3" | "gs" | "abs", None, path) => {
                let bucket =
                    bucket.ok_or_else(|| self.fail(line, format!("a replica of type {kind} needs bucket:")))?;
                let account = account.as_deref().filter(|_| kind == "abs");
                let account =
                    account.map_or(String::new(), |name| format!("{}@", utf8_percent_encode(name, NON_ALPHANUMERIC)));
                let path = path.unwrap_or_default();
                format!("{kind}://{account}{bucket}/{}", utf8_percent_encode(path.trim_start_matches('/'), IN_PATH))
            }
            ("file", None, None) => return Err(self.fail(line, "a replica needs url:, or path:")),
            _ => {
                return Err(
                    self.fail(line, format!("type {kind} is not served: file, s3, gs, abs, sftp, webdav, nats"))
                );
            }
        };
        let is_s3 = kind == "s3";
        let named = [
            ("region", is_s3, keys.region.as_ref().or(root.region.as_ref())),
            ("endpoint", matches!(&*kind, "s3" | "gs" | "abs"), keys.endpoint.as_ref().or(root.endpoint.as_ref())),
            ("force-path-style", is_s3, keys.force_path_style.as_ref().or(root.force_path_style.as_ref())),
        ];
        for (name, _, value) in named.into_iter().filter(|(_, is_known, _)| *is_known) {
            let has = base
                .split_once('?')
                .is_some_and(|(_, all)| all.split('&').any(|one| one.starts_with(&format!("{name}="))));
            if let Some(mut value) = self.plain(value)?.filter(|_| !has) {
                if name == "endpoint" && !value.contains("://") {
                    value = format!("https://{value}");
                }
                base.push(if base.contains('?') { '&' } else { '?' });
                base += &format!("{name}={}", utf8_percent_encode(&value, NON_ALPHANUMERIC));
            }
        }
        let keys = self.store_keys(&kind, account, root, replica)?;
        Ok((base, keys))
    }

    /// The URL of a server, with the login and the parameters that keys name.
    fn url_of_server(
        &self,
        kind: &str,
        url: Option<String>,
        path: Option<String>,
        replica: &Spanned<ReplicaKeys>,
    ) -> Result<String> {
        let (keys, line) = (&replica.value, replica.referenced.line());
        let needs = |key: &str| self.fail(line, format!("a replica of type {kind} needs url:{key}"));
        let is_nats = kind == "nats";
        let webdav = match kind {
            "sftp" | "nats" => None,
            _ => self.plain(keys.webdav_url.as_ref())?,
        };
        let (base, user, password) = match (kind, url, webdav) {
            ("sftp", url, _) => {
                let host = self.plain(keys.host.as_ref())?.map(|host| format!("sftp://{host}"));
                (url.or(host).ok_or_else(|| needs(", or host:")), &keys.user, &keys.password)
            }
            ("nats", url, _) => (url.ok_or_else(|| needs(" like nats://host/bucket")), &keys.username, &keys.password),
            (_, Some(url), _) => (Ok(url), &keys.webdav_username, &keys.webdav_password),
            (_, None, Some(url)) => {
                let url = url.strip_prefix("http").map(|rest| format!("webdav{rest}"));
                let url = url.ok_or_else(|| self.fail(line, "webdav-url: begins with http:// or https://"));
                (url, &keys.webdav_username, &keys.webdav_password)
            }
            (..) => (Err(needs(", or webdav-url:")), &keys.webdav_username, &keys.webdav_password),
        };
        let mut url = Url::parse(&base?).map_err(|e| self.fail(line, format!("it is no URL: {e}")))?;
        let unusable = |()| self.fail(line, "the URL names no server");
        if let Some(user) = self.plain(user.as_ref().or(keys.token.as_ref().filter(|_| is_nats)))? {
            url.set_username(&user).map_err(unusable)?;
        }
        if let Some(password) = self.plain(password.as_ref())? {
            hide(&password);
            url.set_password(Some(&password)).map_err(unusable)?;
        }
        if let Some(path) = path {
            let base = url.path().trim_end_matches('/').to_owned();
            url.set_path(&format!("{base}/{}", utf8_percent_encode(path.trim_start_matches('/'), IN_PATH)));
        }
        let parameters = [
            ("key-path", kind == "sftp", &keys.key_path),
            ("host-key", kind == "sftp", &keys.host_key),
            ("creds", is_nats, &keys.creds),
            ("tls", is_nats, &keys.tls),
            ("client-cert", is_nats, &keys.client_cert),
            ("client-key", is_nats, &keys.client_key),
        ];
        let parameters = parameters.into_iter().map(|(name, is_known, value)| (name, is_known, value.as_ref()));
        let roots = keys.root_cas.iter().flatten().map(|root| ("root-ca", is_nats, Some(root)));
        for (name, _, value) in parameters.chain(roots).filter(|(_, is_known, _)| *is_known) {
            if let Some(value) = self.plain(value)? {
                url.query_pairs_mut().append_pair(name, &value);
            }
        }
        Ok(url.into())
    }

    fn store_keys(
        &self,
        kind: &str,
        account: Option<String>,
        root: &RootKeys,
        replica: &Spanned<ReplicaKeys>,
    ) -> Result<Option<StoreKeys>> {
        let (keys, line) = (&replica.value, replica.referenced.line());
        let [named, secret, token] = match kind {
            "s3" => [
                self.plain(keys.access_key_id.as_ref().or(root.access_key_id.as_ref()))?,
                self.plain(keys.secret_access_key.as_ref().or(root.secret_access_key.as_ref()))?,
                None,
            ],
            "abs" => [
                account,
                self.plain(keys.account_key.as_ref().or(root.account_key.as_ref()))?,
                self.plain(keys.sas_token.as_ref().or(root.sas_token.as_ref()))?,
            ],
            _ => return Ok(None),
        };
        if let Some(token) = token {
            hide(&token);
            return Ok(Some(StoreKeys::Token(token)));
        }
        match (named, secret) {
            (Some(id), Some(secret)) => {
                hide(&secret);
                Ok(Some(StoreKeys::Pair { id, secret }))
            }
            (None, None) => Ok(None),
            // The account alone says where: the environment has its key.
            (Some(_), None) if kind == "abs" => Ok(None),
            // The account may stand in the URL.
            (None, Some(secret)) if kind == "abs" => {
                hide(&secret);
                Ok(Some(StoreKeys::Pair { id: String::new(), secret }))
            }
            _ => Err(self.fail(line, "access-key-id and secret-access-key belong together")),
        }
    }
}

impl DatabasesPlace {
    fn path(&self) -> &Path {
        match self {
            DatabasesPlace::File(path) | DatabasesPlace::Directory { dir: path, .. } => path,
        }
    }
}

impl ConfiguredDatabases {
    /// Whether databases may come later.
    pub fn is_watched(&self) -> bool {
        matches!(self.place, DatabasesPlace::Directory { watch: true, .. })
    }

    /// The database, there or not, or those that the directory has now.
    pub fn files(&self) -> Result<Vec<PathBuf>> {
        self.files_beyond(&|_| false)
    }

    /// The same; of those that are `known` none is opened.
    pub fn files_beyond(&self, known: &dyn Fn(&Path) -> bool) -> Result<Vec<PathBuf>> {
        match &self.place {
            DatabasesPlace::File(file) => Ok(vec![file.clone()]),
            DatabasesPlace::Directory { dir, pattern, recursive, .. } => {
                let mut all = Vec::new();
                look_in(dir, (pattern, *recursive), known, &mut all)
                    .with_context(|| format!("cannot read {}", dir.display()))?;
                all.sort();
                Ok(all)
            }
        }
    }

    /// The store of one of its files.
    pub fn url_of(&self, file: &Path) -> String {
        let DatabasesPlace::Directory { dir, .. } = &self.place else { return self.url.clone() };
        let below = file.strip_prefix(dir).unwrap_or(file);
        let below = percent_encode(&host::url_path(below), IN_PATH).to_string();
        let (base, parameters) = match self.url.split_once('?') {
            Some((base, parameters)) => (base, format!("?{parameters}")),
            None => (self.url.as_str(), String::new()),
        };
        format!("{}/{below}{parameters}", base.trim_end_matches('/'))
    }
}

/// Files of SQLite, and of onewrite, beside a database.
const BESIDE: [&str; 9] =
    ["-onewrite", "-journal", "-wal", "-shm", "-node", "-follow", "-onewrite-sync", "-promoting", ".diverged"];
const MAGIC: &[u8] = b"SQLite format 3\0";

fn look_in(
    dir: &Path,
    of: (&Pattern, bool),
    known: &dyn Fn(&Path) -> bool,
    all: &mut Vec<PathBuf>,
) -> std::io::Result<()> {
    let (pattern, recursive) = of;
    for found in std::fs::read_dir(dir)? {
        let found = found?;
        let (path, kind) = (found.path(), found.file_type()?);
        if kind.is_dir() && recursive {
            // One that is gone, or another user's, hides no others.
            let _skipped = look_in(&path, of, known, all);
        }
        let name = found.file_name();
        let name = name.to_string_lossy();
        let is_other = name.starts_with(".onewrite") || BESIDE.iter().any(|end| name.ends_with(end));
        if kind.is_file() && !is_other && pattern.matches(&name) && (known(&path) || has_magic(&path)) {
            all.push(path);
        }
    }
    Ok(())
}

fn has_magic(path: &Path) -> bool {
    use std::io::Read;
    let mut first = [0; 16];
    let open = crate::local::open_regular(path, std::fs::File::options().read(true));
    open.is_ok_and(|mut file| file.read_exact(&mut first).is_ok()) && first == MAGIC
}

#[cfg(test)]
mod tests;
