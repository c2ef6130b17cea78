"""A rolling update of a function: nodes with old and new code side by side, while shards are drained and handed over.

What must hold, beside all that holds for acknowledged records: records of a shard are given only to code that the
generation of its row names; the generation of a shard never goes down, and changes only to one that was current.
"""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.leases.lease import Lease
from tests.simulation.engine import SimulatedEngine
from tests.simulation.generations import VERSIONS, RollOut, SwitchOracle
from tests.simulation.host import Host
from tests.simulation.oracle import Oracle
from tests.simulation.streams import StreamEngine
from tests.simulation.streams_oracle import StreamsOracle


class RedeployedOracle(SwitchOracle, StreamsOracle):
    """Judges which code handles the records of a shard."""

    def handled_by(self, lease: Lease, item: int, digest: str) -> None:
        """Code with this digest is given a record under this lease."""
        generation = lease.commit.generation
        if not self.rollbacks and self.digest_of(generation) != digest:
            self.fail(f"{lease.key}: record {item} of generation {generation} is handled by the code {digest!r}")


@dataclass(frozen=True)
class VersionedHandlers:
    """A `HandlerOracle`: the handlers of one node, which has this code."""

    oracle: RedeployedOracle
    digest: str

    def fail(self, message: str) -> None:
        self.oracle.fail(message)

    def delivered(self, lease: Lease, item: int) -> None:
        self.oracle.handled_by(lease, item, self.digest)
        self.oracle.delivered(lease, item)

    def acknowledged(self, key: str, item: int) -> None:
        self.oracle.acknowledged(key, item)

    def acknowledged_elsewhere(self, key: str, item: int) -> None:
        self.oracle.acknowledged_elsewhere(key, item)


class RedeployedFleet(RollOut):
    """Nodes of two versions that share shards."""

    def make_oracle(self) -> Oracle:
        self.data = self.draw_data()
        self.draw_versions()
        return RedeployedOracle(self.kernel, self.data, self.knobs.window)

    def engine(self, name: str, host: Host) -> SimulatedEngine | StreamEngine:
        knobs, oracle = self.knobs, self.oracle
        assert isinstance(oracle, RedeployedOracle)
        handlers = VersionedHandlers(oracle, self.versions.get(name, VERSIONS[0]).digest)
        return StreamEngine(host, self.data, self._budget, handlers, ttl=knobs.ttl, window=knobs.window)
