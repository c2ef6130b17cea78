"""A function over an embedded stream with `holdfast run`: the handler logs each record, and a restart repeats none."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner

from holdfast.cli.root import app
from holdfast.sources.stream.frames import NewRecord
from holdfast.sources.stream.stream import Stream, StreamSettings

pytestmark = [pytest.mark.spark, pytest.mark.slow]

PATIENCE = 240.0
HANDLER = """
import time

def handler(context, event):
    context.logger.info_with("Got event", shard_id=event.shard_id, body=event.body.decode())
    time.sleep(0.05)
"""
FILE = """
source_coordination:
  store: {{sqlite: {{path: {folder}/leases.db}}}}
pipelines:
  hello:
    source:
      stream: {{name: example, folder: {folder}/streams}}
    sinks:
      - function:
          handler: {folder}/hello.py
          workers: 2
          on_error: {{after_retries: stop}}
"""
RETURNING = """
import os, signal
from pathlib import Path

import holdfast

def handler(context, event):
    context.logger.info_with("Got event", shard_id=event.shard_id, body=event.body.decode())
    if event.body.endswith(b"-record-3") and event.shard_id == 1:
        try:
            os.close(os.open(Path(__file__).parent / "killed", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            pass
        else:
            os.kill(os.getpid(), signal.SIGKILL)
    return holdfast.Records({"record": event.body.decode(), "half": half} for half in range(2))
"""
FILES = """
          commit_interval: 200ms
          output_columns: {{record: string, half: long}}
      - files: {{root: {folder}/out, format: jsonl}}
"""
LINE = re.compile(r'"message":"Got event","more":"shard_id=(\d+) \|\| body=shard-\d+-record-(\d+) \|\| worker_id=\d"')


@contextmanager
def running(folder: Path) -> Iterator[Path]:
    log = folder / "log"
    with log.open("ab") as output:
        command = [sys.executable, "-m", "holdfast", "run", str(folder / "pipeline.yaml")]
        process = subprocess.Popen(command, stdout=output, stderr=output, cwd=folder)
        try:
            yield log
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE) == 0
        finally:
            process.kill()
            process.wait()


def handled(log: Path) -> list[tuple[int, int]]:
    return [(int(shard), int(number)) for shard, number in LINE.findall(log.read_text())]


def wait_until(is_so: Callable[[], bool], log: Path) -> None:
    deadline = time.monotonic() + PATIENCE
    while not is_so():
        assert time.monotonic() < deadline, log.read_text()[-3000:]
        time.sleep(0.1)


def wait_for(log: Path, number: int) -> list[tuple[int, int]]:
    wait_until(lambda: len(handled(log)) >= number, log)
    return handled(log)


def put(stream: Stream, first: int, end: int) -> None:
    for shard in range(stream.settings.shards):
        stream.append(shard, [NewRecord(f"shard-{shard}-record-{number}".encode()) for number in range(first, end)])


def test_every_record_is_handled_once_in_order_also_over_a_restart(tmp_path: Path) -> None:
    (tmp_path / "hello.py").write_text(HANDLER)
    (tmp_path / "pipeline.yaml").write_text(FILE.format(folder=tmp_path))
    stream = Stream.create(tmp_path / "streams", "example", StreamSettings(4))
    put(stream, 0, 5)
    with running(tmp_path) as log:
        wait_for(log, 20)
        put(stream, 5, 10)
        wait_for(log, 25)
    # It was stopped in the middle: the rest is left to the next one, and some more if it had finished all.
    put(stream, 10, 12)
    with running(tmp_path) as log:
        found = wait_for(log, 48)
    assert all([number for other, number in found if other == shard] == list(range(12)) for shard in range(4))


def rows_in(folder: Path) -> list[tuple[str, int]]:
    """What a reader sees who lists the folder; not in _holdfast, where folders go away meanwhile."""
    streams = [path for path in folder.glob("*") if path.name != "_holdfast"]
    files = [file for stream in streams for file in stream.rglob("*.jsonl")]
    rows = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    return sorted((row["record"], row["half"]) for row in rows)


def test_records_that_a_handler_returns_are_in_files_once_though_a_worker_dies_and_the_node_restarts(
    tmp_path: Path,
) -> None:
    (tmp_path / "hello.py").write_text(RETURNING)
    (tmp_path / "pipeline.yaml").write_text((FILE + FILES.lstrip("\n")).format(folder=tmp_path))
    stream = Stream.create(tmp_path / "streams", "example", StreamSettings(4))
    put(stream, 0, 5)
    with running(tmp_path) as log:
        wait_for(log, 20)
        put(stream, 5, 10)
        wait_for(log, 30)
    put(stream, 10, 12)
    wanted = sorted((f"shard-{shard}-record-{n}", half) for shard in range(4) for n in range(12) for half in range(2))
    with running(tmp_path) as log:
        wait_for(log, 48)
        wait_until(lambda: len(rows_in(tmp_path / "out")) >= len(wanted), log)
    assert rows_in(tmp_path / "out") == wanted
    assert (tmp_path / "killed").exists()
    command = [sys.executable, "-m", "holdfast", "verify", str(tmp_path / "pipeline.yaml"), "--json"]
    verified = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert verified.returncode == 0, verified.stdout + verified.stderr


FILES_BESIDE = """
  files:
    source:
      objects: {{folder: {folder}/in, codec: text, scan: follow, interval: 1s}}
    sinks:
      - files: {{root: {folder}/out, format: text}}
"""


def test_a_pipeline_of_files_and_a_function_share_a_node(tmp_path: Path) -> None:
    (tmp_path / "hello.py").write_text(HANDLER)
    (tmp_path / "pipeline.yaml").write_text((FILE + FILES_BESIDE.lstrip("\n")).format(folder=tmp_path))
    (tmp_path / "in").mkdir()
    stream = Stream.create(tmp_path / "streams", "example", StreamSettings(4))

    def written() -> list[str]:
        files = (tmp_path / "out").glob("[!_]*/**/*.txt")
        return sorted(line for file in files for line in file.read_text().splitlines())

    put(stream, 0, 5)
    (tmp_path / "in" / "a").write_text("one\ntwo\n")
    with running(tmp_path) as log:
        wait_for(log, 20)
        wait_until(lambda: written() == ["one", "two"], log)
        # Both live: what comes now is taken by both.
        put(stream, 5, 10)
        (tmp_path / "in" / "b").write_text("three\n")
        found = wait_for(log, 40)
        wait_until(lambda: written() == ["one", "three", "two"], log)
    assert all([number for other, number in found if other == shard] == list(range(10)) for shard in range(4))


NUCLIO_HANDLER = """
import time


def handler(context, event):
    context.logger.debug_with('Got event', shard_id=event.shard_id, body=event.body.decode('utf-8'))
    time.sleep(0.05)
"""
COUNTING_HANDLER = """
def handler(context, event):
    with open("counted", "a") as file:
        file.write("x")
"""
NUCLIO_FILE = """
source_coordination:
  store: {{sqlite: {{path: {folder}/leases.db}}}}
pipelines:
  hello:
    source:
      stream: {{name: users.test-stream-0, folder: {folder}/streams}}
    sinks:
      - function:
          handler: {folder}/hello.py
          url: http://v3io-webapi:8081/users/test-stream-0@cg0
          maxWorkers: 8
          seekTo: Earliest
          password: ${{env:PASSWORD}}
          partitions: [0]
          on_error: {{after_retries: stop}}
  count:
    source:
      stream: {{name: users.test-stream-0, folder: {folder}/streams}}
    sinks:
      - function: {{handler: {folder}/count.py, seek_to: earliest, on_error: {{after_retries: stop}}}}
"""


def cli(*arguments: str) -> str:
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_the_example_of_nuclio(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """32 shards with 10 records each, 8 workers, and a second group that reads the same stream at its own pace."""
    monkeypatch.setenv("PASSWORD", "key")
    (tmp_path / "hello.py").write_text(NUCLIO_HANDLER)
    (tmp_path / "count.py").write_text(COUNTING_HANDLER)
    file = tmp_path / "pipeline.yaml"
    file.write_text(NUCLIO_FILE.format(folder=tmp_path))
    stream = ("users.test-stream-0", "--folder", str(tmp_path / "streams"))
    cli("stream", "create", *stream, "--shards", "32", "--retention", "24h")
    for shard in range(32):
        (tmp_path / "records").write_text("".join(f"shard-{shard}-record-{number}\n" for number in range(1, 11)))
        cli("stream", "put", *stream, "--shard-id", str(shard), "--file", str(tmp_path / "records"))
    with running(tmp_path) as log:
        found = wait_for(log, 320)
        deadline = time.monotonic() + PATIENCE
        while (members := json.loads(cli("shards", "list", str(file), "--pipeline", "hello", "--json")))[-1][
            "lag_records"
        ]:
            assert time.monotonic() < deadline, members
            time.sleep(0.2)
        assert [member["shards"] for member in members] == ["0-31"]
    assert all([number for other, number in found if other == shard] == list(range(1, 11)) for shard in range(32))
    assert (tmp_path / "counted").stat().st_size == 320
