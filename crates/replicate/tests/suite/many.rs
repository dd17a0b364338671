//! Many databases in one process, by a configuration, with the real program.

use crate::observe::{get, value};
use crate::place::{Killed, Place, rows, said, until};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Output};
use std::sync::{Arc, Mutex};

struct Many {
    place: Place,
    config: PathBuf,
}

/// A process that ships, and its lines so far.
struct Running {
    child: Killed,
    lines: Arc<Mutex<Vec<Value>>>,
}

impl Running {
    fn has(&self, event: &str, about: &str) -> bool {
        self.lines.lock().unwrap().iter().any(|line| line["event"] == event && line.to_string().contains(about))
    }

    fn told(&self, event: &str, about: &str) {
        until(&format!("{event} {about}"), || self.has(event, about));
    }

    fn address(&self) -> String {
        self.told("metrics", "");
        let lines = self.lines.lock().unwrap();
        lines.iter().find(|line| line["event"] == "metrics").unwrap()["address"].as_str().unwrap().to_owned()
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_raw(self.child.0.id().try_into().unwrap()).unwrap(), signal).unwrap();
    }

    fn ends(mut self, signal: Signal) -> Option<i32> {
        self.signal(signal);
        self.child.0.wait().unwrap().code()
    }
}

impl Many {
    fn new(text: &str) -> Many {
        let place = Place::new(10);
        let config = place.dir.path().join("c.yml");
        let many = Many { place, config };
        many.write(text);
        many
    }

    /// `DIR` in the text is the directory of the place.
    fn write(&self, text: &str) {
        fs::write(&self.config, text.replace("DIR", self.dir().to_str().unwrap())).unwrap();
    }

    fn dir(&self) -> &Path {
        self.place.dir.path()
    }

    fn make(&self, name: &str) -> PathBuf {
        let file = self.dir().join(name);
        let db = onewrite_rusqlite::open(&file).unwrap();
        db.execute_batch("CREATE TABLE t(n INTEGER PRIMARY KEY, x)").unwrap();
        db.execute("INSERT INTO t VALUES (1, ?1)", [name]).unwrap();
        file
    }

    fn start(&self, more: &[&str]) -> Running {
        let mut command = self.place.program(&["replicate", "--json", "--config"]);
        let mut child: Child = command.arg(&self.config).args(more).env("FROM_ENV", "store").spawn().unwrap();
        let from = BufReader::new(child.stderr.take().unwrap());
        let lines = Arc::new(Mutex::new(Vec::new()));
        let to = lines.clone();
        std::thread::spawn(move || {
            for line in from.lines().map_while(Result::ok) {
                to.lock().unwrap().push(serde_json::from_str(&line).unwrap_or(Value::String(line)));
            }
        });
        Running { child: Killed(child), lines }
    }

    fn restored(&self, url: &str) -> Option<String> {
        let dest = self.dir().join("restored.db");
        let _ = fs::remove_file(&dest);
        let output = self
            .place
            .program(&["restore", &url.replace("DIR", self.dir().to_str().unwrap())])
            .arg(&dest)
            .output()
            .unwrap();
        output.status.success().then(|| rows(&dest))
    }

    fn run(&self, args: &[&str]) -> Output {
        self.place.program(args).arg("--config").arg(&self.config).env("FROM_ENV", "store").output().unwrap()
    }
}

