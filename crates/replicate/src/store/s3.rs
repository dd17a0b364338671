//! A store in an S3 bucket, laid out as Litestream's `s3` replicas: an object's metadata has the
//! time of its state.

use super::keys::{BucketKeys, of_profile, variable};
use super::{
    Away, BATCHES, Conditions, Entry, Fill, Name, OWNER, OWNER_BYTES_MAX, Store, StoreKeys, Version, check_count,
};
use crate::ending::{Moving, is_ending};
use crate::local::locked;
use crate::report::{self, COUNTERS};
use crate::secrets::{PARAMETERS, is_name};
use anyhow::{Context, Error, Result, anyhow, bail, ensure};
use onewrite_core::environment;
use rusty_s3::actions::{ListObjectsV2, S3Action};
use rusty_s3::{Bucket, Credentials, UrlStyle};
use std::fmt;
use std::fs::{self, File};
use std::io::{self, BufReader, BufWriter, Read, Seek};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use ureq::http::{Request, Response, StatusCode};
use ureq::tls::{PemItem, RootCerts, TlsConfig};
use ureq::{Agent, Body, SendBody};
use url::Url;

const EXAMPLE: &str =
    "name a bucket as s3://bucket/path, with ?region=eu-central-1, or ?endpoint=http://127.0.0.1:7070";
/// Metadata with the time of the state, as RFC 3339.
const TIME: &str = "x-amz-meta-litestream-timestamp";
/// An object that tries whether the server heeds conditions.
const PROBE: &str = "onewrite-probe";
const SIGNED_FOR: Duration = Duration::from_secs(3600);
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
const BYTES_MAX: u64 = 5 << 30;
/// Limits of one page of a listing, and of an error.
const LISTED_BYTES_MAX: u64 = 16 << 20;
const ERROR_BYTES_MAX: u64 = 64 << 10;
/// Limit of a level's listing in pages.
const PAGES_MAX: u32 = 1 << 15;

pub(super) struct S3Store {
    bucket: Bucket,
    keys: Arc<BucketKeys>,
    /// Prefix of every key; empty, or ends with a slash.
    prefix: String,
    agent: Agent,
    /// Makes a connection for each request: the other one's may be broken.
    afresh: Agent,
    pace: RequestPace,
    /// The server has no `If-Match` for writes.
    replaces_blindly: bool,
}

/// How long a request waits for its answer: four times as long as the last one took, and at least a
/// part of the time that a commit waits.
struct RequestPace {
    least: Duration,
    now_ms: AtomicU64,
    /// When a slow request was reported last.
    told: Mutex<Option<Instant>>,
}

impl RequestPace {
    fn new(least: Duration) -> RequestPace {
        RequestPace { least, now_ms: AtomicU64::new(to_ms(least)), told: Mutex::new(None) }
    }

    /// The wait of an attempt, the first of which is 1. It doubles: a store may have become slow.
    fn patience(&self, tries: u32) -> Duration {
        let now = Duration::from_millis(self.now_ms.load(SeqCst));
        now.saturating_mul(1 << tries.saturating_sub(1).min(5)).min(PATIENCE)
    }

