//! Ships into a bucket with the real program: into a server of this test, which fails as it is told to, and into those that
//! are installed.

use rusqlite::Connection;
use std::collections::{BTreeMap, VecDeque};
use std::io::Read;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};
use tiny_http::{Header, Method, Request, Response, Server};

/// What becomes of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// It is not done, and the answer says so.
    Refused,
    /// It is done, and the answer says that it is not.
    AnswerLost,
}

#[derive(Clone, Debug)]
struct Object {
    bytes: Vec<u8>,
    time: Option<String>,
}

#[derive(Default)]
struct Bucket {
    objects: BTreeMap<String, Object>,
    requests: Vec<String>,
    /// For the next PUTs of files.
    faults: VecDeque<Fault>,
    replaces: bool,
    denies: bool,
}

/// A server with one bucket, `bucket`.
struct Place {
    bucket: Arc<Mutex<Bucket>>,
    server: Arc<Server>,
    dir: tempfile::TempDir,
    file: PathBuf,
}

fn xml(status: u16, text: String) -> Response<std::io::Cursor<Vec<u8>>> {
    Response::from_string(text).with_status_code(status)
}

fn error(status: u16, code: &str) -> Response<std::io::Cursor<Vec<u8>>> {
    xml(status, format!("<?xml version=\"1.0\"?><Error><Code>{code}</Code><Message>Said so.</Message></Error>"))
}

fn header<'a>(request: &'a Request, name: &str) -> Option<&'a str> {
    let named = |header: &&Header| header.field.as_str().as_str().eq_ignore_ascii_case(name);
    request.headers().iter().find(named).map(|header| header.value.as_str())
}

fn answer(bucket: &mut Bucket, request: &mut Request) -> Response<std::io::Cursor<Vec<u8>>> {
    let url = url::Url::parse("http://here").unwrap().join(request.url()).unwrap();
    let query: BTreeMap<_, _> = url.query_pairs().into_owned().collect();
    let path = url.path().trim_start_matches('/').to_owned();
    bucket.requests.push(format!("{} {path}", request.method()));
    assert!(query.contains_key("X-Amz-Signature"), "{url}");
    let (name, key) = path.split_once('/').unwrap_or((&path, ""));
    if name != "bucket" {
        return error(404, "NoSuchBucket");
    }
    if bucket.denies {
        return error(403, "AccessDenied");
    }
    match request.method() {
        Method::Put => {
            assert_eq!(header(request, "if-none-match"), Some("*"));
            assert!(query["X-Amz-SignedHeaders"].contains("if-none-match"), "{url}");
            let time = header(request, "x-amz-meta-litestream-timestamp").map(str::to_owned);
            let mut bytes = Vec::new();
            request.as_reader().read_to_end(&mut bytes).unwrap();
            let fault = if key.ends_with(".ltx") { bucket.faults.pop_front() } else { None };
            if fault == Some(Fault::Refused) {
                return error(503, "SlowDown");
            }
            if bucket.objects.contains_key(key) && !bucket.replaces {
                return error(412, "PreconditionFailed");
            }
            bucket.objects.insert(key.to_owned(), Object { bytes, time });
            if fault == Some(Fault::AnswerLost) { error(500, "InternalError") } else { xml(200, String::new()) }
        }
        Method::Get if key.is_empty() => {
            // Two a page.
            let from = query.get("continuation-token").cloned().unwrap_or_default();
            let all = bucket.objects.iter().filter(|(key, _)| key.starts_with(&query["prefix"]) && **key >= from);
            let all: Vec<_> = all.collect();
            let mut text = String::from("<ListBucketResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">");
            for (key, object) in all.iter().take(2) {
                let size = object.bytes.len();
                // Written long after it was read.
                text += &format!("<Contents><Key>{key}</Key><LastModified>2101-01-01T00:00:00.000Z</LastModified>");
                text += &format!("<ETag>x</ETag><Size>{size}</Size><StorageClass>STANDARD</StorageClass></Contents>");
            }
            text += &format!("<IsTruncated>{}</IsTruncated>", all.len() > 2);
            if let Some((next, _)) = all.get(2) {
                text += &format!("<NextContinuationToken>{next}</NextContinuationToken>");
            }
            xml(200, text + "</ListBucketResult>")
        }
        Method::Get | Method::Head => match bucket.objects.get(key) {
            None => error(404, "NoSuchKey"),
            Some(object) => {
                let body = if *request.method() == Method::Get { object.bytes.clone() } else { Vec::new() };
                let time = object.time.clone().unwrap_or_default();
                // Not every server knows ranges.
                let knows = bucket.requests.len().is_multiple_of(2);
                let range = header(request, "range").filter(|_| knows).and_then(|range| range.strip_prefix("bytes="));
                let (body, status) = match range.and_then(|range| range.split_once('-')) {
                    Some((from, to)) => {
                        let (from, to) = (from.parse::<usize>().unwrap(), to.parse::<usize>().unwrap());
                        (body[from..body.len().min(to + 1)].to_vec(), 206)
                    }
                    None => (body, 200),
                };
                Response::from_data(body)
                    .with_status_code(status)
                    .with_header(Header::from_bytes("x-amz-meta-litestream-timestamp", time).unwrap())
            }
        },
        Method::Delete => {
            bucket.objects.remove(key);
            xml(204, String::new())
        }
        other => panic!("{other} is not asked for"),
    }
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        self.0.wait().unwrap();
    }
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < Duration::from_secs(60), "{what}");
        thread::sleep(Duration::from_millis(20));
    }
}

