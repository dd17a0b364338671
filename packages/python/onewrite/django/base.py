"""``"ENGINE": "onewrite.django"``. Settings go into ``OPTIONS``: ``{"onewrite": {"log_size": "8m"}}``."""

from __future__ import annotations

import onewrite
from django.db.backends.sqlite3 import base

from .creation import DatabaseCreation


class DatabaseWrapper(base.DatabaseWrapper):
    creation_class = DatabaseCreation

    def get_connection_params(self):
        params = super().get_connection_params()
        settings = params.pop("onewrite", {})
        params["database"] = onewrite.uri(params["database"], **settings)
        onewrite.load()
        return params
