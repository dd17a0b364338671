//! Stores in Google's and Azure's object storage, laid out as Litestream's `gs` and `abs` replicas.
//!
//! `object_store` knows both protocols and where credentials are; its requests go through
//! [`Sender`], so they are sent again, hurried and counted as those to S3.

use super::http::{ERROR_BYTES_MAX, Sender, Sent, authority, part_again, reader, refused, refused_with};
use super::keys::variable;
use super::runtime::runtime;
use super::spool::{PART_BYTES, holds, spooled};
use super::{
    BATCHES, Conditions, Entry, Fill, Name, OWNER, OWNER_BYTES_MAX, PROBE, Store, StoreKeys, Version, check_count,
};
use crate::ending::Moving;
use crate::local::locked;
use crate::report;
use crate::secrets::hide;
use anyhow::{Context, Error, Result, anyhow, bail, ensure};
use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use http_body::{Body, Frame};
use object_store::azure::MicrosoftAzureBuilder;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpRequestBody, HttpResponse, HttpResponseBody,
    HttpService,
};
use object_store::gcp::{GcpCredential, GoogleCloudStorageBuilder};
use object_store::path::Path;
use object_store::{
    Attribute, Attributes, ClientOptions, GetOptions, GetRange, ObjectMeta, ObjectStore, ObjectStoreExt, PutMode,
    PutOptions, PutPayload, RetryConfig, StaticCredentialProvider, UpdateVersion,
};
use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::task::{Context as TaskContext, Poll, Waker};
use std::time::{Duration, UNIX_EPOCH};
use tokio::runtime::Runtime;
use ureq::http::response::Parts;
use ureq::http::{Method, Response, StatusCode};
use url::Url;

/// What one of the services does its own way.
#[derive(Debug)]
struct Service {
    scheme: &'static str,
    example: &'static str,
    /// Metadata with the time of the state.
    time: &'static str,
    /// Advice where there are no credentials.
    credentials: &'static str,
    /// A version that no object has.
    no_version: &'static str,
    /// Largest object that is created by one request.
    bytes_max: u64,
}

const GOOGLE: Service = Service {
    scheme: "gs",
    example: "name a bucket as gs://bucket/path",
    time: "litestream-timestamp",
    credentials: "set GOOGLE_APPLICATION_CREDENTIALS to a file with the key of a service account",
    no_version: "1",
    bytes_max: 5 << 40,
};

const AZURE: Service = Service {
    scheme: "abs",
    example: "name a container as abs://account@container/path",
    time: "litestreamtimestamp",
    credentials: "set LITESTREAM_AZURE_ACCOUNT_KEY, LITESTREAM_AZURE_SAS_TOKEN, or AZURE_TENANT_ID, AZURE_CLIENT_ID and \
                  AZURE_CLIENT_SECRET",
    no_version: "\"0x8D0000000000000\"",
    bytes_max: 5000 << 20,
};

pub(super) struct Objects {
    service: &'static Service,
    objects: Arc<dyn ObjectStore>,
    runtime: &'static Runtime,
    sender: Arc<Sender>,
    /// Bucket or container.
    bucket: String,
    /// Prefix of every key; empty, or ends with a slash.
    prefix: String,
}

/// The parts of a URL.
struct Place {
    account: Option<String>,
    bucket: String,
    prefix: String,
    endpoint: Option<String>,
}

impl Place {
    fn of(url: &str, service: &Service) -> Result<Place> {
        let example = service.example;
        let parsed = Url::parse(url).with_context(|| format!("{url} is no URL: {example}"))?;
        let bucket = parsed.host_str().filter(|name| !name.is_empty());
        let bucket = bucket.with_context(|| format!("{url} names no bucket: {example}"))?.to_owned();
        ensure!(
            parsed.port().is_none() && parsed.password().is_none(),
            "{url} has a port or a password: keys belong into the environment, and {example}"
        );
        let account = Some(parsed.username()).filter(|name| !name.is_empty()).map(str::to_owned);
        ensure!(account.is_none() || service.scheme == AZURE.scheme, "{url} has a user: {example}");
        let mut endpoint = None;
        for (key, value) in parsed.query_pairs() {
            ensure!(key == "endpoint", "{url}: the parameter there is, is endpoint");
            ensure!(!value.contains('@'), "the endpoint has a user or a password: keys belong into the environment");
            endpoint = Some(value.trim_end_matches('/').to_owned());
        }
        let path = percent_encoding::percent_decode_str(parsed.path()).decode_utf8();
        let path = path.with_context(|| format!("{url}: a path is text in UTF-8"))?;
        let path = Path::parse(path.trim_matches('/')).with_context(|| format!("{url} has no usable path"))?;
        let prefix = if path.as_ref().is_empty() { String::new() } else { format!("{path}/") };
        Ok(Place { account, bucket, prefix, endpoint })
    }
}

