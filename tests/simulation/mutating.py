"""A plugin of pytest that runs the tests on a mutant: `HOLDFAST_MUTANT=name pytest -p tests.simulation.mutating …`."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.simulation.mutants import MUTANTS
from tests.simulation.mutation import patched


@pytest.fixture(autouse=True, scope="session")
def _mutant() -> Iterator[None]:
    (chosen,) = [mutant for mutant in MUTANTS if mutant.name == os.environ["HOLDFAST_MUTANT"]]
    with patched(chosen.change):
        yield
