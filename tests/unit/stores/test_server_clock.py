"""The time of a server that stamps its responses in whole seconds."""

from __future__ import annotations

from email.utils import formatdate
from typing import Any

import pytest

from holdfast.stores._server_clock import WINDOW, ServerClock
from holdfast.testing.worlds import TurnableClock


def response(date: str | None) -> dict[str, Any]:
    return {"ResponseMetadata": {"HTTPHeaders": {} if date is None else {"date": date}}}


def test_the_servers_time_is_known_better_with_each_response() -> None:
    ours, ahead = TurnableClock(0.0), 1_763_220_000.6
    clock = ServerClock(ours.monotonic)
    assert clock.now() is None
    errors = []
    for _ in range(12):
        ours.turn(0.3)
        clock.hear_response(response(formatdate(int(ours.monotonic() + ahead), usegmt=True)))
        now = clock.now()
        assert now is not None
        errors.append(ours.monotonic() + ahead - now)
    assert errors == sorted(errors, reverse=True)
    assert 0.0 <= errors[-1] <= 0.3 < errors[0] < 1.0


def test_time_is_not_carried_on_for_ever() -> None:
    ours = TurnableClock(0.0)
    clock = ServerClock(ours.monotonic)
    clock.hear(1_763_220_000.0)
    ours.turn(WINDOW - 1)
    assert clock.now() == 1_763_220_000.0 + WINDOW - 1
    ours.turn(2)
    assert clock.now() is None


def test_a_server_that_was_set_back_is_believed_after_a_while() -> None:
    ours = TurnableClock(0.0)
    clock = ServerClock(ours.monotonic)
    clock.hear(5_000.0)
    for _ in range(3):
        ours.turn(WINDOW)
        clock.hear(1_000.0 + ours.monotonic())
    assert clock.now() == 1_000.0 + ours.monotonic()


@pytest.mark.parametrize("date", [None, "", "yesterday"])
def test_a_response_without_a_date_teaches_nothing(date: str | None) -> None:
    clock = ServerClock()
    clock.hear_response(response(date))
    assert clock.now() is None
