"""Ends the process if a handler takes too long, also if it never lets go of Python's lock."""

from __future__ import annotations

import faulthandler
from collections.abc import Callable

_MARGIN = 1.0
_REARM = 0.5
_NEVER = float("inf")


def _end_process_after(seconds: float) -> None:
    # A thread of C, so that it also ends a handler that holds the GIL; it prints the tracebacks of all threads.
    # Descriptor 2, because sys.stderr may have been replaced by something that is not a file.
    faulthandler.dump_traceback_later(seconds, exit=True, file=2)


class CallWatchdog:
    """Ends the process when one call has taken `timeout` seconds and at most one second more.

    Arming it costs too much for every call; it is armed again twice per second.
    """

    def __init__(
        self,
        timeout: float | None,
        arm: Callable[[float], None] = _end_process_after,
        disarm: Callable[[], None] = faulthandler.cancel_dump_traceback_later,
    ) -> None:
        self._timeout = timeout
        self._arm = arm
        self._disarm = disarm
        self._idle = _NEVER if timeout is None else -_NEVER
        self.rearm_at = self._idle
        """When `begin` must be called before the next call, by the worker's clock."""

    def begin(self, now: float) -> None:
        """A call begins now. Has no effect before `rearm_at`."""
        if now >= self.rearm_at and self._timeout is not None:
            self._arm(self._timeout + _MARGIN)
            self.rearm_at = now + _REARM

    def end(self) -> None:
        """No call is running. May be repeated."""
        if self.rearm_at != self._idle:
            self._disarm()
            self.rearm_at = self._idle
