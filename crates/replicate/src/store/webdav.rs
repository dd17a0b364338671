//! A store on a WebDAV server (RFC 4918), laid out as Litestream's `webdav` replicas.
//!
//! A file is written under another name and moved: readers never see a part of it, and a name is
//! taken once. So the owner's record has a number in its name, and is replaced by the next one.
//! Servers may look whether a name is free, and take it a moment later: commits do not wait for
//! such a store.

use super::http::{PAUSE, Sender, Sent, TRIES, pause, reader, refused};
use super::keys::variable;
use super::numbered::{self, NumberedFiles};
use super::{BATCHES, Conditions, Entry, Fill, Name, OWNER_BYTES_MAX, SNAPSHOTS, Store, Version, check_count};
use crate::ending::is_ending;
use crate::report::{self, COUNTERS};
use crate::secrets::hide;
use anyhow::{Context, Result, bail, ensure};
use base64::Engine;
use onewrite_core::environment;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use serde::Deserialize;
use std::fmt;
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Seek, Write};
use ureq::Body;
use ureq::http::{Response, StatusCode};
use url::Url;

const EXAMPLE: &str = "name a directory as webdavs://user@host/path, or webdav:// without TLS";
/// Prefix of a file that is not whole yet.
const UNFINISHED: &str = ".onewrite-unfinished-";
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

    /// Makes a directory, whose name ends with a slash.
    fn make_dir(&self, name: &str) -> Result<()> {
        let (answer, _) = self.call(report::Request::Put, "MKCOL", name, &[], Sent::Nothing)?;
        // METHOD_NOT_ALLOWED: it is there.
        let also = [StatusCode::METHOD_NOT_ALLOWED, StatusCode::CONFLICT];
        if self.done(answer, &also, "make the directory", name)?.status() != StatusCode::CONFLICT {
            return Ok(());
        }
        bail!("there is no directory above {}: make it", self.url(name))
    }

    /// Makes a file under `name` if the name is free, or in any case. `false`: it was not.
    fn put(&self, name: &str, body: Sent<'_>, replaces: bool) -> Result<Moved> {
        let (dir, _) = name.rsplit_once('/').map_or(("", name), |(dir, last)| (dir, last));
        let slash = if dir.is_empty() { "" } else { "/" };
        let other = format!("{dir}{slash}{UNFINISHED}{:016x}", getrandom::u64().context("no random numbers")?);
        let (answer, _) = self.call(report::Request::Put, "PUT", &other, &[], body)?;
        self.done(answer, &[], "write", &other)?;
        let headers = [("destination", &*self.url(name)), ("overwrite", if replaces { "T" } else { "F" })];
        let (answer, again) = self.call(report::Request::Put, "MOVE", &other, &headers, Sent::Nothing)?;
        match self.done(answer, &[StatusCode::PRECONDITION_FAILED, StatusCode::NOT_FOUND], "write", name)?.status() {
            StatusCode::PRECONDITION_FAILED => {
                self.delete(&other)?;
                Ok(Moved::NameIsTaken)
            }
            // An earlier attempt has arrived.
            StatusCode::NOT_FOUND if again => Ok(Moved::Perhaps),
            StatusCode::NOT_FOUND => bail!("cannot write {}: {} is gone", self.url(name), self.url(&other)),
            _ => Ok(Moved::Done),
        }
    }

    fn delete(&self, name: &str) -> Result<()> {
        let (answer, _) = self.call(report::Request::Delete, "DELETE", name, &[], Sent::Nothing)?;
        self.done(answer, &[StatusCode::NOT_FOUND], "remove", name).map(drop)
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
            let last = listed.href.trim_end_matches('/').rsplit('/').next()?.to_owned();
            let name = percent_decode_str(&last).decode_utf8().ok()?.into_owned();
            // A group of properties that the server lacks may come, too.
            let groups = listed.groups.into_iter().map(|group| group.prop);
            Some((name, groups.into_iter().find(|prop| prop.modified.is_some()).unwrap_or_default()))
        });
        Ok(entries.collect())
    }

    fn holds(&self, name: Name, mut file: &File) -> Result<bool> {
        file.rewind()?;
        let mut here = Vec::new();
        let mut there = self.open(name)?;
        let mut part = vec![0; 1 << 16];
        let mut file = BufReader::with_capacity(1 << 18, file);
        loop {
            here.clear();
            (&mut file).take(1 << 16).read_to_end(&mut here)?;
            let Some(part) = part.get_mut(..here.len().max(1)) else { return Ok(false) };
            if here.is_empty() {
                return Ok(there.read(part)? == 0);
            }
            match there.read_exact(part) {
                Ok(()) if *part == *here => {}
                Err(e) if e.kind() != io::ErrorKind::UnexpectedEof => return Err(e.into()),
                _ => return Ok(false),
            }
        }
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

impl NumberedFiles for WebDav {
    fn names(&self) -> Result<Vec<String>> {
        Ok(self.names_in("")?.into_iter().map(|(name, _)| name).collect())
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
        Ok(self.put(name, Sent::Bytes(bytes), false)? == Moved::Done)
    }

    fn remove(&self, name: &str) -> Result<()> {
        self.delete(name)
    }
}

impl Store for WebDav {
    fn hurry(&mut self, patience: std::time::Duration) {
        self.sender.hurry(patience);
    }

    fn begin(&mut self, _node: u64) -> Result<Conditions> {
        for dir in [String::new(), "ltx/".to_owned(), format!("ltx/{BATCHES}/"), format!("ltx/{SNAPSHOTS}/")] {
            self.make_dir(&dir)?;
        }
        self.put("onewrite-probe", Sent::Bytes(b"1"), true)?;
        let create = self.put("onewrite-probe", Sent::Bytes(b"2"), false)? == Moved::NameIsTaken;
        Ok(Conditions { create, replace: false })
    }

    fn tidy(&self) -> Result<()> {
        let levels = (BATCHES..=SNAPSHOTS).map(|level| format!("ltx/{level}/"));
        for dir in levels.chain([String::new()]) {
            for (name, _) in self.names_in(&dir)?.into_iter().filter(|(name, _)| name.starts_with(UNFINISHED)) {
                self.delete(&format!("{dir}{name}"))?;
            }
        }
        Ok(())
    }

    fn owner(&self) -> Result<Option<(Vec<u8>, Version)>> {
        numbered::owner(self)
    }

    fn set_owner(&self, was: Option<&Version>, record: &[u8]) -> Result<bool> {
        numbered::set_owner(self, was, record)
    }

    fn list(&self, level: u8) -> Result<Vec<Entry>> {
        let dir = format!("ltx/{level}/");
        let mut entries = Vec::new();
        for (name, properties) in self.names_in(&dir)? {
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
        let range = format!("bytes={offset}-{}", offset.saturating_add(bytes).saturating_sub(1));
        let mut tries = 1;
        loop {
            let (answer, _) = self.call(report::Request::Get, "GET", &name, &[("range", &range)], Sent::Nothing)?;
            let answer = self.done(answer, &[], "read", &name)?;
            // A server without ranges sends all of it.
            let skipped = if answer.status() == StatusCode::PARTIAL_CONTENT { 0 } else { offset };
            let mut body = reader(answer.into_body());
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
                Err(e) => return Err(e).with_context(|| format!("cannot read {}", self.url(&name))),
            }
        }
    }

    fn create(&self, name: Name, _time_ms: i64, fill: Fill<'_>) -> Result<bool> {
        let path = name.to_string();
        let what = || format!("cannot write {}", self.url(&path));
        // The request needs the length first, and may have to be repeated.
        let file = tempfile::tempfile_in(environment::temp_dir()).context("cannot make a temporary file")?;
        let mut to = BufWriter::with_capacity(1 << 18, &file);
        fill(&mut to).with_context(what)?;
        to.flush().context("cannot write a temporary file")?;
        drop(to);
        let bytes = file.metadata().context("cannot look at a temporary file")?.len();
        let body = if name.level == BATCHES { Sent::File(&file, bytes) } else { Sent::Slowly(&file, bytes) };
        if name.level != BATCHES && name.level != SNAPSHOTS {
            self.make_dir(&format!("ltx/{}/", name.level))?;
        }
        match self.put(&path, body, false)? {
            Moved::Done => Ok(true),
            Moved::NameIsTaken => Ok(false),
            Moved::Perhaps => Ok(self.has(name)? && self.holds(name, &file).with_context(what)?),
        }
    }

    fn remove(&self, name: Name) -> Result<()> {
        self.delete(&name.to_string())
    }
}

impl fmt::Debug for WebDav {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.server, self.path)
    }
}
