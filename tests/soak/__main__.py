"""The soak's command line: all stores side by side, each in a process of its own.

python -m tests.soak [--minutes 2] [--stores sqlite,postgresql,mysql] [--nodes 14] [--seed N]
"""

# ruff: noqa: T201 - a command line prints

from __future__ import annotations

import argparse
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.soak.soak import Terms, Verdict, soak

USUAL = ("sqlite", "postgresql", "mysql")
STORES = (*USUAL, "object")
MOST_TOLD = 20


def main(arguments: list[str]) -> int:
    """Exit code: 1 if anything was wrong on any store."""
    options = _parser().parse_args(arguments)
    stores = options.stores.split(",")
    if unknown := set(stores) - set(STORES):
        print(f"there is no store {min(unknown)!r} here; there are {', '.join(STORES)}", file=sys.stderr)
        return 2
    if len(stores) == 1:
        return _soak_one(stores[0], options)
    # Later words win.
    command = [sys.executable, "-m", "tests.soak", *arguments, "--seed", str(options.seed), "--stores"]
    running = [subprocess.Popen([*command, store]) for store in stores]
    return max(process.wait() for process in running)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=2.0, help="how long there are faults (default 2)")
    parser.add_argument("--stores", default=",".join(USUAL), help=f"default {','.join(USUAL)}; object, too")
    parser.add_argument("--nodes", type=int, default=14, help="light nodes on each store (default 14)")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1 << 31), help="default: a new one")
    parser.add_argument("--hazard", type=float, default=Terms.hazard, help="chance at each moment that counts")
    parser.add_argument("--done-within", type=float, default=Terms.done_within, help="seconds after the faults")
    parser.add_argument("--broken", default="", help="a guard that the nodes lack, to see that it is missed")
    parser.add_argument("--forget", action="store_true", help="keep no logs, whatever happens")
    return parser


def _soak_one(store: str, options: argparse.Namespace) -> int:
    print(f"{store}: {options.minutes:g} min, {options.nodes} nodes, seed {options.seed}", flush=True)
    # In memory where there is such a place: only a killed machine would lose it, and a sync costs nothing.
    fast = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    folder = Path(tempfile.mkdtemp(prefix="holdfast-soak-", dir=fast))
    terms = Terms(
        options.minutes * 60,
        options.nodes,
        options.seed,
        hazard=options.hazard,
        done_within=options.done_within,
        broken=options.broken,
    )
    verdict = soak(store, folder, terms)
    print(_told(store, verdict, options.seed, folder), flush=True)
    if options.forget or not verdict.wrong:
        shutil.rmtree(folder)
    return 1 if verdict.wrong else 0


def _told(store: str, verdict: Verdict, seed: int, folder: Path) -> str:
    lines = [f"{store}: {', '.join(f'{name} {value:g}' for name, value in verdict.figures.items())}"]
    lines += [f"{store}: struck {number} times: {name}" for name, number in sorted(verdict.struck.items())]
    if not verdict.wrong:
        return "\n".join([*lines, f"{store}: nothing is wrong"])
    lines += [f"{store}: WRONG: {what}" for what in verdict.wrong[:MOST_TOLD]]
    return "\n".join([*lines, f"{store}: {len(verdict.wrong)} wrong; seed {seed}, logs and output in {folder}"])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
