"""`holdfast pipelines`, `holdfast drain` and `holdfast undrain`: pause pipelines, and drain nodes."""

from __future__ import annotations

import getpass
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli import output
from holdfast.cli.options import AsJson, File, PipelineName, chosen_pipeline, controls_of, opened_store
from holdfast.errors import UsageError

if TYPE_CHECKING:
    from holdfast.config.models import Settings
    from holdfast.leases.controls import Controls

NodeName = Annotated[str, typer.Argument(metavar="NODE", help="The node's name, as `holdfast nodes` shows it.")]
COLUMNS = ("PIPELINE", "STATE")


def list_pipelines(file: File, json: AsJson = False) -> None:
    """List the pipelines of a file, and which of them are paused."""
    with _controls(file) as (settings, controls):
        paused = controls.paused()
        states = {name: "paused" if settings.identifier(name) in paused else "active" for name in settings.pipelines}
    if json:
        output.say_json(states)
    else:
        output.say_table(COLUMNS, list(states.items()))


def pause(file: File, pipeline: PipelineName = None) -> None:
    """Let no node work on a pipeline and its runs. Nodes hand its partitions back within a heartbeat.

    Nothing is lost, and nothing else is stopped; it stays so until `holdfast pipelines resume`.
    """
    with _controls(file) as (settings, controls):
        name = chosen_pipeline(settings, pipeline)
        controls.pause(settings.identifier(name), getpass.getuser())
    output.say(f"pipeline {name} is paused")


def resume(file: File, pipeline: PipelineName = None) -> None:
    """Let nodes work on a paused pipeline again."""
    with _controls(file) as (settings, controls):
        name = chosen_pipeline(settings, pipeline)
        controls.resume(settings.identifier(name))
    output.say(f"pipeline {name} is active")


def drain(file: File, node: NodeName) -> None:
    """Let a node work on nothing: it hands its partitions back within a heartbeat, and takes none.

    The process keeps running, and waits until `holdfast undrain` lets it work again; so does a node that is restarted.
    """
    with _controls(file) as (settings, controls):
        _check_node(settings, controls, node)
        controls.drain(node, getpass.getuser())
    output.say(f"node {node} is drained")


def undrain(file: File, node: NodeName) -> None:
    """Let a drained node work again."""
    with _controls(file) as (settings, controls):
        _check_node(settings, controls, node)
        controls.undrain(node)
    output.say(f"node {node} may work")


def _check_node(settings: Settings, controls: Controls, name: str) -> None:
    """Raises `UsageError` for a name that no node has or had, unless it is drained."""
    from holdfast.assemble import fleet
    from holdfast.observe import insights
    from holdfast.registry import did_you_mean

    names = {node.name for node in insights.nodes(controls.store, fleet(settings), ())} | controls.drained()
    if name not in names:
        hint = did_you_mean(name, names) or f"; there are {', '.join(sorted(names)) or 'none'}"
        raise UsageError(f"there is no node {name!r}{hint}")


@contextmanager
def _controls(file: str) -> Iterator[tuple[Settings, Controls]]:
    from holdfast.configured_store import load_settings

    settings = load_settings(file)
    with opened_store(settings) as store:
        yield settings, controls_of(settings, store)
