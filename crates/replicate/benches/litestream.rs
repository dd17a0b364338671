//! Measures `onewrite replicate` and `restore` beside Litestream over stock WAL, with the same
//! work, store and interval.
//!
//! `cargo bench -p onewrite-replicate --bench litestream -- --help`. Takes Litestream and versitygw
//! from the PATH; reports and skips a missing one.

use anyhow::{Context, Result, ensure};
use clap::Parser;
use onewrite_replicate::ltx::Reader;
use rusqlite::Connection;
use std::fs;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Measures replication beside Litestream.
#[derive(Parser)]
struct Args {
    /// Commits a second, while bytes and CPU are counted
    #[arg(long, default_value_t = 200)]
    rate: u32,
    /// Length of a run in seconds
    #[arg(long, default_value_t = 20)]
    seconds: u32,
    /// Rows that are there before
    #[arg(long, default_value_t = 20_000)]
    rows: u32,
    /// Interval of shipping
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = humantime::parse_duration)]
    interval: Duration,
    /// How often the shipper is killed during commits, to compare the store (versitygw); 0: never
    #[arg(long, default_value_t = 20)]
    kills: u32,
    /// Pairs of runs as fast as it goes, without and with shipping; 0: none
    #[arg(long, default_value_t = 3)]
    pairs: u32,
    /// Seconds of counting requests while nothing is written, after 40 without; 0: none
    #[arg(long, default_value_t = 60)]
    idle: u32,
    /// Size of the database that is restored, in MiB; 0: none
    #[arg(long, default_value_t = 200)]
    restore: u32,
    /// Batches behind the snapshot of the database that is restored, 10 ms apart; 0: none
    #[arg(long, default_value_t = 0)]
    increments: u32,
    /// Databases at rest of which one process is counted for a minute (versitygw); 0: none
    #[arg(long, default_value_t = 0)]
    at_rest: u32,
    /// Buckets alone, no directories
    #[arg(long)]
    buckets: bool,
    /// Directory to work in; the disk below it is measured
    #[arg(long, default_value = ".")]
    dir: PathBuf,
    /// Directory of stores, perhaps on another disk; default: beside the database
    #[arg(long)]
    store_dir: Option<PathBuf>,
    /// Passed by Cargo
    #[arg(long, hide = true)]
    bench: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum System {
    Onewrite,
    Litestream,
}

struct Running(Child);

impl Running {
    fn start(command: &mut Command) -> Result<Running> {
        let command = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Ok(Running(command.spawn().with_context(|| format!("cannot run {command:?}"))?))
    }

    /// Of all its threads, also of those that have ended, in ticks of 10 ms.
    fn cpu(&self) -> Result<Duration> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.0.id()))?;
        // Behind the name, which may have spaces: user and system time are the 12th and 13th.
        let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
        let ticks = fields.skip(11).take(2).map(str::parse::<u64>).sum::<Result<u64, _>>()?;
        Ok(Duration::from_millis(ticks * 10))
    }

    /// The most memory that it had, in bytes.
    fn memory(&self) -> Result<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.0.id()))?;
        let most = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).context("no VmHWM")?;
        Ok(most.trim().trim_end_matches("kB").trim().parse::<u64>()? << 10)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).any(|dir| dir.join(program).is_file());
    if !found {
        println!("{program} is not installed: left out");
    }
    found
}

fn size(dir: &Path) -> (u64, u64) {
    let mut sum = (0, 0);
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let Ok(data) = entry.metadata() else { continue };
        let (bytes, files) = if data.is_dir() { size(&entry.path()) } else { (data.len(), 1) };
        sum = (sum.0 + bytes, sum.1 + files);
    }
    sum
}

/// A database of one system, and its store.
struct Place<'a> {
    args: &'a Args,
    system: System,
    dir: tempfile::TempDir,
    /// The store's directory, if it is elsewhere.
    store_dir: Option<tempfile::TempDir>,
    s3: Option<(Running, u16)>,
}

