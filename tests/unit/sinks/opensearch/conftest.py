"""Stand-ins for the server's side."""

from __future__ import annotations

import ssl
from collections.abc import Iterator

import pytest

from tests.unit.sinks.opensearch.stub_server import StubServer, StubServers


@pytest.fixture
def stub_servers() -> Iterator[StubServers]:
    made: list[StubServer] = []

    def build(context: ssl.SSLContext | None = None) -> StubServer:
        made.append(StubServer(context))
        return made[-1]

    yield build
    for stub in made:
        stub.close()
