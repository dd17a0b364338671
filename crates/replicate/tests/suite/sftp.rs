//! Ships to an OpenSSH server of this user, where one is installed.

use crate::place::{Killed, Place, assert_interruptible, rows, said, until};
use std::fs;
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

struct Ssh {
    place: Place,
    daemon: Option<Killed>,
    sshd: PathBuf,
    port: u16,
}

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

impl Ssh {
    fn new() -> Option<Ssh> {
        let places = ["/usr/sbin/sshd", "/usr/bin/sshd"].map(PathBuf::from);
        let Some(sshd) = places.into_iter().find(|path| path.is_file()) else {
            eprintln!("sshd is not installed: skipped");
            return None;
        };
        let place = Place::new(10);
        let dir = place.dir.path();
        for key in ["host", "id"] {
            run(Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(dir.join(key)));
        }
        fs::copy(dir.join("id.pub"), dir.join("authorized")).unwrap();
        fs::create_dir(dir.join("remote")).unwrap();
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let dir = dir.display();
        let config = format!(
            "Port {port}\nListenAddress 127.0.0.1\nHostKey {dir}/host\nAuthorizedKeysFile {dir}/authorized\nStrictModes no\n\
             UsePAM no\nPermitRootLogin yes\nPasswordAuthentication no\nPidFile none\nSubsystem sftp internal-sftp\n"
        );
        fs::write(place.dir.path().join("sshd.conf"), config).unwrap();
        // Debian's sshd wants it, where root runs it.
        let _not_root = fs::create_dir_all("/run/sshd");
        let mut ssh = Ssh { place, daemon: None, sshd, port };
        ssh.start();
        Some(ssh)
    }

    fn start(&mut self) {
        let mut command = Command::new(&self.sshd);
        command.args(["-D", "-e", "-f"]).arg(self.place.dir.path().join("sshd.conf"));
        self.daemon = Some(Killed(command.stderr(Stdio::null()).spawn().unwrap()));
        let port = self.port;
        until("sshd listens", || TcpStream::connect(("127.0.0.1", port)).is_ok());
    }

    /// Sends a signal to the daemon and the processes of its connections.
    fn signal(&self, name: &str) {
        let mut all = vec![self.daemon.as_ref().unwrap().0.id().to_string()];
        // A connection has a process, and that one another.
        for _ in 0..2 {
            let output = Command::new("pgrep").args(["-P", &all.join(",")]).output().unwrap();
            let children = String::from_utf8(output.stdout).unwrap();
            let new: Vec<_> = children.split_whitespace().filter(|id| !all.iter().any(|known| known == id)).collect();
            all.extend(new.into_iter().map(str::to_owned).collect::<Vec<_>>());
        }
        // One may have ended.
        Command::new("kill").arg(format!("-{name}")).args(&all).stderr(Stdio::null()).status().unwrap();
    }

    fn url(&self, name: &str) -> String {
        let user = run(Command::new("id").arg("-un"));
        let dir = self.place.dir.path();
        let host = fs::read_to_string(dir.join("host.pub")).unwrap();
        let host: String = host.split(' ').take(2).collect::<Vec<_>>().join(" ");
        let mut url = url::Url::parse(&format!("sftp://{user}@127.0.0.1:{}", self.port)).unwrap();
        url.set_path(&format!("{}/remote/{name}", dir.display()));
        url.query_pairs_mut().append_pair("key-path", dir.join("id").to_str().unwrap()).append_pair("host-key", &host);
        url.to_string()
    }

    fn ships(&self, args: &[&str]) -> Output {
        let output = self.place.program(args).env("HOME", self.place.dir.path()).output().unwrap();
        assert!(output.status.success(), "{args:?}: {}", said(&output));
        output
    }

    fn restored(&self, url: &str) -> String {
        let dest = self.place.dir.path().join("restored.db");
        let _ = fs::remove_file(&dest);
        self.ships(&["restore", url, dest.to_str().unwrap()]);
        rows(&dest)
    }
}

