"""Memory of a driver while it discovers 1,000,000 objects of a bucket and makes a row for each in its store.

Source, discovery and store (SQLite) are the real ones, in a process that has loaded what a node loads; Spark's JVM has
no part in it. Only the bucket is made up: a server that lists as many objects as it is asked to. The figure is the
largest resident size that the process ever had. The peer's figure is the bound that was set, 300 MB.
"""

from __future__ import annotations

import multiprocessing
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks._listing_server import listing
from benchmarks.harness import Comparison, compare

OBJECTS = 1_000_000
BOUND = 300.0


def _discover(endpoint: str, order: str, folder: str, results: Any) -> None:
    import pyarrow.parquet  # noqa: F401 - what a node loads
    import pyspark.sql  # noqa: F401

    import holdfast.service  # noqa: F401
    from holdfast.config.secrets import Secret
    from holdfast.leases.coordinator import ClaimPolicy, Coordinator
    from holdfast.leases.discovery import Discovery
    from holdfast.leases.session import NodeInfo, Session, SessionTiming
    from holdfast.leases.world import host_world
    from holdfast.registry import Registry

    registry = Registry.installed()
    store = registry.get("stores", "sqlite").build(registry.get("stores", "sqlite").config(path=f"{folder}/leases.db"))
    store.open()
    world = host_world(lambda _event: None)
    session = Session(store, world, "$nodes", NodeInfo("node", "node"), SessionTiming())
    session.join()
    leases = Coordinator(store, world, session, "orders", policy=ClaimPolicy())
    keys = {"access_key_id": Secret("key"), "secret_access_key": Secret("secret")}
    s3 = {"endpoint_url": endpoint, "region": "us-east-1", "path_style": True, **keys}
    plugin = registry.get("sources", "objects")
    source = plugin.build(plugin.config(buckets=[{"bucket": "landing"}], s3=s3, order=order))
    began = time.monotonic()
    Discovery(leases, source.discover, rerun_after=None).run()
    seconds = time.monotonic() - began
    found = sum(leases.counts().values())
    store.close()
    results.send((found, _largest_resident() / 1e6, seconds))


def _largest_resident() -> int:
    """Bytes. Not from `getrusage`, which goes on with the figure of the process that started this one."""
    status = Path("/proc/self/status").read_text()
    return 1024 * int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM:")))


def _case(endpoint: str, order: str) -> Comparison:
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    with tempfile.TemporaryDirectory() as folder:
        process = spawn.Process(target=_discover, args=(endpoint, order, str(Path(folder)), theirs))
        process.start()
        found, megabytes, seconds = ours.recv()
        process.join()
    if found != OBJECTS:
        raise RuntimeError(f"{found} of {OBJECTS} objects were found")
    case = f"{OBJECTS:,} objects, order {order} ({OBJECTS / seconds:,.0f}/s)"
    return compare("discovery", case, megabytes, BOUND, "MB", "<= 1")


def run() -> list[Comparison]:
    with listing(OBJECTS) as endpoint:
        return [_case(endpoint, order) for order in ("name", "oldest")]