/// A bucket, with its credentials and connections, for all databases that are shipped into it.
#[derive(Clone)]
struct SharedBucket {
    objects: Arc<dyn ObjectStore>,
    sender: Arc<Sender>,
}

fn shared(
    service: &'static Service,
    place: &Place,
    keys: Option<&StoreKeys>,
    make: impl FnOnce(&Arc<Sender>) -> Result<Arc<dyn ObjectStore>>,
) -> Result<SharedBucket> {
    static SHARED: Mutex<Vec<(String, Option<StoreKeys>, SharedBucket)>> = Mutex::new(Vec::new());
    let name = format!("{} {:?} {:?} {}", service.scheme, place.endpoint, place.account, place.bucket);
    let mut shared = locked(&SHARED);
    if let Some((.., bucket)) = shared.iter().find(|(of, with, _)| *of == name && with.as_ref() == keys) {
        return Ok(bucket.clone());
    }
    let sender = Arc::new(Sender::new(service.scheme, "SSL_CERT_FILE")?);
    let bucket = SharedBucket { objects: make(&sender)?, sender };
    shared.push((name, keys.cloned(), bucket.clone()));
    Ok(bucket)
}

fn google(place: &Place, sender: &Arc<Sender>) -> Result<Arc<dyn ObjectStore>> {
    let emulator = variable(&["STORAGE_EMULATOR_HOST"]).map(|at| match at.contains("://") {
        true => at,
        false => format!("http://{at}"),
    });
    let given = place.endpoint.clone().or(emulator);
    let server = given.clone().unwrap_or_else(|| "https://storage.googleapis.com".to_owned());
    let mut builder = GoogleCloudStorageBuilder::from_env()
        .with_bucket_name(&place.bucket)
        .with_retry(never_again())
        .with_http_connector(Connector::new(sender, &GOOGLE, &server));
    if let Some(endpoint) = given {
        builder = builder.with_base_url(&endpoint);
        if !endpoint.starts_with("https://") {
            // An emulator: no token passes the network unencrypted.
            let nobody = GcpCredential { bearer: String::new() };
            builder = builder.with_credentials(Arc::new(StaticCredentialProvider::new(nobody)));
        }
    }
    Ok(Arc::new(builder.build().map_err(failed)?))
}

fn azure(place: &Place, keys: Option<&StoreKeys>, sender: &Arc<Sender>) -> Result<Arc<dyn ObjectStore>> {
    let (id, secret, token) = match keys {
        Some(StoreKeys::Pair { id, secret }) => (Some(id.clone()), Some(secret.clone()), None),
        Some(StoreKeys::Token(token)) => (None, None, Some(token.clone())),
        None => {
            let of = |name| variable(&[name]);
            (None, of("LITESTREAM_AZURE_ACCOUNT_KEY"), of("LITESTREAM_AZURE_SAS_TOKEN"))
        }
    };
    let account = place.account.clone().or(id.filter(|id| !id.is_empty()));
    let account = account.or_else(|| variable(&["AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT"]));
    let account = account.with_context(|| format!("no account is named: {}", AZURE.example))?;
    let server = place.endpoint.clone().unwrap_or_else(|| format!("https://{account}.blob.core.windows.net"));
    let mut builder = MicrosoftAzureBuilder::from_env()
        .with_container_name(&place.bucket)
        .with_retry(never_again())
        .with_http_connector(Connector::new(sender, &AZURE, &server))
        .with_account(account);
    if let Some(endpoint) = place.endpoint.clone() {
        builder = builder.with_allow_http(endpoint.starts_with("http://")).with_endpoint(endpoint);
    }
    // A token goes first, as with Litestream.
    if let Some(token) = token {
        hide(&token);
        let pairs = url::form_urlencoded::parse(token.trim_start_matches('?').as_bytes()).into_owned();
        builder = builder.with_credential_type("sas_token").with_sas_authorization(pairs.collect::<Vec<_>>());
    } else if let Some(secret) = secret {
        hide(&secret);
        builder = builder.with_credential_type("access_key").with_access_key(secret);
    }
    Ok(Arc::new(builder.build().map_err(failed)?))
}