#[test]
fn one_databases_trouble_stops_no_other() {
    let many = Many::new(
        "sync-interval: 20ms\naddr: 127.0.0.1:0\ndbs:\n- path: DIR/app.db\n  replica: {path: \"DIR/${FROM_ENV}\"}\n- path: \
         DIR/late.db\n  replica: {url: 'file://DIR/late'}\n- path: DIR/b.db\n  replica: {path: DIR/away/b}\n- path: DIR/c.db\n  \
         replica: {path: DIR/c}\n- path: DIR/not.db\n  replica: {path: DIR/not}\n",
    );
    let (b, c) = (many.make("b.db"), many.make("c.db"));
    fs::write(many.dir().join("not.db"), "no database, but longer than a header of one hundred bytes ".repeat(20))
        .unwrap();
    let running = many.start(&[]);
    running.told("not_shipped", "away");
    running.told("not_shipped", "not.db");
    running.told("waiting", "late.db");
    running.told("began", "5 databases");
    until("two are shipped", || many.restored("file://DIR/store").is_some() && many.restored("file://DIR/c").is_some());
    let address = running.address();
    let health = get(&address, "/healthz");
    assert!(health.starts_with("HTTP/1.1 503") && health.contains("b.db: ") && !health.contains("c.db: "), "{health}");
    // A change is shipped meanwhile, and the others once their trouble ends.
    onewrite_rusqlite::open(&c).unwrap().execute("INSERT INTO t VALUES (2, 'y')", []).unwrap();
    until("the change", || many.restored("file://DIR/c").is_some_and(|rows| rows.starts_with("2 ")));
    fs::create_dir(many.dir().join("away")).unwrap();
    fs::remove_file(many.dir().join("not.db")).unwrap();
    many.make("late.db");
    until("all", || many.restored("file://DIR/away/b").is_some() && many.restored("file://DIR/late").is_some());
    assert_eq!(many.restored("file://DIR/away/b"), Some(rows(&b)));
    running.told("goes_on", "b.db");
    assert_eq!(running.ends(Signal::TERM), Some(0));
}

#[test]
fn a_watched_directory_brings_new_databases() {
    let many = Many::new(
        "sync-interval: 20ms\ndbs:\n- dir: DIR/tenants\n  pattern: '*.db'\n  recursive: true\n  watch: true\n  replica: {path: \
         DIR/all}\n",
    );
    fs::create_dir_all(many.dir().join("tenants/x y")).unwrap();
    many.make("tenants/a.db");
    fs::write(many.dir().join("tenants/no.db"), "text").unwrap();
    let odd = many.make("tenants/ü ?#%41'\"$\n.db");
    let running = many.start(&[]);
    until("the first", || many.restored("file://DIR/all/a.db").is_some());
    until("the odd one", || many.restored("file://DIR/all/%C3%BC%20%3F%23%2541%27%22%24%0A.db") == Some(rows(&odd)));
    let b = many.make("tenants/x y/b.db");
    until("the second", || many.restored("file://DIR/all/x%20y/b.db").is_some());
    fs::remove_file(&b).unwrap();
    for suffix in ["-onewrite", "-node"] {
        let _ = fs::remove_file(format!("{}{suffix}", b.display()));
    }
    running.told("gone", "b.db");
    many.make("tenants/c.db");
    until("the third", || many.restored("file://DIR/all/c.db").is_some());
    assert!(!running.has("began", "no.db"));
    assert_eq!(running.ends(Signal::TERM), Some(0));
    assert!(many.restored("file://DIR/all/x%20y/b.db").is_some());
}

#[test]
fn the_application_gets_signals_and_its_status_is_the_programs() {
    let many = Many::new(
        "sync-interval: 20ms\ndbs:\n- path: DIR/app.db\n  restore-if-db-not-exists: true\n  replica: {path: DIR/store}\n",
    );
    many.place.once(&[]);
    let before = rows(&many.place.restore(&[]));
    fs::remove_file(&many.place.file).unwrap();
    let _ = fs::remove_file(many.dir().join("app.db-onewrite"));
    let told = many.dir().join("told");
    let script = format!(
        "test -f {0}/app.db && echo there >> {0}/told; trap 'echo hup >> {0}/told' HUP; trap 'echo term >> {0}/told; exit 7' TERM; \
         echo began >> {0}/told; while :; do sleep 0.05; done",
        many.dir().display()
    );
    let running = many.start(&["--exec", &format!("sh -c \"{script}\"")]);
    let heard = || fs::read_to_string(&told).unwrap_or_default();
    until("it began", || heard().contains("began"));
    assert!(heard().starts_with("there"), "{}", heard());
    running.signal(Signal::HUP);
    until("it heard", || heard().contains("hup"));
    many.place.sql("INSERT INTO t VALUES (1000, 'x')");
    assert_eq!(running.ends(Signal::TERM), Some(7));
    assert!(heard().ends_with("term\n"), "{}", heard());
    // The rest was shipped behind the application's end.
    let after = rows(&many.place.restore(&[]));
    assert!(after != before && after == rows(&many.place.file));
    let mut ends = many.start(&["--exec", "sh -c 'exit 3'"]);
    assert_eq!(ends.child.0.wait().unwrap().code(), Some(3));
    let mut killed = many.start(&["--exec", "sh -c 'kill -9 $$'"]);
    assert_eq!(killed.child.0.wait().unwrap().code(), Some(128 + 9));
    let mut missing = many.start(&["--exec", "/not/there"]);
    assert_eq!(missing.child.0.wait().unwrap().code(), Some(1));
}

