//! The keys of a bucket, from where the tools of AWS take them: the environment, a profile, a web
//! identity, the role of a container or of the machine. Keys that expire are renewed.

use super::StoreKeys;
use super::http::{again, is_for_now};
use crate::host::HOME;
use crate::local::locked;
use crate::report::{COUNTERS, Level, say};
use crate::secrets::hide;
use anyhow::{Error, Result, anyhow, bail, ensure};
use ini::{Ini, Properties};
use onewrite_core::environment;
use reqsign_aws_core::{
    AssumeRoleCredentialProvider, AssumeRoleWithWebIdentityCredentialProvider, Credential, ECSCredentialProvider,
    EnvCredentialProvider, IMDSv2CredentialProvider, ProcessCredentialProvider, ProfileCredentialProvider,
    SSOCredentialProvider, StaticCredentialProvider,
};
use reqsign_aws_v4::RequestSigner;
use reqsign_core::time::Timestamp;
use reqsign_core::{
    CommandExecute, CommandOutput, Env, FileRead, HttpSend, ProvideCredential, ProvideCredentialChain,
    ProvideCredentialDyn, Signer, SigningCredential,
};
use rusty_s3::Credentials;
use std::collections::HashMap;
use std::fs;
use std::path::PathBuf;
use std::pin::pin;
use std::process::Command;
use std::sync::{Arc, Mutex, Weak};
use std::task::{Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};
use ureq::Agent;
use ureq::http::{Request, Response};

/// Keys are renewed so long before they expire.
const EARLY: Duration = Duration::from_secs(300);
/// Pause between two looks for new keys while the old ones are valid.
const PAUSE: Duration = Duration::from_secs(10);
/// Limits of a request for keys: to a service of the machine, and to another one.
const PATIENCE_HERE: Duration = Duration::from_secs(2);
const PATIENCE: Duration = Duration::from_secs(15);
const ANSWER_BYTES_MAX: u64 = 1 << 20;

/// An environment variable that is set and not empty.
pub(super) fn variable(names: &[&str]) -> Option<String> {
    names.iter().find_map(|name| environment::variable(name)?.into_string().ok().filter(|value| !value.is_empty()))
}

/// What the library may use: this process has no runtime, so each of its futures is ready at once.
#[derive(Clone, Copy, Debug)]
struct AwsSurroundings;

impl Env for AwsSurroundings {
    fn var(&self, key: &str) -> Option<String> {
        variable(&[key])
    }

    #[allow(clippy::disallowed_methods, reason = "the names alone; `variable` reads the values")]
    fn vars(&self) -> HashMap<String, String> {
        let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
        names.filter_map(|name| variable(&[&name]).map(|value| (name, value))).collect()
    }

    fn home_dir(&self) -> Option<PathBuf> {
        variable(&[HOME]).map(PathBuf::from)
    }
}

fn failed(error: impl Into<Error>) -> reqsign_core::Error {
    let error = error.into();
    reqsign_core::Error::unexpected(format!("{error:#}"))
}

impl FileRead for AwsSurroundings {
    async fn file_read(&self, path: &str) -> reqsign_core::Result<Vec<u8>> {
        fs::read(path).map_err(failed)
    }
}

impl CommandExecute for AwsSurroundings {
    async fn command_execute<'a>(
        &'a self,
        program: &'a str,
        args: &'a [&'a str],
    ) -> reqsign_core::Result<CommandOutput> {
        let done = Command::new(program).args(args).output().map_err(failed)?;
        Ok(CommandOutput { status: done.status.code().unwrap_or(-1), stdout: done.stdout, stderr: done.stderr })
    }
}

