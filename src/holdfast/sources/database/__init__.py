"""The source `database`: tables of PostgreSQL, MariaDB, MySQL or SQLite, read by runs while they change."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.registry import Plugin
from holdfast.sources.database.config import DatabaseConfig

if TYPE_CHECKING:
    from holdfast.sources.database.source import DatabaseSource


def build(config: DatabaseConfig) -> DatabaseSource:
    """Return the source with these settings; opens nothing yet."""
    from holdfast.sources.database.source import DatabaseSource

    return DatabaseSource(config)


PLUGIN = Plugin("database", DatabaseConfig, build, "Rows of database tables, copied by runs while they change.")
