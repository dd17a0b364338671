//! The test's server of objects speaks four protocols: S3's, Google's, Azure's and WebDAV. Requests
//! of the others become S3's, in its layout of names, and its answers become theirs.

use std::collections::BTreeMap;
use std::io::Cursor;
use std::io::Read;
use tiny_http::{Header, Method, Request, Response};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    S3,
    Google,
    Azure,
    WebDav,
}

/// Base64 of the key that the test's account has.
pub const AZURE_KEY: &str = "c2VjcmV0IHNlY3JldCBzZWNyZXQgc2VjcmV0IHNlY3JldA==";

pub type Answer = Response<Cursor<Vec<u8>>>;

/// A request, as S3 is asked.
pub struct Asked {
    pub dialect: Dialect,
    pub method: Method,
    /// As it came.
    pub url: String,
    /// Bucket and key.
    pub path: String,
    pub query: BTreeMap<String, String>,
    pub headers: Vec<(String, String)>,
}

impl Dialect {
    /// The one that `ONEWRITE_TEST_STORE` names: s3 without it.
    pub fn of_environment() -> Dialect {
        match std::env::var("ONEWRITE_TEST_STORE").as_deref() {
            Ok("gs") => Dialect::Google,
            Ok("abs") => Dialect::Azure,
            Ok("webdav") => Dialect::WebDav,
            Ok("s3") | Err(_) => Dialect::S3,
            Ok(other) => panic!("ONEWRITE_TEST_STORE={other}: the choices are s3, gs, abs, webdav"),
        }
    }

    pub fn url(self, server: &str, rest: &str) -> String {
        match self {
            Dialect::S3 => format!("s3://bucket/{rest}?endpoint=http://{server}"),
            Dialect::Google => format!("gs://bucket/{rest}?endpoint=http://{server}"),
            Dialect::WebDav => format!("webdav://{server}/bucket/{rest}"),
            Dialect::Azure => format!("abs://account@bucket/{rest}?endpoint=http://{server}/account"),
        }
    }
}

/// S3's layout has `0009/`, the others have `ltx/9/`.
fn to_s3(key: &str) -> String {
    let mut key = key.to_owned();
    for level in 0..10 {
        key = key.replace(&format!("ltx/{level}/"), &format!("{level:04x}/"));
    }
    key
}

fn from_s3(key: &str) -> String {
    let mut key = key.to_owned();
    for level in 0..10 {
        key = key.replace(&format!("{level:04x}/"), &format!("ltx/{level}/"));
    }
    key
}

/// Google's number of a state of an object.
fn generation(etag: &str) -> String {
    (u64::from_str_radix(etag.trim_matches('"'), 16).unwrap() >> 1).to_string()
}

