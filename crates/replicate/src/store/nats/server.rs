//! A NATS server with JetStream: the connection, and the requests to it (NATS, ADR-1 and ADR-20).

use super::super::Away;
use super::super::http::{again, patience_of};
use super::super::keys::variable;
use super::super::runtime::runtime;
use crate::local::locked;
use crate::report::{COUNTERS, Request};
use crate::secrets::hide;
use anyhow::{Context, Error, Result, anyhow, bail, ensure};
use async_nats::jetstream::context::PublishErrorKind;
use async_nats::jetstream::response::Response;
use async_nats::jetstream::{self, ErrorCode};
use async_nats::{ConnectErrorKind, ConnectOptions, Event};
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::fmt;
use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::time::timeout;
use url::Url;

pub(super) const EXAMPLE: &str = "name an object store as nats://host/bucket, or nats://user@host/bucket/path";
/// Longest wait for an answer, shorter where commits wait for the store.
const PATIENCE: Duration = Duration::from_secs(10);
/// Parts that are sent and not yet acknowledged.
pub(super) const IN_FLIGHT: usize = 16;

/// A server and a user of it: all stores there share a connection.
pub(super) struct JetStream {
    /// Host and port.
    address: String,
    tls: Tls,
    login: Login,
    patience_ms: AtomicU64,
    context: Mutex<Option<jetstream::Context>>,
    /// What the server said without being asked, as of a missing permission.
    complaint: Arc<Mutex<Option<String>>>,
}

/// Files of certificates, and whether there is no connection without TLS.
#[derive(Clone, Default, PartialEq, Eq)]
struct Tls {
    is_required: bool,
    /// Of authorities, beside the machine's.
    roots: Vec<PathBuf>,
    cert: Option<PathBuf>,
    key: Option<PathBuf>,
}

#[derive(Clone, PartialEq, Eq)]
enum Login {
    None,
    User {
        name: String,
        password: String,
    },
    Token(String),
    /// A file of a user's JWT and seed.
    Credentials(PathBuf),
    /// A file of a seed.
    Seed(PathBuf),
}

/// Why a request has no result.
pub(super) enum Failure {
    /// No answer came, or the server cannot now: it is asked again.
    Silent(Error),
    /// The server's answer.
    Refused(Error),
}

/// What became of a message with a condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Acknowledged {
    Done,
    /// The subject's newest message is another.
    IsOther,
}

/// A request to a server that did not answer.
pub(super) fn silent(error: impl fmt::Display) -> Failure {
    Failure::Silent(anyhow!("{error}"))
}

fn refused(error: &jetstream::Error) -> Failure {
    let text = match error.error_code() {
        ErrorCode::STREAM_NOT_FOUND => "there is no such object store: `nats object add NAME` makes one".to_owned(),
        ErrorCode::JETSTREAM_NOT_ENABLED | ErrorCode::JETSTREAM_NOT_ENABLED_FOR_ACCOUNT => {
            "this server, or this account, has no JetStream".to_owned()
        }
        _ => error.to_string(),
    };
    // JetStream has no leader, or no room, at this time.
    if error.code() == 503 { Failure::Silent(anyhow!(text)) } else { Failure::Refused(anyhow!(text)) }
}

impl JetStream {
    /// The server that a URL names, with its login there or in the environment.
    pub(super) fn of(url: &Url) -> Result<Arc<JetStream>> {
        static SHARED: Mutex<Vec<Arc<JetStream>>> = Mutex::new(Vec::new());
        let host = url.host_str().filter(|host| !host.is_empty());
        let host = host.with_context(|| format!("{url} names no server: {EXAMPLE}"))?;
        let (mut tls, mut credentials) = (Tls::default(), None);
        for (key, value) in url.query_pairs() {
            let file = || PathBuf::from(&*value);
            match (&*key, &*value) {
                ("creds", _) => credentials = Some(file()),
                ("tls", "true" | "false") => tls.is_required = value == "true",
                ("tls", _) => bail!("{url}: tls is true or false"),
                ("root-ca", _) => tls.roots.push(file()),
                ("client-cert", _) => tls.cert = Some(file()),
                ("client-key", _) => tls.key = Some(file()),
                _ => bail!("{url}: those parameters there are, are creds, tls, root-ca, client-cert, client-key"),
            }
        }
        tls.take_from_environment();
        let address = format!("{host}:{}", url.port().unwrap_or(4222));
        let login = Login::of(url, credentials);
        let mut shared = locked(&SHARED);
        if let Some(known) = shared.iter().find(|of| of.address == address && of.tls == tls && of.login == login) {
            return Ok(known.clone());
        }
        let patience_ms = AtomicU64::new(PATIENCE.as_millis() as u64);
        let server =
            JetStream { address, tls, login, patience_ms, context: Mutex::default(), complaint: Arc::default() };
        shared.push(Arc::new(server));
        shared.last().cloned().context("no server")
    }

