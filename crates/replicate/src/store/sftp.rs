//! A store on an SSH server (SFTP, version 3), laid out as Litestream's `sftp` replicas: a file's
//! time is that of its state.
//!
//! A file is written under another name, flushed, and linked to its own. So readers never see a
//! part of it, and a name is taken once: commits may wait for such a store.

use super::directory::{self, RemoteDirectory, level_dir, make_level, unfinished};
use super::http::{again, patience_of};
use super::keys::variable;
use super::runtime::runtime;
use super::spool::{PART_BYTES, holds, spooled};
use super::{Away, Conditions, Entry, Fill, Name, OWNER_BYTES_MAX, Store, Version, check_count};
use crate::ending::Moving;
use crate::host::HOME;
use crate::local::locked;
use crate::report::{COUNTERS, Request};
use crate::secrets::hide;
use anyhow::{Context, Error, Result, anyhow, bail, ensure};
use percent_encoding::percent_decode_str;
use russh::client::{self, Handle};
#[cfg(unix)]
use russh::keys::agent::{AgentIdentity, client::AgentClient};
use russh::keys::{PrivateKeyWithHashAlg, PublicKeyOrCertificate, known_hosts};
use russh_sftp::client::SftpSession;
use russh_sftp::client::error::Error as SftpError;
use russh_sftp::protocol::{FileAttributes, OpenFlags, StatusCode};
use std::fmt;
use std::fs::File;
use std::future::Future;
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncSeekExt, AsyncWriteExt};
use tokio::runtime::Runtime;
use tokio::time::timeout;
use url::Url;

const EXAMPLE: &str = "name a directory as sftp://user@host/path";
/// Keys that are tried without `key-path`, below the home directory.
const KEYS: [&str; 3] = [".ssh/id_ed25519", ".ssh/id_ecdsa", ".ssh/id_rsa"];
/// Longest wait for an answer, shorter where commits wait for the store.
const PATIENCE: Duration = Duration::from_secs(10);

pub(super) struct Sftp {
    server: Arc<Server>,
    /// Path of the store, with a slash at its end.
    path: String,
}

/// A server and a user of it: all stores there share a connection.
struct Server {
    user: String,
    host: String,
    port: u16,
    password: Option<String>,
    key_path: Option<String>,
    host_key: Option<String>,
    patience_ms: AtomicU64,
    session: Mutex<Option<Arc<SshSession>>>,
}

struct SshSession {
    sftp: SftpSession,
    /// It lives as long as this.
    _connection: Handle<HostKeyCheck>,
}

/// Accepts the server's key if it is known.
struct HostKeyCheck {
    host: String,
    port: u16,
    host_key: Option<String>,
    /// Why not.
    refused: Arc<Mutex<Option<String>>>,
}

impl client::Handler for HostKeyCheck {
    type Error = russh::Error;

    async fn check_server_key(&mut self, key: &PublicKeyOrCertificate) -> Result<bool, russh::Error> {
        let key = key.public_key();
        let known = match &self.host_key {
            Some(text) => {
                let given = russh::keys::PublicKey::from_openssh(text);
                given.map(|given| given.key_data() == key.key_data()).map_err(|e| e.to_string())
            }
            None => known_hosts_file().ok_or_else(|| "there is no home directory".to_owned()).and_then(|file| {
                known_hosts::check_known_hosts_path(&self.host, self.port, &key, file).map_err(|e| e.to_string())
            }),
        };
        let is_known = matches!(known, Ok(true));
        if !is_known {
            let why = known.err().unwrap_or_else(|| "it is not known".to_owned());
            let print = key.fingerprint(russh::keys::HashAlg::Sha256);
            let port = self.port;
            *locked(&self.refused) = Some(format!(
                "the key of the server {} is {print}, and {why}: if it is the right one, `ssh-keyscan -p {port} {} >> ~/.ssh/known_hosts`, \
                 or name it as ?host-key=",
                self.host, self.host
            ));
        }
        Ok(is_known)
    }
}

