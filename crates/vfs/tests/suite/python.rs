//! The loadable extension in Python's `sqlite3` module: a binding that is not Rust's and knows
//! nothing of onewrite.

use crate::common;

use std::process::Command;

use common::{built, one, open_stock, python, setup};

const SCRIPT: &str = r#"
import sqlite3, sys

library, path = sys.argv[1:]
loader = sqlite3.connect(":memory:")
loader.enable_load_extension(True)
loader.load_extension(library)
loader.close()  # The library stays: the VFS belongs to the process.

db = sqlite3.connect(f"file:{path}?vfs=onewrite", uri=True)
db.execute("CREATE TABLE t(id INTEGER PRIMARY KEY, v TEXT)")
with db:
    db.executemany("INSERT INTO t(v) VALUES (?)", [(f"row {n}",) for n in range(100)])
try:
    with db:
        db.execute("DELETE FROM t")
        db.execute("INSERT INTO t(id) VALUES (1), (1)")
except sqlite3.IntegrityError:
    pass
print(db.execute("SELECT count(*), max(v) FROM t").fetchone())
print(db.execute("PRAGMA onewrite_scheme").fetchone())

copy = sqlite3.connect(f"file:{path}-copy?vfs=onewrite", uri=True)
db.backup(copy)
copy.execute("DELETE FROM t WHERE id > 50")
copy.commit()
copy.close()

second = sqlite3.connect(f"file:{path}?vfs=onewrite", uri=True)
cursor = second.execute("SELECT id FROM t")
cursor.fetchone()
db.execute("INSERT INTO t(v) VALUES ('beside a reader')")
db.commit()
print(len(cursor.fetchall()))
second.close()

try:
    sqlite3.connect(f"file:{path}?vfs=onewrite&scheme=fast", uri=True).execute("SELECT 1")
except sqlite3.OperationalError as e:
    print(type(e).__name__)
db.close()
"#;

#[test]
fn python_reads_and_writes_through_the_extension() {
    let dir = setup();
    let Some(python) = python() else { return };
    let path = dir.path().join("x.db");
    let done = Command::new(python)
        .args(["-c", SCRIPT])
        .arg(built("libonewrite.so"))
        .arg(&path)
        .env_remove("ONEWRITE_DEFAULT")
        .output()
        .unwrap();
    let out = String::from_utf8_lossy(&done.stdout).into_owned();
    assert!(done.status.success(), "{out}{}", String::from_utf8_lossy(&done.stderr));
    assert_eq!(out, "(100, 'row 99')\n('log',)\n99\nOperationalError\n");
    let stock = open_stock(&path);
    assert_eq!(one::<String>(&stock, "PRAGMA integrity_check"), "ok");
    assert_eq!(one::<i64>(&stock, "SELECT count(*) FROM t"), 101);
    let copy = open_stock(&dir.path().join("x.db-copy"));
    assert_eq!(one::<i64>(&copy, "SELECT count(*) FROM t"), 50);
}
