"""A parser put messages into the wrong days: they are written again, from Kafka and from the backup, and rolled out.

Real Kafka, real node processes; once over a folder, once over a real S3.
"""

from __future__ import annotations

import json
import signal
from pathlib import Path

from tests.e2e.fleet import Node, eventually
from tests.e2e.reprocessing import Archive, Seen, folder_files, place, seen
from tests.servers.kafka import KafkaServer
from tests.servers.s3 import ACCESS_KEY, REGION, SECRET_KEY, S3Server

COUNT = 200
"""Messages of each partition to begin with."""
CLICKS = 300
SECOND_DAY = "dt=2026-01-02"
ORDERS, VIEWS, BUCKET = "mended-orders", "mended-views", "mended"
PATIENCE = 180.0


def test_a_parser_bug_is_mended_from_kafka_and_from_the_backup_and_rolled_out(
    tmp_path: Path, kafka_server: KafkaServer
) -> None:
    kafka_server.create_topic(ORDERS, partitions=2)
    archive = Archive(tmp_path, kafka_server, ORDERS)
    for partition in range(2):
        archive.produce(partition, COUNT)
    with archive.node("old", archive.old) as old:
        wait_for_live(archive, old)
        eventually(lambda: len(list((tmp_path / "backup").glob("[!_]*/**/*.parquet"))) >= 4, PATIENCE, "the backup")
        assert set(live(archive).values()) == {(place(n, field="sent"), 1) for n in range(3)}
        is_written_again_from_kafka_while_the_live_pipeline_goes_on(archive, old)
        is_written_again_from_the_backup_for_one_day(archive)
        with archive.node("fixed", archive.fixed, "--pipeline", "daily") as fixed:
            is_rolled_out_when_the_generation_is_switched(archive, fixed)
            is_replaced_in_its_place(archive, fixed)
            goes_back(archive, old)
            for node in (old, fixed):
                node.send(signal.SIGTERM)
            assert [old.exit_code(), fixed.exit_code()] == [0, 0]
    archive.verified("--deep")


def live(archive: Archive) -> dict[tuple[int, int], Seen]:
    return seen(folder_files(archive.folder / "daily"))


def wait_for_live(archive: Archive, node: Node) -> None:
    """Until every message that was produced is in a live file."""
    eventually(lambda: live(archive).keys() == archive.everything, PATIENCE, node.log.name)


def is_written_again_from_kafka_while_the_live_pipeline_goes_on(archive: Archive, old: Node) -> None:
    with archive.going_on("rewind", *archive.where(0, "120")) as rewinding:
        archive.produce(1, 10)
        wait_for_live(archive, old)
        assert rewinding.wait(PATIENCE) == 0
    rewritten = seen(folder_files(archive.folder / "daily-g2"))
    assert rewritten == {(0, n): (place(n), 2) for n in range(120, COUNT)}
    assert {at.generation for at in live(archive).values()} == {1}


def is_written_again_from_the_backup_for_one_day(archive: Archive) -> None:
    archive.backfill("--partition-names", SECOND_DAY, "--root", archive.folder / "day")
    expected = {(p, n): (SECOND_DAY, 2) for p in range(2) for n in range(COUNT) if place(n) == SECOND_DAY}
    filled = seen(folder_files(archive.folder / "day"))
    assert {record: at for record, at in filled.items() if record[1] < COUNT} == expected
    assert {at.place for at in filled.values()} == {SECOND_DAY}


def is_rolled_out_when_the_generation_is_switched(archive: Archive, fixed: Node) -> None:
    eventually(lambda: "NodeJoined" in fixed.said(), PATIENCE, "the second node")
    archive.produce(1, 10)
    wait_for_live(archive, fixed)
    before = live(archive)
    assert {at.generation for at in before.values()} == {1}  # the old one works on
    archive.command("generation", "switch", archive.fixed, "2", "--pipeline", "daily")
    for partition in range(2):
        archive.produce(partition, 50)
    wait_for_live(archive, fixed)
    found = live(archive)
    assert before.items() <= found.items()
    assert {at.generation for at in found.values()} == {1, 2}
    for (_, n), at in found.items():
        assert at in {(place(n, field="sent"), 1), (place(n), 2)}


