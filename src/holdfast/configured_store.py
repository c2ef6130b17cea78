"""From a configuration file to its store: all that a read-only command needs, so that it starts quickly."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.config.load import load
from holdfast.config.models import Settings
from holdfast.registry import Registry

if TYPE_CHECKING:
    from holdfast.leases.store import Store


def load_settings(path: str | Path, registry: Registry | None = None) -> Settings:
    """Return the file's settings. Raises `ConfigError` with the position of every problem.

    From then on this process finds the modules beside the file, after those that are installed.
    """
    settings = load(Path(path), registry or Registry.installed())
    find_modules_beside(settings)
    return settings


def find_modules_beside(settings: Settings) -> None:
    """Let this process import modules from the folder of the file."""
    if settings.folder is not None and str(settings.folder) not in sys.path:
        sys.path.append(str(settings.folder))


def fleet(settings: Settings) -> str:
    """Return the name under which the store keeps the rows of this fleet's nodes."""
    # The first line of `run` needs the settings only, and should not wait for the rest.
    from holdfast.leases.session import nodes_of

    return nodes_of(settings.coordination.partition_prefix or "")


def open_store(settings: Settings, registry: Registry | None = None, *, create: bool = True) -> Store:
    """Open the configured store. Without `create`, a store that does not exist yet is an error.

    Raises `StoreUnavailable` or `SchemaMismatch`.
    """
    use = settings.coordination.store
    config = use.config
    if not create and hasattr(config, "skip_table_creation"):
        config = config.model_copy(update={"skip_table_creation": True})
    store: Store = (registry or Registry.installed()).get("stores", use.name).build(config)
    store.open()
    return store
