"""When a place is final: never while some partition could still bring a record of it in time."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.finalize.rules import PartitionView, Period, Rules, TopicView, decode, encode
from holdfast.flow.manifest import Manifest

HOUR = 3600.0
NOW = 1000 * HOUR
RULES = Rules(lateness=HOUR, idle_after=5 * HOUR)


def period(output_folder: str) -> Period | None:
    """Output folders are named by the number of their hour."""
    return (int(output_folder) * HOUR, (int(output_folder) + 1) * HOUR) if output_folder.isdecimal() else None


@dataclass
class Topic:
    """A topic whose partitions commit hours, as the finalizer sees it."""

    labels: tuple[str, ...] = ("0", "1")
    view: TopicView = field(default_factory=TopicView)

    def commit(
        self, label: str, *hours: int, start: int | None = None, now: float = NOW, **entry: Any
    ) -> dict[str, int]:
        """One commit with one row for each hour. Answers its late records."""
        partition = self.view.partitions.get(label)
        sequence, offset = (partition.sequence + 1, partition.through) if partition else (1, 0)
        offset = offset if start is None else start
        files = tuple(
            {"key": f"t/{hour}/f", "place": str(hour), "rows": 1, "size": 10, **entry} for hour in dict.fromkeys(hours)
        )
        manifest = Manifest(
            "c", "p", f"t|{label}", "t", label, sequence, 1, "", 1, {"offset": offset}, {"offset": offset + 10}, files
        )
        return self.view.absorb(manifest, period, now)

    def advance(self, now: float = NOW) -> list[str]:
        return self.view.advance(self.labels, period, RULES, now)


def test_a_place_is_final_when_all_partitions_have_passed_its_end_and_the_lateness() -> None:
    topic = Topic()
    topic.commit("0", 5)
    topic.commit("1", 5)
    assert topic.advance() == []
    topic.commit("0", 7)
    assert topic.advance() == []
    topic.commit("1", 6)
    assert topic.advance() == []
    topic.commit("1", 7)
    assert topic.advance() == ["5"]
    assert topic.advance() == []
    content = topic.view.due["5"]
    assert (content.files, content.rows, content.size, content.late) == (2, 2, 20, 0)


def test_within_a_period_a_partition_goes_on_with_the_clock_as_far_as_its_log_was_read() -> None:
    topic = Topic(("0",))
    topic.commit("0", 5, 6)
    partition = topic.view.partitions["0"]
    partition.look(10, quiet=False, now=NOW)  # everything is read
    assert topic.advance(NOW) == []
    partition.look(20, quiet=False, now=NOW + HOUR)  # more has come
    assert topic.advance(NOW + HOUR) == []
    partition.look(90, quiet=False, now=NOW + 2 * HOUR)  # and is not read yet
    assert topic.advance(NOW + 2 * HOUR) == []
    topic.commit("0", 6)
    partition.look(90, quiet=False, now=NOW + 3 * HOUR)  # all of the first hour of the period is read
    assert topic.advance(NOW + 3 * HOUR) == ["5"]


def test_no_period_is_final_by_the_clock_while_it_is_the_latest() -> None:
    topic = Topic(("0",))
    topic.commit("0", 5)
    topic.view.partitions["0"].look(10, quiet=False, now=NOW + 900 * HOUR)
    assert topic.advance(NOW + 900 * HOUR) == []
    assert topic.view.final == 5 * HOUR


def test_a_partition_that_never_had_a_record_holds_everything_open() -> None:
    topic = Topic()
    topic.commit("0", 5, 50)
    assert topic.advance() == []
    assert topic.view.final is None


def test_a_partition_that_is_quiet_for_long_holds_nothing_open() -> None:
    topic = Topic()
    topic.commit("0", 5, 50)
    topic.commit("1", 5)
    topic.view.partitions["1"].quiet_since = NOW - RULES.idle_after + 1
    assert topic.advance() == []
    assert topic.advance(NOW + 1) == ["5"]
    assert topic.view.final == 49 * HOUR  # as far as the other one is


def test_a_topic_that_is_quiet_as_a_whole_is_as_far_as_the_clock() -> None:
    topic = Topic(("0",))
    topic.commit("0", 5)
    topic.view.partitions["0"].quiet_since = 0.0
    assert topic.advance(now=11 * HOUR) == []
    assert topic.advance(now=12 * HOUR) == ["5"]


def test_an_empty_topic_has_nothing_final_so_that_old_records_may_come() -> None:
    topic = Topic(("0",))
    topic.commit("0")
    topic.view.partitions["0"].quiet_since = 0.0
    assert topic.advance() == []
    assert topic.view.final is None


def test_a_time_that_has_not_come_yet_says_nothing() -> None:
    topic = Topic(("0",))
    topic.commit("0", 5, 1001)
    assert topic.advance() == []


def test_records_of_a_final_place_are_late_and_the_place_is_due_again() -> None:
    topic = Topic(("0",))
    topic.commit("0", 5, 9)
    assert topic.advance() == ["5"]
    topic.view.due.clear()
    assert topic.commit("0", 5, 8, 6) == {"5": 1, "6": 1}
    assert topic.view.late == 2
    assert {folder: content.late for folder, content in topic.view.due.items()} == {"5": 1, "6": 1}


def test_what_is_written_again_is_not_late() -> None:
    topic = Topic(("0",))
    topic.commit("0", 5, 9)
    topic.advance()
    topic.view.due.clear()
    assert topic.commit("0", 5, start=3) == {}
    assert (topic.view.late, topic.view.due) == (0, {})


def test_late_records_that_were_set_aside_are_counted_and_make_nothing_due() -> None:
    topic = Topic(("0",))
    topic.commit("0", 5, 9)
    topic.advance()
    topic.view.due.clear()
    assert topic.commit("0", 5, key="_late/t/5/f", late={"5": 1}) == {"5": 1}
    assert topic.commit("0", 5, key="_holdfast/deadletters/t/f", place="", late={"5": 3}) == {"5": 3}
    assert (topic.view.late, topic.view.due, list(topic.view.open)) == (4, {}, ["9"])


def test_places_without_a_time_are_never_final() -> None:
    topic = Topic(("0",))
    topic.commit("0", 9)
    topic.commit("0", 5, place="dt=__invalid__")
    topic.commit("0", 5, place="")
    topic.advance()
    assert topic.view.open.keys() == {"9"}


def test_the_state_survives_its_row() -> None:
    topic = Topic()
    topic.commit("0", 5, 9)
    topic.commit("1", 5, 8)
    topic.advance()
    topic.view.partitions["0"].quiet_since = 3.0
    assert decode(encode({"t": topic.view})) == {"t": topic.view}
    assert decode(None) == {}


def test_the_state_of_ten_thousand_open_places_fits_into_a_row() -> None:
    topic = Topic(tuple(map(str, range(1000))))
    for label in topic.labels:
        topic.commit(label, *range(int(label) * 10, int(label) * 10 + 10))
    assert len(topic.view.open) == 10_000
    assert len(json.dumps(encode({"t": topic.view}))) < 1 << 19


LABELS = ("0", "1", "2")
STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(LABELS), st.lists(st.integers(0, 30), min_size=1, max_size=3)),
        st.tuples(st.sampled_from(LABELS), st.none()),
        st.tuples(st.just("clock"), st.lists(st.integers(1, 90), min_size=1, max_size=1)),
    ),
    max_size=40,
)


@settings(max_examples=300, deadline=None)
@given(STEPS)
def test_nothing_is_final_while_a_partition_could_bring_it_in_time(steps: list[tuple[str, list[int] | None]]) -> None:
    """The oracle knows what each partition has committed and when, and nothing of how it is kept.

    A step without hours lets the partition fall silent, as one does that has nothing to read. While the clock goes on,
    by minutes, everything that comes is read at once.
    """
    topic, now = Topic(LABELS), NOW
    reached: dict[str, int] = {}
    entered: dict[str, float] = {}
    silent: set[str] = set()
    final: set[int] = set()
    late, counted = 0, 0
    for label, hours in steps:
        if label == "clock":
            now += (hours or [0])[0] * 60
            for partition in topic.view.partitions.values():
                partition.look(partition.through, quiet=False, now=now)
            silent.clear()
        elif hours is None:
            silent.add(label)
            topic.view.partitions.setdefault(label, PartitionView()).quiet_since = 0.0
        else:
            silent.discard(label)
            late += sum(_is_late(hour, topic.view.final) for hour in set(hours))
            counted += sum(topic.commit(label, *hours, now=now).values())
            topic.view.partitions[label].quiet_since = None
            if max(hours) > reached.get(label, -1):
                reached[label], entered[label] = max(hours), now
        for folder in topic.advance(now):
            hour = int(folder)
            assert hour not in final
            final.add(hour)
            for other in set(LABELS) - silent:
                waited = now - entered[other] >= RULES.lateness and reached[other] > hour
                assert reached[other] >= hour + 2 or waited
    assert counted == late
    committed = {hour for label, hours in steps if label != "clock" for hour in hours or ()}
    assert {int(folder) for folder in topic.view.open} | {int(folder) for folder in topic.view.due} == committed


def _is_late(hour: int, final: float | None) -> bool:
    return final is not None and (hour + 1) * HOUR <= final


def test_folders_that_the_state_has_no_room_for_are_forgotten_those_with_the_fewest_rows_first() -> None:
    view = TopicView()

    def commit(sequence: int, rows: dict[str, int]) -> None:
        files = tuple({"key": f"t/{name}/f", "place": name, "rows": count, "size": 1} for name, count in rows.items())
        span = {"offset": sequence}, {"offset": sequence + 1}
        view.absorb(Manifest("c", "p", "t|0", "t", "0", sequence, 1, "", 1, *span, files), by_hour, NOW)

    def by_hour(name: str) -> Period | None:
        return period(name.split("/", maxsplit=1)[0])

    commit(1, {"5/busy": 99, "6": 1} | {f"5/{number:04}": 1 for number in range(2000)})
    before = view.tracked_bytes
    assert view.crowd_out(by_hour, before - 1000) > 1900
    assert view.tracked_bytes <= 1000
    assert {"5/busy", "6"} <= set(view.open)
    tracked = len(view.open)
    commit(2, {f"5/new{number}": 1 for number in range(100)} | {"5/busy": 1, "6/b": 1})
    assert len(view.open) == tracked + 1, "a folder that was forgotten does not come back with half of its figures"
    assert view.open["5/busy"].rows == 100
    assert sum(view.crowded.values()) > 2000
    assert decode(json.loads(json.dumps(encode({"t": view}))))["t"] == view
    commit(3, {"9": 1})
    view.advance(["0"], by_hour, RULES, NOW)
    assert view.crowded == {}
    assert {"5/busy", "6", "6/b"} <= set(view.due)


def test_records_for_ever_more_final_folders_do_not_fill_the_state() -> None:
    topic = Topic(("0",))
    topic.commit("0", 5000, now=5001 * HOUR)
    topic.view.final = 4000 * HOUR
    late = topic.commit("0", *range(3000), now=5001 * HOUR)
    assert sum(late.values()) == topic.view.late == 3000
    assert len(topic.view.due) == 1000


def test_a_state_of_a_version_without_this_bound_can_be_read() -> None:
    state = json.loads(json.dumps(encode({"t": TopicView(final=1.0)})))
    del state["topics"]["t"]["crowded"]
    assert decode(state) == {"t": TopicView(final=1.0)}
