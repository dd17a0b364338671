use super::*;

fn parse(text: &str) -> Result<FleetConfig> {
    FleetConfig::parse(Path::new("c.yml"), text, true)
}

fn error(text: &str) -> String {
    format!("{:#}", parse(text).expect_err(text))
}

#[cfg_attr(windows, ignore = "names paths and places as Linux has them")]
#[test]
fn litestreams_keys_are_read() {
    let text = "addr: ':9090'\nexec: \"app --port 8080 'a b'\"\nsync-interval: 5s\naccess-key-id: AKIA\nsecret-access-key: \
                abcdefghij\nsnapshot:\n  interval: 12h\n  retention: 72h\nlevels:\n- interval: 1m\n- interval: 10m\nl0-retention: \
                10m\nlogging: {level: debug, type: json, stderr: true}\ndbs:\n- path: /srv/a.db\n  replica:\n    url: \
                s3://b/a?region=eu\n    sync-interval: 500ms\n- path: /srv/b.db\n  replicas:\n  - type: s3\n    bucket: b\n    path: \
                x y/b\n    endpoint: http://127.0.0.1:7070\n    force-path-style: true\n- dir: /srv/t\n  pattern: '*.db'\n  recursive: \
                true\n  watch: true\n  replica: {path: /backup/t}\n- path: /srv/s.db\n  sync: true\n  ship-timeout: 3s\n  replica: {url: \
                'file:///backup/s'}\n";
    let config = parse(text).unwrap();
    assert_eq!(config.addr.unwrap().to_string(), "0.0.0.0:9090");
    assert_eq!(config.exec.unwrap(), ["app", "--port", "8080", "a b"]);
    assert_eq!(config.logging, Logging { json: true, least: 0 });
    let [a, b, t, s] = &config.databases[..] else { panic!("{:?}", config.databases) };
    assert_eq!(a.url, "s3://b/a?region=eu");
    assert_eq!((a.interval, b.interval), (Duration::from_millis(500), Duration::from_secs(5)));
    assert_eq!(b.url, "s3://b/x%20y/b?endpoint=http%3A%2F%2F127%2E0%2E0%2E1%3A7070&force-path-style=true");
    assert!(matches!(&b.keys, Some(StoreKeys::Pair { id, .. }) if id == "AKIA"), "{b:?}");
    assert!(!format!("{b:?}").contains("abcdefghij"));
    assert_eq!(a.settings.snapshot_interval, Duration::from_secs(12 * 3600));
    let levels = a.settings.levels.as_ref().unwrap();
    assert_eq!(levels.intervals, [60, 600].map(Duration::from_secs));
    assert_eq!((levels.keep_batches, levels.retention), (Duration::from_secs(600), Duration::from_secs(72 * 3600)));
    assert!(t.is_watched() && t.keys.is_none());
    assert_eq!(t.url_of(Path::new("/srv/t/u v/1.db")), "file:///backup/t/u%20v/1.db");
    assert_eq!(s.settings.sync, Some(Duration::from_secs(3)));
}

#[test]
fn times_that_are_not_given_are_those_of_the_options() {
    let config = parse("dbs:\n- path: /a.db\n  sync: true\n  replica: {url: 's3://b/a'}\n").unwrap();
    let [of] = &config.databases[..] else { panic!("{:?}", config.databases) };
    let seconds = |of: &[u64]| of.iter().map(|of| Duration::from_secs(*of)).collect::<Vec<_>>();
    let levels = of.settings.levels.as_ref().unwrap();
    assert_eq!(levels.intervals, seconds(&[30, 300, 3600]));
    let times = [of.interval, levels.keep_batches, levels.retention, of.settings.snapshot_interval];
    assert_eq!(times[..], seconds(&[1, 300, 24 * 3600, 24 * 3600]));
    assert_eq!(of.settings.sync, Some(Duration::from_secs(30)));
}

