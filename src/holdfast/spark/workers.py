"""pyspark's daemon of Python workers, with two differences. Spark runs this module with `python -m`.

When a session stops, the JVM closes the socket of an idle worker and sends it a signal; a worker that sees the socket
first prints a traceback about a broken pipe, although nothing was lost. That one is not printed; every other is.

The daemon collects garbage after every task and would look at all modules each time, for a tenth of a second. What the
first task of a worker has loaded is left out from then on.
"""

from __future__ import annotations

import gc
import sys
import traceback
from collections.abc import Callable
from typing import Any

from pyspark import daemon


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


def freezing_after_the_first(work: Callable[..., Any]) -> Callable[..., Any]:
    """That worker, whose modules are out of the collector's sight once it has done a task."""
    tasks = 0

    def work_and_freeze(*args: Any, **kwargs: Any) -> Any:
        nonlocal tasks
        code = work(*args, **kwargs)
        tasks += 1
        if tasks == 1:
            gc.collect()
            gc.freeze()
        return code

    return work_and_freeze


if __name__ == "__main__":
    daemon.worker = freezing_after_the_first(daemon.worker)
    traceback.print_exc = quiet_on_hangup(traceback.print_exc)
    daemon.manager()
