"""The configuration file, responses of servers, and names that are made from records."""

from __future__ import annotations

import http.client
import io
import json
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

from holdfast.config import load_text
from holdfast.errors import BatchError, ConfigError, SourceUnavailable
from holdfast.flow.batch import Name
from holdfast.flow.names import LONGEST_SEGMENT, dead_letter_key, file_key, manifest_key, segment, staging_key
from holdfast.flow.staging import StagedBatch
from holdfast.processors.parse import schema_registry
from holdfast.processors.parse.binary_fields import ConfluentDecoder
from holdfast.processors.parse.portion import Unreadable
from holdfast.processors.parse.schema_registry import Endpoint, SchemaRegistry
from holdfast.registry import Registry
from holdfast.sinks.opensearch.bulk_body import RecordNumbers
from holdfast.sinks.opensearch.bulk_response import parse_response
from holdfast.sinks.opensearch.documents import EntryBuilder
from holdfast.sinks.opensearch.templates import IndexName, Template
from tests.fuzz.codec_targets import AVRO_TOKENS, JSON_TOKENS
from tests.fuzz.target import Target, check_text
from tests.unit.processors.test_parse_encodings import AVRO, avro

HOME = Path(__file__).parents[2]
YAML_TOKENS = [
    *(b": ", b"- ", b"? ", b"{", b"}", b"[", b"]", b"'", b'"', b"&a ", b"*a", b"!!python/object ", b"!!binary ", b"|"),
    *(
        b"<<: *a",
        b"~",
        b"---\n",
        b"\t",
        b"\xe2\x80\xa8",
        b"${env:A}",
        b"${env:",
        b"${file:/dev/null}",
        b"$${",
        b"\\ud800",
    ),
    *(b"null", b"30s", b"64MiB", b"-1", b"1e400", b".inf", b"0x10", b"2026-01-01", b"\x00", b"\xff"),
]


def _config_target() -> Target:
    files = [*sorted((HOME / "examples").glob("[adls]*/*.yaml"))]
    registry = Registry.installed()

    def read(data: bytes) -> None:
        try:
            load_text(
                data.decode("utf-8", "surrogateescape"),
                "holdfast.yaml",
                registry,
                {"A": "sesame", "HOLDFAST_STORE": "postgresql://h/d"},
            )
        except ConfigError as error:
            if not error.problems:
                raise AssertionError("it has no problems") from error
            check_text(str(error))
            raise

    return Target("config", [file.read_bytes() for file in files], read, (ConfigError,), YAML_TOKENS)


# --- responses -------------------------------------------------------------------------------------------------------

ERROR = {"type": "mapper_parsing_exception", "reason": "failed", "caused_by": {"type": "x", "reason": "y"}}
BULK = [
    {
        "errors": True,
        "items": [{"index": {"status": 201}}, {"create": {"status": 409}}, {"index": {"status": 400, "error": ERROR}}],
    },
    {
        "errors": True,
        "items": [{"index": {"status": 429, "error": {"type": "circuit_breaking_exception", "reason": ""}}}] * 3,
    },
    {"errors": False, "items": [{"delete": {"status": 404}}, {"update": {"status": 200}}, {"index": {"status": 500}}]},
]
BULK_TOKENS = [
    *JSON_TOKENS,
    b'"status":',
    b'"errors":true',
    b'"type":',
    b'"caused_by":',
    b"{}",
    b"[]",
    b"[1]",
    b'"error":',
]


def _bulk_target() -> Target:
    def read(data: bytes) -> None:
        text = data.decode("utf-8", "surrogatepass" if data.isascii() else "replace")
        found = parse_response(text, sent=3, conflict_is_done=True)
        numbers = [*found.conflicts, *found.retry, *(number for number, _ in [*found.broken, *found.refused])]
        assert sorted(numbers) == sorted(set(numbers)), "a document has two outcomes"
        assert set(numbers) <= {0, 1, 2}
        for _, reason in [*found.broken, *found.refused]:
            check_text(reason)

    seeds = [json.dumps(answer).encode() for answer in BULK]
    return Target("bulk_responses", seeds, read, (ValueError,), BULK_TOKENS)


class _Socket:
    """Is connected to a server that sends these bytes, whatever it is sent."""

    def __init__(self, response: bytes) -> None:
        self._response = response

    def sendall(self, _data: bytes) -> None:
        """Sent."""

    def makefile(self, *_: Any, **__: Any) -> io.BufferedIOBase:
        return io.BytesIO(self._response)

    def close(self) -> None:
        """Closed."""


def _opener(response: bytes) -> Any:
    class Connection(http.client.HTTPConnection):
        def connect(self) -> None:
            self.sock: Any = _Socket(response)

    class Handler(urllib.request.HTTPHandler):
        def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
            return self.do_open(Connection, req)

    return urllib.request.build_opener(schema_registry._NoRedirects, Handler)


