"""The account of slots, case by case. What must hold whatever happens is in `test_slots_simulation.py`."""

from __future__ import annotations

import pytest

from holdfast.flow.engine import Advanced, Failed, Report, Staged
from holdfast.functions import messages
from holdfast.functions.messages import Down
from holdfast.functions.slot_state import Action, HangUp, Kill, Launch, Send, Shard, SlotRules, home_of, worker_states
from holdfast.functions.slots import Slots
from holdfast.leases.lease import Counts


class Driver:
    """The account under a clock that is set by hand."""

    def __init__(self, slots: int, rules: SlotRules | None = None) -> None:
        self.now, self.usable = 100.0, 5.0
        self.slots = Slots(slots, lambda: self.now, lambda: self.usable, rules or SlotRules())
        self.slots.tick()
        self.actions()

    def actions(self) -> list[Action]:
        taken, self.slots.actions = self.slots.actions, []
        return taken

    def sent(self, connection: int) -> list[Down]:
        return [act.message for act in self.actions() if isinstance(act, Send) and act.connection == connection]

    def reports(self) -> list[Report]:
        taken, self.slots.reports = self.slots.reports, []
        return taken

    def hello(self, slot: int, attempt: int = 1, connection: int | None = None) -> int:
        number = slot + 10 * attempt if connection is None else connection
        self.slots.greeted(number, messages.Hello(slot, attempt))
        return number

    def submit(self, *numbers: int) -> None:
        self.slots.submit([Shard(f"b{number}", f"s{number}", number, 0) for number in numbers])

    def later(self, seconds: float) -> None:
        self.now += seconds
        self.slots.tick()


def assigned(sent: list[Down]) -> list[str]:
    return [message.shard for message in sent if isinstance(message, messages.Assign)]


def test_static_shards_go_to_the_slot_of_their_number_and_wait_for_it() -> None:
    driver = Driver(2, SlotRules(static=True))
    driver.submit(0, 1, 2, 3)
    assert assigned(driver.sent(driver.hello(0))) == ["s0", "s2"]
    driver.later(60.0)
    assert assigned(driver.sent(10)) == []
    assert assigned(driver.sent(driver.hello(1))) == ["s1", "s3"]
    assert home_of("s3", None) == home_of("s3", None)


def test_a_worker_that_comes_up_late_gets_its_share() -> None:
    driver = Driver(2)
    driver.submit(0, 1, 2, 3)
    first = driver.hello(0)
    assert assigned(driver.sent(first)) == ["s0", "s1"]
    driver.later(6.0)
    assert assigned(driver.sent(first)) == ["s2", "s3"]
    second = driver.hello(1)
    driver.later(0.1)
    (drain,) = (message for message in driver.sent(first) if isinstance(message, messages.Drain))
    driver.slots.received(first, messages.Drained(drain.id, 7))
    assert [message.position for message in driver.sent(second) if isinstance(message, messages.Assign)] == [7]
    # The node sees progress, and not the end of the batch.
    assert driver.reports() == [Advanced(drain.id, 7, (), Counts())]


def test_workers_are_counted_by_what_they_do() -> None:
    driver = Driver(3)
    assert worker_states(driver.slots.slots) == {"starting": 3}
    driver.hello(0)
    driver.hello(1)
    driver.submit(0)
    assert worker_states(driver.slots.slots) == {"busy": 1, "idle": 1, "starting": 1}
    (held,) = [slot.worker for slot in driver.slots.slots if slot.load]
    assert held is not None
    held.leaving = True
    assert worker_states(driver.slots.slots) == {"leaving": 1, "idle": 1, "starting": 1}
    held.connection = None
    assert worker_states(driver.slots.slots) == {"idle": 1, "starting": 2}


def test_a_node_waits_until_each_slot_has_a_worker_or_has_failed_to_start_one() -> None:
    one, both, failing = Driver(2), Driver(2), Driver(1)
    for driver in (one, both):
        driver.hello(0)
    both.hello(1)
    failing.slots.ended(0, 1, "the handler cannot be imported")
    assert [driver.slots.tried for driver in (one, both, failing)] == [False, True, True]


def test_a_drained_shard_is_staged_where_it_stopped() -> None:
    driver = Driver(1)
    worker = driver.hello(0)
    driver.submit(0)
    driver.slots.received(worker, messages.Progress("b0", 4, ((6, 7),), (4, 4, 0, 0)))
    assert driver.reports() == [Advanced("b0", 4, ((6, 7),), Counts(4, 4))]
    driver.slots.drain(["b0"], 2.0)
    driver.slots.received(worker, messages.Drained("b0", 5, ((6, 7),), (1, 1, 0, 0)))
    assert driver.reports() == [Staged("b0", 5, False, {}, Counts(1, 1), ((6, 7),))]