impl Objects {
    /// A bucket of Google's, with the credentials of the machine.
    pub(super) fn google(url: &str) -> Result<Objects> {
        let place = Place::of(url, &GOOGLE)?;
        let shared = shared(&GOOGLE, &place, None, |sender| google(&place, sender));
        Objects::new(&GOOGLE, shared.with_context(|| format!("cannot use {url}"))?, place)
    }

    /// A container of Azure's, with `keys`, or the credentials that the environment names.
    pub(super) fn azure(url: &str, keys: Option<&StoreKeys>) -> Result<Objects> {
        let place = Place::of(url, &AZURE)?;
        let shared = shared(&AZURE, &place, keys, |sender| azure(&place, keys, sender));
        Objects::new(&AZURE, shared.with_context(|| format!("cannot use {url}"))?, place)
    }

    fn new(service: &'static Service, shared: SharedBucket, place: Place) -> Result<Objects> {
        let SharedBucket { objects, sender } = shared;
        Ok(Objects { service, objects, runtime: runtime()?, sender, bucket: place.bucket, prefix: place.prefix })
    }

    fn path(&self, name: &str) -> Path {
        Path::from_iter(self.prefix.split('/').chain(name.split('/')).filter(|part| !part.is_empty()))
    }

    fn shown(&self, path: &Path) -> String {
        format!("{}://{}/{path}", self.service.scheme, self.bucket)
    }

    /// A small object and its version.
    fn get_small(&self, path: &Path) -> Result<Option<(Vec<u8>, UpdateVersion)>> {
        let what = || format!("cannot read {}", self.shown(path));
        let read = self.runtime.block_on(async {
            let found = self.objects.get(path).await?;
            let version = UpdateVersion { e_tag: found.meta.e_tag.clone(), version: found.meta.version.clone() };
            let size = found.meta.size;
            Ok((if size <= OWNER_BYTES_MAX { found.bytes().await? } else { Bytes::new() }, version, size))
        });
        match read {
            Ok((_, _, size)) if size > OWNER_BYTES_MAX => bail!("{}: it has {size} bytes", what()),
            Ok((bytes, version, _)) => Ok(Some((bytes.to_vec(), version))),
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(e) => Err(failed(e)).with_context(what),
        }
    }

    /// Makes or replaces a small object; `false`: the condition does not hold.
    fn put_small(&self, path: &Path, record: &[u8], mode: PutMode) -> Result<bool> {
        let options = PutOptions { mode, ..PutOptions::default() };
        let put = self.objects.put_opts(path, PutPayload::from(record.to_vec()), options);
        is_made(self.runtime.block_on(put)).with_context(|| format!("cannot write {}", self.shown(path)))
    }

    /// The version that a condition names, from the text that [`Version`] holds.
    fn condition(&self, version: &str) -> PutMode {
        let version = Some(version.to_owned());
        PutMode::Update(match self.service.scheme == GOOGLE.scheme {
            true => UpdateVersion { e_tag: None, version },
            false => UpdateVersion { e_tag: version, version: None },
        })
    }

    fn version(&self, of: UpdateVersion) -> Option<String> {
        if self.service.scheme == GOOGLE.scheme { of.version } else { of.e_tag }
    }

    fn reader(&self, path: &Path, options: GetOptions) -> Result<Moving<ArrivingObject>> {
        let found = self.runtime.block_on(self.objects.get_opts(path, options)).map_err(failed)?;
        Ok(Moving(ArrivingObject { runtime: self.runtime, stream: found.into_stream(), part: Bytes::new() }))
    }
}

/// [`Sender`] sends again.
fn never_again() -> RetryConfig {
    RetryConfig { max_retries: 0, retry_timeout: Duration::ZERO, ..RetryConfig::default() }
}

fn is_made(put: object_store::Result<object_store::PutResult>) -> Result<bool> {
    use object_store::Error::{AlreadyExists, NotFound, Precondition};
    match put {
        Ok(_) => Ok(true),
        Err(AlreadyExists { .. } | NotFound { .. } | Precondition { .. }) => Ok(false),
        Err(e) => Err(failed(e)),
    }
}

