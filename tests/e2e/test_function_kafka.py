"""A function over a topic of Kafka on two nodes: one is killed, one is stopped, and records that fail are kept.

The handler writes down what it gets, and acknowledges explicitly and out of order.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.functions import KafkaRecords, Site
from tests.chaos.handled import HANDLER
from tests.e2e.test_function import cli
from tests.servers.kafka import KafkaServer

pytestmark = [pytest.mark.spark, pytest.mark.slow]

BAD, TOMBSTONE = 5, 3
HANDLER_OF_ALL = (
    HANDLER
    + f"""
import json

keep = handler


def text(value):
    return value.decode() if isinstance(value, bytes) else value


async def handler(context, event):
    record = [event.offset, text(event.key), event.headers, text(event.body)]
    with open(f"{{FOLDER}}/records-{{event.shard_id}}", "a") as file:
        file.write(json.dumps(record) + "\\n")
    if event.offset == {BAD}:
        if os.path.exists(f"{{FOLDER}}/mended"):
            await context.platform.explicit_ack(nuclio.QualifiedOffset.from_event(event))
            return
        note("begin", event.shard_id, event.offset)
        note("end", event.shard_id, event.offset)
        raise ValueError("it is bad")
    await keep(context, event)
"""
)


class Orders(KafkaRecords):
    """Each record has a key and headers, and every tenth has no body."""

    topic = "function-orders"
    shards = 4

    def message(self, number: int) -> dict[str, Any]:
        headers = [("number", str(number).encode()), ("none", None)]
        value = None if number % 10 == TOMBSTONE else f"order {number}".encode()
        return {"key": f"key {number}".encode(), "headers": headers, "value": value}


@pytest.fixture
def site(tmp_path: Path, kafka_server: KafkaServer) -> Iterator[Site]:
    on_error = f"on_error: {{max_retries: 0}}\n          dead_letters: {{file: {tmp_path}/letters}}"
    made = Site(tmp_path, Orders(kafka_server), 6.0, 1.8, pause=0.1, handler=HANDLER_OF_ALL, on_error=on_error)
    yield made
    made.close()


def test_records_reach_the_handler_whole_and_in_order_though_a_node_is_killed_and_another_stopped(site: Site) -> None:
    with site.producing():
        for name in ("killed", "stopped"):
            site.start(name)
        site.wait_for_shares(2)
        site.wait_for_progress()
        node = site.nodes.pop("killed")
        site.strike(node.pid)
        node.kill()
        node.wait()
        site.handled.note_committed(site.positions())
        site.start("left")
        site.wait_for_progress()
        site.wait_for_shares(2)
        site.stop("stopped")
        site.wait_for_progress()
    site.wait_until_handled(site.put)
    site.stop("left")
    assert site.wrong() == []
    before = records(site)
    assert all(record == expected(record[0]) for shard in before for record in shard)

    file = str(site.folder / "pipeline.yaml")
    assert letters(file) == (site.shards, 0)
    (site.folder / "handled" / "mended").touch()
    environment = {**os.environ, "HANDLED": str(site.folder / "handled")}
    redrive = [sys.executable, "-m", "holdfast", "deadletters", "redrive", file]
    printed = subprocess.run(redrive, env=environment, capture_output=True, text=True, check=False)
    assert "4 letters sent again, 0 of them became" in printed.stdout, printed.stdout + printed.stderr
    assert records(site) == [[*shard, expected(BAD)] for shard in before]
    assert letters(file) == (0, site.shards)


def expected(offset: int) -> list[Any]:
    value = None if offset % 10 == TOMBSTONE else f"order {offset}"
    return [offset, f"key {offset}", {"number": str(offset), "none": None}, value]


def records(site: Site) -> list[list[Any]]:
    """What the handler has got of each shard."""
    files = [site.folder / "handled" / f"records-{shard}" for shard in range(site.shards)]
    return [[json.loads(line) for line in file.read_text().splitlines()] for file in files]


def letters(file: str) -> tuple[int, int]:
    """How many letters wait, and how many were sent again."""
    (listed,) = json.loads(cli("deadletters", "list", file, "--json"))
    assert listed["reason"] == "failed … times: ValueError: it is bad"
    return listed["waiting"], listed["sent_again"]
