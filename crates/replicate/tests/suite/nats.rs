//! Ships to a NATS server with JetStream, where one is installed.

use crate::place::{Killed, Place, assert_interruptible, installed, rows, said, until};
use onewrite_replicate::store::{self, Name};
use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

struct Nats {
    place: Place,
    daemon: Option<Killed>,
    program: PathBuf,
    more: Vec<String>,
    port: u16,
}

impl Nats {
    /// A server with these arguments besides, and the object stores `bucket` and `other`.
    fn new(more: &[&str]) -> Option<Nats> {
        let program = installed("nats-server").or_else(|| {
            let path = PathBuf::from("/usr/sbin/nats-server");
            path.is_file().then_some(path)
        })?;
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let more = more.iter().map(|&arg| arg.to_owned()).collect();
        let mut nats = Nats { place: Place::new(10), daemon: None, program, more, port };
        nats.start();
        for bucket in ["bucket", "other"] {
            nats.ask(&format!("STREAM.CREATE.OBJ_{bucket}"), &format!(
                r#"{{"name":"OBJ_{bucket}","subjects":["$O.{bucket}.C.>","$O.{bucket}.M.>"],"storage":"file","retention":"limits",
                   "discard":"new","max_consumers":-1,"max_msgs":-1,"max_bytes":-1,"max_age":0,"num_replicas":1,
                   "allow_rollup_hdrs":true,"allow_direct":true}}"#
            ));
        }
        Some(nats)
    }

    fn start(&mut self) {
        let mut command = Command::new(&self.program);
        command.args(["-js", "-a", "127.0.0.1", "-p", &self.port.to_string(), "-sd"]);
        command.arg(self.place.dir.path().join("jetstream")).args(&self.more);
        self.daemon = Some(Killed(command.stderr(Stdio::null()).stdout(Stdio::null()).spawn().unwrap()));
        let port = self.port;
        until("nats-server listens", || TcpStream::connect(("127.0.0.1", port)).is_ok());
    }

    /// Sends a request to JetStream, as user `me` where users are known, and returns its answer.
    fn ask(&self, subject: &str, request: &str) -> String {
        let mut answer = String::new();
        until("JetStream answers", || {
            let mut to = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
            to.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
            let text = format!(
                "CONNECT {{\"verbose\":false,\"user\":\"me\",\"pass\":\"password7\"}}\r\nSUB answers 1\r\nPUB $JS.API.{subject} answers \
                 {}\r\n{request}\r\nPING\r\n",
                request.len()
            );
            to.write_all(text.as_bytes()).unwrap();
            let mut bytes = vec![0; 1 << 16];
            answer.clear();
            while let Ok(n @ 1..) = to.read(&mut bytes) {
                answer += &String::from_utf8_lossy(&bytes[..n]);
                if answer.contains("\"type\":") && answer.trim_end().ends_with('}') {
                    return true;
                }
            }
            false
        });
        answer
    }

    fn url(&self, name: &str) -> String {
        format!("nats://127.0.0.1:{}/{name}", self.port)
    }

    fn signal(&self, name: &str) {
        let id = self.daemon.as_ref().unwrap().0.id().to_string();
        assert!(Command::new("kill").args([&format!("-{name}"), &id]).status().unwrap().success());
    }

    fn ships(&self, args: &[&str]) -> Output {
        let output = self.place.program(args).output().unwrap();
        assert!(output.status.success(), "{args:?}: {}", said(&output));
        output
    }

    fn restored(&self, url: &str) -> String {
        let dest = self.place.dir.path().join("restored.db");
        let _none = fs::remove_file(&dest);
        self.ships(&["restore", url, dest.to_str().unwrap()]);
        rows(&dest)
    }

    /// How many messages have such subjects.
    fn messages(&self, bucket: &str, subjects: &str) -> usize {
        let answer = self.ask(&format!("STREAM.INFO.OBJ_{bucket}"), &format!(r#"{{"subjects_filter":"{subjects}"}}"#));
        answer.split("\"subjects\":{").nth(1).map_or(0, |subjects| subjects.matches("\"$O.").count())
    }
}

#[test]
fn a_store_on_a_nats_server_has_one_owner_and_every_state() {
    let Some(nats) = Nats::new(&[]) else { return };
    let file = nats.place.file.to_str().unwrap();
    // Two databases share an object store.
    for url in [nats.url("bucket/a/b"), nats.url("bucket")] {
        let hasty = ["replicate", "--once", "--levels", "1ms", "--keep-batches", "0s", file, &url];
        for n in 11..16 {
            nats.ships(&hasty);
            nats.place.sql(&format!(
                "INSERT INTO t VALUES ({n}, randomblob(300000)) ON CONFLICT DO UPDATE SET x = excluded.x"
            ));
            std::thread::sleep(Duration::from_millis(1100));
        }
        nats.ships(&hasty);
        assert_eq!(nats.restored(&url), rows(&nats.place.file));
        nats.ships(&["verify", file, &url]);
    }
    // Of the files that were removed there is nothing left, no mark of their deletion either.
    let files = |name| store::list_all(&*store::open(&nats.url(name)).unwrap()).unwrap().len();
    let (files, described) = (files("bucket") + files("bucket/a/b"), nats.messages("bucket", "$O.bucket.M.>"));
    assert_eq!(described, files + 4, "each store has the owner's record and the probe besides");
    assert_eq!(nats.messages("bucket", "$O.bucket.C.>"), files + 2);
    let url = nats.url("bucket/a/b");
    let next = nats.place.dir.path().join("next.db");
    nats.ships(&["promote", next.to_str().unwrap(), &url]);
    let fenced = nats.place.program(&["replicate", "--once", file, &url]).output().unwrap();
    assert_eq!(fenced.status.code(), Some(3), "{}", said(&fenced));
}

#[test]
fn litestream_restores_a_store_on_a_nats_server_and_ships_to_one() {
    let Some(nats) = Nats::new(&[]) else { return };
    let Some(litestream) = installed("litestream") else { return };
    let dir = nats.place.dir.path();
    let file = nats.place.file.to_str().unwrap();
    nats.ships(&["replicate", "--once", file, &nats.url("bucket")]);
    let run = |args: &[&str]| {
        let output = Command::new(&litestream).args(args).output().unwrap();
        assert!(output.status.success(), "{args:?}: {}", said(&output));
    };
    let stock = dir.join("stock.db");
    run(&["restore", "-o", stock.to_str().unwrap(), &nats.url("bucket")]);
    assert_eq!(rows(&stock), rows(&nats.place.file));
    rusqlite::Connection::open(&stock).unwrap().pragma_update(None, "journal_mode", "wal").unwrap();
    run(&["replicate", "-once", stock.to_str().unwrap(), &nats.url("other")]);
    assert_eq!(nats.restored(&nats.url("other")), rows(&stock));
}

#[test]
fn a_file_is_read_in_parts_and_its_name_is_taken_once() {
    let Some(nats) = Nats::new(&[]) else { return };
    let mut at = store::open(&nats.url("bucket/x")).unwrap();
    let heeded = at.begin(1).unwrap();
    assert!(heeded.create && heeded.replace);
    let text: Vec<u8> = (0..1_000_003_u32).flat_map(|n| n.to_le_bytes()).collect();
    let name = |min| Name { level: 9, min, max: 100 };
    let made = |name: Name, text: &[u8]| at.create(name, 1_700_000_000_123, &mut |to| Ok(to.write_all(text)?)).unwrap();
    assert!(made(name(1), &text) && !made(name(1), b"another") && made(name(2), b""));
    let [one, two] = at.list(9).unwrap()[..] else { panic!() };
    assert_eq!((one.name, one.time_ms, one.bytes), (name(1), 1_700_000_000_123, text.len() as u64));
    assert_eq!((two.name, two.bytes), (name(2), 0));
    assert!(at.list(0).unwrap().is_empty() && at.has(name(2)).unwrap() && !at.has(name(3)).unwrap());
    let mut whole = Vec::new();
    at.open(name(1)).unwrap().read_to_end(&mut whole).unwrap();
    assert!(whole == text);
    for (offset, bytes) in
        [(0, 10), (131_072 - 5, 10), (131_072, 131_072), (300_001, 700_000), (4_000_000, 1_000), (5_000_000, 9)]
    {
        let end = (offset + bytes).min(text.len());
        let expected = text.get(offset.min(end)..end).unwrap();
        assert!(at.read_part(name(1), offset as u64, bytes as u64).unwrap() == expected, "{offset} {bytes}");
    }
    // The same name gets another file: known parts are not read again.
    at.remove(name(1)).unwrap();
    at.remove(name(1)).unwrap();
    assert!(at.read_part(name(1), 0, 10).is_err());
    assert!(made(name(1), b"0123456789") && !made(name(1), &text));
    assert_eq!(at.read_part(name(1), 2, 3).unwrap(), b"234");
    let (none, first) = (at.owner().unwrap(), at.set_owner(None, b"one").unwrap());
    assert!(none.is_none() && first && !at.set_owner(None, b"two").unwrap());
    let (record, version) = at.owner().unwrap().unwrap();
    assert_eq!(record, b"one");
    assert!(at.set_owner(Some(&version), b"two").unwrap() && !at.set_owner(Some(&version), b"three").unwrap());
    assert_eq!(at.owner().unwrap().unwrap().0, b"two");
    // Parts without a description, as behind a kill, are removed, and no others.
    let marked = nats.messages("bucket", "$O.bucket.C.>");
    assert_eq!(marked, 2);
    let mut other = store::open(&nats.url("bucket/y")).unwrap();
    other.begin(1).unwrap();
    let cut = other.create(name(1), 0, &mut |to| Ok(to.write_all(&text)?)).unwrap();
    assert!(cut);
    let described = nats.ask("STREAM.INFO.OBJ_bucket", r#"{"subjects_filter":"$O.bucket.M.>"}"#);
    let subject = base64_of("y/ltx/9/0000000000000001-0000000000000064.ltx");
    assert!(described.contains(&subject), "{described}");
    nats.ask("STREAM.PURGE.OBJ_bucket", &format!(r#"{{"filter":"$O.bucket.M.{subject}"}}"#));
    at.tidy().unwrap();
    assert_eq!(nats.messages("bucket", "$O.bucket.C.>"), 3);
    other.tidy().unwrap();
    assert_eq!(nats.messages("bucket", "$O.bucket.C.>"), 2);
    assert_eq!(at.read_part(name(1), 2, 3).unwrap(), b"234");
}

fn base64_of(text: &str) -> String {
    use base64::Engine;
    base64::engine::general_purpose::URL_SAFE.encode(text)
}

#[test]
fn a_user_or_an_object_store_that_is_not_known_is_refused() {
    let Some(nats) = Nats::new(&["--user", "me", "--pass", "password7"]) else { return };
    let file = nats.place.file.to_str().unwrap();
    let refused = |url: &str, words: &[&str]| {
        let output = nats.place.program(&["replicate", "--once", file, url]).output().unwrap();
        let text = said(&output);
        assert!(!output.status.success() && words.iter().all(|word| text.contains(word)), "{url}: {text}");
        assert!(!text.contains("password"), "{text}");
    };
    let url = nats.url("bucket");
    refused(&url, &["does not admit"]);
    refused(&url.replace("//", "//me:password6@"), &["does not admit"]);
    let known = url.replace("//", "//me:password7@");
    refused(&known.replace("bucket", "nothing"), &["no such object store", "nats object add"]);
    refused(&known.replace("bucket", "a%20b"), &["letters, digits"]);
    refused(&format!("{known}?tsl=true"), &["creds, tls, root-ca"]);
    refused(&format!("{known}?tls=yes"), &["true or false"]);
    refused(&format!("{url}?creds={file}"), &["cannot"]);
    refused("nats://127.0.0.1", &["names no object store"]);
    nats.ships(&["replicate", "--once", file, &known]);
    let mut by_environment = nats.place.program(&["replicate", "--once", file, &url]);
    let output = by_environment.env("NATS_USER", "me").env("NATS_PASSWORD", "password7").output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
}

#[test]
fn a_server_and_its_users_may_have_certificates_of_their_own_authority() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let Some(openssl) = installed("openssl") else { return };
    let made = |args: &[&str]| {
        let output = Command::new(&openssl).args(args).output().unwrap();
        assert!(output.status.success(), "{args:?}: {}", said(&output));
    };
    let (ca, ca_key) = (path("ca.pem"), path("ca.key"));
    let key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"];
    let to_ca = ["req", "-x509", "-subj", "/CN=authority", "-keyout", &ca_key, "-out", &ca];
    made(&[&to_ca[..], &key].concat());
    for (name, extension) in [("server", "subjectAltName=IP:127.0.0.1"), ("client", "extendedKeyUsage=clientAuth")] {
        let (cert, private) = (path(&format!("{name}.pem")), path(&format!("{name}.key")));
        let (subject, no_ca) = (format!("/CN={name}"), "basicConstraints=CA:FALSE");
        let signed = ["req", "-x509", "-CA", &ca, "-CAkey", &ca_key, "-subj", &subject, "-addext", extension];
        made(&[&signed[..], &key, &["-addext", no_ca, "-keyout", &private, "-out", &cert]].concat());
    }
    // The tests' own requests come without TLS.
    let config = path("server.conf");
    let (cert, private) = (path("server.pem"), path("server.key"));
    let text = format!(
        "allow_non_tls: true\ntls {{ cert_file: \"{cert}\", key_file: \"{private}\", ca_file: \"{ca}\", verify: true }}\n"
    );
    fs::write(&config, text).unwrap();
    let Some(nats) = Nats::new(&["-c", &config]) else { return };
    let file = nats.place.file.to_str().unwrap();
    let url = nats.url("bucket");
    let (cert, private) = (path("client.pem"), path("client.key"));
    let known = format!("{url}?root-ca={ca}&client-cert={cert}&client-key={private}");
    nats.ships(&["replicate", "--once", file, &known]);
    assert_eq!(nats.restored(&known), rows(&nats.place.file));
    let mut by_environment = nats.place.program(&["replicate", "--once", file, &url]);
    by_environment.env("NATS_CA", &ca).env("NATS_CERT", &cert).env("NATS_KEY", &private);
    let output = by_environment.output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    let nothing = path("nothing.pem");
    for (url, words) in [
        (format!("{url}?root-ca={nothing}"), &["cannot read", "nothing.pem"][..]),
        (format!("{url}?root-ca={ca}&client-cert={cert}"), &["client-cert and client-key"]),
        // Its authority is not known, and it wants to see a certificate.
        (format!("{url}?tls=true"), &["certificate"]),
        (format!("{url}?root-ca={ca}"), &["BadCertificate"]),
    ] {
        let output = nats.place.program(&["restore", &url, &path("restored.db")]).output().unwrap();
        let text = said(&output);
        assert!(!output.status.success() && words.iter().all(|word| text.contains(word)), "{url}: {text}");
    }
}

#[test]
fn where_commits_wait_a_server_that_is_killed_or_silent_loses_none() {
    let Some(mut nats) = Nats::new(&[]) else { return };
    let url = nats.url("bucket");
    let file = nats.place.file.to_str().unwrap().to_owned();
    let log = fs::File::create(nats.place.dir.path().join("log")).unwrap();
    let mut command = nats.place.program(&["replicate", "--sync", "--ship-timeout", "20s", &file, &url]);
    let mut shipper = Killed(command.stderr(log).spawn().unwrap());
    let log = nats.place.dir.path().join("log");
    until("commits wait", || {
        let told = fs::read_to_string(&log).unwrap();
        told.contains("commits will wait") || told.contains("commits wait")
    });
    let db = nats.place.open();
    for round in 0..3 {
        for n in 0..20 {
            let key = 100 + round * 100 + n;
            db.execute("INSERT INTO t VALUES (?1, 'x')", [key]).unwrap();
            if n == 10 && round == 0 {
                nats.signal("KILL");
                nats.daemon = None;
                nats.start();
            }
            if n == 10 && round == 1 {
                nats.signal("STOP");
                let daemon = nats.daemon.as_ref().unwrap().0.id().to_string();
                std::thread::spawn(move || {
                    std::thread::sleep(Duration::from_millis(3500));
                    assert!(Command::new("kill").args(["-CONT", &daemon]).status().unwrap().success());
                });
            }
        }
    }
    // The machine is lost now: the store has every acknowledged commit.
    shipper.0.kill().unwrap();
    let count: i64 = db.query_row("SELECT count(*) FROM t WHERE x = 'x'", [], |row| row.get(0)).unwrap();
    assert_eq!(count, 60);
    // Ten were there before.
    let restored = nats.restored(&url);
    assert!(restored.starts_with("70 "), "{restored}");
    nats.signal("STOP");
    assert_interruptible(nats.place.program(&["restore", &url]).arg(nats.place.dir.path().join("never.db")));
    nats.signal("CONT");
}
