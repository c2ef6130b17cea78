"""Every mutant dies: what the simulator watches over is what the product's guards are for."""

from __future__ import annotations

import pytest

from tests.simulation.mutants import MUTANTS
from tests.simulation.mutation import MOST_SEEDS, Mutant, hunt


@pytest.mark.parametrize("prey", MUTANTS, ids=lambda prey: prey.name)
def test_a_mutant_is_caught(prey: Mutant) -> None:
    caught = hunt(prey, range(prey.start, prey.start + MOST_SEEDS))
    assert caught is not None, f"{prey.name} lived through {MOST_SEEDS} seeds of {prey.scenario}"
    print(f"{prey.name}: {caught.scenario} seed {caught.seed}")  # noqa: T201 - shown with `pytest -rP`


def test_there_are_enough_of_them() -> None:
    assert len(MUTANTS) >= 24
    assert len({prey.name for prey in MUTANTS}) == len(MUTANTS)
