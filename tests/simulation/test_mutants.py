"""Every mutant dies: what the simulator watches over is what the product's guards are for."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.simulation.mutants import MUTANTS
from tests.simulation.mutating import is_killed
from tests.simulation.mutation import MOST_SEEDS, Mutant, hunt

HUNTED = [prey for prey in MUTANTS if not prey.killed_by]
BEYOND = [prey for prey in MUTANTS if prey.killed_by]


@pytest.mark.parametrize("prey", HUNTED, ids=lambda prey: prey.name)
def test_a_mutant_is_caught(prey: Mutant) -> None:
    caught = hunt(prey, range(prey.start, prey.start + MOST_SEEDS))
    assert caught is not None, f"{prey.name} lived through {MOST_SEEDS} seeds of {prey.scenario}"
    print(f"{prey.name}: {caught.scenario} seed {caught.seed}")  # noqa: T201 - shown with `pytest -rP`


@pytest.mark.parametrize("prey", BEYOND, ids=lambda prey: prey.name)
def test_a_mutant_that_the_simulator_cannot_catch_is_caught_by_the_test_that_it_names(
    prey: Mutant, tmp_path: Path
) -> None:
    output = tmp_path / "output"
    assert is_killed(prey, output, timeout=120), f"{prey.killed_by} lets {prey.name} live:\n{output.read_text()}"
    assert prey.because


def test_there_are_enough_of_them() -> None:
    assert len(MUTANTS) >= 150
    assert len({prey.name for prey in MUTANTS}) == len(MUTANTS)
