"""Servers for the tests of this folder: each is started when the first test asks for it, once per process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.servers.processes import MariadbServer, PostgresqlServer, running

pytest.register_assert_rewrite("holdfast.testing", "tests.servers.behaviour", "tests.servers.outages")


@pytest.fixture(scope="session")
def postgresql_server() -> Iterator[PostgresqlServer]:
    with running(PostgresqlServer) as server:
        yield server


@pytest.fixture(scope="session")
def mariadb_server() -> Iterator[MariadbServer]:
    with running(MariadbServer) as server:
        yield server
