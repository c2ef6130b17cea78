"""Two ways to share a pipeline's leases among nodes: pull free leases, or hold a fair share."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from holdfast.errors import StoreUnavailable
from holdfast.leases.coordinator import Coordinator
from holdfast.leases.lease import Lease, Status
from holdfast.leases.query import by_claim, claim_statuses
from holdfast.leases.session import node_info
from holdfast.leases.transitions import claimable

SILENT = 2.0
"""A session that was not renewed for this many heartbeats is taken for dead, and will expire soon."""


@dataclass(frozen=True, slots=True)
class Look:
    """The result of a look at the store."""

    taken: Sequence[Lease] = ()
    shed_to: Sequence[str] = ()
    """Sessions that should each get one of this node's leases."""
    short: bool = False
    """Whether the node holds less than its share, or is about to get one: it should look soon."""
    shared: bool = False
    """Whether other nodes take part."""


class Sharing(Protocol):
    """How a node gets its leases."""

    def look(self, held: int, room: int) -> Look:
        """Take the leases that this node should take, at most `room` in addition to the `held` ones.

        Takes nothing while the store does not respond.
        """
        ...


class Pull:
    """Take the next free leases: for work that ends soon, such as objects and key ranges."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator

    def look(self, held: int, room: int) -> Look:  # noqa: ARG002 - what is held does not matter here
        return Look(self._coordinator.claim(room))


class FairShare:
    """Hold an equal part of the leases: for partitions that live long, such as those of a topic."""

    def __init__(self, coordinator: Coordinator, replicas: int = 0) -> None:
        """`replicas`: number of nodes that share the leases, whether fewer or more are running; 0: the running ones."""
        self._coordinator = coordinator
        self._replicas = replicas
        self._rank = by_claim(claim_statuses(closed_last=coordinator.policy.closed_last))

    def look(self, held: int, room: int) -> Look:
        coordinator = self._coordinator
        try:
            seen = coordinator.recent.snapshot(coordinator.pipeline, coordinator.session.fleet, coordinator.run)
            now = coordinator.store.now()
        except StoreUnavailable:
            return Look()
        members = self._members(seen.sessions)
        if coordinator.session.id not in members:
            return Look()
        free = sorted((row for row in seen.leases if claimable(row, now)), key=self._rank)
        owners = [row.owner for row in seen.leases if row.owner and not claimable(row, now)]
        plan = share(coordinator.session.id, members, owners, [row.key for row in free], self._replicas)
        # The node itself knows better than a snapshot what it holds.
        wanted = set(plan.claims[: max(0, min(room, plan.quota - held))])
        taken = coordinator.claim_rows([row for row in free if row.key in wanted])
        short = held + len(taken) < plan.quota or (plan.spare and self._place_becomes_free(seen.sessions, members, now))
        return Look(taken, plan.shed_to[: max(0, held - plan.quota)], short, len(members) > 1)

    def _members(self, sessions: Sequence[Lease]) -> list[str]:
        """Sessions that take part: those renewed at least once, so that a short-lived node causes no moves.

        A node that is alone counts at once.
        """
        alive = [row for row in sessions if row.status is Status.ASSIGNED and row.unreadable is None]
        nodes = {row.key: node_info(row) for row in alive}
        able = {
            session: node
            for session, node in nodes.items()
            if not node.draining and self._coordinator.pipeline in node.pipelines
        }
        if list(able) == [self._coordinator.session.id]:
            return list(able)
        return [session for session, node in able.items() if node.counter > 0]

    def _place_becomes_free(self, sessions: Sequence[Lease], members: Sequence[str], now: float) -> bool:
        """Whether the session of another member seems to be dead, and will end soon."""
        late = now - SILENT * self._coordinator.session.timing.heartbeat
        others = {*members} - {self._coordinator.session.id}
        return any(node_info(row).last_heartbeat < late for row in sessions if row.key in others)


def sharing_of(coordinator: Coordinator, replicas: int, *, lives_long: bool) -> Sharing:
    """How a node gets its leases. Nodes of a run pull: a run ends, and shares no leases with the live pipeline."""
    return FairShare(coordinator, replicas) if lives_long and not coordinator.run else Pull(coordinator)


@dataclass(frozen=True, slots=True)
class SharePlan:
    """The claims and hand-offs of one node for a fair share."""

    quota: int
    """How many leases the node should hold."""
    claims: tuple[str, ...] = ()
    """Keys of the free leases that the node takes."""
    shed_to: tuple[str, ...] = ()
    """Sessions that should each get one of the node's leases; the node chooses which."""
    spare: bool = False
    """Whether the node has no share because enough others are there."""


def share(me: str, members: Sequence[str], owners: Sequence[str], free: Sequence[str], replicas: int = 0) -> SharePlan:
    """The plan of session `me` for a fair share, by Plan-Shed-Claim. Pure: all nodes compute it from the same snapshot.

    A node claims only what the plan gives it and hands off only what it owns, so that moves never compete. Every move
    goes from a node above its quota to a node below it: there are no cycles, no moves when all is balanced, and as few
    moves as the chosen quotas allow.

    `members` are the sessions that take part, `owners` names the owner of each lease that is held, by a member or not,
    and `free` has the keys of leases that can be taken now, in order of claim. With `replicas`, the share is that of
    this many nodes even while fewer are running, and sessions beyond them get none. So nothing moves while the session
    of a killed node counts beside that of its successor, which waits for exactly the leases of that session.
    """
    held = Counter(owners)
    places = replicas or len(members)
    base, extra = divmod(len(owners) + len(free), places)
    # The nodes that hold most get the larger quotas, so that less must move.
    by_holding = sorted(members, key=lambda member: (-held[member], _lot(member)))
    quota = dict.fromkeys(members, 0)
    quota |= {member: base + (rank < extra) for rank, member in enumerate(by_holding[:places])}
    in_turn = sorted(members, key=_lot)
    wanting = [member for member in in_turn for _ in range(quota[member] - held[member])]
    claims = tuple(key for key, member in zip(free, wanting, strict=False) if member == me)
    surplus = [member for member in in_turn for _ in range(held[member] - quota[member])]
    moves = zip(surplus, wanting[len(free) :], strict=False)
    targets = tuple(target for source, target in moves if source == me)
    return SharePlan(quota.get(me, 0), claims, targets, spare=me in by_holding[places:])


def _lot(member: str) -> bytes:
    """A sort key that is the same on every node, and arbitrary."""
    return hashlib.blake2b(member.encode(), digest_size=8).digest()
