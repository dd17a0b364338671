//! Keys of URIs under onewrite as the default VFS, in a process of its own: the default is the
//! whole process's.

mod common;

use common::{explain, logged, one, setup};
use rusqlite::{Connection, OpenFlags};

/// The URI of another library's user: only one that names onewrite asks it to know each key.
#[test]
fn unknown_keys_of_a_uri_are_an_error_where_it_names_onewrite() {
    let dir = setup();
    onewrite_rusqlite::register_default().unwrap();
    let path = dir.path().join("keys.db");
    let uri = |rest: &str| format!("file:{}?mork=1&log_size=8m{rest}", path.display());
    let flags = OpenFlags::default();
    for open in [Connection::open(uri("")), Connection::open_with_flags_and_vfs(uri(""), flags, c"onewrite")] {
        let db = open.unwrap();
        assert_eq!(one::<String>(&db, "PRAGMA onewrite_log_size"), "8388608");
        let (_, line) = logged(&path).unwrap();
        assert!(line.contains("unknown URI parameter \"mork\""), "{line}");
    }
    let plain = Connection::open(dir.path().join("plain.db")).unwrap();
    plain.execute("ATTACH ? AS two", [uri("")]).unwrap();
    assert!(Connection::open(uri("&vfs=onewrite")).is_err());
    assert!(onewrite_rusqlite::last_error().unwrap().contains("unknown URI parameter \"mork\""));
    for named in [Connection::open(uri("&vfs=onewrite")), onewrite_rusqlite::open(uri(""))] {
        let (code, message) = explain(named.unwrap_err());
        assert_eq!(code & 0xff, 14, "{message}");
    }
}
