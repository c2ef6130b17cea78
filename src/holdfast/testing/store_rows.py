"""What a store must do with rows: add, get, find, swap, remove, count, snapshot. Part of `StoreBehaviour`."""

from __future__ import annotations

import itertools
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from holdfast.errors import RowTooLarge
from holdfast.leases.codec import encode_body
from holdfast.leases.lease import (
    UNFINISHED,
    Commit,
    Counts,
    History,
    Key,
    Lease,
    LetterWindow,
    Order,
    Ownership,
    Progress,
    Status,
)
from holdfast.leases.query import Query
from holdfast.leases.store import SMALLEST_BODY, Outcome, Swap
from holdfast.testing.rows import ODD_TEXTS, PIPELINE, assigned_row, make_row, touched
from holdfast.testing.store_setting import StoreSetting, restless_threads

OK, CONFLICT = Outcome.OK, Outcome.CONFLICT
SNAPSHOTS = 50
"""Number of snapshots that are taken while two rows change."""

FULL_ROW = Lease(
    "scan|über",
    "s3://bucket/Ärger?.gz",
    run="2026-01-01",
    group="table\n1",
    spec={"bucket": "b", "nested": {"list": [1, 2.5, None, True, "x"]}, "": ""},
    ownership=Ownership(Status.ASSIGNED, "host:7:ab", 1 << 40, 1 << 41, "write-7", 1_763_220_000.123456),
    order=Order(-5, 1_763_220_000_123_456, 250, -(1 << 62), 1 << 62, 0),
    progress=Progress(
        {"offset": 1 << 60}, ((5, 9), (12, 13)), {"after": "é😀"}, Counts(4, 3, 2, 1), LetterWindow(9, 2)
    ),
    commit=Commit(9, 3, "topic-id", "commit-9", {"files": [{"path": "a/b", "bytes": 12}]}, switched_at=4),
    history=History(2, 1, 7, "failed:\n'x'", "halted", 1.5, 2.5, 3.5, 4.5, 5.5),
    extra={"of_a_later_version": [1]},
)


