"""Fair share: balanced within few passes, by the fewest moves, and nothing moves when it is balanced."""

from __future__ import annotations

import itertools
import random
from collections import Counter

import pytest

from holdfast.leases.sharing import share

Table = dict[str, str | None]


def fewest_moves(table: Table, members: list[str]) -> int:
    """Moves that no plan can avoid: what members hold above the best choice of quotas."""
    held = Counter(owner for owner in table.values() if owner)
    base, extra = divmod(len(table), len(members))
    sizes = sorted((held[member] for member in members), reverse=True)
    return sum(max(0, size - base - (rank < extra)) for rank, size in enumerate(sizes))


def one_pass(table: Table, members: list[str], snapshot: Table, member: str) -> int:
    """One node acts on a snapshot, and the store refuses what is not so any more. Answers its moves."""
    free = sorted(key for key, owner in snapshot.items() if owner is None)
    plan = share(member, members, [owner for owner in snapshot.values() if owner], free)
    mine = [key for key, owner in table.items() if owner == member]
    for key in plan.claims[: max(0, plan.quota - len(mine))]:
        if table[key] is None:
            table[key] = member
    shed = list(zip(mine, plan.shed_to[: max(0, len(mine) - plan.quota)], strict=False))
    table.update(shed)
    return len(shed)


def is_balanced(table: Table, members: list[str]) -> bool:
    held = Counter(table.values())
    sizes = [held[member] for member in members]
    return None not in held and max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize(("nodes", "partitions"), list(itertools.product(range(1, 5), range(7))))
def test_from_every_start_two_passes_balance_by_the_fewest_moves(nodes: int, partitions: int) -> None:
    members = [f"n{i}" for i in range(nodes)]
    for owners in itertools.product([None, *members], repeat=partitions):
        table: Table = {f"p{i}": owner for i, owner in enumerate(owners)}
        needed = fewest_moves(table, members)
        moves = 0
        for _ in range(2):
            snapshot = dict(table)
            moves += sum(one_pass(table, members, snapshot, member) for member in members)
        assert is_balanced(table, members), owners
        assert moves == needed, owners
        assert sum(one_pass(table, members, dict(table), member) for member in members) == 0


@pytest.mark.parametrize("seed", range(40))
def test_stale_snapshots_and_nodes_that_miss_a_pass_only_put_it_off(seed: int) -> None:
    dice = random.Random(seed)
    members = [f"n{i}" for i in range(10)]
    table: Table = {f"p{i:03d}": None for i in range(200)}
    for grown in (members, members + [f"m{i}" for i in range(10)]):
        needed = fewest_moves(table, grown) if None not in table.values() else 0
        moves, passes, past = 0, 0, [dict(table)]
        while not is_balanced(table, grown):
            passes += 1
            for member in dice.sample(grown, len(grown)):
                if dice.random() < 0.1:
                    continue
                moves += one_pass(table, grown, past[-1 - dice.randrange(min(4, len(past)))], member)
                past.append(dict(table))
        assert passes <= 5
        assert moves == needed


def test_a_fixed_number_of_replicas_leaves_room_for_those_that_are_not_there_yet() -> None:
    free = [f"p{i}" for i in range(9)]
    assert len(share("a", ["a"], [], free, replicas=3).claims) == 3
    assert len(share("a", ["a"], [], free).claims) == 9


def test_leases_of_nodes_that_are_leaving_count_but_are_not_theirs_to_keep() -> None:
    plan = share("a", ["a", "b"], ["leaving"] * 4, ["p0", "p1"])
    assert plan.quota == 3
    assert set(plan.claims) | set(share("b", ["a", "b"], ["leaving"] * 4, ["p0", "p1"]).claims) == {"p0", "p1"}
