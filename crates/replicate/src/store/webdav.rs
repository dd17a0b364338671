//! A store on a WebDAV server (RFC 4918), laid out as Litestream's `webdav` replicas.
//!
//! A file is written under another name and moved: readers never see a part of it, and a name is
//! taken once. So the owner's record has a number in its name, and is replaced by the next one.
//! Servers may look whether a name is free, and take it a moment later: commits do not wait for
//! such a store.

use super::directory::{self, RemoteDirectory, level_dir, make_level, unfinished};
use super::http::{Sender, Sent, part_again, part_of, range, reader, refused};
use super::keys::variable;
use super::spool::{holds, spooled};
use super::{BATCHES, Conditions, Entry, Fill, Name, OWNER_BYTES_MAX, Store, Version, check_count};
use crate::report;
use crate::secrets::hide;
use anyhow::{Context, Result, bail, ensure};
use base64::Engine;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use serde::Deserialize;
use std::fmt;
use std::io::{BufReader, Read};
use ureq::Body;
use ureq::http::{Response, StatusCode};
use url::Url;

const EXAMPLE: &str = "name a directory as webdavs://user@host/path, or webdav:// without TLS";
/// Limit of one listing: 2^24 files of about 500 bytes would not fit into memory.
const LISTED_BYTES_MAX: u64 = 1 << 30;
/// Characters that a path leaves as they are.
const SEGMENT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~').remove(b'/');

pub(super) struct WebDav {
    /// Scheme and host, without a slash at its end.
    server: String,
    /// Path of the store in URL encoding, with a slash at both ends.
    path: String,
    /// Header that gives user and password.
    authorization: Option<String>,
    sender: Sender,
}

/// A listing, of which servers name the parts with prefixes of their choice.
#[derive(Deserialize)]
struct Listing {
    #[serde(default, rename = "response")]
    responses: Vec<Listed>,
}

#[derive(Deserialize)]
struct Listed {
    href: String,
    #[serde(default, rename = "propstat")]
    groups: Vec<Properties>,
}

#[derive(Deserialize)]
struct Properties {
    prop: FileProperties,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct FileProperties {
    #[serde(rename = "getlastmodified")]
    modified: Option<String>,
    #[serde(rename = "getcontentlength")]
    bytes: Option<u64>,
}

impl WebDav {
    pub(super) fn new(url: &str) -> Result<WebDav> {
        let parsed = Url::parse(url).with_context(|| format!("{url} is no URL: {EXAMPLE}"))?;
        let host = parsed.host_str().filter(|host| !host.is_empty());
        let host = host.with_context(|| format!("{url} names no server: {EXAMPLE}"))?;
        ensure!(parsed.query().is_none() && parsed.fragment().is_none(), "{url} has parameters: {EXAMPLE}");
        let scheme = if parsed.scheme() == "webdavs" { "https" } else { "http" };
        let port = parsed.port().map_or(String::new(), |port| format!(":{port}"));
        let decoded = |text: &str| percent_decode_str(text).decode_utf8_lossy().into_owned();
        let user = Some(decoded(parsed.username())).filter(|user| !user.is_empty());
        let user = user.or_else(|| variable(&["WEBDAV_USERNAME"]));
        let password = parsed.password().map(decoded).or_else(|| variable(&["WEBDAV_PASSWORD"]));
        let authorization = user.map(|user| {
            let password = password.unwrap_or_default();
            hide(&password);
            let pair = base64::engine::general_purpose::STANDARD.encode(format!("{user}:{password}"));
            hide(&pair);
            format!("Basic {pair}")
        });
        let path = decoded(parsed.path());
        let path = path.split('/').filter(|part| !part.is_empty()).collect::<Vec<_>>().join("/");
        ensure!(!path.is_empty(), "{url} names no directory: {EXAMPLE}");
        Ok(WebDav {
            server: format!("{scheme}://{host}{port}"),
            path: format!("/{}/", utf8_percent_encode(&path, SEGMENT)),
            authorization,
            sender: Sender::new("webdav", "SSL_CERT_FILE")?,
        })
    }

    fn url(&self, name: &str) -> String {
        format!("{}{}{}", self.server, self.path, utf8_percent_encode(name, SEGMENT))
    }

