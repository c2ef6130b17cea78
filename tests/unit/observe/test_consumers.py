from __future__ import annotations

from holdfast.events import Event, Notice, PartitionChanged, PartitionsCreated
from holdfast.observe.consumers import RecentChanges, Reporter

EVENT = PartitionsCreated("orders", 1)


class Broken:
    def __init__(self) -> None:
        self.works = False

    def __call__(self, event: Event) -> None:
        if not self.works:
            raise RuntimeError("disk full")


def test_every_consumer_gets_every_event_whatever_another_does() -> None:
    first: list[Event] = []
    last: list[Event] = []
    emit = Reporter([first.append, Broken(), last.append])

    emit(EVENT)

    assert EVENT in first
    assert EVENT in last


def test_a_consumer_that_fails_is_reported_once_until_it_works_again() -> None:
    events: list[Event] = []
    broken = Broken()
    emit = Reporter([broken, events.append])
    notice = Notice("Broken could not handle an event: RuntimeError: disk full")

    emit(EVENT)
    emit(EVENT)
    assert events.count(notice) == 1

    broken.works = True
    emit(EVENT)
    broken.works = False
    emit(EVENT)
    assert events.count(notice) == 2


def test_when_all_consumers_fail_the_pipeline_goes_on() -> None:
    Reporter([Broken(), Broken()])(EVENT)


def test_recent_changes_are_bounded_and_in_order() -> None:
    times = iter([1.0, 2.0, 3.0, 4.0])
    recent = RecentChanges(limit=2, now=lambda: next(times))
    events = [PartitionChanged(pipeline, {}, {}) for pipeline in ("a", "b", "a", "a")]

    for event in (*events, EVENT):
        recent(event)

    assert [(change.at, change.event) for change in recent.of("a")] == [(3.0, events[2]), (4.0, events[3])]
    assert recent.of("b") == []