fn known_hosts_file() -> Option<PathBuf> {
    Some(PathBuf::from(variable(&[HOME])?).join(".ssh/known_hosts"))
}

impl Server {
    fn shared(server: Server) -> Arc<Server> {
        static SHARED: Mutex<Vec<Arc<Server>>> = Mutex::new(Vec::new());
        let mut shared = locked(&SHARED);
        if let Some(known) = shared.iter().find(|known| known.is(&server)) {
            return known.clone();
        }
        let server = Arc::new(server);
        shared.push(server.clone());
        server
    }

    fn is(&self, other: &Server) -> bool {
        let parts = |of: &Server| {
            (of.user.clone(), of.host.clone(), of.port, of.password.clone(), of.key_path.clone(), of.host_key.clone())
        };
        parts(self) == parts(other)
    }

    fn patience(&self) -> Duration {
        Duration::from_millis(self.patience_ms.load(SeqCst))
    }

    async fn connect(&self) -> Result<SshSession> {
        let at = format!("{}:{}", self.host, self.port);
        let config =
            client::Config { keepalive_interval: Some(self.patience()), nodelay: true, ..client::Config::default() };
        let refused = Arc::new(Mutex::new(None));
        let (host, port, host_key) = (self.host.clone(), self.port, self.host_key.clone());
        let check = HostKeyCheck { host, port, host_key, refused: refused.clone() };
        let to = (self.host.trim_matches(['[', ']']), self.port);
        let connected = client::connect(Arc::new(config), to, check).await;
        if let Some(why) = locked(&refused).take() {
            bail!("{why}");
        }
        let mut connection = connected.with_context(|| format!("no answer from {at}")).context(Away)?;
        self.authenticate(&mut connection).await.with_context(|| format!("{at} does not admit {}", self.user))?;
        let channel = connection.channel_open_session().await.context(Away)?;
        channel.request_subsystem(true, "sftp").await.with_context(|| format!("{at} has no SFTP"))?;
        let sftp = SftpSession::new(channel.into_stream()).await.map_err(|e| anyhow!("{at} has no SFTP: {e}"))?;
        sftp.set_timeout(self.patience().as_secs().max(1));
        Ok(SshSession { sftp, _connection: connection })
    }

    async fn authenticate(&self, connection: &mut Handle<HostKeyCheck>) -> Result<()> {
        if let Some(password) = &self.password {
            let answer = connection.authenticate_password(&self.user, password).await.context(Away)?;
            ensure!(answer.success(), "the password is refused");
            return Ok(());
        }
        #[cfg(unix)]
        if self.key_path.is_none() && self.agent_admits(connection).await? {
            return Ok(());
        }
        let home = variable(&[HOME]).map(PathBuf::from).unwrap_or_default();
        let files = match &self.key_path {
            Some(path) => vec![PathBuf::from(path)],
            None => KEYS.iter().map(|name| home.join(name)).filter(|path| path.exists()).collect(),
        };
        ensure!(
            !files.is_empty(),
            "no key is there: name one as ?key-path=, put it into ~/.ssh or an agent, or set SFTP_PASSWORD"
        );
        for file in &files {
            let passphrase = variable(&["SFTP_KEY_PASSPHRASE"]);
            if let Some(passphrase) = &passphrase {
                hide(passphrase);
            }
            let key = russh::keys::load_secret_key(file, passphrase.as_deref()).with_context(|| {
                format!(
                    "cannot use the key {}: SFTP_KEY_PASSPHRASE has its passphrase, or an agent the key",
                    file.display()
                )
            })?;
            let hash = connection.best_supported_rsa_hash().await.context(Away)?.flatten();
            let key = PrivateKeyWithHashAlg::new(Arc::new(key), hash);
            if connection.authenticate_publickey(&self.user, key).await.context(Away)?.success() {
                return Ok(());
            }
        }
        let shown: Vec<_> = files.iter().map(|file| file.display().to_string()).collect();
        bail!("it refuses {}", shown.join(", "))
    }

