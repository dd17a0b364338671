//! A store in an object store of NATS (JetStream, ADR-20), laid out as Litestream's `nats`
//! replicas.
//!
//! An object is the messages of a subject, its parts, and a message that describes it. That one is
//! published when the parts are acknowledged, if its subject has no message, or still the one that
//! was read. So readers never see a part of a file, a name is taken once, and the owner's record is
//! replaced on a condition: commits may wait for such a store.

mod server;

use self::server::{Acknowledged, EXAMPLE, Failure, IN_FLIGHT, JetStream, acknowledged, ask, ask_for, silent};
use super::http::Paced;
use super::runtime::runtime;
use super::spool::spooled;
use super::{BATCHES, Conditions, Entry, Fill, Name, OWNER, OWNER_BYTES_MAX, PROBE, Store, Version, check_count};
use crate::ending::Moving;
use crate::local::locked;
use crate::report::{self, Level, Request};
use anyhow::{Context, Result, anyhow, bail, ensure};
use async_nats::HeaderMap;
use async_nats::header::{NATS_EXPECTED_LAST_SUBJECT_SEQUENCE, NATS_ROLLUP};
use async_nats::jetstream;
use async_nats::jetstream::consumer::push::{Ordered, OrderedConfig};
use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE};
use bytes::{Buf, Bytes};
use futures_util::StreamExt;
use jiff::Timestamp;
use percent_encoding::percent_decode_str;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::fmt;
use std::fs::File;
use std::io::{self, Read, Seek};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;
use tokio::time::timeout;
use url::Url;
use xxhash_rust::xxh3::xxh3_64;

/// Header of an object with the time of its state.
const TIME: &str = "Litestream-Timestamp";
/// Longest part of an object, as other programs have it.
const PART_BYTES: usize = 128 << 10;
/// So many descriptions are asked for one by one.
const FEW: usize = 4;
/// Attempts to read the owner's record, which another machine may be replacing.
const TRIES: u32 = 8;
/// Files whose parts are known.
const KNOWN_MAX: usize = 1 << 10;

pub(super) struct Nats {
    server: Arc<JetStream>,
    bucket: String,
    /// Prefix of every name; empty, or ends with a slash.
    prefix: String,
    /// Of files that were read in part.
    known: Mutex<BTreeMap<Name, Arc<ObjectParts>>>,
}

/// The message that describes an object.
#[derive(Debug, Deserialize)]
struct Description {
    name: String,
    #[serde(default)]
    nuid: String,
    #[serde(default)]
    size: u64,
    #[serde(default)]
    deleted: bool,
    #[serde(default)]
    headers: Option<HashMap<String, Vec<String>>>,
    #[serde(default)]
    mtime: Option<String>,
}

impl Description {
    fn time_ms(&self) -> i64 {
        let told = self.headers.as_ref().and_then(|all| all.get(TIME)).and_then(|values| values.first());
        let time = told.or(self.mtime.as_ref()).and_then(|text| text.parse::<Timestamp>().ok());
        time.map_or(0, Timestamp::as_millisecond)
    }
}

/// Where the parts of an object are.
#[derive(Debug)]
struct ObjectParts {
    nuid: String,
    bytes: u64,
    /// Offset, and sequence number of the message, in order.
    starts: Vec<(u64, u64)>,
}

#[derive(Deserialize)]
struct StreamInfo {
    config: StreamConfig,
    state: StreamState,
    #[serde(default)]
    total: usize,
}

#[derive(Deserialize)]
struct StreamConfig {
    #[serde(default)]
    storage: String,
}

#[derive(Deserialize)]
struct StreamState {
    #[serde(default)]
    subjects: Option<HashMap<String, u64>>,
}

#[derive(Deserialize)]
struct Found {
    message: StoredMessage,
}

/// A message as the stream's leader has it.
#[derive(Deserialize)]
struct StoredMessage {
    seq: u64,
    #[serde(default)]
    data: String,
}

impl StoredMessage {
    fn bytes(&self) -> Result<Vec<u8>, Failure> {
        STANDARD.decode(&self.data).map_err(|e| Failure::Refused(anyhow!("message {}: {e}", self.seq)))
    }
}

