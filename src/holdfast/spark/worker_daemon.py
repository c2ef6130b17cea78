"""pyspark's daemon of Python workers, with two differences. Spark runs this module with `python -m`.

When a session stops, the JVM closes the socket of an idle worker and sends it a signal; a worker that sees the socket
first prints a traceback about a broken pipe, although nothing was lost. That one is not printed; every other is.

The daemon collects garbage after every task and would look at all modules each time, for a tenth of a second. Whenever
a task leaves that much behind, what has outlived a collection is left out from then on.
"""

from __future__ import annotations

import gc
import sys
import traceback
from collections.abc import Callable
from typing import Any

from pyspark import daemon

MANY = 10_000
"""Objects that take the collector a millisecond or two."""
FREEZES = 8
"""More would keep what later tasks have put in a place of their own and thrown away."""


def quiet_on_hangup(print_traceback: Callable[..., None]) -> Callable[..., None]:
    """That printer, without the broken pipes that the daemon itself ran into."""

    def print_unless_hung_up(*args: Any, **kwargs: Any) -> None:
        error = sys.exception()
        if not (isinstance(error, BrokenPipeError) and _raised_in(error, daemon.__file__)):
            print_traceback(*args, **kwargs)

    return print_unless_hung_up


def _raised_in(error: BaseException, file: str) -> bool:
    frames = traceback.extract_tb(error.__traceback__)
    return bool(frames) and frames[-1].filename == file


def freezing_what_stays(work: Callable[..., Any]) -> Callable[..., Any]:
    """That worker, whose modules are out of the collector's sight once a task has loaded them."""
    left = FREEZES

    def work_and_freeze(*args: Any, **kwargs: Any) -> Any:
        nonlocal left
        code = work(*args, **kwargs)
        if left and len(gc.get_objects()) > MANY:
            gc.collect()
            if len(gc.get_objects()) > MANY:
                gc.freeze()
                left -= 1
        return code

    return work_and_freeze


if __name__ == "__main__":
    daemon.worker = freezing_what_stays(daemon.worker)
    traceback.print_exc = quiet_on_hangup(traceback.print_exc)
    daemon.manager()
