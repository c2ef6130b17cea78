"""Mutants of splits: what each of the three steps guards."""

from __future__ import annotations

from dataclasses import asdict, replace

from holdfast.flow import splitting
from holdfast.flow.holdings import Held
from holdfast.flow.runs import Runs
from holdfast.flow.splitting import Splitter
from holdfast.leases import split as splits
from holdfast.leases.lease import Lease, Partition
from holdfast.leases.split import Split
from tests.simulation.mutation import Put, mutant, mutant_of_test


@mutant("splits")
def the_next_owner_does_not_finish_a_split(put: Put) -> None:
    original = Splitter._finish

    def finish(self: Splitter, held: Held) -> None:
        if held.lease.token == _split_under.get(held.lease.key):
            original(self, held)

    def split(lease: Lease, made: Split, expected: Lease, now: float) -> Lease:
        _split_under[lease.key] = lease.token
        return original_split(lease, made, expected, now)

    _split_under: dict[str, int] = {}
    original_split = splits.split
    put(splits, "split", split)
    put(Splitter, "_finish", finish)


@mutant("splits")
def the_names_are_removed_before_the_rows_are_added(put: Put) -> None:
    def finish(self: Splitter, held: Held) -> None:
        children = splits.unfinished_split(held.lease)
        (result,) = self._coordinator.write([held.lease], splits.split_done)
        if isinstance(result, Lease):
            held.lease = result
        self._coordinator.create(children)

    put(Splitter, "_finish", finish)


@mutant("splits")
def the_rows_are_added_before_the_partition_is_shortened(put: Put) -> None:
    original = Splitter._made

    def made(self: Splitter, lease: Lease) -> Split | None:
        found = original(self, lease)
        if found is not None:
            shortened = splits.split(lease, found, lease, 0.0)
            self._coordinator.create(splits.unfinished_split(shortened))
        return found

    put(Splitter, "_made", made)


@mutant("splits")
def every_split_of_a_partition_gives_the_same_keys(put: Put) -> None:
    def named(lease: Lease, children: list[Partition], _number: int) -> list[object]:
        return [asdict(replace(child, key=f"{lease.key}/1")) for child in children]

    put(splits, "_named", named)


@mutant("splits")
def the_owner_keeps_what_it_has_given_away(put: Put) -> None:
    original = splits.split

    def split(lease: Lease, made: Split, expected: Lease, now: float) -> Lease:
        return replace(original(lease, made, expected, now), spec=lease.spec)

    put(splits, "split", split)


@mutant("splits")
def a_partition_is_split_while_its_batch_is_out(put: Put) -> None:
    put(Held, "at_rest", property(lambda held: not held.pending))
    put(splitting, "EAGER", 0.0)


@mutant_of_test("tests/unit/flow/test_splitting.py", "what is handed back to nobody is taken again, and is complete")
def a_node_that_is_alone_shares_with_nobody(put: Put) -> None:
    put(Splitter, "_is_alone", lambda self: False)


@mutant_of_test("tests/unit/flow/test_splitting.py", "without helpers all is complete as well, only later")
def a_node_does_not_see_the_others(put: Put) -> None:
    put(Splitter, "_is_alone", lambda self: True)


@mutant_of_test("tests/unit/flow/test_runs.py", "its world has splits and no runs")
def a_split_whose_partition_has_failed_is_never_finished(put: Put) -> None:
    put(Runs, "finish_splits", lambda self, run_id: False)