fn describes(payload: &[u8]) -> Result<Description, Failure> {
    serde_json::from_slice(payload)
        .map_err(|e| Failure::Refused(anyhow!("it is not the description of an object: {e}")))
}

impl Nats {
    /// An object store, with the login that the URL or the environment names.
    pub(super) fn new(url: &str) -> Result<Nats> {
        let parsed = Url::parse(url).with_context(|| format!("{url} is no URL: {EXAMPLE}"))?;
        let server = JetStream::of(&parsed)?;
        let path = percent_decode_str(parsed.path()).decode_utf8();
        let path = path.with_context(|| format!("{url}: a path is text in UTF-8"))?;
        let mut parts = path.split('/').filter(|part| !part.is_empty());
        let bucket = parts.next().with_context(|| format!("{url} names no object store: {EXAMPLE}"))?.to_owned();
        let is_plain = bucket.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_'));
        ensure!(is_plain, "{url}: the name of an object store has letters, digits, - and _ alone");
        let prefix = parts.map(|part| format!("{part}/")).collect();
        Ok(Nats { server, bucket, prefix, known: Mutex::default() })
    }

    fn full(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    fn shown(&self, name: &str) -> String {
        format!("nats://{}/{}{name}", self.bucket, self.prefix)
    }

    fn subject_of(&self, name: &str) -> String {
        format!("$O.{}.M.{}", self.bucket, URL_SAFE.encode(self.full(name)))
    }

    fn subject_of_parts(&self, nuid: &str) -> String {
        format!("$O.{}.C.{nuid}", self.bucket)
    }

    fn api(&self, verb: &str) -> String {
        format!("STREAM.{verb}.OBJ_{}", self.bucket)
    }

    /// The beginning of this store's own names of parts.
    fn mark(&self) -> String {
        format!("onewrite-{:016x}-", xxh3_64(format!("{}/{}", self.bucket, self.prefix).as_bytes()))
    }

    /// The description of an object, and the message's number, also of one that was deleted.
    fn described(&self, kind: Request, name: &str) -> Result<Option<(Description, u64)>> {
        let request = json!({"last_by_subj": self.subject_of(name)});
        let found = self.server.run(kind, async |context| {
            let found: Option<Found> = ask_for(&context, &self.api("MSG.GET"), &request).await?;
            let Some(Found { message }) = found else { return Ok(None) };
            Ok(Some((describes(&message.bytes()?)?, message.seq)))
        });
        found.with_context(|| format!("cannot look at {}", self.shown(name)))
    }

    fn there(&self, kind: Request, name: &str) -> Result<Option<(Description, u64)>> {
        Ok(self.described(kind, name)?.filter(|(of, _)| !of.deleted))
    }

    fn purge(&self, subject: &str) -> Result<()> {
        let request = json!({"filter": subject});
        let purged = self.server.run(Request::Delete, async |context| {
            ask::<IgnoredAny>(&context, &self.api("PURGE"), &request).await.map(drop)
        });
        purged.with_context(|| format!("cannot remove messages from {}", self.shown("")))
    }

    /// The subjects that the stream's leader has.
    fn subjects(&self, filter: &str) -> Result<Vec<String>> {
        let mut all = Vec::new();
        loop {
            let request = json!({"subjects_filter": filter, "offset": all.len()});
            let info = self
                .server
                .run(Request::List, async |context| ask::<StreamInfo>(&context, &self.api("INFO"), &request).await);
            let info = info.with_context(|| format!("cannot list {}", self.shown("")))?;
            let page = info.state.subjects.unwrap_or_default();
            let is_last = page.is_empty();
            all.extend(page.into_keys());
            check_count(all.len()).with_context(|| format!("cannot list {}", self.shown("")))?;
            if is_last || all.len() >= info.total {
                return Ok(all);
            }
        }
    }

    /// Descriptions of the objects with such names, below the store's path. The leader says which
    /// there are: a consumer may read from a server that is behind.
    fn descriptions(&self, is_wanted: impl Fn(&str) -> bool) -> Result<Vec<Description>> {
        let mut wanted = BTreeMap::new();
        for subject in self.subjects(&format!("$O.{}.M.>", self.bucket))? {
            let name = subject.rsplit('.').next().and_then(|name| URL_SAFE.decode(name).ok());
            let name = name.and_then(|name| String::from_utf8(name).ok());
            let name = name.as_deref().and_then(|name| name.strip_prefix(&self.prefix));
            if let Some(name) = name.filter(|name| is_wanted(name)) {
                wanted.insert(self.full(name), name.to_owned());
            }
        }
        let mut found = Vec::new();
        if wanted.len() > FEW {
            let all = self.server.run(Request::List, async |context| self.all_descriptions(context).await);
            let all = all.with_context(|| format!("cannot list {}", self.shown("")))?;
            found.extend(all.into_iter().filter(|of| wanted.remove(&of.name).is_some()));
        }
        for name in wanted.into_values() {
            found.extend(self.described(Request::List, &name)?.map(|(of, _)| of));
        }
        found.retain(|of| !of.deleted);
        Ok(found)
    }

    async fn all_descriptions(&self, context: jetstream::Context) -> Result<Vec<Description>, Failure> {
        let mut found = Vec::new();
        let subject = format!("$O.{}.M.>", self.bucket);
        let (mut messages, mut pending) = self.messages(&context, subject, false).await?;
        while pending > 0 {
            let message = self.next(&mut messages).await?;
            pending = message.info().map_err(silent)?.pending;
            found.push(describes(&message.payload)?);
        }
        Ok(found)
    }

    /// The messages of a subject from its first one on, and how many there are.
    async fn messages(
        &self,
        context: &jetstream::Context,
        filter_subject: String,
        headers_only: bool,
    ) -> Result<(Ordered, u64), Failure> {
        let config = OrderedConfig {
            deliver_subject: context.client().new_inbox(),
            filter_subject,
            headers_only,
            ..OrderedConfig::default()
        };
        let consumer = context.create_consumer_on_stream(config, format!("OBJ_{}", self.bucket)).await;
        let consumer = consumer.map_err(silent)?;
        let pending = consumer.cached_info().num_pending;
        Ok((consumer.messages().await.map_err(silent)?, pending))
    }

    async fn next(&self, messages: &mut Ordered) -> Result<jetstream::Message, Failure> {
        let message = timeout(self.server.patience(), messages.next()).await;
        let message = message.map_err(silent)?.ok_or_else(|| silent("the connection is closed"))?;
        message.map_err(silent)
    }

    /// Makes an object whose description's message follows that of number `expected`; 0: there is
    /// none, or the object was deleted. `false`: it is another one.
    fn put(&self, name: &str, from: &File, bytes: u64, slowly: bool, time: &str, expected: u64) -> Result<bool> {
        let attempts = Mutex::new(Vec::new());
        let subject = self.subject_of(name);
        let made = self.server.run(Request::Put, async |context| {
            let random = getrandom::u64().map_err(|e| Failure::Refused(anyhow!("no random numbers: {e}")))?;
            let nuid = format!("{}{random:016x}", self.mark());
            locked(&attempts).push(nuid.clone());
            let parts = self.publish_parts(&context, &nuid, from, bytes, slowly).await?;
            let description = self.description(name, &nuid, bytes, &parts, time);
            let mut expected = expected;
            loop {
                let mut headers = HeaderMap::new();
                headers.insert(NATS_ROLLUP, "sub");
                headers.insert(NATS_EXPECTED_LAST_SUBJECT_SEQUENCE, expected.to_string());
                let text = Bytes::from(description.to_string());
                let sent = context.publish_with_headers(subject.clone(), headers, text).await;
                if acknowledged(sent).await? == Acknowledged::Done {
                    return Ok(Some(nuid));
                }
                let request = json!({"last_by_subj": subject});
                let found: Option<Found> = ask_for(&context, &self.api("MSG.GET"), &request).await?;
                let Some(Found { message }) = found else { return Ok(None) };
                let there = describes(&message.bytes()?)?;
                // An earlier attempt has arrived.
                if locked(&attempts).contains(&there.nuid) {
                    return Ok(Some(there.nuid));
                }
                if !there.deleted || expected != 0 {
                    return Ok(None);
                }
                expected = message.seq;
            }
        });
        // Behind an error an attempt may still arrive: its parts stay.
        let made = made.with_context(|| format!("cannot write {}", self.shown(name)))?;
        for nuid in locked(&attempts).iter().filter(|nuid| bytes > 0 && Some(*nuid) != made.as_ref()) {
            self.purge(&self.subject_of_parts(nuid))?;
        }
        Ok(made.is_some())
    }

    async fn publish_parts(
        &self,
        context: &jetstream::Context,
        nuid: &str,
        mut from: &File,
        bytes: u64,
        slowly: bool,
    ) -> Result<StoredParts, Failure> {
        let read = |e: io::Error| Failure::Refused(anyhow!("cannot read a temporary file: {e}"));
        from.rewind().map_err(read)?;
        let body = Moving(from.take(bytes));
        let mut body: Box<dyn Read> =
            if slowly { Box::new(Paced { from: body, since: Instant::now() }) } else { Box::new(body) };
        let part_bytes = PART_BYTES.min(context.client().max_payload().saturating_sub(1 << 10)).max(1);
        let (mut digest, mut waiting, mut sent) =
            (Sha256::new(), VecDeque::new(), StoredParts { parts: 0, part_bytes, digest: String::new() });
        let subject = self.subject_of_parts(nuid);
        loop {
            let mut part = Vec::with_capacity(part_bytes);
            if body.by_ref().take(part_bytes as u64).read_to_end(&mut part).map_err(read)? == 0 {
                break;
            }
            digest.update(&part);
            if waiting.len() >= IN_FLIGHT
                && let Some(first) = waiting.pop_front()
            {
                acknowledged(first).await?;
            }
            waiting.push_back(context.publish(subject.clone(), part.into()).await);
            sent.parts += 1;
        }
        for last in waiting {
            acknowledged(last).await?;
        }
        sent.digest = format!("SHA-256={}", URL_SAFE.encode(digest.finalize()));
        Ok(sent)
    }

    fn description(&self, name: &str, nuid: &str, bytes: u64, sent: &StoredParts, time: &str) -> Value {
        json!({
            "name": self.full(name), "bucket": self.bucket, "nuid": nuid, "size": bytes, "chunks": sent.parts,
            "digest": sent.digest, "mtime": Timestamp::now().to_string(), "options": {"max_chunk_size": sent.part_bytes},
            "headers": {TIME: [time]},
        })
    }

    /// A small object whose message follows that of number `expected`.
    fn put_small(&self, name: &str, record: &[u8], expected: u64) -> Result<bool> {
        let (file, bytes) = spooled(&mut |to| Ok(to.write_all(record)?))?;
        self.put(name, &file, bytes, false, &Timestamp::now().to_string(), expected)
    }

    /// One part of an object: the next from message `sequence` on.
    fn part(&self, nuid: &str, sequence: u64) -> Result<Option<Vec<u8>>> {
        let request = json!({"next_by_subj": self.subject_of_parts(nuid), "seq": sequence});
        self.server.run(Request::Get, async |context| {
            let found: Option<Found> = ask_for(&context, &self.api("MSG.GET"), &request).await?;
            found.map(|found| found.message.bytes()).transpose()
        })
    }

    fn parts_of(&self, name: Name) -> Result<Arc<ObjectParts>> {
        if let Some(parts) = locked(&self.known).get(&name) {
            return Ok(parts.clone());
        }
        let Some((of, _)) = self.there(Request::Get, &name.to_string())? else { bail!("there is no such file") };
        let subject = self.subject_of_parts(&of.nuid);
        let starts = self.server.run(Request::Get, async |context| {
            let (mut messages, _) = self.messages(&context, subject.clone(), true).await?;
            let (mut starts, mut bytes) = (Vec::new(), 0);
            while bytes < of.size {
                let message = self.next(&mut messages).await?;
                starts.push((bytes, message.info().map_err(silent)?.stream_sequence));
                let length = message.headers.as_ref().and_then(|all| all.get("Nats-Msg-Size"));
                let length = length.and_then(|text| text.as_str().parse::<u64>().ok()).filter(|bytes| *bytes > 0);
                let length = length.ok_or_else(|| Failure::Refused(anyhow!("a part has no length")))?;
                bytes = bytes.saturating_add(length);
            }
            Ok(starts)
        })?;
        let parts = Arc::new(ObjectParts { nuid: of.nuid, bytes: of.size, starts });
        let mut known = locked(&self.known);
        if known.len() >= KNOWN_MAX {
            known.clear();
        }
        known.insert(name, parts.clone());
        Ok(parts)
    }

    /// `None`: the file was replaced since its parts were looked for.
    fn read_known(&self, name: Name, offset: u64, bytes: u64) -> Result<Option<Vec<u8>>> {
        let parts = self.parts_of(name)?;
        let end = offset.saturating_add(bytes).min(parts.bytes);
        let first = parts.starts.partition_point(|(start, _)| *start <= offset).saturating_sub(1);
        let mut read = Vec::new();
        for (start, sequence) in parts.starts.iter().skip(first).take_while(|(start, _)| *start < end) {
            let Some(part) = self.part(&parts.nuid, *sequence)? else {
                locked(&self.known).remove(&name);
                return Ok(None);
            };
            let from = usize::try_from(offset.saturating_sub(*start))?.min(part.len());
            let to = usize::try_from(end - start)?.min(part.len()).max(from);
            read.extend_from_slice(part.get(from..to).unwrap_or_default());
        }
        Ok(Some(read))
    }
}

/// The parts of an object as they were stored.
struct StoredParts {
    parts: u64,
    part_bytes: usize,
    digest: String,
}

impl Store for Nats {
    fn hurry(&mut self, patience: Duration) {
        self.server.hurry(patience);
    }

