#!/usr/bin/env python3
"""The load by which a release build is laid out: `load.py LIBRARY`.

Commits and reads as applications do them, alone, in threads, beside a second process and after one that was killed, through the
system's SQLite with the extension LIBRARY, which counts its branches. Status 2: the system has no libsqlite3.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import subprocess
import sys
import tempfile
import threading
import time

OPEN_FLAGS = 0x2 | 0x4 | 0x40  # READWRITE, CREATE, URI
ROWS = 20_000

found = ctypes.util.find_library("sqlite3")
if found is None:
    print("the system has no libsqlite3", file=sys.stderr)
    sys.exit(2)
sqlite = ctypes.CDLL(found, mode=ctypes.RTLD_GLOBAL)
sqlite.sqlite3_errmsg.restype = ctypes.c_char_p


class Database:
    def __init__(self, uri: str) -> None:
        self.handle = ctypes.c_void_p()
        rc = sqlite.sqlite3_open_v2(uri.encode(), ctypes.byref(self.handle), OPEN_FLAGS, None)
        self.check(rc, uri)
        sqlite.sqlite3_busy_timeout(self.handle, 20_000)

    def check(self, rc: int, doing: str) -> None:
        if rc != 0:
            raise SystemExit(f"{doing}: {sqlite.sqlite3_errmsg(self.handle).decode()}")

    def do(self, statement: str) -> None:
        self.check(sqlite.sqlite3_exec(self.handle, statement.encode(), None, None, None), statement)

    def close(self) -> None:
        self.check(sqlite.sqlite3_close(self.handle), "close")


def load(library: str) -> None:
    loader = Database(":memory:")
    sqlite.sqlite3_enable_load_extension(loader.handle, 1)
    loader.check(sqlite.sqlite3_load_extension(loader.handle, library.encode(), None, None), library)
    loader.close()


def insert(uri: str, count: int) -> None:
    database = Database(uri)
    for _ in range(count):
        database.do("INSERT INTO t VALUES(random(), randomblob(100), 1)")
    database.close()


def exercise(uri: str, library: str) -> None:
    database = Database(uri)
    database.do("CREATE TABLE t(k INTEGER PRIMARY KEY, v BLOB, n INT)")
    for _ in range(ROWS):
        database.do("INSERT INTO t VALUES(random(), randomblob(100), 1)")
    for _ in range(ROWS // 2):
        database.do("SELECT n FROM t WHERE k >= random() LIMIT 1")
    for _ in range(ROWS // 10):
        database.do("UPDATE t SET n = n + 1 WHERE k = (SELECT k FROM t WHERE k >= random() LIMIT 1)")
        database.do("DELETE FROM t WHERE k = (SELECT k FROM t WHERE k >= random() LIMIT 1)")
        database.do("BEGIN; SELECT n FROM t WHERE k >= random() LIMIT 1; INSERT INTO t VALUES(random(), randomblob(200), 2); COMMIT")
    database.do(f"INSERT INTO t WITH RECURSIVE c(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM c WHERE i < {ROWS}) SELECT random(), i, i FROM c")
    for _ in range(20):
        database.do("SELECT sum(n) FROM t")
    database.close()
    database = Database(uri)
    for _ in range(ROWS // 2):
        database.do("SELECT n FROM t WHERE k >= random() LIMIT 1")
    database.close()
    for _ in range(ROWS // 100):
        insert(uri, 1)
    threads = [threading.Thread(target=insert, args=(uri, ROWS // 8)) for _ in range(8)]
    other = subprocess.Popen([sys.executable, __file__, library, uri])
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if other.wait() != 0:
        raise SystemExit("the second process failed")
    for _ in range(20):
        killed = subprocess.Popen([sys.executable, __file__, library, uri])
        time.sleep(0.3)
        killed.kill()
        killed.wait()
        insert(uri, 1)


def main() -> None:
    library = sys.argv[1]
    load(library)
    if len(sys.argv) > 2:
        insert(sys.argv[2], ROWS // 8)
        return
    with tempfile.TemporaryDirectory() as directory:
        exercise(f"file:{directory}/load.db?vfs=onewrite", library)


main()
