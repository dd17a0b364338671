//! A store in an S3 bucket, laid out as Litestream's `s3` replicas: an object's metadata has the
//! time of its state.

use super::http::{ERROR_BYTES_MAX, Sender, Sent, part, part_again, part_of, range, reader, refused, refused_with};
use super::keys::{BucketKeys, of_profile, variable};
use super::spool::{holds, spooled};
use super::{
    BATCHES, Conditions, Entry, Fill, Name, OWNER, OWNER_BYTES_MAX, PROBE, Store, StoreKeys, Version, check_count,
};
use crate::report;
use crate::secrets::is_name;
use anyhow::{Context, Result, bail, ensure};
use rusty_s3::actions::{ListObjectsV2, S3Action};
use rusty_s3::{Bucket, Credentials, UrlStyle};
use std::cell::RefCell;
use std::fmt;
use std::io::{BufReader, Read};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use ureq::Body;
use ureq::http::{Response, StatusCode};
use url::Url;

const EXAMPLE: &str =
    "name a bucket as s3://bucket/path, with ?region=eu-central-1, or ?endpoint=http://127.0.0.1:7070";
const PARAMETERS: [&str; 3] = ["region", "endpoint", "force-path-style"];
/// Metadata with the time of the state, as RFC 3339.
const TIME: &str = "x-amz-meta-litestream-timestamp";
const SIGNED_FOR: Duration = Duration::from_secs(3600);
const BYTES_MAX: u64 = 5 << 30;
/// Limit of one page of a listing.
const LISTED_BYTES_MAX: u64 = 16 << 20;
/// Limit of a level's listing in pages.
const PAGES_MAX: u32 = 1 << 15;

pub(super) struct S3Store {
    bucket: Bucket,
    keys: Arc<BucketKeys>,
    /// Prefix of every key; empty, or ends with a slash.
    prefix: String,
    sender: Sender,
    /// The server has no `If-Match` for writes.
    replaces_blindly: bool,
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
        let sender = Sender::new("s3", "AWS_CA_BUNDLE")?;
        Ok(S3Store { bucket, keys, prefix, sender, replaces_blindly: false })
    }

    fn key(&self, name: Name) -> String {
        format!("{}{:04x}/{:016x}-{:016x}.ltx", self.prefix, name.level, name.min, name.max)
    }

    fn shown(&self, key: &str) -> String {
        format!("s3://{}/{key}", self.bucket.name())
    }

    fn call(
        &self,
        kind: report::Request,
        sign: &dyn Fn(&Credentials) -> Url,
        headers: &[(&str, &str)],
        body: Sent<'_>,
    ) -> Result<(Response<Body>, bool)> {
        let used = RefCell::new(None);
        let url = || {
            let keys = self.keys.now()?;
            let url = sign(&keys).into();
            used.replace(Some(keys));
            Ok(url)
        };
        let has_others = || used.borrow().as_ref().is_some_and(|keys| self.keys.has_others(keys));
        self.sender.call(kind, kind.method(), &url, headers, body, &has_others)
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

fn millis(time: &str) -> Option<i64> {
    let time: SystemTime = humantime::parse_rfc3339(time).ok()?;
    i64::try_from(time.duration_since(UNIX_EPOCH).ok()?.as_millis()).ok()
}

fn version(answer: &Response<Body>) -> Option<String> {
    Some(answer.headers().get("etag")?.to_str().ok()?.to_owned())
}

impl Store for S3Store {
    fn hurry(&mut self, patience: Duration) {
        self.sender.hurry(patience);
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

    fn list_from(&self, level: u8, first: u64) -> Result<Vec<Entry>> {
        let prefix = format!("{}{level:04x}/", self.prefix);
        let what = || format!("cannot list {}", self.shown(&prefix));
        let mut entries = Vec::new();
        let mut token: Option<String> = None;
        for _ in 0..PAGES_MAX {
            let sign = |keys: &Credentials| {
                let mut action = self.bucket.list_objects_v2(Some(keys));
                action.with_prefix(prefix.as_str());
                match &token {
                    Some(token) => action.with_continuation_token(token.as_str()),
                    None if first > 0 => action.with_start_after(format!("{prefix}{first:016x}")),
                    None => {}
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
        Ok(Box::new(BufReader::with_capacity(1 << 18, reader(answer.into_body()))))
    }

    fn read_part(&self, name: Name, offset: u64, bytes: u64) -> Result<Vec<u8>> {
        let key = self.key(name);
        let what = || format!("cannot read {}", self.shown(&key));
        let (range, url) = (range(offset, bytes), self.to_get(&key));
        let part = part_again(|| {
            let headers = [("range", range.as_str())];
            let (answer, _) = self.call(report::Request::Get, &url, &headers, Sent::Nothing)?;
            if !answer.status().is_success() {
                return Err(refused(answer));
            }
            Ok(part_of(answer, offset, bytes))
        });
        part.with_context(what)
    }

    fn create(&self, name: Name, time_ms: i64, fill: Fill<'_>) -> Result<bool> {
        let key = self.key(name);
        let what = || format!("cannot write {}", self.shown(&key));
        let (file, bytes) = spooled(fill).with_context(what)?;
        ensure!(
            bytes <= BYTES_MAX,
            "{key} would have {bytes} bytes, and an object that is created at once has at most {BYTES_MAX}"
        );
        let body = if name.level == BATCHES { Sent::File(&file, bytes) } else { Sent::Slowly(&file, bytes) };
        match self.put(&key, body, time_ms).with_context(what)? {
            CreateResult::Created => Ok(true),
            CreateResult::Exists { perhaps_ours: true } => {
                holds(&mut *self.open(name)?, &file, bytes).with_context(what)
            }
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
