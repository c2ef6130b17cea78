"""What all benchmarks share: a comparison of two figures from one run, and how it is taken and shown."""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True)
class Comparison:
    """Our figure beside the peer's.

    `bar` is what the ratio must reach, or as text (`"<= 1.5"`) what it must not exceed.
    """

    bench: str
    case: str
    ours: float
    peer: float
    unit: str
    ratio: float
    bar: float | str
    holds: bool


def compare(bench: str, case: str, ours: float, peer: float, unit: str, bar: float | str) -> Comparison:
    """The comparison of two figures; the ratio is ours to the peer's. Told at once: what comes after it may fail."""
    ratio = ours / peer
    print(f"{bench}: {case}: {ours:,.1f} / {peer:,.1f} {unit} = {ratio:.2f} ({bar})", file=sys.stderr)
    return Comparison(bench, case, ours, peer, unit, ratio, bar, holds(ratio, bar))


def holds(ratio: float, bar: float | str) -> bool:
    """Whether the ratio keeps the bar."""
    if isinstance(bar, str):
        return ratio <= float(bar.removeprefix("<="))
    return ratio >= bar


def interleaved(cases: Sequence[Callable[[], float]], repetitions: int) -> list[float]:
    """The median of each case. The cases take turns, so that a noisy minute of the machine is shared by all."""
    figures: list[list[float]] = [[] for _ in cases]
    for _ in range(repetitions):
        for case, figure in zip(cases, figures, strict=True):
            figure.append(case())
    return [statistics.median(figure) for figure in figures]


def show(comparisons: Sequence[Comparison]) -> None:
    """A table for people, then one JSON object per line for machines."""
    table = Table("benchmark", "case", "ours", "peer", "unit", "ratio", "bar", "holds")
    for comparison in comparisons:
        bar = comparison.bar if isinstance(comparison.bar, str) else f">= {comparison.bar:g}"
        verdict = "[green]yes[/]" if comparison.holds else "[red]NO[/]"
        figures = _figure(comparison.ours), _figure(comparison.peer), comparison.unit, f"{comparison.ratio:.2f}"
        table.add_row(comparison.bench, comparison.case, *figures, bar, verdict)
    Console().print(table)
    for comparison in comparisons:
        print(json.dumps(asdict(comparison)))


def _figure(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.2f}"
