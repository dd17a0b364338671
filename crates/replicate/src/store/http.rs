//! Requests to a server of objects, which are sent again if it fails, is silent or asks to wait.

use super::Away;
use super::keys::variable;
use crate::ending::{Moving, is_ending};
use crate::local::locked;
use crate::report::{self, COUNTERS};
use anyhow::{Context, Error, Result, anyhow};
use std::fs::{self, File};
use std::io::{self, Read, Seek};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};
use ureq::http::{Request, Response, StatusCode};
use ureq::tls::{PemItem, RootCerts, TlsConfig};
use ureq::{Agent, Body, SendBody};

/// Attempts at a request, and the first pause between them, which doubles each time.
const TRIES: u32 = 4;
const PAUSE: Duration = Duration::from_millis(200);
/// Attempts where the server says how long to wait, and the longest such wait.
const TRIES_WHEN_TOLD: u32 = 8;
const RETRY_AFTER_MAX: Duration = Duration::from_secs(60);
/// Times in which a snapshot or a merged file is sent, and is not. The kernel sends on for a while.
const BURST: Duration = Duration::from_millis(500);
const REST: Duration = Duration::from_millis(500);
/// Longest wait for a server's answer to begin.
const PATIENCE: Duration = Duration::from_secs(30);
/// The first wait for it; a shorter one where commits wait for the store.
const FIRST_PATIENCE: Duration = Duration::from_secs(10);
/// Assumed bytes a second of the network, and of those that wait in the kernel to be sent.
const SENT_A_SECOND: u64 = 256 << 10;
const UNSENT_MAX: u64 = 4 << 20;
/// An answer that takes longer is reported, once in a while.
const SLOW: Duration = Duration::from_secs(2);
const TOLD_EVERY: Duration = Duration::from_secs(10);
/// Limit of an error's text.
pub(super) const ERROR_BYTES_MAX: u64 = 64 << 10;

/// How long a request waits for its answer: four times as long as the last one took, and at least a
/// part of the time that a commit waits.
#[derive(Debug)]
struct RequestPace {
    least_ms: AtomicU64,
    now_ms: AtomicU64,
    /// When a slow request was reported last.
    told: Mutex<Option<Instant>>,
}

impl RequestPace {
    fn new(least: Duration) -> RequestPace {
        let [least_ms, now_ms] = [least, least].map(|time| AtomicU64::new(to_ms(time)));
        RequestPace { least_ms, now_ms, told: Mutex::new(None) }
    }

    fn hurry(&self, least: Duration) {
        self.least_ms.store(to_ms(least), SeqCst);
        self.now_ms.store(to_ms(least), SeqCst);
    }

    /// The wait of an attempt, the first of which is 1. It doubles: a store may have become slow.
    fn patience(&self, tries: u32) -> Duration {
        let now = Duration::from_millis(self.now_ms.load(SeqCst));
        now.saturating_mul(1 << tries.saturating_sub(1).min(5)).min(PATIENCE)
    }

    fn answered(&self, took: Duration) {
        let now = Duration::from_millis(self.now_ms.load(SeqCst));
        let least = Duration::from_millis(self.least_ms.load(SeqCst));
        let next = took.saturating_mul(4).max(now * 3 / 4).clamp(least, PATIENCE);
        self.now_ms.store(to_ms(next), SeqCst);
    }

    fn gave_up(&self, last: Duration) {
        self.now_ms.store(to_ms(last.saturating_mul(2).min(PATIENCE)), SeqCst);
    }

    /// Reports a slow request, unless one was reported a moment ago.
    fn tell(&self, kind: report::Request, took: Duration, is_answered: bool) {
        COUNTERS.slow();
        let mut told = locked(&self.told);
        if told.is_some_and(|told| told.elapsed() < TOLD_EVERY) {
            return;
        }
        *told = Some(Instant::now());
        let (kind, seconds) = (kind.name(), took.as_secs_f64());
        let message = match is_answered {
            true => format!("the store took {seconds:.1} s to answer a request ({kind})"),
            false => {
                format!(
                    "the store did not answer a request ({kind}) within {seconds:.1} s: it is sent again, on a new connection"
                )
            }
        };
        let fields = [("request", kind.into()), ("seconds", seconds.into()), ("answered", is_answered.into())];
        report::say(report::Level::Warning, "slow_request", &fields, &message);
    }
}