    /// Also returns whether the request was sent again.
    fn call(
        &self,
        kind: report::Request,
        method: &str,
        name: &str,
        headers: &[(&str, &str)],
        body: Sent<'_>,
    ) -> Result<(Response<Body>, bool)> {
        let mut all = headers.to_vec();
        if let Some(authorization) = &self.authorization {
            all.push(("authorization", authorization));
        }
        self.sender.call(kind, method, &|| Ok(self.url(name)), &all, body, &|| false)
    }

    /// An error unless the answer is a success, or has one of these statuses.
    fn done(&self, answer: Response<Body>, also: &[StatusCode], verb: &str, name: &str) -> Result<Response<Body>> {
        match answer.status() {
            status if status.is_success() || also.contains(&status) => Ok(answer),
            StatusCode::UNAUTHORIZED => bail!(
                "cannot {verb} {}: the server wants a user and a password: name them in the URL, or set WEBDAV_USERNAME and \
                 WEBDAV_PASSWORD",
                self.url(name)
            ),
            _ => Err(refused(answer)).with_context(|| format!("cannot {verb} {}", self.url(name))),
        }
    }

    /// Makes a file under `name` if the name is free.
    fn put(&self, name: &str, body: Sent<'_>) -> Result<Moved> {
        let other = unfinished(name)?;
        let (answer, _) = self.call(report::Request::Put, "PUT", &other, &[], body)?;
        self.done(answer, &[], "write", &other)?;
        let headers = [("destination", &*self.url(name)), ("overwrite", "F")];
        let (answer, again) = self.call(report::Request::Put, "MOVE", &other, &headers, Sent::Nothing)?;
        match self.done(answer, &[StatusCode::PRECONDITION_FAILED, StatusCode::NOT_FOUND], "write", name)?.status() {
            StatusCode::PRECONDITION_FAILED => {
                RemoteDirectory::remove(self, &other)?;
                Ok(Moved::NameIsTaken)
            }
            // An earlier attempt has arrived.
            StatusCode::NOT_FOUND if again => Ok(Moved::Perhaps),
            StatusCode::NOT_FOUND => bail!("cannot write {}: {} is gone", self.url(name), self.url(&other)),
            _ => Ok(Moved::Done),
        }
    }

    /// Names, lengths and times of a directory's entries.
    fn names_in(&self, dir: &str) -> Result<Vec<(String, FileProperties)>> {
        let what = || format!("cannot list {}", self.url(dir));
        let (answer, _) = self.call(report::Request::List, "PROPFIND", dir, &[("depth", "1")], Sent::Nothing)?;
        let mut answer = self.done(answer, &[StatusCode::NOT_FOUND], "list", dir)?;
        if answer.status() == StatusCode::NOT_FOUND {
            return Ok(Vec::new());
        }
        let text = answer.body_mut().with_config().limit(LISTED_BYTES_MAX).read_to_string().with_context(what)?;
        let listing: Listing = quick_xml::de::from_str(&text).with_context(what)?;
        check_count(listing.responses.len()).with_context(what)?;
        let entries = listing.responses.into_iter().filter_map(|listed| {
            let last = listed.href.trim_end_matches('/').rsplit('/').next()?;
            let name = percent_decode_str(last).decode_utf8().ok()?.into_owned();
            // A group of properties that the server lacks may come, too.
            let mut groups = listed.groups.into_iter().map(|group| group.prop);
            Some((name, groups.find(|prop| prop.modified.is_some()).unwrap_or_default()))
        });
        Ok(entries.collect())
    }
}

/// What became of a file that was to get its name.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Moved {
    Done,
    NameIsTaken,
    /// The request was sent again, and the file no longer had its other name.
    Perhaps,
}

impl RemoteDirectory for WebDav {
    fn make_dir(&self, dir: &str) -> Result<()> {
        let (answer, _) = self.call(report::Request::Put, "MKCOL", dir, &[], Sent::Nothing)?;
        // METHOD_NOT_ALLOWED: it is there.
        let also = [StatusCode::METHOD_NOT_ALLOWED, StatusCode::CONFLICT];
        if self.done(answer, &also, "make the directory", dir)?.status() != StatusCode::CONFLICT {
            return Ok(());
        }
        bail!("there is no directory above {}: make it", self.url(dir))
    }