#[test]
fn a_store_on_an_ssh_server_has_one_owner_and_every_state() {
    let Some(ssh) = Ssh::new() else { return };
    let (url, file) = (ssh.url("app"), ssh.place.file.to_str().unwrap());
    let hasty = ["replicate", "--once", "--levels", "1ms", "--keep-batches", "0s", file, &url];
    for n in 11..16 {
        ssh.ships(&hasty);
        ssh.place.sql(&format!("INSERT INTO t VALUES ({n}, randomblob(3000))"));
        std::thread::sleep(Duration::from_millis(1100));
    }
    ssh.ships(&hasty);
    assert_eq!(ssh.restored(&url), rows(&ssh.place.file));
    ssh.ships(&["verify", file, &url]);
    let remote = ssh.place.dir.path().join("remote/app");
    let batches = fs::read_dir(remote.join("ltx/0")).unwrap().count();
    assert!(batches <= 2, "merged files were removed: {batches}");
    let next = ssh.place.dir.path().join("next.db");
    ssh.ships(&["promote", next.to_str().unwrap(), &url]);
    let fenced = ssh.place.program(&["replicate", "--once", file, &url]).output().unwrap();
    assert_eq!(fenced.status.code(), Some(3), "{}", said(&fenced));
    // Nothing is left of what is written under another name.
    let left = run(Command::new("find").arg(&remote).args(["-name", ".onewrite*"]));
    assert_eq!(left, "");
}

#[test]
fn a_server_or_a_key_that_is_not_known_is_refused() {
    let Some(ssh) = Ssh::new() else { return };
    let file = ssh.place.file.to_str().unwrap();
    let refused = |url: &str, words: &[&str]| {
        let mut command = ssh.place.program(&["replicate", "--once", file, url]);
        let output = command.env("HOME", ssh.place.dir.path()).output().unwrap();
        let text = said(&output);
        assert!(!output.status.success() && words.iter().all(|word| text.contains(word)), "{url}: {text}");
    };
    let url = ssh.url("app");
    let (base, _) = url.split_once("&host-key").unwrap();
    refused(base, &["is not known", "ssh-keyscan", "host-key="]);
    run(Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(ssh.place.dir.path().join("id2")));
    refused(&url.replace("%2Fid&", "%2Fid2&"), &["does not admit", "id2"]);
    refused(&url.replace("%2Fid&", "%2Fid3&"), &["cannot use the key"]);
    refused(&url.replace("key-path", "keypath"), &["key-path, host-key"]);
    refused(&url.replace("/remote/app", "/nowhere/app"), &["cannot make the directory"]);
    refused("sftp://127.0.0.1/a", &["names no user"]);
    // With a file of known hosts it needs no parameter.
    let ssh_dir = ssh.place.dir.path().join(".ssh");
    fs::create_dir(&ssh_dir).unwrap();
    let host = fs::read_to_string(ssh.place.dir.path().join("host.pub")).unwrap();
    fs::write(ssh_dir.join("known_hosts"), format!("[127.0.0.1]:{} {host}", ssh.port)).unwrap();
    ssh.ships(&["replicate", "--once", file, base]);
    fs::write(ssh_dir.join("known_hosts"), "").unwrap();
    refused(base, &["is not known"]);
}

