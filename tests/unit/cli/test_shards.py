"""`holdfast shards list` and `holdfast lag`: members as a consumer group shows them, and how far they are behind."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from holdfast import assemble
from holdfast.leases.coordinator import ClaimPolicy, Coordinator
from holdfast.leases.transitions import Advance, commit
from holdfast.leases.world import host_world
from holdfast.registry import Registry
from holdfast.sources.stream.frames import NewRecord
from holdfast.sources.stream.stream import Stream, StreamSettings
from tests.unit.cli.conftest import Site

FILE = """
source_coordination:
  store: {{sqlite: {{path: {folder}/leases.db}}}}
pipelines:
  hello:
    replicas: 3
    source:
      stream: {{name: clicks, folder: {folder}}}
    sinks:
      - function: {{handler: "hello:handler", on_error: {{after_retries: stop}}}}
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    """Twelve shards with two records each, of which two members hold four each."""
    stream = Stream.create(tmp_path, "clicks", StreamSettings(12))
    for shard in range(12):
        stream.append(shard, [NewRecord(b"1"), NewRecord(b"2")])
    file = tmp_path / "pipeline.yaml"
    file.write_text(FILE.format(folder=tmp_path))
    return str(file)


def taken(file: str, *members: str) -> None:
    """Each member takes four shards, and has acknowledged one record."""
    site, settings, world = Site(Path(file).parent), assemble.load_settings(file), host_world(lambda _: None)
    store = site.store(file)
    built = assemble.build_pipeline(settings.pipelines["hello"], Registry.installed())
    advance = Advance("commit", {"offset": 1}, {})
    for member in members:
        session = site.session(file, store, member)
        leases = Coordinator(store, world, session, settings.identifier("hello"), policy=ClaimPolicy())
        leases.create([partition for partition in built.source.discover({}) if partition is not None])
        leases.write(leases.claim(4)[:1], lambda row, now: commit(row, advance, row, now))


def test_members_have_their_shards_and_their_lag(tmp_path: Path, file: str) -> None:
    taken(file, "replica1", "replica2")
    members = Site(tmp_path).json("shards", "list", file)
    assert [(member["member_id"], member["shards"], member["lag_records"]) for member in members] == [
        ("replica1", "0-3", 7),
        ("replica2", "4-7", 7),
        (None, "8-11", 8),
    ]
    assert list(members[0])[:3] == ["member_id", "shards", "last_heartbeat"]
    assert members[0]["last_heartbeat"].startswith("20")
    shown = Site(tmp_path).invoke("shards", "list", file).stdout
    assert [line.split()[:3] for line in shown.splitlines()[1:3]] == [
        ["replica1", "0-3", "7"],
        ["replica2", "4-7", "7"],
    ]


def test_members_are_shown_while_the_stream_is_away(tmp_path: Path, file: str) -> None:
    taken(file, "replica1")
    shutil.rmtree(tmp_path / "clicks")
    result = Site(tmp_path).invoke("shards", "list", file)
    assert result.exit_code == 0
    assert "replica1" in result.stdout
    assert "the lag is not known" in result.stderr


def test_a_source_without_shards_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "pipeline.yaml"
    objects = "objects: {buckets: [{bucket: bucket}], scan: once, codec: newline}"
    store = f"source_coordination: {{store: {{sqlite: {{path: {tmp_path}/leases.db}}}}}}"
    sink = f"files: {{root: {tmp_path}, format: jsonl}}"
    file.write_text(f"{store}\npipelines: {{p: {{source: {{{objects}}}, sinks: [{{{sink}}}]}}}}\n")
    Site(tmp_path).store(str(file)).close()
    result = Site(tmp_path).invoke("shards", "list", str(file))
    assert result.exit_code == 2
    assert "has no shards" in result.stderr


def test_the_lag_is_looked_up_in_the_source(tmp_path: Path, file: str) -> None:
    taken(file, "replica1", "replica2")
    site = Site(tmp_path)
    (row,) = site.json("lag", file)
    assert (row["pipeline"], row["group"], row["unfinished"], row["lag_records"]) == ("hello", "clicks", 12, 22)
    each = site.json("lag", file, "--by-partition")
    assert sorted(row["lag_records"] for row in each) == [1, 1, *[2] * 10]
    assert site.invoke("lag", file).stdout.splitlines()[1].split() == ["hello", "clicks", "12", "22"]


def test_a_source_that_is_away_has_an_unknown_lag(tmp_path: Path, file: str) -> None:
    taken(file, "replica1")
    shutil.rmtree(tmp_path / "clicks")
    result = Site(tmp_path).invoke("lag", file)
    assert result.exit_code == 0
    assert result.stdout.splitlines()[1].split() == ["hello", "clicks", "12", "-"]
    assert "the lag of hello is not known" in result.stderr