#[test]
fn a_key_that_is_not_served_is_named_with_its_line_and_the_others() {
    let said = error("dbs:\n  - path: /a.db\n    monitor-interval: 1s\n    replica: {path: /b}\n");
    assert!(said.starts_with("c.yml:3: monitor-interval: is not served") && said.contains("replica, "), "{said}");
    let said = error("mcp-addr: :1\n");
    assert!(said.starts_with("c.yml:1: mcp-addr: is not served") && said.contains("addr"), "{said}");
    for (text, line, word) in [
        ("dbs:\n- path: /a.db\n  replica:\n    type: sftp\n    bucket: b\n", 4, "needs url:, or host:"),
        ("dbs:\n- path: /a.db\n  replica: {url: 'oss://h/p'}\n", 3, "file, s3, gs, abs, sftp, webdav, nats"),
        ("dbs:\n- path: /a.db\n  replica: {type: nats, bucket: b}\n", 3, "needs url: like nats://host/bucket"),
        ("dbs:\n- path: /a.db\n  replica: {type: webdav, webdav-url: h}\n", 3, "http:// or https://"),
        ("dbs:\n- path: /a.db\n  replica: {path: /b, sync-interval: soon}\n", 3, "500ms"),
        ("dbs:\n- path: /a.db\n  watch: true\n  replica: {path: /b}\n", 3, "dir:"),
        ("dbs:\n- dir: /a\n  replica: {path: /b}\n", 2, "pattern:"),
        ("dbs:\n- path: /a.db\n  replicas: [{path: /b}, {path: /c}]\n", 3, "one replica"),
        ("logging:\n  type: pretty\ndbs:\n- path: /a.db\n  replica: {path: /b}\n", 2, "text, json"),
        ("levels:\n- interval: 5m\n- interval: 1m\ndbs:\n- path: /a.db\n  replica: {path: /b}\n", 3, "shorter"),
        ("dbs:\n- path: /a.db\n  replica: {path: '${NOT_SET_ANYWHERE}'}\n", 3, "NOT_SET_ANYWHERE"),
        ("dbs:\n- path: /a.db\n  path: /b.db\n", 3, "path"),
        ("dbs:\n- path: [\n", 2, "string"),
    ] {
        let said = error(text);
        assert!(said.starts_with(&format!("c.yml:{line}: ")) && said.contains(word), "{text}: {said}");
    }
}

#[cfg_attr(windows, ignore = "names paths and places as Linux has them")]
#[test]
fn a_database_and_a_store_are_there_once() {
    let said = error("dbs:\n- path: /a.db\n  replica: {path: /b}\n- path: /c.db\n  replica: {url: 'file:///b/'}\n");
    assert!(said.contains("file:///b is there twice"), "{said}");
    let said = error("dbs:\n- path: /a.db\n  replica: {path: /b}\n- path: /a.db\n  replica: {path: /c}\n");
    assert!(said.contains("/a.db is there twice"), "{said}");
}

#[cfg_attr(windows, ignore = "names paths and places as Linux has them")]
#[test]
fn variables_are_expanded_in_values_alone() {
    let home = std::env::var(crate::host::HOME).unwrap();
    let text = "# $NOT_SET_ANYWHERE\ndbs:\n- path: ~/a.db\n  replica: {path: \"$HOME/b-${HOME}-c\"}\n";
    let config = parse(text).unwrap();
    let [(file, url, _)] = &config.files().unwrap()[..] else { panic!() };
    assert_eq!(file, &Path::new(&home).join("a.db"));
    assert_eq!(*url, format!("file://{home}/b-{home}-c"));
    let plain =
        FleetConfig::parse(Path::new("c.yml"), "dbs:\n- path: /a.db\n  replica: {path: '/$HOME'}\n", false).unwrap();
    assert_eq!(plain.databases[0].url, "file:///%24HOME");
}

