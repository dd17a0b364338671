//! The keys of a bucket: profiles, roles of containers and machines, and their renewal, with the
//! real program.

use crate::s3::{Killed, Place, said, until};
use std::collections::BTreeSet;
use std::fs;
use std::io::Read;
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};
use tiny_http::{Method, Request, Response, Server};

/// Answers as the services that know the role of a container, and that of a machine. Each keys are
/// new, and valid for so long.
fn roles(valid: Duration) -> String {
    let server = Arc::new(Server::http("127.0.0.1:0").unwrap());
    let at = format!("http://{}", server.server_addr());
    let given = AtomicU64::new(0);
    std::thread::spawn(move || {
        for request in server.incoming_requests() {
            let answer = role(&request, valid, &given);
            let _ = request.respond(answer);
        }
    });
    at
}

fn role(request: &Request, valid: Duration, given: &AtomicU64) -> Response<std::io::Cursor<Vec<u8>>> {
    let header = |name: &str| {
        let found = request.headers().iter().find(|header| header.field.as_str().as_str().eq_ignore_ascii_case(name));
        found.map(|header| header.value.to_string()).unwrap_or_default()
    };
    let keys = |prefix: &str| {
        let n = given.fetch_add(1, Ordering::SeqCst);
        let until = humantime::format_rfc3339_seconds(SystemTime::now() + valid);
        Response::from_string(format!(
            "{{\"Code\": \"Success\", \"Type\": \"AWS-HMAC\", \"LastUpdated\": \"{until}\", \"AccessKeyId\": \"{prefix}{n}\", \
             \"SecretAccessKey\": \"secret{n}secret\", \"Token\": \"token{n}token\", \"Expiration\": \"{until}\"}}"
        ))
    };
    let of_machine = "/latest/meta-data/iam/security-credentials/";
    match (request.method(), request.url()) {
        (Method::Put, "/latest/api/token") => Response::from_string("session"),
        (Method::Get, url) if url == of_machine => Response::from_string("role"),
        (Method::Get, url) if url.starts_with(of_machine) && header("x-aws-ec2-metadata-token") == "session" => {
            keys("MACHINE")
        }
        (Method::Get, "/container") if header("authorization") == "Bearer of this container" => keys("CONTAINER"),
        _ => Response::from_string("no").with_status_code(403),
    }
}

impl Place {
    /// Without keys in the environment.
    fn keyless(&self, args: &[&str]) -> Command {
        let mut command = self.command(args);
        command.env_remove("AWS_ACCESS_KEY_ID").env_remove("AWS_SECRET_ACCESS_KEY");
        command
    }

    fn ships_with(&self, more: &[(&str, &str)]) -> Output {
        let mut command = self.keyless(&["replicate", "--once", self.file.to_str().unwrap(), &self.url("a/b")]);
        command.envs(more.iter().copied()).output().unwrap()
    }

    fn keys_seen(&self) -> BTreeSet<String> {
        std::mem::take(&mut self.bucket.lock().unwrap().access_keys).into_iter().collect()
    }

    fn has_aws_file(&self, name: &str, text: &str) {
        fs::create_dir_all(self.dir.path().join(".aws")).unwrap();
        fs::write(self.dir.path().join(".aws").join(name), text).unwrap();
    }
}

fn profile(key: &str) -> String {
    format!("aws_access_key_id = {key}\naws_secret_access_key = secretsecret\n")
}

