"""Fair share by Plan-Shed-Claim: every node computes the same plan from the same snapshot. Pure.

For partitions that live long. A node claims only what the plan gives it and hands off only what it owns, so that moves
never compete. Every move goes from a node above its quota to one below it: there are no cycles, none when all is
balanced, and no fewer moves are possible for the chosen quotas.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Plan:
    """What one node has to do."""

    quota: int
    """How many leases it should hold."""
    claims: tuple[str, ...] = ()
    """Keys of free leases that are its to take."""
    shed_to: tuple[str, ...] = ()
    """Sessions that should each get one of its leases; which one is the owner's choice."""


def share(me: str, members: Sequence[str], owners: Sequence[str], free: Sequence[str], replicas: int = 0) -> Plan:
    """The part of `me` in the plan.

    `members` are the sessions that take part, `owners` names the owner of each lease that is held, by a member or not,
    and `free` has the keys of leases that can be taken now, in order of claim. With `replicas`, the share is that of
    so many nodes even while fewer are there.
    """
    held = Counter(owners)
    base, extra = divmod(len(owners) + len(free), max(len(members), replicas))
    # Who holds most keeps the odd one, so that it need not move.
    by_holding = sorted(members, key=lambda member: (-held[member], _lot(member)))
    quota = {member: base + (place < extra) for place, member in enumerate(by_holding)}
    in_turn = sorted(members, key=_lot)
    wanting = [member for member in in_turn for _ in range(quota[member] - held[member])]
    claims = tuple(key for key, member in zip(free, wanting, strict=False) if member == me)
    surplus = [member for member in in_turn for _ in range(held[member] - quota[member])]
    moves = zip(surplus, wanting[len(free) :], strict=False)
    return Plan(quota.get(me, 0), claims, tuple(target for source, target in moves if source == me))


def _lot(member: str) -> bytes:
    """The same for every node, and in no order that anybody chose."""
    return hashlib.blake2b(member.encode(), digest_size=8).digest()