fn to_ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// What a request sends.
#[derive(Clone, Copy)]
pub(super) enum Sent<'a> {
    Nothing,
    Bytes(&'a [u8]),
    File(&'a File, u64),
    /// The same, with pauses: what commits wait for goes before it.
    Slowly(&'a File, u64),
}

impl Sent<'_> {
    fn len(&self) -> u64 {
        match self {
            Sent::Nothing => 0,
            Sent::Bytes(bytes) => bytes.len() as u64,
            Sent::File(_, bytes) | Sent::Slowly(_, bytes) => *bytes,
        }
    }
}

/// Sends the requests of one store.
#[derive(Debug)]
pub(super) struct Sender {
    agent: Agent,
    /// Makes a connection for each request: the other one's may be broken.
    afresh: Agent,
    pace: RequestPace,
    /// Label of Litestream's counters.
    replica_type: &'static str,
}

impl Sender {
    /// `bundle`: the variable that names a file of certificates.
    pub(super) fn new(replica_type: &'static str, bundle: &str) -> Result<Sender> {
        let (agent, afresh) = shared_agents(variable(&[bundle]), bundle)?;
        Ok(Sender { agent, afresh, pace: RequestPace::new(FIRST_PATIENCE), replica_type })
    }

    /// Commits wait so long at most.
    pub(super) fn hurry(&self, patience: Duration) {
        self.pace.hurry((patience / 10).clamp(Duration::from_millis(100), FIRST_PATIENCE));
    }

    /// Sends a request, again if the server or the network fails or is silent. Also returns whether
    /// it was sent again. `url`: of each attempt. `has_others`: whether other keys may be granted a
    /// request that was denied.
    pub(super) fn call(
        &self,
        kind: report::Request,
        method: &str,
        url: &dyn Fn() -> Result<String>,
        headers: &[(&str, &str)],
        body: Sent<'_>,
        has_others: &dyn Fn() -> bool,
    ) -> Result<(Response<Body>, bool)> {
        let (mut tries, mut are_new) = (1, false);
        loop {
            let url = url()?;
            COUNTERS.request(kind);
            COUNTERS.bucket(self.replica_type, kind);
            let begun = Instant::now();
            let patience = self.pace.patience(tries);
            let answer = self.send(method, &url, headers, body, patience, tries > 1);
            let took = begun.elapsed();
            let is_silent = matches!(&answer, Err(ureq::Error::Timeout(_)));
            if is_silent || took > SLOW.saturating_add(sending(body.len())) {
                self.pace.tell(kind, took, !is_silent);
            }
            if answer.is_ok() {
                self.pace.answered(took);
            }
            let is_denied = |answer: &Response<Body>| matches!(answer.status().as_u16(), 400 | 401 | 403 | 404);
            if !are_new && answer.as_ref().is_ok_and(is_denied) && has_others() {
                are_new = true;
                continue;
            }
            let told = answer.as_ref().ok().and_then(retry_after);
            let again = match &answer {
                Ok(answer) => match answer.status() {
                    // Perhaps the attempt before is under way.
                    StatusCode::CONFLICT => tries > 1,
                    status => is_for_now(status),
                },
                Err(ureq::Error::BadUri(_) | ureq::Error::Rustls(_) | ureq::Error::Pem(_)) => false,
                Err(_) => true,
            };
            let most = if told.is_some() { TRIES_WHEN_TOLD } else { TRIES };
            if !again || tries >= most || is_ending() {
                if is_silent {
                    self.pace.gave_up(patience);
                }
                let answer = answer.with_context(|| format!("no answer from {}", authority(&url)));
                return Ok((if again { answer.context(Away) } else { answer }?, tries > 1));
            }
            pause(told.unwrap_or(PAUSE * (1 << (tries - 1).min(4))));
            COUNTERS.retry();
            tries += 1;
        }
    }

    /// Sends a request once. `afresh`: on a new connection.
    fn send(
        &self,
        method: &str,
        url: &str,
        headers: &[(&str, &str)],
        body: Sent<'_>,
        patience: Duration,
        afresh: bool,
    ) -> Result<Response<Body>, ureq::Error> {
        let agent = if afresh { &self.afresh } else { &self.agent };
        let mut request = Request::builder().method(method).uri(url);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        // What was written may still wait in the kernel.
        let to_answer = patience.saturating_add(sending(body.len().min(UNSENT_MAX)));
        macro_rules! run {
            ($body:expr) => {{
                let config = agent.configure_request(request.body($body)?);
                let config = config.timeout_connect(Some(patience.min(FIRST_PATIENCE)));
                let config = config.timeout_recv_response(Some(to_answer)).timeout_per_read(Some(to_answer));
                agent.run(config.timeout_per_write(Some(to_answer)).build())
            }};
        }
        match body {
            Sent::Nothing => run!(()),
            Sent::Bytes(bytes) => run!(bytes),
            Sent::File(mut file, bytes) => {
                file.rewind()?;
                request = request.header("content-length", bytes);
                let mut body = Moving(file);
                run!(SendBody::from_reader(&mut body))
            }
            Sent::Slowly(mut file, bytes) => {
                file.rewind()?;
                request = request.header("content-length", bytes);
                let mut body = Paced { from: Moving(file), since: Instant::now() };
                run!(SendBody::from_reader(&mut body))
            }
        }
    }
}

/// Whether the same request may have another answer before long.
pub(super) fn is_for_now(status: StatusCode) -> bool {
    status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS
}

/// Scheme and server of a URL, without its parameters, which sign it.
pub(super) fn authority(url: &str) -> &str {
    let from = url.find("://").map_or(0, |at| at + 3);
    let rest = url.get(from..).unwrap_or_default();
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    url.get(..from + end).unwrap_or_default()
}

/// The agents of all stores of this process with these certificates: each keeps connections and
/// certificates in memory.
fn shared_agents(bundle: Option<String>, named_by: &str) -> Result<(Agent, Agent)> {
    static SHARED: Mutex<Vec<(Option<String>, Agent, Agent)>> = Mutex::new(Vec::new());
    let mut shared = locked(&SHARED);
    if let Some((_, agent, afresh)) = shared.iter().find(|(of, ..)| *of == bundle) {
        return Ok((agent.clone(), afresh.clone()));
    }
    let (agent, afresh) = agents(tls(bundle.clone(), named_by)?);
    shared.push((bundle, agent.clone(), afresh.clone()));
    Ok((agent, afresh))
}

/// The usual agent, and one that makes a connection for each request.
fn agents(tls: TlsConfig) -> (Agent, Agent) {
    // Not followed: the redirection of another region's bucket leads nowhere; its text is reported.
    let config = Agent::config_builder().http_status_as_error(false).max_redirects(0).allow_non_standard_methods(true);
    let config = config.timeout_connect(Some(Duration::from_secs(10)));
    let config = config.timeout_recv_response(Some(PATIENCE)).timeout_per_read(Some(PATIENCE));
    let config = config.timeout_per_write(Some(PATIENCE)).tls_config(tls.clone()).build();
    let afresh = Agent::config_builder().http_status_as_error(false).max_redirects(0).allow_non_standard_methods(true);
    let afresh = afresh.max_idle_connections(0).tls_config(tls).build();
    (config.new_agent(), afresh.new_agent())
}

/// How long the network takes at least, or what is taken for that.
fn sending(bytes: u64) -> Duration {
    Duration::from_millis(bytes.saturating_mul(1000) / SENT_A_SECOND)
}

/// How long the server asks to wait before the next attempt.
fn retry_after(answer: &Response<Body>) -> Option<Duration> {
    let text = answer.headers().get("retry-after")?.to_str().ok()?.trim();
    let wait = match text.parse() {
        Ok(seconds) => Duration::from_secs(seconds),
        Err(_) => {
            let at = jiff::fmt::rfc2822::parse(text).ok()?.timestamp();
            Duration::try_from(at.duration_since(jiff::Timestamp::now())).unwrap_or_default()
        }
    };
    Some(wait.clamp(PAUSE, RETRY_AFTER_MAX))
}

/// Waits; a signal ends it.
fn pause(time: Duration) {
    let begun = Instant::now();
    while !is_ending() && begun.elapsed() < time {
        thread::sleep((time - begun.elapsed().min(time)).min(Duration::from_millis(50)));
    }
}

/// A body that leaves the network to others for a while, again and again.
pub(super) struct Paced<R> {
    pub(super) from: R,
    pub(super) since: Instant,
}

impl<R: Read> Read for Paced<R> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        if self.since.elapsed() >= BURST {
            pause(REST);
            self.since = Instant::now();
        }
        self.from.read(to)
    }
}