impl Asked {
    pub fn of(dialect: Dialect, request: &Request, body: &[u8]) -> Asked {
        let url = url::Url::parse("http://here").unwrap().join(request.url()).unwrap();
        let mut query: BTreeMap<_, _> = url.query_pairs().into_owned().collect();
        let mut path = percent_encoding::percent_decode_str(url.path()).decode_utf8().unwrap().into_owned();
        path = path.trim_start_matches('/').to_owned();
        let mut method = request.method().clone();
        let of =
            |header: &Header| (header.field.as_str().as_str().to_ascii_lowercase(), header.value.as_str().to_owned());
        let mut headers: Vec<(String, String)> = request.headers().iter().map(of).collect();
        if dialect != Dialect::S3 {
            if dialect == Dialect::Azure {
                let signed = headers.iter().find(|(name, _)| name == "authorization");
                assert!(signed.unwrap().1.starts_with("SharedKey account:"), "{signed:?}");
                path = path.strip_prefix("account/").unwrap().to_owned();
            }
            if query.get("comp").is_some_and(|comp| comp == "batch") {
                // A batch of one.
                let text = String::from_utf8_lossy(body);
                let line = text.lines().find(|line| line.starts_with("DELETE ")).unwrap();
                let name = line.split(' ').nth(1).unwrap();
                path = percent_encoding::percent_decode_str(name)
                    .decode_utf8()
                    .unwrap()
                    .trim_start_matches('/')
                    .to_owned();
                path = path.strip_prefix("account/").unwrap_or(&path).to_owned();
                method = Method::Delete;
            }
            path = to_s3(&path);
            for (name, s3) in [
                ("prefix", "prefix"),
                ("start-after", "start-after"),
                ("marker", "continuation-token"),
                ("continuation-token", "continuation-token"),
            ] {
                if let Some(value) = query.remove(name) {
                    query.insert(s3.to_owned(), to_s3(&value));
                }
            }
            for (name, value) in [
                ("X-Amz-Signature", "x"),
                ("X-Amz-Credential", "key/x"),
                ("X-Amz-SignedHeaders", "if-match;if-none-match"),
            ] {
                query.insert(name.to_owned(), value.to_owned());
            }
            for (name, value) in &mut headers {
                match &**name {
                    "x-goog-meta-litestream-timestamp" | "x-ms-meta-litestreamtimestamp" => {
                        *name = "x-amz-meta-litestream-timestamp".to_owned();
                    }
                    "x-goog-if-generation-match" if value == "0" => {
                        (*name, *value) = ("if-none-match".to_owned(), "*".to_owned());
                    }
                    "x-goog-if-generation-match" => *name = "if-match".to_owned(),
                    _ => {}
                }
            }
        }
        Asked { dialect, method, url: request.url().to_owned(), path, query, headers }
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(of, _)| of == name).map(|(_, value)| value.as_str())
    }

    /// The version of an object, as a condition names it.
    pub fn version(&self, etag: &str) -> String {
        if self.dialect == Dialect::Google { generation(etag) } else { etag.to_owned() }
    }

    /// The answer in the words of the request's protocol; `etag` is of what a PUT has made.
    pub fn answered(&self, answer: Answer, etag: &str) -> Answer {
        if self.dialect == Dialect::S3 {
            return answer;
        }
        let status = answer.status_code();
        let mut headers = answer.headers().to_vec();
        let mut body = Vec::new();
        answer.into_reader().read_to_end(&mut body).unwrap();
        let add = |headers: &mut Vec<Header>, name: &str, value: &str| {
            headers.push(Header::from_bytes(name, value).unwrap());
        };
        let is_well = status.0 < 300;
        if is_well && self.method == Method::Put {
            add(&mut headers, "ETag", etag);
        }
        let tag =
            headers.iter().find(|header| header.field.equiv("ETag")).map(|header| header.value.as_str().to_owned());
        if let Some(tag) = tag {
            add(&mut headers, "Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT");
            add(&mut headers, "x-goog-generation", &self.version(&tag));
        }
        let mut text = String::from_utf8_lossy(&body).into_owned();
        let is_list = text.starts_with("<ListBucketResult");
        if is_list && self.dialect == Dialect::WebDav {
            return with_headers(Response::from_data(webdav_list(&text).into_bytes()).with_status_code(207), headers);
        }
        if is_list && self.dialect == Dialect::Azure {
            body = azure_list(&text).into_bytes();
        } else if is_list {
            body = from_s3(&text).into_bytes();
        } else if self.dialect == Dialect::Azure && !is_well {
            text = text.replace("NoSuchBucket", "ContainerNotFound");
            body = text.into_bytes();
        }
        if self.dialect == Dialect::Azure && self.method == Method::Delete && is_well {
            add(&mut headers, "Content-Type", "multipart/mixed; boundary=one");
            let part = "--one\r\nContent-Type: application/http\r\nContent-ID: 0\r\n\r\nHTTP/1.1 202 Accepted\r\n\r\n--one--\r\n";
            return with_headers(Response::from_data(part.as_bytes()).with_status_code(202), headers);
        }
        with_headers(Response::from_data(body).with_status_code(status), headers)
    }
}

/// With its length: both protocols need that.
fn with_headers(answer: Answer, headers: Vec<Header>) -> Answer {
    let mut answer = answer.with_chunked_threshold(usize::MAX);
    for header in headers {
        answer.add_header(header);
    }
    answer
}

fn part<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    Some(text.split_once(&format!("<{name}>"))?.1.split_once(&format!("</{name}>"))?.0)
}

/// The time of a listing as HTTP writes it.
fn http_time(time: &str) -> String {
    let time: jiff::Timestamp = time.parse().unwrap();
    jiff::fmt::rfc2822::DateTimePrinter::new().timestamp_to_rfc9110_string(&time).unwrap()
}

fn webdav_list(text: &str) -> String {
    let mut all = String::new();
    for object in text.split("<Contents>").skip(1) {
        let (key, size) = (part(object, "Key").unwrap(), part(object, "Size").unwrap());
        all += &format!(
            "<D:response><D:href>/bucket/{}</D:href><D:propstat><D:prop><x:getlastmodified xmlns:x=\"DAV:\">{}</x:getlastmodified>\
             <D:getcontentlength>{size}</D:getcontentlength><D:resourcetype/></D:prop><D:status>HTTP/1.1 200 OK</D:status>\
             </D:propstat></D:response>",
            from_s3(key),
            http_time(part(object, "LastModified").unwrap())
        );
    }
    let dir = "<D:response><D:href>/bucket/a/b/</D:href><D:propstat><D:prop><D:resourcetype><D:collection/></D:resourcetype>\
               </D:prop></D:propstat></D:response>";
    format!("<?xml version=\"1.0\"?><D:multistatus xmlns:D=\"DAV:\">{dir}{all}</D:multistatus>")
}

/// Files that are written and have not got their names yet.
pub type Staged = BTreeMap<String, Vec<u8>>;