impl Place {
    fn new() -> Place {
        let bucket = Arc::new(Mutex::new(Bucket::default()));
        let server = Arc::new(Server::http("127.0.0.1:0").unwrap());
        let (serves, has) = (server.clone(), bucket.clone());
        thread::spawn(move || {
            for mut request in serves.incoming_requests() {
                let answer = answer(&mut has.lock().unwrap(), &mut request);
                // The client may have gone.
                let _ = request.respond(answer);
            }
        });
        let dir = tempfile::tempdir().unwrap();
        let place = Place { bucket, server, file: dir.path().join("app.db"), dir };
        place.sql("CREATE TABLE t(n INTEGER PRIMARY KEY, x); INSERT INTO t VALUES (1, randomblob(5000))");
        place
    }

    fn sql(&self, sql: &str) {
        onewrite_rusqlite::open(&self.file).unwrap().execute_batch(sql).unwrap();
    }

    fn url(&self, rest: &str) -> String {
        format!("s3://bucket/{rest}?endpoint=http://{}", self.server.server_addr())
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_onewrite-replicate"));
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.as_encoded_bytes().starts_with(b"AWS_")) {
            command.env_remove(name);
        }
        command.args(args).env("AWS_ACCESS_KEY_ID", "key").env("AWS_SECRET_ACCESS_KEY", "secret");
        command.env("NO_PROXY", "127.0.0.1").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn run(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }

    fn ship(&self) -> String {
        let output = self.run(&["replicate", "--once", "-v", self.file.to_str().unwrap(), &self.url("a/b")]);
        assert!(output.status.success(), "{}", said(&output));
        said(&output)
    }

    fn keys(&self) -> Vec<String> {
        self.bucket.lock().unwrap().objects.keys().cloned().collect()
    }

    /// The table's contents after a restore with `args`.
    fn restored(&self, args: &[&str]) -> String {
        let dest = self.dir.path().join("restored.db");
        let output = self.run(&[&["restore"], args, &[&self.url("a/b"), dest.to_str().unwrap()]].concat());
        assert!(output.status.success(), "{}", said(&output));
        let db = Connection::open(&dest).unwrap();
        let all = db.query_row("SELECT group_concat(n || hex(substr(x, 1, 4))) FROM t", [], |row| row.get(0)).unwrap();
        std::fs::remove_file(&dest).unwrap();
        all
    }

    fn here(&self) -> String {
        let db = onewrite_rusqlite::open(&self.file).unwrap();
        db.query_row("SELECT group_concat(n || hex(substr(x, 1, 4))) FROM t", [], |row| row.get(0)).unwrap()
    }
}

