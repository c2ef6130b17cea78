"""Random scripts against a store and the in-memory store, which is the model; both must return the same."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from holdfast.leases.lease import Commit, Counts, History, Key, Lease, Order, Ownership, Progress, Status
from holdfast.leases.query import Query
from holdfast.leases.store import ClaimingStore, ClaimRequest, Store, Swap
from holdfast.stores.memory import MemoryStore

PIPELINES = st.sampled_from(("p", "P", "p "))
RUNS = st.sampled_from(("", "1"))
KEYS = st.sampled_from(("", "a", "A", "a ", "b|c", "é", "%", "_", "\n", "😀"))
NAMES = st.sampled_from(("me", "you", "Me"))
GROUPS = st.sampled_from(("", "g"))
STATUSES = st.sampled_from(list(Status))
SPANS = st.sampled_from((-1000.0, -1.0, 0.0, 5.0, 1000.0))
"""Values of `due_at` in seconds from now; `pass_time` lets the middle ones become due."""
SMALL = st.integers(-2, 2)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 40), 1 << 40) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)
PROGRESS = st.builds(Progress, JSON, st.just(()) | st.just(((1, 3), (5, 6))), JSON, st.builds(Counts, SMALL))
COMMITS = st.builds(
    Commit,
    SMALL,
    SMALL,
    st.text(max_size=3),
    st.text(max_size=3),
    st.none() | st.dictionaries(st.text(max_size=3), JSON),
)
HISTORIES = st.builds(History, SMALL, SMALL, last_error=st.none() | st.text(max_size=5), created_at=st.none() | SMALL)


class StoreMachine(RuleBasedStateMachine):
    """A script of calls. Subclasses define `make_store` and `pass_time`."""

    def __init__(self) -> None:
        super().__init__()
        self.store = self.make_store()
        self.store.open()
        self.model = MemoryStore(now=self.store.now)

    def make_store(self) -> Store:
        """A store with an empty table, whose clock only `pass_time` moves."""
        raise NotImplementedError(
            f"{type(self).__name__} must define make_store(): it returns a store, not yet opened, with an empty table "
            "and a clock that stands still until pass_time() turns it"
        )

    def pass_time(self, seconds: float) -> None:
        """Move the store's clock, also backwards."""
        raise NotImplementedError(
            f"{type(self).__name__} must define pass_time(seconds): it turns the clock of the store, also backwards"
        )

    def teardown(self) -> None:
        """Called by Hypothesis at the end of a script."""
        self.store.close()

    @rule(data=st.data(), rows=st.lists(st.tuples(PIPELINES, RUNS, KEYS), max_size=4))
    def add(self, data: st.DataObject, rows: list[tuple[str, str, str]]) -> None:
        leases = [self._any_row(data, Key(*row), version=data.draw(SMALL)) for row in rows]
        self._alike(self.store.add(leases), self.model.add(leases))

    @rule(
        data=st.data(), keys=st.lists(st.tuples(PIPELINES, RUNS, KEYS), max_size=4), behind=st.sampled_from((0, 0, 1))
    )
    def swap(self, data: st.DataObject, keys: list[tuple[str, str, str]], behind: int) -> None:
        rows = self._rows() if data.draw(st.booleans()) else []
        chosen = [row.id for row in rows[:3]] + [Key(*key) for key in keys]
        swaps = [self._any_swap(data, key, behind) for key in chosen]
        self._alike(self.store.swap(swaps), self.model.swap(swaps))

    @rule(data=st.data(), behind=st.sampled_from((0, 0, 1)))
    def remove(self, data: st.DataObject, behind: int) -> None:
        rows = self._rows()
        start = data.draw(st.integers(0, len(rows)))
        leases = [
            replace(row, ownership=replace(row.ownership, version=row.version - behind)) for row in rows[start:][:2]
        ]
        leases.append(Lease("p", "missing"))
        self._alike(self.store.remove(leases), self.model.remove(leases))

    @precondition(lambda self: isinstance(self.store, ClaimingStore))
    @rule(
        request=st.builds(
            ClaimRequest,
            PIPELINES,
            NAMES,
            st.text(max_size=3),
            st.integers(0, 4),
            RUNS,
            st.booleans(),
            st.none() | st.just(3.0),
        )
    )
    def claim(self, request: ClaimRequest) -> None:
        assert isinstance(self.store, ClaimingStore)
        self._alike(self.store.claim(request), self.model.claim(request))

    @rule(
        query=st.builds(
            Query,
            PIPELINES,
            st.none() | RUNS,
            st.lists(STATUSES, unique=True, max_size=4).map(tuple),
            st.booleans(),
            st.none() | NAMES,
            st.none() | st.lists(NAMES, max_size=2).map(tuple),
            st.booleans(),
            st.none() | GROUPS,
            st.none() | KEYS,
            st.none() | st.integers(0, 5),
        )
    )
    def find(self, query: Query) -> None:
        self._alike(self.store.find(query), self.model.find(query))

    @rule(keys=st.lists(st.builds(Key, PIPELINES, RUNS, KEYS), max_size=5))
    def get(self, keys: list[Key]) -> None:
        self._alike(self.store.get(keys), self.model.get(keys))

    @rule(pipeline=PIPELINES, run=RUNS)
    def count(self, pipeline: str, run: str) -> None:
        self._alike(self.store.count(pipeline, run), self.model.count(pipeline, run))

    @rule(pipeline=PIPELINES, run=st.none() | RUNS)
    def outline(self, pipeline: str, run: str | None) -> None:
        self._alike(self.store.outline(pipeline, run), self.model.outline(pipeline, run))

    @rule(pipeline=PIPELINES, sessions=PIPELINES, run=RUNS)
    def snapshot(self, pipeline: str, sessions: str, run: str) -> None:
        ours, theirs = self.store.snapshot(pipeline, sessions, run), self.model.snapshot(pipeline, sessions, run)
        self._alike((ours.sessions, ours.leases), (theirs.sessions, theirs.leases))

    @rule(seconds=st.sampled_from((1.0, 4.0, 10.0, -3.0)))
    def time_passes(self, seconds: float) -> None:
        self.pass_time(seconds)

    def _alike(self, ours: Any, theirs: Any) -> None:
        assert ours == theirs

    def _rows(self) -> list[Lease]:
        """All rows, in reverse alphabetical order."""
        rows = [row for pipeline in ("p", "P", "p ") for row in self.model.find(Query(pipeline, None))]
        return sorted(rows, key=lambda row: row.key, reverse=True)

    def _any_swap(self, data: st.DataObject, key: Key, behind: int) -> Swap:
        (old,) = self.model.get([key])
        version = old.version if old is not None else 0
        return Swap(version - behind, self._any_row(data, key, version + 1))

    def _any_row(self, data: st.DataObject, key: Key, version: int) -> Lease:
        draw = data.draw
        due_in = draw(st.none() | SPANS)
        ownership = Ownership(
            draw(STATUSES),
            draw(st.none() | NAMES),
            draw(SMALL),
            version,
            draw(st.text(max_size=3)),
            None if due_in is None else self.store.now() + due_in,
        )
        order = Order(draw(SMALL), draw(SMALL), draw(SMALL), draw(st.none() | SMALL))
        spec = draw(st.dictionaries(st.text(max_size=3), JSON, max_size=2))
        parts = (ownership, order, draw(PROGRESS), draw(COMMITS), draw(HISTORIES))
        return Lease(key.pipeline, key.key, key.run, draw(GROUPS), spec, *parts)