/// As the sender tells it, where the error is the sender's.
fn failed(error: object_store::Error) -> Error {
    refusal_in(&error).unwrap_or_else(|| anyhow!("{error}"))
}

impl Store for Objects {
    fn hurry(&mut self, patience: Duration) {
        self.sender.hurry(patience);
    }

    fn begin(&mut self, _node: u64) -> Result<Conditions> {
        let path = self.path(PROBE);
        self.put_small(&path, b"", PutMode::Create)?;
        let create = !self.put_small(&path, b"", PutMode::Create)?;
        let found = self.get_small(&path)?.and_then(|(_, version)| self.version(version));
        let Some(version) = found else { bail!("{} is gone", self.shown(&path)) };
        let wrong = self.put_small(&path, b"", self.condition(self.service.no_version))?;
        let right = self.put_small(&path, b"", self.condition(&version))?;
        Ok(Conditions { create, replace: right && !wrong })
    }

    fn owner(&self) -> Result<Option<(Vec<u8>, Version)>> {
        let path = self.path(OWNER);
        let Some((record, version)) = self.get_small(&path)? else { return Ok(None) };
        let version = self.version(version).with_context(|| format!("{} has no version", self.shown(&path)))?;
        Ok(Some((record, Version(version))))
    }

    fn set_owner(&self, was: Option<&Version>, record: &[u8]) -> Result<bool> {
        let mode = was.map_or(PutMode::Create, |version| self.condition(&version.0));
        self.put_small(&self.path(OWNER), record, mode)
    }

    fn list_from(&self, level: u8, first: u64) -> Result<Vec<Entry>> {
        let prefix = self.path(&format!("ltx/{level}"));
        let what = || format!("cannot list {}", self.shown(&prefix));
        let mut entries = Vec::new();
        let mut objects = match first {
            0 => self.objects.list(Some(&prefix)),
            first => self.objects.list_with_offset(Some(&prefix), &self.path(&format!("ltx/{level}/{first:016x}"))),
        };
        while let Some(object) = self.runtime.block_on(objects.next()) {
            let ObjectMeta { location, last_modified, size, .. } = object.map_err(failed).with_context(what)?;
            let name = location.prefix_match(&prefix).and_then(|mut parts| Some((parts.next()?, parts.next())));
            let Some((name, None)) = name else { continue };
            let Some(name) = Name::parse(level, name.as_ref()) else { continue };
            entries.push(Entry { name, time_ms: last_modified.timestamp_millis(), bytes: size });
            check_count(entries.len()).with_context(what)?;
        }
        entries.sort_unstable();
        Ok(entries)
    }

    fn has(&self, name: Name) -> Result<bool> {
        let path = self.path(&name.to_string());
        match self.runtime.block_on(self.objects.head(&path)) {
            Ok(_) => Ok(true),
            Err(object_store::Error::NotFound { .. }) => Ok(false),
            Err(e) => Err(failed(e)).with_context(|| format!("cannot look at {}", self.shown(&path))),
        }
    }

    fn open(&self, name: Name) -> Result<Box<dyn Read>> {
        let path = self.path(&name.to_string());
        let reader = self.reader(&path, GetOptions::default());
        Ok(Box::new(reader.with_context(|| format!("cannot read {}", self.shown(&path)))?))
    }

    fn read_part(&self, name: Name, offset: u64, bytes: u64) -> Result<Vec<u8>> {
        let path = self.path(&name.to_string());
        part_again(|| {
            let range = Some(GetRange::Bounded(offset..offset.saturating_add(bytes)));
            let mut reader = self.reader(&path, GetOptions { range, ..GetOptions::default() })?;
            let mut part = Vec::with_capacity(usize::try_from(bytes)?);
            Ok(reader.read_to_end(&mut part).map(|_| part))
        })
        .with_context(|| format!("cannot read {}", self.shown(&path)))
    }

