"""`holdfast nodes`, `drain`, `undrain`, `pipelines` and `audit-log`: what people ask of nodes and pipelines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli import output
from holdfast.cli.options import AsJson, File, PipelineName, Why, actions_of, chosen_pipeline, opened_store

if TYPE_CHECKING:
    from holdfast.leases.action import Entry
    from holdfast.runs.actions import Actions

NodeName = Annotated[str, typer.Argument(metavar="NODE", help="The node's name, as `holdfast nodes` shows it.")]
Ended = Annotated[bool, typer.Option("--all", metavar="", help="Also show sessions that have ended.")]
Limit = Annotated[int, typer.Option("--limit", min=1, max=1000, metavar="N", help="Show at most this many.")]
Before = Annotated[
    str | None,
    typer.Option("--before", metavar="ID", help="Only actions before the one with this id, which --json shows."),
]
NODES = ("NAME", "STATE", "LEASES", "SLOTS", "LAST HEARTBEAT", "SESSION", "PIPELINES")
PIPELINES = ("PIPELINE", "STATE")
ACTIONS = ("TIME", "WHO", "VIA", "ACTION", "PIPELINE", "NUMBER", "KEYS", "REASON", "OUTCOME", "MESSAGE")


def nodes(file: File, ended: Ended = False, json: AsJson = False) -> None:
    """List the nodes that share the file's store and prefix, and how many leases each holds.

    A node is alive while its last heartbeat is recent enough by the store's clock. With --json, each node also has the
    numbers of the partitions that it holds (`shards`, such as "0-3"), like members of a consumer group.
    """
    from holdfast.configured_store import fleet, load_settings
    from holdfast.observe.listings import node_rows

    settings = load_settings(file)
    pipelines = [settings.identifier(name) for name in settings.pipelines]
    with opened_store(settings) as store:
        found = node_rows(store, fleet(settings), pipelines, ended=ended)
    if json:
        output.say_json(found)
    else:
        output.say_table(NODES, [_node_cells(node) for node in found])


def _node_cells(node: Mapping[str, Any]) -> tuple[object, ...]:
    numbers = (node["leases"], node["slots"], node["last_heartbeat"])
    return (node["name"], _node_state(node), *numbers, node["session"], ", ".join(node["pipelines"]))


def _node_state(node: Mapping[str, Any]) -> str:
    if node["ended"]:
        return "ended"
    if not node["alive"]:
        return "silent"
    return "drained" if node["drained"] else "draining" if node["draining"] else "alive"


def list_pipelines(file: File, json: AsJson = False) -> None:
    """List the pipelines of a file, and which of them are paused."""
    from holdfast.configured_store import fleet, load_settings
    from holdfast.observe.listings import pipeline_states

    settings = load_settings(file)
    identifiers = {name: settings.identifier(name) for name in settings.pipelines}
    with opened_store(settings) as store:
        states = pipeline_states(store, fleet(settings), identifiers)
    if json:
        output.say_json(states)
    else:
        output.say_table(PIPELINES, list(states.items()))


def pause(file: File, pipeline: PipelineName = None, reason: Why = "") -> None:
    """Let no node work on a pipeline and its runs. Nodes hand its partitions back within a heartbeat.

    Nothing is lost, and nothing else is stopped; the pipeline stays paused until `holdfast pipelines resume`.
    """
    with _actions(file, reason) as actions:
        name = chosen_pipeline(actions.settings, pipeline)
        actions.pause(name)
    output.say(f"pipeline {name} is paused")


def resume(file: File, pipeline: PipelineName = None, reason: Why = "") -> None:
    """Let nodes work on a paused pipeline again."""
    with _actions(file, reason) as actions:
        name = chosen_pipeline(actions.settings, pipeline)
        actions.resume(name)
    output.say(f"pipeline {name} is active")


def drain(file: File, node: NodeName, reason: Why = "") -> None:
    """Let a node work on nothing: it hands its partitions back within a heartbeat, and takes none.

    The process keeps running, and waits until `holdfast undrain` lets it work again; so does a node that is restarted
    under this name.
    """
    with _actions(file, reason) as actions:
        actions.drain(node)
    output.say(f"node {node} is drained")


def undrain(file: File, node: NodeName, reason: Why = "") -> None:
    """Let a drained node work again."""
    with _actions(file, reason) as actions:
        actions.undrain(node)
    output.say(f"node {node} may work")


def audit_log(file: File, limit: Limit = 50, before: Before = None, json: AsJson = False) -> None:
    """List what people have done by commands, on pages and through the API, the latest first.

    Each action is written down before it is done, and its outcome afterwards: done, partly, refused, or unknown if the
    action is under way or its process has died. Entries are kept for 30 days, at most 10,000 of them and 1,000 logins.
    """
    from holdfast.assemble import audit_log_of, load_settings

    settings = load_settings(file)
    with opened_store(settings) as store:
        found = audit_log_of(settings, store).list(before, limit)
    if json:
        output.say_json([entry.row() for entry in found])
    else:
        output.say_table(ACTIONS, [_entry_cells(entry) for entry in found])


@contextmanager
def _actions(file: str, reason: str) -> Iterator[Actions]:
    from holdfast.configured_store import load_settings

    settings = load_settings(file)
    with opened_store(settings) as store:
        yield actions_of(settings, store, reason)


def _entry_cells(entry: Entry) -> tuple[Any, ...]:
    row = entry.row()
    at, origin = row.get("at"), row.get("origin")
    time = None if at is None else datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds")
    who = f"{row.get('who')}@{origin}" if origin else row.get("who")
    named = [row.get(name) or None for name in ("via", "action", "pipeline", "number")]
    keys, reason = ", ".join(row.get("keys", ())) or None, row.get("reason") or None
    return (time, who, *named, keys, reason, row["outcome"], row["message"])
