"""How `holdfast run` shows its progress: a live table on a terminal, else an event per pipeline every few seconds."""

from __future__ import annotations

import io
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, TextIO

from holdfast.events import PipelineProgressed
from holdfast.leases.store import Store
from holdfast.leases.sums import sums
from holdfast.observe.consumers import Consumer
from holdfast.observe.insights import nodes
from holdfast.observe.partition_counts import COSTLY_EVERY, SHARE
from holdfast.observe.progress import Progress, rounded, shortened

if TYPE_CHECKING:
    from rich.table import Table

EVERY = 10.0
"""Least seconds between two reads of the store, and seconds between two lines without a terminal."""
SOON = 2.0
"""Seconds between two looks at a store without rows, for the table: it should not say 0/0 for long."""
LAST_READ = 1.0
"""Seconds that a read may take from the time that a node has for stopping."""
REFRESH = 0.5
_COLUMNS = ("PIPELINE", "PARTITIONS", "RECORDS", "RATE", "LAG", "LEFT", "ERRORS", "FAILED", "DEAD", "NODES")


class LogStream(io.TextIOBase):
    """Writes to whatever stderr is now: the live table replaces it, so that log lines appear above the table."""

    def write(self, text: str) -> int:
        return sys.stderr.write(text)

    def flush(self) -> None:
        sys.stderr.flush()


class Display:
    """Shows the progress of pipelines while a node works.

    `names`: the names to show, by the pipelines' names in the store. `fleet`: that of the nodes that are counted.
    """

    def __init__(
        self,
        progress: Progress,
        names: Mapping[str, str],
        emit: Consumer,
        *,
        live: bool,
        fleet: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._progress = progress
        self._fleet = fleet
        self._names = names
        self._emit = emit
        self._live = live
        self._clock = clock
        self._over = threading.Event()

    @contextmanager
    def showing(self, store: Store) -> Iterator[None]:
        """Show progress until the block ends. Errors of the store are left to the node, which reports them."""
        with self._table() if self._live else nullcontext():
            reader = threading.Thread(target=self._read, args=[store], daemon=True)
            reader.start()
            try:
                yield
            finally:
                self._over.set()
                reader.join(timeout=LAST_READ)

    def _read(self, store: Store) -> None:
        due = self._clock()
        while not self._over.wait(min(SOON, EVERY) if self._live else EVERY):
            if self._clock() >= due:
                due = self._learn(store)
            if not self._live:
                self._report()
        if self._live:
            self._learn(store)

    def _report(self) -> None:
        for event in self._progress.now(advance=True):
            if event.partitions or event.records:  # before that, Spark starts and partitions are being found
                self._emit(event)

    def _learn(self, store: Store) -> float:
        """Read the sums of the store, and return when they may be read next."""
        started, empty = self._clock(), False
        with suppress(Exception):  # the store may be closed meanwhile, and progress never fails a node
            found = {name: sums(store, name, "") for name in self._names}
            empty = not any(found.values())
            self._progress.learn(found, self._nodes(store) if self._fleet else None)
        ended = self._clock()
        # Without rows, a read costs next to nothing.
        soonest, least = (EVERY, COSTLY_EVERY) if store.charges_for_reads else (0.0, EVERY)
        return ended + max(soonest if empty else least, SHARE * (ended - started))

    def _nodes(self, store: Store) -> Mapping[str, int]:
        return Counter(name for node in nodes(store, self._fleet, ()) if node.alive for name in node.pipelines)

    @contextmanager
    def _table(self) -> Iterator[None]:
        from rich.console import Console
        from rich.live import Live

        console = Console(file=sys.stderr, no_color=bool(os.environ.get("NO_COLOR")), highlight=False)
        shown = Live(console=console, get_renderable=self._rows, refresh_per_second=1 / REFRESH, redirect_stdout=False)
        with shown:
            yield

    def _rows(self) -> Table:
        from rich.table import Table

        table = Table(box=None, pad_edge=False, header_style="bold")
        for name in _COLUMNS:
            table.add_column(name, justify="left" if name == _COLUMNS[0] else "right")
        for event in self._progress.recent():
            table.add_row(*_cells(self._names[event.pipeline], event))
        return table


def _cells(name: str, event: PipelineProgressed) -> Iterable[str]:
    yield name
    yield f"{event.completed:,}/{event.partitions:,}"
    yield rounded(event.records)
    yield f"{rounded(event.rate)}/s"
    yield "-" if event.lag is None else rounded(event.lag)
    yield "-" if event.seconds_left is None else shortened(event.seconds_left)
    for count in (event.errors, event.failed):
        yield f"[red]{count:,}[/red]" if count else "0"
    yield f"[yellow]{event.dead:,}[/yellow]" if event.dead else "0"
    yield str(event.nodes)


def is_terminal(stream: TextIO) -> bool:
    """Whether people watch the stream: it is a terminal, and this process is not one of its background jobs."""
    if not stream.isatty() or os.environ.get("TERM") == "dumb":
        return False
    try:
        return os.tcgetpgrp(stream.fileno()) == os.getpgrp()
    except OSError:  # the process has left the terminal, for example by setsid
        return False
