"""Run one benchmark or all: `benchmarks/run.py NAME|all`. Exits with 1 when a bar does not hold."""

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
    if len(arguments) != 1 or arguments[0] not in (*names(), "all"):
        print(f"usage: benchmarks/run.py {'|'.join(names())}|all", file=sys.stderr)
        return 2
    wanted = names() if arguments[0] == "all" else arguments
    comparisons: list[Comparison] = []
    for name in wanted:
        comparisons += importlib.import_module(f"benchmarks.{name}").run()
    show(comparisons)
    return 0 if all(comparison.holds for comparison in comparisons) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
