"""A run ends soon after the ideal time, although estimates are wrong and one node is slow."""

from __future__ import annotations

from tests.simulation.makespan import percentile, ratio

SEEDS = range(1000)


def test_a_run_takes_little_longer_than_the_ideal_because_partitions_are_split() -> None:
    assert percentile([ratio(seed) for seed in SEEDS], 0.95) <= 1.2
    without = percentile([ratio(seed, splitting=False) for seed in SEEDS[:200]], 0.95)
    assert without > 1.2, "the model shows no need for splitting, so that it proves nothing"
