"""`holdfast nodes`: lists the nodes."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli import output
from holdfast.cli.options import AsJson, File, controls_of, opened_store

if TYPE_CHECKING:
    from holdfast.observe.insights import NodeView

Ended = Annotated[bool, typer.Option("--all", metavar="", help="Also show sessions that have ended.")]
COLUMNS = ("NAME", "STATE", "LEASES", "SLOTS", "LAST HEARTBEAT", "SESSION", "PIPELINES")


def nodes(file: File, ended: Ended = False, json: AsJson = False) -> None:
    """List the nodes that share the file's store and prefix, and how many leases each holds.

    A node is alive while its last heartbeat is recent enough by the store's clock. With --json, each node also has the
    numbers of the partitions that it holds (`shards`, such as "0-3"), like members of a consumer group.
    """
    from holdfast.configured_store import fleet, load_settings
    from holdfast.observe import insights

    settings = load_settings(file)
    pipelines = [settings.identifier(name) for name in settings.pipelines]
    with opened_store(settings) as store:
        found = insights.nodes(store, fleet(settings), pipelines)
        drained = controls_of(settings, store).drained()
    shown = [node for node in found if ended or not node.ended]
    if json:
        output.say_json([{**node.row(), "drained": node.name in drained} for node in shown])
    else:
        output.say_table(COLUMNS, [_cells(node, drained) for node in shown])


def _cells(node: NodeView, drained: Collection[str]) -> tuple[object, ...]:
    pipelines = ", ".join(node.pipelines)
    state = "drained" if node.alive and node.name in drained else _state(node)
    return (node.name, state, node.leases, node.slots, node.last_heartbeat, node.session, pipelines)


def _state(node: NodeView) -> str:
    if node.ended:
        return "ended"
    if not node.alive:
        return "silent"
    return "draining" if node.draining else "alive"