/// A request of WebDAV that is none of S3's: the answer, or the one of S3's that it stands for.
pub fn webdav(staged: &mut Staged, asked: &Asked, body: &[u8]) -> Option<Result<Answer, (Asked, Vec<u8>)>> {
    let status = |status: u16| Some(Ok(Response::from_data([]).with_status_code(status)));
    let as_s3 = |method: Method, path: &str, headers: &[(&str, &str)]| Asked {
        dialect: Dialect::WebDav,
        method,
        url: asked.url.clone(),
        path: path.to_owned(),
        query: asked.query.clone(),
        headers: headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect(),
    };
    match asked.method.as_str() {
        "MKCOL" => status(201),
        "PUT" => {
            assert!(asked.path.contains(".onewrite-unfinished-"), "{}", asked.url);
            staged.insert(asked.path.clone(), body.to_vec());
            status(201)
        }
        "MOVE" => {
            let Some(body) = staged.get(&asked.path).cloned() else { return status(404) };
            let url = url::Url::parse(asked.header("destination").unwrap()).unwrap();
            let path = percent_encoding::percent_decode_str(url.path()).decode_utf8().unwrap();
            let path = to_s3(path.trim_start_matches('/'));
            if let Some((dir, _)) = path.split_once("owner-") {
                if staged.contains_key(&path) {
                    return status(412);
                }
                staged.insert(path.clone(), body.clone());
                return Some(Err((as_s3(Method::Put, &format!("{dir}owner.json"), &[("replaces", "any")]), body)));
            }
            let condition = match asked.header("overwrite") {
                Some("F") => ("if-none-match", "*"),
                _ => ("replaces", "any"),
            };
            Some(Err((as_s3(Method::Put, &path, &[condition]), body)))
        }
        "DELETE" if staged.remove(&asked.path).is_some() => status(204),
        "GET" | "HEAD" if staged.contains_key(&asked.path) => {
            Some(Ok(Response::from_data(staged[&asked.path].clone())))
        }
        "PROPFIND" if !asked.path.contains("/000") => {
            let mut list = String::from("<ListBucketResult>");
            for (path, body) in staged.iter().filter(|(path, _)| path.starts_with(&asked.path)) {
                list += &format!(
                    "<Contents><Key>{path}</Key><LastModified>2026-01-01T00:00:00Z</LastModified><Size>{}</Size></Contents>",
                    body.len()
                );
            }
            Some(Ok(Response::from_string(list)))
        }
        "PROPFIND" => {
            let mut list = as_s3(Method::Get, "bucket", &[]);
            let (_, prefix) = asked.path.split_once('/').unwrap();
            list.query.insert("prefix".to_owned(), to_s3(prefix));
            Some(Err((list, Vec::new())))
        }
        _ => None,
    }
}

fn azure_list(text: &str) -> String {
    let mut blobs = String::new();
    for object in text.split("<Contents>").skip(1) {
        let (key, size) = (part(object, "Key").unwrap(), part(object, "Size").unwrap());
        let time = http_time(part(object, "LastModified").unwrap());
        blobs += &format!(
            "<Blob><Name>{}</Name><Properties><Last-Modified>{time}</Last-Modified><Content-Length>{size}</Content-Length>\
             <Content-Type>x</Content-Type></Properties></Blob>",
            from_s3(key)
        );
    }
    let next = part(text, "NextContinuationToken").map(from_s3).unwrap_or_default();
    format!("<EnumerationResults><Blobs>{blobs}</Blobs><NextMarker>{next}</NextMarker></EnumerationResults>")
}

/// All tests of a bucket run over Google's and Azure's protocol with `ONEWRITE_TEST_STORE`; these
/// always do. Commits do not wait for WebDAV, and its records of owners have other names.
#[cfg_attr(windows, ignore = "sends signals, which Windows has not")]
#[test]
fn other_stores_are_served_as_s3_is() {
    const OF_ALL: [&str; 4] = [
        "s3::each_shipped_state_is_restored",
        "s3::a_request_that_fails_is_sent_again_and_knows_its_own_work",
        "s3::merged_files_are_restored_and_then_nothing_is_asked",
        "s3::a_store_that_fails_is_not_a_damaged_one",
    ];
    const OF_BUCKETS: [&str; 2] = [
        "s3::a_shipper_that_is_killed_at_any_request_leaves_no_gap",
        "s3::where_commits_wait_faults_of_the_store_cost_time_alone",
    ];
    const OF_WEBDAV: [&str; 2] = [
        "s3::commits_go_on_while_the_store_is_away_and_are_shipped_then",
        "s3::of_two_that_ship_into_one_path_the_second_is_refused_until_it_is_promoted",
    ];
    let test = |store: &str, more: [&str; 2]| {
        let mut command = std::process::Command::new(std::env::current_exe().unwrap());
        let output = command.arg("--exact").args(OF_ALL).args(more).env("ONEWRITE_TEST_STORE", store).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && text.contains("6 passed"), "{store}: {text}");
    };
    // They mostly wait.
    std::thread::scope(|scope| {
        for (store, more) in [("gs", OF_BUCKETS), ("abs", OF_BUCKETS), ("webdav", OF_WEBDAV)] {
            scope.spawn(move || test(store, more));
        }
    });
}
