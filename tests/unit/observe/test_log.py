from __future__ import annotations

import io
import json
from dataclasses import dataclass, fields
from typing import Any

import pytest

from holdfast import events
from holdfast.config.secrets import Resolved, Secret
from holdfast.events import (
    AttemptFailed,
    Event,
    NodeExpired,
    NodeJoined,
    NothingAcquired,
    Notice,
    PartitionAcquired,
    PartitionChanged,
    PartitionsCreated,
    Unreachable,
)
from holdfast.observe.log import REPEAT_AFTER, Form, Log

AT = 1_700_000_000.25
STAMP = "2023-11-14T22:13:20.250Z"


@dataclass(frozen=True, slots=True)
class Sample(Event):
    value: Any


def logged(event: Event, *, form: Form = "text", level: events.Level = "info") -> str:
    stream = io.StringIO()
    Log(stream, form=form, level=level, now=lambda: AT)(event)
    return stream.getvalue()


def test_text_is_a_sentence() -> None:
    event = AttemptFailed("p|orders", "bucket|a b.jsonl", 2, "cannot parse line 7")

    assert logged(event) == (
        f"{STAMP} warning attempt failed: pipeline p|orders, "
        'key "bucket|a b.jsonl", attempts 2, error "cannot parse line 7"\n'
    )


def test_a_notice_is_the_sentence_that_it_carries() -> None:
    assert logged(Notice("the store forgets")) == f"{STAMP} warning the store forgets\n"


def test_json_is_one_object_per_line_with_time_level_event_and_fields() -> None:
    assert json.loads(logged(PartitionsCreated("orders", 3), form="json")) == {
        "ts": STAMP,
        "level": "info",
        "event": "PartitionsCreated",
        "node": None,
        "session": None,
        "pipeline": "orders",
        "count": 3,
    }


def test_every_json_line_has_node_session_and_pipeline() -> None:
    stream = io.StringIO()
    log = Log(stream, form="json", level="debug", node="replica1")
    for event in (
        Notice("it starts"),
        NodeJoined("replica1", "host:1:a"),
        PartitionsCreated("orders", 3),
        Unreachable("store", "away", 1.0),
        NodeExpired("host:2:b", seen_by="host:1:a"),
    ):
        log(event)
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [(line["node"], line["session"], line["pipeline"]) for line in lines] == [
        ("replica1", None, None),
        ("replica1", "host:1:a", None),
        ("replica1", "host:1:a", "orders"),
        ("replica1", "host:1:a", None),
        ("replica1", "host:2:b", None),  # the session that has expired; `seen_by` is that of the node
    ]


def test_rows_are_shown_as_json() -> None:
    event = PartitionChanged("orders", {"status": "ASSIGNED"}, {"status": "COMPLETED"})

    assert json.loads(logged(event, form="json", level="debug"))["after"] == {"status": "COMPLETED"}
    assert 'before {"status": "ASSIGNED"}, after {"status": "COMPLETED"}' in logged(event, level="debug")


def test_debug_events_are_shown_only_on_request() -> None:
    assert logged(NothingAcquired("orders")) == ""
    assert logged(NothingAcquired("orders"), level="debug") == f"{STAMP} debug   nothing acquired: pipeline orders\n"
    assert logged(PartitionsCreated("orders", 3), level="warning") == ""


def test_what_is_not_there_is_left_out_of_text_and_null_in_json() -> None:
    event = PartitionAcquired("orders", "k", 1, taken_over_from=None)

    assert "taken_over_from" not in logged(event, level="debug")
    assert json.loads(logged(event, form="json", level="debug"))["taken_over_from"] is None


@pytest.mark.parametrize("form", ["text", "json"])
def test_an_event_stays_on_one_line_and_sends_nothing_to_the_terminal(form: Form) -> None:
    line = logged(AttemptFailed("p", "a\nb\x1b[2J\u202e\udc80", 1, "first\r\nsecond"), form=form)

    assert line.count("\n") == 1
    assert line.rstrip("\n").isprintable()


@pytest.mark.parametrize("form", ["text", "json"])
def test_secrets_are_never_shown(form: Form) -> None:
    event = Sample(
        {"password": Secret("hunter2"), "all": [Secret("hunter2")], "url": Resolved("hunter2", "${env:URL}")}
    )

    line = logged(event, form=form)
    assert "hunter2" not in line
    assert line.count("***") == 2
    assert "${env:URL}" in line


def test_json_stays_json_whatever_a_field_holds() -> None:
    line = json.loads(logged(Sample((float("inf"), {1: object}, {"a"})), form="json"))

    assert line["value"] == ["inf", {"1": "<class 'object'>"}, ["a"]]


def test_no_event_has_a_field_that_would_hide_what_every_line_has() -> None:
    kinds = [kind for kind in vars(events).values() if isinstance(kind, type) and issubclass(kind, Event)]

    assert len(kinds) > 20
    for kind in kinds:
        assert not {"ts", "level", "event"} & {field.name for field in fields(kind)}


class TestWarningsThatRepeat:
    """A server that is away for hours must not fill the disk with one sentence."""

    def written(self, *events: tuple[float, Event], form: Form = "json") -> list[str]:
        stream, times = io.StringIO(), [AT + at for at, _ in events]
        log = Log(stream, form=form, now=lambda: times.pop(0))
        for _, event in events:
            log(event)
        return stream.getvalue().splitlines()

    def test_the_same_warning_is_written_once_in_a_while_with_the_number_that_was_left_out(self) -> None:
        away = [Unreachable("store", "refused", retry_in) for retry_in in (0.5, 1.0, 2.0, 4.0)]
        first, second = self.written(*zip([0.0, 1.0, REPEAT_AFTER - 1, REPEAT_AFTER], away, strict=True))
        assert "repeated" not in json.loads(first)
        assert json.loads(second)["repeated"] == 2

    def test_text_says_so_in_words(self) -> None:
        notice = Notice("the store forgets")
        lines = self.written((0.0, notice), (1.0, notice), (REPEAT_AFTER, notice), form="text")
        assert [line.partition("warning ")[2] for line in lines] == [
            "the store forgets",
            "the store forgets (and 1 more like it)",
        ]

    def test_a_warning_about_something_else_is_written(self) -> None:
        events = [(0.0, Unreachable(what, "refused", 1.0)) for what in ("store", "sink")]
        assert len(self.written(*events)) == 2

    def test_errors_and_facts_are_never_left_out(self) -> None:
        created = PartitionsCreated("orders", 3)
        halted = events.PartitionHalted("orders", "a", "the bucket is ahead")
        assert len(self.written(*[(0.0, created), (0.0, created), (0.0, halted), (0.0, halted)])) == 4

    def test_a_clock_that_is_set_back_silences_nothing(self) -> None:
        away = Unreachable("store", "refused", 1.0)
        assert len(self.written((0.0, away), (-3600.0, away))) == 2
