"""A function on a Spark cluster: workers dial the driver by TLS, need no holdfast, stand still and are killed."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from tests.chaos.functions import EmbeddedRecords
from tests.chaos.handled import HANDLER, Handled
from tests.e2e.fleet import Node, eventually
from tests.e2e.freezing import descendants, freeze, freeze_descendants, thaw
from tests.e2e.test_cluster import SPARK_SECRET, bare_python
from tests.spark.cluster import Cluster, running_cluster
from tests.unit.functions.test_channel import certificate_files

pytestmark = [pytest.mark.spark, pytest.mark.slow]

DRIVER = "127.0.0.2"
"""An address of this host that holdfast takes for that of another, so that it insists on TLS."""
SOURCE = Path(__file__).parents[2] / "src"
SHARDS = EmbeddedRecords.shards
LONGER_THAN_A_SESSION = 15.0
CONFIG = """
source_coordination:
  store: {{sqlite: {{path: "{folder}/leases.db"}}}}
spark:
  master: {master}
  conf:
{settings}
    spark.pyspark.python: {python}
    spark.authenticate.secret: ${{env:SPARK_SECRET}}
    spark.io.encryption.enabled: true
  py_files: ["{folder}/cluster_orders.py"]
pipelines:
  orders:
    source:
      {source}
    sinks:
      - function:
          handler: cluster_orders:handler
          environment: {{HANDLED: "{folder}/handled"}}
          ack: explicit_only
          worker_allocation: static
          workers: 2
          concurrency: 3
          certificate: {certificate}
          certificate_key: {key}
          on_error: {{after_retries: stop}}
"""


def write_files(folder: Path, cluster: Cluster, source: str) -> None:
    certificate, key = certificate_files(folder)
    (folder / "cluster_orders.py").write_text(HANDLER)
    (folder / "handled").mkdir()
    conf = cluster.settings | {"spark.driver.host": DRIVER, "spark.driver.bindAddress": DRIVER}
    settings = "".join(f"    {name}: {value}\n" for name, value in conf.items()).rstrip()
    values = {
        "master": cluster.master,
        "python": bare_python(folder),
        "source": source,
        "certificate": certificate,
        "key": key,
    }
    (folder / "pipeline.yaml").write_text(CONFIG.format(folder=folder, settings=settings, **values))


class Orders:
    """A node on a cluster, and what its handler saw."""

    def __init__(self, folder: Path, cluster: Cluster, records: EmbeddedRecords) -> None:
        self.cluster, self.handled = cluster, Handled(folder / "handled")
        self._records, self._put = records, 0
        self.node = Node(folder, folder / "pipeline.yaml", "node")

    def handle(self, number: int) -> None:
        """Put so many records into each shard, and wait until they are handled."""
        self.put(number)
        self.wait()

    def put(self, number: int) -> None:
        self._records.put(self._put, self._put + number)
        self._put += number

    def wait(self) -> None:
        what = f"{self._put} records of each shard: {self.node.said()[-3000:]}"
        eventually(lambda: self._ends() == [self._put] * SHARDS, what=what)

    def _ends(self) -> list[int]:
        assert self.node.process.poll() is None, self.node.said()[-3000:]
        lines = (self.handled.lines(shard) for shard in range(SHARDS))
        return [len({line.offset for line in found if line.kind == "end"}) for found in lines]

    def strike(self, executor: int) -> None:
        """Note that the workers of this executor may leave records in the middle."""
        begun = {process for shard in range(SHARDS) for process in self.handled.workers(shard)}
        workers = begun & set(descendants(executor))
        assert workers
        self.handled.struck |= workers

    def executors(self) -> list[int]:
        return [pid for worker in self.cluster.workers for pid in worker.executors()]

    def wrong(self) -> list[str]:
        return [text for shard in range(SHARDS) for text in self.handled.wrong(shard, self._put)]

    def close(self) -> None:
        for executor in self.executors():
            thaw(executor)
        self.node.kill()


def test_a_function_goes_on_although_executors_of_its_cluster_stand_still_and_die(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    records = EmbeddedRecords(tmp_path)
    with running_cluster(secret=SPARK_SECRET) as cluster:
        write_files(tmp_path, cluster, records.source)
        # Only now, so that the node has these and the executors do not: they inherit from the workers.
        monkeypatch.setenv("SPARK_SECRET", SPARK_SECRET)
        monkeypatch.setenv("PYTHONPATH", f"{SOURCE}:{tmp_path}")
        orders = Orders(tmp_path, cluster, records)
        try:
            orders.handle(20)
            still, killed = orders.executors()
            # The JVM alone: its Python worker talks to the driver by itself, and nothing may come twice.
            freeze(still)
            orders.handle(10)
            thaw(still)
            # With its worker, for longer than a session: the worker's time is over before anybody else may begin.
            orders.strike(still)
            freeze(still)
            freeze_descendants(still)
            frozen_at = time.monotonic()
            orders.put(10)
            eventually(lambda: time.monotonic() > frozen_at + LONGER_THAN_A_SESSION, what="the end of the session")
            thaw(still)
            orders.wait()
            orders.strike(killed)
            os.kill(killed, signal.SIGKILL)
            orders.handle(10)
            orders.node.send(signal.SIGTERM)
            assert orders.node.exit_code() == 0
        finally:
            orders.close()
    assert orders.wrong() == []
    assert SPARK_SECRET not in orders.node.said()