    fn create(&self, name: Name, time_ms: i64, fill: Fill<'_>) -> Result<bool> {
        let path = self.path(&name.to_string());
        let what = || format!("cannot write {}", self.shown(&path));
        let (file, bytes) = spooled(fill).with_context(what)?;
        let most = self.service.bytes_max;
        ensure!(
            bytes <= most,
            "{path} would have {bytes} bytes, and an object that is created at once has at most {most}"
        );
        let body = FileBody { file: Arc::new(file), bytes, is_slow: name.level != BATCHES, again: Arc::default() };
        let time = UNIX_EPOCH + Duration::from_millis(u64::try_from(time_ms).unwrap_or(0));
        let time = humantime::format_rfc3339_nanos(time).to_string();
        let mut options = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
        options.attributes = Attributes::from_iter([(Attribute::Metadata(self.service.time.into()), time)]);
        options.extensions.insert(body.clone());
        let put = self.objects.put_opts(&path, of_length(bytes), options);
        if is_made(self.runtime.block_on(put)).with_context(what)? {
            return Ok(true);
        }
        // An earlier attempt may have arrived.
        match body.again.load(SeqCst) {
            true => holds(&mut *self.open(name)?, &body.file, bytes).with_context(what),
            false => Ok(false),
        }
    }

    fn remove(&self, name: Name) -> Result<()> {
        let path = self.path(&name.to_string());
        match self.runtime.block_on(self.objects.delete(&path)) {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
            Err(e) => Err(failed(e)).with_context(|| format!("cannot remove {}", self.shown(&path))),
        }
    }
}

impl fmt::Debug for Objects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}/{}", self.service.scheme, self.bucket, self.prefix)
    }
}

/// The body of a request, which is sent instead of the payload that tells its length.
#[derive(Clone)]
struct FileBody {
    file: Arc<File>,
    bytes: u64,
    is_slow: bool,
    /// Whether the request was sent more than once.
    again: Arc<AtomicBool>,
}

/// A payload that only tells a length, which Azure's signatures need: no file has to fit into
/// memory.
fn of_length(bytes: u64) -> PutPayload {
    static ZEROS: [u8; 1 << 20] = [0; 1 << 20];
    let whole = usize::try_from(bytes / ZEROS.len() as u64).unwrap_or(usize::MAX);
    let rest = ZEROS.get(..(bytes % ZEROS.len() as u64) as usize).unwrap_or_default();
    std::iter::repeat_n(&ZEROS[..], whole).chain([rest]).map(Bytes::from_static).collect()
}

/// Sends requests to the store, and to the servers that give credentials for it.
#[derive(Clone, Debug)]
struct Connector {
    sender: Arc<Sender>,
    service: &'static Service,
    server: String,
}

impl Connector {
    fn new(sender: &Arc<Sender>, service: &'static Service, server: &str) -> Connector {
        Connector { sender: sender.clone(), service, server: authority(server).to_owned() }
    }
}

impl HttpConnector for Connector {
    fn connect(&self, _options: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(self.clone()))
    }
}

#[async_trait::async_trait]
impl HttpService for Connector {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let url = request.uri().to_string();
        let server = authority(&url);
        let answer = self.send(request);
        let answer = if server == self.server {
            answer
        } else {
            answer.with_context(|| format!("no credentials from {server}: {}", self.service.credentials))
        };
        answer.map_err(|e| HttpError::new(HttpErrorKind::Unknown, Refusal::from(e)))
    }
}

impl Connector {
    fn send(&self, request: HttpRequest) -> Result<HttpResponse> {
        let (parts, body) = request.into_parts();
        let mut headers = Vec::new();
        // The sender knows the length.
        for (name, value) in parts.headers.iter().filter(|(name, _)| *name != "content-length") {
            headers.push((name.as_str(), value.to_str().context("a header is not text")?));
        }
        let file = parts.extensions.get::<FileBody>();
        let bytes = if file.is_none() { collected(body) } else { Vec::new() };
        let sent = match file {
            Some(body) if body.is_slow => Sent::Slowly(&body.file, body.bytes),
            Some(body) => Sent::File(&body.file, body.bytes),
            None if bytes.is_empty() && parts.method != Method::PUT && parts.method != Method::POST => Sent::Nothing,
            None => Sent::Bytes(&bytes),
        };
        let kind = kind_of(&parts.method, parts.uri.query().unwrap_or_default());
        let url = || Ok(parts.uri.to_string());
        let (answer, again) = self.sender.call(kind, parts.method.as_str(), &url, &headers, sent, &|| false)?;
        if let Some(body) = file {
            body.again.store(again, SeqCst);
        }
        match answer.status() {
            // What a condition or a missing object leads to.
            StatusCode::CONFLICT | StatusCode::PRECONDITION_FAILED => Ok(as_theirs(answer)),
            StatusCode::NOT_FOUND => match text_of(answer) {
                (_, text) if text.contains("NoSuchBucket") || text.contains("ContainerNotFound") => {
                    Err(refused_with(StatusCode::NOT_FOUND, &text))
                }
                (parts, text) => Ok(HttpResponse::from_parts(parts, HttpResponseBody::from(Bytes::from(text)))),
            },
            status if status.is_success() => Ok(as_theirs(answer)),
            _ => Err(refused(answer)),
        }
    }
}