impl HttpSend for AwsSurroundings {
    async fn http_send(&self, request: Request<bytes::Bytes>) -> reqsign_core::Result<Response<bytes::Bytes>> {
        let is_here =
            request.uri().host().is_some_and(|host| host.starts_with("169.254.") || host.starts_with("[fd00:ec2"));
        let config = Agent::config_builder().http_status_as_error(false).max_redirects(0);
        // No proxy has the services of this machine.
        let config = if is_here { config.proxy(None) } else { config };
        let patience = if is_here { PATIENCE_HERE } else { PATIENCE };
        let agent = config.timeout_global(Some(patience)).build().new_agent();
        let (parts, body) = request.into_parts();
        let (mut tries, begun) = (1, Instant::now());
        let answer = loop {
            let answer = agent.run(Request::from_parts(parts.clone(), &*body));
            let is_away = match &answer {
                Ok(answer) => is_for_now(answer.status()),
                // Most machines have no such service.
                Err(_) => !is_here,
            };
            if !is_away || begun.elapsed() >= patience || !again(&mut tries) {
                break answer.map_err(failed)?;
            }
        };
        let (parts, body) = answer.into_parts();
        let body = body.into_with_config().limit(ANSWER_BYTES_MAX).read_to_vec().map_err(failed)?;
        Ok(Response::from_parts(parts, body.into()))
    }
}

/// The result of a future that waits for nothing.
fn ready<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut std::task::Context::from_waker(Waker::noop())) {
            Poll::Ready(done) => return done,
            Poll::Pending => thread::yield_now(),
        }
    }
}

/// A section of the file `config`: that of a profile.
fn section(outside: &reqsign_core::Context, profile: Option<&str>) -> Option<Properties> {
    let path = outside.env_var("AWS_CONFIG_FILE").map(PathBuf::from);
    let path = path.or_else(|| Some(outside.home_dir()?.join(".aws/config")))?;
    let text = fs::read(path).ok()?;
    let config = Ini::load_from_str(&String::from_utf8_lossy(&text)).ok()?;
    let section = match profile {
        Some(profile) if profile != "default" => format!("profile {profile}"),
        _ => "default".to_owned(),
    };
    config.section(Some(section)).cloned()
}

fn setting(of: &Properties, name: &str) -> Option<String> {
    of.get(name).map(str::to_owned).filter(|value| !value.is_empty())
}

/// The profile's settings that are not keys, from the file `config`.
pub(super) fn of_profile(name: &str) -> Option<String> {
    let outside = reqsign_core::Context::new().with_env(AwsSurroundings);
    setting(&section(&outside, outside.env_var("AWS_PROFILE").as_deref())?, name)
}

/// A role that the profile takes with the keys of another one, or of its surroundings.
#[derive(Clone, Debug)]
struct ProfileRole {
    region: String,
}

impl ProvideCredential for ProfileRole {
    type Credential = Credential;

    async fn provide_credential(&self, outside: &reqsign_core::Context) -> reqsign_core::Result<Option<Credential>> {
        let profile = section(outside, outside.env_var("AWS_PROFILE").as_deref());
        let Some((role, of)) = profile.and_then(|of| Some((setting(&of, "role_arn")?, of))) else { return Ok(None) };
        // It belongs to the web identity.
        if setting(&of, "web_identity_token_file").is_some() {
            return Ok(None);
        }
        let (name, with) = (setting(&of, "source_profile"), setting(&of, "credential_source"));
        let chain = match (name, with.as_deref()) {
            (Some(name), _)
                if section(outside, Some(&name)).is_some_and(|other| {
                    other.contains_key("role_arn") && outside.env_var("AWS_PROFILE").as_deref() != Some(&name)
                }) =>
            {
                return Err(failed(anyhow!(
                    "source_profile = {name} has a role_arn, too: a chain of roles is not served"
                )));
            }
            (Some(name), _) => ProvideCredentialChain::new()
                .push(ProfileCredentialProvider::new().with_profile(&name))
                .push(SSOCredentialProvider::new().with_profile(&name))
                .push(ProcessCredentialProvider::new().with_profile(&name)),
            (None, Some("Environment")) => ProvideCredentialChain::new().push(EnvCredentialProvider::new()),
            (None, Some("Ec2InstanceMetadata")) => ProvideCredentialChain::new().push(IMDSv2CredentialProvider::new()),
            (None, Some("EcsContainer")) => ProvideCredentialChain::new().push(ECSCredentialProvider::new()),
            (None, with) => {
                return Err(failed(anyhow!(
                    "role_arn needs source_profile, or credential_source = Environment, Ec2InstanceMetadata or EcsContainer{}",
                    with.map_or(String::new(), |with| format!(", not {with}"))
                )));
            }
        };
        let signer = Signer::new(outside.clone(), chain, RequestSigner::new("sts", &self.region));
        let mut taken = AssumeRoleCredentialProvider::new(role, signer)
            .with_region(self.region.clone())
            .with_regional_sts_endpoint()
            .with_role_session_name(setting(&of, "role_session_name").unwrap_or_else(|| "onewrite".to_owned()));
        if let Some(id) = setting(&of, "external_id") {
            taken = taken.with_external_id(id);
        }
        if let Some(seconds) = setting(&of, "duration_seconds") {
            taken = taken
                .with_duration_seconds(seconds.parse().map_err(|_| failed(anyhow!("duration_seconds: {seconds}")))?);
        }
        taken.provide_credential(outside).await
    }
}

