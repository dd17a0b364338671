"""A plugin for Datasette. Installed is not switched on: ``ONEWRITE_DEFAULT=1 datasette app.db``, or in its configuration
``plugins: {onewrite: {}}``. Every database is opened through onewrite then."""

from __future__ import annotations

import onewrite
from datasette import hookimpl
from datasette.utils.sqlite import sqlite3  # pysqlite3, where that is installed
from onewrite._load import variable

if variable("ONEWRITE_DEFAULT", "0") != "0":
    onewrite.load(module=sqlite3)


@hookimpl
def startup(datasette):
    if datasette.plugin_config("onewrite") is not None:
        onewrite.load(default=True, module=sqlite3)
