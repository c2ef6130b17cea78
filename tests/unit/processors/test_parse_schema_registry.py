"""Avro with a schema registry: a real HTTP server that answers as Confluent's does, or as one must not."""

from __future__ import annotations

import base64
import io
import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import fastavro
import pytest

from holdfast.errors import BatchError, SourceUnavailable
from holdfast.flow.batch import Name
from holdfast.flow.staging import StagedBatch, Stager, Staging
from holdfast.processors.parse import schema_registry as registry
from holdfast.processors.parse.binary_fields import ConfluentDecoder
from holdfast.processors.parse.portion import Unreadable
from holdfast.spark.report import TaskReport
from holdfast.spark.task import SinkTask, StageTask
from tests.servers.processes import certificate
from tests.unit.processors.rig import folders, message_rows, step

SCHEMAS = {
    1: {"type": "record", "name": "A", "fields": [{"name": "t", "type": "long"}]},
    70000: {"type": "record", "name": "A", "fields": [{"name": "x", "type": "string"}, {"name": "t", "type": "long"}]},
}
DAY = "dt=2026-01-01"
SECONDS = 1767268800


class Registry(ThreadingHTTPServer):
    """Answers for the schemas above; `trouble` are status codes that it answers with first.

    `bodies` are responses by path, of any content, or a status; `redirect` is where it sends all requests, by `status`.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.paths: list[str] = []
        self.trouble: list[int] = []
        self.password: str | None = None
        self.bodies: dict[str, Any] = {}
        self.redirect: str | None = None
        self.status = 302
        self.credentials: list[str | None] = []

    @property
    def url(self) -> str:
        scheme = "https" if isinstance(self.socket, ssl.SSLSocket) else "http"
        return f"{scheme}://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server: Registry

    def do_GET(self) -> None:
        self.server.paths.append(self.path)
        self.server.credentials.append(self.headers.get("Authorization"))
        status, answer = self._answer()
        body = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        self.send_response(status)
        if self.server.redirect is not None:
            self.send_header("Location", self.server.redirect)
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
        if self.server.redirect is not None:
            return self.server.status, {}
        if self.path in self.server.bodies:
            body = self.server.bodies[self.path]
            return (body, {}) if isinstance(body, int) else (200, body)
        prefix, _, number = self.path.rpartition("/")
        if prefix.startswith("/subjects/"):
            return 404, {"error_code": 40402, "message": "Version not found"}
        if prefix != "/schemas/ids":
            return 404, {"error_code": 404}
        if int(number) not in SCHEMAS:
            return 404, {"error_code": 40403, "message": "Schema not found"}
        return 200, {"schema": json.dumps(SCHEMAS[int(number)])}

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@contextmanager
def served(identity: Path | None = None) -> Iterator[Registry]:
    """A running server; with TLS if it has a certificate."""
    with Registry() as made:
        if identity is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(identity, identity.with_suffix(".key"))
            made.socket = context.wrap_socket(made.socket, server_side=True)
        thread = threading.Thread(target=made.serve_forever, args=(0.01,))
        thread.start()
        yield made
        made.shutdown()
        thread.join()


@pytest.fixture
def server() -> Iterator[Registry]:
    with served() as made:
        yield made


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


def test_over_tls_the_password_is_sent_to_a_server_that_can_be_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    login = {"user": "me", "password": "s3cret", "tries": 1}
    with served(certificate(tmp_path, "server")) as server:
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate(tmp_path, "other")))
        with pytest.raises(SourceUnavailable, match="CERTIFICATE_VERIFY_FAILED"):
            folders([confluent(1)], time=by(server.url, **login))
        assert server.credentials == []
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "server.pem"))
        assert folders([confluent(1)], time=by(server.url, **login)) == [DAY]
        assert server.credentials == ["Basic " + base64.b64encode(b"me:s3cret").decode()]


def reference(subject: str, version: int = 1) -> dict[str, Any]:
    return {"name": subject, "subject": subject, "version": version}


def registered(schema: Any, *references: dict[str, Any]) -> dict[str, Any]:
    return {"schema": json.dumps(schema), "references": list(references)}


def headed(number: int, body: bytes = b"") -> bytes:
    return b"\0" + number.to_bytes(4, "big") + body


def seconds_as_avro() -> bytes:
    return confluent(1)[5:]


def record(name: str, **fields: Any) -> dict[str, Any]:
    listed = [{"name": field, "type": kind} for field, kind in fields.items()]
    return {"type": "record", "name": name, "namespace": "shop", "fields": listed}


def test_schemas_that_are_referred_to_are_fetched_with_those_that_they_refer_to(server: Registry) -> None:
    server.bodies = {
        "/schemas/ids/5": registered(
            record("Order", when="shop.When", also="Clock"), reference("when"), reference("a/b ü", 3)
        ),
        "/subjects/when/versions/1": registered(record("When", clock="Clock"), reference("a/b ü", 3)),
        "/subjects/a%2Fb%20%C3%BC/versions/3": registered(record("Clock", t="long")),
    }
    messages = [headed(5, 2 * seconds_as_avro()), confluent(1), headed(5, b"\1"), headed(5, 2 * seconds_as_avro())]
    time = by(server.url)
    time["avro"]["field"] = "when.clock.t"
    found = folders(messages, time=time)
    assert found[0] == found[3] == DAY
    assert found[1] == "<the field when.clock.t is missing>"
    assert "is not Avro of this schema" in found[2]
    assert sorted(server.paths) == sorted([*server.bodies, "/schemas/ids/1"])


def test_a_union_of_schemas_that_are_referred_to_is_read(server: Registry) -> None:
    server.bodies = {
        "/schemas/ids/5": registered(["shop.A", "shop.B"], reference("a"), reference("b")),
        "/subjects/a/versions/1": registered(record("A", x="null")),
        "/subjects/b/versions/1": registered(record("B", t="long")),
    }
    found = folders([headed(5, b"\2" + seconds_as_avro()), headed(5, b"\0")], time=by(server.url))
    assert found == [DAY, "<the field t is missing>"]


@pytest.mark.parametrize(
    ("references", "reason"),
    [
        ([reference("gone", 7)], "the schema registry has no version 7 of the subject gone, to which schema 5 refers"),
        ([reference("circle")], "refers to itself"),
        ([reference("wide")], "schema 5 refers to more than 200 schemas"),
        ([reference("deep0")], "schema 5 refers to schemas more than 32 levels deep"),
        (
            [reference("proto")],
            "version 1 of the subject proto, to which schema 5 refers, is of type PROTOBUF, not Avro",
        ),
        ([{"subject": "x"}, 5], "schema 5 refers to a schema without a valid subject and version"),
        ([reference("\ud800")], "schema 5 refers to a schema without a valid subject and version"),
        ([], "is not an Avro schema"),
        ("x", "schema 5 has references that are not a list"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_references_that_cannot_be_used_are_a_fault_of_their_messages(
    server: Registry, references: Any, reason: str
) -> None:
    server.bodies = {
        "/schemas/ids/5": {"schema": '"shop.X"', "references": references},
        "/subjects/circle/versions/1": registered("int", reference("circle")),
        "/subjects/wide/versions/1": registered("int", *(reference(f"w{number}") for number in range(300))),
        "/subjects/proto/versions/1": {"schema": "syntax", "schemaType": "PROTOBUF"},
    }
    server.bodies |= {f"/subjects/w{number}/versions/1": registered("int") for number in range(300)}
    server.bodies |= {
        f"/subjects/deep{number}/versions/1": registered("int", reference(f"deep{number + 1}")) for number in range(99)
    }
    found = folders([headed(5), confluent(1), headed(5)], time=by(server.url))
    assert found[1] == DAY
    assert found[0] == found[2]
    assert reason in found[0]
    assert len(server.paths) < 300


@pytest.mark.parametrize(
    "schema",
    [
        "[" * 100_000,
        '"\\ud800"',
        json.dumps({"type": "record", "name": "\ud800", "fields": 5}),
        "no JSON",
        "5",
        "{}",
        "[]",
    ],
    ids=lambda text: text[:9],
)
def test_a_schema_that_is_not_valid_is_a_fault_of_its_messages(server: Registry, schema: str) -> None:
    server.bodies = {"/schemas/ids/5": {"schema": schema}}
    found = folders([headed(5), confluent(1), headed(5)], time=by(server.url))
    assert found[1] == DAY
    assert found[0] == found[2]
    assert "is not a" in found[0] or "is not Avro" in found[0]
    assert server.paths == ["/schemas/ids/5", "/schemas/ids/1"]


def test_a_response_without_end_is_read_up_to_a_limit_and_is_a_fault_of_its_messages(
    server: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "MAX_RESPONSE", 1000)
    server.bodies = {
        "/schemas/ids/5": b" " * 1001,
        "/schemas/ids/6": registered(["shop.A", "shop.B"], reference("a"), reference("b")),
        "/subjects/a/versions/1": registered(record("A", x="null") | {"doc": "x" * 500}),
        "/subjects/b/versions/1": registered(record("B", x="null") | {"doc": "x" * 500}),
    }
    found = folders([headed(5), headed(6), confluent(1), headed(5)], time=by(server.url))
    assert found[0] == found[3] == "<the schema registry's response to /schemas/ids/5 has more than 1000 bytes>"
    assert found[1:3] == ["<schema 6 and the schemas that it refers to have more than 1000 bytes>", DAY]


def test_a_response_that_trickles_is_given_up_after_the_time_limit(server: Registry) -> None:
    times = iter(range(0, 1000, 6))
    client = registry.SchemaRegistry(
        registry.Endpoint(server.url, None, None, 5.0, 2), lambda _: None, lambda: float(next(times))
    )
    with pytest.raises(SourceUnavailable, match="takes longer than 5 s"):
        client.schema(1)


def test_a_redirect_is_not_followed_and_no_other_server_gets_the_password(server: Registry) -> None:
    with served() as other:
        server.redirect = f"http://localhost:{other.server_address[1]}/secret/schemas/ids/1"
        with pytest.raises(
            SourceUnavailable, match=r"302 Found: redirects are not followed; this one leads to localhost$"
        ):
            folders([confluent(1)], time=by(server.url, user="me", password="s3cret", tries=2))
        assert other.paths == []
    assert server.credentials[0]
    server.redirect = None
    assert folders([confluent(1)], time=by(server.url, user="me", password="s3cret")) == [DAY]


@pytest.mark.parametrize("status", [300, 301, 307, 308])
@pytest.mark.parametrize("target", ["http://[", "", "file:///etc/passwd", "/schemas"])
def test_a_redirect_to_anywhere_means_that_the_registry_is_unavailable(
    server: Registry, status: int, target: str
) -> None:
    server.redirect, server.status = target, status
    with pytest.raises(SourceUnavailable, match="does not respond"):
        folders([confluent(1)], time=by(server.url, tries=1))
    assert len(server.paths) == 1


def test_a_registry_that_goes_away_between_a_schema_and_its_references_is_unavailable(server: Registry) -> None:
    server.bodies = {
        "/schemas/ids/5": registered("shop.B", reference("b")),
        "/subjects/b/versions/1": 503,
    }
    with pytest.raises(SourceUnavailable, match="does not respond: 503"):
        folders([headed(5, seconds_as_avro())], time=by(server.url, tries=2))
    server.bodies["/subjects/b/versions/1"] = registered(record("B", t="long"))
    assert folders([headed(5, seconds_as_avro())], time=by(server.url, tries=2)) == [DAY]


def test_an_unknown_id_is_requested_once_in_a_while_and_found_when_it_is_registered(server: Registry) -> None:
    now = [100.0]
    client = registry.SchemaRegistry(registry.Endpoint(server.url, None, None, 5.0, 1), clock=lambda: now[0])
    decoder = ConfluentDecoder(client)
    reasons = set()
    for _ in range(1000):
        with pytest.raises(Unreadable) as raised:
            decoder.decode(headed(5, seconds_as_avro()))
        reasons.add(str(raised.value))
    assert reasons == {"the schema registry has no schema 5"}
    assert server.paths == ["/schemas/ids/5"]
    server.bodies = {"/schemas/ids/5": registered(SCHEMAS[1])}
    now[0] += registry.UNKNOWN_FOR - 1
    with pytest.raises(Unreadable, match="has no schema 5"):
        decoder.decode(headed(5, seconds_as_avro()))
    now[0] += 2
    assert decoder.decode(headed(5, seconds_as_avro())) == {"t": SECONDS}
    assert len(server.paths) == 2


def test_what_is_remembered_is_bounded(server: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "MAX_CACHED_SCHEMAS", 3)
    monkeypatch.setattr(registry, "MAX_UNKNOWN", 3)
    server.bodies = {f"/schemas/ids/{number}": registered("long") for number in range(10, 20)}
    client = registry.SchemaRegistry(registry.Endpoint(server.url, None, None, 5.0, 1))

    def requests(*numbers: int) -> list[int]:
        server.paths.clear()
        for number in numbers:
            with suppress(Unreadable):
                client.schema(number)
        return [int(path.rpartition("/")[2]) for path in server.paths]

    assert requests(10, 11, 12, 10, 13) == [10, 11, 12, 13]
    assert requests(10, 12, 13, 11) == [11]
    assert requests(30, 31, 32, 33) == [30, 31, 32, 33]
    assert requests(33, 32, 31, 30) == [30]
    monkeypatch.setattr(registry, "MAX_CACHED_BYTES", 1)
    assert requests(14, 14, 15, 15, 14) == [14, 15, 14]


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
    ((_, encoded),) = task(iter([message_rows([confluent(1)])]))
    report = TaskReport.decode(encoded)
    assert report.unavailable
    assert "schema registry" in str(report.error)