    fn begin(&mut self, _node: u64) -> Result<Conditions> {
        let info = self
            .server
            .run(Request::Head, async |context| ask::<StreamInfo>(&context, &self.api("INFO"), &json!({})).await);
        if info.with_context(|| format!("cannot use {}", self.shown("")))?.config.storage == "memory" {
            let message = format!("{} is in the server's memory: its restart loses the store", self.shown(""));
            report::say(Level::Warning, "store_in_memory", &[], &message);
        }
        self.put_small(PROBE, b"", 0)?;
        let create = !self.put_small(PROBE, b"", 0)?;
        let Some((_, sequence)) = self.there(Request::Get, PROBE)? else { bail!("{} is gone", self.shown(PROBE)) };
        let wrong = self.put_small(PROBE, b"", sequence.wrapping_sub(1))?;
        let right = self.put_small(PROBE, b"", sequence)?;
        Ok(Conditions { create, replace: right && !wrong })
    }

    fn tidy(&self) -> Result<()> {
        let mark = self.subject_of_parts(&self.mark());
        let mut left = self.subjects(&format!("$O.{}.C.*", self.bucket))?;
        left.retain(|subject| subject.starts_with(&mark));
        let whole = self.descriptions(|_| true)?;
        let whole: BTreeSet<_> = whole.iter().map(|of| self.subject_of_parts(&of.nuid)).collect();
        for subject in left.iter().filter(|subject| !whole.contains(*subject)) {
            self.purge(subject)?;
        }
        Ok(())
    }

