#!/usr/bin/env python3
"""Drives an example: `drive.py [--table NAME] COMMAND...` starts its server twice, with DATABASE and PORT in the environment.

Notes are sent and read back. The server is killed with SIGKILL and started again, and each acknowledged note must be there. It is
stopped with SIGTERM then, and stock SQLite must read its file.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor

START_SECONDS = 60
NOTES = 40


def free_port() -> int:
    with socket.socket() as any_port:
        any_port.bind(("127.0.0.1", 0))
        return any_port.getsockname()[1]


class Server:
    def __init__(self, command: list[str], database: str) -> None:
        port = free_port()
        self.address = f"http://127.0.0.1:{port}"
        environment = {**os.environ, "DATABASE": database, "PORT": str(port), "ONEWRITE_LOG": "stderr"}
        self.process = subprocess.Popen(command, env=environment, start_new_session=True)
        end = time.monotonic() + START_SECONDS
        while True:
            try:
                self.get("/status")
                return
            except OSError:
                if self.process.poll() is not None or time.monotonic() > end:
                    self.signal(signal.SIGKILL)
                    raise SystemExit(f"FAILED: {command[0]} does not serve") from None
                time.sleep(0.1)

    def get(self, path: str):
        with urllib.request.urlopen(self.address + path, timeout=30) as answer:
            return json.load(answer)

    def post(self, text: str) -> None:
        request = urllib.request.Request(
            self.address + "/notes", json.dumps({"text": text}).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            if answer.status != 201:
                raise SystemExit(f"FAILED: a note was answered with {answer.status}")

    def signal(self, number: int) -> None:
        """SIGKILL also to the workers that the server started; else it ends them itself. A worker that hears of SIGTERM twice is
        killed by the second, while its interpreter ends."""
        try:
            (os.killpg if number == signal.SIGKILL else os.kill)(self.process.pid, number)
        except ProcessLookupError:
            pass
        try:
            self.process.wait(timeout=START_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            raise SystemExit(f"FAILED: the server does not end at {signal.Signals(number).name}") from None


def require(fact: bool, text: str) -> None:
    print(("ok: " if fact else "FAILED: ") + text, flush=True)
    if not fact:
        sys.exit(1)


def drive(command: list[str], table: str, database: str) -> None:
    notes = [f"note {n}" for n in range(NOTES)]
    server = Server(command, database)
    try:
        status = server.get("/status")["onewrite"]
        require(status.startswith("in_effect=yes"), "onewrite is in effect")
        with ThreadPoolExecutor(4) as clients:
            list(clients.map(server.post, notes))
        require(sorted(server.get("/notes")) == sorted(notes), f"{NOTES} notes of 4 clients are read back")
    finally:
        server.signal(signal.SIGKILL)
    server = Server(command, database)
    try:
        require(sorted(server.get("/notes")) == sorted(notes), "after SIGKILL each of them is there")
        server.post("the last one")
    finally:
        server.signal(signal.SIGTERM)
    with sqlite3.connect(database) as stock:
        found = stock.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
        sound = stock.execute("PRAGMA integrity_check").fetchone()[0]
    require((found, sound) == (NOTES + 1, "ok"), "after SIGTERM stock SQLite reads the file")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--table", default="note")
    options.add_argument("--before", help="a command that makes the tables")
    options.add_argument("command", nargs=argparse.REMAINDER)
    given = options.parse_args()
    with tempfile.TemporaryDirectory(prefix="onewrite-example-") as directory:
        database = os.path.join(directory, "notes.db")
        if given.before:
            subprocess.run(given.before, shell=True, check=True, env={**os.environ, "DATABASE": database})
        drive(given.command, given.table, database)


main()
