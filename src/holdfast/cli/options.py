"""Arguments and options that several commands share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.errors import UsageError

if TYPE_CHECKING:
    from holdfast.config.models import Settings
    from holdfast.leases.store import Store

File = Annotated[str, typer.Argument(metavar="FILE", help="The configuration file.")]
AsJson = Annotated[bool, typer.Option("--json", metavar="", help="Print JSON on stdout, and nothing else.")]
PipelineName = Annotated[
    str | None,
    typer.Option("--pipeline", metavar="NAME", help="Which pipeline; not needed if the file has only one."),
]


def chosen_pipeline(settings: Settings, asked: str | None) -> str:
    """The pipeline that is meant. Raises `UsageError` if that is not clear."""
    from holdfast.registry import did_you_mean

    names = list(settings.pipelines)
    if asked is not None and asked not in names:
        hint = did_you_mean(asked, names) or f"; it has {', '.join(names) or 'none'}"
        raise UsageError(f"there is no pipeline {asked!r} in this file{hint}")
    if asked is not None:
        return asked
    if not names:
        raise UsageError("this file has no pipelines")
    if len(names) > 1:
        raise UsageError(f"this file has several pipelines; add --pipeline with one of {', '.join(names)}")
    return names[0]


@contextmanager
def opened_store(settings: Settings) -> Iterator[Store]:
    """The store of the file. Raises `UsageError` for one that only its own process can see."""
    from holdfast import assemble

    store = assemble.open_store(settings, create=False)
    try:
        if not store.shared:
            name = settings.coordination.store.name
            raise UsageError(
                f"the store {name} can be seen by its own process only; "
                "configure a shared one, such as sqlite, to look at it from outside"
            )
        yield store
    finally:
        store.close()
