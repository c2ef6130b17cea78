"""No two workers of a node handle a shard at once, no record is begun after the session, none is skipped."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from holdfast.functions import messages, slots
from holdfast.functions.slot_state import Shard, Slot, Worker
from holdfast.functions.slots import Slots
from tests.unit.functions.slots_simulation import Simulation, Violation

SEEDS = 60
SECONDS = 60.0


def simulate(seed: int) -> Simulation:
    simulation = Simulation(seed, static=seed % 2 == 0)
    simulation.run(SECONDS)
    return simulation


@pytest.mark.parametrize("seed", range(SEEDS))
def test_shards_are_handled_by_one_worker_at_a_time_in_order_and_without_gaps(seed: int) -> None:
    simulation = simulate(seed)
    assert simulation.begun > 50
    # Faults end before the simulation does: then everything goes on.
    assert all(committed > 0 for committed in simulation.committed.values())
    assert all(simulation.batches[batch] for batch in simulation.batches)
    if seed % 2 == 0:
        assert all(len(homes) == 1 for homes in simulation.homes.values())


def test_after_the_last_fault_every_shard_goes_on() -> None:
    simulation = Simulation(7)
    simulation.run(SECONDS)
    before = dict(simulation.handled)
    simulation.run(20.0)
    assert all(simulation.handled[key] > before[key] for key in before)


def _over_when_lost(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Worker, "is_over", lambda worker, now: worker.connection is None)


def _over_when_spark_says_so(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Worker, "is_over", lambda worker, now: worker.ended or now >= worker.until)


def _grants_without_overrun(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(slots, "CLOCK_RATE_BOUND", 0.0)
    beat = Slots._beat

    def shorter(self: Slots, worker: Worker, message: messages.Beat) -> None:
        beat(self, worker, message)
        worker.until -= self._rules.overrun

    patch.setattr(Slots, "_beat", shorter)


def _grants_of_fixed_length(patch: pytest.MonkeyPatch) -> None:
    def generous(self: Slots, worker: Worker, message: messages.Beat) -> None:
        worker.until = self._clock() + 6.0
        self._send(worker, messages.Grant(message.n, 5.0))

    patch.setattr(Slots, "_beat", generous)


def _revoked_shards_are_free_at_once(patch: pytest.MonkeyPatch) -> None:
    cancel = Slots.cancel

    def forget(self: Slots, ids: list[str]) -> None:
        for shard in self._known(ids):
            self._held.pop(shard.key, None)
        cancel(self, ids)

    def let_go(self: Slots, worker: Worker, shard: Shard) -> None:
        worker.shards.pop(shard.id, None)

    patch.setattr(Slots, "cancel", forget)
    patch.setattr(Slots, "_let_go", let_go)


def _the_next_worker_does_not_wait(patch: pytest.MonkeyPatch) -> None:
    settle = Slots._settle

    def impatient(self: Slots, slot: Slot) -> None:
        if slot.waiting is not None and slot.worker is not None:
            slot.worker.connection, slot.worker.until = None, 0.0
        settle(self, slot)

    patch.setattr(Slots, "_settle", impatient)


def _a_process_that_is_cut_off_counts_as_ended(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        Worker, "is_over", lambda worker, now: worker.connection is None and (worker.ended or now >= worker.until)
    )


MUTANTS: list[Callable[[pytest.MonkeyPatch], None]] = [
    _over_when_lost,
    _over_when_spark_says_so,
    _grants_without_overrun,
    _grants_of_fixed_length,
    _revoked_shards_are_free_at_once,
    _the_next_worker_does_not_wait,
    _a_process_that_is_cut_off_counts_as_ended,
]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__.strip("_"))
def test_the_simulation_notices_a_rule_that_is_broken(
    mutant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant(monkeypatch)
    with pytest.raises(Violation):
        _simulate_until_it_fails()


def _simulate_until_it_fails() -> None:
    for seed in range(100):
        simulate(seed)
