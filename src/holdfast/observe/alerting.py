"""Alerts put together: from events to consumers and the webhook, with a thread that tells the time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

from holdfast.config.models import AlertSettings
from holdfast.observe.alerts import Alerts
from holdfast.observe.fanout import Consumer, Reporter
from holdfast.observe.webhook import Webhook

TICK = 1.0


@contextmanager
def alerting(settings: AlertSettings, node: str, consumers: Sequence[Consumer]) -> Iterator[Alerts]:
    """A consumer of events whose alerts go to these consumers, and to the webhook if there is one.

    When the block is left, the webhook gets what still waits for it; that takes at most twice its timeout.
    """
    with ExitStack() as stack:
        told = list(consumers)
        if settings.webhook is not None:
            webhook = Webhook(settings.webhook, node, Reporter(consumers))
            stack.callback(webhook.stop)
            told.append(webhook)
        alerts = Alerts(settings, Reporter(told))
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
