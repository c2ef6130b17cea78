"""A function on a Spark cluster: workers dial the driver by TLS, need no holdfast, and one of them is killed."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.chaos.functions import EmbeddedRecords
from tests.chaos.handled import HANDLER, Handled
from tests.e2e.fleet import Node, eventually
from tests.e2e.freezing import descendants
from tests.e2e.test_cluster import SPARK_SECRET, bare_python
from tests.spark.cluster import Cluster, running_cluster
from tests.unit.functions.test_channel import certificate_files

pytestmark = [pytest.mark.spark, pytest.mark.slow]

DRIVER = "127.0.0.2"
"""An address of this host that holdfast takes for that of another, so that it insists on TLS."""
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


def test_a_function_goes_on_although_an_executor_of_its_cluster_dies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    records, handled = EmbeddedRecords(tmp_path), Handled(tmp_path / "handled")
    with running_cluster(secret=SPARK_SECRET) as cluster:
        write_files(tmp_path, cluster, records.source)
        # Only now, so that the node has these and the executors do not: they inherit from the workers.
        monkeypatch.setenv("SPARK_SECRET", SPARK_SECRET)
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        node = Node(tmp_path, tmp_path / "pipeline.yaml", "node")

        def all_is_handled(number: int) -> bool:
            assert node.process.poll() is None, node.said()[-3000:]
            ends = [{line.offset for line in handled.lines(shard) if line.kind == "end"} for shard in range(12)]
            return all(len(offsets) == number for offsets in ends)

        try:
            records.put(0, 20)
            eventually(lambda: all_is_handled(20), what=node.said())
            executors = [pid for worker in cluster.workers for pid in worker.executors()]
            assert len(executors) == 2
            handled.struck |= set(descendants(executors[0]))
            assert handled.struck & {process for shard in range(12) for process in handled.workers(shard)}
            os.kill(executors[0], signal.SIGKILL)
            records.put(20, 40)
            eventually(lambda: all_is_handled(40), what=node.said())
            node.send(signal.SIGTERM)
            assert node.exit_code() == 0
        finally:
            node.kill()
    assert [text for shard in range(12) for text in handled.wrong(shard, 40)] == []
    assert SPARK_SECRET not in node.said()
