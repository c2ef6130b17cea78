"""A reindex run under everything that may fail. `make chaos-reindex MINUTES=N` is the long form."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from holdfast.flow.run import RunStatus
from tests.chaos.reindex import NODES, CrashPoint, Site, database_of, first_run, one_run
from tests.servers.opensearch import OpenSearchServer
from tests.servers.processes import running

pytestmark = [pytest.mark.spark, pytest.mark.slow]

ROWS = 4000


@pytest.fixture(scope="module")
def search() -> Iterator[OpenSearchServer]:
    with running(OpenSearchServer) as server:
        yield server


@pytest.mark.parametrize("kind", ["postgresql", "mariadb"])
def test_index_and_tables_agree_and_no_search_fails_though_nodes_and_servers_do(
    kind: str, search: OpenSearchServer, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        site = Site(tmp_path, stack.enter_context(database_of(kind)), search, stack, ROWS)
        site.start(*NODES)
        first_run(site)
        faults = [
            lambda: site.kill(NODES[0]),
            site.restart_database,
            lambda: site.overload(1.0),
            site.restart_search,
        ]
        # Of four aliases, one is swapped when the driver dies.
        verdict = one_run(site, faults, CrashPoint("POST /_aliases", 2), seed=7)
    assert (verdict.run.status, verdict.run.error) == (RunStatus.COMPLETED, None)
    assert verdict.wrong == []
    assert verdict.gaps == []
    assert (verdict.searches > 10, verdict.changes > 10) == (True, True)
    assert any("killed at" in struck for struck in site.struck)