#[test]
fn keys_come_from_an_agent_or_have_a_passphrase() {
    let Some(ssh) = Ssh::new() else { return };
    let dir = ssh.place.dir.path();
    let file = ssh.place.file.to_str().unwrap();
    let url = ssh.url("app");
    let key_path = url.split(['?', '&']).find(|part| part.starts_with("key-path=")).unwrap();
    let without_key = url.replace(&format!("{key_path}&"), "");
    let ship = |url: &str, envs: &[(&str, &str)]| {
        let mut command = ssh.place.program(&["replicate", "--once", file, url]);
        command.env("HOME", dir).env_remove("SSH_AUTH_SOCK").envs(envs.iter().copied()).output().unwrap()
    };
    let told = said(&ship(&without_key, &[]));
    assert!(told.contains("no key is there"), "{told}");
    let socket = dir.join("agent");
    let socket = socket.to_str().unwrap();
    let _agent = Killed(Command::new("ssh-agent").args(["-D", "-a", socket]).stdout(Stdio::null()).spawn().unwrap());
    until("the agent listens", || std::path::Path::new(socket).exists());
    // It tries all keys of the agent, of which the second is known.
    run(Command::new("ssh-keygen").args(["-q", "-t", "ecdsa", "-N", "", "-f"]).arg(dir.join("other")));
    for key in ["other", "id"] {
        run(Command::new("ssh-add").arg("-q").arg(dir.join(key)).env("SSH_AUTH_SOCK", socket));
    }
    let by_agent = ship(&without_key, &[("SSH_AUTH_SOCK", socket)]);
    assert!(by_agent.status.success(), "{}", said(&by_agent));
    run(Command::new("ssh-keygen").args(["-q", "-p", "-P", "", "-N", "passphrase9", "-f"]).arg(dir.join("id")));
    let told = said(&ship(&url, &[]));
    assert!(told.contains("cannot use the key") && told.contains("SFTP_KEY_PASSPHRASE"), "{told}");
    let told = said(&ship(&url, &[("SFTP_KEY_PASSPHRASE", "passphrase8")]));
    assert!(told.contains("cannot use the key") && !told.contains("passphrase8"), "{told}");
    let by_passphrase = ship(&url, &[("SFTP_KEY_PASSPHRASE", "passphrase9")]);
    assert!(by_passphrase.status.success(), "{}", said(&by_passphrase));
}

#[test]
fn where_commits_wait_a_server_that_is_killed_or_silent_loses_none() {
    let Some(mut ssh) = Ssh::new() else { return };
    let url = ssh.url("app");
    let file = ssh.place.file.to_str().unwrap().to_owned();
    let log = fs::File::create(ssh.place.dir.path().join("log")).unwrap();
    let mut command = ssh.place.program(&["replicate", "--sync", "--ship-timeout", "20s", &file, &url]);
    let mut shipper = Killed(command.stderr(log).spawn().unwrap());
    let told = |words: &str, dir: &std::path::Path| fs::read_to_string(dir.join("log")).unwrap().contains(words);
    until("commits wait", || {
        told("commits will wait", ssh.place.dir.path()) || told("commits wait", ssh.place.dir.path())
    });
    let db = ssh.place.open();
    for round in 0..3 {
        for n in 0..20 {
            let key = 100 + round * 100 + n;
            db.execute("INSERT INTO t VALUES (?1, 'x')", [key]).unwrap();
            if n == 10 && round == 0 {
                ssh.signal("KILL");
                ssh.daemon = None;
                ssh.start();
            }
            if n == 10 && round == 1 {
                ssh.signal("STOP");
                let daemon = ssh.daemon.as_ref().unwrap().0.id();
                std::thread::spawn(move || {
                    std::thread::sleep(Duration::from_millis(1500));
                    let children = Command::new("pkill").args(["-CONT", "-P", &daemon.to_string()]).status();
                    let this = Command::new("kill").args(["-CONT", &daemon.to_string()]).status();
                    assert!(children.is_ok() && this.is_ok());
                });
            }
        }
    }
    // The machine is lost now: the store has every acknowledged commit.
    shipper.0.kill().unwrap();
    let count: i64 = db.query_row("SELECT count(*) FROM t WHERE x = 'x'", [], |row| row.get(0)).unwrap();
    assert_eq!(count, 60);
    // Ten were there before.
    let restored = ssh.restored(&url);
    assert!(restored.starts_with("70 "), "{restored}");
    ssh.signal("STOP");
    assert_interruptible(ssh.place.program(&["restore", &url]).arg(ssh.place.dir.path().join("never.db")));
    ssh.signal("CONT");
}
