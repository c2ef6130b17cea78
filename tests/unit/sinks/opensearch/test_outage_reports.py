"""Trouble in a task is heard of on the node while the task waits."""

from __future__ import annotations

import json
import pickle
import socket
from collections.abc import Iterator
from dataclasses import replace

import pytest

from holdfast.events import Unreachable
from holdfast.sinks.opensearch.config import OpenSearchConfig
from holdfast.sinks.opensearch.sink import build_sink
from holdfast.sinks.opensearch.staging import OutageListener, OutageReporter


@pytest.fixture
def listener() -> Iterator[OutageListener]:
    made = OutageListener()
    yield made
    made.close()


def test_what_a_task_tells_is_heard_once(listener: OutageListener) -> None:
    reporter: OutageReporter = pickle.loads(pickle.dumps(listener.reporter))  # noqa: S301 - as Spark sends it
    assert listener.last_reason() is None
    reporter.report("the cluster does not respond")
    reporter.report("still not: " + "\N{SNOWMAN}" * 5000)
    assert str(listener.last_reason()).startswith("still not: \N{SNOWMAN}")
    assert listener.last_reason() is None


def test_strangers_are_not_heard(listener: OutageListener) -> None:
    replace(listener.reporter, key="guessed").report("give up")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
        for message in (b"\xff", b"[]", b"{}", json.dumps({"key": listener.reporter.key}).encode()):
            stranger.sendto(message, (listener.reporter.host, listener.reporter.port))
    assert listener.last_reason() is None


def test_telling_never_fails() -> None:
    OutageReporter("no such host.invalid", 9, "key").report("why")


def test_the_sink_passes_on_what_its_tasks_tell() -> None:
    sink = build_sink("search", OpenSearchConfig(hosts=("http://search:9200",), index="orders"))
    stager = sink.stager_for([])
    assert stager.outages is not None
    assert sink.stager_for([]).outages == stager.outages
    stager.outages.report("the cluster does not respond")
    (heard,) = sink.noticed()
    assert isinstance(heard, Unreachable)
    assert (heard.what, heard.error) == ("sink", "the cluster does not respond")
    sink.close()
    assert sink.noticed() == []
