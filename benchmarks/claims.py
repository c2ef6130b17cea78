"""Claims on PostgreSQL, by one and by eight processes, beside a bare statement and two well-known job queues.

The bare statement is the seed's, sent through the same driver, prepared, on a table with the same rows and indexes as
ours and in the same order; it answers with the key and the body of what it took, reads no JSON and counts nothing. The
libraries take one job at a time through their own calls, in their own tables. The server is as it comes, but for
shared_buffers; it commits to the disk. All take turns, a second at a time.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
import tomllib
import venv
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import psycopg

from benchmarks._claim_clients import PIPELINE
from benchmarks.harness import Comparison, compare, interleaved
from holdfast.config.secrets import Secret
from holdfast.leases.codec import encode_body
from holdfast.leases.lease import Partition, new_lease
from holdfast.leases.store import ClaimRequest
from holdfast.stores.postgresql import PostgresqlConfig
from holdfast.stores.postgresql.store import PostgresqlStore
from tests.servers.processes import PASSWORD, PostgresqlServer, running

ROOT = Path(__file__).parents[1]
CLIENTS = Path(__file__).parent / "_claim_clients.py"

FEW, MANY = 1, 8
BATCH = 100
ROUNDS = 7
SECONDS, SECONDS_OF_BATCHES, WARM_UP = 1.0, 0.5, 2.0
THOUSAND, MILLION = 1_000, 1_000_000
JOBS = 300_000
LONG, EDGE = 40, 5
CLAIMS_AMONG_MANY, REPETITIONS_AMONG_MANY = 20, 20


def run() -> list[Comparison]:
    peers = _python_of_peers()
    with running(PostgresqlServer, fsync="on", shared_buffers="512MB", max_wal_size="8GB") as server:
        bench = _Bench(server, peers)
        return [*bench.against_others(), bench.over_time(), bench.among_many()]


class _Bench:
    """The server, the tables on it, and clients of every kind."""

    def __init__(self, server: PostgresqlServer, peers: Path) -> None:
        self._peers = peers
        self._place: dict[str, Any] = {"host": "127.0.0.1", "port": server.port, "user": server.user}
        self._place |= {"password": PASSWORD, "dbname": "postgres"}

    def against_others(self) -> list[Comparison]:
        """One at a time and in hundreds, against the bare statement and the better library."""
        for prefix, rows in (("ours_", JOBS), ("hundreds_", MILLION), ("raw_", JOBS)):
            self._fill(prefix, rows)
        self._fill_peers(JOBS)
        return [comparison for number in (FEW, MANY) for comparison in self._with_clients(number)]

    def _with_clients(self, number: int) -> Iterator[Comparison]:
        kinds = (
            ("holdfast", "ours_"),
            ("holdfast", "hundreds_"),
            ("raw", "raw_"),
            ("procrastinate", ""),
            ("pgqueuer", ""),
        )
        with ExitStack() as stack:
            ours, hundreds, raw, *libraries = [
                stack.enter_context(_clients(number, self._python(kind), kind, {**self._place, "prefix": prefix}))
                for kind, prefix in kinds
            ]
            for clients in (ours, hundreds, raw, *libraries):
                clients.rate(WARM_UP, 1)
            few_clients, many, bare, *others = interleaved(
                [
                    lambda: ours.rate(SECONDS, 1),
                    lambda: hundreds.rate(SECONDS_OF_BATCHES, BATCH),
                    lambda: raw.rate(SECONDS, 1),
                    *(partial(library.rate, SECONDS, 1) for library in libraries),
                ],
                ROUNDS,
            )
        library, name = max(zip(others, ("procrastinate", "pgqueuer"), strict=True))
        who = f"{number} client{'s' * (number > 1)}"
        yield compare("claims", f"{who}, one at a time, against raw", few_clients, bare, "claims/s", 0.8)
        yield compare("claims", f"{who}, one at a time, against {name}", few_clients, library, "claims/s", 0.9)
        yield compare("claims", f"{who}, in hundreds, against raw", many, bare, "claims/s", 8.0)
        yield compare("claims", f"{who}, in hundreds, against {name}", many, library, "claims/s", 8.0)

    def over_time(self) -> Comparison:
        """Whether the queue's head grows slow while much is claimed."""
        self._fill("long_", MILLION)
        with _clients(MANY, self._python("holdfast"), "holdfast", {**self._place, "prefix": "long_"}) as clients:
            clients.rate(WARM_UP, 1)
            taken = clients.taken(LONG, 1)
        first, last = (statistics.mean(seconds) for seconds in (taken[:EDGE], taken[LONG - EDGE : LONG]))
        case = f"{MANY} clients, the last {EDGE} s of {LONG} against the first, 1,000,000 rows"
        return compare("claims", case, last, first, "claims/s", 0.8)

    def among_many(self) -> Comparison:
        """What finished rows cost."""
        self._fill("million_", MILLION, completed=0.99)
        self._fill("thousand_", THOUSAND)
        stores = [self._store(prefix) for prefix in ("million_", "thousand_")]
        large, small = interleaved([partial(_microseconds, store) for store in stores], REPETITIONS_AMONG_MANY)
        for store in stores:
            store.close()
        return compare(
            "claims", "a claim among 1,000,000 rows, 99 % COMPLETED, against 1,000", large, small, "µs", "<= 1.5"
        )

    def _python(self, kind: str) -> str:
        return sys.executable if kind in ("holdfast", "raw") else str(self._peers)

    def _store(self, prefix: str) -> PostgresqlStore:
        address = {name: self._place[name] for name in ("host", "port", "user")}
        config = PostgresqlConfig(**address, database="postgres", password=Secret(PASSWORD), table_prefix=prefix)
        return PostgresqlStore(config)

    def _fill(self, prefix: str, rows: int, completed: float = 0.0) -> None:
        """Rows as the store itself would write them, the completed ones first."""
        store = self._store(prefix)
        store.open()
        store.close()
        spec = {"bucket": "archive-eu-1", "key": "year=2026/month=11/day=15/part-00001.json.gz", "size": 18_231_904}
        body = encode_body(new_lease(PIPELINE, Partition("", spec=spec), "0" * 32, now=1_763_220_000.123456))
        with psycopg.connect("", autocommit=True, **self._place) as db:
            db.execute(
                f'INSERT INTO "{prefix}lease" ("pipeline", "run", "key", "group", "status", "token", "version", '
                '"due_at", "priority", "ordinal", "takeovers", "seal", "body") '
                "SELECT %(pipeline)s, '', 's3://archive-eu-1/part-' || lpad(n::text, 9, '0'), '', "
                "CASE WHEN n < %(first)s THEN 'COMPLETED' ELSE 'UNASSIGNED' END, 0, 0, "
                "CASE WHEN n < %(first)s THEN NULL ELSE 0 END, 0, n, 0, hashtextextended(%(body)s, 1), %(body)s "
                "FROM generate_series(0, %(rows)s - 1) AS n",
                {"pipeline": PIPELINE, "rows": rows, "first": int(rows * completed), "body": body},
            )
            db.execute(f'VACUUM ANALYZE "{prefix}lease"')

    def _fill_peers(self, jobs: int) -> None:
        subprocess.run([self._peers, "-c", _INSTALL, json.dumps(self._place)], check=True)
        with psycopg.connect("", autocommit=True, **self._place) as db:
            db.execute(
                "INSERT INTO procrastinate_jobs (queue_name, task_name, args) "
                "SELECT %s, 'task', jsonb_build_object('n', n) FROM generate_series(1, %s) AS n",
                (PIPELINE, jobs),
            )
            db.execute(
                "INSERT INTO pgqueuer (priority, status, entrypoint, payload) "
                "SELECT 0, 'queued', %s, convert_to(n::text, 'UTF8') FROM generate_series(1, %s) AS n",
                (PIPELINE, jobs),
            )
            db.execute("VACUUM ANALYZE")


