"""One soak of one store: begin, strike, calm down, wait until all is done, judge."""

from __future__ import annotations

import importlib
import random
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from tests.soak.faults import Nemesis
from tests.soak.fleet import Fleet
from tests.soak.grounds import Ground, ground
from tests.soak.oracle import commits, judge, takes
from tests.soak.orders import Load, Orders
from tests.soak.output import judge_output


@dataclass(frozen=True)
class Terms:
    """How a soak is run."""

    seconds: float
    nodes: int
    seed: int
    hazard: float = 0.002
    every: float = 1.5
    """Seconds between two strikes, on average."""
    done_within: float = 90.0
    """Seconds in which all work must be done once the faults have stopped."""
    broken: str = ""


@dataclass
class Verdict:
    """What a soak has shown; it has failed if anything is wrong."""

    wrong: list[str]
    figures: dict[str, float]
    struck: Counter[str] = field(default_factory=Counter)


def soak(store: str, folder: Path, terms: Terms) -> Verdict:
    """Run it. Blocks for the terms' time and until all work is done, at most `done_within` longer."""
    dice = random.Random(f"{terms.seed} {store}")
    with ground(store, folder, terms.seed) as site:
        make_tables(site)
        load = Load(began=time.monotonic(), seconds=terms.seconds)
        orders = Orders(
            site.plugin, site.settings(), str(folder), load, terms.seed, hazard=terms.hazard, broken=terms.broken
        )
        fleet = Fleet(orders, terms.nodes, dice)
        nemesis = Nemesis(fleet, site, dice, terms.every)
        try:
            fleet.start()
            nemesis.rage(terms.seconds)
            site.calm()
            done_after = wait_until_done(site, fleet, load, terms.done_within)
            fleet.stop(15.0)
        finally:
            fleet.kill()
        verdict = judged(site, folder, load, fleet)
    verdict.figures["done_after"] = done_after
    verdict.struck = nemesis.struck
    return verdict


def make_tables(site: Ground) -> None:
    """Let the product make its tables, then keep their history."""
    plugin = importlib.import_module(f"holdfast.stores.{site.plugin}").PLUGIN
    store = plugin.build(plugin.config.model_validate(site.settings()))
    store.open()
    store.close()
    site.prepare()


def wait_until_done(site: Ground, fleet: Fleet, load: Load, within: float) -> float:
    """Seconds until every partition is completed, or until the time for it is over."""
    wanted = sum(len(items) for items in load.in_the_end().values())
    began = time.monotonic()
    while time.monotonic() - began < within:
        fleet.calm()
        if site.open_rows() == (wanted, 0):
            break
        time.sleep(0.2)
    return time.monotonic() - began


def judged(site: Ground, folder: Path, load: Load, fleet: Fleet) -> Verdict:
    """What the history and the output tell."""
    versions, expected = site.history(), load.in_the_end()
    decided = commits(versions, expected)
    wrong = fleet.errors + judge(versions, expected) + judge_output(folder, expected, decided)
    figures = {
        "versions": len(versions),
        "commits": len(decided),
        "items": sum(sum(items.values()) for items in expected.values()),
        **takes(versions, expected),
        "fenced_off": sum(log.read_text().count("PartitionLost(") for log in folder.glob("*.log")),
        "born_again": fleet.born_again,
        "woken": fleet.woken,
        "node_mb": round(fleet.megabytes, 1),
    }
    return Verdict(wrong, figures)
