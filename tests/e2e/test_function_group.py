"""Functions as a consumer group: its members and their shards, and acks that outlive the process that kept them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.functions import EmbeddedRecords, Site
from tests.e2e.fleet import eventually
from tests.e2e.test_function import cli

pytestmark = pytest.mark.slow

KEPT = 5
"""The first records of each shard, which are kept."""
KEEPING = f"""
import os
import pickle
import time
from pathlib import Path

import nuclio

FOLDER = Path(os.environ["HANDLED"])
KEPT, SHARDS = {KEPT}, {EmbeddedRecords.shards}


def note(kind, shard, offset):
    with open(FOLDER / str(shard), "ab", buffering=0) as file:
        file.write(f"{{kind}} {{offset}} {{os.getpid()}} {{time.time():.3f}}\\n".encode())


async def handler(context, event):
    note("begin", event.shard_id, event.offset)
    offset = nuclio.QualifiedOffset.from_event(event)
    if event.offset < KEPT:
        keep(offset)
    else:
        for other in (offset, *kept((event.shard_id + 1) % SHARDS)):
            await context.platform.explicit_ack(other)
    note("end", event.shard_id, event.offset)


def keep(offset):
    path = FOLDER / f"kept-{{offset.partition}}-{{offset.offset}}"
    if not path.exists():  # only the first process keeps it
        path.write_bytes(pickle.dumps(offset))


def kept(shard):
    return [pickle.loads((FOLDER / f"kept-{{shard}}-{{number}}").read_bytes()) for number in range(KEPT)]
"""
"""Keeps the first records of each shard in files. Later records acknowledge those of the next shard, which another
process may have kept, and another node may own.
"""


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path, EmbeddedRecords(tmp_path), timeout=6.0, heartbeat=1.8, spark=False)
    yield made
    made.close()


def test_offsets_that_a_process_has_kept_are_acknowledged_by_others_on_nodes_without_the_shard(site: Site) -> None:
    (site.folder / "orders.py").write_text(KEEPING)
    site.records.put(0, KEPT)
    site.start("first")
    site.wait_until_handled(KEPT)
    site.stop("first")
    assert site.positions() == dict.fromkeys(range(site.shards), (0, ()))
    for name in ("second", "third"):
        site.start(name)
    site.wait_for_shares(2)
    # What was not acknowledged comes again, also when a shard moves to the node that joined last.
    eventually(lambda: all(len(begun(site, shard)) >= 2 * KEPT for shard in range(site.shards)), what="all again")
    owners = {shard: owner for owner, shards in site.owners().items() for shard in shards}
    elsewhere = [shard for shard in range(site.shards) if owners[shard] != owners[(shard + 1) % site.shards]]
    assert elsewhere, "no ack would have to go to another node"
    site.records.put(KEPT, KEPT + 1)
    committed = dict.fromkeys(range(site.shards), (KEPT + 1, ()))
    eventually(lambda: site.positions() == committed, what="a commit of each shard")
    before = [begun(site, shard) for shard in range(site.shards)]
    assert all(offsets[:KEPT] == [*range(KEPT)] and offsets.count(KEPT) == 1 for offsets in before)
    for name in ("second", "third"):
        site.stop(name)
    site.records.put(KEPT + 1, KEPT + 2)
    site.start("last")
    site.wait_until_handled(KEPT + 2)
    site.stop("last")
    assert [begun(site, shard) for shard in range(site.shards)] == [[*offsets, KEPT + 1] for offsets in before]


def begun(site: Site, shard: int) -> list[int]:
    return [line.offset for line in site.handled.lines(shard) if line.kind == "begin"]


def members(site: Site) -> list[tuple[str | None, str]]:
    """As `holdfast shards list` shows them."""
    listed = json.loads(cli("shards", "list", str(site.folder / "pipeline.yaml"), "--json"))
    return [(member["member_id"], member["shards"]) for member in listed]


SEED = [("replica1", "0-3"), ("replica2", "4-7"), ("replica3", "8-11")]


def has_members_of_the_seed(site: Site, *killed: int) -> bool:
    """Whether the members have the shards of Nuclio's table.

    If the machine stood still for so long that the session of a node has ended which is not among the killed ones,
    its shards were free together with others: then each member has four, and which ones does not matter.
    """
    found = members(site)
    if set(site.expired()) <= {*killed}:
        return found == SEED
    return [(name, len(numbers(shards))) for name, shards in found] == [(name, 4) for name, _ in SEED]


def numbers(shards: str) -> list[int]:
    """The numbers of ranges as `0-2,7`."""
    edges = [part.split("-") for part in shards.split(",")]
    return [number for first, *last in edges for number in range(int(first), int((last or [first])[0]) + 1)]


def test_three_replicas_have_the_shards_of_nuclios_table_also_while_only_one_is_up_and_after_a_redeployment(
    site: Site,
) -> None:
    file = site.folder / "pipeline.yaml"
    file.write_text(file.read_text().replace("    generation: 1\n", "    generation: 1\n    replicas: 3\n"))
    site.start("replica1")
    alone = [("replica1", "0-3"), (None, "4-11")]
    eventually(lambda: members(site) == alone, what="the first member")
    site.records.put(0, 20)
    eventually(lambda: all(len(begun(site, shard)) == 20 for shard in range(4)), what="the records of its shards")
    assert members(site) == alone
    assert [begun(site, shard) for shard in range(4, 12)] == [[]] * 8
    site.start("replica2")
    eventually(lambda: members(site) == [*SEED[:2], (None, "8-11")], what="the second member")
    site.start("replica3")
    eventually(lambda: has_members_of_the_seed(site), what="all members")
    site.wait_until_handled(20)

    # As a pod that is replaced: the next one of the same name waits for the end of the session, and gets the same. The
    # others keep theirs meanwhile.
    node = site.nodes.pop("replica1")
    site.strike(node.pid)
    node.kill()
    node.wait()
    site.start("replica1")
    site.records.put(20, 30)
    site.wait_until_handled(30)
    eventually(lambda: has_members_of_the_seed(site, node.pid), what="the same members")
    site.put = 30
    for name in list(site.nodes):
        site.stop(name)
    assert site.wrong() == []
