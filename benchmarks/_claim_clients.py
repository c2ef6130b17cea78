"""One client of the claims benchmark, as a process: `_claim_clients.py KIND SERVER`, where SERVER is JSON.

It says "ready", then reads lines `SECONDS LIMIT`, claims for that long, and answers with a JSON list: how many leases
it took in each second. Kinds: holdfast, raw, procrastinate, pgqueuer. The last two run in an environment of their own.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import time
import uuid
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, TypeAlias

PIPELINE = "scan"
Claim: TypeAlias = Callable[[int], Awaitable[int]]

RAW = """
UPDATE {table} SET "status" = 'ASSIGNED', "owner" = $1, "claimed_at" = $2, "started_at" = $3, "version" = "version" + 1
WHERE "pipeline" = $4 AND "run" = $5 AND "key" = (
    SELECT "key" FROM {table} WHERE "pipeline" = $4 AND "run" = $5 AND "status" = 'UNASSIGNED'
    ORDER BY "priority" DESC, "ordinal", "key" LIMIT 1 FOR UPDATE SKIP LOCKED)
RETURNING "key", "body"
"""
"""The statement of the seed on our table: its key, its order and its indexes; and what a worker must know to begin."""


async def holdfast(server: dict[str, Any]) -> Claim:
    from holdfast.config.secrets import Secret
    from holdfast.leases.store import ClaimRequest
    from holdfast.stores.postgresql import PostgresqlConfig
    from holdfast.stores.postgresql.store import PostgresqlStore

    address = {name: server[name] for name in ("host", "port", "user")}
    config = PostgresqlConfig(
        **address, database=server["dbname"], password=Secret(server["password"]), table_prefix=server["prefix"]
    )
    store = PostgresqlStore(config)
    store.open()
    owner = f"client:{uuid.uuid4().hex}"

    async def claim(limit: int) -> int:
        return len(store.claim(ClaimRequest(PIPELINE, owner, uuid.uuid4().hex, limit)))

    return claim


async def raw(server: dict[str, Any]) -> Claim:
    import psycopg

    address = {name: server[name] for name in ("host", "port", "user", "password", "dbname")}
    cursor = psycopg.RawCursor(psycopg.connect("", autocommit=True, **address))
    text = RAW.format(table=f'"{server["prefix"]}lease"')

    async def claim(limit: int) -> int:
        now = time.time()
        cursor.execute(text, ("client", now, now, PIPELINE, ""), prepare=True)
        return len(cursor.fetchall())

    return claim


async def procrastinate(server: dict[str, Any]) -> Claim:
    import procrastinate as library

    # It warns of an App that others cannot import; here nobody wants to.
    logging.getLogger("procrastinate").setLevel(logging.ERROR)
    address = {name: server[name] for name in ("host", "port", "user", "password", "dbname")}
    app = library.App(connector=library.PsycopgConnector(min_size=1, max_size=1, kwargs=address))
    await app.open_async()
    worker = await app.job_manager.register_worker()

    async def claim(limit: int) -> int:
        return int(await app.job_manager.fetch_job(queues=[PIPELINE], worker_id=worker) is not None)

    return claim


async def pgqueuer(server: dict[str, Any]) -> Claim:
    import psycopg
    from pgqueuer.db import PsycopgDriver
    from pgqueuer.ports.repository import EntrypointExecutionParameter
    from pgqueuer.queries import Queries

    address = {name: server[name] for name in ("host", "port", "user", "password", "dbname")}
    queries = Queries(PsycopgDriver(await psycopg.AsyncConnection.connect("", autocommit=True, **address)))
    me, wanted = uuid.uuid4(), {PIPELINE: EntrypointExecutionParameter(concurrency_limit=0)}

    async def claim(limit: int) -> int:
        return len(await queries.dequeue(limit, wanted, me, None, timedelta(hours=1)))

    return claim


async def claim_for(claim: Claim, seconds: float, limit: int) -> list[int]:
    taken = [0] * int(seconds + 1)
    started = time.perf_counter()
    while (passed := time.perf_counter() - started) < seconds:
        taken[int(passed)] += await claim(limit)
    return taken


async def main(kind: str, server: str) -> None:
    claim = await {"holdfast": holdfast, "raw": raw, "procrastinate": procrastinate, "pgqueuer": pgqueuer}[kind](
        json.loads(server)
    )
    print("ready", flush=True)
    for line in sys.stdin:
        seconds, limit = line.split()
        print(json.dumps(await claim_for(claim, float(seconds), int(limit))), flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