#[test]
fn commits_wait_where_the_configuration_says_so() {
    let many = Many::new(
        "dbs:\n- path: DIR/app.db\n  sync: true\n  replica: {path: DIR/store}\n- path: DIR/c.db\n  replica: {path: DIR/c}\n",
    );
    many.make("c.db");
    let running = many.start(&[]);
    running.told("began", "2 databases");
    for n in 100..110 {
        many.place.sql(&format!("INSERT INTO t VALUES ({n}, 'x')"));
        assert!(many.restored("file://DIR/store").unwrap().starts_with(&format!("{} ", n - 89)));
    }
    assert_eq!(running.ends(Signal::TERM), Some(0));
    // Without `sync` it is refused, and the other goes on.
    many.write("dbs:\n- path: DIR/app.db\n  replica: {path: DIR/store}\n- path: DIR/c.db\n  replica: {path: DIR/c}\n");
    let running = many.start(&[]);
    running.told("not_shipped", "unsync");
    running.told("began", "2 databases");
    running.signal(Signal::TERM);
}

#[test]
fn a_database_at_rest_is_not_opened() {
    let many =
        Many::new("sync-interval: 20ms\naddr: 127.0.0.1:0\ndbs:\n- path: DIR/app.db\n  replica: {path: DIR/store}\n");
    let running = many.start(&[]);
    let address = running.address();
    let label = format!("{{db=\"{}\"}}", many.place.file.display());
    let metric = |name: &str| value(&get(&address, "/metrics"), &format!("{name}{label}"));
    let opened = || metric("litestream_sync_count");
    let puts = || value(&get(&address, "/metrics"), "onewrite_store_requests_total{kind=\"put\"}");
    let mut made = puts();
    // At first its files are too young: one of the same time may be written yet.
    until("ten looks in a row do not open it", || {
        made = puts();
        let before = opened();
        let (mut looks, mut lag) = (0, f64::MAX);
        until("ten looks", || {
            let now = metric("onewrite_lag_seconds");
            looks += u32::from(now < std::mem::replace(&mut lag, now));
            looks > 10
        });
        opened() == before
    });
    assert!(made > 0.0 && puts() == made);
    many.place.sql("UPDATE t SET x = 'new'");
    until("it is shipped", || metric("litestream_txid") > 1.0);
}

#[test]
fn a_few_threads_serve_many_databases() {
    let many = Many::new(
        "sync-interval: 100ms\naddr: 127.0.0.1:0\ndbs:\n- dir: DIR/t\n  pattern: '*.db'\n  replica: {path: DIR/all}\n",
    );
    fs::create_dir(many.dir().join("t")).unwrap();
    let first = many.make("t/0.db");
    // The stores of all are in a directory that is not there yet: it is made, if its parent is
    // there.
    (1..100).for_each(|n| _ = fs::copy(&first, many.dir().join(format!("t/{n}.db"))).unwrap());
    let running = many.start(&[]);
    running.told("began", "100 databases");
    let threads = || -> u32 {
        let status = fs::read_to_string(format!("/proc/{}/status", running.child.0.id())).unwrap();
        status.lines().find_map(|line| line.strip_prefix("Threads:")).unwrap().trim().parse().unwrap()
    };
    until("few threads", || threads() < 20);
    // The address has port 0, so the stores are listed.
    until("all are shipped", || {
        let output = many.run(&["replicas", "--json"]);
        let all: Vec<Value> =
            serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {}", said(&output)));
        assert_eq!(all.len(), 100);
        all.iter().all(|one| one["txid"] == "0000000000000001" && one["error"].is_null())
    });
    assert_eq!(running.ends(Signal::TERM), Some(0));
}