_INSTALL = """
import asyncio, json, logging, sys
import procrastinate, psycopg
from pgqueuer.db import PsycopgDriver
from pgqueuer.queries import Queries

logging.getLogger("procrastinate").setLevel(logging.ERROR)

async def main(place):
    async with procrastinate.App(connector=procrastinate.PsycopgConnector(kwargs=place)).open_async() as app:
        await app.schema_manager.apply_schema_async()
    connection = await psycopg.AsyncConnection.connect("", autocommit=True, **place)
    await Queries(PsycopgDriver(connection)).install()
    await connection.close()

asyncio.run(main(json.loads(sys.argv[1])))
"""


class _Clients:
    """Processes of one kind that claim on command."""

    def __init__(self, processes: Sequence[subprocess.Popen[str]]) -> None:
        self._processes = processes

    def taken(self, seconds: float, limit: int) -> list[int]:
        """What all of them together took in each second."""
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write(f"{seconds} {limit}\n")
            process.stdin.flush()
        answers = [json.loads(_line(process)) for process in self._processes]
        return [sum(column) for column in zip(*answers, strict=True)]

    def rate(self, seconds: float, limit: int) -> float:
        return sum(self.taken(seconds, limit)) / seconds


@contextmanager
def _clients(number: int, python: str, kind: str, server: Mapping[str, Any]) -> Iterator[_Clients]:
    command = [python, str(CLIENTS), kind, json.dumps(server)]
    processes = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(number)
    ]
    try:
        for process in processes:
            assert _line(process) == "ready\n"
        yield _Clients(processes)
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def _microseconds(store: PostgresqlStore) -> float:
    started = time.perf_counter()
    for number in range(CLAIMS_AMONG_MANY):
        assert len(store.claim(ClaimRequest(PIPELINE, "me", str(number)))) == 1
    return 1e6 * (time.perf_counter() - started) / CLAIMS_AMONG_MANY


def _python_of_peers() -> Path:
    """An environment for the libraries alone: they bring much that holdfast does not need."""
    home = ROOT / "build" / "bench-peers"
    done = home / "done"
    if not done.exists():
        wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["bench"]
        venv.create(home, with_pip=True, clear=True)
        subprocess.run([home / "bin" / "python", "-m", "pip", "install", "-q", *wanted], check=True)
        done.touch()
    return home / "bin" / "python"