    fn owner(&self) -> Result<Option<(Vec<u8>, Version)>> {
        for _ in 0..TRIES {
            let Some((of, sequence)) = self.there(Request::Get, OWNER)? else { return Ok(None) };
            ensure!(of.size <= OWNER_BYTES_MAX, "{} has {} bytes", self.shown(OWNER), of.size);
            match self.part(&of.nuid, 0)? {
                Some(record) if record.len() as u64 == of.size => {
                    return Ok(Some((record, Version(sequence.to_string()))));
                }
                _ => {}
            }
        }
        bail!("the owner's record is replaced again and again")
    }

    fn set_owner(&self, was: Option<&Version>, record: &[u8]) -> Result<bool> {
        let expected = was.map_or(Ok(0), |version| version.0.parse()).context("no version of an object")?;
        let before = self.described(Request::Get, OWNER)?;
        let replaced = self.put_small(OWNER, record, expected)?;
        if let Some((of, sequence)) = before
            && replaced
            && sequence == expected
        {
            self.purge(&self.subject_of_parts(&of.nuid))?;
        }
        Ok(replaced)
    }

    fn list_from(&self, level: u8, first: u64) -> Result<Vec<Entry>> {
        let dir = format!("ltx/{level}/");
        let parsed = |name: &str| Name::parse(level, name.strip_prefix(&dir)?);
        let mut entries = Vec::new();
        for of in self.descriptions(|name| parsed(name).is_some_and(|name| name.min >= first))? {
            let name = of.name.strip_prefix(&self.prefix).and_then(parsed);
            entries.extend(name.map(|name| Entry { name, time_ms: of.time_ms(), bytes: of.size }));
        }
        entries.sort_unstable();
        Ok(entries)
    }

