"""What pages, REST and the live channel read: the configuration file, its settings and its store."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast.assemble import StoredPipeline
from holdfast.config.models import Settings
from holdfast.configured_store import fleet
from holdfast.errors import NotFound
from holdfast.flow.run import ENDED, Run, run_of, runs_of
from holdfast.leases.query import Query
from holdfast.leases.store import Store
from holdfast.observe import insights
from holdfast.observe.insights import HeldBySession, NodeView, Numbered
from holdfast.observe.overview import overview
from holdfast.observe.partition_snapshots import Held
from holdfast.registry import did_you_mean
from holdfast.runs.reindex_start import reindex_runs
from holdfast.web.pace import Pace
from holdfast.web.readings import COSTLY_EVERY, EVERY, SHARE
from holdfast.web.snapshots import Snapshots


class Holdings:
    """What sessions hold over several pipelines, made anew only when one of these has changed."""

    def __init__(self) -> None:
        self._latest: tuple[Sequence[Held], HeldBySession] = ((), {})

    def of(self, found: Sequence[Held]) -> HeldBySession:
        """Return number and shards of what each session holds in all of these together."""
        before, made = self._latest
        if len(before) != len(found) or any(old is not new for old, new in zip(before, found, strict=True)):
            held: dict[str | None, list[Numbered]] = defaultdict(list)
            for of_pipeline in found:
                for session, numbered in of_pipeline.items():
                    held[session] += numbered
            made = insights.held_by_session(held)
            self._latest = (found, made)
        return made


@dataclass(frozen=True)
class Dashboard:
    """A fleet as viewers see it. `read_only`: there are no actions. `allow_edit`: the file may be saved."""

    file: Path
    settings: Settings
    store: Store
    read_only: bool = False
    allow_edit: bool = False
    snapshots: Snapshots = field(init=False, repr=False, compare=False)
    holdings: Holdings = field(default_factory=Holdings, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        every = COSTLY_EVERY if self.store.charges_for_reads else EVERY
        object.__setattr__(self, "snapshots", Snapshots(self.store, Pace(every, SHARE)))

    @property
    def fleet(self) -> str:
        """The name under which the store keeps the rows of the nodes."""
        return fleet(self.settings)

    @property
    def pipelines(self) -> Mapping[str, str]:
        """The identifiers in the store by the names in the file."""
        return {name: self.settings.identifier(name) for name in self.settings.pipelines}

    def overview(self, pipeline: str | None = None) -> dict[str, Any]:
        """Return what `holdfast status --json` prints, of all pipelines or of one. Raises `StoreUnavailable`."""
        wanted = self.pipelines if pipeline is None else {pipeline: self.identifier(pipeline)}
        return overview(self.store, self.fleet, wanted, lambda *which: self.snapshots.get(*which).sums)

    def nodes(self, pipelines: Iterable[str]) -> list[NodeView]:
        """Return all sessions, with the leases of these pipelines, given by name. Raises `StoreUnavailable`."""
        identifiers = [self.identifier(name) for name in pipelines]
        found = [self.snapshots.held(identifier, run) for identifier in identifiers for run in self._runs(identifier)]
        known = [held for held in found if held is not None]
        if len(known) < len(found):
            return insights.nodes(self.store, self.fleet, identifiers)
        return insights.nodes_holding(self.store, self.fleet, self.holdings.of(known))

    def _runs(self, identifier: str) -> list[str]:
        """The live pipeline and its runs that have not ended."""
        rows = self.store.find(Query(runs_of(identifier)))
        return ["", *(row.key for row in rows if row.unreadable is not None or run_of(row).status not in ENDED)]

    def reindex_runs(self) -> list[Run]:
        """Return the reindex runs of all pipelines, the latest first. Raises `StoreUnavailable`."""
        found = [
            run
            for name in self.settings.pipelines
            for run in reindex_runs(StoredPipeline(self.settings, self.store, name))
        ]
        return sorted(found, key=lambda run: -(run.created_at or 0.0))

    def identifier(self, pipeline: str) -> str:
        """Return the identifier of a pipeline. Raises `NotFound` if the file has none of this name."""
        if pipeline not in self.settings.pipelines:
            hint = did_you_mean(pipeline, self.settings.pipelines)
            raise NotFound(f"there is no pipeline {pipeline!r} in {self.file.name}{hint}")
        return self.settings.identifier(pipeline)
