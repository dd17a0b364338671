//! Commands of another process that POSIX alone has.

use std::fs;
use std::io::{Read, Write};
use std::path::Path;

use super::open;

pub fn command(word: &str, rest: &str) -> rusqlite::Result<String> {
    match word {
        "fork" => fork(rest),
        "become" => become_user(rest.parse().unwrap()),
        "lend" => lend_rights(rest.parse().unwrap()),
        "limit" => limit(rest.parse().unwrap()),
        "peak" => Ok(peak_kib().to_string()),
        other => panic!("no such command: {other}"),
    }
}

/// The process of a superuser goes on as another user, any other stays as it is.
#[allow(unsafe_code)]
fn become_user(id: u32) -> rusqlite::Result<String> {
    // SAFETY: they take numbers, and change nothing but the rights of this process.
    let became = unsafe {
        libc::geteuid() != 0
            || (libc::setgroups(0, std::ptr::null()) == 0 && libc::setgid(id) == 0 && libc::setuid(id) == 0)
    };
    assert!(became, "{}", std::io::Error::last_os_error());
    Ok(String::new())
}

/// The process of a superuser keeps the superuser's rights, and belongs to another user: as a
/// setuid program does.
#[allow(unsafe_code)]
fn lend_rights(id: u32) -> rusqlite::Result<String> {
    // SAFETY: it takes numbers, and changes nothing but the users of this process.
    let lent = unsafe { libc::seteuid(0) == 0 && libc::setreuid(id, 0) == 0 };
    assert!(lent, "{}", std::io::Error::last_os_error());
    Ok(String::new())
}

/// Forks a child: without a path, one that lives on for a while. Else it opens the database at
/// `path` anew, writes a row, and tells how many files it has open whose paths begin so.
#[allow(unsafe_code)]
fn fork(path: &str) -> rusqlite::Result<String> {
    let (mut runs, mut tell) = std::io::pipe().unwrap();
    // SAFETY: the child acts like the child of a program with one thread; the harness's others hold
    // no lock by now.
    let child = unsafe { libc::fork() };
    if child == 0 {
        tell.write_all(b"!").unwrap();
        if path.is_empty() {
            std::thread::sleep(std::time::Duration::from_secs(20));
        }
        let wrote = open(Path::new(path), "busy_ms=0").and_then(|db| {
            db.execute_batch("INSERT INTO t DEFAULT VALUES")?;
            Ok(fs::read_dir("/proc/self/fd")
                .unwrap()
                .filter_map(|fd| fs::read_link(fd.unwrap().path()).ok())
                .fold(0, |files, to| files + i32::from(to.to_string_lossy().starts_with(path))))
        });
        // SAFETY: ends this process at once.
        unsafe { libc::_exit(wrote.unwrap_or(100)) };
    }
    // Until its own handlers of a fork have run, the child holds the locks of its parent's files.
    drop(tell);
    runs.read_exact(&mut [0]).unwrap();
    if path.is_empty() {
        return Ok(child.to_string());
    }
    let mut status = 0;
    // SAFETY: the status is written to a number of ours.
    unsafe { libc::waitpid(child, &raw mut status, 0) };
    Ok(libc::WEXITSTATUS(status).to_string())
}

/// Lets this process make no file larger than `bytes`; to try it would end it.
#[allow(unsafe_code)]
fn limit(bytes: u64) -> rusqlite::Result<String> {
    let limit = libc::rlimit { rlim_cur: bytes as libc::rlim_t, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: takes numbers, and reads a structure of ours.
    unsafe {
        libc::signal(libc::SIGXFSZ, libc::SIG_DFL);
        assert_eq!(libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit), 0);
    }
    Ok(String::new())
}

/// Peak resident memory of this process in KiB.
fn peak_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|l| l.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}
