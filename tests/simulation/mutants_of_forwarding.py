"""Mutants of acks that go to the owner of a lease through its row."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from holdfast.flow import foreign_acks
from holdfast.flow.holdings import Holdings
from holdfast.leases.lease import Lease, Progress, joined
from tests.simulation.mutation import Put, mutant


@mutant("forwarded")
def a_commit_forgets_the_acks_of_other_nodes(put: Put) -> None:
    put(Progress, "forwarded_without", lambda _progress, _taken: ())


@mutant("forwarded")
def the_owner_does_not_look_at_acks_of_other_nodes(put: Put) -> None:
    put(Holdings, "acknowledge", lambda _holdings, _held, _row: None)


@mutant("forwarded")
def the_next_owner_does_not_look_at_acks_of_other_nodes(put: Put) -> None:
    put(Progress, "acknowledged", property(lambda progress: progress.acked))


@mutant("forwarded")
def an_ack_of_another_node_counts_without_the_owner(put: Put) -> None:
    def forward(row: Lease, offsets: Collection[int], now: float) -> Lease:
        acked = joined([*row.progress.acked, *((offset, offset + 1) for offset in offsets)])
        return replace(row, progress=replace(row.progress, acked=acked))

    put(foreign_acks, "forward", forward)
