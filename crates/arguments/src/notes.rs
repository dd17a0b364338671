//! The sections of manual pages that `--help` does not have, by command.

/// A name and its meaning.
type NoteEntries = Vec<(&'static str, &'static str)>;

pub struct Notes {
    pub status: NoteEntries,
    pub files: NoteEntries,
    pub environment: NoteEntries,
    /// Other commands.
    pub see_also: &'static [&'static str],
    /// Pages of other programs.
    pub others: &'static [&'static str],
}

const DONE: (&str, &str) = ("0", "All is done.");
const FAILED: (&str, &str) = ("1", "An error: its reason is on standard error.");
const USAGE: (&str, &str) = ("2", "The arguments are wrong. Nothing was done.");
const FENCED: (&str, &str) = ("3", "The store belongs to another database, or to another machine by now.");
const STOPPED: (&str, &str) = ("130", "SIGINT or SIGTERM: nothing is left of the copy.");

const DATABASE: (&str, &str) = ("FILE", "The database.");
const LOG: (&str, &str) =
    ("FILE-onewrite", "Its log. It belongs to the database while that is in use, and after a crash.");
const SIGN: (&str, &str) = ("FILE-onewrite-sync", "The sign that commits wait for a store, or that FILE is a replica.");

const LOG_TO: (&str, &str) =
    ("ONEWRITE_LOG", "The file that gets onewrite's messages, or stderr. A privileged program ignores it.");
const TEMPORARY: (&str, &str) = ("TMPDIR", "The directory of temporary files.");
const KEYS: (&str, &str) = (
    "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN",
    "The keys of a bucket. The last one is for keys that expire.",
);
const PROFILE: (&str, &str) = (
    "AWS_PROFILE, AWS_SHARED_CREDENTIALS_FILE, AWS_CONFIG_FILE",
    "The profile whose keys count where the environment has none, and its files.",
);
const REGION: (&str, &str) =
    ("AWS_REGION, AWS_DEFAULT_REGION", "The region of a bucket whose URL names none, in this order.");
const ENDPOINT: (&str, &str) =
    ("AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL", "The server of a bucket whose URL names none, in this order.");
const AUTHORITIES: (&str, &str) =
    ("AWS_CA_BUNDLE", "A file with the certificates of the authorities to trust, as PEM.");

/// The sections of the page of the command `words`.
pub fn notes(words: &[&str]) -> Notes {
    let command = words.first().copied().unwrap_or_default();
    Notes {
        status: status(command),
        files: files(command),
        environment: environment(command),
        see_also: see_also(command),
        others: match command {
            "shell" | "dump" | "" => &["sqlite3"],
            "man" => &["man"],
            _ => &[],
        },
    }
}

fn status(command: &str) -> NoteEntries {
    match command {
        "check" => vec![
            ("0", "All is sound. Transactions that wait in the log after a crash are sound, too."),
            ("1", "Something is damaged."),
            ("2", "Not all could be checked, FILE may lack what its log holds, or the arguments are wrong."),
        ],
        "status" => vec![
            ("0", "onewrite is in effect."),
            ("1", "onewrite is not in effect, or an error: the reason is printed."),
            USAGE,
        ],
        "replicas" => vec![
            ("0", "No database has an error."),
            ("1", "A database has an error, or the configuration is wrong."),
            USAGE,
            STOPPED,
        ],
        "verify" => vec![
            ("0", "All pages are the same."),
            ("1", "Pages differ, or there was an error."),
            ("2", "The store did not catch up in time, or the arguments are wrong."),
        ],
        "ltx" | "backup" | "restore" | "rejoin" | "ship" => vec![DONE, FAILED, USAGE, STOPPED],
        "shell" => vec![
            ("1", "The program sqlite3, the extension or the database cannot be used."),
            USAGE,
            ("other", "The status of sqlite3."),
        ],
        "promote" => vec![DONE, FAILED, USAGE, FENCED, STOPPED],
        "replicate" => vec![DONE, FAILED, USAGE, FENCED],
        "" => vec![
            DONE,
            FAILED,
            USAGE,
            ("other", "The page of a command has those that it adds: check, replicate, shell, status, verify."),
        ],
        _ => vec![DONE, FAILED, USAGE],
    }
}

