"""What is fuzzed: a function that takes any bytes, the inputs to begin with, and how it may refuse them."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tests.fuzz.mutation import mutated


def check_text(text: str) -> None:
    """Raises `AssertionError` for a text that cannot be printed. The error of the codec would count as a refusal."""
    assert text == text.encode("utf-8", "replace").decode(), "a text that cannot be printed"


@dataclass(frozen=True)
class Target:
    name: str
    seeds: Sequence[bytes]
    """Valid inputs."""
    read: Callable[[bytes], None]
    """Reads one input. Raises one of `refusals` if it is not valid, and `AssertionError` for a broken promise."""
    refusals: tuple[type[Exception], ...]
    """The documented errors. Any other is a finding."""
    tokens: Sequence[bytes] = ()

    def input(self, seed: int, number: int) -> bytes:
        """An input by its number; the first are the seeds themselves."""
        if number < len(self.seeds):
            return self.seeds[number]
        return mutated(random.Random(f"{self.name} {seed} {number}"), self.seeds, self.tokens)
