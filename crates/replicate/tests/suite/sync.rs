//! Commits that wait for the store, with the real program: whatever dies, the store has each
//! acknowledged or seen commit.

use crate::place;
use onewrite_rusqlite::STOCK_VFS;

use place::{Killed, Place, installed, said, until};
use rusqlite::Connection;
use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// A child's environment: the database, the number of writing threads, the round.
const FILE: &str = "ONEWRITE_SYNC_FILE";
const THREADS: &str = "ONEWRITE_SYNC_THREADS";
const ROUND: &str = "ONEWRITE_SYNC_ROUND";
/// Number of kills other than a thousand.
const KILLS: &str = "ONEWRITE_SYNC_KILLS";

const MERGES: [&str; 8] =
    ["--levels", "20ms,60ms", "--keep-batches", "30ms", "--snapshot-interval", "150ms", "--retention", "150ms"];

fn sync(place: &Place, more: &[&str]) -> Killed {
    began(place.replicate(&[&["--sync"], more].concat()))
}

fn began(mut shipper: Command) -> Killed {
    let mut child = shipper.spawn().unwrap();
    let mut said = BufReader::new(child.stderr.take().unwrap());
    let mut all = String::new();
    while !all.contains("commits wait for it") {
        assert!(said.read_line(&mut all).unwrap() > 0, "{all}");
    }
    std::thread::spawn(move || _ = std::io::copy(&mut said, &mut std::io::sink()));
    Killed(child)
}

fn numbers(file: &Path) -> BTreeSet<i64> {
    let db = Connection::open_with_flags_and_vfs(file, Default::default(), STOCK_VFS).unwrap();
    let check: String = db.query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap();
    assert_eq!(check, "ok");
    let mut all = db.prepare("SELECT n FROM t").unwrap();
    all.query_map([], |row| row.get(0)).unwrap().collect::<Result<_, _>>().unwrap()
}

/// A process that commits and reads until it is killed. Its rows are read meanwhile: a full pipe
/// would stop it.
struct Committing {
    child: Child,
    rows: JoinHandle<BTreeSet<i64>>,
}

impl Deref for Committing {
    type Target = Child;

    fn deref(&self) -> &Child {
        &self.child
    }
}

impl DerefMut for Committing {
    fn deref_mut(&mut self) -> &mut Child {
        &mut self.child
    }
}

/// Begins such a process, which prints acknowledged and seen rows.
fn writer(file: &Path, threads: usize, round: i64) -> Committing {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "sync::commits_until_it_is_killed", "--ignored", "--nocapture"]);
    command.env(FILE, file).env(THREADS, threads.to_string()).env(ROUND, round.to_string());
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let told = child.stdout.take().unwrap();
    Committing { child, rows: thread::spawn(move || printed(told)) }
}

#[test]
#[ignore = "a child of the others"]
fn commits_until_it_is_killed() {
    let Some(file) = std::env::var_os(FILE).map(PathBuf::from) else { return };
    let number = |name| std::env::var(name).unwrap().parse::<i64>().unwrap();
    let next = AtomicI64::new(number(ROUND) * 1_000_000);
    let open = || {
        let db = onewrite_rusqlite::open(&file).unwrap();
        db.busy_timeout(Duration::from_secs(20)).unwrap();
        db
    };
    let say = |what: &str, n: i64| {
        let line = format!("{what} {n}\n");
        std::io::stdout().write_all(line.as_bytes()).unwrap();
    };
    std::thread::scope(|scope| {
        for _ in 0..number(THREADS) {
            scope.spawn(|| {
                let db = open();
                loop {
                    let n = next.fetch_add(1, Ordering::Relaxed);
                    match db.execute("INSERT INTO t VALUES (?1, randomblob(300))", [n]) {
                        Ok(_) => say("told", n),
                        Err(_) => std::thread::sleep(Duration::from_millis(1)),
                    }
                }
            });
        }
        let db = open();
        loop {
            match db.query_row("SELECT max(n) FROM t", [], |row| row.get(0)) {
                Ok(n) => say("saw", n),
                Err(_) => std::thread::sleep(Duration::from_millis(1)),
            }
            std::thread::sleep(Duration::from_micros(300));
        }
    });
}

/// The acknowledged and seen rows that it printed.
fn lines(mut writer: Committing) -> BTreeSet<i64> {
    writer.child.wait().unwrap();
    writer.rows.join().unwrap()
}