/// A body whose connection is cut is not a file that ends early.
struct Whole<R>(R);

impl<R: Read> Read for Whole<R> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        self.0.read(to).map_err(|e| match e.kind() {
            io::ErrorKind::UnexpectedEof => io::Error::other(format!("the connection was cut: {e}")),
            _ => e,
        })
    }
}

fn tls(bundle: Option<String>, named_by: &str) -> Result<TlsConfig> {
    let Some(bundle) = bundle else { return Ok(TlsConfig::default()) };
    let pem = fs::read(&bundle).with_context(|| format!("cannot read {bundle}, which {named_by} names"))?;
    let mut certificates = Vec::new();
    for item in ureq::tls::parse_pem(&pem) {
        if let PemItem::Certificate(one) = item.with_context(|| format!("{bundle} is not in the format PEM"))? {
            certificates.push(one);
        }
    }
    Ok(TlsConfig::builder().root_certs(RootCerts::new_with_certs(&certificates)).build())
}

/// A refusal as an error: the server's text, and advice.
pub(super) fn refused(mut answer: Response<Body>) -> Error {
    let text = answer.body_mut().with_config().limit(ERROR_BYTES_MAX).read_to_string().unwrap_or_default();
    refused_with(answer.status(), &text)
}

pub(super) fn refused_with(status: StatusCode, text: &str) -> Error {
    let (code, message) = (part(text, "Code").unwrap_or_default(), part(text, "Message").unwrap_or_default());
    // A wrong clock makes a signature invalid, which is reported as denied.
    let clock = ["expired", "not valid yet", "not yet valid"].iter().any(|words| message.contains(words));
    let advice = match (&*code, status) {
        ("AccessDenied", _) if clock => "set this machine's clock",
        ("NoSuchBucket" | "ContainerNotFound", _) => "make the bucket first",
        ("RequestTimeTooSkewed", _) => "set this machine's clock",
        ("InvalidAccessKeyId" | "SignatureDoesNotMatch", _) => {
            "look at AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or at those of the profile"
        }
        ("AuthenticationFailed" | "AuthorizationFailure" | "InvalidAuthenticationInfo", _) => {
            "look at the account's key or token, and at this machine's clock"
        }
        ("ExpiredToken" | "InvalidToken", _) => "look at AWS_SESSION_TOKEN, or at that of the profile",
        ("PermanentRedirect" | "AuthorizationHeaderMalformed", _) => "name the bucket's region as ?region=",
        ("QuotaExceeded", _) | (_, StatusCode::INSUFFICIENT_STORAGE) => {
            "the store is full: make room, or ship with a shorter --retention"
        }
        (_, StatusCode::FORBIDDEN) => "these keys may not do that: they need to list, get, put and delete objects",
        (_, StatusCode::NOT_IMPLEMENTED) => "the server has no conditional writes (If-None-Match), which this needs",
        _ => "",
    };
    let said = [message, advice.to_owned()].into_iter().filter(|part| !part.is_empty());
    let said: Vec<_> = said.collect();
    let what = if code.is_empty() { status.to_string() } else { format!("{} {code}", status.as_u16()) };
    let refusal = if said.is_empty() {
        anyhow!("the server says {what}")
    } else {
        anyhow!("the server says {what}: {}", said.join("; "))
    };
    let is_full = status == StatusCode::INSUFFICIENT_STORAGE;
    let is_away = status.is_server_error() && !is_full && status != StatusCode::NOT_IMPLEMENTED;
    if is_away || status == StatusCode::TOO_MANY_REQUESTS { refusal.context(Away) } else { refusal }
}