impl<'a> Place<'a> {
    fn new(args: &'a Args, system: System, s3: bool) -> Result<Place<'a>> {
        let temp = |dir: &Path| tempfile::Builder::new().prefix("measure-").tempdir_in(dir);
        let dir = temp(&args.dir)?;
        let store_dir = args.store_dir.as_deref().map(temp).transpose()?;
        let mut place = Place { args, system, dir, store_dir, s3: None };
        fs::create_dir_all(place.bucket())?;
        if s3 {
            let port = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
            let mut server = Command::new("versitygw");
            server.args(["--port", &format!("127.0.0.1:{port}"), "--access-log"]).arg(place.path("requests"));
            server.arg("posix").arg(place.store());
            server.env("ROOT_ACCESS_KEY", "test").env("ROOT_SECRET_KEY", "testsecret");
            place.s3 = Some((Running::start(&mut server)?, port));
            let answers = || std::net::TcpStream::connect(("127.0.0.1", port)).is_ok();
            until("the server answers", answers)?;
        }
        Ok(place)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn store(&self) -> PathBuf {
        self.store_dir.as_ref().unwrap_or(&self.dir).path().join("store")
    }

    fn bucket(&self) -> PathBuf {
        self.store().join("bucket")
    }

    fn open(&self) -> Result<Connection> {
        let file = self.path("app.db");
        let db = match self.system {
            System::Onewrite => onewrite_rusqlite::open(file)?,
            System::Litestream => {
                let db = Connection::open_with_flags_and_vfs(file, Default::default(), c"unix")?;
                db.execute_batch("PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL")?;
                db
            }
        };
        db.busy_timeout(Duration::from_secs(10))?;
        Ok(db)
    }

    fn fill(&self, rows: u32) -> Result<Connection> {
        let db = self.open()?;
        db.execute_batch(&format!(
            "CREATE TABLE t(k INTEGER PRIMARY KEY, v BLOB); WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n \
             WHERE i < {rows}) INSERT INTO t SELECT i, randomblob(128) FROM n"
        ))?;
        Ok(db)
    }

    fn url(&self) -> String {
        match &self.s3 {
            Some((_, port)) => format!("s3://bucket/app?endpoint=http://127.0.0.1:{port}"),
            None => format!("file://{}", self.bucket().display()),
        }
    }

    fn command(&self, system: System, verb: &str) -> Result<Command> {
        let mut command = match system {
            System::Onewrite => {
                let mut command = Command::new(env!("CARGO_BIN_EXE_onewrite-replicate"));
                command.arg(verb);
                command
            }
            System::Litestream => {
                let every = humantime::format_duration(self.args.interval).to_string().replace(' ', "");
                let replica = match &self.s3 {
                    Some((_, port)) => format!(
                        "{{type: s3, bucket: bucket, path: app, endpoint: 'http://127.0.0.1:{port}', region: us-east-1, \
                         force-path-style: true, sync-interval: {every}}}"
                    ),
                    None => format!("{{type: file, path: '{}', sync-interval: {every}}}", self.bucket().display()),
                };
                let db = self.path("app.db");
                let config = format!(
                    "dbs:\n  - path: '{}'\n    monitor-interval: {every}\n    replica: {replica}\n",
                    db.display()
                );
                fs::write(self.path("litestream.yml"), config)?;
                let mut command = Command::new("litestream");
                command.arg(verb).arg("-config").arg(self.path("litestream.yml"));
                command
            }
        };
        command.env_remove("AWS_CA_BUNDLE").env("NO_PROXY", "127.0.0.1");
        command.env("AWS_ACCESS_KEY_ID", "test").env("AWS_SECRET_ACCESS_KEY", "testsecret");
        Ok(command)
    }

    /// Starts shipping, and waits until the database is shipped.
    fn ship(&self) -> Result<Running> {
        let mut command = self.command(self.system, "replicate")?;
        if self.system == System::Onewrite {
            command
                .args(["--interval", &humantime::format_duration(self.args.interval).to_string()])
                .arg(self.path("app.db"))
                .arg(self.url());
        }
        let shipper = Running::start(&mut command)?;
        let db = fs::metadata(self.path("app.db"))?.len();
        until("the first snapshot", || size(&self.bucket()).0 > db / 3)?;
        self.settle();
        Ok(shipper)
    }

    fn settle(&self) {
        let mut before = size(&self.bucket());
        loop {
            thread::sleep((self.args.interval * 3 / 2).max(Duration::from_millis(300)));
            let now = size(&self.bucket());
            if now == before {
                return;
            }
            before = now;
        }
    }

    fn restore(&self, with: System) -> Result<Duration> {
        let dest = self.path("restored.db");
        let _ = fs::remove_file(&dest);
        let mut command = self.command(with, "restore")?;
        match with {
            System::Onewrite => command.arg(self.url()).arg(&dest),
            System::Litestream => command.arg("-o").arg(&dest).arg(self.path("app.db")),
        };
        let begun = Instant::now();
        let output = command.output()?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Ok(begun.elapsed())
    }

    fn requests(&self) -> u64 {
        fs::read_to_string(self.path("requests")).map_or(0, |log| log.lines().count() as u64)
    }
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) -> Result<()> {
    let begun = Instant::now();
    while !is_so() {
        ensure!(begun.elapsed() < Duration::from_secs(60), "not in time: {what}");
        thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// Updates single rows at random keys for `time`, at most `rate` a second (0: no limit). Returns
/// when each commit returned.
fn work(db: &Connection, rows: u32, time: Duration, rate: u32) -> Result<Vec<SystemTime>> {
    let mut random = fastrand::Rng::with_seed(1);
    let mut update = db.prepare("UPDATE t SET v = randomblob(128) WHERE k = ?1")?;
    let begun = Instant::now();
    let mut made = Vec::new();
    while begun.elapsed() < time {
        update.execute([random.u32(1..=rows)])?;
        made.push(SystemTime::now());
        if rate > 0 {
            let due = begun + Duration::from_secs(1) * u32::try_from(made.len())? / rate;
            thread::sleep(due.saturating_duration_since(Instant::now()));
        }
    }
    Ok(made)
}

/// Commits that the store lacks when its machine is lost, and the age of the oldest.
struct Loss {
    commits: u32,
    age: Duration,
}

/// Kills the shipper at a random moment during numbered commits.
fn lose(place: &Place<'_>, db: &Connection, random: &mut fastrand::Rng, round: u32) -> Result<Loss> {
    let args = place.args;
    let shipper = place.ship()?;
    let time = Duration::from_millis(random.u64(2000..4000)) + args.interval;
    let (killed_at, made) = thread::scope(|scope| {
        let kill = scope.spawn(move || {
            thread::sleep(time);
            let now = Instant::now();
            drop(shipper);
            now
        });
        let mut update = db.prepare("UPDATE t SET v = CAST(?2 AS BLOB) || randomblob(118) WHERE k = ?1")?;
        let begun = Instant::now();
        let mut made = Vec::new();
        while !kill.is_finished() {
            let number = format!("{round:04}{:06}", made.len());
            update.execute(rusqlite::params![random.u32(1..=args.rows), number])?;
            made.push(Instant::now());
            let due = begun + Duration::from_secs(1) * u32::try_from(made.len())? / args.rate.max(1);
            thread::sleep(due.saturating_duration_since(Instant::now()));
        }
        let killed_at = kill.join().ok().context("the thread that kills has panicked")?;
        anyhow::Ok((killed_at, made))
    })?;
    thread::sleep(Duration::from_millis(100));
    place.restore(place.system)?;
    let restored = Connection::open_with_flags_and_vfs(place.path("restored.db"), Default::default(), c"unix")?;
    let digits = "3[0-9]".repeat(10);
    let sql = format!(
        "SELECT count(*), max(CAST(substr(v, 5, 6) AS TEXT)) FROM t WHERE hex(substr(v, 1, 10)) GLOB '{digits}' AND \
         CAST(substr(v, 1, 4) AS TEXT) = '{round:04}'"
    );
    let (rows, last): (u32, Option<String>) = restored.query_row(&sql, [], |row| Ok((row.get(0)?, row.get(1)?)))?;
    let there = last.map_or(Ok(0), |last| last.parse::<usize>().map(|last| last + 1))?;
    ensure!(rows as usize <= there && there <= made.len(), "{there} of {} commits, in {rows} rows", made.len());
    let lost = made.get(there..).unwrap_or_default();
    let lost: Vec<_> = lost.iter().filter(|at| **at <= killed_at).collect();
    let age = lost.first().map_or(Duration::ZERO, |at| killed_at.saturating_duration_since(**at));
    Ok(Loss { commits: u32::try_from(lost.len())?, age })
}

/// Milliseconds until a batch was in the store that was read behind a commit, of each commit in
/// ascending order. A file's status changes when it gets its name.
fn lags(bucket: &Path, made: &[SystemTime]) -> Result<Vec<f64>> {
    let mut batches = Vec::new();
    let mut dirs = vec![bucket.to_owned()];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(dir)?.flatten() {
            let path = entry.path();
            if path.is_dir() {
                dirs.push(path);
            } else if path.extension().is_some_and(|extension| extension == "ltx")
                && let Ok(reader) = Reader::open(fs::File::open(&path)?)
            {
                let data = entry.metadata()?;
                let there = u64::try_from(data.ctime())? * 1000 + u64::try_from(data.ctime_nsec())? / 1_000_000;
                batches.push((u64::try_from(reader.header().time_ms)?, there));
            }
        }
    }
    let lag = |made: &SystemTime| {
        let made = u64::try_from(made.duration_since(UNIX_EPOCH).ok()?.as_millis()).ok()?;
        let there = batches.iter().filter(|(read, _)| *read >= made).map(|(_, there)| *there).min()?;
        Some(there.saturating_sub(made) as f64)
    };
    let mut lags: Vec<f64> = made.iter().filter_map(lag).collect();
    lags.sort_by(f64::total_cmp);
    Ok(lags)
}

/// One process for many databases, none of which is written.
fn at_rest(args: &Args, system: System, row: &mut dyn FnMut(&str, String)) -> Result<()> {
    let place = Place::new(args, system, true)?;
    let (_, port) = place.s3.as_ref().context("no server")?;
    let mut config = "dbs:\n".to_owned();
    for n in 0..args.at_rest {
        let file = place.path(&format!("{n}.db"));
        let db = match system {
            System::Onewrite => onewrite_rusqlite::open(&file)?,
            System::Litestream => Connection::open_with_flags_and_vfs(&file, Default::default(), c"unix")?,
        };
        db.execute_batch("CREATE TABLE t(k INTEGER PRIMARY KEY, v); INSERT INTO t VALUES (1, randomblob(5000))")?;
        if system == System::Litestream {
            db.execute_batch("PRAGMA journal_mode=WAL")?;
        }
        config += &format!(
            "  - path: '{}'\n    replica: {{type: s3, bucket: bucket, path: db{n}, endpoint: 'http://127.0.0.1:{port}', \
             region: us-east-1, force-path-style: true, sync-interval: 1s}}\n",
            file.display()
        );
    }
    let mut command = place.command(system, "replicate")?;
    fs::write(place.path("litestream.yml"), config)?;
    if system == System::Onewrite {
        command.arg("--config").arg(place.path("litestream.yml"));
    }
    let shipper = Running::start(&mut command)?;
    until("all snapshots", || size(&place.bucket()).1 >= args.at_rest.into())?;
    thread::sleep(Duration::from_secs(40));
    let (cpu, requests) = (shipper.cpu()?, place.requests());
    thread::sleep(Duration::from_secs(60));
    let (cpu, requests) = (shipper.cpu()? - cpu, place.requests() - requests);
    row(
        &format!("{} databases at rest", args.at_rest),
        format!("{} MiB, {:.2} s of CPU and {requests} requests a minute", shipper.memory()? >> 20, cpu.as_secs_f64()),
    );
    Ok(())
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

fn measure(args: &Args, system: System, s3: bool, row: &mut dyn FnMut(&str, String)) -> Result<()> {
    let time = Duration::from_secs(args.seconds.into());
    let place = Place::new(args, system, s3)?;
    let db = place.fill(args.rows)?;
    let shipper = place.ship()?;
    let bucket = place.bucket();
    let (cpu, (bytes, files), requests) = (shipper.cpu()?, size(&bucket), place.requests());
    let made = work(&db, args.rows, time, args.rate)?;
    let commits = made.len() as f64;
    place.settle();
    let (cpu, (bytes_after, files_after)) = (shipper.cpu()? - cpu, size(&bucket));
    let lags = lags(&bucket, &made)?;
    let of = |part: usize| lags.get((lags.len() * part).div_ceil(100).saturating_sub(1)).copied().unwrap_or(f64::NAN);
    row("lag, median, p99", format!("{:.0} ms, {:.0} ms", of(50), of(99)));
    row("memory", format!("{} MiB", shipper.memory()? >> 20));
    row("bytes a commit", format!("{:.0}", (bytes_after.saturating_sub(bytes)) as f64 / commits));
    row("CPU a commit", format!("{:.0} µs", cpu.as_secs_f64() * 1e6 / commits));
    row("files", format!("{}", files_after.saturating_sub(files)));
    if s3 {
        row(
            "requests a minute with commits",
            format!("{:.0}", (place.requests() - requests) as f64 * 60.0 / time.as_secs_f64()),
        );
    }
    if s3 && args.idle > 0 {
        thread::sleep(Duration::from_secs(40));
        let before = place.requests();
        thread::sleep(Duration::from_secs(args.idle.into()));
        let hour = (place.requests() - before) * 3600 / u64::from(args.idle);
        row("requests an hour, idle", format!("{hour}"));
    }
    drop(shipper);

    if s3 && args.kills > 0 {
        let mut random = fastrand::Rng::with_seed(7);
        let losses = (0..args.kills).map(|round| lose(&place, &db, &mut random, round)).collect::<Result<Vec<_>>>()?;
        let ages = || losses.iter().map(|loss| loss.age.as_secs_f64() * 1e3);
        let commits = losses.iter().map(|loss| f64::from(loss.commits));
        row(
            "lost with the machine, median, most",
            format!(
                "{:.0} ms, {:.0} ms ({:.0}, {:.0} commits)",
                median(ages().collect()),
                ages().fold(0.0, f64::max),
                median(commits.clone().collect()),
                commits.fold(0.0, f64::max)
            ),
        );
    }
    if args.pairs > 0 {
        let mut losses = Vec::new();
        let mut rates = Vec::new();
        let run = || -> Result<f64> { Ok(work(&db, args.rows, time / 4, 0)?.len() as f64 / (time / 4).as_secs_f64()) };
        for _ in 0..args.pairs {
            let without = run()?;
            let shipper = place.ship()?;
            let with = run()?;
            drop(shipper);
            losses.push(100.0 * (1.0 - with / run()?.midpoint(without)));
            rates.push(with);
        }
        row("commits/s while shipping", format!("{:.0}", median(rates)));
        row("commits/s lost to shipping", format!("{:.1} %", median(losses)));
    }
    drop(db);

    if args.restore > 0 {
        let place = Place::new(args, system, s3)?;
        // 128 random bytes a row do not compress.
        let db = place.fill(args.restore * 7400)?;
        let mib = fs::metadata(place.path("app.db"))?.len() as f64 / f64::from(1 << 20);
        let shipper = place.ship()?;
        if args.increments > 0 {
            work(&db, args.restore * 7400, Duration::from_millis(10) * args.increments, 100)?;
            place.settle();
        }
        drop((db, shipper));
        let files = size(&place.bucket()).1;
        let runs = (0..3).map(|_| Ok(mib / place.restore(system)?.as_secs_f64())).collect::<Result<Vec<_>>>()?;
        row("restore", format!("{:.0} MiB/s ({mib:.0} MiB, {files} files)", median(runs)));
        if system == System::Onewrite && installed("litestream") && !s3 {
            let runs = (0..3)
                .map(|_| Ok(mib / place.restore(System::Litestream)?.as_secs_f64()))
                .collect::<Result<Vec<_>>>()?;
            row("the same by `litestream restore`", format!("{:.0} MiB/s", median(runs)));
        }
    }
    if args.at_rest > 0 && s3 {
        at_rest(args, system, row)?;
    }
    Ok(())
}

fn main() -> Result<()> {
    let args = Args::parse();
    ensure!(args.seconds >= 4 && args.rows > 0 && !args.interval.is_zero(), "a time or size is too small");
    let (litestream, versitygw) = (installed("litestream"), installed("versitygw"));
    println!(
        "{} rows of 128 bytes, {} commits/s of one row at random keys for {} s, interval {}",
        args.rows,
        args.rate,
        args.seconds,
        humantime::format_duration(args.interval)
    );
    for (s3, there) in [(false, !args.buckets), (true, versitygw)] {
        for (system, name, there) in [
            (System::Onewrite, "onewrite", there),
            (System::Litestream, "Litestream over stock WAL", there && litestream),
        ] {
            if there {
                println!("\n{name}, {}", if s3 { "s3:// (versitygw)" } else { "file://" });
                measure(&args, system, s3, &mut |what, value| {
                    println!("  {what:34} {value}");
                    let _ = std::io::stdout().flush();
                })?;
            }
        }
    }
    Ok(())
}