def test_a_worker_that_does_not_finish_in_time_is_ended_and_the_last_position_counts() -> None:
    driver = Driver(1)
    worker = driver.hello(0)
    driver.submit(0)
    driver.slots.received(worker, messages.Progress("b0", 4))
    driver.slots.drain(["b0"], 2.0)
    driver.actions(), driver.reports()
    driver.later(2.6)
    assert {type(action) for action in driver.actions()} == {Send, Kill}
    driver.slots.lost(worker, by_worker=True)
    driver.slots.ended(0, 1, "killed")
    assert driver.reports() == [Staged("b0", 4, False, {})]


def test_a_worker_whose_memory_grows_beyond_the_limit_is_drained_and_stopped() -> None:
    driver = Driver(1, SlotRules(max_rss=1000))
    worker = driver.hello(0)
    driver.submit(0)
    driver.actions()
    driver.slots.received(worker, messages.Beat(1, "", 1001))
    grant, drain = driver.sent(worker)
    assert isinstance(grant, messages.Grant)
    assert isinstance(drain, messages.Drain)
    driver.slots.received(worker, messages.Drained("b0", 9))
    assert [type(message) for message in driver.sent(worker)] == [messages.Stop]
    driver.slots.lost(worker, by_worker=True)
    driver.slots.ended(0, 1, "")
    driver.later(0.2)
    assert Launch(0, 2) in driver.actions()
    (assign,) = driver.sent(driver.hello(0, 2))
    assert isinstance(assign, messages.Assign)
    assert assign.position == 9


def test_the_next_worker_is_started_when_a_connection_is_closed_and_waits_until_that_process_has_ended() -> None:
    driver = Driver(1)
    worker = driver.hello(0)
    driver.submit(0)
    driver.slots.received(worker, messages.Beat(1, "", 0))
    driver.actions()
    driver.slots.lost(worker, by_worker=True)
    assert driver.actions() == [Launch(0, 2)]
    following = driver.hello(0, 2)
    assert assigned(driver.sent(following)) == []
    driver.slots.ended(0, 1, "killed")
    assert assigned(driver.sent(following)) == ["s0"]


def test_a_worker_that_closed_its_connection_and_does_not_end_is_killed_when_its_grant_is_over() -> None:
    driver = Driver(1)
    worker = driver.hello(0)
    driver.submit(0)
    driver.slots.received(worker, messages.Beat(1, "", 0))
    driver.slots.lost(worker, by_worker=True)
    driver.actions()
    following = driver.hello(0, 2)
    driver.later(7.0)
    actions = driver.actions()
    assert Kill(0, 1) in actions
    assert assigned([act.message for act in actions if isinstance(act, Send) and act.connection == following]) == ["s0"]


def test_a_job_that_was_replaced_before_it_ended_is_ended_at_close_too() -> None:
    driver = Driver(1)
    worker = driver.hello(0)
    driver.slots.received(worker, messages.Beat(1, "", 0))
    driver.slots.lost(worker, by_worker=True)
    driver.hello(0, 2)
    driver.slots.close(1.0)
    assert set(driver.slots.jobs) == {Kill(0, 1), Kill(0, 2)}
    driver.slots.ended(0, 1, "")
    assert driver.slots.jobs == [Kill(0, 2)]


def test_shards_wait_as_unavailable_while_no_worker_comes_up() -> None:
    driver = Driver(1)
    driver.submit(0)
    for attempt in range(1, 4):
        driver.slots.ended(0, attempt, "ModuleNotFoundError: hello")
        driver.later(10.0)
    (failed,) = driver.reports()
    assert isinstance(failed, Failed)
    assert failed.unavailable
    assert "ModuleNotFoundError" in failed.error


def test_a_stale_or_unknown_hello_is_refused() -> None:
    driver = Driver(1)
    driver.hello(0, attempt=7, connection=70)
    driver.hello(5, connection=71)
    assert driver.actions() == [HangUp(70), HangUp(71)]


@pytest.mark.parametrize("usable", [0.0, -3.0])
def test_no_grant_is_given_without_a_session(usable: float) -> None:
    driver = Driver(1)
    worker = driver.hello(0)
    driver.usable = usable
    driver.slots.received(worker, messages.Beat(1))
    assert driver.sent(worker) == []
