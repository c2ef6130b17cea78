"""The command line of the fuzzer: inputs that are almost valid, for every decoder, until the time is over.

python -m tests.fuzz [--minutes 2] [--seed N] [--target NAME] [--input NUMBER]
"""

# ruff: noqa: T201 - a command line prints

from __future__ import annotations

import argparse
import hashlib
import secrets
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.fuzz.child import Finding, Results, fuzzed
from tests.fuzz.target import Target
from tests.fuzz.targets import all_targets

FOUND = Path("build/fuzz")
PORTION = 400


def main(arguments: Sequence[str]) -> int:
    """Exit code: 1 if an input was found."""
    options = _parser().parse_args(arguments)
    targets = [target for target in all_targets() if options.target in {None, target.name}]
    if not targets:
        print(f"there is no target {options.target!r}; there are {', '.join(t.name for t in all_targets())}")
        return 2
    print(f"{len(targets)} targets, {options.minutes:g} min, seed {options.seed}", flush=True)
    end = time.monotonic() + options.minutes * 60
    found = 0
    for number, target in enumerate(targets):
        share = (end - time.monotonic()) / (len(targets) - number)
        found += _fuzz(target, options.seed, time.monotonic() + share)
    return 1 if found else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=2.0, help="for all targets (default 2)")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1 << 31), help="default: a new one")
    parser.add_argument("--target", help="only this one")
    return parser


def _fuzz(target: Target, seed: int, until: float) -> int:
    """Try inputs of one target, at least a portion. Returns how many different faults were found."""
    whole, causes = Results(), set[tuple[str, str, str]]()
    while not whole.tried or time.monotonic() < until:
        numbers = range(whole.tried, whole.tried + PORTION)
        results = fuzzed(target, lambda number: target.input(seed, number), numbers)
        for finding in results.findings:
            if finding.cause not in causes:
                causes.add(finding.cause)
                print(f"FOUND {_kept(finding, target.input(seed, finding.number))}", flush=True)
        whole.add(results)
    print(
        f"{target.name}: {whole.tried} tried, {whole.accepted} accepted, {len(causes)} found; an accepted input took up"
        f" to {whole.peak >> 20} MiB (number {whole.peak_number}) and any up to {whole.slowest:.2f} s of CPU"
        f" (number {whole.slowest_number})",
        flush=True,
    )
    return len(causes)


def _kept(finding: Finding, data: bytes) -> str:
    FOUND.mkdir(parents=True, exist_ok=True)
    path = FOUND / f"{finding.target}-{finding.kind}-{hashlib.sha256(data).hexdigest()[:12]}"
    path.write_bytes(data)
    return f"{path}: {finding.kind}, number {finding.number}: {finding.reason}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
