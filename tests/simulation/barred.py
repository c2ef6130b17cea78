"""A world in which nodes may not work for a while: their run is being stopped, or their generation is not current.

What must hold: a node that may not work on a pipeline lets go of everything, also of what a lost answer or a hand-off
gave to it meanwhile, so that no lease stays with a live node that will not work on it.
"""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.leases.lease import Key, Status
from tests.simulation.fleet import Fleet
from tests.simulation.host import Host
from tests.simulation.oracle import EPOCH
from tests.simulation.session_rules import NODES
from tests.simulation.site import Running

TIMES = 3
LETS_GO_TTLS = 12.0
"""From the last fault until every node that may not work must have let go."""


class Barred(Fleet):
    """Nodes of which some are barred at times, and when the faults end."""

    def prepare(self) -> None:
        super().prepare()
        quiet_at, ttl = self.knobs.quiet_at, self.knobs.ttl
        self._barred: set[str] = set()
        for _ in range(TIMES):
            self.kernel.after(quiet_at * self.kernel.random(), self._bar)
        self.kernel.after(quiet_at + LETS_GO_TTLS * ttl, self._judge)

    def assemble(self, name: str, host: Host) -> Running:
        if self.data.lives_long:
            return self.assemble_with(name, host, self.connect(host), generation=Sometimes(self, name))
        return self.assemble_with(name, host, self.connect(host), may_claim=lambda: self.allows(name))

    def allows(self, name: str) -> bool:
        return name not in self._barred

    def _bar(self, _: object) -> None:
        self._barred = {name for name in self.names if self.kernel.random() < 0.6}
        self.kernel.note("person", "bars", ", ".join(sorted(self._barred)))

    def _judge(self, _: object) -> None:
        """Everybody has had the time to let go; then all may work, so that everything gets done."""
        keepers = {running.host.name for name, running in self.nodes.items() if self._should_have_let_go(name, running)}
        for row in self._rows():
            owner = str(row.owner)
            if row.status is Status.ASSIGNED and owner.partition(":")[0] in keepers and self._lives(owner):
                self.oracle.fail(f"{row.key}: is kept by {owner}, which may not work on it")
        self._barred.clear()

    def _should_have_let_go(self, name: str, running: Running) -> bool:
        awake = running.host.paused_until < self.kernel.now - LETS_GO_TTLS / 2 * self.knobs.ttl
        return running.host.running and awake and not self.allows(name)

    def _lives(self, session: str) -> bool:
        row = self.oracle.rows.get(Key(NODES, "", session))
        due_at = None if row is None else row.ownership.due_at
        return due_at is not None and due_at > EPOCH + self.kernel.now


@dataclass(frozen=True, slots=True)
class Sometimes:
    """The generation of a node: current while the node is not barred."""

    site: Barred
    name: str

    def current(self) -> int | None:
        return 1 if self.site.allows(self.name) else None

    def has_parsing_of(self, number: int) -> bool:
        return number == 1

    def seal(self, number: int) -> bool:
        return True
