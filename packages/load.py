#!/usr/bin/env python3
"""The load by which a release build is laid out. The package `onewrite` on PYTHONPATH has a library that counts its branches.

Commits and reads as applications do them: alone, in threads, beside a second process, and after one that was killed. Status 2: this
Python's SQLite cannot take the library.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import onewrite

ROWS = 20_000
INSERT = "INSERT INTO t VALUES(random(), randomblob(100), 1)"
LOOKUP = "SELECT n FROM t WHERE k >= random() LIMIT 1"
SOME_ROW = "(SELECT k FROM t WHERE k >= random() LIMIT 1)"
MANY_ROWS = f"INSERT INTO t WITH RECURSIVE c(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM c WHERE i < {ROWS}) SELECT random(), i, i FROM c"


def connect(path: str) -> Any:
    return onewrite.connect(path, isolation_level=None, timeout=20)


def repeat(path: str, times: int, *statements: str) -> None:
    """On a connection of its own."""
    db = connect(path)
    for _ in range(times):
        for statement in statements:
            db.execute(statement).fetchall()
    db.close()


def exercise(path: str) -> None:
    repeat(path, 1, "CREATE TABLE t(k INTEGER PRIMARY KEY, v BLOB, n INT)")
    repeat(path, ROWS, INSERT)
    # The first commit makes the file live, and the lookups read it so.
    db = connect(path)
    db.execute(INSERT)
    repeat(path, ROWS // 2, LOOKUP)
    db.close()
    change = [f"UPDATE t SET n = n + 1 WHERE k = {SOME_ROW}", f"DELETE FROM t WHERE k = {SOME_ROW}"]
    repeat(path, ROWS // 10, *change, "BEGIN", LOOKUP, INSERT, "COMMIT")
    repeat(path, 1, MANY_ROWS)
    repeat(path, 20, "SELECT sum(n) FROM t")
    repeat(path, ROWS // 2, LOOKUP)
    for _ in range(ROWS // 100):
        repeat(path, 1, INSERT)
    second = [sys.executable, __file__, path]
    threads = [threading.Thread(target=repeat, args=(path, ROWS // 8, INSERT)) for _ in range(8)]
    with subprocess.Popen(second) as other:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    if other.returncode != 0:
        raise SystemExit("the second process failed")
    for _ in range(20):
        with subprocess.Popen(second) as killed:
            time.sleep(0.3)
            killed.kill()
        repeat(path, 1, INSERT)


def main() -> None:
    if len(sys.argv) > 1:
        repeat(sys.argv[1], ROWS // 8, INSERT)
        return
    try:
        onewrite.load()
    except onewrite.NotPossible as error:
        print(error, file=sys.stderr)
        sys.exit(2)
    with tempfile.TemporaryDirectory() as directory:
        exercise(str(Path(directory, "load.db")))


main()