#[test]
fn a_socket_that_is_named_is_on() {
    let of = |socket: &str| parse(&format!("socket: {socket}\ndbs:\n- path: /a.db\n  replica: {{path: /b}}\n"));
    let socket = |text: &str| of(text).unwrap().socket.map(|socket| (socket.path.display().to_string(), socket.mode));
    assert_eq!(socket("{path: /run/x.sock}"), Some(("/run/x.sock".to_owned(), 0o600)));
    assert_eq!(socket("{enabled: true, permissions: 0660}"), Some(("/var/run/litestream.sock".to_owned(), 0o660)));
    assert_eq!(socket("{enabled: false, path: /run/x.sock}"), None);
    for (text, word) in [("{enabled: perhaps}", "neither true nor false"), ("{permissions: 999}", "like 0600")] {
        let error = format!("{:#}", of(text).unwrap_err());
        assert!(error.starts_with("c.yml:1: ") && error.contains(word), "{error}");
    }
}

#[test]
fn buckets_of_google_and_azure_have_litestreams_keys() {
    let text = "dbs:\n- path: /a.db\n  replica: {type: gs, bucket: b, path: /x y}\n- path: /b.db\n  replica: {type: abs, bucket: box, \
                path: p, account-name: me, account-key: abcdefghij, endpoint: 'http://h:1/me'}\n- path: /c.db\n  replica: {url: \
                'abs://me@box/r', sas-token: '?sv=secrets'}\n- path: /d.db\n  replica: {url: 'abs://me@box/q', account-key: klmnopqrst}\n\
                - path: /e.db\n  replica: {url: 'webdavs://me:password9@h/e', endpoint: 'h:2'}\n";
    let config = parse(text).unwrap();
    let [a, b, c, d, e] = &config.databases[..] else { panic!("{:?}", config.databases) };
    assert_eq!((&*a.url, &a.keys), ("gs://b/x%20y", &None));
    assert_eq!(b.url, "abs://me@box/p?endpoint=http%3A%2F%2Fh%3A1%2Fme");
    assert_eq!(b.keys, Some(StoreKeys::Pair { id: "me".to_owned(), secret: "abcdefghij".to_owned() }));
    assert_eq!((&*c.url, &c.keys), ("abs://me@box/r", &Some(StoreKeys::Token("?sv=secrets".to_owned()))));
    assert!(matches!(&d.keys, Some(StoreKeys::Pair { secret, .. }) if secret == "klmnopqrst"), "{d:?}");
    assert_eq!((&*e.url, &e.keys), ("webdavs://me:password9@h/e", &None));
    assert!(!format!("{config:?}").contains("secrets"), "{config:?}");
    let said = error("dbs:\n- path: /a.db\n  replica: {type: gs, path: x}\n");
    assert!(said.contains("a replica of type gs needs bucket:"), "{said}");
}

#[test]
fn stores_on_servers_have_litestreams_keys() {
    let text = "dbs:\n- path: /a.db\n  replica: {type: sftp, host: 'h:2222', user: me, password: 'pass/word', path: /x y, key-path: /k}\n\
                - path: /b.db\n  replica: {type: webdav, webdav-url: 'https://h/dav', webdav-username: me, webdav-password: password9, \
                path: b}\n- path: /c.db\n  replica: {url: 'nats://h:4333/bucket', username: me, password: password8, tls: true}\n\
                - path: /d.db\n  replica: {type: nats, url: 'nats://h/other', creds: /etc/a.creds, root-cas: [/a.pem, /b.pem]}\n\
                - path: /e.db\n  replica: {url: 'nats://h/third', token: secrettoken}\n\
                - path: /f.db\n  replica: {url: 'sftp://me@h/~/f', host-key: 'ssh-ed25519 AA+A'}\n";
    let urls: Vec<_> = parse(text).unwrap().databases.into_iter().map(|database| database.url).collect();
    let expected = [
        "sftp://me:pass%2Fword@h:2222/x%20y?key-path=%2Fk",
        "webdavs://me:password9@h/dav/b",
        "nats://me:password8@h:4333/bucket?tls=true",
        "nats://h/other?creds=%2Fetc%2Fa.creds&root-ca=%2Fa.pem&root-ca=%2Fb.pem",
        "nats://secrettoken@h/third",
        "sftp://me@h/~/f?host-key=ssh-ed25519+AA%2BA",
    ];
    assert_eq!(urls, expected);
}
