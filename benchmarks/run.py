"""Run one benchmark or all: `benchmarks/run.py NAME|all`. Exits with 1 when a bar does not hold.

A benchmark that has `CASES` runs those that are named after it: `benchmarks/run.py reindex race sums`.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from benchmarks.harness import Comparison, show  # noqa: E402 - found only once the repository is on the path

SHARED = ("harness", "run")


def names() -> list[str]:
    """Every module here that is a benchmark."""
    return sorted(path.stem for path in HERE.glob("*.py") if path.stem not in SHARED and not path.stem.startswith("_"))


def main(arguments: list[str]) -> int:
    """Exit code of the benchmarks asked for."""
    name, *cases = arguments or [""]
    if name not in (*names(), "all") or (cases and not _are_cases(name, cases)):
        print(f"usage: benchmarks/run.py {'|'.join(names())}|all [CASE...]", file=sys.stderr)
        return 2
    comparisons: list[Comparison] = []
    for wanted in names() if name == "all" else [name]:
        benchmark = importlib.import_module(f"benchmarks.{wanted}")
        comparisons += benchmark.run(cases) if cases else benchmark.run()
    show(comparisons)
    return 0 if all(comparison.holds for comparison in comparisons) else 1


def _are_cases(name: str, cases: list[str]) -> bool:
    known = () if name == "all" else getattr(importlib.import_module(f"benchmarks.{name}"), "CASES", ())
    if unknown := [case for case in cases if case not in known]:
        print(f"{name} has no case {unknown[0]}; it has {', '.join(known) or 'none'}", file=sys.stderr)
    return not unknown


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