def _answer(body: Any, status: str = "200 OK", headers: str = "") -> bytes:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return f"HTTP/1.1 {status}\r\nConnection: close\r\n{headers}\r\n".encode() + content


def _registry_target() -> Target:
    seeds = [
        _answer({"schema": json.dumps(AVRO)}),
        _answer({"schema": '["null", "string"]', "schemaType": "AVRO", "references": []}),
        _answer({"schema": '"x.Y"', "references": [{"name": "x.Y", "subject": "y", "version": 1}]}),
        _answer({"error_code": 40403, "message": "Schema not found"}, "404 Not Found"),
        _answer({}, "302 Found", "Location: http://other/\r\n"),
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"e\r\n" + b'{"schema":"1"}' + b"\r\n0\r\n\r\n",
    ]
    tokens = [*JSON_TOKENS, *AVRO_TOKENS, b"\r\n", b"HTTP/1.1 ", b"Content-Length: 99999999999\r\n", b"404", b"301"]

    def read(data: bytes) -> None:
        registry = SchemaRegistry(Endpoint("http://registry", None, None, 5.0, 1), sleep=lambda _: None)
        registry._connection._opener = _opener(data)
        ConfluentDecoder(registry).decode(b"\0\0\0\0\1" + avro())

    return Target("registry_responses", seeds, read, (Unreadable, SourceUnavailable, BatchError), tokens)


# --- names -----------------------------------------------------------------------------------------------------------


def _names_target() -> Target:
    """Names of files from those of topics, partitions and output folders."""

    def read(data: bytes) -> None:
        text = data.decode("utf-8", "surrogatepass" if data.isascii() else "surrogateescape")
        folders = tuple(text.split("/"))
        name = Name(text, text[::-1])
        keys = [file_key(name, 1, 0, "jsonl", folders), dead_letter_key(name, 1, 0), manifest_key(name, 3)]
        for key in [*keys, staging_key(name, 5, "batch", "0")]:
            assert key.isascii(), "not a plain path"
            assert key.isprintable(), "not a plain path"
            parts = key.split("/")
            assert all(part.strip(".") and len(part) <= 2 * LONGEST_SEGMENT for part in parts), "not a path"
        assert (segment(text) == segment(text + "x")) is False

    seeds = [b"orders", "dt=2026-01-01/näme".encode(), b"../..", b"_hidden/.x", b"a%2Fb"]
    return Target("names", seeds, read, (), [b"/", b"..", b"%", b"~", b"\0", b"\xed\xa0\x80", b" "])


def _document_target() -> Target:
    """Index names, ids, routing and versions from fields of a document."""
    index = IndexName(Template("logs-{who}-{at:%Y.%m.%d}"))
    builders = [
        EntryBuilder(
            index, document_id=Template("{id}-{_item}"), routing=Template("{who}"), version=Template("{version}")
        ),
        EntryBuilder(
            IndexName(Template("{who}"), ("logs-*",)), action=Template("{action}"), document_id=Template("{id}")
        ),
        EntryBuilder(IndexName(Template("logs"))),
    ]
    batch = StagedBatch("b", "p", "k", Name("orders", "3"), 1, 1)
    seed = {"who": "logs-shop", "at": "2026-01-01T00:00:00Z", "id": 5, "version": 7, "action": "index"}

    def read(data: bytes) -> None:
        rows = pa.record_batch({"value": pa.array([data] * 9, pa.binary())})
        items = pa.array(range(9), pa.int64())
        for builder in builders:
            for entries, faults in builder.entries(batch, RecordNumbers(), items, rows):
                for _, fault in faults:
                    check_text(fault.encode())
                _check_entries(entries, builder)

    seeds = [json.dumps(seed).encode(), json.dumps({**seed, "at": 1767268800, "who": "ä"}).encode()]
    return Target("documents", seeds, read, (), JSON_TOKENS)


def _check_entries(entries: Any, builder: EntryBuilder) -> None:
    for number in range(len(entries)):
        lines = bytes(entries.part(number, number + 1).bytes()).removesuffix(b"\n").split(b"\n")
        ((action, metadata),) = json.loads(lines[0]).items()
        assert len(lines) == (1 if action == "delete" else 2), "an entry has more lines"
        assert "_index" not in metadata or builder.index.allows(metadata["_index"]), "an index that is not allowed"


def response_targets() -> list[Target]:
    """Whatever is neither an object nor a message."""
    made: list[Callable[[], Target]] = [
        _config_target,
        _bulk_target,
        _registry_target,
        _names_target,
        _document_target,
    ]
    return [make() for make in made]
