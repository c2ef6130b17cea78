"""A world in which output folders are declared final while producers write, transactions hang and partitions fall idle.

What must hold: when an output folder is declared final, every record of it is visible, those behind an open transaction
and those that nobody has read yet among them. What must come about: in the end all folders are final.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from holdfast.finalize.output import FinalFolder, FinalizableOutput, FinalTime
from holdfast.finalize.rules import Period, Rules
from holdfast.flow.batch import Batch, Name
from holdfast.flow.manifest import Manifest, decode_manifest
from holdfast.flow.names import manifest_key
from holdfast.flow.sink import Sink
from holdfast.leases.lease import FINISHED, Json, Lease, Status
from holdfast.sinks.files.sink import FilesSink
from tests.simulation.bucket import BucketClient, BucketServer
from tests.simulation.engine import SimulatedEngine
from tests.simulation.files_oracle import FilesOracle
from tests.simulation.fleet import Fleet
from tests.simulation.host import Host
from tests.simulation.kernel import Kernel
from tests.simulation.logs import Logs, LogSource, draw_logs
from tests.simulation.scenario import Knobs
from tests.simulation.source import Data, offset_of

SUCCESS = "_SUCCESS"


class FinalOracle(FilesOracle):
    """Judges what is declared final, beside all that holds for files."""

    def __init__(self, kernel: Kernel, data: Data, max_retries: int, logs: Logs) -> None:
        super().__init__(kernel, data, max_retries)
        self.final: set[str] = set()
        self._logs = logs

    def created(self, sink: str, key: str, data: bytes) -> None:
        if not key.endswith(SUCCESS):
            super().created(sink, key, data)
            return
        folder = key.split("/")[1]
        missing = [item for item in self._logs.items_of(folder) if item not in self.visible_items(sink)]
        if missing:
            self.fail(f"{folder} is final, and {missing} are not there")
        rows = json.loads(data)["rows"]
        if rows != len(self._logs.items_of(folder)):
            self.fail(f"{folder} is final with {rows} rows, and {len(self._logs.items_of(folder))} are there")
        self.final.add(folder)

    def judge_end(self) -> None:
        rows = [self.live(key) for key in self.numbers]
        for row in rows:
            if row is not None and row.status is Status.FAILED:
                self._judge_failed(row)
        if not any(row is not None and row.status is Status.FAILED for row in rows):
            left = sorted(self._logs.folders - self.final)
            if left:
                self.fail(f"{left} are never final")


class SimulatedFinalizing(FinalizableOutput):
    """Places of one node's bucket; the time of a folder is in its name."""

    def __init__(self, bucket: BucketClient, logs: Logs, knobs: Knobs, rules: Rules) -> None:
        self.rules = rules
        self.interval = 0.3 * knobs.ttl
        self.patience = 3 * knobs.ttl
        self._bucket = bucket
        self._logs = logs

    def period(self, folder: str) -> Period | None:
        return self._logs.span(folder)

    def manifest(self, name: Name, sequence: int) -> Manifest | None:
        data = self._bucket.read(manifest_key(name, sequence))
        return None if data is None else decode_manifest(data)

    def finish(self, final: FinalFolder) -> str | None:
        self._bucket.create(
            f"{final.topic}/{final.output_folder}/{SUCCESS}", json.dumps({"rows": final.content.rows}).encode()
        )
        return None

    def set_final_times(self, topics: Mapping[str, FinalTime]) -> None:
        """Simulated executors set nothing aside."""


class PlacingEngine(SimulatedEngine):
    """Executors that write one file for each folder of a batch."""

    logs: Logs

    def files(self, batch: Batch, bucket: BucketServer, end: int) -> list[dict[str, Json]]:
        folders: dict[str, list[int]] = {}
        for item in range(offset_of(batch.cut.start), end):
            folders.setdefault(self.logs.folder(batch.lease.key, item), []).append(item)
        return [
            {**self._file(batch, bucket, int(folder.removeprefix("t=")), items, varies=False), "place": folder}
            for folder, items in folders.items()
        ]


class FinalizingFleet(Fleet):
    """Nodes that archive logs, one of which at a time declares folders final."""

    oracle: FinalOracle
    engine_type = PlacingEngine

    def draw_data(self) -> Data:
        ttl, dice = self.knobs.ttl, self.kernel.dice
        self.rules = Rules(lateness=ttl * dice.choice((0.3, 1.0)), idle_after=ttl * dice.choice((0.5, 1.5)))
        keys = [f"p{n}" for n in range(self.scenario.partitions)]
        late_by = self.rules.lateness * 0.9
        self.logs = draw_logs(self.kernel, keys, self.scenario.items, ttl, self.knobs.quiet_at, late_by)
        items = {key: len(records) for key, records in self.logs.records.items()}
        poison = {key: items[key] // 2 for key in keys if self.faults["poison"] and dice.random() < 0.4}
        discovered = dice.random() < 0.5
        return Data(items, dict.fromkeys(keys, 0.0), poison, lives_long=True, discovered=discovered)

    def files_oracle(self) -> FilesOracle:
        return FinalOracle(self.kernel, self.data, self.knobs.max_retries, self.logs)

    def make_source(self, host: Host) -> LogSource:
        return LogSource(self.logs, self.data, host, self.knobs.ttl, self.knobs.largest_cut)

    def sinks(self, host: Host) -> dict[str, Sink]:
        knobs, made = self.knobs, dict[str, Sink]()
        for name, bucket in self._buckets.items():
            client = BucketClient(bucket, host, knobs.latency, knobs.ttl)
            finalizing = SimulatedFinalizing(client, self.logs, knobs, self.rules)
            sink = FilesSink(name, client)
            sink._finalizing = finalizing  # type: ignore[assignment]
            made[name] = sink
        return made

    def files_engine(self, name: str, host: Host) -> SimulatedEngine:
        engine = super().files_engine(name, host)
        assert isinstance(engine, PlacingEngine)
        engine.logs = self.logs
        return engine

    @property
    def endless(self) -> bool:
        return True

    @property
    def unfinished(self) -> object:
        rows = [(row.key, str(row.status), row.progress.position) for row in self._rows()]
        return rows, sorted(self.logs.folders - self.oracle.final)

    @property
    def work_is_done(self) -> bool:
        rows = self._rows()
        if any(row.status is Status.FAILED for row in rows):
            return all(self._is_through(row) for row in rows)
        return self.logs.folders == self.oracle.final

    def _is_through(self, row: Lease) -> bool:
        read = offset_of(row.progress.position) == len(self.logs.records[row.key])
        return row.status in FINISHED or (read and row.commit.receipts is None)
