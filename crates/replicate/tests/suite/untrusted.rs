//! Stores that others can write: links and irregular files are refused without waiting.

use crate::place;

use place::{Killed, Place, said, until};
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Output};

const BATCH: &str = "ltx/0/0000000000000002-0000000000000002.ltx";

/// Makes an object with this name.
type Make<'a> = &'a dyn Fn(&Path);

fn fifo(path: &Path) {
    let _ = fs::remove_file(path);
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
}

fn link(path: &Path, to: &Path) {
    let _ = fs::remove_file(path);
    symlink(to, path).unwrap();
}

fn sparse(path: &Path) {
    File::create(path).unwrap().set_len(20 << 30).unwrap();
}

/// Runs it to its end, in 60 s at most.
fn ended(mut command: Command) -> Output {
    let mut child = Killed(command.spawn().unwrap());
    until("it ends", || child.0.try_wait().unwrap().is_some());
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    child.0.stdout.take().unwrap().read_to_end(&mut stdout).unwrap();
    child.0.stderr.take().unwrap().read_to_end(&mut stderr).unwrap();
    Output { status: child.0.wait().unwrap(), stdout, stderr }
}

fn ended_piped(mut command: Command) -> Output {
    command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
    ended(command)
}

/// The output of every command; all must fail, except `succeed`.
fn refused(place: &Place, succeed: &[&str]) -> String {
    let (file, url) = (place.file.to_str().unwrap(), &*place.url());
    let new = |name: &str| place.dir.path().join(name);
    let (restored, promoted, followed) = (new("r.db"), new("p.db"), new("f.db"));
    let name = |path: &Path| path.to_str().unwrap().to_owned();
    let mut all = String::new();
    for args in [
        &["restore", url, &name(&restored)][..],
        &["verify", "--wait", "0s", file, url],
        &["replicate", "--once", file, url],
        &["promote", &name(&promoted), url],
        &["follow", "--once", url, &name(&followed)],
        &["rejoin", file, url],
    ] {
        let output = ended(place.program(args));
        // The store lacks a commit, which `verify` reports by this status.
        let succeeds = output.status.success() || args[0] == "verify" && output.status.code() == Some(2);
        assert_eq!(succeeds, succeed.contains(&args[0]), "{args:?}: {}", said(&output));
        all += &said(&output);
    }
    all
}

fn shipped() -> Place {
    let place = Place::new(10);
    place.once(&[]);
    place.sql("UPDATE t SET x = 1 WHERE n = 1");
    place
}

