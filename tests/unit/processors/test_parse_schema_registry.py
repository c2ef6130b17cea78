"""Avro with a schema registry: a real HTTP server that answers `GET /schemas/ids/{id}` as Confluent's does."""

from __future__ import annotations

import base64
import io
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import fastavro
import pytest

from holdfast.errors import BatchError, SourceUnavailable
from holdfast.flow.batch import Name
from holdfast.flow.staging import StagedBatch, Stager, Staging
from holdfast.processors.parse import schema_registry as registry
from holdfast.spark.report import TaskReport
from holdfast.spark.task import SinkTask, StageTask
from tests.unit.processors.rig import folders, message_rows, step

SCHEMAS = {
    1: {"type": "record", "name": "A", "fields": [{"name": "t", "type": "long"}]},
    70000: {"type": "record", "name": "A", "fields": [{"name": "x", "type": "string"}, {"name": "t", "type": "long"}]},
}
DAY = "dt=2026-01-01"
SECONDS = 1767268800


class Registry(ThreadingHTTPServer):
    """Answers for the schemas above; `trouble` are status codes that it answers with first."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.paths: list[str] = []
        self.trouble: list[int] = []
        self.password: str | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server: Registry

    def do_GET(self) -> None:
        self.server.paths.append(self.path)
        status, answer = self._answer()
        body = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _answer(self) -> tuple[int, Any]:
        if self.server.trouble:
            return self.server.trouble.pop(0), {"error_code": 50001, "message": "trouble"}
        expected = self.server.password
        if expected is not None and self.headers.get("Authorization") != f"Basic {expected}":
            return 401, {"error_code": 401}
        prefix, _, number = self.path.rpartition("/")
        if prefix != "/schemas/ids":
            return 404, {"error_code": 404}
        if int(number) not in SCHEMAS:
            return 404, {"error_code": 40403, "message": "Schema not found"}
        return 200, {"schema": json.dumps(SCHEMAS[int(number)])}

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@pytest.fixture
def server() -> Iterator[Registry]:
    with Registry() as made:
        thread = threading.Thread(target=made.serve_forever)
        thread.start()
        yield made
        made.shutdown()
        thread.join()


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "FIRST_WAIT", 0.0)


def confluent(number: int, **fields: Any) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(SCHEMAS[number]), {"t": SECONDS} | fields)
    return b"\0" + number.to_bytes(4, "big") + stream.getvalue()


def by(url: str, **more: Any) -> dict[str, Any]:
    return {"avro": {"registry": {"url": url, **more}, "field": "t", "unit": "seconds"}}


def test_each_message_is_read_by_its_own_schema_which_is_asked_for_once(server: Registry) -> None:
    messages = [confluent(1), confluent(70000, x="y"), confluent(1)] * 20
    for _ in range(2):
        assert folders(messages, time=by(server.url)) == [DAY] * 60
    assert sorted(server.paths) == ["/schemas/ids/1", "/schemas/ids/70000"]


def test_a_message_without_the_header_or_of_an_unknown_schema_is_a_dead_letter(server: Registry) -> None:
    unknown = b"\0" + (5).to_bytes(4, "big") + b"x"
    messages = [confluent(1), b"\1\0\0\0\1x", b"\0\0", unknown, confluent(1)[:-1], unknown]
    found = folders(messages, time=by(server.url))
    header = "<the message does not begin with byte 0 and the id of a schema>"
    assert found[:4] == [DAY, header, header, "<the schema registry has no schema 5>"]
    assert found[4].startswith("<the message is not Avro of this schema")
    assert found[5] == found[3]
    assert server.paths == ["/schemas/ids/1", "/schemas/ids/5"]


def test_trouble_that_passes_is_waited_for(server: Registry) -> None:
    server.trouble = [500, 503, 429]
    assert folders([confluent(1)], time=by(server.url)) == [DAY]
    assert len(server.paths) == 4


def test_a_registry_that_stays_away_is_unavailable_and_no_fault_of_the_message(server: Registry) -> None:
    server.trouble = [500] * 9
    with pytest.raises(SourceUnavailable, match="does not respond: 500"):
        folders([confluent(1)], time=by(server.url, tries=2))
    server.trouble = []
    assert folders([confluent(1)], time=by(server.url, tries=2)) == [DAY]
    with pytest.raises(SourceUnavailable, match="does not respond"):
        folders([confluent(1)], time=by("http://127.0.0.1:9", tries=2))


def test_a_server_that_is_no_registry_fails_the_batch(server: Registry) -> None:
    with pytest.raises(BatchError, match="is not a schema registry"):
        folders([confluent(1)], time=by(f"{server.url}/elsewhere"))


def test_a_password_is_sent(server: Registry) -> None:
    server.password = base64.b64encode(b"me:s3cret").decode()
    assert folders([confluent(1)], time=by(server.url, user="me", password="s3cret")) == [DAY]
    with pytest.raises(SourceUnavailable, match="401"):
        folders([confluent(1)], time=by(server.url, tries=1))


class _Nothing(Stager, Staging):
    """A sink that keeps nothing."""

    def columns(self, fields: Any) -> dict[str, Any]:
        return {}

    def begin(self) -> Staging:
        return self

    def write(self, batch: StagedBatch, items: Any, rows: Any, folder: str = "") -> int:
        return 0

    def bury(self, batch: StagedBatch, faults: Any) -> None: ...

    def finish(self, batch: StagedBatch) -> Any:
        return {}

    def abandon(self, batch: StagedBatch) -> None: ...


def test_in_a_staging_task_the_batch_waits_and_no_attempt_is_counted() -> None:
    batch = StagedBatch("b", "p", "k", Name("orders", "3"), 1, 1)
    task = StageTask(
        [batch], {"out": SinkTask(_Nothing(), None)}, {"1-parse": step(time=by("http://127.0.0.1:9", tries=1))}
    )
    (answer,) = task(iter([message_rows([confluent(1)])]))
    report = TaskReport.decode(answer.column("report")[0].as_py())
    assert report.unavailable
    assert "schema registry" in str(report.error)