fn kind_of(method: &Method, query: &str) -> report::Request {
    match *method {
        Method::PUT => report::Request::Put,
        Method::HEAD => report::Request::Head,
        Method::DELETE => report::Request::Delete,
        _ if query.contains("comp=batch") => report::Request::Delete,
        _ if query.contains("comp=list") || query.contains("list-type=") => report::Request::List,
        _ => report::Request::Get,
    }
}

/// A body in memory.
fn collected(mut body: HttpRequestBody) -> Vec<u8> {
    let mut context = TaskContext::from_waker(Waker::noop());
    let mut bytes = Vec::new();
    while let Poll::Ready(Some(Ok(frame))) = Pin::new(&mut body).poll_frame(&mut context) {
        bytes.extend_from_slice(&frame.into_data().unwrap_or_default());
    }
    bytes
}

fn as_theirs(answer: Response<ureq::Body>) -> HttpResponse {
    let (parts, body) = answer.into_parts();
    let body = reader(body);
    HttpResponse::from_parts(parts, HttpResponseBody::new(AnswerBody(Mutex::new(Box::new(body)))))
}

/// An answer's body, read as it is asked for.
struct AnswerBody(Mutex<Box<dyn Read + Send>>);

impl Body for AnswerBody {
    type Data = Bytes;
    type Error = HttpError;

    fn poll_frame(
        self: Pin<&mut Self>,
        _context: &mut TaskContext<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, HttpError>>> {
        let mut part = vec![0; PART_BYTES];
        let read = locked(&self.0).read(&mut part);
        Poll::Ready(match read {
            Ok(0) => None,
            Ok(n) => {
                part.truncate(n);
                Some(Ok(Frame::data(Bytes::from(part))))
            }
            Err(e) => Some(Err(HttpError::new(HttpErrorKind::Interrupted, e))),
        })
    }
}

/// An object as it arrives.
struct ArrivingObject {
    runtime: &'static Runtime,
    stream: BoxStream<'static, object_store::Result<Bytes>>,
    part: Bytes,
}

impl Read for ArrivingObject {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        while self.part.is_empty() {
            match self.runtime.block_on(self.stream.next()) {
                None => return Ok(0),
                Some(part) => self.part = part.map_err(io::Error::other)?,
            }
        }
        let n = to.len().min(self.part.len());
        let part = self.part.split_to(n);
        to.get_mut(..n).unwrap_or_default().copy_from_slice(&part);
        Ok(n)
    }
}

/// The head of an answer, and its text.
fn text_of(answer: Response<ureq::Body>) -> (Parts, String) {
    let (head, mut body) = answer.into_parts();
    let text = body.with_config().limit(ERROR_BYTES_MAX).read_to_string().unwrap_or_default();
    (head, text)
}

/// Carries an error through a library whose errors are its own.
#[derive(Debug)]
struct Refusal(Mutex<Option<Error>>);

impl From<Error> for Refusal {
    fn from(error: Error) -> Refusal {
        Refusal(Mutex::new(Some(error)))
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*locked(&self.0) {
            Some(error) => write!(f, "{error:#}"),
            None => f.write_str("the request failed"),
        }
    }
}

impl std::error::Error for Refusal {}

/// The error that a [`Refusal`] among an error's causes carries.
fn refusal_in(error: &(dyn std::error::Error + 'static)) -> Option<Error> {
    let mut error = Some(error);
    while let Some(now) = error {
        if let Some(refusal) = now.downcast_ref::<Refusal>() {
            return locked(&refusal.0).take();
        }
        error = now.source();
    }
    None
}
