"""onewrite for Python: durable SQLite commits with one block write and one flush.

    import onewrite
    db = onewrite.connect("app.db")          # a sqlite3.Connection

Everything else opens ``file:app.db?vfs=onewrite`` as a URI after ``onewrite.load()``.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

from ._load import NotPossible, load, loadable_path

__all__ = [
    "Error", "NotPossible", "connect", "explain", "last_error", "load", "loadable_path", "stats", "status", "uri", "version",
]

#: What ``sqlite3.connect`` takes; every other keyword of ``connect`` is a setting of onewrite's.
_OF_SQLITE3 = {
    "timeout", "detect_types", "isolation_level", "check_same_thread", "factory", "cached_statements", "autocommit",
}


class Error(sqlite3.OperationalError):
    """An open that failed, with what onewrite says about it."""


def uri(path: str | os.PathLike[str], /, **settings: object) -> str:
    """The URI that opens ``path`` through onewrite with these settings: ``uri("app.db", log_size="8m")``.

    ``path`` may be a ``file:`` URI itself. Databases that have no file stay as they are.
    """
    name = os.fspath(path)
    if name in ("", ":memory:") or (name.startswith("file:") and ("mode=memory" in name or name.startswith("file::memory:"))):
        return name
    if not name.startswith("file:"):
        # Two slashes at the front would begin the name of a host.
        name = "file:" + quote("/" + name.lstrip("/") if name.startswith("/") else name, safe="/")
    name, has_fragment, fragment = name.partition("#")
    given = {"vfs": "onewrite", **settings}
    if "vfs=" in name:
        del given["vfs"]
    query = "&".join(f"{key}={quote(_text(value), safe='/')}" for key, value in given.items())
    joint = "" if not query else "&" if "?" in name else "?"
    return name + joint + query + has_fragment + fragment


def _text(value: object) -> str:
    return str(int(value)) if isinstance(value, bool) else str(value)


def connect(path: str | os.PathLike[str], *, module: Any = sqlite3, **settings: Any) -> Any:
    """Opens a database through onewrite: ``connect("app.db", log_size="8m", timeout=10)``.

    Takes what ``sqlite3.connect`` takes, and onewrite's settings. ``module`` is another module of the same interface:
    ``pysqlite3.dbapi2`` for one.
    """
    load(module=module)
    of_sqlite3 = {key: settings.pop(key) for key in list(settings) if key in _OF_SQLITE3}
    name = uri(path, **settings)
    try:
        db = module.connect(name, uri=True, **of_sqlite3)
    except module.OperationalError as error:
        why = last_error(module=module)
        if why is None:
            raise
        raise Error(f"{error}: {why}") from None
    _check_open(db, module)
    return db


def _check_open(db: Any, module: Any) -> None:
    """SQLite looks into a file with the first statement, which may find that it cannot be opened: its log is missing, for
    one. Any other error is that statement's, and a file that is in use is not waited for."""
    try:
        (waits_ms,) = db.cursor().execute("PRAGMA busy_timeout").fetchone()
        db.cursor().execute("PRAGMA busy_timeout=0")
        try:
            db.cursor().execute("PRAGMA schema_version").fetchone()
        finally:
            db.cursor().execute(f"PRAGMA busy_timeout={int(waits_ms)}")
    except module.Error as error:
        why = last_error(module=module) if str(error) == _CANNOT_OPEN else None
        if why is not None:
            db.close()
            raise Error(f"{error}: {why}") from None


_CANNOT_OPEN = "unable to open database file"

#: SQLite's messages for errors that files have. Of others, as of wrong SQL, the message tells all, and the last reason is an
#: older one's.
_OF_A_FILE = (
    _CANNOT_OPEN, "attempt to write a readonly database", "database disk image is malformed", "database is locked",
    "database or disk is full", "disk I/O error", "file is not a database", "unable to open database: ",
)


@contextlib.contextmanager
def explain(*, module: Any = sqlite3) -> Iterator[None]:
    """Adds onewrite's reason to the message of an error: ``with onewrite.explain(): db.execute(sql)``. The error stays the
    same object."""
    try:
        yield
    except module.Error as error:
        said = str(error)
        why = last_error(module=module) if said.startswith(_OF_A_FILE) else None
        if why is not None and why not in said:
            error.args = (f"{said}: {why}", *error.args[1:])
        raise


def last_error(*, module: Any = sqlite3) -> str | None:
    """What went wrong in onewrite's last failed call on this thread; ``None`` if the last error was not onewrite's."""
    return _ask(module.connect(":memory:"), "SELECT onewrite_last_error()", close=True)


def version(*, module: Any = sqlite3) -> str:
    """The version of the library in effect."""
    load(module=module)
    return _ask(module.connect(":memory:"), "SELECT onewrite_version()", close=True)


def status(db: Any, schema: str = "main") -> str:
    """Whether and how onewrite serves a database of this connection: ``in_effect=yes`` or ``in_effect=no: why``, and more
    lines."""
    return _ask(db, "SELECT onewrite_status(?)", schema)


def stats(db: Any, schema: str = "main") -> dict[str, int | float]:
    """The counters of a database: commits, bytes, flushes, checkpoints. An error if onewrite does not serve it."""
    return dict(db.execute("SELECT name, value FROM onewrite_stats(?)", (schema,)).fetchall())


def _ask(db: Any, sql: str, *values: object, close: bool = False) -> Any:
    try:
        return db.execute(sql, values).fetchone()[0]
    finally:
        if close:
            db.close()
