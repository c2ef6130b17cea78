"""The command line of the chaos.

python -m tests.chaos [--minutes 5] [--faults 0] [--seed N]
"""

# ruff: noqa: T201 - a command line prints

from __future__ import annotations

import argparse
import secrets
import shutil
import sys
import tempfile
from pathlib import Path

from tests.chaos.chaos import Terms, Verdict, chaos

MOST_TOLD = 20


def main(arguments: list[str]) -> int:
    """Exit code: 1 if anything was wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=5.0, help="how long there are faults (default 5)")
    parser.add_argument("--faults", type=int, default=0, help="at least so many, however long it takes")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1 << 31), help="default: a new one")
    options = parser.parse_args(arguments)
    folder = Path(tempfile.mkdtemp(prefix="holdfast-chaos-"))
    print(f"seed {options.seed}, {options.minutes:g} min of faults", flush=True)
    terms = Terms(options.seed, options.minutes * 60, options.faults)
    verdict = chaos(folder, terms, lambda what: print(what, flush=True))
    print(report(verdict, terms.seed))
    if verdict.wrong:
        print(f"logs in {folder}")
        return 1
    shutil.rmtree(folder)
    return 0


def report(verdict: Verdict, seed: int) -> str:
    """The verdict for people."""
    lines = [", ".join(f"{name} {value:g}" for name, value in verdict.figures.items())]
    lines += [f"struck {number} times: {name}" for name, number in sorted(verdict.struck.items())]
    lines += [f"WRONG: {what}" for what in verdict.wrong[:MOST_TOLD]]
    lines += [f"{len(verdict.wrong)} wrong; seed {seed}" if verdict.wrong else "0 lost, 0 twice, 0 changed"]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
