"""Scenarios: how large a world is, and the settings that a seed draws for it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tests.simulation.faults import (
    FILES_KINDS,
    FORWARD_KINDS,
    LASTING_KINDS,
    LEASE_KINDS,
    LETTER_KINDS,
    MONTHS_KINDS,
    OUTPUT_KINDS,
    PROMOTION_KINDS,
    REBUILD_KINDS,
    ROLL_OUT_KINDS,
    SPLIT_KINDS,
    STREAM_KINDS,
    WIDE_KINDS,
    Faults,
)
from tests.simulation.kernel import Kernel
from tests.simulation.source import Data


@dataclass(frozen=True, slots=True)
class Scenario:
    """The size of a world."""

    name: str
    nodes: int
    partitions: int
    items: int
    sinks: int = 1
    kinds: tuple[str, ...] = FILES_KINDS
    streams: bool = False
    late_partitions: bool = False
    resharded: bool = False
    """The last partition is one into which the others were merged."""
    watching: bool = False
    """The store is one of objects, see `watching_store`."""
    indexed: bool = False
    """The store is the one for DynamoDB, see `indexed_store`."""
    wide: bool = False
    """Batches are large, every item is a file of its own, and publishing one takes a tenth of the TTL."""
    losing: bool = False
    """The source has lost items, and a batch that is made again may end elsewhere."""
    replicas: int = 0
    """How many nodes share the partitions, whether fewer or more are running; 0: those that are running."""


MICRO = Scenario("micro", nodes=2, partitions=1, items=6)
MESO = Scenario("meso", nodes=3, partitions=4, items=10, sinks=2, late_partitions=True)
STREAMS = Scenario("streams", nodes=2, partitions=2, items=12, kinds=STREAM_KINDS, streams=True)
FORWARDED = Scenario("forwarded", nodes=2, partitions=2, items=12, kinds=FORWARD_KINDS, streams=True)
RESHARDED = Scenario("resharded", nodes=2, partitions=3, items=5, kinds=STREAM_KINDS, streams=True, resharded=True)
FLOOR = Scenario("floor", nodes=2, partitions=1, items=2, kinds=LEASE_KINDS)
OBJECTS = Scenario("objects", nodes=3, partitions=3, items=8, late_partitions=True, watching=True)
INDEX = Scenario("index", nodes=3, partitions=3, items=6, late_partitions=True, indexed=True)
SOURCING = Scenario("sourcing", nodes=2, partitions=2, items=2, kinds=LEASE_KINDS)
RUNS = Scenario("runs", nodes=2, partitions=2, items=3, kinds=LEASE_KINDS)
GENERATIONS = Scenario("generations", nodes=3, partitions=2, items=8, kinds=ROLL_OUT_KINDS)
EDITED = Scenario("edited", nodes=3, partitions=2, items=4, kinds=ROLL_OUT_KINDS)
EDITED_FUNCTION = Scenario("edited_function", nodes=2, partitions=2, items=6, kinds=STREAM_KINDS, streams=True)
REDEPLOYED = Scenario("redeployed", nodes=3, partitions=2, items=12, kinds=STREAM_KINDS, streams=True)
REPLICAS = Scenario("replicas", nodes=3, partitions=4, items=12, kinds=STREAM_KINDS, streams=True, replicas=2)
REBUILDS = Scenario("rebuilds", nodes=2, partitions=2, items=8, kinds=REBUILD_KINDS, losing=True)
WIDE = Scenario("wide", nodes=3, partitions=2, items=24, kinds=WIDE_KINDS, wide=True)
REDRIVE = Scenario("redrive", nodes=2, partitions=2, items=5, kinds=LETTER_KINDS)
REDRIVEN = Scenario("redriven", nodes=2, partitions=2, items=5, kinds=LETTER_KINDS)
DETACHED = Scenario("detached", nodes=3, partitions=2, items=5, kinds=LETTER_KINDS)
REPLACE = Scenario("replace", nodes=2, partitions=2, items=8, kinds=LASTING_KINDS)
FINALIZER = Scenario("finalizer", nodes=2, partitions=3, items=8, kinds=LASTING_KINDS)
VISIBLE = Scenario("visible", nodes=2, partitions=2, items=8)
MONTHS = Scenario("months", nodes=2, partitions=4, items=4, kinds=MONTHS_KINDS)
BARRED = Scenario("barred", nodes=3, partitions=3, items=8, kinds=MONTHS_KINDS)
OUTPUTS = Scenario("outputs", nodes=2, partitions=2, items=10, kinds=OUTPUT_KINDS)
SPLITS = Scenario("splits", nodes=3, partitions=2, items=40, kinds=SPLIT_KINDS)
TOLERANCE = Scenario("tolerance", nodes=2, partitions=2, items=12, kinds=LETTER_KINDS)
TOPIC = Scenario("topic", nodes=2, partitions=2, items=8, kinds=LETTER_KINDS)
PROMOTION = Scenario("promotion", nodes=1, partitions=1, items=1, kinds=PROMOTION_KINDS)
STREAMING = (STREAMS, FORWARDED, RESHARDED, OUTPUTS, REDEPLOYED, REPLICAS)
EDITS = (EDITED, EDITED_FUNCTION)
LIVE = (
    *(MICRO, MESO, *STREAMING, OBJECTS, INDEX, GENERATIONS, *EDITS, REBUILDS, VISIBLE, FINALIZER, WIDE, MONTHS),
    BARRED,
)
BESIDE = (FLOOR, SOURCING, RUNS, REPLACE, REDRIVE, REDRIVEN, DETACHED, TOLERANCE, TOPIC, PROMOTION, SPLITS)
SCENARIOS = {scenario.name: scenario for scenario in (*LIVE, *BESIDE)}


@dataclass(frozen=True, slots=True)
class Knobs:
    """Settings of one seed, small on purpose: what is rare with large ones is common with tiny ones."""

    ttl: float
    heartbeat: float
    latency: float
    step_limit: float
    batch_timeout: float
    max_retries: int
    backoff: float
    largest_cut: int
    rounds: int
    max_batches: int
    grace: float
    claims_in_one: bool
    copies: bool
    starts_within: float
    quiet_at: float
    window: int


def draw_knobs(kernel: Kernel, scenario: Scenario) -> Knobs:
    """Settings for a seed."""
    dice = kernel.dice
    ttl = dice.choice((0.8, 1.2, 2.0))
    small = scenario.partitions == 1
    return Knobs(
        ttl=ttl,
        heartbeat=ttl * (0.6 if small else dice.choice((0.33, 0.5))),
        latency=dice.choice((0.004, 0.02, 0.06)) * ttl,
        step_limit=ttl * (1.0 if scenario.wide else dice.choice((2.0, 10.0))),
        batch_timeout=ttl * 5,
        max_retries=dice.choice((1, 3)),
        backoff=ttl * 0.2,
        largest_cut=scenario.items if scenario.wide else dice.choice((2, 4, 6)),
        rounds=dice.choice((1, 2)),
        max_batches=1 if small else dice.choice((1, 3, 10)),
        grace=ttl * dice.choice((0.1, 2.0)),
        claims_in_one=dice.random() < 0.5,
        copies=dice.random() < 0.5,
        starts_within=ttl * dice.choice((0.1, 0.3, 2.0)),
        quiet_at=ttl * kernel.between(1.0, 4.5 if small else 9.0),
        window=dice.choice((1, 3, 5)),
    )


def draw_data(kernel: Kernel, scenario: Scenario, faults: Faults, knobs: Knobs) -> Data:
    """What there is to read in a seed."""
    dice = kernel.dice
    keys = [f"p{index}" for index in range(scenario.partitions)]
    items = {key: 1 + dice.randrange(scenario.items) if scenario.partitions > 1 else scenario.items for key in keys}
    fair = scenario.partitions > 1 and (dice.random() < 0.5 or scenario.replicas > 0)
    discovered = dice.random() < (0.7 if scenario.partitions == 1 else 0.3)
    late = not discovered and scenario.late_partitions and dice.random() < 0.5
    appears_at = {key: knobs.quiet_at * dice.random() if late else 0.0 for key in keys}
    poison = {key: items[key] // 2 for key in keys if faults["poison"] and dice.random() < 0.4}
    rerun_after = knobs.ttl if late else None
    lost = {key: _draw_range(kernel, items[key]) for key in keys if scenario.losing and dice.random() < 0.6}
    data = Data(
        items, appears_at, poison, rediscover_after=rerun_after, lives_long=fair, discovered=discovered, lost=lost
    )
    if not scenario.resharded:
        return data
    return replace(data, rediscover_after=knobs.ttl, discovered=False, parents={keys[-1]: tuple(keys[:-1])})


def _draw_range(kernel: Kernel, items: int) -> tuple[int, int]:
    first = kernel.below(items)
    return first, first + 1 + kernel.below(items - first)