fn printed(told: impl Read) -> BTreeSet<i64> {
    let mut all = BTreeSet::new();
    for line in BufReader::new(told).lines() {
        let line = line.unwrap();
        // The harness begins a line before the first one.
        let words: Vec<&str> = line.rsplit_once("... ").map_or(&*line, |(_, rest)| rest).split(' ').collect();
        if let ["told" | "saw", n] = words[..]
            && let Ok(n) = n.parse()
        {
            all.insert(n);
        }
    }
    all
}

#[test]
fn an_acknowledged_commit_is_in_the_store() {
    let place = Place::new(10);
    let _shipper = sync(&place, &[]);
    let db = place.open();
    for n in 11..31 {
        db.execute("INSERT INTO t VALUES (?1, 'x')", [n]).unwrap();
        assert_eq!(numbers(&place.restore(&[])), (1..=n).collect());
    }
}

/// The name becomes another file's at once, as with a backup that is restored.
#[cfg_attr(windows, ignore = "Wine replaces no file that is open")]
#[test]
fn another_database_under_its_name_is_shipped_and_waited_for() {
    let place = Place::new(10);
    let mut shipper = sync(&place, &[]);
    for n in [100, 200] {
        place.open().execute("INSERT INTO t VALUES (?1, 'x')", [n]).unwrap();
        let other = place.dir.path().join("other.db");
        let db = Connection::open_with_flags_and_vfs(&other, Default::default(), STOCK_VFS).unwrap();
        let sql = format!("CREATE TABLE t(n INTEGER PRIMARY KEY, x); INSERT INTO t VALUES ({n} + 1, 'other')");
        db.execute_batch(&sql).unwrap();
        drop(db);
        fs::rename(other, &place.file).unwrap();
        until("it is shipped", || numbers(&place.restore(&[])) == BTreeSet::from([n + 1]));
        let db = place.open();
        for more in 2..5 {
            db.execute("INSERT INTO t VALUES (?1, 'x')", [n + more]).unwrap();
            assert_eq!(numbers(&place.restore(&[])), (n + 1..=n + more).collect());
        }
    }
    assert_eq!(shipper.0.try_wait().unwrap(), None);
}

/// The last close changes page 1.
#[cfg_attr(windows, ignore = "sends signals, which Windows has not")]
#[test]
fn a_shipper_leaves_the_state_that_the_store_has() {
    for dies in [false, true] {
        let place = Place::new(10);
        let mut shipper = sync(&place, &[]);
        if dies {
            let mut writer = writer(&place.file, 2, 1);
            until("a commit", || numbers(&place.restore(&[])).len() > 20);
            writer.kill().unwrap();
            lines(writer);
        } else {
            let db = place.open();
            (100..120).for_each(|n| _ = db.execute("INSERT INTO t VALUES (?1, 'x')", [n]).unwrap());
        }
        signal(shipper.0.id(), "TERM");
        assert_eq!(shipper.0.wait().unwrap().code(), Some(0));
        let verify = place.program(&["verify", "--wait", "0s"]).arg(&place.file).arg(place.url()).output().unwrap();
        assert_eq!(verify.status.code(), Some(0), "{}", said(&verify));
        assert!(fs::read(&place.file).unwrap() == fs::read(place.restore(&[])).unwrap(), "the restored file differs");
        let promote = place.program(&["promote"]).arg(&place.file).arg(place.url()).output().unwrap();
        assert!(promote.status.success(), "{}", said(&promote));
    }
}

/// A directory's listing may have a name and lack an earlier one.
#[test]
fn a_store_that_is_written_to_is_restored_and_followed() {
    let place = Place::new(10);
    let _shipper = sync(&place, &[]);
    let mut writers = [writer(&place.file, 2, 1), writer(&place.file, 2, 2)];
    until("batches", || place.names(0).len() > 300);
    for n in 0..15 {
        numbers(&place.restore(&[]));
        let replica = place.dir.path().join(format!("replica-{n}.db"));
        let followed = place.program(&["follow", "--once", &place.url()]).arg(&replica).output().unwrap();
        assert!(followed.status.success(), "{}", said(&followed));
    }
    let verify = place.program(&["verify", "--wait", "1s"]).arg(&place.file).arg(place.url()).output().unwrap();
    assert!(!said(&verify).contains("gap"), "{}", said(&verify));
    writers.iter_mut().for_each(|child| child.kill().unwrap());
    writers.into_iter().for_each(|child| _ = lines(child));
}

