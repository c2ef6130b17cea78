"""Functions under chaos: three nodes share twelve shards, and are killed, stopped and redeployed while records come.

python -m tests.chaos.functions [--minutes 5] [--strikes 20] [--seed N]
"""

# ruff: noqa: T201 - a command line prints

from __future__ import annotations

import argparse
import os
import random
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast.assemble import StoredPipeline, load_settings, open_store
from holdfast.leases.lease import Lease, Status
from holdfast.leases.query import Query
from holdfast.leases.session import nodes_of, was_planned
from holdfast.sources.stream.frames import NewRecord
from holdfast.sources.stream.stream import Stream, StreamSettings
from tests.chaos.effort import Effort
from tests.chaos.handled import HANDLER, Handled
from tests.e2e.freezing import descendants, freeze, freeze_descendants, thaw
from tests.servers.kafka import KafkaServer
from tests.servers.processes import running

SHARDS = 12
CONFIG = """
source_coordination:
  store: {{sqlite: {{path: {folder}/leases.db}}}}
node: {{session_timeout: {timeout}s, heartbeat_interval: {heartbeat}s}}
spark: {{conf: {{spark.driver.memory: 500m, spark.ui.enabled: false}}}}
pipelines:
  orders:
    generation: {generation}
    source:
      {source}
    sinks:
      - function:
          handler: {folder}/orders.py
          ack: explicit_only
          worker_allocation: static
          {on_error}
    retries: {{max_retries: 5, backoff: 500ms, max_backoff: 2s, max_takeovers: 1000}}
"""


class EmbeddedRecords:
    """The embedded stream, with as many records per shard as were put."""

    shards = SHARDS

    def __init__(self, folder: Path) -> None:
        self._stream = Stream.create(folder / "streams", "orders", StreamSettings(SHARDS))
        self.source = f"stream: {{name: orders, folder: {folder}/streams}}"

    def put(self, first: int, end: int) -> None:
        for shard in range(SHARDS):
            self._stream.append(shard, [NewRecord(str(number).encode()) for number in range(first, end)])


class KafkaRecords:
    """The same in a topic of Kafka."""

    topic = "orders"
    shards = SHARDS

    def __init__(self, kafka: KafkaServer) -> None:
        kafka.create_topic(self.topic, self.shards)
        self._producer = kafka.producer()
        self.source = f'kafka: {{bootstrap_servers: "{kafka.bootstrap}", topics: [{self.topic}], start: earliest}}'

    def message(self, number: int) -> dict[str, Any]:
        """The record of that offset."""
        return {"value": str(number).encode()}

    def put(self, first: int, end: int) -> None:
        for shard in range(self.shards):
            for number in range(first, end):
                self._producer.produce(self.topic, partition=shard, **self.message(number))
        self._producer.flush()


