"""The oracle finds what it is there to find; a judge that never condemns proves nothing."""

from __future__ import annotations

import gzip
from collections.abc import Iterator

import pytest

from tests.chaos.oracle import Bucket, Lister, judge
from tests.chaos.producer import TopicPartition, message
from tests.servers.processes import running
from tests.servers.s3 import S3Server

ORDERS = TopicPartition("orders", 0)
LOG = {ORDERS: {offset: offset for offset in range(10)}}


class Output:
    """A bucket in which each hour's messages are one file, and what a fault would do to it."""

    def __init__(self, s3: S3Server) -> None:
        self.client = s3.client()
        self.bucket = Bucket(self.client, "lake", "out/")
        for hour in range(5):
            self.put(hour, hour, hour + 5)

    def put(self, hour: int, *numbers: int, generation: int = 1, first: int | None = None) -> str:
        first = numbers[0] if first is None else first
        key = f"out/orders/dt=2026-01-01/hr={hour:02d}/{generation}_0_{first:020d}.txt.gz"
        body = gzip.compress(b"".join(message(ORDERS, number) + b"\n" for number in numbers))
        self.client.put_object(Bucket="lake", Key=key, Body=body)
        return key

    def wrong(self) -> str:
        return "\n".join(judge(LOG, LOG, self.bucket.read_anew()))


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    with running(S3Server) as server:
        server.create_bucket("lake")
        yield server


@pytest.fixture
def output(s3: S3Server) -> Output:
    client = s3.client()
    for entry in client.list_objects_v2(Bucket="lake").get("Contents", []):
        client.delete_object(Bucket="lake", Key=entry["Key"])
    return Output(s3)


def test_every_message_once_in_its_place_is_right(output: Output) -> None:
    output.client.put_object(Bucket="lake", Key="out/_holdfast/commits/1.json", Body=b"not for readers")
    assert output.wrong() == ""


def test_a_message_that_is_missing_is_lost(output: Output) -> None:
    output.put(3, 3)
    assert output.wrong() == "orders|0: 1 messages lost, such as number 8"


def test_a_message_in_two_files_is_there_twice(output: Output) -> None:
    output.put(3, 8)
    assert "1 messages there twice, or never written, such as number 8" in output.wrong()


def test_a_message_that_nobody_wrote_is_found(output: Output) -> None:
    output.put(2, 12, first=2, generation=7)
    assert "never written, such as number 12" in output.wrong()


def test_a_message_below_another_hour_is_in_the_wrong_place(output: Output) -> None:
    output.put(3, 3)
    output.put(4, 8)
    assert "has messages of other places" in output.wrong()


def test_a_file_is_named_by_its_first_offset(output: Output) -> None:
    output.client.delete_object(Bucket="lake", Key=f"out/orders/dt=2026-01-01/hr=03/1_0_{3:020d}.txt.gz")
    output.put(3, 3, 8, first=2)
    assert "begins with number 3, and the log has 2 there" in output.wrong()


def test_a_generation_that_comes_back_is_found(output: Output) -> None:
    output.client.delete_object(Bucket="lake", Key=f"out/orders/dt=2026-01-01/hr=03/1_0_{3:020d}.txt.gz")
    output.put(3, 3, 8, generation=2)
    assert output.wrong() == "TopicPartition(topic='orders', partition=0): generations go back and forth"


def test_what_the_broker_itself_has_lost_is_not_blamed_on_the_archive(output: Output) -> None:
    (complaint,) = judge(LOG, {ORDERS: {**LOG[ORDERS], 11: 10}}, output.bucket.read_anew())
    assert "the broker has lost 1 acknowledged messages" in complaint


def test_an_object_that_changes_or_vanishes_is_noted(output: Output) -> None:
    lister = Lister(output.bucket)
    lister.look()
    lister.look()
    assert lister.complaints == []
    changed, vanished = output.put(1, 1), output.put(2, 2, 7)
    output.client.delete_object(Bucket="lake", Key=vanished)
    lister.look()
    complaints = {complaint.split(" has ")[0]: complaint for complaint in lister.complaints}
    assert "has changed" in complaints[changed.removeprefix("out/")]
    assert "has disappeared" in complaints[vanished.removeprefix("out/")]