#[cfg_attr(windows, ignore = "names paths and places as Linux has them")]
#[test]
fn keys_come_from_the_profile() {
    let place = Place::new();
    place.has_aws_file("credentials", &format!("[default]\n{}[second]\n{}", profile("FIRST"), profile("SECOND")));
    place.has_aws_file(
        "config",
        &format!(
            "[profile third]\nregion = eu-north-1\nendpoint_url = {}\n{}[profile fourth]\ncredential_process = cat {}\n",
            place.url("").split_once('=').unwrap().1,
            profile("THIRD"),
            place.dir.path().join("keys.json").display(),
        ),
    );
    let of_process = "{\"Version\": 1, \"AccessKeyId\": \"FOURTH\", \"SecretAccessKey\": \"secretsecret\"}";
    fs::write(place.dir.path().join("keys.json"), of_process).unwrap();
    for (name, key) in [("default", "FIRST"), ("second", "SECOND"), ("third", "THIRD"), ("fourth", "FOURTH")] {
        let shipped = place.ships_with(&[("AWS_PROFILE", name)]);
        assert!(shipped.status.success(), "{}", said(&shipped));
        assert_eq!(place.keys_seen(), BTreeSet::from([key.to_owned()]));
    }
    assert!(place.ships_with(&[]).status.success());
    assert_eq!(place.keys_seen(), BTreeSet::from(["FIRST".to_owned()]));
    // The environment comes first.
    assert!(place.run(&["verify", place.file.to_str().unwrap(), &place.url("a/b")]).status.success());
    assert_eq!(place.keys_seen(), BTreeSet::from(["key".to_owned()]));
    // Of a profile: its endpoint, and its region.
    let mut command = place.keyless(&["verify", place.file.to_str().unwrap(), "s3://bucket/a/b"]);
    let verified = command.env("AWS_PROFILE", "third").output().unwrap();
    assert!(verified.status.success(), "{}", said(&verified));
    let other = place.ships_with(&[("AWS_PROFILE", "fifth")]);
    assert!(!other.status.success() && said(&other).contains("AWS_PROFILE names fifth"), "{}", said(&other));
    place.has_aws_file("credentials", "[default]\nno setting\n[");
    let broken = place.ships_with(&[]);
    assert!(!broken.status.success() && said(&broken).contains("parse"), "{}", said(&broken));
}

#[test]
fn keys_come_from_a_role() {
    let place = Place::new();
    let at = roles(Duration::from_secs(3600));
    let container = format!("{at}/container");
    let of_container = [
        ("AWS_CONTAINER_CREDENTIALS_FULL_URI", &*container),
        ("AWS_CONTAINER_AUTHORIZATION_TOKEN", "Bearer of this container"),
    ];
    let shipped = place.ships_with(&of_container);
    assert!(shipped.status.success(), "{}", said(&shipped));
    assert_eq!(place.keys_seen(), BTreeSet::from(["CONTAINER0".to_owned()]));
    let of_machine = [("AWS_EC2_METADATA_SERVICE_ENDPOINT", &*at), ("AWS_EC2_METADATA_DISABLED", "false")];
    let shipped = place.ships_with(&of_machine);
    assert!(shipped.status.success(), "{}", said(&shipped));
    assert_eq!(place.keys_seen(), BTreeSet::from(["MACHINE1".to_owned()]));
    let refused = place.ships_with(&[of_container[0]]);
    let text = said(&refused);
    assert!(!refused.status.success() && text.contains("the container's role: ECS task not authorized"), "{text}");
}

/// Keys that expire are replaced while the process runs; so are those of a file that the server
/// refuses, once the file has others.
#[cfg_attr(windows, ignore = "names paths and places as Linux has them")]
#[test]
fn keys_are_renewed_while_the_process_runs() {
    let place = Place::new();
    let container = format!("{}/container", roles(Duration::from_secs(2)));
    let args = ["replicate", "--interval", "20ms", "-v", place.file.to_str().unwrap(), &place.url("a/b")];
    let mut command = place.keyless(&args);
    command.env("AWS_CONTAINER_CREDENTIALS_FULL_URI", container);
    command.env("AWS_CONTAINER_AUTHORIZATION_TOKEN", "Bearer of this container");
    let mut shipper = Killed(command.spawn().unwrap());
    let mut n = 1;
    until("three keys", || {
        n += 1;
        place.sql(&format!("INSERT INTO t VALUES ({n}, 'x')"));
        place.bucket.lock().unwrap().access_keys.iter().collect::<BTreeSet<_>>().len() >= 3
    });
    shipper.0.kill().unwrap();
    let mut text = String::new();
    shipper.0.stderr.take().unwrap().read_to_string(&mut text).unwrap();
    assert!(!text.contains("not shipped"), "{text}");
    drop(shipper);
    let (place, secret) = (Place::new(), "credentials");
    place.has_aws_file(secret, &format!("[default]\n{}", profile("OLD")));
    let args = ["replicate", "--interval", "50ms", place.file.to_str().unwrap(), &place.url("a/b")];
    let _shipper = Killed(place.keyless(&args).spawn().unwrap());
    until("the first batch", || place.keys().iter().any(|key| key.contains("/0000/")));
    place.bucket.lock().unwrap().accepts = Some("NEW".to_owned());
    place.has_aws_file(secret, &format!("[default]\n{}", profile("NEW")));
    place.sql("INSERT INTO t VALUES (2, 'x')");
    until("the next batch", || place.keys().iter().filter(|key| key.contains("/0000/")).count() > 1);
}
