"""Messages between driver and worker survive the way, also those with sequence numbers of 56 digits."""

from __future__ import annotations

import pytest

from holdfast.errors import ChannelRefused
from holdfast.functions import messages
from holdfast.functions.messages import Down, Up, decode_down, decode_up, encode

SEQUENCE = 49_590_338_271_490_256_608_559_692_538_361_571_095_921_575_989_136_588_898
FROM_WORKERS: list[Up] = [
    messages.Hello(3, 7, 4711),
    messages.Beat(1, "batch", 1 << 30),
    messages.Progress("batch", {"sequence": str(SEQUENCE)}, ((SEQUENCE + 1, SEQUENCE + 5),), (4, 3, 1, 0)),
    messages.Began("batch", SEQUENCE),
    messages.Failed("batch", "the stream is gone", unavailable=True),
    messages.Drained("batch", SEQUENCE, last=True),
    messages.Dropped("batch"),
    messages.Acked("stream", "shard-1", SEQUENCE),
]
TO_WORKERS: list[Down] = [
    messages.Grant(1, 8.5),
    messages.Assign("batch", "shard-1", None, ((SEQUENCE, SEQUENCE + 1),), {"number": 1}, careful=True),
    messages.Drain("batch", 5.0),
    messages.Revoke("batch"),
    messages.Ack("batch", ((SEQUENCE, SEQUENCE + 1),)),
    messages.Stop(5.0),
]


@pytest.mark.parametrize("message", FROM_WORKERS, ids=lambda message: type(message).__name__)
def test_a_worker_s_message_arrives_as_it_was(message: Up) -> None:
    assert decode_up(encode(message)) == message


@pytest.mark.parametrize("message", TO_WORKERS, ids=lambda message: type(message).__name__)
def test_the_driver_s_message_arrives_as_it_was(message: Down) -> None:
    assert decode_down(encode(message)) == message


@pytest.mark.parametrize(
    "payload", [b"", b"{}", b'{"kind":"grant","n":1,"usable":9}', b'{"kind":"beat","n":"1"}', b"\x80", b"[" * 9000]
)
def test_anything_else_is_refused(payload: bytes) -> None:
    with pytest.raises(ChannelRefused):
        decode_up(payload)


def test_a_worker_accepts_no_message_of_workers() -> None:
    with pytest.raises(ChannelRefused):
        decode_down(encode(messages.Dropped("batch")))