#[test]
fn a_start_reads_few_files_at_every_rate() {
    use onewrite_replicate::plan::{Target, newest, plan};
    use onewrite_replicate::store;
    let place = Place::new(10);
    let shipper = sync(&place, &[]);
    let mut writers = [writer(&place.file, 3, 1), writer(&place.file, 3, 2)];
    let listed = || store::list_all(&*store::open(&place.url()).unwrap()).unwrap();
    until("batches", || newest(&listed()) > 250);
    drop(shipper);
    writers.iter_mut().for_each(|child| child.kill().unwrap());
    let told: BTreeSet<i64> = writers.into_iter().flat_map(lines).collect();
    let files = plan(&listed(), Target::Newest).unwrap();
    assert!(files.len() <= 100, "{}", files.len());
    let there = numbers(&place.restore(&[]));
    assert!(told.iter().all(|n| there.contains(n)));
}

/// Machine and disk are lost `kills` times, at random moments.
fn vanishes(kills: i64) {
    let mut random = fastrand::Rng::new();
    let mut told = 0;
    for round in 1..=kills {
        let place = Place::new(1);
        let shipper = sync(&place, if random.bool() { &MERGES } else { &[] });
        let threads = random.usize(1..6);
        let mut writers: Vec<_> = (0..random.i64(1..3)).map(|n| writer(&place.file, threads, round * 2 + n)).collect();
        std::thread::sleep(Duration::from_millis(random.u64(100..500)));
        if random.bool() {
            drop(shipper);
            std::thread::sleep(Duration::from_millis(random.u64(0..20)));
            writers.iter_mut().for_each(|child| child.kill().unwrap());
        } else {
            writers.iter_mut().for_each(|child| child.kill().unwrap());
            drop(shipper);
        }
        let all: BTreeSet<i64> = writers.into_iter().flat_map(lines).collect();
        for entry in fs::read_dir(place.dir.path()).unwrap().map(Result::unwrap).filter(|e| e.path().is_file()) {
            fs::remove_file(entry.path()).unwrap();
        }
        let there = numbers(&place.restore(&[]));
        let lost: Vec<_> = all.difference(&there).collect();
        assert!(lost.is_empty(), "round {round}: {lost:?} of {}", all.len());
        told += all.len();
    }
    eprintln!("{kills} kills: {told} commits told or seen, none lost");
    assert!(i64::try_from(told).unwrap() > kills, "{told}");
}

/// Forwards all bytes to `to`, those of requests `pause` late. Returns its address.
fn slow_way(to: String, pause: Duration) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            let Ok(server) = TcpStream::connect(&to) else { continue };
            client.set_nodelay(true).unwrap();
            server.set_nodelay(true).unwrap();
            let (mut answers, mut back) = (server.try_clone().unwrap(), client.try_clone().unwrap());
            std::thread::spawn(move || {
                let _ = std::io::copy(&mut answers, &mut back);
                let _ = back.shutdown(Shutdown::Both);
            });
            let (send, arrived) = mpsc::channel::<(Instant, Vec<u8>)>();
            std::thread::spawn(move || {
                let mut server = server;
                for (at, bytes) in arrived {
                    std::thread::sleep((at + pause).saturating_duration_since(Instant::now()));
                    if server.write_all(&bytes).is_err() {
                        break;
                    }
                }
                let _ = server.shutdown(Shutdown::Both);
            });
            std::thread::spawn(move || {
                let mut client = client;
                let mut buffer = vec![0; 1 << 16];
                while let Ok(n @ 1..) = client.read(&mut buffer) {
                    if send.send((Instant::now(), buffer[..n].to_vec())).is_err() {
                        break;
                    }
                }
            });
        }
    });
    at
}