#[test]
fn an_irregular_file_of_the_store_is_refused_and_not_waited_for() {
    let endless = |path: &Path| link(path, Path::new("/dev/zero"));
    let nowhere = |path: &Path| link(path, Path::new("made-by-a-link"));
    let directory = |path: &Path| {
        let _ = fs::remove_file(path);
        fs::create_dir(path).unwrap();
    };
    let (irregular, linked, large) = ("not a regular file", "a symbolic link", "it has more than 65536 bytes");
    let cases: [(&str, Make<'_>, &str); 9] = [
        ("owner.json", &fifo, irregular),
        ("owner.json", &endless, linked),
        ("owner.json", &sparse, large),
        ("owner.json", &directory, irregular),
        ("owner.lock", &fifo, irregular),
        ("owner.lock", &nowhere, linked),
        (BATCH, &fifo, irregular),
        (BATCH, &endless, linked),
        (BATCH, &directory, irregular),
    ];
    for (name, make, words) in cases {
        let place = shipped();
        make(&place.store().join(name));
        let succeed: &[&str] = match name {
            "owner.json" => &["restore", "verify", "follow"],
            "owner.lock" => &["restore", "verify", "follow"],
            // Files that make no state: a new snapshot follows, from which all commands go on.
            _ => &["replicate", "promote", "follow", "rejoin"],
        };
        let text = refused(&place, succeed);
        assert!(text.contains(words), "{name}: {text}");
        assert!(!place.store().join("made-by-a-link").exists());
    }
}

#[test]
fn the_lock_of_a_node_is_a_regular_file() {
    let place = shipped();
    let locks = || fs::read_dir(place.store()).unwrap().map(|file| file.unwrap().path());
    let lock = locks().find(|path| path.to_str().unwrap().contains("/onewrite-")).unwrap();
    fifo(&lock);
    let output = ended(place.replicate(&["--once"]));
    assert!(!output.status.success() && said(&output).contains("it is not a regular file"), "{}", said(&output));
}

/// A batch of one page that claims four billion.
#[test]
fn a_page_count_costs_no_memory() {
    use onewrite_replicate::ltx::{Header, Writer};
    let place = Place::new(10);
    place.once(&[]);
    let header = Header { page_bytes: 4096, pages: u32::MAX - 1, min: 2, max: 2, time_ms: 1, node: 1 };
    let mut writer = Writer::begin(Vec::new(), header).unwrap();
    writer.page(1, &fs::read(&place.file).unwrap()[..4096]).unwrap();
    fs::write(place.store().join(BATCH), writer.finish().unwrap().0).unwrap();
    for args in [
        ["verify", place.file.to_str().unwrap(), &place.url()],
        ["promote", place.file.to_str().unwrap(), &place.url()],
    ] {
        let mut command = Command::new("sh");
        command.args(["-c", "ulimit -v 4000000; exec \"$@\"", "sh"]).arg(place.program(&[]).get_program()).args(args);
        let output = ended_piped(command);
        assert_eq!(output.status.code(), Some(1), "{}", said(&output));
        assert!(said(&output).contains("of the pages that it tells of"), "{}", said(&output));
    }
}

/// Files beside a database and a replica.
#[test]
fn files_beside_a_database_are_not_waited_for() {
    let place = shipped();
    for (suffix, command) in [("-node", "replicate"), ("-follow", "replicate")] {
        let path = format!("{}{suffix}", place.file.display());
        let kept = fs::read(&path).ok();
        fifo(Path::new(&path));
        let output = ended(place.program(&[command, "--once", place.file.to_str().unwrap(), &place.url()]));
        let words = format!("{path}: it is not a regular file");
        assert!(!output.status.success() && said(&output).contains(&words), "{}", said(&output));
        fs::remove_file(&path).unwrap();
        if let Some(kept) = kept {
            fs::write(&path, kept).unwrap();
        }
    }
}

/// The mark of a promotion is neither waited for nor made, nor emptied, where a link leads.
#[test]
fn the_mark_of_a_promotion_is_a_regular_file() {
    let place = shipped();
    let (promoted, secret) = (place.dir.path().join("p.db"), place.dir.path().join("secret"));
    let mark = place.dir.path().join("p.db-promoting");
    fs::write(&secret, "TOPSECRET").unwrap();
    let makes: [(&str, Make); 2] =
        [("it is not a regular file", &fifo), ("it is a symbolic link", &|path| link(path, &secret))];
    for (words, make) in makes {
        make(&mark);
        let output = ended(place.program(&["promote", promoted.to_str().unwrap(), &place.url()]));
        assert!(!output.status.success() && said(&output).contains(words), "{}", said(&output));
        assert!(!promoted.exists());
    }
    assert_eq!(fs::read(&secret).unwrap(), b"TOPSECRET");
    fs::remove_file(&mark).unwrap();
    let output = ended(place.program(&["promote", promoted.to_str().unwrap(), &place.url()]));
    assert!(output.status.success() && promoted.exists() && !mark.exists(), "{}", said(&output));
}

#[test]
fn a_link_to_a_file_of_the_user_is_not_followed() {
    let place = shipped();
    let secret = place.dir.path().join("secret");
    fs::write(&secret, "TOPSECRET").unwrap();
    for name in [BATCH, "owner.json", "owner.lock"] {
        link(&place.store().join(name), &secret);
        let output = ended(place.program(&["promote", place.dir.path().join("p.db").to_str().unwrap(), &place.url()]));
        assert!(!output.status.success() && said(&output).contains("it is a symbolic link"), "{}", said(&output));
        assert!(!said(&output).contains("TOPSECRET"), "{}", said(&output));
        assert_eq!(fs::read(&secret).unwrap(), b"TOPSECRET");
        fs::remove_file(place.store().join(name)).unwrap();
    }
}

/// A claimed length costs no memory.
#[test]
fn a_batch_that_is_all_hole_is_damaged() {
    let place = shipped();
    // A file of /dev/shm may have 2^63 bytes.
    let shared = Path::new("/dev/shm");
    let dir = if shared.is_dir() { tempfile::tempdir_in(shared) } else { tempfile::tempdir() }.unwrap();
    let moved = dir.path().join("store");
    assert!(Command::new("cp").arg("-a").arg(place.store()).arg(&moved).status().unwrap().success());
    let batch = moved.join(BATCH);
    // As long as the file system allows.
    let long = File::create(&batch).unwrap();
    assert!((33..63).rev().any(|bits| long.set_len(1 << bits).is_ok()));
    let mut command = place.program(&[]);
    let program = command.get_program().to_owned();
    command = Command::new("sh");
    command
        .args(["-c", "ulimit -v 4000000; exec \"$@\"", "sh"])
        .arg(program)
        .arg("restore")
        .arg(format!("file://{}", moved.display()));
    command
        .arg(place.dir.path().join("r.db"))
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped());
    let output = ended(command);
    assert!(!output.status.success() && said(&output).contains("not an LTX file"), "{}", said(&output));
}