    fn answered(&self, took: Duration) {
        let now = Duration::from_millis(self.now_ms.load(SeqCst));
        let next = took.saturating_mul(4).max(now * 3 / 4).clamp(self.least, PATIENCE);
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
enum Sent<'a> {
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

#[derive(Clone, Copy)]
enum If<'a> {
    None,
    Match(&'a str),
    Always,
}

impl If<'_> {
    fn header(&self) -> Option<(&'static str, &str)> {
        match self {
            If::None => Some(("if-none-match", "*")),
            If::Match(version) => Some(("if-match", version)),
            If::Always => None,
        }
    }
}

/// Result of creating an object only where there is none.
#[derive(Clone, Copy, PartialEq, Eq)]
enum CreateResult {
    Created,
    /// The name is taken, perhaps by this object: an earlier attempt may have arrived.
    Exists {
        perhaps_ours: bool,
    },
}

const OF_USER: &str =
    "the endpoint has a user or a password: the keys belong into the environment, AWS_ACCESS_KEY_ID and the others";

fn url_without_parameters(url: &str) -> String {
    url.split('?').next().unwrap_or_default().to_owned()
}

fn has_user(endpoint: &str) -> bool {
    endpoint.contains('@') || endpoint.contains("%40")
}

/// The parameters of a store's URL.
struct UrlParameters {
    region: Option<String>,
    endpoint: Option<String>,
    path_style: Option<bool>,
}

impl UrlParameters {
    fn of(url: &str, parsed: &Url) -> Result<UrlParameters> {
        let (mut region, mut endpoint, mut path_style) = (None, None, None);
        for (key, value) in parsed.query_pairs() {
            match &*key {
                "region" => region = Some(value.into_owned()),
                "endpoint" => endpoint = Some(value.into_owned()),
                "force-path-style" => {
                    let parsed = value.parse::<bool>();
                    path_style =
                        Some(parsed.with_context(|| format!("force-path-style={value} is neither true nor false"))?);
                }
                other if !is_name(other) || value.is_empty() => {
                    bail!("{url}: those parameters there are, are {}", PARAMETERS.join(", "))
                }
                other => bail!("{url}: there is no parameter {other}: those there are, are {}", PARAMETERS.join(", ")),
            }
        }
        Ok(UrlParameters { region, endpoint, path_style })
    }
}

/// The agents of all stores of this process with these certificates: each keeps connections and
/// certificates in memory.
fn shared_agents(bundle: Option<String>) -> Result<(Agent, Agent)> {
    static SHARED: Mutex<Vec<(Option<String>, Agent, Agent)>> = Mutex::new(Vec::new());
    let mut shared = locked(&SHARED);
    if let Some((_, agent, afresh)) = shared.iter().find(|(of, ..)| *of == bundle) {
        return Ok((agent.clone(), afresh.clone()));
    }
    let (agent, afresh) = agents(tls(bundle.clone())?);
    shared.push((bundle, agent.clone(), afresh.clone()));
    Ok((agent, afresh))
}

/// The usual agent, and one that makes a connection for each request.
fn agents(tls: TlsConfig) -> (Agent, Agent) {
    // Not followed: the redirection of another region's bucket leads nowhere; its text is reported.
    let config = Agent::config_builder().http_status_as_error(false).max_redirects(0);
    let config = config.timeout_connect(Some(Duration::from_secs(10)));
    let config = config.timeout_recv_response(Some(PATIENCE)).timeout_per_read(Some(PATIENCE));
    let config = config.timeout_per_write(Some(PATIENCE)).tls_config(tls.clone()).build();
    let afresh = Agent::config_builder().http_status_as_error(false).max_redirects(0);
    let afresh = afresh.max_idle_connections(0).tls_config(tls).build();
    (config.new_agent(), afresh.new_agent())
}

impl S3Store {
    pub(super) fn new(url: &str, keys: Option<&StoreKeys>) -> Result<S3Store> {
        let parsed = Url::parse(url).with_context(|| format!("{url} is no URL: {EXAMPLE}"))?;
        let name = parsed.host_str().filter(|name| !name.is_empty());
        let name = name.with_context(|| format!("{url} names no bucket: {EXAMPLE}"))?.to_owned();
        ensure!(
            parsed.port().is_none() && parsed.username().is_empty() && parsed.password().is_none(),
            "{url} has a port or a user: the keys belong into the environment, and {EXAMPLE}"
        );
        ensure!(!has_user(url.split_once('?').unwrap_or_default().1), "{url}: {OF_USER}");
        let UrlParameters { region, endpoint, path_style } = UrlParameters::of(url, &parsed)?;
        let region =
            region.or_else(|| variable(&["AWS_REGION", "AWS_DEFAULT_REGION"])).or_else(|| of_profile("region"));
        let endpoint = endpoint.or_else(|| variable(&["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"]));
        let endpoint = endpoint.or_else(|| of_profile("endpoint_url"));
        ensure!(!endpoint.as_deref().is_some_and(has_user), "{OF_USER}, and none into AWS_ENDPOINT_URL");
        let is_aws = endpoint.is_none();
        let region = match region {
            Some(region) => region,
            None if is_aws => bail!("{url} names no region: add ?region=eu-central-1, or set AWS_REGION"),
            None => "us-east-1".to_owned(),
        };
        let endpoint = endpoint.unwrap_or_else(|| format!("https://s3.{region}.amazonaws.com"));
        let endpoint =
            Url::parse(&endpoint).with_context(|| format!("the endpoint {endpoint} is no URL: {EXAMPLE}"))?;
        let style = if path_style.unwrap_or(!is_aws) { UrlStyle::Path } else { UrlStyle::VirtualHost };
        let bucket = Bucket::new(endpoint, style, name, region).with_context(|| format!("{url}: {EXAMPLE}"))?;
        let keys = BucketKeys::of(&url_without_parameters(url), bucket.region(), keys)?;
        let path = percent_encoding::percent_decode_str(parsed.path()).decode_utf8();
        let path = path.with_context(|| format!("{url}: a path is text in UTF-8"))?;
        let path = path.trim_matches('/');
        let prefix = if path.is_empty() { String::new() } else { format!("{path}/") };
        let (agent, afresh) = shared_agents(variable(&["AWS_CA_BUNDLE"]))?;
        Ok(S3Store {
            bucket,
            keys,
            prefix,
            agent,
            afresh,
            pace: RequestPace::new(FIRST_PATIENCE),
            replaces_blindly: false,
        })
    }