#[test]
#[ignore = "a measurement: cargo test --release -p onewrite-replicate --test suite -- --ignored --nocapture commits_a_second"]
fn commits_a_second() {
    let Some(versitygw) = installed("versitygw") else { return };
    let seconds = 4;
    println!("| latency of the store | 1 committer | 8 | 64 | requests a second with 64 |\n|---|---|---|---|---|");
    for latency in [0, 10, 30] {
        let mut line = format!("| {latency} ms |");
        let mut puts = 0;
        for committers in [1, 8, 64] {
            let place = Place::new(10_000);
            let bucket = place.dir.path().join("posix");
            fs::create_dir_all(bucket.join("bucket")).unwrap();
            let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
            let server = format!("127.0.0.1:{port}");
            let mut command = Command::new(&versitygw);
            command.args(["--port", &server, "--keep-alive", "posix"]).arg(&bucket).env("ROOT_ACCESS_KEY", "test");
            command
                .env("ROOT_SECRET_KEY", "testsecret")
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null());
            let _gateway = Killed(command.spawn().unwrap());
            until("the server", || TcpStream::connect(&server).is_ok());
            let way = slow_way(server, Duration::from_millis(latency));
            let url = format!("s3://bucket/app?endpoint=http://{way}");
            let mut shipper = place.program(&["replicate", "--sync"]);
            shipper
                .arg(&place.file)
                .arg(&url)
                .env("AWS_ACCESS_KEY_ID", "test")
                .env("AWS_SECRET_ACCESS_KEY", "testsecret");
            let _shipper = began(shipper);
            let next = AtomicI64::new(1_000_000);
            let until = Instant::now() + Duration::from_secs(seconds);
            std::thread::scope(|scope| {
                for _ in 0..committers {
                    scope.spawn(|| {
                        let db = place.open();
                        while Instant::now() < until {
                            let n = next.fetch_add(1, Ordering::Relaxed);
                            db.execute("INSERT INTO t VALUES (?1, randomblob(100))", [n]).unwrap();
                        }
                    });
                }
            });
            let done = next.load(Ordering::Relaxed) - 1_000_000;
            line += &format!(" {} |", done / i64::try_from(seconds).unwrap());
            puts = fs::read_dir(bucket.join("bucket/app/0000")).unwrap().count();
        }
        println!("{line} {} |", u64::try_from(puts).unwrap() / seconds);
    }
}

#[test]
fn nothing_is_lost_with_machine_and_disk() {
    vanishes(20);
}

fn signal(process: u32, name: &str) {
    assert!(Command::new("kill").args([&format!("-{name}"), &process.to_string()]).status().unwrap().success());
}

fn stop(process: u32) {
    signal(process, "STOP");
    std::thread::sleep(Duration::from_millis(fastrand::u64(1..300)));
}

#[cfg_attr(windows, ignore = "sends signals, which Windows has not")]
#[test]
fn processes_that_are_stopped_or_killed_and_started_again_lose_nothing() {
    let place = Place::new(1);
    let mut shipper = Some(sync(&place, &[]));
    let mut writers = vec![writer(&place.file, 3, 1), writer(&place.file, 2, 2)];
    let mut all = BTreeSet::new();
    for round in 3..31 {
        std::thread::sleep(Duration::from_millis(fastrand::u64(20..150)));
        match round % 4 {
            0 => {
                drop(shipper.take());
                shipper = Some(sync(&place, &MERGES));
            }
            1 => {
                let mut killed = writers.remove(0);
                killed.kill().unwrap();
                writers.push(writer(&place.file, 3, round));
                all.append(&mut lines(killed));
            }
            // Perhaps killed in the middle of a step.
            2 => {
                stop(shipper.as_ref().unwrap().0.id());
                if fastrand::bool() {
                    drop(shipper.take());
                    shipper = Some(sync(&place, &[]));
                } else {
                    signal(shipper.as_ref().unwrap().0.id(), "CONT");
                }
            }
            _ => {
                stop(writers[0].id());
                signal(writers[0].id(), "CONT");
                writers.rotate_left(1);
            }
        }
    }
    std::thread::sleep(Duration::from_millis(100));
    writers.iter_mut().for_each(|child| child.kill().unwrap());
    writers.into_iter().for_each(|child| all.append(&mut lines(child)));
    drop(shipper);
    let there = numbers(&place.restore(&[]));
    let lost: Vec<_> = all.difference(&there).collect();
    assert!(lost.is_empty(), "{lost:?} of {}", all.len());
    assert!(all.len() > 30, "{}", all.len());
    // The database here has the same rows: none is lost, and none is missing in the store.
    let _shipper = sync(&place, &[]);
    let db = place.open();
    let mut here = db.prepare("SELECT n FROM t").unwrap();
    let here: BTreeSet<i64> = here.query_map([], |row| row.get(0)).unwrap().collect::<Result<_, _>>().unwrap();
    assert_eq!(here, numbers(&place.restore(&[])));
}

#[test]
#[ignore = "takes a quarter of an hour: cargo test --release -p onewrite-replicate --test suite -- --ignored thousand"]
fn nothing_is_lost_with_machine_and_disk_a_thousand_times() {
    let kills = std::env::var(KILLS).map_or(1000, |kills| kills.parse().unwrap());
    vanishes(kills);
}
