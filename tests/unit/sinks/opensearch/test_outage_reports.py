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
from holdfast.sinks.opensearch.outage_reports import TroubleAddress, TroubleListener
from holdfast.sinks.opensearch.sink import sink_of


@pytest.fixture
def listener() -> Iterator[TroubleListener]:
    made = TroubleListener()
    yield made
    made.close()


def test_what_a_task_tells_is_heard_once(listener: TroubleListener) -> None:
    address: TroubleAddress = pickle.loads(pickle.dumps(listener.address))  # noqa: S301 - as Spark sends it
    assert listener.heard() is None
    address.tell("the cluster does not answer")
    address.tell("still not: " + "\N{SNOWMAN}" * 5000)
    assert str(listener.heard()).startswith("still not: \N{SNOWMAN}")
    assert listener.heard() is None


def test_strangers_are_not_heard(listener: TroubleListener) -> None:
    replace(listener.address, key="guessed").tell("give up")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
        for message in (b"\xff", b"[]", b"{}", json.dumps({"key": listener.address.key}).encode()):
            stranger.sendto(message, (listener.address.host, listener.address.port))
    assert listener.heard() is None


def test_telling_never_fails() -> None:
    TroubleAddress("no such host.invalid", 9, "key").tell("why")


def test_the_sink_passes_on_what_its_tasks_tell() -> None:
    sink = sink_of("search", OpenSearchConfig(hosts=("http://search:9200",), index="orders"))
    stager = sink.stager_for([])
    assert stager.trouble is not None
    assert sink.stager_for([]).trouble == stager.trouble
    stager.trouble.tell("the cluster does not answer")
    (heard,) = sink.noticed()
    assert isinstance(heard, Unreachable)
    assert (heard.what, heard.error) == ("sink", "the cluster does not answer")
    sink.close()
    assert sink.noticed() == []