#[test]
fn files_and_replicas_are_listed() {
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let many = Many::new(&format!(
        "sync-interval: 20ms\naddr: 127.0.0.1:{port}\ndbs:\n- path: DIR/app.db\n  replica: {{path: DIR/store}}\n- path: DIR/b.db\n  \
         replica: {{path: DIR/away/b}}\n"
    ));
    many.make("b.db");
    let before = many.run(&["replicas"]);
    assert!(said(&before).contains("there is no directory"), "{}", said(&before));
    let running = many.start(&[]);
    running.told("not_shipped", "away");
    until("it is shipped", || many.place.names(0).len() == 1);
    let mut all = Vec::new();
    until("both are told of", || {
        let output = many.run(&["replicas", "--json"]);
        all = serde_json::from_slice::<Vec<Value>>(&output.stdout).unwrap_or_default();
        all.iter().any(|one| one["status"] == "ok")
    });
    let [app, b] = &all[..] else { panic!("{all:?}") };
    assert_eq!((&app["txid"], &app["error"]), (&"0000000000000001".into(), &Value::Null));
    assert!(
        app["lag_ms"].is_u64() && b["status"] == "error" && b["error"].as_str().unwrap().contains("away"),
        "{all:?}"
    );
    let table = many.run(&["replicas"]);
    assert_eq!(table.status.code(), Some(1));
    assert!(said(&table).starts_with("db ") && said(&table).contains("app.db"), "{}", said(&table));
    let url = many.place.url();
    let ltx = many.place.program(&["ltx", &url]).output().unwrap();
    let text = said(&ltx);
    assert!(
        text.starts_with("level  min_txid") && text.contains("\n0      0000000000000001  0000000000000001  "),
        "{text}"
    );
    let by_config = many.run(&["ltx", "--json", "--level", "0", many.place.file.to_str().unwrap()]);
    let files: Vec<Value> = serde_json::from_slice(&by_config.stdout).unwrap();
    let bytes = fs::metadata(many.place.store().join("ltx/0").join(&many.place.names(0)[0])).unwrap().len();
    assert!(files.len() == 1 && files[0]["size"] == bytes && files[0]["level"] == 0, "{files:?}");
    assert_eq!(running.ends(Signal::TERM), Some(0));
}

#[test]
fn a_database_is_shipped_at_once_on_request() {
    use std::os::unix::fs::PermissionsExt;
    // Nothing would be shipped for an hour.
    let many = Many::new(
        "sync-interval: 1h\nsocket: {path: DIR/control.sock}\ndbs:\n- path: DIR/app.db\n  replica: {path: DIR/a}\n- path: \
         DIR/b.db\n  replica: {path: DIR/away/b}\n",
    );
    let (file, other) = (many.dir().join("app.db"), many.make("b.db"));
    let socket = many.dir().join("control.sock");
    let ship = |file: &Path, more: &[&str]| many.run(&[&["ship", file.to_str().unwrap()], more].concat());
    let refused = |output: Output, words: &str| {
        assert!(output.status.code() == Some(1) && said(&output).contains(words), "{}", said(&output));
    };
    refused(ship(&file, &[]), "no process listens");
    // One that was killed leaves its socket.
    drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
    let running = many.start(&[]);
    running.told("control", "control.sock");
    running.told("shipped", "");
    assert_eq!(fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o600);
    many.place.sql("INSERT INTO t VALUES (11, 'new')");
    let here = rows(&file);
    assert_ne!(many.restored("file://DIR/a").unwrap(), here);
    let output = ship(&file, &["--json"]);
    assert!(output.status.success(), "{}", said(&output));
    let told: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((told["txid"].as_str(), told["db"].as_str()), (Some("0000000000000002"), file.to_str()));
    assert_eq!(many.restored("file://DIR/a").unwrap(), here);
    // Nothing is new.
    let output = ship(&file, &[]);
    assert!(said(&output).contains("the store has transaction 0000000000000002"), "{}", said(&output));
    refused(ship(&other, &["--wait", "5s"]), "away");
    refused(ship(&many.dir().join("c.db"), &[]), "no database");
    let listed = many.run(&["replicas"]);
    assert!(said(&listed).contains("app.db") && said(&listed).contains("0000000000000002"), "{}", said(&listed));
    // A second process does not take the socket over.
    let mut second = many.place.program(&["replicate", "--config"]);
    refused(second.arg(&many.config).output().unwrap(), "another process listens there");
    if let Some(litestream) = crate::place::installed("litestream") {
        many.place.sql("INSERT INTO t VALUES (12, 'newer')");
        for args in [&["sync", "-wait"][..], &["list"], &["info"]] {
            let mut command = std::process::Command::new(&litestream);
            command.args(args).arg("-socket").arg(&socket).args(args.contains(&"sync").then_some(&file));
            let output = command.output().unwrap();
            assert!(output.status.success(), "{args:?}: {}", said(&output));
        }
        assert_eq!(many.restored("file://DIR/a").unwrap(), rows(&file));
    }
    running.ends(Signal::TERM);
    assert!(!socket.exists());
}