fn files(command: &str) -> NoteEntries {
    match command {
        "backup" => vec![
            DATABASE,
            LOG,
            ("DEST", "The copy, a plain SQLite file."),
            (".onewrite-backup-*", "The copy beside DEST, until it is whole."),
        ],
        "recover" => vec![
            DATABASE,
            LOG,
            ("FILE-onewrite.lost", "A log that was given up, or a copy of a damaged one; the next is .lost2."),
        ],
        "research" => {
            vec![DATABASE, LOG, ("FILE-onewrite-convert", "The new file, until it gets the name of the database.")]
        }
        "shell" => vec![
            DATABASE,
            LOG,
            ("libonewrite.so", "The extension: beside the program, in ../lib, or where the system has libraries."),
        ],
        "bench" => vec![("DIR", "The directory in which databases are measured. They are removed afterwards.")],
        "completions" => vec![
            ("~/.local/share/bash-completion/completions/onewrite", "The place of the script for bash."),
            ("~/.config/fish/completions/onewrite.fish", "The place of the script for fish."),
            ("_onewrite", "The name of the script for zsh, in a directory of fpath."),
        ],
        "ltx" | "replicas" | "ship" => vec![("CONFIG", "The configuration.")],
        "man" => vec![("DIR/onewrite-COMMAND.1", "A page that --dir writes.")],
        "restore" => {
            vec![("DEST", "The database."), (".onewrite-restore-*", "The database beside DEST, until it is whole.")]
        }
        "follow" => vec![DATABASE, LOG, ("FILE-follow", "The position of the replica in the store."), SIGN],
        "promote" => vec![
            DATABASE,
            LOG,
            ("FILE-follow", "The position of a replica. It is removed."),
            (".onewrite-promote-*", "The database beside FILE, until it is whole."),
            SIGN,
        ],
        "rejoin" => vec![
            DATABASE,
            LOG,
            ("FILE.diverged", "FILE as it was, with the commits that were not shipped."),
            ("FILE-follow", "The position of the replica in the store."),
            SIGN,
        ],
        "replicate" | "unsync" => vec![DATABASE, LOG, SIGN],
        _ => vec![DATABASE, LOG],
    }
}

fn environment(command: &str) -> NoteEntries {
    match command {
        "check" | "recover" => vec![LOG_TO, TEMPORARY],
        "shell" => vec![
            ("ONEWRITE_EXTENSION", "The library libonewrite.so, unless --extension names it."),
            ("PATH", "The directories in which sqlite3 is looked for."),
            LOG_TO,
        ],
        "ltx" | "replicas" | "replicate" | "restore" | "follow" | "promote" | "rejoin" | "verify" => {
            vec![KEYS, PROFILE, REGION, ENDPOINT, AUTHORITIES, LOG_TO]
        }
        _ => vec![LOG_TO],
    }
}

fn see_also(command: &str) -> &'static [&'static str] {
    match command {
        "" => &["check", "recover", "backup", "shell", "replicate", "restore"],
        "backup" => &["dump", "replicate", "check"],
        "bench" => &["inspect"],
        "check" => &["recover", "inspect", "status"],
        "completions" => &["man"],
        "dump" => &["backup", "shell"],
        "follow" => &["replicate", "promote", "restore"],
        "inspect" => &["check", "status"],
        "ltx" => &["replicas", "restore"],
        "man" => &["completions"],
        "promote" => &["replicate", "rejoin", "follow"],
        "recover" => &["check", "inspect"],
        "rejoin" => &["promote", "follow"],
        "replicas" => &["replicate", "ltx", "verify"],
        "replicate" => &["restore", "follow", "verify", "promote", "unsync", "replicas", "ship"],
        "research" => &["check", "recover"],
        "restore" => &["replicate", "verify"],
        "shell" => &["dump", "status"],
        "ship" => &["replicate", "replicas", "verify"],
        "status" => &["check", "inspect", "shell"],
        "unsync" => &["replicate", "promote"],
        "verify" => &["replicate", "check"],
        _ => &[],
    }
}
