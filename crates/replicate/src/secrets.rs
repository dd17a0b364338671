//! Messages without secrets: each printed line passes through [`scrubbed`], also a server's text.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use std::sync::{Mutex, PoisonError};

const HIDDEN: &str = "***";
/// Parameters of a store's URL that are no secrets.
pub const PARAMETERS: [&str; 7] = ["region", "endpoint", "force-path-style", "key-path", "host-key", "creds", "tls"];
const CREDENTIALS: [&str; 4] = ["x-amz-signature=", "x-amz-credential=", "x-amz-security-token=", "authorization:"];
const SECRETS_MAX: usize = 64;
/// A shorter secret could be part of any word.
const SECRET_BYTES_MIN: usize = 8;
/// The characters that URLs leave as they are.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

static SECRETS: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Hides this text, also in its URL encoding, in all later messages.
pub fn hide(secret: &str) {
    if secret.len() >= SECRET_BYTES_MIN {
        let mut secrets = SECRETS.lock().unwrap_or_else(PoisonError::into_inner);
        if secrets.iter().any(|known| known == secret) {
            return;
        }
        secrets.extend([secret.to_owned(), utf8_percent_encode(secret, ENCODED).to_string()]);
        // Keys that are renewed each hour do not take memory for ever.
        let many = secrets.len().saturating_sub(SECRETS_MAX);
        secrets.drain(..many);
    }
}

/// Hides a URL's user and password, even if the password has characters that end a URL in a text.
pub fn hide_user(url: &str) {
    let user = url.rsplit_once('@').and_then(|(before, _)| before.rsplit("://").next());
    if let Some(user) = user.filter(|user| user.contains(':')) {
        hide(user);
    }
}

/// The text without hidden secrets, URLs' users, passwords and parameters (except a store's), and
/// credentials.
pub fn scrubbed(text: &str) -> String {
    let mut text = text.to_owned();
    for secret in &*SECRETS.lock().unwrap_or_else(PoisonError::into_inner) {
        text = text.replace(secret.as_str(), HIDDEN);
    }
    text = without_users(&text, "://", "@");
    text = without_users(&text, "%3A%2F%2F", "%40");
    text = without_users(&text, "%3a%2f%2f", "%40");
    without_credentials(&without_parameters(&text))
}

/// End of the URL or value at the text's beginning.
fn end_of(text: &str) -> usize {
    let end = text.find(|c: char| c.is_whitespace() || "\"'<>`".contains(c)).unwrap_or(text.len());
    // Punctuation of the sentence is not part of it.
    text.get(..end).map_or(end, |url| url.trim_end_matches([':', ',']).len())
}

/// Drops the text between `begin` and the last `end` of a URL. A password may have a slash.
fn without_users(text: &str, begin: &str, end: &str) -> String {
    let (mut told, mut rest) = (String::new(), text);
    while let Some((before, behind)) = rest.split_once(begin) {
        told.push_str(before);
        told.push_str(begin);
        let (url, _) = behind.split_at(end_of(behind));
        let authority = url.split(['/', '?', '#']).next().unwrap_or_default();
        rest = behind;
        if let Some((user, _)) = url.rsplit_once(end)
            && (authority.contains([':', '@', '%']))
            // The loop handles a URL within this one.
            && !user.contains("://")
        {
            told.push_str(HIDDEN);
            rest = behind.get(user.len()..).unwrap_or_default();
        }
    }
    told + rest
}

/// Drops the values of URL parameters that are not a store's.
fn without_parameters(text: &str) -> String {
    let (mut told, mut rest) = (String::new(), text);
    while let Some((before, behind)) = rest.split_once("://") {
        told.push_str(before);
        told.push_str("://");
        let (url, behind) = behind.split_at(end_of(behind));
        rest = behind;
        let base = url.split(['?', '#']).next().unwrap_or_default();
        told.push_str(base);
        let mut parts = url.get(base.len()..).unwrap_or_default();
        while let Some(mark) = parts.chars().next() {
            let part = parts.get(1..).unwrap_or_default();
            let part = part.split(['?', '#', '&']).next().unwrap_or_default();
            let name = part.split('=').next().unwrap_or_default();
            told.push(mark);
            let has_user = (part.contains('@') || part.contains("%40")) && !part.contains(HIDDEN);
            if PARAMETERS.contains(&name) && mark != '#' && !has_user {
                told.push_str(part);
            } else if is_name(name) && part.contains('=') {
                told.push_str(name);
                told.push('=');
                told.push_str(HIDDEN);
            } else {
                told.push_str(HIDDEN);
            }
            parts = parts.get(1 + part.len()..).unwrap_or_default();
        }
    }
    told + rest
}

/// Whether `text` can be the name of a parameter, and not a part of a password.
pub fn is_name(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
}

fn without_credentials(text: &str) -> String {
    let mut text = text.to_owned();
    for name in CREDENTIALS {
        let mut from = 0;
        while let Some(at) = text.get(from..).and_then(|rest| rest.to_ascii_lowercase().find(name)) {
            let begin = from + at + name.len();
            let value = text.get(begin..).unwrap_or_default();
            let end = match name.ends_with(':') {
                true => value.find('\n').unwrap_or(value.len()),
                false => end_of(value).min(value.find('&').unwrap_or(value.len())),
            };
            text.replace_range(begin..begin + end, HIDDEN);
            from = begin + HIDDEN.len();
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_hidden_and_the_rest_is_told() {
        hide("wJalr/K7MD+x");
        for (text, told) in [
            ("cannot read s3://bucket/a/b@c: no answer from http://127.0.0.1:7070", ""),
            ("file:///home/me@host/a: /tmp/x@y", ""),
            ("s3://bucket/a?region=x&endpoint=http://h:1&force-path-style=false, and more", ""),
            ("s3://b/a?endpoint=http://user:pw@host:1/x said", "s3://b/a?endpoint=http://***@host:1/x said"),
            ("s3://b/a?endpoint=http://user:p/w@host", "s3://b/a?endpoint=http://***@host"),
            ("s3://b/a?endpoint=http://user:p&w@host", "s3://b/a?endpoint=http://***@host"),
            ("s3://b/a?endpoint=http%3A%2F%2Fuser%3Apw%40host", "s3://b/a?endpoint=http%3A%2F%2F***%40host"),
            ("s3://AKID:pw@b/a and https://t@h", "s3://***@b/a and https://***@h"),
            ("s3://b/a?token=pw&region=x#pw", "s3://b/a?token=***&region=x#***"),
            ("s3://b/a?endpoint=user:pw@h", "s3://b/a?endpoint=***"),
            ("s3://b/a?pw, s3://b?endpoint=http://h?t=pw", "s3://b/a?***, s3://b?endpoint=http://h?t=***"),
            (
                "`http://h/a?X-Amz-Signature=pw` 'x-amz-security-token=pw'",
                "`http://h/a?X-Amz-Signature=***` 'x-amz-security-token=***'",
            ),
            ("Authorization: AWS4 Credential=pw, Signature=pw\nmore", "Authorization:***\nmore"),
            ("wJalr/K7MD+x and wJalr%2FK7MD%2Bx", "*** and ***"),
        ] {
            assert_eq!(scrubbed(text), if told.is_empty() { text } else { told });
            assert_eq!(scrubbed(&scrubbed(text)), scrubbed(text));
        }
    }
}
