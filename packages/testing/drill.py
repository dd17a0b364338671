#!/usr/bin/env python3
"""What every package must pass, whatever its language: `drill.py WORKER...`.

The worker is a program that opens databases through its language's binding. It is called with one more argument of

    write FILE WRITER COUNT   creates the table, then inserts rows (WRITER, 0), (WRITER, 1), ... one transaction each, and
                              prints each number when its commit has returned
    read FILE                 prints "WRITER COUNT MAX" for each writer, through onewrite
    status FILE               asks for journal_mode=WAL, writes a row, prints onewrite_status(), then "commits=N" of the table onewrite_stats
    stock FILE                opens the file with the same binding without onewrite: prints integrity_check, then the number of rows
    wrong FILE                opens with the setting logsize=8m and prints the error's text
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile

WORKER = sys.argv[1:]
TIMEOUT = 120


def run(*arguments: str) -> str:
    done = subprocess.run([*WORKER, *arguments], capture_output=True, text=True, timeout=TIMEOUT)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join([*WORKER, *arguments])}: status {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def rows(path: str) -> dict[str, tuple[int, int]]:
    lines = (line.split() for line in run("read", path).splitlines())
    return {writer: (int(count), int(last)) for writer, count, last in lines}


def require(truth: object, what: str) -> None:
    if not truth:
        raise SystemExit(f"FAILED: {what}")
    print(f"ok: {what}", flush=True)


def killed_writer_loses_nothing(path: str) -> None:
    """SIGKILL in the middle of commits, several times over one file."""
    total = 0
    for life in range(3):
        name = f"life{life}"
        writer = subprocess.Popen([*WORKER, "write", path, name, "1000000"], stdout=subprocess.PIPE, text=True)
        acknowledged = -1
        for line in writer.stdout:
            acknowledged = int(line)
            if acknowledged >= 150 + 61 * life:
                break
        writer.send_signal(signal.SIGKILL)
        rest = [int(line) for line in writer.stdout.read().split("\n")[:-1]]
        writer.wait()
        acknowledged = max([acknowledged, *rest])
        if acknowledged < 150:
            raise SystemExit(f"FAILED: the writer ended by itself after {acknowledged}")
        if life == 0:
            with open(path, "rb") as file:
                if file.read(20)[19] != 87:
                    raise SystemExit("FAILED: no mark on the file of a killed writer: it was stock SQLite's")
        count, last = rows(path).get(name, (0, -1))
        if not (count == last + 1 and last >= acknowledged):
            raise SystemExit(f"FAILED: {acknowledged + 1} acknowledged, {count} there, the last of them {last}")
        total += count
    require(sum(count for count, _ in rows(path).values()) == total, f"3 killed writers: each acknowledged row of {total} is there")


def two_processes_write_at_once(path: str) -> None:
    run("write", path, "before", "1")
    commands = [[*WORKER, "write", path, name, "300"] for name in ("left", "right")]
    writers = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for command in commands]
    for writer in writers:
        out, err = writer.communicate(timeout=TIMEOUT)
        if writer.returncode != 0 or out.split()[-1:] != ["299"]:
            raise SystemExit(f"FAILED: a writer beside another: status {writer.returncode}, {out[-40:]!r}, {err}")
    found = rows(path)
    require((found["left"], found["right"]) == ((300, 299), (300, 299)), "two processes wrote at once, 300 rows each")


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="onewrite-drill-") as directory:
        path = os.path.join(directory, "drill.db")
        status = run("status", os.path.join(directory, "status.db"))
        commits = [int(line.split("=")[1]) for line in status.splitlines() if line.startswith("commits=")]
        require(status.startswith("in_effect=yes"), "onewrite_status() says that it is in effect")
        require("\njournal_mode=wal: answered" in status, "PRAGMA journal_mode=WAL is answered, and it stays in effect")
        require(commits and commits[-1] > 0, f"onewrite_stats counts commits: {commits}")
        killed_writer_loses_nothing(path)
        two_processes_write_at_once(path)
        wrong = run("wrong", os.path.join(directory, "wrong.db"))
        require("logsize" in wrong and "log_size" in wrong, "a wrong setting is an error that names the choices")
        expected = sum(count for count, _ in rows(path).values())
        stock = run("stock", path).split()
        require(stock == ["ok", str(expected)], f"stock SQLite reads the closed file: {stock}")


main()
