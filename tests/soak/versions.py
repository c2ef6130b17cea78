"""The next version of holdfast, as far as it can be had today: tables with more in them, and rows that say more."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import replace

from holdfast.leases.lease import Lease, Progress
from holdfast.leases.store import Outcome, Swap
from tests.soak.hazards import WrappedStore

EXTRA = "flavour"
"""A key in bodies, and a column, that this version does not know."""

_TABLES = {
    "sqlite": "holdfast.stores.sqlite",
    "postgresql": "holdfast.stores.postgresql.tables",
    "mysql": "holdfast.stores.mysql.tables",
}
_STEPS = {
    "sqlite": (
        f"ALTER TABLE lease ADD COLUMN \"{EXTRA}\" TEXT NOT NULL DEFAULT 'plain'",
        f'CREATE INDEX by_{EXTRA} ON lease ("pipeline", "{EXTRA}")',
    ),
    "postgresql": (
        f"ALTER TABLE {{lease}} ADD COLUMN \"{EXTRA}\" text NOT NULL DEFAULT 'plain'",
        f'CREATE INDEX ON {{lease}} ("pipeline", "{EXTRA}")',
    ),
    # A step may be repeated here, because DDL commits by itself.
    "mysql": (
        f"ALTER TABLE {{lease}} ADD COLUMN IF NOT EXISTS \"{EXTRA}\" VARBINARY(100) NOT NULL DEFAULT 'plain'",
        f'CREATE INDEX IF NOT EXISTS "by_{EXTRA}" ON {{lease}} ("pipeline", "{EXTRA}")',
    ),
}


def upgrade_tables(store: str) -> None:
    """Let this process know one more version of that store's tables, which only adds."""
    tables = importlib.import_module(_TABLES[store])
    tables.MIGRATIONS = (*tables.MIGRATIONS, _STEPS[store])  # type: ignore[attr-defined]
    tables.SCHEMA_VERSION = len(tables.MIGRATIONS)  # type: ignore[attr-defined]


class TalkativeStore(WrappedStore):
    """Writes rows as a later version might: with a key more in the body, and in what nodes say of themselves."""

    def add(self, leases: Sequence[Lease]) -> list[Outcome]:
        return self.inner.add([_more(lease) for lease in leases])

    def swap(self, swaps: Sequence[Swap]) -> list[Outcome]:
        return self.inner.swap([Swap(swap.version, _more(swap.lease)) for swap in swaps])


def _more(lease: Lease) -> Lease:
    lease = replace(lease, extra={**lease.extra, EXTRA: {"of": "the next version"}})
    if not lease.pipeline.endswith("$nodes"):
        return lease
    return replace(lease, progress=Progress(state={**lease.progress.state, EXTRA: "vanilla"}))
