"""The wheel as installed, under what people use SQLite through. What is not installed is skipped by name."""

from __future__ import annotations

import asyncio
import concurrent.futures
import http.client
import os
import shutil
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time

import onewrite
import pytest


def in_effect(db) -> bool:
    return onewrite.status(db).startswith("in_effect=yes")


def python(code: str, *arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs code in a process of its own: the default VFS is a whole process's."""
    env = {**os.environ, **environment}
    return subprocess.run([sys.executable, "-c", code, *map(str, arguments)], capture_output=True, text=True, env=env, timeout=60)


def test_connect_gives_a_connection_of_sqlite3(tmp_path):
    path = tmp_path / "a b?%#.db"
    db = onewrite.connect(path, log_size="512k", timeout=3)
    assert isinstance(db, sqlite3.Connection) and in_effect(db)
    assert db.execute("PRAGMA onewrite_log_size").fetchone() == ("524288",)
    with db:
        db.execute("CREATE TABLE t(a)")
        db.execute("INSERT INTO t VALUES (1)")
    assert onewrite.stats(db)["commits"] > 0 and isinstance(onewrite.stats(db)["bytes_per_commit"], float)
    db.close()
    assert path.exists()
    stock = sqlite3.connect(path)
    assert stock.execute("SELECT a FROM t").fetchall() == [(1,)]
    assert not in_effect(stock)
    assert onewrite.version().count(".") == 2


@pytest.mark.parametrize("path", ["x.db", "/tmp/x.db", "//tmp/x.db", "file:x.db", "file:x.db?mode=ro", "file:x.db#here"])
def test_uri_keeps_what_a_path_says(path):
    made = onewrite.uri(path, log_size="8m", sticky=True)
    assert "vfs=onewrite" in made and "log_size=8m&sticky=1" in made and not made.startswith("file://tmp")
    assert made.endswith("#here") == ("#" in path)
    assert onewrite.uri(":memory:") == ":memory:" and onewrite.uri("file::memory:?cache=shared") == "file::memory:?cache=shared"


def test_an_open_that_fails_says_why(tmp_path):
    with pytest.raises(onewrite.Error, match="logsize.*do you mean log_size"):
        onewrite.connect(tmp_path / "x.db", logsize="8m")
    assert "logsize" in onewrite.last_error()
    with pytest.raises(sqlite3.OperationalError, match="scheme=fast.*wal-opt"):
        onewrite.connect(tmp_path / "x.db", scheme="fast")


def killed(path):
    """A database whose process was killed."""
    python(
        "import onewrite, os, sys; db = onewrite.connect(sys.argv[1], isolation_level=None); db.execute('CREATE TABLE t(a)'); os.kill(os.getpid(), 9)",
        path,
    )


def test_an_open_of_a_database_without_its_log_says_why(tmp_path):
    killed(tmp_path / "x.db")
    (tmp_path / "x.db-onewrite").unlink()
    with pytest.raises(onewrite.Error, match="unable to open database file: .*its log .*x.db-onewrite is missing"):
        onewrite.connect(tmp_path / "x.db")


def test_a_database_that_is_in_use_is_not_waited_for_in_connect(tmp_path):
    holder = sqlite3.connect(tmp_path / "x.db", isolation_level=None)
    holder.execute("CREATE TABLE t(a)")
    holder.execute("BEGIN EXCLUSIVE")
    db = onewrite.connect(tmp_path / "x.db", timeout=60)
    assert db.execute("PRAGMA busy_timeout").fetchone() == (60000,)
    holder.close()
    assert db.execute("SELECT * FROM t").fetchall() == []


def test_an_error_is_explained(tmp_path):
    db = onewrite.connect(tmp_path / "x.db", isolation_level=None)
    db.execute("CREATE TABLE t(a)")
    (tmp_path / "x.db").rename(tmp_path / "y.db")
    (tmp_path / "x.db").write_bytes(b"")
    with pytest.raises(sqlite3.OperationalError, match="^attempt to write a readonly database: .*x.db"):
        for _ in range(1000):
            with onewrite.explain():
                db.execute("INSERT INTO t VALUES (1)")
    with pytest.raises(sqlite3.OperationalError, match="^no such table: no_such$"), onewrite.explain():
        db.execute("SELECT * FROM no_such")


def test_the_default_is_made_by_argument_and_by_environment(tmp_path):
    code = "import onewrite, sqlite3, sys; onewrite.load(%s); print(onewrite.status(sqlite3.connect(sys.argv[1])).split()[0])"
    assert python(code % "", tmp_path / "x.db").stdout == "in_effect=no:\n"
    assert python(code % "default=True", tmp_path / "x.db").stdout == "in_effect=yes\n"
    assert python(code % "", tmp_path / "x.db", ONEWRITE_DEFAULT="1").stdout == "in_effect=yes\n"
    assert "ONEWRITE_DEFAULT=yes" in python(code % "", tmp_path / "x.db", ONEWRITE_DEFAULT="yes").stderr


def test_a_privileged_python_takes_no_default_from_the_environment():
    if os.geteuid() != 0 or not shutil.which("setcap", path=os.defpath + ":/usr/sbin:/sbin"):
        pytest.skip("needs root and setcap")
    code = "import onewrite, sqlite3; onewrite.load(); print(onewrite.status(sqlite3.connect('a.db')).split()[0])"
    with tempfile.TemporaryDirectory() as directory:
        os.chmod(directory, 0o777)
        program = shutil.copy(os.path.realpath(sys.executable), directory)
        shutil.copytree(os.path.dirname(onewrite.__file__), os.path.join(directory, "onewrite"))
        env = {"ONEWRITE_DEFAULT": "1", "PYTHONPATH": directory, "PYTHONHOME": sys.base_prefix, "PYTHONDONTWRITEBYTECODE": "1"}
        run = lambda: subprocess.run([program, "-c", code], capture_output=True, text=True, env=env, cwd=directory, user=1000, timeout=60)
        assert run().stdout == "in_effect=yes\n", run().stderr
        subprocess.run(["setcap", "cap_net_raw+ep", program], check=True, env={"PATH": os.defpath + ":/usr/sbin:/sbin"})
        assert run().stdout == "in_effect=no:\n", run().stderr


def test_errors_are_logged_where_the_environment_says(tmp_path):
    code = "import onewrite, sys\ntry: onewrite.connect(sys.argv[1], logsize=1)\nexcept onewrite.Error: pass"
    assert "unknown URI parameter" in python(code, tmp_path / "x.db", ONEWRITE_LOG="stderr").stderr


def test_pysqlite3(tmp_path):
    dbapi = pytest.importorskip("pysqlite3.dbapi2")
    assert in_effect(onewrite.connect(tmp_path / "x.db", module=dbapi))


def test_apsw(tmp_path):
    apsw = pytest.importorskip("apsw")
    onewrite.load(apsw.Connection(":memory:"))
    db = apsw.Connection(str(tmp_path / "x.db"), vfs="onewrite")
    assert in_effect(db)
    db.close()
    db = apsw.Connection(
        onewrite.uri(tmp_path / "x.db", log_size="8m"),
        flags=apsw.SQLITE_OPEN_URI | apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE,
    )
    assert db.execute("PRAGMA onewrite_log_size").fetchone() == (str(8 << 20),)


def test_aiosqlite(tmp_path):
    aiosqlite = pytest.importorskip("aiosqlite")

    async def main():
        onewrite.load()
        async with aiosqlite.connect(onewrite.uri(tmp_path / "x.db"), uri=True) as db:
            async with db.execute("SELECT onewrite_status()") as cursor:
                return (await cursor.fetchone())[0]

    assert asyncio.run(main()).startswith("in_effect=yes")


def test_sqlalchemy(tmp_path):
    sqlalchemy = pytest.importorskip("sqlalchemy")
    for engine in (
        sqlalchemy.create_engine(f"sqlite+onewrite:///{tmp_path}/x.db?log_size=8m&timeout=7"),
        sqlalchemy.create_engine(f"sqlite+onewrite:///file:{tmp_path}/y.db?uri=true&log_size=8m"),
    ):
        with engine.begin() as db:
            assert db.exec_driver_sql("SELECT onewrite_status()").scalar().startswith("in_effect=yes")
            assert db.exec_driver_sql("PRAGMA onewrite_log_size").scalar() == str(8 << 20)
            db.exec_driver_sql("CREATE TABLE t(a)")
        assert sqlalchemy.inspect(engine).get_table_names() == ["t"]
        engine.dispose()
    with sqlalchemy.create_engine("sqlite+onewrite://").connect() as db:
        assert db.exec_driver_sql("SELECT 1").scalar() == 1
    with pytest.raises(sqlalchemy.exc.OperationalError):
        sqlalchemy.create_engine(f"sqlite+onewrite:///{tmp_path}/z.db?logsize=8m").connect()


def test_sqlalchemy_with_asyncio(tmp_path):
    aio = pytest.importorskip("sqlalchemy.ext.asyncio")
    pytest.importorskip("aiosqlite")
    pytest.importorskip("greenlet")

    async def main():
        engine = aio.create_async_engine(f"sqlite+onewrite_aio:///{tmp_path}/x.db?log_size=8m")
        async with engine.connect() as db:
            answer = (await db.exec_driver_sql("SELECT onewrite_status()")).scalar()
        await engine.dispose()
        return answer

    assert asyncio.run(main()).startswith("in_effect=yes")


DJANGO = """
import sys
from django.conf import settings
settings.configure(
    DATABASES={"default": {"ENGINE": "onewrite.django", "NAME": sys.argv[1], "OPTIONS": {"timeout": 20, "onewrite": {"log_size": "8m"}}}},
    INSTALLED_APPS=["django.contrib.contenttypes", "django.contrib.auth"], USE_TZ=True,
)
import django
django.setup()
from django.core.management import call_command
from django.db import connection
from django.contrib.auth.models import User
call_command("migrate", verbosity=0)
User.objects.create_user("someone")
with connection.cursor() as cursor:
    cursor.execute("SELECT onewrite_status()")
    print(cursor.fetchone()[0].split()[0], User.objects.count())
    cursor.execute("PRAGMA onewrite_log_size")
    print(cursor.fetchone()[0])
"""


def test_django(tmp_path):
    pytest.importorskip("django")
    done = python(DJANGO, tmp_path / "x.db")
    assert done.stdout == f"in_effect=yes 1\n{8 << 20}\n", done.stderr


PRELOADED = """
import os, sys
import flask, sqlalchemy

engine = sqlalchemy.create_engine(f"sqlite+onewrite:///{sys.argv[-1]}?timeout=30")
# The pool keeps these connections, and each worker gets them by fork().
with engine.begin() as db, engine.connect() as reader:
    db.exec_driver_sql("CREATE TABLE served(worker, request)")
    assert reader.exec_driver_sql("SELECT onewrite_status()").scalar().startswith("in_effect=yes")
app = flask.Flask(__name__)

@app.post("/<int:request>")
def serve(request):
    with engine.begin() as db:
        db.exec_driver_sql("INSERT INTO served VALUES (?, ?)", (os.getpid(), request))
    with engine.connect() as db:
        return str(db.exec_driver_sql("SELECT count(*) FROM served WHERE request = ?", (request,)).scalar())

from gunicorn.app.base import BaseApplication

class Server(BaseApplication):
    def load_config(self):
        for name, value in {"bind": f"unix:{sys.argv[-1]}.socket", "workers": 4, "preload_app": True, "timeout": 120}.items():
            self.cfg.set(name, value)

    def load(self):
        return app

Server().run()
"""


def post(socket_path: str, path: str) -> str:
    connection = http.client.HTTPConnection("localhost", timeout=120)
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.connect(socket_path)
    connection.request("POST", path)
    answer = connection.getresponse().read().decode()
    connection.close()
    return answer


def test_flask_with_sqlalchemy_under_gunicorn_preload(tmp_path):
    for package in ("flask", "gunicorn", "sqlalchemy"):
        pytest.importorskip(package)
    path = tmp_path / "x.db"
    with open(tmp_path / "log", "w+") as log:
        server = subprocess.Popen([sys.executable, "-c", PRELOADED, str(path)], stdout=log, stderr=log)
        try:
            deadline = time.monotonic() + 60
            while not os.path.exists(f"{path}.socket") and server.poll() is None and time.monotonic() < deadline:
                time.sleep(0.05)
            with concurrent.futures.ThreadPoolExecutor(8) as clients:
                answers = list(clients.map(lambda request: post(f"{path}.socket", f"/{request}"), range(1600)))
        finally:
            server.terminate()
            server.wait(60)
        log.seek(0)
        assert answers.count("1") == 1600, log.read()
    stock = sqlite3.connect(path)
    assert stock.execute("SELECT count(*), count(DISTINCT request), count(DISTINCT worker) FROM served").fetchone() == (1600, 1600, 4)
    assert stock.execute("PRAGMA integrity_check").fetchone() == ("ok",)


DATASETTE = """
import asyncio, sys
from datasette.app import Datasette
async def main():
    plugins = {"plugins": {"onewrite": {}}}
    try: ds = Datasette([sys.argv[1]], config=plugins)
    except TypeError: ds = Datasette([sys.argv[1]], metadata=plugins)  # before 1.0
    await ds.invoke_startup()
    db = ds.get_database("x")
    await db.execute_write("CREATE TABLE t(a)")
    await db.execute_write("INSERT INTO t VALUES (1)")
    print((await db.execute_write_fn(lambda c: c.execute("SELECT onewrite_status()").fetchone()[0])).split()[0])
    print((await db.execute("SELECT count(*) FROM t")).first()[0])
asyncio.run(main())
"""


def test_datasette(tmp_path):
    pytest.importorskip("datasette")
    sqlite3.connect(tmp_path / "x.db").execute("VACUUM")
    done = python(DATASETTE, tmp_path / "x.db")
    assert done.stdout == "in_effect=yes\n1\n", done.stderr


def test_sqlite_utils(tmp_path):
    pytest.importorskip("sqlite_utils")
    path = str(tmp_path / "x.db")

    def run(*arguments: str, **environment: str) -> str:
        command = [sys.executable, "-m", "sqlite_utils", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, input='{"a": 1}', env={**os.environ, **environment}, timeout=60)
        assert done.returncode == 0, done.stderr
        return done.stdout

    run("insert", path, "t", "-", ONEWRITE_DEFAULT="1")
    assert run("onewrite-status", path, ONEWRITE_DEFAULT="1").startswith("in_effect=yes")
    assert run("onewrite-status", path).startswith("in_effect=no")
    assert run("rows", path, "t") == '[{"a": 1}]\n'
