"""A world in which people start redrives as rows only, and nodes pick them up, drive them and die; people stop them.

Every start is an audited action with an idempotency key, which people repeat as browsers do when no response comes.
What must hold, besides the rules of redrives: no run is added that the audit log does not have before, and one request
never adds two runs. What must come about: in the end every letter was sent.
"""

from __future__ import annotations

import itertools

from holdfast.flow.run import ENDED, Run, RunStatus, run_of, runs_of
from holdfast.flow.runs import Runs
from holdfast.leases.action import Action, ActionOutcome, Request, Verdict
from holdfast.leases.audit_log import AuditLog
from holdfast.leases.coordinator import ClaimPolicy, Coordinator
from holdfast.leases.lease import Lease
from holdfast.runs.audited import Auditor
from holdfast.runs.letter_selection import KIND, of_sink
from tests.simulation.host import Host
from tests.simulation.oracle import PIPELINE
from tests.simulation.redriving import SINK, TROUBLE, Command, LettersOracle, RedrivingSite, Sender
from tests.simulation.session_rules import NODES
from tests.simulation.site import NoBatches, Running
from tests.simulation.worker import session_of

AUDIT = f"{NODES}/$audit"
RUNS = runs_of(PIPELINE)
PEOPLE = 0.5
"""How likely a turn is that of a person, and not of a node that picks up a run."""
REPEATS = 0.5
STOPS = 0.3


class DetachedOracle(LettersOracle):
    """Judges also that each run was audited, and was added for one request."""

    def __init__(self, site: DetachedSite) -> None:
        super().__init__(site.kernel)
        self._added: dict[str, str] = {}

    def row_written(self, row: Lease, sender: Host) -> None:
        before = self.rows.get(row.id)
        super().row_written(row, sender)
        if row.pipeline == RUNS and before is None:
            self._run_added(row.key, run_of(row).configuration["request"])

    def _run_added(self, run: str, request: str) -> None:
        if request in self._added:
            self.fail(f"the request {request} has added {self._added[request]} and {run}")
        self._added[request] = run
        entries = [row.spec["parameters"]["request"] for row in self.rows.values() if row.pipeline == AUDIT]
        if request not in entries:
            self.fail(f"{run} was added without an entry in the audit log")


class DetachedSite(RedrivingSite):
    """People, and nodes that pick up what they have started."""

    def judge(self) -> LettersOracle:
        self.requests = (f"k{n}" for n in itertools.count(1))
        self.latest = next(self.requests)
        return DetachedOracle(self)

    def assemble(self, name: str, host: Host) -> Running:
        return Running(host, Picker(self, name, host, self.connect(host)), NoBatches())


class Picker(Sender):
    """Acts as a person on some turns, and on others as a node that picks up a run."""

    _site: DetachedSite

    def run(self) -> None:
        kernel, site = self._host.kernel, self._site
        while not self._stopping and not site.oracle.all_sent:
            try:
                going_on = [run for run in self._runs().list() if run.status not in ENDED and of_sink(run, SINK)]
                if not going_on or kernel.random() < PEOPLE:
                    self._act(going_on)
                else:
                    self._driver = Command(site, self._name, self._host, self._store)
                    self._driver.work_on(kernel.dice.choice(going_on).id)
            except TROUBLE as trouble:
                kernel.note(self._host.name, "tries again later", repr(trouble))
            self._host.wait(site.knobs.ttl * kernel.random())

    def _runs(self) -> Runs:
        session = session_of(self._name, self._host, self._store, self._site.knobs)
        return Runs(Coordinator(self._store, self._host.world, session, PIPELINE, policy=ClaimPolicy()))

    def _act(self, going_on: list[Run]) -> None:
        """Start a redrive, repeat the start of one, or stop or resume one while things may go wrong."""
        kernel, runs = self._host.kernel, self._runs()
        if going_on and not self._host.faults.active:
            return
        if going_on and kernel.random() < STOPS:
            runs.settle_stop(runs.stop(kernel.dice.choice(going_on).id).id)
        elif stopped := [run for run in runs.list() if run.status is RunStatus.STOPPED and kernel.random() < STOPS]:
            runs.resume(stopped[0].id)
        else:
            self._start(runs)

    def _start(self, runs: Runs) -> None:
        site, world = self._site, self._host.world
        if self._host.kernel.random() >= REPEATS:
            site.latest = next(site.requests)
        request, run_id = site.latest, f"{KIND}-{world.new_id()}"
        configuration = {"kind": KIND, "sink": SINK, "generation": 1, "request": request}
        log = AuditLog(self._store, world.new_id, NODES)
        Auditor(log, Request("ana", "api", idempotency_key=request)).perform(
            Action("redrive", PIPELINE, parameters={"request": request}),
            lambda: runs.add(run_id, configuration=configuration, created_by="ana"),
            lambda run: ActionOutcome(Verdict.DONE, "", run=run.id),
        )
