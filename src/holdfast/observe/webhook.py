"""Sends alerts to a webhook as JSON, on a separate thread, so that a slow receiver never holds up a pipeline."""

from __future__ import annotations

import json
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from holdfast.config.alerts import WebhookSettings
from holdfast.events import AlertCleared, AlertRaised, AlertsNotSent, Event, Notice, Unreachable
from holdfast.observe.alert_kinds import runbook
from holdfast.observe.http_post import Outcome, Target
from holdfast.observe.json_values import plain
from holdfast.observe.log import event_fields
from holdfast.observe.text import printable, timestamp

MOST_WAITING = 1000
MOST_IN_A_POST = 100
LONGEST_TEXT = 2000
"""Characters of a key or of a message that are sent."""
FIRST_PAUSE = 1.0
LONGEST_PAUSE = 60.0

Alert = Mapping[str, Any]


class Webhook:
    """Posts alerts to one URL, from construction to `stop`. Calling it does not block.

    Up to 100 queued alerts go out in one request. A request that fails, or gets a temporary error, is repeated with
    growing pauses; a refused one is not. At most 1000 alerts are queued; then the oldest are dropped. Alerts that are
    not sent are reported through `emit`, and the next request has the number of dropped ones. The URL is never shown.
    """

    def __init__(
        self,
        settings: WebhookSettings,
        node: str,
        emit: Callable[[Event], None],
        *,
        now: Callable[[], float] = time.time,
        pause: float = FIRST_PAUSE,
    ) -> None:
        """`node` is the sender's name; `emit` must not call back into this object; `pause` is the first retry pause."""
        self._target = Target(settings.url, settings.timeout, settings.allow_private)
        self._patience = settings.timeout
        self._node = node
        self._emit = emit
        self._now = now
        self._first_pause = pause
        self._outbox = _Outbox()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="holdfast-webhook", daemon=True)
        self._thread.start()

    def __call__(self, event: Event) -> None:
        """Send the event if it is an alert."""
        if isinstance(event, AlertRaised | AlertCleared):
            self._outbox.add(_as_json(event, self._now()))

    def stop(self) -> None:
        """Send what is queued, trying once, and end. Blocks for at most a second; may be called repeatedly."""
        self._stopping.set()
        self._outbox.close()
        self._thread.join(1.0)

    def _run(self) -> None:
        refusal = self._target.refusal()
        if refusal is not None:
            self._emit(Notice(f"alerts will not reach the webhook: {refusal}"))
        pause = self._first_pause
        while alerts := self._outbox.take():
            outcome = self._post(alerts)
            if outcome.retry and not self._stopping.is_set():
                self._outbox.put_back(alerts)
                self._wait(outcome.reason, pause)
                pause = min(pause * 2, LONGEST_PAUSE)
            else:
                self._settle(alerts, outcome)
                pause = self._first_pause
            self._report_dropped()

    def _post(self, alerts: list[Alert]) -> Outcome:
        dropped = self._outbox.dropped
        text = "\n".join(_sentence(alert) for alert in alerts)
        body = {"node": self._node, "text": text, "alerts": alerts, "dropped": dropped}
        outcome = self._target.post(json.dumps(body).encode())
        if outcome.done:
            self._outbox.forget_dropped(dropped)
        return outcome

    def _wait(self, reason: str, pause: float) -> None:
        pause *= random.uniform(0.8, 1.2)
        self._emit(Unreachable("webhook", reason, pause))
        self._stopping.wait(pause)

    def _settle(self, alerts: list[Alert], outcome: Outcome) -> None:
        if outcome.done:
            return
        # While stopping, the rest is dropped too: it would fail in the same way.
        rest = self._outbox.clear() if outcome.retry else 0
        self._emit(AlertsNotSent(len(alerts) + rest, outcome.reason))

    def _report_dropped(self) -> None:
        dropped = self._outbox.newly_dropped()
        if dropped:
            self._emit(AlertsNotSent(dropped, f"{MOST_WAITING} newer alerts were queued for the webhook"))


class _Outbox:
    """A bounded queue of alerts, oldest first. Thread-safe."""

    def __init__(self) -> None:
        self._alerts: deque[Alert] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._newly_dropped = 0
        self.dropped = 0
        """Alerts dropped since the receiver was last informed."""

    def add(self, alert: Alert) -> None:
        """Add an alert; drops the oldest one if the queue is full. Does not block."""
        with self._changed:
            self._alerts.append(alert)
            self._drop_oldest()
            self._changed.notify()

    def take(self) -> list[Alert]:
        """Return the oldest alerts. Blocks until there is one; empty after `close` if none is left."""
        with self._changed:
            self._changed.wait_for(lambda: self._alerts or self._closed)
            return [self._alerts.popleft() for _ in range(min(len(self._alerts), MOST_IN_A_POST))]

    def put_back(self, alerts: list[Alert]) -> None:
        """Undo `take`."""
        with self._changed:
            self._alerts.extendleft(reversed(alerts))
            self._drop_oldest()

    def clear(self) -> int:
        """Drop all alerts, and return how many there were."""
        with self._changed:
            number = len(self._alerts)
            self._alerts.clear()
            return number

    def close(self) -> None:
        """Wake the sender: no alert is added after this call."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def newly_dropped(self) -> int:
        """Return how many alerts were dropped since the last call."""
        with self._changed:
            number, self._newly_dropped = self._newly_dropped, 0
            return number

    def forget_dropped(self, number: int) -> None:
        """Subtract alerts that were reported to the receiver."""
        with self._changed:
            self.dropped -= number

    def _drop_oldest(self) -> None:
        while len(self._alerts) > MOST_WAITING:
            self._alerts.popleft()
            self.dropped += 1
            self._newly_dropped += 1


def _as_json(event: AlertRaised | AlertCleared, at: float) -> Alert:
    fields = {
        name: value[:LONGEST_TEXT] if isinstance(value, str) else value
        for name, value in plain(event_fields(event)).items()
    }
    status = "raised" if isinstance(event, AlertRaised) else "cleared"
    return {"status": status, "at": timestamp(at), **fields, "runbook": runbook(event.kind)}


def _sentence(alert: Alert) -> str:
    about = " ".join(alert[name] for name in ("pipeline", "key") if alert[name])
    message = alert.get("message") or alert.get("reason") or ""
    return f"{alert['status']} {alert['kind']}{about and f' ({_quoted(about)})'}: {_quoted(message)}"


def _quoted(text: str) -> str:
    """Return text of data as a code span, in which chats look for no mentions, links or formatting."""
    # Slack reads its own syntax, such as <!channel>, also in code; `html.escape` would escape quotes as well.
    escaped = printable(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    inner = escaped.replace("`", "'")
    return f"`{inner}`"
