"""The dialects ``sqlite+onewrite:///app.db?log_size=8m`` and, with aiosqlite, ``sqlite+onewrite_aio:///app.db``.

Parameters of the URL that are not the driver's (``timeout``, ``isolation_level``, ...) are settings of onewrite's.
"""

from __future__ import annotations

import os

import onewrite
from sqlalchemy.dialects.sqlite.aiosqlite import SQLiteDialect_aiosqlite
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite

_OF_THE_DRIVER = {"uri", "timeout", "isolation_level", "detect_types", "check_same_thread", "cached_statements"}


class _Onewrite:
    supports_statement_cache = True

    @classmethod
    def load_provisioning(cls):
        # SQLAlchemy's own tests prepare databases as they do SQLite's.
        SQLiteDialect_pysqlite.load_provisioning()

    def create_connect_args(self, url):
        settings = {key: value for key, value in url.query.items() if key not in _OF_THE_DRIVER}
        is_uri = (url.database or "").startswith("file:")
        url = url.difference_update_query([*settings, "uri"])
        _, options = super().create_connect_args(url)
        if url.database and url.database != ":memory:":
            name = url.database if is_uri else os.path.abspath(url.database)
            return [onewrite.uri(name, **settings)], {**options, "uri": True}
        return [":memory:"], options


class Dialect(_Onewrite, SQLiteDialect_pysqlite):
    driver = "onewrite"
    supports_statement_cache = True

    @classmethod
    def import_dbapi(cls):
        onewrite.load()
        return super().import_dbapi()


class AsyncDialect(_Onewrite, SQLiteDialect_aiosqlite):
    driver = "onewrite_aio"
    supports_statement_cache = True

    @classmethod
    def import_dbapi(cls):
        onewrite.load()
        return super().import_dbapi()
