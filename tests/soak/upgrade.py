"""A rolling upgrade under load: nodes of this version are replaced one by one by nodes of the next.

python -m tests.soak.upgrade sqlite|postgresql|mysql
"""

# ruff: noqa: T201 - a command line prints

from __future__ import annotations

import json
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from tests.soak.fleet import Fleet, LightNode
from tests.soak.grounds import Ground, ground
from tests.soak.history import Version
from tests.soak.idle import gaps
from tests.soak.oracle import SESSIONS, lives
from tests.soak.orders import PULL, SHARE, Load, Orders
from tests.soak.soak import Verdict, judged, make_tables, wait_until_done
from tests.soak.versions import EXTRA

NODES = 6
MOST_SECONDS = 180.0
TIMEOUT, HEARTBEAT = 4.0, 1.0
ONE_PASS = HEARTBEAT * 1.2
"""Passes are a heartbeat apart, give or take a fifth."""
READY_WITHIN = 20.0
DONE_WITHIN = 60.0
MIXED, MIXED_WITHIN = 12, 45.0


def upgrade(store: str, folder: Path) -> Verdict:
    """Replace every node while there is work, one of them back and forth again, and judge."""
    with ground(store, folder, seed=0) as site:
        make_tables(site)
        load = Load(began=time.monotonic(), seconds=MOST_SECONDS, notice=str(folder / "ended"))
        old = Orders(site.plugin, site.settings(), str(folder), load, 0, TIMEOUT, HEARTBEAT, hiccup=0.0)
        fleet = Fleet(old, NODES, random.Random(0))
        try:
            fleet.start()
            first, *_ = fleet.nodes
            for node, later in [*((node, True) for node in fleet.nodes), (first, False), (first, True)]:
                _replace(site, node, replace(old, next_version=later))
                if node is fleet.nodes[NODES // 2 - 1]:
                    _wait_for_mixture(site)
            replaced_after = time.monotonic() - load.began
            load.end_soon()
            wait_until_done(site, fleet, load, DONE_WITHIN)
            fleet.stop(15.0)
        finally:
            fleet.kill()
        verdict = judged(site, folder, load, fleet)
        _judge_upgrade(site, verdict, site.history())
    verdict.figures["replaced_after"] = replaced_after
    if replaced_after > MOST_SECONDS:
        verdict.wrong.append("the load ended before the last node was replaced")
    return verdict


def _replace(site: Ground, node: LightNode, orders: Orders) -> None:
    _wait_for(site, node)
    if not node.leave(within=12.0):
        raise RuntimeError(f"{node.name} did not leave in order")
    node.orders = orders
    node.start()
    _wait_for(site, node)


def _wait_for(site: Ground, node: LightNode) -> None:
    """Until the node has renewed its session once: from then on it takes part."""
    assert node.process is not None
    session = f"{node.name}:{node.process.pid}:%"
    text = f"""SELECT count(*) FROM {site.table} WHERE "pipeline" = '{SESSIONS}' AND "key" LIKE '{session}'
        AND "status" = 'ASSIGNED' AND "version" > 1"""
    give_up_at = time.monotonic() + READY_WITHIN
    while site.run(text) != [(1,)]:
        if time.monotonic() > give_up_at:
            raise RuntimeError(f"{node.name} does not take part")
        time.sleep(0.05)


def _wait_for_mixture(site: Ground) -> None:
    """Until nodes of this version have often written rows that the next had written before."""
    give_up_at = time.monotonic() + MIXED_WITHIN
    while _by_old_with_new_key(site.history()) <= MIXED and time.monotonic() < give_up_at:
        time.sleep(0.5)


def _by_old_with_new_key(history: Sequence[Version]) -> int:
    later = {row.key for row in history if row.pipeline == SESSIONS and EXTRA in row.body["state"]}
    kept = [row for row in history if row.pipeline in (PULL, SHARE) and EXTRA in row.body]
    return sum(row.owner is not None and row.owner not in later for row in kept)


def _judge_upgrade(site: Ground, verdict: Verdict, history: Sequence[Version]) -> None:
    longest, where = gaps(history, [PULL, SHARE])[0]
    verdict.figures["longest_idle"] = longest
    if longest > TIMEOUT + ONE_PASS:
        verdict.wrong.append(f"{where} had nobody for {longest:.2f} s")
    verdict.figures["by_old_with_new_key"] = _by_old_with_new_key(history)
    verdict.wrong += list(_forgotten(history))
    if site.run(f"SELECT version, oldest FROM {site.versions}") != [(2, 1)]:
        verdict.wrong.append("the tables were not upgraded")


def _forgotten(history: Sequence[Version]) -> Iterator[str]:
    """Rows that lost what the next version had written there."""
    for (pipeline, key), rows in lives(history, [PULL, SHARE]).items():
        marked = [EXTRA in row.body for row in rows]
        if marked != sorted(marked):
            yield f"{pipeline}/{key}: a node of this version has lost what the next had written"


if __name__ == "__main__":
    scratch = Path(tempfile.mkdtemp(prefix="holdfast-upgrade-"))
    try:
        shown = upgrade(sys.argv[1], scratch)
    finally:
        shutil.rmtree(scratch)
    print(json.dumps({"wrong": shown.wrong, "figures": shown.figures}))
