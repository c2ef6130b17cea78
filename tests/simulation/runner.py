"""Runs seeds and sums up what happened."""

from __future__ import annotations

import gc
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import ModuleType

from holdfast.flow import commit, publish
from holdfast.leases import writes
from holdfast.runs import driving
from tests.simulation.barred import Barred
from tests.simulation.detached import DetachedSite
from tests.simulation.edited import Edited
from tests.simulation.finalizing import FinalizingFleet
from tests.simulation.fleet import Fleet
from tests.simulation.floor import ForgetfulSite
from tests.simulation.generations import RollOut
from tests.simulation.kernel import Trace
from tests.simulation.months import Months
from tests.simulation.outputs import OutputFleet
from tests.simulation.promotion_site import PromotionSite
from tests.simulation.redeployed import RedeployedFleet
from tests.simulation.redriven import RedrivenSite
from tests.simulation.redriving import RedrivingSite
from tests.simulation.replacing import ReplacingSite
from tests.simulation.runs import RunsSite
from tests.simulation.scenario import SCENARIOS
from tests.simulation.site import Site
from tests.simulation.sourcing import SourcingSite
from tests.simulation.splitting import SplitFleet
from tests.simulation.tolerance import ToleranceSite
from tests.simulation.topic import TopicFleet
from tests.simulation.visible import VisibleFleet

SHORT_PAUSES: tuple[tuple[ModuleType, str, float], ...] = (
    (commit, "OUTSIDE_PAUSE", 0.5),
    (publish, "LONGEST_WAIT", 3.0),
    (writes, "LONGEST_WAIT", 1.0),
    (driving, "AGGREGATE_EVERY", 0.5),
    (driving, "RETRY_AFTER", 0.5),
)
"""The product's own pauses suit a TTL of half a minute; here it is a few seconds."""
COLLECT_EVERY = 200
SITES: dict[str, type[Site]] = {
    "floor": ForgetfulSite,
    "sourcing": SourcingSite,
    "runs": RunsSite,
    "generations": RollOut,
    "edited": Edited,
    "edited_function": Edited,
    "rebuilds": RollOut,
    "redeployed": RedeployedFleet,
    "visible": VisibleFleet,
    "finalizer": FinalizingFleet,
    "replace": ReplacingSite,
    "redrive": RedrivingSite,
    "redriven": RedrivenSite,
    "detached": DetachedSite,
    "months": Months,
    "barred": Barred,
    "tolerance": ToleranceSite,
    "outputs": OutputFleet,
    "promotion": PromotionSite,
    "splits": SplitFleet,
    "topic": TopicFleet,
}
"""Worlds of another make than pipelines of one version."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A seed that violated something, and the one command that shows how."""

    scenario: str
    seed: int
    violation: str

    def __str__(self) -> str:
        replay = f"python -m tests.simulation --scenario {self.scenario} --seed {self.seed} --trace"
        return f"{self.scenario} seed {self.seed}: {self.violation}\n  replay: {replay}"


@dataclass(slots=True)
class Summary:
    """What a number of seeds amounted to. Times are seconds of processor time, so that other work does not count."""

    seeds: int = 0
    events: int = 0
    virtual: float = 0.0
    real: float = 0.0
    struck: Counter[str] = field(default_factory=Counter)
    failures: list[Failure] = field(default_factory=list)

    def add(self, other: Summary) -> None:
        self.seeds += other.seeds
        self.events += other.events
        self.virtual += other.virtual
        self.real += other.real
        self.struck.update(other.struck)
        self.failures.extend(other.failures)

    @property
    def seeds_per_second(self) -> float:
        """Per core."""
        return self.seeds / max(self.real, 1e-9)

    @property
    def virtual_to_real(self) -> float:
        return self.virtual / max(self.real, 1e-9)


def make_site(scenario: str, seed: int, trace: Trace | None = None) -> Site:
    """The world of that seed before its beginning."""
    return SITES.get(scenario, Fleet)(SCENARIOS[scenario], seed, trace)


def run_seed(scenario: str, seed: int, trace: Trace | None = None) -> Site:
    """The world of that seed after its end."""
    with short_pauses():
        site = make_site(scenario, seed, trace)
        site.run()
    return site


def digest(scenario: str, seed: int) -> str:
    """Hash over everything that happens in a seed."""
    trace = Trace(keep=False)
    run_seed(scenario, seed, trace)
    return trace.digest


def run_seeds(scenario: str, seeds: Iterable[int], *, stop_at_first: bool = False) -> Summary:
    """Run the seeds one after the other, in this process."""
    summary = Summary()
    began = time.process_time()
    with short_pauses(), _rare_collection():
        for seed in seeds:
            if _add_seed(summary, scenario, seed) and stop_at_first:
                break
            if summary.seeds % COLLECT_EVERY == 0:
                gc.collect()
    summary.real = time.process_time() - began
    return summary


def run_parallel(scenario: str, seeds: range, jobs: int) -> Summary:
    """Run the seeds in that many processes."""
    if jobs == 1:
        return run_seeds(scenario, seeds)
    summary = Summary()
    with ProcessPoolExecutor(jobs) as pool:
        parts = [range(seeds.start + job, seeds.stop, jobs) for job in range(jobs)]
        for part in pool.map(run_seeds, [scenario] * jobs, parts):
            summary.add(part)
    return summary


def _add_seed(summary: Summary, scenario: str, seed: int) -> bool:
    """Run one seed; true if it failed."""
    fleet = make_site(scenario, seed)
    violation = fleet.run()
    summary.seeds += 1
    summary.events += fleet.kernel.events
    summary.virtual += fleet.kernel.now
    summary.struck.update(fleet.faults.struck)
    if violation is not None:
        summary.failures.append(Failure(scenario, seed, violation))
    return violation is not None


@contextmanager
def short_pauses() -> Iterator[None]:
    """The product with pauses that fit a small world, until the block ends."""
    kept = [(module, name, getattr(module, name)) for module, name, _ in SHORT_PAUSES]
    try:
        for module, name, value in SHORT_PAUSES:
            setattr(module, name, value)
        yield
    finally:
        for module, name, value in kept:
            setattr(module, name, value)


@contextmanager
def _rare_collection() -> Iterator[None]:
    """Garbage is collected between seeds only: a seed is short and makes many objects."""
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()
