"""What commands list with `--json` and REST returns: nodes, pipelines, runs and generations as plain JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict

from holdfast.flow.generations import Generations
from holdfast.flow.run import Run
from holdfast.leases.controls import Controls
from holdfast.leases.store import Store
from holdfast.observe import insights
from holdfast.observe.insights import NodeView, Row


def node_rows(store: Store, fleet: str, pipelines: Iterable[str], *, ended: bool = False) -> list[Row]:
    """Return the nodes of a fleet with the leases of these pipelines; with `ended`, also sessions that have ended."""
    return rows_of_nodes(store, fleet, insights.nodes(store, fleet, pipelines), ended=ended)


def rows_of_nodes(store: Store, fleet: str, found: Iterable[NodeView], *, ended: bool = False) -> list[Row]:
    """Return these nodes; with `ended`, also sessions that have ended."""
    drained = Controls(store, str, fleet).drained()
    return [{**node.row(), "drained": node.name in drained} for node in found if ended or not node.ended]


def pipeline_states(store: Store, fleet: str, pipelines: Mapping[str, str]) -> dict[str, str]:
    """Return whether each pipeline is active or paused. `pipelines` maps names to identifiers."""
    paused = Controls(store, str, fleet).paused()
    return {name: "paused" if identifier in paused else "active" for name, identifier in pipelines.items()}


def run_rows(runs: Iterable[Run]) -> list[Row]:
    """Return runs, the oldest first."""
    return [asdict(run) for run in sorted(runs, key=lambda run: run.created_at or 0.0)]


def run_row(run: Run) -> Row:
    """Return everything that is stored about a run, and how much is left."""
    return {**asdict(run), "total": run.total, "seconds_left": run.seconds_left}


def generation_rows(generations: Generations) -> list[Row]:
    """Return the generations of a pipeline, and which of them is current."""
    registered = list(generations.list())
    current = generations.current()[0] if registered else None
    return [asdict(generation) | {"current": generation.number == current} for generation in registered]