    /// As [`super::super::Store::hurry`].
    pub(super) fn hurry(&self, patience: Duration) {
        self.patience_ms.store(patience_of(patience, PATIENCE), SeqCst);
        *locked(&self.context) = None;
    }

    pub(super) fn patience(&self) -> Duration {
        Duration::from_millis(self.patience_ms.load(SeqCst))
    }

    async fn connect(&self) -> Result<jetstream::Context> {
        let patience = self.patience();
        let complaint = self.complaint.clone();
        let options =
            ConnectOptions::new().name("onewrite").connection_timeout(patience).ping_interval(patience).event_callback(
                move |event| {
                    if let Event::ServerError(e) = event {
                        *locked(&complaint) = Some(e.to_string());
                    }
                    std::future::ready(())
                },
            );
        let connected = self.login.used_in(self.tls.used_in(options)?)?.connect(&*self.address).await;
        let client = connected.map_err(|e| match e.kind() {
            ConnectErrorKind::Authentication | ConnectErrorKind::AuthorizationViolation => {
                anyhow!("{} does not admit this user: {e}", self.address)
            }
            _ => anyhow!("no answer from {}: {e}", self.address).context(Away),
        })?;
        Ok(jetstream::context::ContextBuilder::new().timeout(patience).ack_timeout(patience).build(client))
    }

    /// Does a step, again after silence.
    pub(super) fn run<T>(
        &self,
        kind: Request,
        step: impl AsyncFn(jetstream::Context) -> Result<T, Failure>,
    ) -> Result<T> {
        let mut tries = 1;
        loop {
            COUNTERS.request(kind);
            COUNTERS.bucket("nats", kind);
            let patience = self.patience();
            let done = runtime()?.block_on(async {
                let known = locked(&self.context).clone();
                let context = match known {
                    Some(context) => context,
                    None => {
                        let made = timeout(patience, self.connect()).await;
                        let made = made.map_err(|_| anyhow!("no answer from {}", self.address).context(Away));
                        let made = made.and_then(|made| made);
                        let made = made.map_err(|e| match e.is::<Away>() {
                            true => Failure::Silent(e),
                            false => Failure::Refused(e),
                        })?;
                        locked(&self.context).insert(made).clone()
                    }
                };
                step(context).await
            });
            let lost = match done {
                Ok(done) => return Ok(done),
                Err(Failure::Refused(e)) => return Err(e),
                Err(Failure::Silent(e)) => match locked(&self.complaint).take() {
                    Some(said) => anyhow!("{} says: {said}", self.address).context(Away),
                    None if e.is::<Away>() => e,
                    None => e.context(format!("no answer from {}", self.address)).context(Away),
                },
            };
            if !again(&mut tries) {
                return Err(lost);
            }
        }
    }
}

/// The file that a variable names.
fn file_of(variable_name: &str) -> Option<PathBuf> {
    variable(&[variable_name]).map(PathBuf::from)
}

impl Tls {
    /// As the tools of NATS do.
    fn take_from_environment(&mut self) {
        if self.roots.is_empty() {
            self.roots.extend(file_of("NATS_CA"));
        }
        self.cert = self.cert.take().or_else(|| file_of("NATS_CERT"));
        self.key = self.key.take().or_else(|| file_of("NATS_KEY"));
    }

    fn used_in(&self, mut options: ConnectOptions) -> Result<ConnectOptions> {
        let client = match (&self.cert, &self.key) {
            (Some(cert), Some(key)) => Some((cert, key)),
            (None, None) => None,
            _ => bail!("client-cert and client-key go together"),
        };
        for file in self.roots.iter().chain(client.iter().flat_map(|(cert, key)| [*cert, *key])) {
            fs::File::open(file).with_context(|| format!("cannot read {}", file.display()))?;
        }
        options = options.require_tls(self.is_required || client.is_some() || !self.roots.is_empty());
        for root in &self.roots {
            options = options.add_root_certificates(root.clone());
        }
        Ok(match client {
            Some((cert, key)) => options.add_client_certificate(cert.clone(), key.clone()),
            None => options,
        })
    }
}