type KeySource = (&'static str, Box<dyn ProvideCredentialDyn<Credential = Credential>>);

fn source(name: &'static str, of: impl ProvideCredential<Credential = Credential> + 'static) -> KeySource {
    (name, Box::new(of))
}

/// Where keys come from, in the order of AWS's tools; a profile that is named is the only other one
/// beside the environment.
fn sources(outside: &reqsign_core::Context, region: &str) -> Vec<KeySource> {
    let web = AssumeRoleWithWebIdentityCredentialProvider::new().with_region(region.to_owned());
    let mut all = vec![
        source("the environment", EnvCredentialProvider::new()),
        source("the profile's role", ProfileRole { region: region.to_owned() }),
        source("the profile", ProfileCredentialProvider::new()),
        source("the profile's single sign-on", SSOCredentialProvider::new()),
        source("the profile's credential_process", ProcessCredentialProvider::new()),
    ];
    if outside.env_var("AWS_PROFILE").is_none() {
        all.push(source("the web identity", web.with_regional_sts_endpoint()));
        all.push(source("the container's role", ECSCredentialProvider::new()));
        all.push(source("the machine's role", IMDSv2CredentialProvider::new()));
    }
    all
}

/// The keys of a bucket.
pub(super) struct BucketKeys {
    outside: reqsign_core::Context,
    sources: Vec<KeySource>,
    /// For messages.
    url: String,
    now: Mutex<Current>,
    /// Held by the thread that renews them.
    renewing: Mutex<()>,
}

struct Current {
    credential: Credential,
    keys: Arc<Credentials>,
    /// When they were looked for last.
    looked: Instant,
}

impl Current {
    fn is_valid(&self, later: Duration) -> bool {
        self.credential.is_valid_at(Timestamp::now() + later)
    }
}

fn keys_of(credential: &Credential) -> Arc<Credentials> {
    hide(&credential.secret_access_key);
    let (key, secret) = (credential.access_key_id.clone(), credential.secret_access_key.clone());
    Arc::new(match credential.session_token.clone().filter(|token| !token.is_empty()) {
        Some(token) => {
            hide(&token);
            Credentials::new_with_token(key, secret, token)
        }
        None => Credentials::new(key, secret),
    })
}

impl BucketKeys {
    /// The `given` keys, or those that this process has found for the region, or else finds for the
    /// store at `url`.
    pub(super) fn of(url: &str, region: &str, given: Option<&StoreKeys>) -> Result<Arc<BucketKeys>> {
        static FOUND: Mutex<Vec<(String, Weak<BucketKeys>)>> = Mutex::new(Vec::new());
        if let Some(StoreKeys::Pair { id, secret }) = given {
            let sources = vec![source("the configuration", StaticCredentialProvider::new(id, secret))];
            return BucketKeys::from(url, sources, reqsign_core::Context::new().with_env(AwsSurroundings));
        }
        let mut found = locked(&FOUND);
        let known = found.iter().find(|(of, _)| of == region).and_then(|(_, keys)| keys.upgrade());
        if let Some(keys) = known {
            return Ok(keys);
        }
        let keys = BucketKeys::find(url, region)?;
        found.retain(|(of, _)| of != region);
        found.push((region.to_owned(), Arc::downgrade(&keys)));
        Ok(keys)
    }

    /// Looks for keys for the store at `url`.
    fn find(url: &str, region: &str) -> Result<Arc<BucketKeys>> {
        ensure!(
            !environment::is_privileged(),
            "no keys for {url}: this program runs with more rights than its user has, so the environment does not count"
        );
        let outside = reqsign_core::Context::new().with_env(AwsSurroundings).with_file_read(AwsSurroundings);
        BucketKeys::find_in(url, region, outside.with_http_send(AwsSurroundings).with_command_execute(AwsSurroundings))
    }

    fn find_in(url: &str, region: &str, outside: reqsign_core::Context) -> Result<Arc<BucketKeys>> {
        let sources = sources(&outside, region);
        BucketKeys::from(url, sources, outside)
    }

    fn from(url: &str, sources: Vec<KeySource>, outside: reqsign_core::Context) -> Result<Arc<BucketKeys>> {
        let credential = load(&sources, &outside, url)?;
        let now = Mutex::new(Current { keys: keys_of(&credential), credential, looked: Instant::now() });
        Ok(Arc::new(BucketKeys { outside, sources, url: url.to_owned(), now, renewing: Mutex::default() }))
    }

    /// The keys of now. A thread renews those that expire before long; only for expired ones is it
    /// waited for.
    pub(super) fn now(self: &Arc<Self>) -> Result<Arc<Credentials>> {
        let (keys, is_valid) = {
            let now = locked(&self.now);
            let (is_valid, was_now) = (now.is_valid(Duration::ZERO), now.looked.elapsed() < PAUSE);
            if now.is_valid(EARLY) || is_valid && was_now {
                return Ok(now.keys.clone());
            }
            (now.keys.clone(), is_valid)
        };
        if !is_valid {
            self.renew()?;
            return Ok(locked(&self.now).keys.clone());
        }
        let all = self.clone();
        thread::spawn(move || {
            if let Ok(_held) = all.renewing.try_lock()
                && let Err(e) = all.load_anew()
            {
                COUNTERS.error();
                let message = format!("the keys for {} expire before long, and cannot be renewed: {e:#}", all.url);
                say(Level::Warning, "no_keys", &[], &message);
            }
        });
        Ok(keys)
    }

    /// After `refused` were refused: whether there are others now.
    pub(super) fn has_others(&self, refused: &Arc<Credentials>) -> bool {
        if locked(&self.now).looked.elapsed() >= PAUSE {
            // The refusal is the error that is reported.
            let _ = self.renew();
        }
        !Arc::ptr_eq(&locked(&self.now).keys, refused)
    }

    fn renew(&self) -> Result<()> {
        let before = locked(&self.now).looked;
        let _held = locked(&self.renewing);
        // Another thread may have done it meanwhile.
        if locked(&self.now).looked == before { self.load_anew() } else { Ok(()) }
    }

    fn load_anew(&self) -> Result<()> {
        let loaded = load(&self.sources, &self.outside, &self.url);
        let mut now = locked(&self.now);
        now.looked = Instant::now();
        let credential = loaded?;
        let text = |of: &Credential| (of.access_key_id.clone(), of.secret_access_key.clone(), of.session_token.clone());
        if text(&credential) != text(&now.credential) {
            now.keys = keys_of(&credential);
        }
        now.credential = credential;
        Ok(())
    }
}

fn load(sources: &[KeySource], outside: &reqsign_core::Context, url: &str) -> Result<Credential> {
    let mut troubles = Vec::new();
    for (name, source) in sources {
        match ready(source.provide_credential_dyn(outside)) {
            Ok(Some(credential)) if credential.is_valid_at(Timestamp::now()) => return Ok(credential),
            Ok(Some(_)) => troubles.push(format!("{name} has keys that have expired")),
            Ok(None) => {}
            Err(e) => troubles.push(format!("{name}: {:#}", Error::from(e))),
        }
    }
    let troubles = troubles.iter().map(|trouble| format!("; {trouble}")).collect::<String>();
    match outside.env_var("AWS_PROFILE") {
        Some(profile) => bail!(
            "no keys for {url}: AWS_PROFILE names {profile}, which has no aws_access_key_id and aws_secret_access_key in \
             ~/.aws/credentials or ~/.aws/config, no credential_process, no session of sso and no role_arn{troubles}"
        ),
        None => bail!(
            "no keys for {url}: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, or give this machine or container \
             a role{troubles}"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use reqsign_core::StaticEnv;
    use std::io::{Read, Write};
    use std::net::TcpListener;
    use ureq::http::StatusCode;

    /// The token service, which answers for one token.
    #[derive(Debug)]
    struct TokenService;

    impl HttpSend for TokenService {
        async fn http_send(&self, request: Request<bytes::Bytes>) -> reqsign_core::Result<Response<bytes::Bytes>> {
            assert_eq!(request.uri(), "https://sts.eu-central-1.amazonaws.com/");
            let asked = String::from_utf8_lossy(request.body()).into_owned();
            let is_right =
                asked.contains("Action=AssumeRoleWithWebIdentity") && asked.contains("WebIdentityToken=of-the-pod&");
            let answer = match is_right {
                true => {
                    "<AssumeRoleWithWebIdentityResponse><AssumeRoleWithWebIdentityResult><Credentials>\
                     <AccessKeyId>KEY</AccessKeyId><SecretAccessKey>SECRET</SecretAccessKey><SessionToken>TOKEN</SessionToken>\
                     <Expiration>2999-01-01T00:00:00Z</Expiration></Credentials></AssumeRoleWithWebIdentityResult>\
                     </AssumeRoleWithWebIdentityResponse>"
                }
                false => {
                    "<ErrorResponse><Error><Code>InvalidIdentityToken</Code><Message>No.</Message></Error></ErrorResponse>"
                }
            };
            Ok(Response::builder().status(if is_right { 200 } else { 400 }).body(answer.into()).unwrap())
        }
    }

    #[test]
    fn a_web_identity_is_a_role() {
        let dir = tempfile::tempdir().unwrap();
        let token = dir.path().join("token");
        let found = |text: &str| {
            fs::write(&token, text).unwrap();
            let token = token.display().to_string();
            let envs = [
                ("AWS_ROLE_ARN", "arn:aws:iam::1:role/app"),
                ("AWS_WEB_IDENTITY_TOKEN_FILE", &token),
                ("AWS_EC2_METADATA_DISABLED", "true"),
            ];
            let envs = envs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
            let outside = reqsign_core::Context::new().with_env(StaticEnv { home_dir: None, envs });
            let outside = outside.with_file_read(AwsSurroundings).with_http_send(TokenService);
            BucketKeys::find_in("s3://bucket/app", "eu-central-1", outside)
        };
        let keys = found("of-the-pod\n").unwrap().now().unwrap();
        assert_eq!((keys.key(), keys.secret(), keys.token()), ("KEY", "SECRET", Some("TOKEN")));
        let error = format!("{:#}", found("of-another").err().unwrap());
        assert!(error.starts_with("no keys for s3://bucket/app") && error.contains("the web identity: "), "{error}");
    }

    #[test]
    fn a_service_of_keys_that_fails_is_asked_again() {
        let service = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = service.local_addr().unwrap();
        let answers = thread::spawn(move || {
            for status in ["503 Service Unavailable", "429 Too Many Requests", "200 OK"] {
                let (mut client, _) = service.accept().unwrap();
                assert_ne!(client.read(&mut [0; 4096]).unwrap(), 0);
                let answer = format!("HTTP/1.1 {status}\r\ncontent-length: 4\r\nconnection: close\r\n\r\nkeys");
                client.write_all(answer.as_bytes()).unwrap();
            }
        });
        let request = Request::get(format!("http://{address}/keys")).body(bytes::Bytes::new()).unwrap();
        let answer = ready(AwsSurroundings.http_send(request)).unwrap();
        assert_eq!((answer.status(), &**answer.body()), (StatusCode::OK, &b"keys"[..]));
        answers.join().unwrap();
    }

    /// The same service, which gives a role to one user with one external ID.
    #[derive(Debug)]
    struct RoleService;

    impl HttpSend for RoleService {
        async fn http_send(&self, request: Request<bytes::Bytes>) -> reqsign_core::Result<Response<bytes::Bytes>> {
            let signed = request.headers()["authorization"].to_str().unwrap();
            let text = format!("{} {signed} {}", request.uri(), String::from_utf8_lossy(request.body()));
            assert!(text.contains("https://sts.eu-central-1.amazonaws.com/"), "{text}");
            let words =
                ["Action=AssumeRole&", "Credential=SOURCE/", "/eu-central-1/sts/aws4_request", "ExternalId=guest"];
            let is_right = words.iter().all(|word| text.contains(word));
            let refused =
                "<ErrorResponse><Error><Code>AccessDenied</Code><Message>No.</Message></Error></ErrorResponse>";
            let given = format!(
                "<AssumeRoleResponse><AssumeRoleResult><Credentials><AccessKeyId>ASIAOFTHEROLE0000000</AccessKeyId>\
                 <SecretAccessKey>SECRET</SecretAccessKey><SessionToken>TOKEN</SessionToken><Expiration>{}</Expiration>\
                 </Credentials></AssumeRoleResult></AssumeRoleResponse>",
                jiff::Timestamp::now() + Duration::from_secs(3600)
            );
            let answer = if is_right { given } else { refused.to_owned() };
            Ok(Response::builder().status(if is_right { 200 } else { 403 }).body(answer.into()).unwrap())
        }
    }

    #[test]
    fn a_profile_takes_a_role_with_the_keys_of_another() {
        let dir = tempfile::tempdir().unwrap();
        let (config, credentials) = (dir.path().join("config"), dir.path().join("credentials"));
        let keys = "aws_access_key_id = SOURCE\naws_secret_access_key = secretsecret\n";
        fs::write(&credentials, format!("[base]\n{keys}")).unwrap();
        let role = "role_arn = arn:aws:iam::123456789012:role/app\n";
        let profiles = format!(
            "[profile app]\n{role}source_profile = base\nexternal_id = guest\n[profile other]\n{role}source_profile = base\n\
             [profile chain]\n{role}source_profile = app\n[profile none]\n{role}\n[profile odd]\n{role}credential_source = Air\n"
        );
        fs::write(&config, profiles).unwrap();
        let found = |profile: &str| {
            let (config, credentials) = (config.display().to_string(), credentials.display().to_string());
            let named =
                [("AWS_PROFILE", profile), ("AWS_CONFIG_FILE", &config), ("AWS_SHARED_CREDENTIALS_FILE", &credentials)];
            let envs = named.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
            let outside = reqsign_core::Context::new().with_env(StaticEnv { home_dir: None, envs });
            let outside = outside.with_file_read(AwsSurroundings).with_http_send(RoleService);
            BucketKeys::find_in("s3://bucket/app", "eu-central-1", outside)
        };
        let keys = found("app").unwrap().now().unwrap();
        assert_eq!((keys.key(), keys.secret(), keys.token()), ("ASIAOFTHEROLE0000000", "SECRET", Some("TOKEN")));
        for (profile, word) in [
            ("other", "AccessDenied"),
            ("chain", "a chain of roles is not served"),
            ("none", "role_arn needs source_profile, or credential_source"),
            ("odd", "not Air"),
        ] {
            let error = format!("{:#}", found(profile).err().unwrap());
            assert!(error.contains("the profile's role: ") && error.contains(word), "{profile}: {error}");
        }
    }
}