class RowBehaviour(StoreSetting):
    """Rows are stored, found and replaced exactly."""

    # --- add and get -------------------------------------------------------------------------------------------

    def test_a_row_comes_back_exactly(self) -> None:
        assert self.store.add([FULL_ROW]) == [OK]
        assert self.store.get([FULL_ROW.id]) == [FULL_ROW]

    def test_add_leaves_existing_rows_untouched(self) -> None:
        first = make_row("a", spec={"n": 1})
        assert self.store.add([first]) == [OK]
        assert self.store.add([make_row("b"), make_row("a", spec={"n": 2}), make_row("c")]) == [OK, CONFLICT, OK]
        assert self.row("a") == first

    def test_of_two_rows_with_one_key_in_a_batch_the_first_is_added(self) -> None:
        assert self.store.add([make_row("a", spec={"n": 1}), make_row("a", spec={"n": 2})]) == [OK, CONFLICT]
        assert self.row("a").spec == {"n": 1}

    def test_get_answers_in_the_order_of_the_question(self) -> None:
        self.store.add([make_row("a"), make_row("b")])
        keys = [Key(PIPELINE, "", key) for key in ("b", "missing", "a", "b")]
        assert [row and row.key for row in self.store.get(keys)] == ["b", None, "a", "b"]

    def test_empty_batches_are_answered(self) -> None:
        assert self.store.add([]) == self.store.swap([]) == self.store.remove([]) == []
        assert self.store.get([]) == []

    def test_rows_share_nothing_with_the_caller(self) -> None:
        state: dict[str, Any] = {"seen": ["a"]}
        receipts: dict[str, Any] = {"files": [{"path": "a"}]}
        self.store.add([make_row("a", state=state, commit=Commit(receipts=receipts))])
        state["seen"].append("b")
        receipts["files"][0]["path"] = "b"
        answered = self.row("a")
        answered.progress.state["seen"].append("c")
        assert self.row("a").progress.state == {"seen": ["a"]}
        assert self.row("a").commit.receipts == {"files": [{"path": "a"}]}

    def test_another_handle_sees_the_rows(self) -> None:
        self.store.add([make_row("a")])
        assert [row.key for row in self.another_store().find(Query(PIPELINE))] == ["a"]

    def test_open_and_close_may_be_repeated(self) -> None:
        store = self.another_store()
        store.open()
        store.close()
        store.close()
        store.open()
        assert store.get([Key(PIPELINE, "", "a")]) == [None]

    # --- opaque text -------------------------------------------------------------------------------------------

    def test_odd_keys_are_kept_apart_and_given_back(self) -> None:
        rows = [make_row(key, spec={"key": key}) for key in ODD_TEXTS]
        assert self.store.add(rows) == [OK] * len(rows)
        assert self.store.get([row.id for row in rows]) == rows
        in_order = sorted(ODD_TEXTS, key=lambda key: key.encode())
        assert [row.key for row in self.store.find(Query(PIPELINE))] == in_order

    def test_odd_keys_are_swapped_and_removed_one_by_one(self) -> None:
        rows = [make_row(key) for key in ODD_TEXTS]
        self.store.add(rows)
        for number, row in enumerate(rows):
            assert self.store.swap([Swap(0, touched(row, f"w{number}"))]) == [OK]
        changed = self.store.get([row.id for row in rows])
        assert [row and row.ownership.write_id for row in changed] == [f"w{n}" for n in range(len(rows))]
        for number, current in enumerate(changed):
            assert current is not None
            assert self.store.remove([current]) == [OK]
            assert sum(self.store.count(PIPELINE).values()) == len(rows) - number - 1

    def test_odd_pipelines_runs_groups_and_owners_are_kept_apart(self) -> None:
        texts = [text for text in ODD_TEXTS if len(text) < 100]
        self.store.add([assigned_row("k", text, pipeline=text, run=text, group=text) for text in texts])
        for text in texts:
            (row,) = self.store.find(Query(text, text, owner=text, group=text))
            assert (row.pipeline, row.run, row.owner, row.group) == (text, text, text, text)
            assert self.store.count(text, text) == {Status.ASSIGNED: 1}

    def test_after_key_goes_byte_by_byte(self) -> None:
        self.store.add([make_row(key) for key in ODD_TEXTS])
        for key in ("", "A", "a", "a ", "é", "\U0010ffff"):
            found = {row.key for row in self.store.find(Query(PIPELINE, after_key=key))}
            assert found == {other for other in ODD_TEXTS if other.encode() > key.encode()}

    # --- size --------------------------------------------------------------------------------------------------

    def test_large_bodies_come_back_exactly(self) -> None:
        assert self.store.max_body_bytes >= SMALLEST_BODY
        text = "aé😀\n\u0001'" * 20_000
        large = make_row("a", state={"text": text[:60_000]}, position=list(range(10_000)))
        self.store.add([large])
        assert self.row("a") == large

    def test_a_body_up_to_the_limit_is_kept_and_can_be_worked_on(self) -> None:
        row = self.row_of_size(self.store.max_body_bytes)
        assert self.store.add([row]) == [OK]
        failed = replace(row, history=History(attempts=3, last_error="e" * 1000, halt_reason="h" * 1000))
        assert self.store.swap([Swap(0, touched(failed, "w" * 36))]) == [OK]
        assert self.row(row.key).spec == row.spec

    def test_a_larger_body_is_refused_and_nothing_is_written(self) -> None:
        small = make_row("small")
        self.store.add([small])
        large = self.row_of_size(self.store.max_body_bytes + 1)
        with pytest.raises(RowTooLarge, match="large"):
            self.store.add([make_row("b"), large, make_row("c")])
        assert [row.key for row in self.store.find(Query(PIPELINE))] == ["small"]
        grown = replace(small, spec=large.spec)
        self.store.add([make_row("other")])
        with pytest.raises(RowTooLarge):
            self.store.swap([Swap(0, touched(make_row("other"))), Swap(0, touched(grown))])
        assert self.store.get([small.id, make_row("other").id]) == [small, make_row("other")]

    def row_of_size(self, size: int) -> Lease:
        """A row whose progress takes that many bytes, multi-byte characters included."""
        empty = make_row("large", spec={"text": "é"})
        missing = size - len(encode_body(empty).encode())
        return make_row("large", spec={"text": "é" + "x" * missing})

    # --- find --------------------------------------------------------------------------------------------------

    def test_find_answers_all_rows_of_a_pipeline_in_order_of_key(self) -> None:
        self.store.add([make_row(key) for key in ("c", "a", "b")])
        self.store.add([make_row("x", pipeline="other"), make_row("y", run="1")])
        assert self.found(Query(PIPELINE)) == ["a", "b", "c"]
        assert self.found(Query(PIPELINE, "1")) == ["y"]
        assert self.found(Query(PIPELINE, None)) == ["a", "b", "c", "y"]
        assert self.found(Query("none")) == []

    def test_find_by_status(self) -> None:
        self.store.add([make_row(status.value, status=status) for status in Status])
        for status in Status:
            assert self.found(Query(PIPELINE, statuses=(status,))) == [status.value]
        both = Query(PIPELINE, statuses=(Status.FAILED, Status.CLOSED))
        assert self.found(both) == ["CLOSED", "FAILED"]

    def test_find_by_owner(self) -> None:
        self.store.add([make_row("free"), assigned_row("mine", "me"), assigned_row("yours", "you")])
        assert self.found(Query(PIPELINE, owner="me")) == ["mine"]
        assert self.found(Query(PIPELINE, without_owners=("me",))) == ["yours"]
        assert self.found(Query(PIPELINE, without_owners=("me", "you"))) == []
        assert self.found(Query(PIPELINE, without_owners=())) == ["mine", "yours"]

    def test_find_by_group(self) -> None:
        self.store.add([make_row("a", group="g"), make_row("b", group="G"), make_row("c")])
        assert self.found(Query(PIPELINE, group="g")) == ["a"]
        assert self.found(Query(PIPELINE, group="")) == ["c"]

    def test_find_by_due_time(self) -> None:
        now = self.store.now()
        self.store.add(
            [make_row("past", due_at=now - 9), make_row("ahead", due_at=now + 999), make_row("no", due_at=None)]
        )
        assert self.found(Query(PIPELINE, due=True)) == ["past"]
        assert self.found(Query(PIPELINE, not_due=True)) == ["ahead", "no"]

    def test_a_row_becomes_due_by_the_clock_of_the_store(self) -> None:
        self.store.add([make_row("soon", due_at=self.store.now() + 2 * self.tick)])
        assert self.found(Query(PIPELINE, due=True)) == []
        self.pass_time(3 * self.tick)
        assert self.found(Query(PIPELINE, due=True)) == ["soon"]

    def test_all_conditions_must_hold(self) -> None:
        self.store.add([assigned_row("a", "me", group="g"), assigned_row("b", "me"), make_row("c", group="g")])
        query = Query(PIPELINE, statuses=(Status.ASSIGNED,), owner="me", group="g", not_due=True)
        assert self.found(query) == ["a"]
        assert self.found(replace(query, after_key="a")) == []

    def test_pages_follow_each_other_by_after_key(self) -> None:
        keys = [f"{number:03d}" for number in range(25)]
        self.store.add([make_row(key, status=list(Status)[int(key) % 5]) for key in reversed(keys)])
        statuses = (Status.COMPLETED, Status.UNASSIGNED, Status.CLOSED)
        for query in (Query(PIPELINE, limit=7), Query(PIPELINE, statuses=statuses, limit=4)):
            pages, after = list[str](), None
            while page := self.found(replace(query, after_key=after)):
                assert len(page) <= (query.limit or 0)
                pages += page
                after = page[-1]
            wanted = query.statuses or tuple(Status)
            assert pages == [key for key in keys if list(Status)[int(key) % 5] in wanted]

    def test_due_rows_come_in_order_of_claim(self) -> None:
        now = self.store.now()
        self.store.add(
            [
                make_row("u2", priority=1, ordinal=9),
                make_row("u4", priority=0, ordinal=1),
                make_row("u1", priority=5, ordinal=7),
                make_row("u3b", priority=1, ordinal=10),
                make_row("u3a", priority=1, ordinal=10),
                make_row("c2", status=Status.CLOSED, due_at=now - 5),
                make_row("c1", status=Status.CLOSED, due_at=now - 6),
                assigned_row("a2", "x", due_at=now - 1),
                assigned_row("a1", "x", due_at=now - 2),
                assigned_row("later", "x", due_at=now + 999),
            ]
        )
        a, c, u = ["a1", "a2"], ["c1", "c2"], ["u1", "u2", "u3a", "u3b", "u4"]
        order = (Status.ASSIGNED, Status.CLOSED, Status.UNASSIGNED)
        assert self.found(Query(PIPELINE, statuses=order, due=True)) == a + c + u
        assert self.found(Query(PIPELINE, statuses=order[::-1], due=True)) == u + c + a
        assert self.found(Query(PIPELINE, statuses=order, due=True, limit=5)) == (a + c + u)[:5]

    def test_due_rows_of_any_status_come_in_order_of_claim_finished_ones_last(self) -> None:
        due_at = self.store.now() - 5
        self.store.add([make_row(status.value, status=status, due_at=due_at) for status in Status])
        query = Query(PIPELINE, due=True)
        assert self.found(query) == ["ASSIGNED", "CLOSED", "UNASSIGNED", "COMPLETED", "FAILED"]
        assert self.found(replace(query, limit=2)) == ["ASSIGNED", "CLOSED"]

    def test_rows_of_all_runs_come_by_key_and_then_by_run(self) -> None:
        due_at = self.store.now() - 5
        self.store.add([make_row(key, run=run, due_at=due_at) for run in ("2", "", "1") for key in ("b", "a")])
        wanted = [(key, run) for key in ("a", "b") for run in ("", "1", "2")]
        for query in (Query(PIPELINE, None), Query(PIPELINE, None, due=True)):
            assert [(row.key, row.run) for row in self.store.find(query)] == wanted
            assert [(row.key, row.run) for row in self.store.find(replace(query, limit=4))] == wanted[:4]

    # --- swap and remove ---------------------------------------------------------------------------------------

    def test_swap_replaces_a_row_of_that_version(self) -> None:
        row = make_row("a", version=4)
        self.store.add([row])
        wanted = replace(FULL_ROW, pipeline=PIPELINE, run="", key="a")
        assert self.store.swap([Swap(4, wanted)]) == [OK]
        assert self.row("a") == wanted

    def test_swap_of_another_version_changes_nothing(self) -> None:
        row = make_row("a", version=4)
        self.store.add([row])
        for version in (3, 5, 0):
            assert self.store.swap([Swap(version, touched(row))]) == [CONFLICT]
        assert self.row("a") == row

    def test_swap_of_a_missing_row_is_a_conflict_and_makes_none(self) -> None:
        assert self.store.swap([Swap(0, make_row("a"))]) == [CONFLICT]
        assert self.found(Query(PIPELINE)) == []

    def test_each_row_of_a_batch_is_swapped_for_itself(self) -> None:
        rows = [make_row(key, version=version) for key, version in (("a", 1), ("b", 2), ("c", 3))]
        self.store.add(rows)
        swaps = [Swap(1, touched(rows[0])), Swap(9, touched(rows[1])), Swap(3, touched(rows[2]))]
        assert self.store.swap(swaps) == [OK, CONFLICT, OK]
        assert [row.version for row in self.store.find(Query(PIPELINE))] == [2, 2, 4]

    def test_of_two_swaps_of_one_version_one_wins(self) -> None:
        row = make_row("a")
        self.store.add([row])
        assert self.store.swap([Swap(0, touched(row, "1")), Swap(0, touched(row, "2"))]) == [OK, CONFLICT]
        assert self.another_store().swap([Swap(0, touched(row, "3"))]) == [CONFLICT]
        assert self.row("a").ownership.write_id == "1"

    def test_a_swapped_row_is_found_by_its_new_fields_only(self) -> None:
        row = make_row("a", group="g")
        self.store.add([row])
        self.store.swap([Swap(0, touched(row, status=Status.ASSIGNED, owner="me", due_at=None))])
        assert self.found(Query(PIPELINE, statuses=(Status.UNASSIGNED,))) == []
        assert self.found(Query(PIPELINE, due=True)) == []
        assert self.found(Query(PIPELINE, statuses=(Status.ASSIGNED,), owner="me", group="g")) == ["a"]

    def test_remove_deletes_a_row_of_that_version(self) -> None:
        rows = [make_row(key, version=3) for key in "abc"]
        self.store.add(rows)
        assert self.store.remove([rows[0], touched(rows[1]), make_row("missing")]) == [OK, CONFLICT, OK]
        assert self.found(Query(PIPELINE)) == ["b", "c"]
        assert self.store.add([rows[0]]) == [OK]

    # --- count and snapshot ------------------------------------------------------------------------------------

    def test_count_by_status(self) -> None:
        self.store.add([make_row(f"u{n}") for n in range(3)])
        self.store.add([make_row("c", status=Status.COMPLETED), make_row("r", run="1")])
        assert self.store.count(PIPELINE) == {Status.UNASSIGNED: 3, Status.COMPLETED: 1}
        assert self.store.count(PIPELINE, "1") == {Status.UNASSIGNED: 1}
        assert self.store.count("none") == {}

    def test_counts_follow_every_change(self) -> None:
        row = make_row("a")
        self.store.add([row])
        done = touched(row, status=Status.COMPLETED, due_at=None)
        self.store.swap([Swap(0, done)])
        assert self.store.count(PIPELINE) == {Status.COMPLETED: 1}
        self.store.remove([done])
        assert self.store.count(PIPELINE) == {}

    def test_snapshot_has_all_sessions_and_the_unfinished_leases(self) -> None:
        self.store.add([make_row(status.value, status=status) for status in Status])
        nodes = [
            assigned_row("n1", "n1", pipeline="$nodes"),
            make_row("n2", pipeline="$nodes", status=Status.COMPLETED),
        ]
        self.store.add([*nodes, make_row("x", pipeline="other"), make_row("y", run="1")])
        seen = self.store.snapshot(PIPELINE, "$nodes")
        assert [row.key for row in seen.sessions] == ["n1", "n2"]
        assert [row.key for row in seen.leases] == ["ASSIGNED", "CLOSED", "UNASSIGNED"]
        assert [row.key for row in self.store.snapshot(PIPELINE, "$nodes", "1").leases] == ["y"]

    def test_snapshots_come_by_key_and_then_by_run(self) -> None:
        self.store.add([assigned_row(key, key, pipeline="$nodes", run=run) for run in ("1", "") for key in ("n", "m")])
        self.store.add([make_row(key, status=status) for key, status in zip("cab", UNFINISHED, strict=True)])
        seen = self.store.snapshot(PIPELINE, "$nodes")
        assert [(row.key, row.run) for row in seen.sessions] == [("m", ""), ("m", "1"), ("n", ""), ("n", "1")]
        assert [row.key for row in seen.leases] == ["a", "b", "c"]

    def test_a_snapshot_that_says_so_is_of_one_moment(self) -> None:
        if not self.store.snapshot(PIPELINE, "$nodes").consistent:
            return  # it does not say so
        session, lease = assigned_row("n", "n", pipeline="$nodes"), make_row("k")
        self.store.add([session, lease])
        writer, stop = self.another_store(), threading.Event()

        def write() -> None:
            # At every moment the session is as old as the lease, or one write ahead.
            for version in itertools.count():
                for row in (session, lease):
                    later = replace(row, ownership=replace(row.ownership, version=version + 1))
                    assert writer.swap([Swap(version, later)]) == [OK]
                if stop.is_set():
                    return

        with ThreadPoolExecutor(1) as pool, restless_threads():
            writing = pool.submit(write)
            try:
                snapshots = [self.store.snapshot(PIPELINE, "$nodes") for _ in range(SNAPSHOTS)]
            finally:
                stop.set()
            writing.result()
        ahead = {seen.sessions[0].version - seen.leases[0].version for seen in snapshots}
        assert ahead <= {0, 1}, f"sessions are {sorted(ahead)} writes ahead of leases: they are not of one moment"

    def found(self, query: Query) -> list[str]:
        """Keys of the rows that the store finds."""
        return [row.key for row in self.store.find(query)]
