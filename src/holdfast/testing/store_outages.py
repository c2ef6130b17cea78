"""What a store on a server must do when the server is down, hangs, or does not respond. Subclass it to test your own.

    class TestMyStoreWithoutItsServer(OutageBehaviour):
        commit = b"COMMIT"

        @pytest.fixture(autouse=True)
        def server(self) -> None:
            self.server_port = ...       # of a running server, on 127.0.0.1

        def make_store(self, port: int) -> Store:
            return MyStore("127.0.0.1", port, connect_timeout=1.0, request_timeout=1.0)

The tests put a proxy between the store and the server. It simulates failures of the network; the server itself only has
to run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from holdfast.errors import AnswerLost, StoreError, StoreUnavailable
from holdfast.leases.lease import Lease
from holdfast.leases.query import Query
from holdfast.leases.store import ClaimingStore, ClaimRequest, Outcome, Store, Swap
from holdfast.testing.proxy import CHUNK, TcpProxy
from holdfast.testing.rows import PIPELINE, make_row, touched

OK, UNKNOWN = Outcome.OK, Outcome.UNKNOWN
PATIENCE = 120.0
"""How long a server may take to recover, in seconds: the machine may be busy."""


class OutageBehaviour:
    """No write is lost and no outcome is guessed: a store reports only what is certain about a request."""

    server_port: int
    """Port of the running server on 127.0.0.1."""
    commit: bytes
    """Bytes that occur only in the request that commits a write; for HTTP, in its body."""
    hangs_up_after: float | None = 30.0
    """Seconds after which a call on a server that hangs must have failed; None if the store waits for longer."""

    _stores: list[Store]

    def make_store(self, port: int) -> Store:
        """A new handle, not yet opened, on the table of this test, with the server at 127.0.0.1 and this port.

        The table is empty when a test begins. Time-outs are short, a second or so.
        """
        raise NotImplementedError(
            f"{type(self).__name__} must define make_store(port): it returns a handle, not yet opened, on one table "
            "that is empty when a test begins, with the server at 127.0.0.1 and that port"
        )

    def make_store_with_wrong_password(self, port: int, password: str) -> Store:
        """Like `make_store`, with this wrong password."""
        pytest.skip("the subclass does not say how to log in with a wrong password")

    @pytest.fixture(autouse=True)
    def _stores_are_closed(self) -> Iterator[None]:
        self._stores = []
        yield
        for store in self._stores:
            store.close()

    @contextmanager
    def through_a_proxy(self) -> Iterator[tuple[Any, TcpProxy]]:
        """An open store, and the proxy between it and its server."""
        with TcpProxy(self.server_port) as proxy:
            store = self.make_store(proxy.port)
            self._stores.append(store)
            store.open()
            yield store, proxy
            store.close()

    def every_call(self, store: Store) -> list[Callable[[], Any]]:
        """Calls of all methods of the store."""
        row = make_row("a")
        calls: list[Callable[[], Any]] = [
            # Reads come first: they find out that idle connections have ended, of which a write could not be sure.
            lambda: store.get([row.id]),
            lambda: store.find(Query(PIPELINE)),
            lambda: store.snapshot(PIPELINE, "$nodes"),
            lambda: store.count(PIPELINE),
            lambda: store.add([row]),
            lambda: store.swap([Swap(0, row)]),
            lambda: store.remove([row]),
        ]
        if store.has_clock:
            calls.append(store.now)
        if isinstance(store, ClaimingStore):
            calls.append(lambda: store.claim(_request()))
        return calls

    # --- a server that goes and comes --------------------------------------------------------------------------

    def test_a_server_that_refuses_connections_is_unavailable_and_then_works_again(self) -> None:
        with self.through_a_proxy() as (store, proxy):
            store.add([make_row("a")])
            proxy.refuse()
            for call in self.every_call(store):
                with pytest.raises(StoreUnavailable, match=str(proxy.port)) as caught:
                    call()
                assert not isinstance(caught.value, AnswerLost), "nothing was sent, so that nothing can be applied"
            proxy.accept()
            assert [row.key for row in store.find(Query(PIPELINE))] == ["a"]
            assert store.swap([Swap(0, touched(make_row("a")))]) == [OK]

    def test_opening_without_a_server_is_unavailable(self) -> None:
        with TcpProxy(self.server_port) as proxy:
            proxy.refuse()
            store = self.make_store(proxy.port)
            with pytest.raises(StoreUnavailable, match=str(proxy.port)):
                store.open()
            proxy.accept()
            store.open()
            store.close()

    def test_connections_that_were_cut_while_idle_cost_no_more_than_a_retry(self) -> None:
        with self.through_a_proxy() as (store, proxy):
            store.add([make_row("a")])
            proxy.drop()
            self.eventually(lambda: [row.key for row in store.find(Query(PIPELINE))] == ["a"])

    def test_a_server_that_hangs_is_not_waited_for_for_ever(self) -> None:
        if self.hangs_up_after is None:
            return
        with self.through_a_proxy() as (store, proxy):
            store.add([make_row("a")])
            proxy.freeze()
            started = time.monotonic()
            with pytest.raises(StoreUnavailable):
                store.find(Query(PIPELINE))
            assert time.monotonic() - started < self.hangs_up_after
            proxy.thaw()
            self.eventually(lambda: [row.key for row in store.find(Query(PIPELINE))] == ["a"])

    # --- lost responses ----------------------------------------------------------------------------------------

    def test_a_read_without_a_response_is_never_an_empty_result(self) -> None:
        with self.through_a_proxy() as (store, proxy):
            store.add([make_row("a")])
            for _ in range(3):
                proxy.cut()
                try:
                    found = store.find(Query(PIPELINE))
                except StoreUnavailable:
                    continue
                assert [row.key for row in found] == ["a"]

    @pytest.mark.parametrize(("delivered", "withheld"), [(True, CHUNK), (True, 3), (False, 0)])
    def test_a_write_without_a_response_is_unknown_never_a_conflict(self, delivered: bool, withheld: int) -> None:
        row, changed = make_row("a"), touched(make_row("a"), "mine")
        writes: list[tuple[Callable[[Store], Sequence[Outcome]], Lease | None]] = [
            (lambda store: store.add([row]), row),
            (lambda store: store.swap([Swap(0, changed)]), changed),
            (lambda store: store.remove([changed]), None),
        ]
        with self.through_a_proxy() as (store, proxy):
            for write, wanted in writes:
                proxy.cut(self.commit, delivered=delivered, withheld=withheld)
                outcomes = write(store)
                assert proxy.is_cut, f"no request of the write holds {self.commit!r}"
                assert outcomes in ([UNKNOWN], [OK]), "the write may have been applied, and nobody knows"
                if delivered or outcomes == [OK]:
                    self.eventually(lambda wanted=wanted: store.get([row.id]) == [wanted])  # type: ignore[misc]
                else:
                    write(store)  # for the next one

    @pytest.mark.parametrize("delivered", [True, False])
    def test_a_claim_without_a_response_is_reported_and_found_afterwards(self, delivered: bool) -> None:
        with self.through_a_proxy() as (store, proxy):
            if not isinstance(store, ClaimingStore):
                return  # its claims are swaps
            store.add([make_row("a")])
            proxy.cut(self.commit, delivered=delivered)
            with pytest.raises(AnswerLost):
                store.claim(_request())
            self.eventually(lambda: len(store.find(Query(PIPELINE, owner="me"))) == (1 if delivered else 0))

    # --- who we are --------------------------------------------------------------------------------------------

    def test_a_wrong_password_is_reported_without_the_password(self) -> None:
        store = self.make_store_with_wrong_password(self.server_port, "wrong and secret")
        self._stores.append(store)
        with pytest.raises((StoreError, StoreUnavailable)) as caught:
            store.open()
        assert "secret" not in str(caught.value)

    def eventually(self, holds: Callable[[], bool]) -> None:
        """Wait until the condition holds; the server may still be working after a break. Ignores `StoreUnavailable`."""
        give_up_at = time.monotonic() + PATIENCE
        while True:
            try:
                if holds():
                    return
            except StoreUnavailable:
                pass
            assert time.monotonic() < give_up_at, f"this has not come true within {PATIENCE:.0f} seconds"
            time.sleep(0.02)


def _request() -> ClaimRequest:
    return ClaimRequest(PIPELINE, "me", "claim")
