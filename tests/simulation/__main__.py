"""The simulator's command line: run seeds and sum up, or show one seed step by step.

python -m tests.simulation --seeds 5000 [--start 0] [--scenario NAME|all] [--jobs 2]
python -m tests.simulation --scenario micro --seed 42 --trace
"""

# ruff: noqa: T201 - a command line prints

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping

from tests.simulation.faults import ALL_KINDS
from tests.simulation.kernel import Trace
from tests.simulation.runner import Failure, Summary, run_parallel, run_seed
from tests.simulation.scenario import SCENARIOS

SHARE = {
    "micro": 0.4,
    "outputs": 0.01,
    "barred": 0.02,
    "months": 0.02,
    "meso": 0.1,
    "streams": 0.08,
    "redeployed": 0.01,
    "replicas": 0.01,
    "forwarded": 0.02,
    "resharded": 0.01,
    "generations": 0.05,
    "edited": 0.01,
    "edited_function": 0.01,
    "visible": 0.05,
    "finalizer": 0.02,
    "replace": 0.02,
    "redrive": 0.01,
    "detached": 0.01,
    "wide": 0.01,
    "redriven": 0.01,
    "rebuilds": 0.02,
    "floor": 0.02,
    "sourcing": 0.01,
    "runs": 0.01,
    "objects": 0.01,
    "index": 0.01,
    "tolerance": 0.01,
    "promotion": 0.01,
    "splits": 0.01,
    "topic": 0.01,
}
"""How `--scenario all` divides the seeds: small worlds are quick, and most mistakes need no more."""
EVERY_KIND_FROM = 2000
"""With that many seeds of all scenarios, a kind of fault that never struck is a mistake of the simulator."""


def main(arguments: list[str]) -> int:
    """Exit code: 1 if a seed failed, or if a kind of fault never struck."""
    options = _parser().parse_args(arguments)
    if options.seed is not None:
        return _show(options.scenario if options.scenario != "all" else "micro", options.seed, trace=options.trace)
    total = Summary()
    for scenario, seeds in _seeds(options.scenario, options.start, options.seeds).items():
        summary = run_parallel(scenario, seeds, options.jobs)
        _print_figures(scenario, summary)
        total.add(summary)
    return _print_verdict(total, every_kind=options.scenario == "all" and options.seeds >= EVERY_KIND_FROM)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5000, help="how many (default 5000)")
    parser.add_argument("--start", type=int, default=0, help="the first seed (default 0)")
    parser.add_argument("--scenario", choices=[*SCENARIOS, "all"], default="all")
    parser.add_argument("--jobs", type=int, default=1, help="processes (default 1)")
    parser.add_argument("--seed", type=int, help="run this seed alone")
    parser.add_argument("--trace", action="store_true", help="with --seed: show what happens, step by step")
    return parser


def _seeds(scenario: str, start: int, number: int) -> Mapping[str, range]:
    if scenario != "all":
        return {scenario: range(start, start + number)}
    return {name: range(start, start + max(1, round(number * share))) for name, share in SHARE.items()}


def _show(scenario: str, seed: int, *, trace: bool) -> int:
    watched = Trace(keep=trace)
    fleet = run_seed(scenario, seed, watched)
    for line in watched.lines or []:
        print(line)
    print(f"\n{fleet.knobs}\n{fleet.shown}")
    print(f"faults: {', '.join(sorted(fleet.faults.enabled)) or 'none'}")
    print(f"trace hash: {watched.digest}")
    violation = fleet.oracle.violation
    print(Failure(scenario, seed, violation) if violation else f"{scenario} seed {seed}: nothing is wrong")
    return 1 if violation else 0


def _print_figures(scenario: str, summary: Summary) -> None:
    print(
        f"{scenario:<11} {summary.seeds:>7,} seeds  {summary.seeds_per_second:>6,.0f} seeds/s per core"
        f"  {summary.events / max(summary.seeds, 1):>6,.0f} events/seed"
        f"  {summary.virtual_to_real:>7,.0f} : 1 virtual to real time  {len(summary.failures)} failed"
    )


def _print_verdict(total: Summary, *, every_kind: bool) -> int:
    print("\nstruck:")
    for kind in ALL_KINDS:
        print(f"  {kind:<22} {total.struck[kind]:>8,}")
    print("ways out that were walked:")
    for kind in sorted(total.struck.keys() - set(ALL_KINDS)):
        print(f"  {kind:<22} {total.struck[kind]:>8,}")
    for failure in total.failures:
        print(f"\n{failure}")
    idle = [kind for kind in ALL_KINDS if not total.struck[kind]] if every_kind else []
    if idle:
        print(f"\nnever struck: {', '.join(idle)}")
    return 1 if total.failures or idle else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
