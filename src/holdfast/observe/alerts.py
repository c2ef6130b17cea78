"""Alerts: events that need a person, raised once instead of a thousand times.

Most kinds are raised at once. An unreachable server raises an alert only after a while: the event of a failed call
contains when it will be repeated; until then the server counts as unreachable, and after that its state is unknown
until the next event.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from holdfast.config.alerts import AlertSettings
from holdfast.config.units import format_duration
from holdfast.events import AlertCleared, AlertRaised, Event, LagMeasured
from holdfast.leases.world import HostClock
from holdfast.observe.alert_kinds import KINDS, LAGGING, AlertKind, Sign, Subject, sign_of, subject_of, within_limits
from holdfast.observe.consumers import Consumer, Reporter
from holdfast.observe.log import in_words
from holdfast.observe.webhook import Webhook

ASSUMED_REACHABLE_AFTER = 300.0
"""Seconds without a failed call, after the next one was due, after which a server counts as reachable again.

As long as a round of Spark may take, because an unreachable sink is noticed only when the round writes.
"""
MOST_OF_A_KIND = 1000
"""Alerts of one kind that are tracked at a time."""
TICK = 1.0


@dataclass(slots=True)
class _Trouble:
    """One problem, from its first sign until it is over."""

    since: float
    sure_until: float
    message: str
    raised_at: float | None = None


class Alerts:
    """Raises and clears alerts through `emit`, which must not call back into this object. Thread-safe.

    There is one alert for each kind, pipeline and key until it is cleared. It is raised again if its cause is still
    reported after `repeat_after`. It is cleared by an event that proves its end, or when its cause was not reported for
    `repeat_after` (for an unreachable server: no failed call for five minutes). `tick` must be called about every
    second, because some alerts depend on time alone.
    """

    def __init__(
        self,
        settings: AlertSettings,
        emit: Callable[[Event], None],
        clock: Callable[[], float] | None = None,
    ) -> None:
        """`clock` returns seconds and advances while the host is suspended."""
        self._settings = settings
        self._emit = emit
        self._clock = clock or HostClock().monotonic
        self._troubles: dict[AlertKind, dict[Subject, _Trouble]] = defaultdict(dict)
        # Alerts are emitted under the lock, so that none is cleared before it is raised.
        self._lock = threading.Lock()

    def __call__(self, event: Event) -> None:
        """Raise or clear the alerts that the event concerns."""
        with self._lock:
            for kind in _ENDED_BY.get(type(event), ()):
                self._end(kind, event)
            if isinstance(event, LagMeasured) and within_limits(event, self._settings):
                self._end(LAGGING, event)
            sign = sign_of(event, self._settings)
            if sign is not None:
                self._follow(sign, self._clock())

    def tick(self) -> None:
        """Raise and clear the alerts that are due."""
        with self._lock:
            now = self._clock()
            for kind, troubles in self._troubles.items():
                for subject, trouble in list(troubles.items()):
                    self._raise_if_due(kind, subject, trouble, now)
                    self._clear_if_silent(kind, subject, trouble, now)

    def _follow(self, sign: Sign, now: float) -> None:
        troubles = self._troubles[sign.kind]
        if sign.subject not in troubles and len(troubles) >= MOST_OF_A_KIND:
            self._clear(sign.kind, next(iter(troubles)), "there are too many alerts of this kind to track")
        trouble = troubles.setdefault(sign.subject, _Trouble(now, now, sign.message))
        trouble.sure_until = max(trouble.sure_until, now + sign.lasts)
        trouble.message = sign.message
        self._raise_if_due(sign.kind, sign.subject, trouble, now)

    def _raise_if_due(self, kind: AlertKind, subject: Subject, trouble: _Trouble, now: float) -> None:
        if trouble.raised_at is not None:
            due = trouble.raised_at + self._settings.repeat_after
        else:
            due = trouble.since + (self._settings.unreachable_after if kind.lasting else 0.0)
        if due <= now <= trouble.sure_until:
            trouble.raised_at = now
            self._emit(AlertRaised(kind.name, *subject, trouble.message))

    def _clear_if_silent(self, kind: AlertKind, subject: Subject, trouble: _Trouble, now: float) -> None:
        patience = ASSUMED_REACHABLE_AFTER if kind.lasting else self._settings.repeat_after
        if now - trouble.sure_until >= patience:
            self._clear(kind, subject, f"not seen again for {format_duration(patience)}")

    def _end(self, kind: AlertKind, event: Event) -> None:
        named = subject_of(event)
        troubles = self._troubles[kind]
        exact = None not in named and named in troubles
        ended = [named] if exact else [subject for subject in troubles if _concerns(named, subject)]
        for subject in ended:
            self._clear(kind, subject, in_words(type(event)))

    def _clear(self, kind: AlertKind, subject: Subject, reason: str) -> None:
        trouble = self._troubles[kind].pop(subject)
        if trouble.raised_at is not None:
            self._emit(AlertCleared(kind.name, *subject, reason))


def _concerns(named: Subject, subject: Subject) -> bool:
    """Return whether both name the same pipeline and key; None matches anything."""
    return all(None in pair or pair[0] == pair[1] for pair in zip(named, subject, strict=True))


def _by_event() -> dict[type[Event], list[AlertKind]]:
    ended: dict[type[Event], list[AlertKind]] = defaultdict(list)
    for kind in KINDS.values():
        for event in kind.ended_by:
            ended[event].append(kind)
    return dict(ended)


_ENDED_BY = _by_event()


@contextmanager
def alerting(settings: AlertSettings, node: str, consumers: Sequence[Consumer]) -> Iterator[Alerts]:
    """Yield a consumer of events whose alerts go to these consumers, and to the webhook if there is one.

    When the block is left, the webhook sends what is still queued; that takes at most twice its timeout.
    """
    with ExitStack() as stack:
        receivers = list(consumers)
        if settings.webhook is not None:
            webhook = Webhook(settings.webhook, node, Reporter(consumers))
            stack.callback(webhook.stop)
            receivers.append(webhook)
        alerts = Alerts(settings, Reporter(receivers))
        stack.enter_context(_called_every(TICK, alerts.tick))
        yield alerts


@contextmanager
def _called_every(seconds: float, call: Callable[[], None]) -> Iterator[None]:
    ended = threading.Event()

    def run() -> None:
        while not ended.wait(seconds):
            call()

    thread = threading.Thread(target=run, name="holdfast-alerts", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
