"""Arguments and options shared by several commands."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.errors import UsageError

if TYPE_CHECKING:
    from holdfast.assemble import StoredPipeline
    from holdfast.config.models import Settings
    from holdfast.leases.controls import Controls
    from holdfast.leases.store import Store

File = Annotated[str, typer.Argument(metavar="FILE", help="The configuration file.")]
AsJson = Annotated[bool, typer.Option("--json", metavar="", help="Print only JSON to stdout.")]
PipelineName = Annotated[
    str | None,
    typer.Option("--pipeline", metavar="NAME", help="Name of the pipeline; not needed if the file has only one."),
]


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
        raise UsageError(f"the file {file} cannot be read: {error}") from None


def chosen_pipeline(settings: Settings, wanted: str | None) -> str:
    """Return the pipeline to work on. Raises `UsageError` if it is unknown or ambiguous."""
    from holdfast.registry import did_you_mean

    names = list(settings.pipelines)
    if wanted is not None and wanted not in names:
        hint = did_you_mean(wanted, names) or f"; it has {', '.join(names) or 'none'}"
        raise UsageError(f"there is no pipeline {wanted!r} in this file{hint}")
    if wanted is not None:
        return wanted
    if not names:
        raise UsageError("this file has no pipelines")
    if len(names) > 1:
        raise UsageError(f"this file has several pipelines; add --pipeline with one of {', '.join(names)}")
    return names[0]


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


def controls_of(settings: Settings, store: Store) -> Controls:
    """Return the controls of the file's fleet."""
    from holdfast.configured_store import fleet
    from holdfast.leases.controls import Controls

    return Controls(store, lambda: uuid.uuid4().hex, fleet(settings))


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