@dataclass
class Site:
    """Nodes that share the shards, and the records that they handle."""

    folder: Path
    records: EmbeddedRecords | KafkaRecords
    timeout: float = 10.0
    heartbeat: float = 3.0
    nodes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    spark: bool = True
    """Whether workers are tasks of Spark, or processes that each node starts by itself."""
    pause: float = 0.2
    """Seconds between two records of a shard."""
    handler: str = HANDLER
    on_error: str = "on_error: {after_retries: stop}"
    generation: int = 1
    put: int = 0

    def __post_init__(self) -> None:
        (self.folder / "handled").mkdir()
        (self.folder / "orders.py").write_text(self.handler)
        self.handled = Handled(self.folder / "handled")
        self._over = threading.Event()
        self._producer = threading.Thread(target=self._produce)
        self._families: dict[int, set[int]] = {}
        self._write_config()
        settings = load_settings(self.folder / "pipeline.yaml")
        self._store = open_store(settings)
        self._pipeline = StoredPipeline(settings, self._store, "orders")

    @property
    def shards(self) -> int:
        return self.records.shards

    def _write_config(self) -> None:
        values: dict[str, Any] = {"folder": self.folder, "timeout": self.timeout, "heartbeat": self.heartbeat}
        values |= {"source": self.records.source, "generation": self.generation, "on_error": self.on_error}
        text = CONFIG.format(**values)
        (self.folder / "pipeline.yaml").write_text(text)

    # --- nodes ---------------------------------------------------------------------------------------------------

    def start(self, name: str) -> None:
        command = [sys.executable, "-m", "holdfast", "run", "pipeline.yaml", "--node", name, "--log", "json"]
        if not self.spark:
            command = [sys.executable, "-m", "tests.chaos.sparkless", "pipeline.yaml", name]
        here = os.pathsep.join([str(Path.cwd() / "src"), str(Path.cwd())])
        environment = {**os.environ, "HANDLED": str(self.folder / "handled"), "PYTHONPATH": here}
        with (self.folder / f"{name}.log").open("ab") as log:
            self.nodes[name] = subprocess.Popen(command, stdout=log, stderr=log, cwd=self.folder, env=environment)

    def stop(self, name: str) -> None:
        node = self.nodes.pop(name)
        node.send_signal(signal.SIGTERM)
        self._wait(lambda: node.poll() is not None, lambda: f"the end of {name}", node)
        assert node.returncode == 0, f"{name} ended with {node.returncode}"

    def next_generation(self) -> None:
        """Give the nodes that are started from now on another generation."""
        self.generation += 1
        self._write_config()

    def strike(self, *processes: int) -> None:
        """Note that these processes and what they have started may leave records in the middle."""
        for process in processes:
            self.handled.struck |= {process, *descendants(process)}

    def expired(self) -> list[int]:
        """Processes of nodes whose session has ended although they were not leaving, by the rows of the store.

        A machine that stands still for longer than a session ends it as a strike does.
        """
        ended = self._store.find(Query(nodes_of(""), statuses=(Status.COMPLETED,)))
        return [int(row.key.split(":")[-2]) for row in ended if not was_planned(row)]

    # --- shards --------------------------------------------------------------------------------------------------

    def owners(self) -> dict[str, list[int]]:
        """By session, its shards."""
        found: dict[str, list[int]] = {}
        for row in self._rows():
            if row.owner:
                found.setdefault(row.owner, []).append(_number(row))
        return found

    def positions(self) -> dict[int, tuple[int, tuple[tuple[int, int], ...]]]:
        return {
            _number(row): (row.progress.position["offset"], row.progress.acked)
            for row in self._rows()
            if row.progress.position is not None
        }

    def _rows(self) -> list[Lease]:
        return list(self._pipeline.operator().rows())

    def wait_for_shares(self, nodes: int) -> None:
        """Wait until so many nodes hold all shards, in equal parts."""
        self._wait(lambda: self._is_shared(nodes), lambda: f"{nodes} nodes with equal shares: {self.owners()}")

    def _is_shared(self, nodes: int) -> bool:
        shares = sorted(map(len, self.owners().values()))
        return len(shares) == nodes and sum(shares) == self.shards and shares[-1] - shares[0] <= 1

    def wait_for_progress(self) -> None:
        """Wait until every shard has gone on since now."""
        self.wait_until_handled(self.put)

    def wait_until_handled(self, number: int) -> None:
        """Wait until each shard has handled so many records."""
        self._wait(lambda: min(self._all_highest()) >= number - 1, lambda: f"{number} records: {self._all_highest()}")

    def _all_highest(self) -> list[int]:
        return list(map(self._highest, range(self.shards)))

    def _wait(self, true: Callable[[], bool], what: Callable[[], str], *leaving: subprocess.Popen[bytes]) -> None:
        """Wait until that is so. Fails if a node ends that is not leaving, or if all work for long, or do nothing."""
        effort = Effort()
        while not true():
            gone = {name: node.returncode for name, node in self.nodes.items() if node.poll() is not None}
            assert not gone, f"nodes have ended, with {gone}: {what()}"
            effort.check([node.pid for node in (*self.nodes.values(), *leaving)], what)
            for node in self.nodes.values():
                self._families.setdefault(node.pid, set()).update(descendants(node.pid))
            time.sleep(0.05)

    def _highest(self, shard: int) -> int:
        return max((line.offset for line in self.handled.lines(shard, last=2000) if line.kind == "end"), default=-1)

    def wrong(self) -> list[str]:
        """What is wrong when all that was put is handled and all nodes are stopped."""
        for process in self.expired():
            self.handled.struck |= {process, *self._families.get(process, ())}
        wrong = [text for shard in range(self.shards) for text in self.handled.wrong(shard, self.put)]
        return wrong + [
            f"shard {shard}: committed up to {position} of {self.put}"
            for shard, (position, _) in self.positions().items()
            if position != self.put
        ]

    # --- records -------------------------------------------------------------------------------------------------

    def _produce(self) -> None:
        while not self._over.wait(self.pause):
            self.records.put(self.put, self.put + 1)
            self.put += 1

    @contextmanager
    def producing(self) -> Iterator[None]:
        self._producer.start()
        try:
            yield
        finally:
            self._over.set()
            self._producer.join()

    def close(self) -> None:
        for node in self.nodes.values():
            for process in [*descendants(node.pid), node.pid]:
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
            node.wait()
        self._store.close()


def _number(row: Lease) -> int:
    return int(re.split(r"\D+", row.key)[-1])


# --- strikes ----------------------------------------------------------------------------------------------------------


def kill_node(site: Site, name: str) -> None:
    """Kill the driver; its JVM and workers end by themselves. Another node starts."""
    node = site.nodes.pop(name)
    site.strike(node.pid)
    node.kill()
    node.wait()
    site.handled.note_committed(site.positions())
    site.start(f"{name.split('-', maxsplit=1)[0]}-{time.monotonic_ns() % 100_000}")