#[test]
fn what_is_shipped_is_restored_also_that_of_before() {
    let place = Place::new();
    let mut states = Vec::new();
    for n in 2..8 {
        place.ship();
        states.push((humantime::format_rfc3339_millis(std::time::SystemTime::now()).to_string(), place.here()));
        thread::sleep(Duration::from_millis(20));
        place.sql(&format!("INSERT INTO t VALUES ({n}, randomblob(2000))"));
    }
    let last = place.ship();
    assert!(last.contains("a batch of"), "{last}");
    let names: Vec<_> = (1..8).map(|n| format!("a/b/0000/{n:016x}-{n:016x}.ltx")).collect();
    assert_eq!(place.keys(), [&names[..], &["a/b/onewrite-probe".to_owned()]].concat());
    assert_eq!(place.restored(&[]), place.here());
    for (n, (time, state)) in (1..).zip(&states) {
        assert_eq!(&place.restored(&["--timestamp", time]), state, "{time}");
        assert_eq!(&place.restored(&["--txid", &format!("{n:x}")]), state);
    }
    let verified = place.run(&["verify", place.file.to_str().unwrap(), &place.url("a/b")]);
    assert!(verified.status.success(), "{}", said(&verified));
}

#[test]
fn a_request_that_fails_is_sent_again_and_knows_its_own_work() {
    let place = Place::new();
    place.ship();
    for faults in [&[Fault::Refused, Fault::Refused][..], &[Fault::AnswerLost], &[Fault::Refused, Fault::AnswerLost]] {
        place.sql("UPDATE t SET x = randomblob(3000)");
        place.bucket.lock().unwrap().faults.extend(faults);
        place.ship();
        assert_eq!(place.restored(&[]), place.here(), "{faults:?}");
    }
    assert_eq!(place.keys().len(), 5);
}

#[test]
fn of_two_that_ship_into_one_path_one_ends_and_says_so() {
    let place = Place::new();
    let other = Place { bucket: place.bucket.clone(), server: place.server.clone(), ..Place::new() };
    other.sql("DELETE FROM t; INSERT INTO t VALUES (100, 'other')");
    let mut first =
        place.command(&["replicate", "--interval", "50ms", place.file.to_str().unwrap(), &place.url("a/b")]);
    let mut first = Killed(first.spawn().unwrap());
    until("the first snapshot", || place.keys().len() == 2);
    other.ship();
    place.sql("INSERT INTO t VALUES (2, 'two')");
    let mut text = String::new();
    // It ends by itself.
    first.0.stderr.take().unwrap().read_to_string(&mut text).unwrap();
    assert!(!first.0.wait().unwrap().success());
    assert!(text.contains("another process ships into it"), "{text}");
    assert_eq!(place.restored(&[]), other.here());
}

#[test]
fn nothing_is_asked_while_nothing_changes() {
    let place = Place::new();
    let mut shipper =
        place.command(&["replicate", "--interval", "20ms", place.file.to_str().unwrap(), &place.url("a/b")]);
    let _shipper = Killed(shipper.spawn().unwrap());
    until("the first snapshot", || place.keys().len() == 2);
    // It may have begun before that.
    thread::sleep(Duration::from_millis(200));
    let before = place.bucket.lock().unwrap().requests.len();
    thread::sleep(Duration::from_secs(1));
    assert_eq!(place.bucket.lock().unwrap().requests[before..], [""; 0]);
}

/// Merging needs no listing and reads nothing back, and it ends once there is nothing left to merge.
#[test]
fn merged_files_are_restored_and_then_nothing_is_asked() {
    let place = Place::new();
    let mut args = vec!["replicate", "--interval", "10ms", "--keep-batches", "50ms"];
    let url = place.url("a/b");
    args.extend(["--levels", "30ms,100ms,200ms", place.file.to_str().unwrap(), &url]);
    let mut shipper = place.command(&args);
    let _shipper = Killed(shipper.spawn().unwrap());
    until("the first snapshot", || place.keys().iter().any(|key| key.contains("/0000/")));
    let begun = place.bucket.lock().unwrap().requests.len();
    for n in 2..40 {
        place.sql(&format!("INSERT INTO t VALUES ({n}, randomblob(2000))"));
        thread::sleep(Duration::from_millis(10));
    }
    let of_level = |level: &str| place.keys().iter().filter(|key| key.starts_with(&format!("a/b/{level}/"))).count();
    until("all is merged", || of_level("0000") == 2 && of_level("0003") > 0);
    let newest =
        |level: &str| place.keys().into_iter().filter(|key| key.contains(level)).max().map(|key| key[26..].to_owned());
    until("up to the newest", || newest("/0003/") == newest("/0000/"));
    assert_eq!(place.restored(&[]), place.here());
    let before = place.bucket.lock().unwrap().requests.len();
    thread::sleep(Duration::from_millis(700));
    let requests = place.bucket.lock().unwrap().requests[begun..].to_vec();
    // What was restored has listed and read.
    let shipper = &requests[..before - begun];
    let end = shipper.iter().rposition(|request| request.starts_with("DELETE")).unwrap();
    let of_shipper = shipper[..end].iter().filter(|request| request.starts_with("GET"));
    assert_eq!(of_shipper.collect::<Vec<_>>(), [""; 0], "everything is known");
    assert_eq!(requests[before - begun..], [""; 0], "nothing is left to do");
}

