"""The outage suite on a toy server: the right mapping of errors passes, and each wrong one is found out."""

from __future__ import annotations

import pickle
import socket
import socketserver
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from holdfast.errors import AnswerLost, StoreUnavailable
from holdfast.leases.store import ClaimRequest, Outcome
from holdfast.stores.memory import MemoryStore
from holdfast.testing import OutageBehaviour

WRITES = ("add", "swap", "remove", "claim")


class ToyServer(socketserver.ThreadingTCPServer):
    """A memory store behind a socket: one pickled request for each connection."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self) -> None:
        self.table = MemoryStore()
        super().__init__(("127.0.0.1", 0), ToyRequest)


class ToyRequest(socketserver.StreamRequestHandler):
    server: ToyServer

    def handle(self) -> None:
        verb, arguments = pickle.load(self.rfile)  # noqa: S301 - our own bytes
        pickle.dump(getattr(self.server.table, verb)(*arguments), self.wfile)


class ToyStore(MemoryStore):
    """A store that sends its calls to a `ToyServer`."""

    def __init__(self, port: int) -> None:
        super().__init__()
        self._port = port

    def open(self) -> None:
        self._call("now")

    def _call(self, verb: str, *arguments: Any) -> Any:
        try:
            line = socket.create_connection(("127.0.0.1", self._port), timeout=0.5)
        except OSError as error:
            raise self.not_sent(f"127.0.0.1:{self._port}: {error}") from error
        with line:
            try:
                line.sendall(pickle.dumps((verb, arguments)))
                return pickle.load(line.makefile("rb"))  # noqa: S301 - our own bytes
            except (OSError, EOFError, pickle.UnpicklingError) as error:
                return self.no_response(verb, arguments, f"127.0.0.1:{self._port}: {error}")

    def not_sent(self, message: str) -> Exception:
        return StoreUnavailable(message)

    def no_response(self, verb: str, arguments: tuple[Any, ...], message: str) -> Any:
        if verb not in WRITES:
            raise StoreUnavailable(message)
        if verb == "claim":
            raise AnswerLost(message)
        return [Outcome.UNKNOWN] * len(arguments[0])

    def now(self) -> Any:
        return self._call("now")

    def add(self, leases: Any) -> Any:
        return self._call("add", leases)

    def get(self, keys: Any) -> Any:
        return self._call("get", keys)

    def find(self, query: Any) -> Any:
        return self._call("find", query)

    def snapshot(self, pipeline: str, sessions: str, run: str = "") -> Any:
        return self._call("snapshot", pipeline, sessions, run)

    def swap(self, swaps: Any) -> Any:
        return self._call("swap", swaps)

    def remove(self, leases: Any) -> Any:
        return self._call("remove", leases)

    def count(self, pipeline: str, run: str = "") -> Any:
        return self._call("count", pipeline, run)

    def claim(self, request: ClaimRequest) -> Any:
        return self._call("claim", request)


class Conflicting(ToyStore):
    """A lost response counts as a conflict."""

    def no_response(self, verb: str, arguments: tuple[Any, ...], message: str) -> Any:
        lost = super().no_response(verb, arguments, message)
        return [Outcome.CONFLICT] * len(lost)


class Emptying(ToyStore):
    """A read without a response is an empty result."""

    def no_response(self, verb: str, arguments: tuple[Any, ...], message: str) -> Any:
        return [] if verb == "find" else super().no_response(verb, arguments, message)


class Doubting(ToyStore):
    """A refused connection counts as a lost response."""

    def not_sent(self, message: str) -> Exception:
        return AnswerLost(message)


class Silent(ToyStore):
    """A claim without a response has claimed nothing."""

    def no_response(self, verb: str, arguments: tuple[Any, ...], message: str) -> Any:
        return [] if verb == "claim" else super().no_response(verb, arguments, message)


@pytest.fixture
def server() -> Iterator[ToyServer]:
    with ToyServer() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


class ToyOutages(OutageBehaviour):
    store: type[ToyStore] = ToyStore
    commit = b"holdfast.leases"
    hangs_up_after = 3.0

    @pytest.fixture(autouse=True)
    def one_table(self, server: ToyServer) -> None:
        self.server_port = server.server_address[1]

    def make_store(self, port: int) -> ToyStore:
        return self.store(port)


class TestToyStore(ToyOutages):
    """The right one."""


WRONG: list[tuple[type[ToyStore], Callable[[ToyOutages], None]]] = [
    (Conflicting, lambda suite: suite.test_a_write_without_a_response_is_unknown_never_a_conflict(True, 1 << 16)),
    (Emptying, ToyOutages.test_a_read_without_a_response_is_never_an_empty_result),
    (Doubting, ToyOutages.test_a_server_that_refuses_connections_is_unavailable_and_then_works_again),
    (Silent, lambda suite: suite.test_a_claim_without_a_response_is_reported_and_found_afterwards(True)),
]


@pytest.mark.parametrize(("store", "check"), WRONG, ids=[store.__name__ for store, _ in WRONG])
def test_a_wrong_mapping_is_found_out(
    server: ToyServer, store: type[ToyStore], check: Callable[[ToyOutages], None]
) -> None:
    suite = ToyOutages()
    suite.store, suite.server_port, suite._stores = store, server.server_address[1], []
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        check(suite)
