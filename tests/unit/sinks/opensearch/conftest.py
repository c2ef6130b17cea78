"""Stand-ins for the server's side."""

from __future__ import annotations

import ssl
from collections.abc import Iterator

import pytest

from tests.unit.sinks.opensearch.door import Door, Doors


@pytest.fixture
def doors() -> Iterator[Doors]:
    made: list[Door] = []

    def build(context: ssl.SSLContext | None = None) -> Door:
        made.append(Door(context))
        return made[-1]

    yield build
    for door in made:
        door.close()
