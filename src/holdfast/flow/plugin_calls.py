"""Calls of plugins: the error of one partition stays its own, and the error of a mere notification stops nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from holdfast.errors import Interrupted
from holdfast.events import Event, Notice

T = TypeVar("T")
R = TypeVar("R")


def call_isolated(
    call: Callable[[Sequence[T]], Sequence[R]], items: Sequence[T], *passes: type[Exception]
) -> list[R | Exception]:
    """What the call returns for each item, or the error that it raises for that item alone.

    The call is made for all items at once; if it raises, for each half of them, until the culprits are alone. It must
    be repeatable. `Interrupted` and the errors that `passes` names concern all items and are raised.
    """
    if not items:
        return []
    try:
        results = list(call(items))
        if len(results) == len(items):
            return list(results)
        error: Exception = ValueError(f"{len(results)} results were returned for {len(items)} partitions")
    except Exception as raised:
        if isinstance(raised, (Interrupted, *passes)):
            raise
        error = raised
    if len(items) == 1:
        return [error]
    middle = len(items) // 2
    return call_isolated(call, items[:middle], *passes) + call_isolated(call, items[middle:], *passes)


@contextmanager
def reported(emit: Callable[[Event], None], call: str) -> Iterator[None]:
    """For a call that only notifies a plugin: its error is emitted as a notice and not raised."""
    try:
        yield
    except Interrupted:
        raise
    except Exception as error:  # noqa: BLE001 - plugins are foreign code
        emit(Notice(f"{call} has failed, which changes nothing for the partitions: {describe(error)}"))


def describe(error: Exception) -> str:
    """The error for people, with its type: the text of a `KeyError` alone says nothing."""
    return f"{type(error).__name__}: {error}"