/// A replica looks for the next batch alone.
#[test]
fn a_replica_asks_once_a_look() {
    let place = Place::new();
    place.ship();
    let replica = place.dir.path().join("replica.db");
    let url = place.url("a/b");
    let mut follower = place.command(&["follow", "--interval", "50ms", &url, replica.to_str().unwrap()]);
    let follower = Killed(follower.spawn().unwrap());
    let count = |file: &PathBuf| -> i64 {
        let db = onewrite_rusqlite::open(file).unwrap();
        db.busy_timeout(Duration::from_secs(10)).unwrap();
        db.query_row("SELECT count(*) FROM t", [], |row| row.get(0)).unwrap()
    };
    until("the replica is made", || replica.exists());
    place.sql("INSERT INTO t VALUES (2, randomblob(3000))");
    place.ship();
    until("the batch is applied", || count(&replica) == 2);
    thread::sleep(Duration::from_millis(100));
    let before = place.bucket.lock().unwrap().requests.len();
    thread::sleep(Duration::from_secs(1));
    let requests = place.bucket.lock().unwrap().requests[before..].to_vec();
    let next = format!("HEAD bucket/a/b/0000/{0:016x}-{0:016x}.ltx", 3);
    let (looks, others): (Vec<_>, Vec<_>) = requests.into_iter().partition(|request| *request == next);
    assert!((5..=21).contains(&looks.len()), "{}", looks.len());
    let further = format!("HEAD bucket/a/b/0000/{0:016x}-{0:016x}.ltx", 4);
    assert!(others.len() <= looks.len() / 5 && others.iter().all(|request| *request == further), "{others:?}");
    drop(follower);
}

#[test]
fn what_is_wrong_is_said_with_what_to_do() {
    let place = Place::new();
    let refused = |url: &str, words: &[&str]| {
        let output = place.run(&["replicate", "--once", place.file.to_str().unwrap(), url]);
        let text = said(&output);
        assert!(!output.status.success(), "{text}");
        assert!(words.iter().all(|word| text.contains(word)), "{url}: {text}");
    };
    let endpoint = format!("endpoint=http://{}", place.server.server_addr());
    refused(&format!("s3://other/a?{endpoint}"), &["NoSuchBucket", "make the bucket"]);
    refused("s3://bucket/a", &["region"]);
    refused("s3:///a?region=x", &["s3://bucket/path"]);
    refused("s3://bucket/a?regoin=x", &["regoin", "region, endpoint, force-path-style"]);
    refused("s3://bucket/a?force-path-style=1&region=x", &["force-path-style=1"]);
    refused("s3://bucket/a?endpoint=http://127.0.0.1:1", &["no answer from http://127.0.0.1:1"]);
    place.bucket.lock().unwrap().denies = true;
    refused(&format!("s3://bucket/a?{endpoint}"), &["403 AccessDenied", "list, get, put and delete"]);
    place.bucket.lock().unwrap().denies = false;
    let mut no_keys = place.command(&["replicate", "--once", place.file.to_str().unwrap(), &place.url("a")]);
    let no_keys = no_keys.env_remove("AWS_SECRET_ACCESS_KEY").output().unwrap();
    assert!(said(&no_keys).contains("set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"), "{}", said(&no_keys));
    place.bucket.lock().unwrap().replaces = true;
    assert!(place.ship().contains("nobody will notice"));
}