def is_replaced_in_its_place(archive: Archive, fixed: Node) -> None:
    before = live(archive)
    assert archive.rewind(0, "120", "--replace", "--dry-run").splitlines()
    assert live(archive) == before
    archive.rewind(0, "120", "--replace")
    wait_for_live(archive, fixed)
    found = live(archive)
    assert all(found[0, n] == (place(n), 3) for n in range(120, archive.produced[0]))
    assert all(found[1, n] == before[1, n] for n in range(archive.produced[1]))
    assert {proof["end"]["offset"] for proof in archive.verified("--deep")} == set(archive.produced.values())


def goes_back(archive: Archive, old: Node) -> None:
    first = archive.produced[0]
    archive.command("generation", "back", archive.fixed, "--pipeline", "daily")
    archive.produce(0, 10)
    wait_for_live(archive, old)
    assert live(archive)[0, first] in {(place(first), 3), (place(first, field="sent"), 4)}
    archive.produce(0, 10)
    wait_for_live(archive, old)
    assert live(archive)[0, first + 10] == (place(first + 10, field="sent"), 4)


def test_a_backfill_on_s3_whose_node_dies_is_finished_by_another_and_files_are_replaced_there(
    tmp_path: Path, kafka_server: KafkaServer, s3_server: S3Server
) -> None:
    kafka_server.create_topic(VIEWS, partitions=1)
    s3_server.create_bucket(BUCKET)
    options = (
        f", s3: {{endpoint_url: '{s3_server.endpoint}', region: {REGION}, access_key_id: {ACCESS_KEY}, "
        f"secret_access_key: {SECRET_KEY}, path_style: true}}"
    )
    archive = Archive(tmp_path, kafka_server, VIEWS, f"s3://{BUCKET}", options, small=25)
    archive.produce(0, CLICKS)
    with archive.node("old", archive.old) as node:
        eventually(lambda: seen(objects(s3_server, "daily/")).keys() == archive.everything, PATIENCE, node.log.name)
        eventually(lambda: len(objects(s3_server, f"backup/{VIEWS}/")) >= 3, PATIENCE, "the backup")
        node.send(signal.SIGTERM)
        assert node.exit_code() == 0
    is_finished_by_another_node(archive, s3_server)
    with archive.node("fixed", archive.fixed, "--pipeline", "daily") as node:
        archive.command("generation", "switch", archive.fixed, "2", "--pipeline", "daily")
        archive.rewind(0, "220", "--replace")
        eventually(lambda: seen(objects(s3_server, "daily/")).keys() == archive.everything, PATIENCE, node.log.name)
        node.send(signal.SIGTERM)
        assert node.exit_code() == 0
    found = seen(objects(s3_server, "daily/"))
    assert all(at == (place(n), 3) for (_, n), at in found.items() if n >= 220)
    assert found[0, 0].generation == 1
    (proof,) = archive.verified("--deep")
    assert proof["end"] == {"offset": CLICKS}


def is_finished_by_another_node(archive: Archive, s3: S3Server) -> None:
    with archive.going_on("backfill", archive.fixed, "--pipeline", "daily", "--from", "backup"):
        eventually(lambda: objects(s3, f"daily-g2/{VIEWS}/"), PATIENCE, "backfill.log")
    half = seen(objects(s3, "daily-g2/"))
    assert len(half) < CLICKS
    (run,) = json.loads(archive.command("runs", "list", archive.fixed, "--pipeline", "daily", "--json"))
    assert run["status"] == "RUNNING"
    archive.command("runs", "join", archive.old, run["id"], "--pipeline", "daily", code=2)
    archive.command("runs", "join", archive.fixed, run["id"], "--pipeline", "daily")
    whole = seen(objects(s3, "daily-g2/"))
    assert whole == {(0, n): (place(n), 2) for n in range(CLICKS)}
    assert half.items() <= whole.items()
    (proof,) = archive.verified("--run", run["id"], "--deep")
    assert (proof["start"], proof["end"], proof["absent"]) == ({"offset": 0}, {"offset": CLICKS}, 0)


def objects(s3: S3Server, prefix: str) -> dict[str, bytes]:
    """What a reader sees below a prefix of the bucket, by key below it; of `x/y/` the keys begin with `y/`."""
    client, found, base = s3.client(), dict[str, bytes](), prefix.split("/", 1)[0] + "/"
    try:
        pages = client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=prefix)
        for entry in (entry for page in pages for entry in page.get("Contents", ())):
            key = entry["Key"].removeprefix(base)
            if not key.startswith("_"):
                found[key] = client.get_object(Bucket=BUCKET, Key=entry["Key"])["Body"].read()
    finally:
        client.close()
    return found