    fn has(&self, name: Name) -> Result<bool> {
        Ok(self.there(Request::Head, &name.to_string())?.is_some())
    }

    fn open(&self, name: Name) -> Result<Box<dyn Read>> {
        let what = || format!("cannot read {}", self.shown(&name.to_string()));
        let Some((of, _)) = self.there(Request::Get, &name.to_string())? else {
            bail!("{}: there is no such file", what())
        };
        let subject = self.subject_of_parts(&of.nuid);
        let messages =
            self.server.run(Request::Get, async |context| Ok(self.messages(&context, subject.clone(), false).await?.0));
        let patience = self.server.patience();
        let messages = messages.with_context(what)?;
        let reader = PartReader { runtime: runtime()?, messages, patience, left: of.size, part: Bytes::new() };
        Ok(Box::new(Moving(reader)))
    }

    fn read_part(&self, name: Name, offset: u64, bytes: u64) -> Result<Vec<u8>> {
        let what = || format!("cannot read {}", self.shown(&name.to_string()));
        let read = match self.read_known(name, offset, bytes).with_context(what)? {
            Some(read) => Some(read),
            None => self.read_known(name, offset, bytes).with_context(what)?,
        };
        read.with_context(what)
    }

    fn create(&self, name: Name, time_ms: i64, fill: Fill<'_>) -> Result<bool> {
        let path = name.to_string();
        let (file, bytes) = spooled(fill).with_context(|| format!("cannot write {}", self.shown(&path)))?;
        let time = Timestamp::from_millisecond(time_ms)?.to_string();
        self.put(&path, &file, bytes, name.level != BATCHES, &time, 0)
    }

    fn remove(&self, name: Name) -> Result<()> {
        let path = name.to_string();
        let Some((of, _)) = self.described(Request::Delete, &path)? else { return Ok(()) };
        // Without its message it would stay in every listing.
        self.purge(&self.subject_of(&path))?;
        self.purge(&self.subject_of_parts(&of.nuid))
    }
}

/// An object as it arrives.
struct PartReader {
    runtime: &'static Runtime,
    messages: Ordered,
    patience: Duration,
    left: u64,
    part: Bytes,
}

impl Read for PartReader {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        while self.part.is_empty() && self.left > 0 {
            let next = self.runtime.block_on(async { timeout(self.patience, self.messages.next()).await });
            let next = next.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?;
            let message =
                next.ok_or_else(|| io::Error::other("the connection is closed"))?.map_err(io::Error::other)?;
            self.part = message.message.payload;
        }
        let n = to.len().min(self.part.len()).min(usize::try_from(self.left).unwrap_or(usize::MAX));
        self.part.copy_to_slice(to.get_mut(..n).unwrap_or_default());
        self.left -= n as u64;
        Ok(n)
    }
}

impl fmt::Debug for Nats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown(""))
    }
}
