"""A plugin for sqlite-utils. Installed is not switched on: ``ONEWRITE_DEFAULT=1 sqlite-utils insert app.db ...`` opens
every database through onewrite. ``sqlite-utils onewrite-status app.db`` says whether it is in effect."""

from __future__ import annotations

import click
import onewrite
from onewrite._load import variable
from sqlite_utils import hookimpl
from sqlite_utils.utils import sqlite3  # pysqlite3 or sqlean, where that is installed

if variable("ONEWRITE_DEFAULT", "0") != "0":
    onewrite.load(module=sqlite3)


@hookimpl
def register_commands(cli):
    @cli.command(name="onewrite-status")
    @click.argument("path", type=click.Path(exists=True, dir_okay=False))
    def onewrite_status(path):
        "Whether databases that this command opens are opened through onewrite"
        onewrite.load(module=sqlite3)
        db = sqlite3.connect(path)
        click.echo(onewrite.status(db))
        db.close()
