"""Over eleven thousand worlds: nothing is lost, doubled or stuck in any, and each is the same when run again."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.simulation.__main__ import SHARE
from tests.simulation.faults import ALL_KINDS
from tests.simulation.host import TELLING
from tests.simulation.runner import digest, run_seeds
from tests.simulation.scenario import SCENARIOS

CHUNKS = {
    "micro": (5_000, 500),
    "meso": (300, 50),
    "streams": (750, 125),
    "forwarded": (250, 125),
    "resharded": (200, 50),
    "floor": (250, 125),
    "sourcing": (300, 50),
    "runs": (100, 50),
    "objects": (300, 50),
    "index": (100, 50),
    "generations": (200, 50),
    "edited": (200, 50),
    "edited_function": (200, 50),
    "rebuilds": (200, 50),
    "redeployed": (200, 50),
    "replicas": (200, 50),
    "visible": (300, 50),
    "outputs": (300, 50),
    "finalizer": (200, 50),
    "replace": (200, 50),
    "wide": (200, 50),
    "redrive": (200, 50),
    "redriven": (200, 50),
    "detached": (200, 50),
    "months": (300, 50),
    "barred": (300, 50),
    "tolerance": (200, 50),
    "promotion": (200, 50),
    "splits": (200, 50),
    "topic": (200, 50),
}
"""Seeds by scenario, and how many make one test: small enough that all cores end together."""
PARTS = [
    (scenario, start, start + size) for scenario, (seeds, size) in CHUNKS.items() for start in range(0, seeds, size)
]
EVERY_HUNDREDTH = 100
ELSEWHERE = 1_000_000
SEED = 11


def test_every_scenario_is_run_here_and_in_campaigns() -> None:
    assert set(CHUNKS) == set(SHARE) == set(SCENARIOS)
    assert round(sum(SHARE.values()), 6) == 1


@pytest.mark.parametrize(("scenario", "start", "end"), PARTS)
def test_every_record_lands_exactly_once_whatever_goes_wrong(scenario: str, start: int, end: int) -> None:
    """Safety at every write and liveness at the end: each seed is judged by its oracle throughout."""
    summary = run_seeds(scenario, range(start, end))
    assert not summary.failures, "\n".join(map(str, summary.failures))
    assert summary.seeds == end - start


@pytest.mark.parametrize(("scenario", "seeds"), [(scenario, seeds) for scenario, (seeds, _) in CHUNKS.items()])
def test_a_seed_is_the_same_world_when_it_is_run_again(scenario: str, seeds: int) -> None:
    for seed in range(0, seeds, EVERY_HUNDREDTH):
        assert digest(scenario, seed) == digest(scenario, seed), f"{scenario} seed {seed} differs"


@pytest.mark.parametrize("hash_seed", ["1", "2"])
def test_a_seed_is_the_same_world_in_another_process(hash_seed: str) -> None:
    code = f"from tests.simulation.runner import digest\nfor name in {list(CHUNKS)}: print(name, digest(name, {SEED}))"
    assert _output("-c", code, hash_seed=hash_seed) == [f"{name} {digest(name, SEED)}" for name in CHUNKS]


def test_the_command_shows_the_same_world() -> None:
    lines = _output("-m", "tests.simulation", "--scenario", "micro", "--seed", str(SEED), hash_seed="3")
    assert f"trace hash: {digest('micro', SEED)}" in lines


def _output(*words: str, hash_seed: str) -> list[str]:
    """What a Python in which sets have another order prints."""
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    shown = subprocess.run([sys.executable, *words], env=environment, capture_output=True, text=True, check=True)
    return shown.stdout.splitlines()


def test_every_kind_of_fault_strikes_and_every_way_out_is_walked() -> None:
    total = run_seeds("micro", range(ELSEWHERE, ELSEWHERE + 1500))
    total.add(run_seeds("streams", range(ELSEWHERE, ELSEWHERE + 200)))
    total.add(run_seeds("meso", range(ELSEWHERE, ELSEWHERE + 50)))
    total.add(run_seeds("splits", range(ELSEWHERE, ELSEWHERE + 5)))
    total.add(run_seeds("forwarded", range(ELSEWHERE, ELSEWHERE + 20)))
    assert not total.failures, "\n".join(map(str, total.failures))
    assert [kind for kind in (*ALL_KINDS, *sorted(TELLING)) if not total.struck[kind]] == []