    fn key(&self, name: Name) -> String {
        format!("{}{:04x}/{:016x}-{:016x}.ltx", self.prefix, name.level, name.min, name.max)
    }

    fn shown(&self, key: &str) -> String {
        format!("s3://{}/{key}", self.bucket.name())
    }

    /// Sends a request, again if the server or the network fails or is silent. Also returns whether
    /// it was sent again.
    fn call(
        &self,
        kind: report::Request,
        sign: &dyn Fn(&Credentials) -> Url,
        headers: &[(&'static str, &str)],
        body: Sent<'_>,
    ) -> Result<(Response<Body>, bool)> {
        let (mut tries, mut are_new) = (1, false);
        loop {
            let keys = self.keys.now()?;
            let url = &sign(&keys);
            COUNTERS.request(kind);
            COUNTERS.bucket(kind);
            let begun = Instant::now();
            let patience = self.pace.patience(tries);
            let answer = self.send(kind, url, headers, body, patience, tries > 1);
            let took = begun.elapsed();
            let is_silent = matches!(&answer, Err(ureq::Error::Timeout(_)));
            if is_silent || took > SLOW.saturating_add(sending(body.len())) {
                self.pace.tell(kind, took, !is_silent);
            }
            if answer.is_ok() {
                self.pace.answered(took);
            }
            let is_denied = |answer: &Response<Body>| matches!(answer.status().as_u16(), 400 | 401 | 403 | 404);
            if !are_new && answer.as_ref().is_ok_and(is_denied) && self.keys.has_others(&keys) {
                are_new = true;
                continue;
            }
            let told = answer.as_ref().ok().and_then(retry_after);
            let again = match &answer {
                Ok(answer) => match answer.status() {
                    // Perhaps the attempt before is under way.
                    StatusCode::CONFLICT => tries > 1,
                    status => status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS,
                },
                Err(ureq::Error::BadUri(_) | ureq::Error::Rustls(_) | ureq::Error::Pem(_)) => false,
                Err(_) => true,
            };
            let most = if told.is_some() { TRIES_WHEN_TOLD } else { TRIES };
            if !again || tries >= most || is_ending() {
                if is_silent {
                    self.pace.gave_up(patience);
                }
                let at = self.bucket.object_url("");
                let at = format!("{}://{}", at.scheme(), at.authority());
                let answer = answer.with_context(|| format!("no answer from {at}"));
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
        kind: report::Request,
        url: &Url,
        headers: &[(&'static str, &str)],
        body: Sent<'_>,
        patience: Duration,
        afresh: bool,
    ) -> Result<Response<Body>, ureq::Error> {
        let agent = if afresh { &self.afresh } else { &self.agent };
        let mut request = Request::builder().method(kind.method()).uri(url.as_str());
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

    fn get(&self, kind: report::Request, sign: &dyn Fn(&Credentials) -> Url) -> Result<Response<Body>> {
        Ok(self.call(kind, sign, &[], Sent::Nothing)?.0)
    }

    fn to_get(&self, key: &str) -> impl Fn(&Credentials) -> Url {
        move |keys| self.bucket.get_object(Some(keys), key).sign(SIGNED_FOR)
    }

    fn put(&self, key: &str, body: Sent<'_>, time_ms: i64) -> Result<CreateResult> {
        let time =
            humantime::format_rfc3339_nanos(UNIX_EPOCH + Duration::from_millis(u64::try_from(time_ms).unwrap_or(0)));
        let time = time.to_string();
        let headers = [("if-none-match", "*"), (TIME, time.as_str())];
        let (answer, again) = self.send_object(key, &headers, body)?;
        match answer.status() {
            status if status.is_success() => Ok(CreateResult::Created),
            // CONFLICT: another request for the name is under way.
            StatusCode::PRECONDITION_FAILED | StatusCode::CONFLICT => Ok(CreateResult::Exists { perhaps_ours: again }),
            _ => Err(refused(answer)),
        }
    }

    /// Makes or replaces a small object. `Err` inside: the condition does not hold, perhaps because
    /// of an earlier attempt.
    fn put_small(&self, key: &str, record: &[u8], condition: If<'_>) -> Result<Result<(), StatusCode>> {
        let headers: Vec<_> = condition.header().into_iter().collect();
        let (answer, _) = self.send_object(key, &headers, Sent::Bytes(record))?;
        match answer.status() {
            status if status.is_success() => Ok(Ok(())),
            status @ (StatusCode::PRECONDITION_FAILED | StatusCode::CONFLICT | StatusCode::NOT_FOUND)
                if !matches!(condition, If::Always) =>
            {
                if status == StatusCode::NOT_FOUND {
                    // The bucket may be missing, too.
                    self.get_small(key)?;
                }
                Ok(Err(status))
            }
            StatusCode::NOT_IMPLEMENTED if matches!(condition, If::Match(_)) => Ok(Err(StatusCode::NOT_IMPLEMENTED)),
            _ => Err(refused(answer)),
        }
    }

    fn send_object(
        &self,
        key: &str,
        headers: &[(&'static str, &str)],
        body: Sent<'_>,
    ) -> Result<(Response<Body>, bool)> {
        let sign = |keys: &Credentials| {
            let mut action = self.bucket.put_object(Some(keys), key);
            for (name, value) in headers {
                action.headers_mut().insert(*name, *value);
            }
            action.sign(SIGNED_FOR)
        };
        self.call(report::Request::Put, &sign, headers, body)
    }

    fn get_small(&self, key: &str) -> Result<Option<(Vec<u8>, String)>> {
        let what = || format!("cannot read {}", self.shown(key));
        let mut answer = self.get(report::Request::Get, &self.to_get(key)).with_context(what)?;
        if !answer.status().is_success() {
            let gone = answer.status() == StatusCode::NOT_FOUND;
            let text = answer.body_mut().with_config().limit(ERROR_BYTES_MAX).read_to_string().with_context(what)?;
            // Else the bucket is missing, or the key that signs.
            if gone && part(&text, "Code").is_none_or(|code| matches!(&*code, "NoSuchKey" | "NotFound")) {
                return Ok(None);
            }
            return Err(refused_with(answer.status(), &text)).with_context(what);
        }
        let version = version(&answer).with_context(|| format!("{} has no ETag", self.shown(key)))?;
        let record = answer.body_mut().with_config().limit(OWNER_BYTES_MAX).read_to_vec().with_context(what)?;
        Ok(Some((record, version)))
    }

    fn holds(&self, name: Name, mut file: &File, bytes: u64) -> Result<bool> {
        file.rewind()?;
        let (mut there, mut here) = (self.open(name)?, BufReader::with_capacity(1 << 18, file));
        let (mut one, mut other) = (vec![0; 1 << 16], vec![0; 1 << 16]);
        let mut left = bytes;
        while left > 0 {
            let n = usize::try_from(left.min(1 << 16))?;
            let (one, other) = (one.get_mut(..n).unwrap_or_default(), other.get_mut(..n).unwrap_or_default());
            here.read_exact(other)?;
            match there.read_exact(one) {
                Ok(()) if one == other => {}
                Err(e) if e.kind() != io::ErrorKind::UnexpectedEof => return Err(e.into()),
                _ => return Ok(false),
            }
            left -= n as u64;
        }
        Ok(there.read(&mut [0])? == 0)
    }

    fn head(&self, name: Name) -> Result<Option<Response<Body>>> {
        let key = self.key(name);
        let sign = |keys: &Credentials| self.bucket.head_object(Some(keys), &key).sign(SIGNED_FOR);
        let (answer, _) = self.call(report::Request::Head, &sign, &[], Sent::Nothing)?;
        match answer.status() {
            status if status.is_success() => Ok(Some(answer)),
            StatusCode::NOT_FOUND => Ok(None),
            _ => Err(refused(answer)).with_context(|| format!("cannot look at {}", self.shown(&key))),
        }
    }
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
struct Paced<R> {
    from: R,
    since: Instant,
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

fn tls(bundle: Option<String>) -> Result<TlsConfig> {
    let Some(bundle) = bundle else { return Ok(TlsConfig::default()) };
    let pem = fs::read(&bundle).with_context(|| format!("cannot read {bundle}, which AWS_CA_BUNDLE names"))?;
    let mut certificates = Vec::new();
    for item in ureq::tls::parse_pem(&pem) {
        if let PemItem::Certificate(one) = item.with_context(|| format!("{bundle} is not in the format PEM"))? {
            certificates.push(one);
        }
    }
    Ok(TlsConfig::builder().root_certs(RootCerts::new_with_certs(&certificates)).build())
}

fn millis(time: &str) -> Option<i64> {
    let time: SystemTime = humantime::parse_rfc3339(time).ok()?;
    i64::try_from(time.duration_since(UNIX_EPOCH).ok()?.as_millis()).ok()
}

fn version(answer: &Response<Body>) -> Option<String> {
    Some(answer.headers().get("etag")?.to_str().ok()?.to_owned())
}

/// A refusal as an error: the server's text, and advice.
fn refused(mut answer: Response<Body>) -> Error {
    let text = answer.body_mut().with_config().limit(ERROR_BYTES_MAX).read_to_string().unwrap_or_default();
    refused_with(answer.status(), &text)
}

fn refused_with(status: StatusCode, text: &str) -> Error {
    let (code, message) = (part(text, "Code").unwrap_or_default(), part(text, "Message").unwrap_or_default());
    // A wrong clock makes a signature invalid, which is reported as denied.
    let clock = ["expired", "not valid yet", "not yet valid"].iter().any(|words| message.contains(words));
    let advice = match (&*code, status) {
        ("AccessDenied", _) if clock => "set this machine's clock",
        ("NoSuchBucket", _) => "make the bucket first",
        ("RequestTimeTooSkewed", _) => "set this machine's clock",
        ("InvalidAccessKeyId" | "SignatureDoesNotMatch", _) => {
            "look at AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or at those of the profile"
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

fn part(text: &str, name: &str) -> Option<String> {
    let (_, rest) = text.split_once(&format!("<{name}>"))?;
    Some(rest.split_once('<')?.0.to_owned())
}

impl Store for S3Store {
    fn hurry(&mut self, patience: Duration) {
        self.pace = RequestPace::new((patience / 10).clamp(Duration::from_millis(100), FIRST_PATIENCE));
    }

    fn begin(&mut self, _node: u64) -> Result<Conditions> {
        let key = format!("{}{PROBE}", self.prefix);
        let what = || format!("cannot write {}", self.shown(&key));
        let put = |condition| self.put_small(&key, b"", condition).with_context(what);
        put(If::None)?.ok();
        let create = put(If::None)?.is_err();
        let Some((_, version)) = self.get_small(&key)? else { bail!("{} is gone", self.shown(&key)) };
        let wrong = put(If::Match("\"00000000000000000000000000000000\""))?;
        let right = put(If::Match(&version))?;
        // Other errors: the server was busy with another request for it.
        self.replaces_blindly = matches!(right, Err(StatusCode::NOT_IMPLEMENTED | StatusCode::PRECONDITION_FAILED));
        Ok(Conditions { create, replace: wrong.is_err() && !self.replaces_blindly })
    }

    fn owner(&self) -> Result<Option<(Vec<u8>, Version)>> {
        let owner = self.get_small(&format!("{}{OWNER}", self.prefix))?;
        Ok(owner.map(|(record, version)| (record, Version(version))))
    }

    fn set_owner(&self, was: Option<&Version>, record: &[u8]) -> Result<bool> {
        let key = format!("{}{OWNER}", self.prefix);
        let what = || format!("cannot write {}", self.shown(&key));
        let condition = match was {
            None => If::None,
            Some(version) if self.replaces_blindly => {
                if self.owner()?.is_none_or(|(_, now)| now != *version) {
                    return Ok(false);
                }
                If::Always
            }
            Some(version) => If::Match(&version.0),
        };
        match self.put_small(&key, record, condition).with_context(what)? {
            Ok(()) => Ok(true),
            Err(StatusCode::NOT_IMPLEMENTED) => {
                bail!("the server refuses to write {} on a condition", self.shown(&key))
            }
            Err(_) => Ok(false),
        }
    }

    fn list(&self, level: u8) -> Result<Vec<Entry>> {
        let prefix = format!("{}{level:04x}/", self.prefix);
        let what = || format!("cannot list {}", self.shown(&prefix));
        let mut entries = Vec::new();
        let mut token: Option<String> = None;
        for _ in 0..PAGES_MAX {
            let sign = |keys: &Credentials| {
                let mut action = self.bucket.list_objects_v2(Some(keys));
                action.with_prefix(prefix.as_str());
                if let Some(token) = &token {
                    action.with_continuation_token(token.as_str());
                }
                action.sign(SIGNED_FOR)
            };
            let mut answer = self.get(report::Request::List, &sign).with_context(what)?;
            if !answer.status().is_success() {
                return Err(refused(answer)).with_context(what);
            }
            let text = answer.body_mut().with_config().limit(LISTED_BYTES_MAX).read_to_string().with_context(what)?;
            let page = ListObjectsV2::parse_response(&text).with_context(what)?;
            for object in page.contents {
                let name = object.key.strip_prefix(&prefix).and_then(|name| Name::parse(level, name));
                let Some(name) = name else { continue };
                let time_ms = object.last_modified.as_deref().and_then(millis).with_context(what)?;
                entries.push(Entry { name, time_ms, bytes: object.size.unwrap_or(0) });
                check_count(entries.len()).with_context(what)?;
            }
            let before = std::mem::replace(&mut token, page.next_continuation_token);
            if token.is_none() {
                entries.sort_unstable();
                return Ok(entries);
            }
            ensure!(token != before, "{}: the server sends the same page again", what());
        }
        bail!("{}: it has more than {PAGES_MAX} pages", what())
    }

    fn has(&self, name: Name) -> Result<bool> {
        Ok(self.head(name)?.is_some())
    }

    fn open(&self, name: Name) -> Result<Box<dyn Read>> {
        let key = self.key(name);
        let what = || format!("cannot read {}", self.shown(&key));
        let answer = self.get(report::Request::Get, &self.to_get(&key)).with_context(what)?;
        if !answer.status().is_success() {
            return Err(refused(answer)).with_context(what);
        }
        let body = answer.into_body().into_with_config().limit(u64::MAX).reader();
        Ok(Box::new(BufReader::with_capacity(1 << 18, Whole(Moving(body)))))
    }

    fn read_part(&self, name: Name, offset: u64, bytes: u64) -> Result<Vec<u8>> {
        let key = self.key(name);
        let what = || format!("cannot read {}", self.shown(&key));
        let last = offset.saturating_add(bytes).saturating_sub(1);
        let range = format!("bytes={offset}-{last}");
        let mut tries = 1;
        loop {
            let headers = [("range", range.as_str())];
            let (answer, _) =
                self.call(report::Request::Get, &self.to_get(&key), &headers, Sent::Nothing).with_context(what)?;
            let status = answer.status();
            if !status.is_success() {
                return Err(refused(answer)).with_context(what);
            }
            // A server without ranges sends all of it.
            let skipped = if status == StatusCode::PARTIAL_CONTENT { 0 } else { offset };
            let mut body = Moving(answer.into_body().into_with_config().limit(u64::MAX).reader());
            let mut part = Vec::with_capacity(usize::try_from(bytes)?);
            let read = io::copy(&mut body.by_ref().take(skipped), &mut io::sink())
                .and_then(|_| body.take(bytes).read_to_end(&mut part));
            match read {
                Ok(_) => return Ok(part),
                // The connection was cut.
                Err(_) if tries < TRIES && !is_ending() => {
                    COUNTERS.retry();
                    pause(PAUSE * (1 << (tries - 1)));
                    tries += 1;
                }
                Err(e) => return Err(e).with_context(what),
            }
        }
    }

    fn create(&self, name: Name, time_ms: i64, fill: Fill<'_>) -> Result<bool> {
        let key = self.key(name);
        let what = || format!("cannot write {}", self.shown(&key));
        // The request needs the length first, and may have to be repeated.
        let file = tempfile::tempfile_in(environment::temp_dir()).context("cannot make a temporary file")?;
        let mut to = BufWriter::with_capacity(1 << 18, &file);
        fill(&mut to).with_context(what)?;
        to.into_inner().map_err(|e| e.into_error()).context("cannot write a temporary file")?;
        let bytes = file.metadata().context("cannot look at a temporary file")?.len();
        ensure!(
            bytes <= BYTES_MAX,
            "{key} would have {bytes} bytes, and an object that is created at once has at most {BYTES_MAX}"
        );
        let body = if name.level == BATCHES { Sent::File(&file, bytes) } else { Sent::Slowly(&file, bytes) };
        match self.put(&key, body, time_ms).with_context(what)? {
            CreateResult::Created => Ok(true),
            CreateResult::Exists { perhaps_ours: true } => self.holds(name, &file, bytes).with_context(what),
            CreateResult::Exists { perhaps_ours: false } => Ok(false),
        }
    }

    fn remove(&self, name: Name) -> Result<()> {
        let key = self.key(name);
        let sign = |keys: &Credentials| self.bucket.delete_object(Some(keys), &key).sign(SIGNED_FOR);
        let (answer, _) = self.call(report::Request::Delete, &sign, &[], Sent::Nothing)?;
        match answer.status() {
            status if status.is_success() || status == StatusCode::NOT_FOUND => Ok(()),
            _ => Err(refused(answer)).with_context(|| format!("cannot remove {}", self.shown(&key))),
        }
    }
}

impl fmt::Debug for S3Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Without the keys.
        write!(f, "{}", self.shown(&self.prefix))
    }
}
