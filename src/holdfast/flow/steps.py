"""The steps of a turn, as the keeper hears of them: it renews the session while the present one is within its limit."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from holdfast.flow.sink import PublishesFiles, Sink


class Steps:
    """Declares one step after the other to whoever watches, and more time for one that makes progress."""

    def __init__(self, limit: float, sinks: Iterable[Sink]) -> None:
        """`limit`: seconds that a step may take, or a part of it after which one of the sinks tells of progress."""
        for sink in sinks:
            if isinstance(sink, PublishesFiles):
                sink.report_progress_to(self.progress)
        self._limit = limit
        self._name = ""
        self._declare: Callable[[str, float], None] = _to_nobody

    def watched_by(self, declare: Callable[[str, float], None]) -> None:
        """From now on, name and limit of each step go there."""
        self._declare = declare

    def begin(self, name: str) -> None:
        self._name = name
        self._declare(name, self._limit)

    def progress(self) -> None:
        """Part of the present step is done, and the next part may take as long again. Any thread may call it."""
        self._declare(self._name, self._limit)


def _to_nobody(_name: str, _limit: float) -> None:
    return
