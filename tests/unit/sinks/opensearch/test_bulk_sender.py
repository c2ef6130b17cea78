"""Sending: only what failed is sent again, and every document is decided or its batch hears of it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from holdfast.errors import BatchError, SinkUnavailable
from holdfast.flow.batch import Name
from holdfast.flow.staging import StagedBatch
from holdfast.sinks.opensearch import bulk_sender as sending
from holdfast.sinks.opensearch.bulk_body import Body, Entries, RecordNumbers
from holdfast.sinks.opensearch.bulk_request import BulkOutcome, Busy, ClusterAway, RequestRefused
from holdfast.sinks.opensearch.bulk_response import Verdicts
from holdfast.sinks.opensearch.bulk_sender import AdaptiveConcurrency, BulkSender
from holdfast.sinks.opensearch.documents import EntryBuilder
from holdfast.sinks.opensearch.templates import IndexName, Template

BATCH = StagedBatch("b1", "orders", "in|a", Name("in", "a"), 3, 1)
OTHER = StagedBatch("b2", "orders", "in|b", Name("in", "b"), 3, 1)
FORM = EntryBuilder(IndexName(Template("orders")))


@pytest.fixture(autouse=True)
def no_long_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending, "FIRST_PAUSE", 0.001)
    monkeypatch.setattr(sending, "LONGEST_PAUSE", 0.002)


class Server:
    """Returns the given responses, one for each request; then takes everything."""

    def __init__(self, *answers: BulkOutcome | Callable[[Body], BulkOutcome]) -> None:
        self._answers = list(answers)
        self.taken: list[list[int]] = []
        self._lock = threading.Lock()

    def post(self, body: Body) -> BulkOutcome:
        with self._lock:
            self.taken.append([int(item) for part in body.parts for item in part.items])
            answer = self._answers.pop(0) if self._answers else Verdicts()
        return answer(body) if callable(answer) else answer

    def close(self) -> None:
        """Nothing is open."""


def entries(*items: int, batch: StagedBatch = BATCH) -> Entries:
    rows = pa.RecordBatch.from_pydict({"value": [f'{{"item":{item}}}' for item in items]})
    ((made, _),) = FORM.entries(batch, RecordNumbers(), pa.array(items, pa.int64()), rows)
    return made


@pytest.fixture
def senders() -> Iterator[Callable[..., BulkSender]]:
    made: list[BulkSender] = []

    def build(server: Any, patience: float = 60.0, tell: Callable[[str], None] = lambda _: None) -> BulkSender:
        made.append(
            BulkSender(server, AdaptiveConcurrency(2, slow_after=60), threads=2, patience=patience, report_outage=tell)
        )
        return made[-1]

    yield build
    for sender in made:
        sender.close()


Build = Callable[..., BulkSender]


def test_only_what_failed_is_sent_again(senders: Build) -> None:
    server = Server(Verdicts(retry=[1, 3], reason="busy", busy=2))
    sender = senders(server)
    sender.send(Body([entries(10, 11), entries(20, 21, batch=OTHER)]))
    sender.wait("b1")
    sender.wait("b2")
    assert server.taken == [[10, 11, 20, 21], [11, 21]]
    tally = sender.tally()
    assert (tally.documents, tally.retried, tally.rejected, tally.requests) == (4, 2, 2, 2)
    assert sender.tally().documents == 0


def test_what_is_refused_is_told_to_its_own_batch_with_the_document(senders: Build) -> None:
    sender = senders(Server(Verdicts(refused=[(0, "bad"), (3, "worse")])))
    sender.send(Body([entries(10, 11), entries(20, 21, batch=OTHER)]))
    sender.wait("b1")
    sender.wait("b2")
    assert [(item, fault.reason, fault.raw) for item, fault in sender.refused("b1")] == [(10, "bad", '{"item":10}')]
    assert [(item, fault.reason) for item, fault in sender.refused("b2")] == [(21, "worse")]
    assert sender.refused("b1") == []
    assert sender.tally().documents == 2


def test_a_request_that_is_refused_as_a_whole_is_halved_down_to_the_culprit(senders: Build) -> None:
    def picky(body: Body) -> BulkOutcome:
        items = [int(item) for part in body.parts for item in part.items]
        return RequestRefused("413 too large") if 5 in items else Verdicts()

    server = Server(*[picky] * 20)
    sender = senders(server)
    sender.send(Body([entries(*range(8))]))
    sender.wait("b1")
    assert [(item, fault.reason) for item, fault in sender.refused("b1")] == [(5, "413 too large")]
    assert sender.tally().documents == 7
    assert sorted(item for taken in server.taken[1:] for item in taken if 5 not in taken) == [0, 1, 2, 3, 4, 6, 7]


def test_a_busy_server_gets_smaller_requests_and_fails_nothing(senders: Build) -> None:
    server = Server(*[Busy("429")] * 3)
    sender = senders(server)
    sender.send(Body([entries(*range(4))]))
    sender.wait("b1")
    assert server.taken[-2:] == [[0, 1], [2, 3]]
    assert (sender.tally().documents, sender.refused("b1")) == (4, [])


def test_a_document_over_which_the_server_fails_again_and_again_is_refused(senders: Build) -> None:
    server = Server(*[lambda body: Verdicts(broken=[(len(body) - 1, "500 oops")])] * 10)
    sender = senders(server)
    sender.send(Body([entries(1, 2)]))
    sender.wait("b1")
    assert [(item, fault.reason) for item, fault in sender.refused("b1")] == [(2, "500 oops")]
    assert len(server.taken) == sending.BROKEN_TRIES + 1


def test_tries_of_a_document_count_only_answers_about_itself(senders: Build) -> None:
    def broken(_body: Body) -> BulkOutcome:
        return Verdicts(broken=[(0, "500 oops")])

    before: list[BulkOutcome] = [ClusterAway("503"), Busy("429"), Verdicts(retry=[0, 1], reason="429", busy=2)]
    server = Server(*before * sending.BROKEN_TRIES, broken)
    sender = senders(server)
    sender.send(Body([entries(1, 2)]))
    sender.wait("b1")
    assert (sender.refused("b1"), sender.tally().documents) == ([], 2)


def test_trouble_is_told_while_it_lasts_and_not_only_when_patience_is_over(
    senders: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[str] = []
    over = threading.Event()

    def tell(reason: str) -> None:
        heard.append(reason)
        over.set()

    def hanging(_body: Body) -> BulkOutcome:
        assert over.wait(30)
        return Verdicts()

    monkeypatch.setattr(sending, "REPORT_AFTER", 0.05)

    def away(_body: Body) -> BulkOutcome:
        return Verdicts() if over.is_set() else ClusterAway("the cluster does not respond")

    for answer, reason in ((away, "the cluster does not respond"), (hanging, "no response for")):
        over.clear()
        heard.clear()
        sender = senders(Server(*[answer] * 10_000), tell=tell)
        sender.send(Body([entries(1)]))
        sender.wait("b1")
        assert reason in heard[0]


def test_a_server_that_makes_headway_is_no_trouble(senders: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending, "REPORT_AFTER", 60.0)
    heard: list[str] = []
    sender = senders(Server(*[ClusterAway("gone")] * 5), tell=heard.append)
    sender.send(Body([entries(1, 2)]))
    sender.wait("b1")
    assert heard == []


def test_a_server_that_comes_back_in_time_is_waited_for(senders: Build) -> None:
    sender = senders(Server(*[ClusterAway("gone")] * 5))
    sender.send(Body([entries(1, 2)]))
    sender.wait("b1")
    assert sender.tally().documents == 2


def test_when_patience_is_over_all_that_is_on_its_way_is_given_up(senders: Build) -> None:
    server = Server(*[ClusterAway("the cluster does not respond")] * 100)
    sender = senders(server, patience=0.0)
    sender.send(Body([entries(1)]))
    with pytest.raises(SinkUnavailable, match="does not respond"):
        sender.wait("b1")
    sender.send(Body([entries(2, batch=OTHER)]))
    with pytest.raises(SinkUnavailable):
        sender.wait("b2")
    assert len(server.taken) == 1


def test_headway_renews_patience(senders: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("holdfast.sinks.opensearch.bulk_sender.time.monotonic", lambda: now[0])

    def slowly(body: Body) -> BulkOutcome:
        now[0] += 20
        return Verdicts(retry=list(range(1, len(body))), reason="busy")

    sender = senders(Server(*[slowly] * 9), patience=30.0)
    sender.send(Body([entries(*range(9))]))
    sender.wait("b1")
    assert sender.tally().documents == 9


def test_a_letter_that_its_index_refuses_fails_the_batch(senders: Build) -> None:
    sender = senders(Server(Verdicts(refused=[(0, "no")])))
    sender.send(Body([entries(1)], letters="orders-deadletters"))
    with pytest.raises(BatchError, match="the index of dead letters refuses a letter: no"):
        sender.wait("b1")


def test_an_error_of_our_own_is_heard_of_by_every_batch_in_the_request(senders: Build) -> None:
    def broken(_body: Body) -> BulkOutcome:
        raise RuntimeError("a bug")

    sender = senders(Server(broken))
    sender.send(Body([entries(1), entries(2, batch=OTHER)]))
    for batch_id in ("b1", "b2"):
        with pytest.raises(RuntimeError, match="a bug"):
            sender.wait(batch_id)
