//! An idle database becomes a plain file again while the program that opened it lives, and also
//! when the program ends without closing it.

use crate::common;

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::{built, one, open_stock, python, setup};

/// Opens `app.db` through onewrite, commits, and does what its second argument says.
const PROGRAM: &str = r#"
import ctypes, os, sqlite3, sys
library, ending = sys.argv[1:]
loader = sqlite3.connect(":memory:")
loader.enable_load_extension(True)
loader.load_extension(library)
db = sqlite3.connect("file:app.db?vfs=onewrite&idle=100ms", uri=True, isolation_level=None)
db.execute("CREATE TABLE t(a)")
db.execute("INSERT INTO t VALUES(1)")
if ending == "stays":
    print("wrote", flush=True)
    for line in sys.stdin:
        db.execute("INSERT INTO t VALUES(3)")
        print(db.execute("SELECT group_concat(a) FROM t").fetchone()[0], flush=True)
elif ending == "exit":
    ctypes.CDLL(None).exit(0)
elif ending == "fork":
    if os.fork() == 0:
        ctypes.CDLL(None).exit(0)
    os.wait()
    print(db.execute("SELECT count(*) FROM t").fetchone()[0], flush=True)
    os._exit(0)
"#;

fn is_marked(path: &Path) -> bool {
    std::fs::read(path).unwrap()[19] != 1
}

fn until_plain(path: &Path) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while is_marked(path) {
        assert!(Instant::now() < deadline, "the file stays marked");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn other_programs_use_a_database_that_is_left_alone() {
    let (dir, Some(python)) = (setup(), python()) else { return };
    let mut program = Command::new(python)
        .args(["-c", PROGRAM])
        .arg(built("libonewrite.so"))
        .arg("stays")
        .current_dir(dir.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let (mut to, mut from) = (program.stdin.take().unwrap(), BufReader::new(program.stdout.take().unwrap()));
    let mut line = String::new();
    from.read_line(&mut line).unwrap();
    assert_eq!(line, "wrote\n");
    let path = dir.path().join("app.db");
    for round in 0..3 {
        until_plain(&path);
        let stock = open_stock(&path);
        stock.execute("INSERT INTO t VALUES(2)", []).unwrap();
        assert_eq!(one::<i64>(&stock, "SELECT count(*) FROM t"), 2 + 2 * round);
        stock.close().unwrap();
        writeln!(to, "again").unwrap();
        line.clear();
        from.read_line(&mut line).unwrap();
        assert_eq!(line.trim().split(',').count() as i64, 3 + 2 * round, "{line}");
    }
    drop(to);
    program.wait().unwrap();
    assert_eq!(one::<String>(&open_stock(&path), "PRAGMA integrity_check"), "ok");
}

#[test]
fn a_program_that_exits_without_closing_leaves_a_plain_file() {
    for (ending, said) in [("exit", ""), ("fork", "1\n")] {
        let (dir, Some(python)) = (setup(), python()) else { return };
        let done = Command::new(python)
            .args(["-c", PROGRAM])
            .arg(built("libonewrite.so"))
            .arg(ending)
            .current_dir(dir.path())
            .output()
            .unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        assert_eq!(String::from_utf8_lossy(&done.stdout), said, "{ending}");
        let path = dir.path().join("app.db");
        // The child of a fork leaves its parent's database alone, and `_exit` runs no handler.
        assert_eq!(is_marked(&path), ending == "fork", "{ending}");
        if ending == "exit" {
            assert_eq!(one::<i64>(&open_stock(&path), "SELECT count(*) FROM t"), 1);
        }
    }
}
