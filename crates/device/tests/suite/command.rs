//! The command as a user runs it: campaigns pass and can fail, traces are summed up, and even a
//! killed process leaves nothing behind. Skipped, with a message, where no device can be started.

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use onewrite_device::FileSystem;

fn missing() -> bool {
    let why = onewrite_device::unavailable().or_else(|| FileSystem::Ext4Ordered.unavailable());
    if let Some(why) = &why {
        eprintln!("skipped: {why}");
    }
    why.is_some()
}

fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_onewrite-device"));
    command.args(arguments);
    command
}

fn output(arguments: &[&str]) -> (Output, String) {
    let output = command(arguments).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    eprintln!("{arguments:?}: {}\n{text}{}", output.status, String::from_utf8_lossy(&output.stderr));
    (output, text)
}

#[test]
fn a_campaign_passes() {
    if missing() {
        return;
    }
    let (output, text) = output(&["cut", "--cuts", "12", "--transactions", "30", "--seed", "3"]);
    assert!(output.status.success());
    assert!(text.lines().last().unwrap().ends_with(", violations: 0"));
}

#[test]
fn a_campaign_finds_the_losses_of_a_weaker_promise() {
    if missing() {
        return;
    }
    let (output, text) = output(&["cut", "--engine", "canary", "--cuts", "60", "--transactions", "60", "--seed", "3"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text.contains("violation (database)") && text.contains("were acknowledged") && text.contains("seed "));
    assert!(!text.lines().last().unwrap().ends_with(", violations: 0"));
}

#[test]
fn a_run_tells_writes_by_place() {
    if missing() {
        return;
    }
    let script = "mkdir d && head -c 100000 /dev/zero > d/data && sync d/data && exit 7";
    let trace = tempfile::NamedTempFile::new().unwrap();
    let file = trace.path().to_str().unwrap();
    let (output, text) = output(&["run", "--fs", "ext4", "--json", "--trace", file, "--", "sh", "-c", script]);
    assert_eq!(output.status.code(), Some(7));
    let report: serde_json::Value = serde_json::from_str(&text).unwrap();
    let regions = report["running"]["regions"].as_array().unwrap();
    let data = regions.iter().find(|r| r["region"] == "d/data").unwrap();
    assert_eq!(data["bytes"], 102_400, "25 blocks of 4 KiB");
    let journal = regions.iter().find(|r| r["region"] == "file system's journal").unwrap();
    assert!(journal["bytes"].as_u64().unwrap() > 0, "the new file is in the journal");
    let metadata = |part: &str| {
        let regions = report[part]["regions"].as_array().unwrap();
        let found = regions.iter().find(|r| r["region"] == "file system's metadata").unwrap();
        found["bytes"].as_u64().unwrap()
    };
    assert_eq!(metadata("running"), 0, "the journal comes first");
    assert!(metadata("unmounting") > 0, "inodes and bitmaps go to their places");
    assert!(report["running"]["flushes"].as_u64().unwrap() > 0);
    let csv = std::fs::read_to_string(trace.path()).unwrap();
    let requests = |kind: &str| csv.lines().filter(|line| line.split(',').nth(2) == Some(kind)).count() as u64;
    for (kind, key) in [("write", "writes"), ("flush", "flushes")] {
        // The file also has the requests of mkfs and of the mount.
        let summed = ["running", "unmounting"].map(|part| report[part][key].as_u64().unwrap()).iter().sum::<u64>();
        assert!(summed > 0 && requests(kind) > summed, "{kind}: {} of {summed}", requests(kind));
    }
}

#[test]
fn a_killed_process_leaves_no_loop_device() {
    if missing() {
        return;
    }
    let mut child = command(&["run", "--fs", "ext4", "--", "sh", "-c", "echo $$; pwd; exec sleep 1000"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(child.stdout.take().unwrap()));
    let sleeper: i32 = lines.next().unwrap().unwrap().parse().unwrap();
    let mountpoint = lines.next().unwrap().unwrap();
    let directory = Path::new(&mountpoint).parent().unwrap().to_owned();
    let backing = || {
        let loops = std::fs::read_dir("/sys/block").unwrap().flatten();
        let files = loops.filter_map(|l| std::fs::read_to_string(l.path().join("loop/backing_file")).ok());
        files.filter(|file| file.contains(directory.to_str().unwrap())).count()
    };
    assert_eq!(backing(), 1);
    child.kill().unwrap();
    child.wait().unwrap();
    // The mounts end with the command, which still runs.
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(sleeper), nix::sys::signal::Signal::SIGKILL).unwrap();
    let started = Instant::now();
    while backing() > 0 && started.elapsed() < Duration::from_secs(20) {
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(backing(), 0);
    let _ = std::fs::remove_dir_all(directory);
}