def kill_worker(site: Site, name: str) -> None:
    """Kill the processes of a node that have handled records."""
    begun = {process for shard in range(site.shards) for process in site.handled.workers(shard)}
    workers = begun & set(descendants(site.nodes[name].pid))
    site.handled.struck |= workers
    for worker in workers:
        with suppress(ProcessLookupError):
            os.kill(worker, signal.SIGKILL)
    site.handled.note_committed(site.positions())


def pause_node(site: Site, name: str) -> None:
    """Stop the driver and all its processes for longer than a session, and let them go on."""
    pid = site.nodes[name].pid
    site.strike(pid)
    freeze(pid)
    freeze_descendants(pid)
    site.handled.note_committed(site.positions())
    time.sleep(1.5 * site.timeout)
    thaw(pid)


def pause_driver(site: Site, name: str) -> None:
    """Stop the driver alone: its workers go on until their grant has ended."""
    pid = site.nodes[name].pid
    site.strike(pid)
    freeze(pid)
    time.sleep(1.5 * site.timeout)
    site.handled.note_committed(site.positions())
    thaw(pid)


def redeploy(site: Site, name: str) -> None:
    """Replace a node by another one, which is started first, as a rolling update does; nothing is handled twice."""
    site.start(successor(name))
    site.wait_for_shares(len(site.nodes))
    site.stop(name)


def roll_out(site: Site, _name: str) -> None:
    """Replace all nodes by those of another generation; nothing is handled twice."""
    site.next_generation()
    for number, old in enumerate(list(site.nodes), start=1):
        site.start(successor(old))
        site.wait_for_shares(number)
        site.stop(old)


def successor(name: str) -> str:
    return f"{name.split('-', maxsplit=1)[0]}-{time.monotonic_ns() % 100_000}"


STRIKES: dict[str, Callable[[Site, str], None]] = {
    strike.__name__: strike for strike in (kill_worker, redeploy, kill_node, pause_node, roll_out, pause_driver)
}


@dataclass
class Verdict:
    wrong: list[str]
    records: int
    repeated: int
    pauses: list[float]


def chaos(site: Site, strikes: int, until: float, dice: random.Random, tell: Callable[[str], None]) -> Verdict:
    """Strike at least so often, and until that time; then let everything be handled, and judge."""
    kinds = list(STRIKES)
    with site.producing():
        for name in "abc":
            site.start(name)
        site.wait_for_shares(3)
        number = 0
        while number < strikes or time.monotonic() < until:
            name, kind = dice.choice(sorted(site.nodes)), kinds[number % len(kinds)]
            tell(f"{number + 1}: {kind} {name}")
            STRIKES[kind](site, name)
            site.wait_for_shares(3)
            site.wait_for_progress()
            number += 1
    site.wait_until_handled(site.put)
    for name in list(site.nodes):
        site.stop(name)
    wrong = site.wrong()
    pauses = sorted(pause for shard in range(site.shards) for pause in site.handled.pauses(shard))
    return Verdict(wrong, site.put * site.shards, sum(map(site.handled.repeated, range(site.shards))), pauses)


def main(arguments: list[str]) -> int:
    """Exit code: 1 if anything was wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.functions", description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=0.0, help="strike for at least so long")
    parser.add_argument("--strikes", type=int, default=20, help="strike at least so often (default 20)")
    parser.add_argument("--kafka", action="store_true", help="on Kafka, and not on an embedded stream")
    parser.add_argument("--sparkless", action="store_true", help="without Spark: workers are plain processes")
    parser.add_argument("--timeout", type=float, default=10.0, help="session timeout in seconds")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1 << 31), help="default: a new one")
    options = parser.parse_args(arguments)
    folder = Path(tempfile.mkdtemp(prefix="holdfast-functions-"))
    print(f"seed {options.seed}, in {folder}", flush=True)
    with ExitStack() as stack:
        on_kafka = KafkaRecords(stack.enter_context(running(KafkaServer))) if options.kafka else None
        site = Site(folder, on_kafka or EmbeddedRecords(folder), options.timeout, options.timeout * 0.3)
        site.spark = not options.sparkless
        stack.callback(site.close)
        until, dice = time.monotonic() + options.minutes * 60, random.Random(options.seed)
        verdict = chaos(site, options.strikes, until, dice, tell)
    print(report(verdict))
    if not verdict.wrong:
        shutil.rmtree(folder)
    return int(bool(verdict.wrong))


def tell(what: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {what}", flush=True)


def report(verdict: Verdict) -> str:
    """The verdict for people."""
    lines = [f"{verdict.records} records, {verdict.repeated} handled again after a kill"]
    if verdict.pauses:
        p99 = verdict.pauses[int(0.99 * (len(verdict.pauses) - 1))]
        median = verdict.pauses[len(verdict.pauses) // 2]
        lines.append(f"{len(verdict.pauses)} hand-overs: median {median:.2f} s, p99 {p99:.2f} s")
    lines += [f"WRONG: {what}" for what in verdict.wrong[:20]]
    lines.append(f"{len(verdict.wrong)} wrong" if verdict.wrong else "in order, no gap, nothing twice without a kill")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
