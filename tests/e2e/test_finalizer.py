"""Final places of a real archive: `_SUCCESS`, a hook that registers in Hive, and late records set aside."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

from typer.testing import CliRunner

from holdfast.cli.root import app as commands
from tests.e2e.fleet import Node, eventually
from tests.servers.kafka import KafkaServer

CONFIG = """
source_coordination:
  store:
    sqlite: {{path: "{root}/leases.db"}}
spark:
  master: local[1]
pipelines:
  hourly:
    source:
      kafka: {{bootstrap_servers: "{kafka}", topics: [finals], upload: {{max_age: 500ms}}}}
    processors:
      - parse: {{time: {{json: {{field: ts, unit: seconds}}}}, granularity: hour}}
    sinks:
      - files:
          root: "{root}/lake"
          format: jsonl
          finalize:
            lateness: 1h
            interval: 500ms
            late: place
            hooks:
              - command: ["{python}", "-c", "import sys; print(sys.stdin.read(), file=open(sys.argv[1], 'a'))",
                          "{root}/finalized"]
                hive: {{table: "lake.{{topic}}"}}
"""
MIDNIGHT = 1_767_225_600  # 2026-01-01
HOUR = 3600
IN_2071 = 400_000
TOPIC = "finals"
DAY = f"{TOPIC}/dt=2026-01-01"


def hours(*numbers: int) -> list[bytes]:
    return [json.dumps({"ts": MIDNIGHT + number * HOUR, "n": number}).encode() for number in numbers]


def test_a_place_is_final_when_both_partitions_have_passed_it(tmp_path: Path, kafka_server: KafkaServer) -> None:
    kafka_server.create_topic(TOPIC, partitions=2)
    kafka_server.produce(TOPIC, hours(5, 5, 6, 8, IN_2071), partition=0)
    kafka_server.produce(TOPIC, hours(5, 6), partition=1)
    config, lake = tmp_path / "archive.yaml", tmp_path / "lake"
    config.write_text(CONFIG.format(root=tmp_path, kafka=kafka_server.bootstrap, python=sys.executable))
    node = Node(tmp_path, config, "replica1")

    def comes(what: Callable[[], bool]) -> None:
        eventually(lambda: node.process.poll() is not None or what(), 120, "the node")
        assert node.process.poll() is None, node.said()[-2000:]

    try:
        comes(lambda: len(list(lake.glob(f"{DAY}/hr=*/*.jsonl"))) == 5)
        # Not the whole root: the node removes folders of staged files while pathlib walks through them.
        topic = lake / TOPIC
        assert list(topic.rglob("_SUCCESS")) == []
        kafka_server.produce(TOPIC, hours(8), partition=1)
        finalized = tmp_path / "finalized"
        comes(lambda: finalized.exists() and finalized.read_text().count("\n") == 2)
        assert sorted(path.parent.name for path in topic.rglob("_SUCCESS")) == ["hr=05", "hr=06"]
        success = json.loads((lake / DAY / "hr=05/_SUCCESS").read_text())
        assert (success["files"], success["rows"], success["ends"]) == (2, 3, {"0": 5, "1": 3})
        (letters,) = lake.glob(f"_holdfast/deadletters/{TOPIC}/*.jsonl")
        assert json.loads(letters.read_text())["reason"].startswith("its time is too far ahead: dt=2071-")
        assert finalized.read_text().splitlines() == [
            f"ALTER TABLE `lake`.`{TOPIC}` ADD IF NOT EXISTS PARTITION (`dt`='2026-01-01', `hr`='{hour}') "
            f"LOCATION 'file://{lake}/{DAY}/hr={hour}'"
            for hour in ("05", "06")
        ]
        kafka_server.produce(TOPIC, hours(5, 5, 8), partition=1)
        comes(lambda: "LateRecords" in node.said())
        (aside,) = lake.glob(f"_late/{DAY}/hr=05/*.jsonl")
        assert [json.loads(line)["n"] for line in aside.read_text().splitlines()] == [5, 5]
        assert len(list(lake.glob(f"{DAY}/hr=05/*.jsonl"))) == 2
    finally:
        node.kill()
    proven = CliRunner().invoke(commands, ["verify", str(config), "--deep", "--json"])
    assert proven.exit_code == 0, proven.output