    /// Tries the keys of the agent, if one runs.
    #[cfg(unix)]
    async fn agent_admits(&self, connection: &mut Handle<HostKeyCheck>) -> Result<bool> {
        let Some(socket) = variable(&["SSH_AUTH_SOCK"]) else { return Ok(false) };
        // Without it the files are tried.
        let Ok(mut agent) = AgentClient::connect_uds(socket).await else { return Ok(false) };
        let known = agent.request_identities().await.unwrap_or_default();
        let hash = connection.best_supported_rsa_hash().await.context(Away)?.flatten();
        for identity in known {
            let AgentIdentity::PublicKey { key, .. } = identity else { continue };
            let hash = hash.filter(|_| key.algorithm().is_rsa());
            let answer = connection.authenticate_publickey_with(&self.user, key, hash, &mut agent).await;
            if answer.is_ok_and(|answer| answer.success()) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Does a step on the connection, again on another one if that is lost.
    fn run<T, F: Future<Output = Result<T, SftpError>>>(
        &self,
        kind: Request,
        step: impl Fn(Arc<SshSession>) -> F,
    ) -> Result<(Result<T, SftpError>, bool)> {
        let mut tries = 1;
        loop {
            COUNTERS.request(kind);
            COUNTERS.bucket("sftp", kind);
            let patience = self.patience();
            let done = runtime()?.block_on(async {
                let known = locked(&self.session).clone();
                let session = match known {
                    Some(session) => session,
                    None => {
                        let made = timeout(patience, self.connect()).await;
                        let made = Arc::new(made.map_err(|_| anyhow!("no answer from {}", self.host).context(Away))??);
                        *locked(&self.session) = Some(made.clone());
                        made
                    }
                };
                Ok::<_, Error>((step(session.clone()).await, session))
            });
            let lost = match done {
                Ok((Err(e), session)) if is_lost(&e) => {
                    // Another thread may have made another one.
                    let mut now = locked(&self.session);
                    if now.as_ref().is_some_and(|now| Arc::ptr_eq(now, &session)) {
                        *now = None;
                    }
                    anyhow!("no answer from {}: {e}", self.host).context(Away)
                }
                Ok((done, _)) => return Ok((done, tries > 1)),
                Err(e) if e.is::<Away>() => e,
                Err(e) => return Err(e),
            };
            if !again(&mut tries) {
                return Err(lost);
            }
        }
    }
}

/// Whether the connection is of no more use.
fn is_lost(error: &SftpError) -> bool {
    match error {
        SftpError::Status(status) => {
            matches!(status.status_code, StatusCode::NoConnection | StatusCode::ConnectionLost)
        }
        SftpError::Limited(_) => false,
        _ => true,
    }
}

fn is_missing(error: &SftpError) -> bool {
    matches!(error, SftpError::Status(status) if status.status_code == StatusCode::NoSuchFile)
}

impl Sftp {
    pub(super) fn new(url: &str) -> Result<Sftp> {
        let parsed = Url::parse(url).with_context(|| format!("{url} is no URL: {EXAMPLE}"))?;
        let host = parsed.host_str().filter(|host| !host.is_empty());
        let host = host.with_context(|| format!("{url} names no server: {EXAMPLE}"))?.to_owned();
        let decoded = |text: &str| percent_decode_str(text).decode_utf8_lossy().into_owned();
        let user = Some(decoded(parsed.username())).filter(|user| !user.is_empty());
        let user = user.with_context(|| format!("{url} names no user: {EXAMPLE}"))?;
        let password = parsed.password().map(decoded).or_else(|| variable(&["SFTP_PASSWORD"]));
        if let Some(password) = &password {
            hide(password);
        }
        let (mut key_path, mut host_key) = (None, None);
        for (key, value) in parsed.query_pairs() {
            match &*key {
                "key-path" => key_path = Some(value.into_owned()),
                "host-key" => host_key = Some(value.into_owned()),
                _ => bail!("{url}: those parameters there are, are key-path, host-key"),
            }
        }
        let path = decoded(parsed.path());
        let path = path.trim_end_matches('/');
        // A path that does not begin with a slash is below the user's home.
        let path = path.strip_prefix("/~/").unwrap_or(path);
        ensure!(!path.is_empty() && path != "/~", "{url} names no directory: {EXAMPLE}");
        let server = Server {
            user,
            host,
            port: parsed.port().unwrap_or(22),
            password,
            key_path,
            host_key,
            patience_ms: AtomicU64::new(PATIENCE.as_millis() as u64),
            session: Mutex::new(None),
        };
        Ok(Sftp { server: Server::shared(server), path: format!("{path}/") })
    }

    fn full(&self, name: &str) -> String {
        format!("{}{name}", self.path)
    }

    fn shown(&self, name: &str) -> String {
        let full = self.full(name);
        let home = if full.starts_with('/') { "" } else { "/~/" };
        format!("sftp://{}{home}{full}", self.server.host)
    }

    /// A step whose failure is the error that is reported.
    fn step<T, F: Future<Output = Result<T, SftpError>>>(
        &self,
        kind: Request,
        verb: &str,
        name: &str,
        step: impl Fn(Arc<SshSession>) -> F,
    ) -> Result<T> {
        let what = || format!("cannot {verb} {}", self.shown(name));
        let (done, _) = self.server.run(kind, step).with_context(what)?;
        done.map_err(|e| anyhow!("{e}")).with_context(what)
    }

    fn is_there(&self, name: &str) -> Result<bool> {
        let full = self.full(name);
        self.step(Request::Head, "look at", name, |on| {
            let full = full.clone();
            async move {
                match on.sftp.metadata(full).await {
                    Ok(_) => Ok(true),
                    Err(e) if is_missing(&e) => Ok(false),
                    Err(e) => Err(e),
                }
            }
        })
    }

    fn names_in(&self, dir: &str) -> Result<Vec<(String, FileAttributes)>> {
        let full = self.full(dir);
        self.step(Request::List, "list", dir, |on| {
            let full = full.clone();
            async move {
                match on.sftp.read_dir(full).await {
                    Ok(all) => Ok(all.map(|entry| (entry.file_name(), entry.metadata())).collect()),
                    Err(e) if is_missing(&e) => Ok(Vec::new()),
                    Err(e) => Err(e),
                }
            }
        })
    }

    /// Reads at most `bytes` bytes from `offset` on; `None`: there is no such file.
    fn read_bytes(&self, name: &str, offset: u64, bytes: u64) -> Result<Option<Vec<u8>>> {
        let full = self.full(name);
        self.step(Request::Get, "read", name, |on| {
            let full = full.clone();
            async move {
                let mut file = match on.sftp.open(full).await {
                    Err(e) if is_missing(&e) => return Ok(None),
                    file => file?,
                };
                file.seek(SeekFrom::Start(offset)).await?;
                let mut part = Vec::new();
                file.take(bytes).read_to_end(&mut part).await?;
                Ok(Some(part))
            }
        })
    }

    /// Makes a file whole and durable; `false`: the name is taken.
    fn put(&self, name: &str, from: &File, bytes: u64, time_ms: Option<i64>) -> Result<bool> {
        let stem = unfinished(name)?;
        // Another one for each attempt: the one before may have been linked to the file.
        let other = |attempt: usize| format!("{stem}-{attempt}");
        let (attempts, full) = (AtomicUsize::new(0), self.full(name));
        let what = || format!("cannot write {}", self.shown(name));
        let step = |on: Arc<SshSession>| {
            let (full, full_other) = (full.clone(), self.full(&other(attempts.fetch_add(1, SeqCst) + 1)));
            async move {
                let written = write_linked(&on, from, bytes, time_ms, &full_other, &full).await;
                match written {
                    // The server answers: it has no room, or does not permit it.
                    Err(e) if on.sftp.remove_file(full_other).await.is_ok() => Ok(Err(e)),
                    written => written,
                }
            }
        };
        let (done, again) = self.server.run(Request::Put, step).with_context(what)?;
        let other = other(attempts.load(SeqCst));
        let linked = done.map_err(|e| anyhow!("{e}")).with_context(what)?;
        match linked {
            Ok(true) => RemoteDirectory::remove(self, &other).map(|()| true),
            Ok(false) => Ok(true),
            Err(e) => {
                let is_taken = self.is_there(name)?;
                RemoteDirectory::remove(self, &other)?;
                ensure!(is_taken, "{}: {e}: has the server room, and may this user write there?", what());
                // An earlier attempt may have arrived.
                match if again { self.reader(name)? } else { None } {
                    Some(mut there) => holds(&mut there, from, bytes),
                    None => Ok(false),
                }
            }
        }
    }

    /// `None`: there is no such file.
    fn reader(&self, name: &str) -> Result<Option<impl Read + use<>>> {
        let full = self.full(name);
        let opened = self.step(Request::Get, "read", name, |on| {
            let full = full.clone();
            async move {
                match on.sftp.open(full).await {
                    Err(e) if is_missing(&e) => Ok(None),
                    file => Ok(Some((file?, on.clone()))),
                }
            }
        })?;
        let Some((file, session)) = opened else { return Ok(None) };
        let reader = SftpReader { runtime: runtime()?, file, _session: session };
        Ok(Some(BufReader::with_capacity(PART_BYTES, Moving(reader))))
    }

    fn missing(&self, name: &str) -> String {
        format!("cannot read {}: there is no such file", self.shown(name))
    }
}

/// Writes a file and links it to its name. Whether it has its other name still; inside, why it has
/// not got its own.
async fn write_linked(
    on: &SshSession,
    mut from: &File,
    bytes: u64,
    time_ms: Option<i64>,
    other: &str,
    name: &str,
) -> Result<Result<bool, SftpError>, SftpError> {
    let mut to = on.sftp.open_with_flags(other, OpenFlags::CREATE | OpenFlags::EXCLUDE | OpenFlags::WRITE).await?;
    let mut part = vec![0; PART_BYTES];
    from.rewind()?;
    let mut from = Moving(from.take(bytes));
    loop {
        match from.read(&mut part)? {
            0 => break,
            n => to.write_all(part.get(..n).unwrap_or_default()).await?,
        }
    }
    to.flush().await?;
    if let Some(seconds) = time_ms.and_then(|ms| u32::try_from(ms / 1000).ok()) {
        let mut times = FileAttributes::empty();
        (times.atime, times.mtime) = (Some(seconds), Some(seconds));
        to.set_metadata(times).await?;
    }
    to.sync_all().await?;
    let linked = match on.sftp.hardlink(other, name).await {
        // The server, or its file system, has no links; its rename replaces no file.
        Ok(false) => on.sftp.rename(other, name).await.map(|()| false),
        linked => linked,
    };
    // Brings the name to the disk, too, with the journal of ext4, XFS and Btrfs.
    to.sync_all().await?;
    to.shutdown().await?;
    match linked {
        Err(e) if is_lost(&e) => Err(e),
        linked => Ok(linked),
    }
}

impl RemoteDirectory for Sftp {
    fn make_dir(&self, dir: &str) -> Result<()> {
        let name = dir.trim_end_matches('/');
        if self.is_there(name)? {
            return Ok(());
        }
        let full = self.full(name);
        let (made, _) = self.server.run(Request::Put, |on| {
            let full = full.clone();
            async move { on.sftp.create_dir(full).await }
        })?;
        match made {
            // Another process may have made it.
            Err(e) if !self.is_there(name)? => {
                Err(anyhow!("{e}")).with_context(|| format!("cannot make the directory {}", self.shown(name)))
            }
            _ => Ok(()),
        }
    }

    fn names(&self, dir: &str) -> Result<Vec<String>> {
        Ok(self.names_in(dir)?.into_iter().map(|(name, _)| name).collect())
    }

    fn read(&self, name: &str) -> Result<Option<Vec<u8>>> {
        self.read_bytes(name, 0, OWNER_BYTES_MAX)
    }

    fn make(&self, name: &str, bytes: &[u8]) -> Result<bool> {
        let (file, len) = spooled(&mut |to| Ok(to.write_all(bytes)?))?;
        self.put(name, &file, len, None)
    }

    fn remove(&self, name: &str) -> Result<()> {
        let full = self.full(name);
        self.step(Request::Delete, "remove", name, |on| {
            let full = full.clone();
            async move {
                match on.sftp.remove_file(full).await {
                    Err(e) if !is_missing(&e) => Err(e),
                    _ => Ok(()),
                }
            }
        })
    }
}

impl Store for Sftp {
    fn hurry(&mut self, patience: Duration) {
        self.server.patience_ms.store(patience_of(patience, PATIENCE), SeqCst);
        *locked(&self.server.session) = None;
    }

    fn begin(&mut self, _node: u64) -> Result<Conditions> {
        let heeds = directory::begin(self)?;
        Ok(Conditions { create: heeds, replace: heeds })
    }

    fn tidy(&self) -> Result<()> {
        directory::tidy(self)
    }

    fn owner(&self) -> Result<Option<(Vec<u8>, Version)>> {
        directory::owner(self)
    }

    fn set_owner(&self, was: Option<&Version>, record: &[u8]) -> Result<bool> {
        directory::set_owner(self, was, record)
    }

    fn list_from(&self, level: u8, _first: u64) -> Result<Vec<Entry>> {
        let mut entries = Vec::new();
        for (name, found) in self.names_in(&level_dir(level))? {
            let Some(name) = Name::parse(level, &name) else { continue };
            let time_ms = i64::from(found.mtime.unwrap_or(0)) * 1000;
            entries.push(Entry { name, time_ms, bytes: found.size.unwrap_or(0) });
        }
        check_count(entries.len())?;
        entries.sort_unstable();
        Ok(entries)
    }

    fn has(&self, name: Name) -> Result<bool> {
        self.is_there(&name.to_string())
    }

    fn open(&self, name: Name) -> Result<Box<dyn Read>> {
        let name = name.to_string();
        Ok(Box::new(self.reader(&name)?.with_context(|| self.missing(&name))?))
    }

    fn read_part(&self, name: Name, offset: u64, bytes: u64) -> Result<Vec<u8>> {
        let name = name.to_string();
        let part = self.read_bytes(&name, offset, bytes)?;
        part.with_context(|| self.missing(&name))
    }

    fn create(&self, name: Name, time_ms: i64, fill: Fill<'_>) -> Result<bool> {
        let path = name.to_string();
        let (file, bytes) = spooled(fill).with_context(|| format!("cannot write {}", self.shown(&path)))?;
        make_level(self, name.level)?;
        self.put(&path, &file, bytes, Some(time_ms))
    }

    fn remove(&self, name: Name) -> Result<()> {
        RemoteDirectory::remove(self, &name.to_string())
    }
}

/// A file as it arrives.
struct SftpReader {
    runtime: &'static Runtime,
    file: russh_sftp::client::fs::File,
    _session: Arc<SshSession>,
}

impl Read for SftpReader {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let read = self.runtime.block_on(async { timeout(PATIENCE, self.file.read(to)).await });
        read.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl fmt::Debug for Sftp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown(""))
    }
}
