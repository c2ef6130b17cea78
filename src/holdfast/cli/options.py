"""Arguments and options shared by several commands."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.errors import UsageError

if TYPE_CHECKING:
    from holdfast.assemble import Emit, StoredPipeline
    from holdfast.config.models import Settings
    from holdfast.leases.store import Store
    from holdfast.runs.actions import Actions, PipelineActions

File = Annotated[str, typer.Argument(metavar="FILE", help="The configuration file.")]
AsJson = Annotated[bool, typer.Option("--json", metavar="", help="Print only JSON to stdout.")]
PipelineName = Annotated[
    str | None,
    typer.Option("--pipeline", metavar="NAME", help="Name of the pipeline; not needed if the file has only one."),
]


Why = Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why; kept in the audit log.")]
Rate = Annotated[str, typer.Argument(metavar="RATE", help="Records per second over all nodes; `none`: no limit.")]


def rate_of(text: str) -> float | None:
    """Return the rate; None for `none`. Raises `UsageError` for anything that is not a positive number."""
    if text == "none":
        return None
    try:
        rate = float(text)
    except ValueError:
        rate = 0.0
    if not 0 < rate < float("inf"):
        raise UsageError(f"{text!r} is neither a number of records per second nor `none`")
    return rate


def text_of(file: str) -> str:
    """Return the text of a file that is not a configuration of holdfast. Raises `UsageError` if it cannot be read."""
    try:
        return Path(file).read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise UsageError(f"the file {file} cannot be read: {reason}") from None


def chosen_pipeline(settings: Settings, wanted: str | None) -> str:
    """Return the pipeline to work on. Raises `UsageError` if it is unknown or ambiguous."""
    names = list(settings.pipelines)
    if wanted is not None:
        check_pipelines(settings, [wanted])
        return wanted
    if not names:
        raise UsageError("this file has no pipelines")
    if len(names) > 1:
        raise UsageError(f"this file has several pipelines; add --pipeline with one of {', '.join(names)}")
    return names[0]


def check_pipelines(settings: Settings, wanted: Iterable[str]) -> None:
    """Raise `UsageError` if one of these pipelines is unknown."""
    from holdfast.registry import did_you_mean

    names = list(settings.pipelines)
    for name in wanted:
        if name not in names:
            hint = did_you_mean(name, names) or f"; it has {', '.join(names) or 'none'}"
            raise UsageError(f"there is no pipeline {name!r} in this file{hint}")


@contextmanager
def opened_store(settings: Settings) -> Iterator[Store]:
    """Open the store of the file. Raises `UsageError` for a store that only one process can use."""
    from holdfast.configured_store import open_store

    store = open_store(settings, create=False)
    try:
        if not store.shared:
            name = settings.coordination.store.name
            raise UsageError(
                f"the store {name} is visible only inside the process that runs the pipeline; "
                "configure a shared one, such as sqlite, to use this command"
            )
        yield store
    finally:
        store.close()


def actions_of(settings: Settings, store: Store, reason: str) -> Actions:
    """Return the actions of the person who has started this command."""
    import socket

    from holdfast.leases.action import Request
    from holdfast.runs.actions import Actions

    return Actions(settings, store, Request(_user(), "cli", socket.gethostname(), reason))


def pipeline_actions(pipeline: StoredPipeline, reason: str, emit: Emit = lambda _event: None) -> PipelineActions:
    """Return the actions on this pipeline, in the name of the person who has started this command."""
    return actions_of(pipeline.settings, pipeline.store, reason).pipeline(pipeline.name, emit)


def _user() -> str:
    import getpass
    import os

    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container may run under a number without a name
        return f"user {os.getuid()}"


def node_names(pipeline: StoredPipeline) -> dict[str, str]:
    """Return the names of the nodes by their sessions."""
    from holdfast.assemble import fleet
    from holdfast.observe.insights import nodes

    return {node.session: node.name for node in nodes(pipeline.store, fleet(pipeline.settings), ())}


def arguments_of(file: str, pipeline: StoredPipeline) -> str:
    """Return what a command needs after its name to work on this pipeline, for messages that name the next command."""
    return file if len(pipeline.settings.pipelines) == 1 else f"{file} --pipeline {pipeline.name}"


@contextmanager
def opened_pipeline(file: str, pipeline: str | None) -> Iterator[StoredPipeline]:
    """Open a pipeline of the file with its store. Raises `UsageError` like `chosen_pipeline` and `opened_store`."""
    from holdfast.assemble import StoredPipeline, load_settings

    settings = load_settings(file)
    name = chosen_pipeline(settings, pipeline)
    with opened_store(settings) as store:
        yield StoredPipeline(settings, store, name)