#[test]
fn a_wrong_configuration_ends_before_anything_is_done() {
    let many = Many::new("dbs:\n- path: DIR/app.db\n  checkpoint-interval: 1m\n  replica: {path: DIR/store}\n");
    let output = many.run(&["replicate"]);
    let text = said(&output);
    assert!(output.status.code() == Some(1) && text.contains("c.yml:3: checkpoint-interval: is not served"), "{text}");
    assert!(!many.place.store().exists());
    let both = many.run(&["replicate", "--once"]);
    assert_eq!(both.status.code(), Some(2), "{}", said(&both));
}

/// A server that takes connections and never answers.
fn silent() -> std::net::TcpListener {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap()
}

#[test]
fn a_bucket_that_is_silent_holds_up_no_other_and_keys_are_the_configurations() {
    let bucket = crate::s3::Place::new();
    let silent = silent();
    let (file, dir) = (bucket.file.to_str().unwrap(), bucket.dir.path());
    let config = dir.join("c.yml");
    let other = dir.join("other.db");
    fs::copy(&bucket.file, &other).unwrap();
    let text = format!(
        "sync-interval: 20ms\nbucket: bucket\nendpoint: {}\naccess-key-id: of-all\nsecret-access-key: abcdefghij\ndbs:\n- \
         path: {file}\n  replica: {{type: s3, path: a/b, access-key-id: of-one, secret-access-key: klmnopqrst}}\n- path: {}\n  \
         replica: {{type: s3, path: other, endpoint: 'http://{}'}}\n",
        bucket.url("").rsplit_once('=').unwrap().1,
        other.display(),
        silent.local_addr().unwrap()
    );
    fs::write(&config, text).unwrap();
    let mut command = bucket.command(&["replicate", "--config", config.to_str().unwrap()]);
    command.env_remove("AWS_ACCESS_KEY_ID").env_remove("AWS_SECRET_ACCESS_KEY").stderr(std::process::Stdio::null());
    let mut running = Killed(command.spawn().unwrap());
    let batches = || bucket.keys().iter().filter(|key| key.starts_with("a/b/0000/")).count();
    until("the first batch", || batches() == 1);
    bucket.sql("CREATE TABLE more(n)");
    until("the next batch", || batches() > 1);
    let of_all: std::collections::BTreeSet<String> =
        bucket.bucket.lock().unwrap().access_keys.iter().cloned().collect();
    assert_eq!(of_all.into_iter().collect::<Vec<_>>(), ["of-one"]);
    assert_eq!(bucket.restored(&[]), bucket.here());
    // It ends although the request is still without an answer, and ships the rest of the other.
    bucket.sql("CREATE TABLE last(n)");
    kill_process(Pid::from_raw(running.0.id().try_into().unwrap()).unwrap(), Signal::TERM).unwrap();
    assert_eq!(running.0.wait().unwrap().code(), Some(1));
    assert_eq!(bucket.restored(&[]), bucket.here());
}

#[test]
fn one_that_is_promoted_over_ends_and_the_others_go_on() {
    let many = Many::new(
        "sync-interval: 20ms\ndbs:\n- path: DIR/app.db\n  replica: {path: DIR/store}\n- path: DIR/c.db\n  replica: {path: DIR/c}\n",
    );
    let c = many.make("c.db");
    let running = many.start(&[]);
    until("both", || many.restored("file://DIR/store").is_some() && many.restored("file://DIR/c").is_some());
    let next = many.dir().join("next.db");
    let promoted = many.place.program(&["promote"]).arg(&next).arg(many.place.url()).output().unwrap();
    assert!(promoted.status.success(), "{}", said(&promoted));
    many.place.sql("INSERT INTO t VALUES (1000, 'not shipped')");
    running.told("fenced", "app.db");
    onewrite_rusqlite::open(&c).unwrap().execute("INSERT INTO t VALUES (2, 'y')", []).unwrap();
    until("the change", || many.restored("file://DIR/c").is_some_and(|rows| rows.starts_with("2 ")));
    assert_eq!(running.ends(Signal::TERM), Some(3));
    assert!(many.restored("file://DIR/store").unwrap().starts_with("10 "));
}
