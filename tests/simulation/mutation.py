"""How mutants are made and hunted: the product with one guard taken out from outside, and put back afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tests.simulation.runner import Failure, run_seeds

MOST_SEEDS = 10_000
"""A mutant that lives longer is a hole in the simulator."""

Put = Callable[[Any, str, Any], None]
"""Replaces an attribute of a module or class until the mutant is over."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """One way to break the product, and the scenario in which it shows."""

    name: str
    scenario: str
    start: int
    """Where its hunt begins, to save time: a seed that killed it in a hunt from 0, while the simulator was as it is."""
    change: Callable[[Put], None]
    killed_by: str = ""
    """The test that kills it, where the simulator cannot."""
    because: str = ""
    """Why the simulator cannot."""


Change = Callable[[Put], None]


def mutant(scenario: str = "micro", start: int = 0) -> Callable[[Change], Mutant]:
    """The function as a mutant under its own name, which the simulator kills."""
    return lambda change: Mutant(change.__name__, scenario, start, change)


def mutant_of_test(killed_by: str, because: str) -> Callable[[Change], Mutant]:
    """The function as a mutant under its own name, which that test kills because the simulator cannot."""
    return lambda change: Mutant(change.__name__, "", 0, change, killed_by, because)


def hunt(prey: Mutant, seeds: range) -> Failure | None:
    """The first of these seeds that catches the mutant."""
    with patched(prey.change):
        failures = run_seeds(prey.scenario, seeds, stop_at_first=True).failures
    return failures[0] if failures else None


@contextmanager
def patched(change: Change) -> Iterator[None]:
    """The product as the mutant has it, until the block ends."""
    kept: list[tuple[Any, str, Any]] = []

    def put(owner: Any, name: str, value: Any) -> None:
        kept.append((owner, name, owner.__dict__[name]))
        setattr(owner, name, value)

    try:
        change(put)
        yield
    finally:
        for owner, name, value in reversed(kept):
            setattr(owner, name, value)
