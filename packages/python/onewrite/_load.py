"""Getting the library into the SQLite that a module uses."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import os
import sqlite3
import sys
import threading
from typing import Any

_ENTRY = "sqlite3_onewrite_init"
_DEFAULT_ENTRY = "sqlite3_onewrite_default_init"
_LIBRARY = {"win32": "onewrite.dll", "darwin": "libonewrite.dylib"}.get(sys.platform, "libonewrite.so")

#: Modules whose SQLite has the library already, and whether it is the default there.
_loaded: dict[str, bool] = {}
_lock = threading.Lock()


class NotPossible(RuntimeError):
    """The SQLite of this Python cannot take the library; the message says why, and what can."""


def variable(name: str, otherwise: str) -> str:
    """A variable of the environment. In a privileged program (``AT_SECURE``) none counts, as in the library."""
    if not sys.platform.startswith("linux"):
        return os.environ.get(name, otherwise)
    at_secure = 23
    ask = ctypes.CDLL(None).getauxval
    ask.restype, ask.argtypes = ctypes.c_ulong, [ctypes.c_ulong]
    return otherwise if ask(at_secure) else os.environ.get(name, otherwise)


def loadable_path() -> str:
    """The file that SQLite loads: for ``.load`` and for bindings of other languages."""
    return os.path.join(os.path.dirname(os.path.abspath(__file__)), _LIBRARY)


def load(db: Any = None, *, default: bool | None = None, module: Any = sqlite3) -> None:
    """Makes the VFS ``onewrite`` known to the SQLite of a module, or of an open connection of any module.

    ``default=True`` makes it the VFS of every database that is opened without naming one; without it the environment
    variable ``ONEWRITE_DEFAULT=1`` says so. Connections that are open stay as they are.
    """
    make_default = default is True or (default is None and variable("ONEWRITE_DEFAULT", "0") != "0")
    if db is not None:
        _load_into(db, make_default)
        return
    with _lock:
        if _loaded.get(module.__name__, False) >= make_default and module.__name__ in _loaded:
            return
        loader = module.connect(":memory:")
        try:
            if hasattr(loader, "enable_load_extension"):
                _load_into(loader, make_default)
            else:
                _register_through_c(module, make_default)
        finally:
            loader.close()
        _loaded[module.__name__] = make_default


def _load_into(db: Any, make_default: bool) -> None:
    # sqlite3 and pysqlite3 call it enable_load_extension, and so does apsw, which had another name before.
    switch = getattr(db, "enable_load_extension", None) or getattr(db, "enableloadextension", None)
    if switch is None:
        _register_through_c(importlib.import_module(type(db).__module__), make_default)
        return
    switch(True)
    try:
        # ONEWRITE_DEFAULT with a wrong value is the first entry point's to refuse.
        wrong = variable("ONEWRITE_DEFAULT", "0") not in ("0", "1")
        entry = _DEFAULT_ENTRY if make_default and not wrong else _ENTRY
        cursor = db.cursor() if hasattr(db, "cursor") else db
        cursor.execute("SELECT load_extension(?, ?)", (loadable_path(), entry)).fetchone()
    finally:
        with contextlib.suppress(Exception):
            switch(False)


class _Api(ctypes.Structure):
    """``onewrite_api`` of ``onewrite.h``."""

    _functions = [
        "libversion_number", "vfs_find", "vfs_register", "malloc64", "log", "uri_parameter", "uri_boolean", "uri_key",
        "filename_journal", "filename_wal", "auto_extension", "get_autocommit", "txn_state",
    ]
    _fields_ = [("struct_bytes", ctypes.c_size_t), *((name, ctypes.c_void_p) for name in _functions)]


def _register_through_c(module: Any, make_default: bool) -> None:
    """For a Python that was built without ``enable_load_extension``: calls the functions of the SQLite that its module is
    linked to."""
    native = importlib.import_module("_sqlite3") if module.__name__ in ("sqlite3", "sqlite3.dbapi2") else module
    file = getattr(native, "__file__", None)
    # The handle of a library finds what its own dependencies define, and that of no file what the program does.
    sqlite = ctypes.CDLL(file)
    try:
        functions = {name: ctypes.cast(getattr(sqlite, f"sqlite3_{name}"), ctypes.c_void_p) for name in _Api._functions}
    except AttributeError:
        raise NotPossible(
            f"{native.__name__} of this Python has SQLite linked in statically and without enable_load_extension, so nothing "
            "can be added to it. Use another Python (Debian's, python.org's, conda's), or `pip install pysqlite3-binary` "
            "or apsw, and onewrite.load(connection)"
        ) from None
    sqlite.sqlite3_libversion.restype = ctypes.c_char_p
    if sqlite.sqlite3_libversion().decode() != module.sqlite_version:
        raise NotPossible(f"{file} does not lead to the SQLite that {module.__name__} uses")
    library = ctypes.CDLL(loadable_path())
    library.onewrite_last_error.restype = ctypes.c_char_p
    if make_default and variable("ONEWRITE_DEFAULT", "1") not in ("0", "1"):
        raise ValueError(f"ONEWRITE_DEFAULT={os.environ['ONEWRITE_DEFAULT']}: the choices are 1 (onewrite becomes the default VFS) and 0")
    if library.onewrite_register_api(ctypes.byref(_Api(ctypes.sizeof(_Api), *functions.values())), int(make_default)):
        raise NotPossible((library.onewrite_last_error() or b"onewrite was not registered").decode())