pub(super) fn part(text: &str, name: &str) -> Option<String> {
    let (_, rest) = text.split_once(&format!("<{name}>"))?;
    Some(rest.split_once('<')?.0.to_owned())
}

/// Reads a body of any length.
pub(super) fn reader(body: Body) -> impl Read + Send {
    Whole(Moving(body.into_with_config().limit(u64::MAX).reader()))
}

/// The longest wait for an answer of a server with a connection of its own, in milliseconds, where
/// commits wait for `patience`.
#[cfg(any(feature = "nats", feature = "sftp"))]
pub(super) fn patience_of(patience: Duration, most: Duration) -> u64 {
    let least = (patience / 10).clamp(Duration::from_secs(1), most);
    u64::try_from(least.as_millis()).unwrap_or(u64::MAX)
}

/// Behind attempt number `tries`: the pause before the next one; `false`: there is none.
pub(super) fn again(tries: &mut u32) -> bool {
    if *tries >= TRIES || is_ending() {
        return false;
    }
    COUNTERS.retry();
    pause(PAUSE * (1 << (*tries - 1)));
    *tries += 1;
    true
}

/// Reads a part of a file, again where the connection is cut.
pub(super) fn part_again(mut read: impl FnMut() -> Result<io::Result<Vec<u8>>>) -> Result<Vec<u8>> {
    let mut tries = 1;
    loop {
        let part = read()?;
        if part.is_ok() || !again(&mut tries) {
            return Ok(part?);
        }
    }
}

/// The header that asks for a part of a file.
pub(super) fn range(offset: u64, bytes: u64) -> String {
    format!("bytes={offset}-{}", offset.saturating_add(bytes).saturating_sub(1))
}

/// The part of a file that an answer to [`range`] has. A server without ranges sends all of it.
pub(super) fn part_of(answer: Response<Body>, offset: u64, bytes: u64) -> io::Result<Vec<u8>> {
    let skipped = if answer.status() == StatusCode::PARTIAL_CONTENT { 0 } else { offset };
    let mut body = reader(answer.into_body());
    let mut part = Vec::with_capacity(usize::try_from(bytes).map_err(io::Error::other)?);
    io::copy(&mut body.by_ref().take(skipped), &mut io::sink())?;
    body.take(bytes).read_to_end(&mut part)?;
    Ok(part)
}
