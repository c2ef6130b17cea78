"""How many requests are under way: up by one a round, down by half."""

from __future__ import annotations

import threading

from holdfast.sinks.opensearch.bulk_sender import AdaptiveConcurrency


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_good_answers_add_one_a_round_up_to_the_most() -> None:
    limit = AdaptiveConcurrency(4, slow_after=10, clock=(clock := Clock()))
    assert limit.limit == 2
    for _ in range(2):
        limit.succeeded(clock())
    assert 2.8 < limit.limit < 3.0
    for _ in range(100):
        limit.succeeded(clock())
    assert limit.limit == 4


def test_rejections_and_slow_answers_halve_it_but_never_below_one() -> None:
    limit = AdaptiveConcurrency(8, slow_after=10, clock=(clock := Clock()))
    for _ in range(100):
        limit.succeeded(clock())
    limit.rejected(clock())
    assert limit.limit == 4
    began, clock.now = clock.now, clock.now + 11
    limit.succeeded(began)
    assert limit.limit == 2
    for _ in range(5):
        clock.now += 1
        limit.rejected(clock())
    assert limit.limit == 1


def test_requests_that_were_under_way_together_count_as_one_rejection() -> None:
    limit = AdaptiveConcurrency(8, slow_after=10, clock=(clock := Clock()))
    for _ in range(100):
        limit.succeeded(clock())
    began, clock.now = clock.now, clock.now + 1
    for _ in range(8):
        limit.rejected(began)
    assert limit.limit == 4


def test_whoever_asks_for_one_more_waits_until_one_is_given_back() -> None:
    limit = AdaptiveConcurrency(2, slow_after=10)
    limit.acquire()
    limit.acquire()
    taken = threading.Event()

    def take_one_more() -> None:
        limit.acquire()
        taken.set()

    waiting = threading.Thread(target=take_one_more)
    waiting.start()
    assert not taken.wait(0.05)
    limit.release()
    assert taken.wait(10)
    waiting.join()
