"""Every mutant dies: what the simulator watches over is what the product's guards are for."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.simulation.mutants import MUTANTS
from tests.simulation.mutation import MOST_SEEDS, Mutant, hunt

HUNTED = [prey for prey in MUTANTS if not prey.killed_by]
BEYOND = [prey for prey in MUTANTS if prey.killed_by]
FAILED = 1
"""What pytest exits with when tests have failed; any other error has another code."""


@pytest.mark.parametrize("prey", HUNTED, ids=lambda prey: prey.name)
def test_a_mutant_is_caught(prey: Mutant) -> None:
    caught = hunt(prey, range(prey.start, prey.start + MOST_SEEDS))
    assert caught is not None, f"{prey.name} lived through {MOST_SEEDS} seeds of {prey.scenario}"
    print(f"{prey.name}: {caught.scenario} seed {caught.seed}")  # noqa: T201 - shown with `pytest -rP`


@pytest.mark.parametrize("prey", BEYOND, ids=lambda prey: prey.name)
def test_a_mutant_that_the_simulator_cannot_catch_is_caught_by_the_test_that_it_names(prey: Mutant) -> None:
    options = ["-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", "-p", "tests.simulation.mutating"]
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", *options, prey.killed_by],
        env={**os.environ, "HOLDFAST_MUTANT": prey.name},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ran.returncode == FAILED, f"{prey.killed_by} lets {prey.name} live:\n{ran.stdout}{ran.stderr}"
    assert prey.because


def test_there_are_enough_of_them() -> None:
    assert len(MUTANTS) >= 150
    assert len({prey.name for prey in MUTANTS}) == len(MUTANTS)