    fn names(&self, dir: &str) -> Result<Vec<String>> {
        Ok(self.names_in(dir)?.into_iter().map(|(name, _)| name).collect())
    }

    fn read(&self, name: &str) -> Result<Option<Vec<u8>>> {
        let (answer, _) = self.call(report::Request::Get, "GET", name, &[], Sent::Nothing)?;
        let mut answer = self.done(answer, &[StatusCode::NOT_FOUND], "read", name)?;
        if answer.status() == StatusCode::NOT_FOUND {
            return Ok(None);
        }
        let record = answer.body_mut().with_config().limit(OWNER_BYTES_MAX).read_to_vec();
        record.map(Some).with_context(|| format!("cannot read {}", self.url(name)))
    }

    fn make(&self, name: &str, bytes: &[u8]) -> Result<bool> {
        Ok(self.put(name, Sent::Bytes(bytes))? == Moved::Done)
    }

    fn remove(&self, name: &str) -> Result<()> {
        let (answer, _) = self.call(report::Request::Delete, "DELETE", name, &[], Sent::Nothing)?;
        self.done(answer, &[StatusCode::NOT_FOUND], "remove", name).map(drop)
    }
}

impl Store for WebDav {
    fn hurry(&mut self, patience: std::time::Duration) {
        self.sender.hurry(patience);
    }

    fn begin(&mut self, _node: u64) -> Result<Conditions> {
        let create = directory::begin(self)?;
        Ok(Conditions { create, replace: false })
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
        for (name, properties) in self.names_in(&level_dir(level))? {
            let Some(name) = Name::parse(level, &name) else { continue };
            let time = properties.modified.as_deref().and_then(|time| jiff::fmt::rfc2822::parse(time).ok());
            let time = time.with_context(|| format!("the server does not say when {name} was made"))?;
            let time_ms = time.timestamp().as_millisecond();
            entries.push(Entry { name, time_ms, bytes: properties.bytes.unwrap_or(0) });
        }
        entries.sort_unstable();
        Ok(entries)
    }

    fn has(&self, name: Name) -> Result<bool> {
        let name = name.to_string();
        let (answer, _) = self.call(report::Request::Head, "HEAD", &name, &[], Sent::Nothing)?;
        Ok(self.done(answer, &[StatusCode::NOT_FOUND], "look at", &name)?.status() != StatusCode::NOT_FOUND)
    }

    fn open(&self, name: Name) -> Result<Box<dyn Read>> {
        let name = name.to_string();
        let (answer, _) = self.call(report::Request::Get, "GET", &name, &[], Sent::Nothing)?;
        let body = self.done(answer, &[], "read", &name)?.into_body();
        Ok(Box::new(BufReader::with_capacity(1 << 18, reader(body))))
    }

    fn read_part(&self, name: Name, offset: u64, bytes: u64) -> Result<Vec<u8>> {
        let name = name.to_string();
        let range = range(offset, bytes);
        let part = part_again(|| {
            let (answer, _) = self.call(report::Request::Get, "GET", &name, &[("range", &range)], Sent::Nothing)?;
            Ok(part_of(self.done(answer, &[], "read", &name)?, offset, bytes))
        });
        part.with_context(|| format!("cannot read {}", self.url(&name)))
    }

    fn create(&self, name: Name, _time_ms: i64, fill: Fill<'_>) -> Result<bool> {
        let path = name.to_string();
        let what = || format!("cannot write {}", self.url(&path));
        let (file, bytes) = spooled(fill).with_context(what)?;
        let body = if name.level == BATCHES { Sent::File(&file, bytes) } else { Sent::Slowly(&file, bytes) };
        make_level(self, name.level)?;
        match self.put(&path, body)? {
            Moved::Done => Ok(true),
            Moved::NameIsTaken => Ok(false),
            Moved::Perhaps => Ok(self.has(name)? && holds(&mut *self.open(name)?, &file, bytes).with_context(what)?),
        }
    }

    fn remove(&self, name: Name) -> Result<()> {
        RemoteDirectory::remove(self, &name.to_string())
    }
}

impl fmt::Debug for WebDav {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.server, self.path)
    }
}
