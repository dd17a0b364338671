"""Test databases: a file and its log are cloned and removed together."""

from __future__ import annotations

import os
import sys

import onewrite
from django.db.backends.sqlite3 import creation


def _remove(name):
    for suffix in ("", "-onewrite"):
        if os.path.exists(f"{name}{suffix}"):
            os.remove(f"{name}{suffix}")


class DatabaseCreation(creation.DatabaseCreation):
    def _create_test_db(self, verbosity, autoclobber, keepdb=False):
        name = super()._create_test_db(verbosity, autoclobber, keepdb)
        if not keepdb and not self.is_in_memory_db(name):
            _remove(name)
        return name

    def _clone_test_db(self, suffix, verbosity, keepdb=False):
        source = self.connection.settings_dict["NAME"]
        if self.is_in_memory_db(source):
            super()._clone_test_db(suffix, verbosity, keepdb)
            return
        target = self.get_test_db_clone_settings(suffix)["NAME"]
        if os.path.exists(target):
            if keepdb:
                return
            _remove(target)
        try:
            with onewrite.connect(source) as old, onewrite.connect(target) as new:
                old.backup(new)
            old.close()
            new.close()
        except Exception as e:
            self.log(f"Got an error cloning the test database: {e}")
            sys.exit(2)

    def _destroy_test_db(self, test_database_name, verbosity):
        if test_database_name and not self.is_in_memory_db(test_database_name):
            _remove(test_database_name)