impl Login {
    fn of(url: &Url, credentials: Option<PathBuf>) -> Login {
        let decoded = |text: &str| percent_encoding::percent_decode_str(text).decode_utf8_lossy().into_owned();
        let user = Some(decoded(url.username())).filter(|user| !user.is_empty());
        let password = url.password().map(decoded).or_else(|| variable(&["NATS_PASSWORD"]));
        let login = match (credentials, user, password) {
            (Some(file), ..) => Login::Credentials(file),
            (None, Some(name), Some(password)) => Login::User { name, password },
            // As the tools of NATS take it.
            (None, Some(token), None) => Login::Token(token),
            (None, None, password) => match (variable(&["NATS_USER"]), password) {
                (Some(name), Some(password)) => Login::User { name, password },
                _ => variable(&["NATS_TOKEN"])
                    .map(Login::Token)
                    .or_else(|| file_of("NATS_CREDS").map(Login::Credentials))
                    .or_else(|| file_of("NATS_NKEY").map(Login::Seed))
                    .unwrap_or(Login::None),
            },
        };
        if let Login::Token(secret) | Login::User { password: secret, .. } = &login {
            hide(secret);
        }
        login
    }

    fn used_in(&self, options: ConnectOptions) -> Result<ConnectOptions> {
        let read = |path: &PathBuf| {
            let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
            text.lines().map(str::trim).filter(|line| line.starts_with('S')).for_each(hide);
            Ok::<_, Error>(text)
        };
        Ok(match self {
            Login::None => options,
            Login::User { name, password } => options.user_and_password(name.clone(), password.clone()),
            Login::Token(token) => options.token(token.clone()),
            Login::Seed(path) => options.nkey(read(path)?.trim().to_owned()),
            Login::Credentials(path) => {
                let text = read(path)?;
                // A file without them is taken apart with a panic.
                ensure!(
                    text.contains("NATS USER JWT") && text.contains("USER NKEY SEED"),
                    "{} has no JWT and seed of a user",
                    path.display()
                );
                options.credentials(&text).with_context(|| format!("cannot use {}", path.display()))?
            }
        })
    }
}

/// Asks JetStream.
pub(super) async fn ask<T: DeserializeOwned>(
    of: &jetstream::Context,
    subject: &str,
    request: &Value,
) -> Result<T, Failure> {
    let answer = ask_for(of, subject, request).await?;
    answer.ok_or_else(|| Failure::Refused(anyhow!("{subject}: there is no such message")))
}

/// The same, where a message may be missing.
pub(super) async fn ask_for<T: DeserializeOwned>(
    of: &jetstream::Context,
    subject: &str,
    request: &Value,
) -> Result<Option<T>, Failure> {
    let answer = of.request::<_, _, Response<T>>(subject.to_owned(), request).await;
    match answer {
        Ok(Response::Ok(answer)) => Ok(Some(answer)),
        Ok(Response::Err { error }) if error.error_code() == ErrorCode::NO_MESSAGE_FOUND => Ok(None),
        Ok(Response::Err { error }) => Err(refused(&error)),
        Err(e) => Err(silent(e)),
    }
}

/// Waits until a message is stored.
pub(super) async fn acknowledged(
    sent: Result<jetstream::context::PublishAckFuture, jetstream::context::PublishError>,
) -> Result<Acknowledged, Failure> {
    let done = match sent {
        Ok(sent) => sent.await,
        Err(e) => Err(e),
    };
    match done {
        Ok(_) => Ok(Acknowledged::Done),
        Err(e) => match e.kind() {
            PublishErrorKind::WrongLastSequence => Ok(Acknowledged::IsOther),
            PublishErrorKind::StreamNotFound => Err(Failure::Refused(anyhow!("there is no such object store"))),
            PublishErrorKind::MaxPayloadExceeded => Err(Failure::Refused(anyhow!("{e}"))),
            _ => {
                let answer = std::error::Error::source(&e).and_then(|e| e.downcast_ref::<jetstream::Error>());
                Err(answer.map_or_else(|| silent(&e), refused))
            }
        },
    }
}
