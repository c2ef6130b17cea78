"""pyspark's daemon of Python workers, silent about the sockets that a stopping session closed.

Spark runs this module with `python -m`. When a session stops, the JVM closes the socket of an idle worker
and sends it a signal; a worker that sees the socket first prints a traceback about a broken pipe, although
nothing was lost. Every other traceback is printed as ever.
"""

from __future__ import annotations

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


if __name__ == "__main__":
    traceback.print_exc = quiet_on_hangup(traceback.print_exc)
    daemon.manager()
