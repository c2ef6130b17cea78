"""Reindex runs as views in the store's database, under the names of OpenMetadata's tables.

Queries and dashboards that were written for those tables read the views instead. The three tables are
`search_index_job` (runs), `search_index_partition` and `search_reindex_lock`. Times are milliseconds since 1970.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

from holdfast.flow.run import runs_of

RUN_VIEWS = ("search_index_job", "search_index_partition", "search_reindex_lock")


class ViewedRuns(NamedTuple):
    """The runs that the views show: those of these pipelines whose configuration has that kind."""

    pipelines: Sequence[str]
    """Names of the pipelines in the store."""
    fleet: str
    """The pipeline name under which the fleet's node rows are kept."""
    kind: str

    @property
    def run_rows(self) -> list[str]:
        """The pipeline names under which the rows of the runs are kept."""
        return [runs_of(pipeline) for pipeline in self.pipelines]


class HasRunViews(ABC):
    """A capability of stores in an SQL database: they offer runs as views.

    Both methods raise `StoreUnavailable`, and `StoreError` without the right to create views. They may be repeated.
    """

    @abstractmethod
    def create_run_views(self, runs: ViewedRuns) -> None:
        """Create the views; existing ones are replaced. Raises `StoreError` if a table has one of their names."""

    @abstractmethod
    def remove_run_views(self) -> None:
        """Remove the views that exist. Tables of these names are kept."""
