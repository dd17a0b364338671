//! Page splits under a SQLite that splits its own way: that way is in force, and any other is
//! refused.

#![allow(unsafe_code)]

use crate::common;

use std::mem::{offset_of, size_of};

use common::{explain, one, open, setup};
use onewrite::ffi;
use rusqlite::ffi::{SQLITE_CANTOPEN, SQLITE_ERROR, SQLITE_OK};

#[test]
fn the_setting_in_force_is_the_way_this_sqlite_splits() {
    let dir = setup();
    let db = open(&dir.path().join("s.db"), "split=stock&reserve_cells=0").unwrap();
    assert_eq!(one::<String>(&db, "PRAGMA onewrite_split"), "stock");
    assert_eq!(one::<String>(&db, "PRAGMA onewrite_reserve_cells"), "0");
    assert_eq!(one::<String>(&db, "PRAGMA onewrite_split=STOCK"), "stock");
    // Another connection may say the same, or nothing.
    open(&dir.path().join("s.db"), "split=stock").unwrap();
    open(&dir.path().join("s.db"), "").unwrap();
}

#[test]
fn a_split_that_this_sqlite_lacks_is_refused() {
    let dir = setup();
    let db = open(&dir.path().join("s.db"), "").unwrap();
    for (option, value) in [("split", "lazy"), ("split", "legacy"), ("reserve_cells", "1"), ("updates", "beside")] {
        let refused = db.query_row(&format!("PRAGMA onewrite_{option}={value}"), [], |_| Ok(())).unwrap_err();
        let (code, message) = explain(refused);
        assert_eq!(code, SQLITE_ERROR);
        assert!(message.contains(&format!("{option}={value}")) && message.contains("own libsqlite3"), "{message}");

        let (code, message) = explain(open(&dir.path().join("t.db"), &format!("{option}={value}")).unwrap_err());
        assert_eq!(code, SQLITE_CANTOPEN);
        assert!(message.contains(&format!("{option}={value}")), "{message}");
    }
}

#[test]
fn the_file_control_answers_with_the_structure_of_the_header() {
    let dir = setup();
    let db = open(&dir.path().join("s.db"), "").unwrap();
    let mut answer = ffi::SplitPolicy { policy: -1, reserve_cells: u32::MAX, beside: -1 };
    // SAFETY: the connection is open, and this control takes such an argument.
    let rc = unsafe {
        rusqlite::ffi::sqlite3_file_control(db.handle(), c"main".as_ptr(), ffi::fcntl::SPLIT, (&raw mut answer).cast())
    };
    assert_eq!(rc, SQLITE_OK);
    assert_eq!((answer.policy, answer.reserve_cells, answer.beside), (ffi::split::LAZY, 0, 0));

    assert_eq!((size_of::<ffi::SplitPolicy>(), offset_of!(ffi::SplitPolicy, reserve_cells)), (12, 4));
    assert_eq!((size_of::<ffi::InUse>(), offset_of!(ffi::InUse, in_use)), (16, 12));
    let word = size_of::<usize>();
    assert_eq!((size_of::<ffi::ChangedPages>(), offset_of!(ffi::ChangedPages, count)), (2 * word, word));
    let header = include_str!("../../include/onewrite.h");
    let names = [
        ("ONEWRITE_FCNTL_SPLIT 0x", format!("{:x}", ffi::fcntl::SPLIT)),
        ("ONEWRITE_FCNTL_IN_USE 0x", format!("{:x}", ffi::fcntl::IN_USE)),
        ("ONEWRITE_FCNTL_CHANGED 0x", format!("{:x}", ffi::fcntl::CHANGED)),
        ("ONEWRITE_SPLIT_STOCK ", ffi::split::STOCK.to_string()),
        ("ONEWRITE_SPLIT_LAZY ", ffi::split::LAZY.to_string()),
        ("ONEWRITE_SPLIT_LEGACY ", ffi::split::LEGACY.to_string()),
    ];
    for (name, value) in names {
        assert!(header.contains(&format!("#define {name}{value}")), "{name}{value}");
    }
}
