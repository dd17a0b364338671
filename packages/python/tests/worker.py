"""The worker of packages/testing/drill.py, in Python."""

import sqlite3
import sys

import onewrite


def main(what, path, *rest):
    if what == "stock":
        db = sqlite3.connect(path)
        print(db.execute("PRAGMA integrity_check").fetchone()[0], db.execute("SELECT count(*) FROM t").fetchone()[0])
        return
    if what == "wrong":
        try:
            onewrite.connect(path, logsize="8m")
        except onewrite.Error as e:
            print(e)
        return
    db = onewrite.connect(path, timeout=60, isolation_level=None)
    if what == "read":
        for row in db.execute("SELECT writer, count(*), max(n) FROM t GROUP BY writer"):
            print(*row)
        return
    db.execute("CREATE TABLE IF NOT EXISTS t(writer TEXT, n INTEGER)")
    if what == "status":
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("INSERT INTO t VALUES ('status', 0)")
        print(onewrite.status(db))
        print(f"commits={onewrite.stats(db)['commits']}")
        return
    writer, count = rest
    for n in range(int(count)):
        db.execute("INSERT INTO t VALUES (?, ?)", (writer, n))
        print(n, flush=True)


main(*sys.argv[1:])
