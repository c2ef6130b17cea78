"""Small objects of a task, fetched several at a time and before their turn: most of their time is waiting.

Tiny ones share a turn, because handing one over costs more than reading it. What is wrong with one of them is told when
it is read.
"""

from __future__ import annotations

import io
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace

from holdfast.errors import Unavailable
from holdfast.sources.objects.pieces import Piece
from holdfast.sources.objects.places import ObjectPlace, RandomBytes

SMALL = 1 << 20
"""Bytes up to which an object is fetched whole."""
TINY = 64 << 10
"""Bytes up to which objects are fetched by one thread one after the other."""
TOGETHER = 32
TURN_BYTES = 256 << 10
AT_A_TIME = 8
AHEAD = 16
"""Turns that are asked for before the first of them is needed."""


@dataclass(frozen=True)
class _ComingPlace:
    """An object whose bytes are on their way, with those of some others."""

    place: ObjectPlace
    coming: Future[list[bytes | Exception]]
    number: int
    is_far = True

    @property
    def path(self) -> str:
        return self.place.path

    @property
    def size(self) -> int:
        return self.place.size

    def check(self) -> None:
        self.place.check()

    def fetched(self) -> bytes:
        came = self.coming.result()[self.number]
        if isinstance(came, Exception):
            raise came
        return came

    @contextmanager
    def opened(self) -> Iterator[RandomBytes]:
        yield io.BytesIO(self.fetched())


def fetched_ahead(pieces: Sequence[Piece]) -> Iterator[list[Piece]]:
    """All pieces, in turns of one or more. Those of small objects far away are being fetched when their turn comes."""
    if not any(map(_is_worth_it, pieces)):
        yield from ([piece] for piece in pieces)
        return
    pool, coming, left = ThreadPoolExecutor(AT_A_TIME, "holdfast-ahead"), deque[list[Piece]](), _turns(pieces)
    try:
        while True:
            while len(coming) < AHEAD and (turn := next(left, None)) is not None:
                coming.append(_sent_for(pool, turn) if _is_worth_it(turn[0]) else turn)
            if not coming:
                return
            yield coming.popleft()
    finally:
        pool.shutdown(cancel_futures=True)


def _is_worth_it(piece: Piece) -> bool:
    return piece.place.is_far and piece.place.size <= SMALL


def _turns(pieces: Sequence[Piece]) -> Iterator[list[Piece]]:
    """Tiny objects that follow each other together, if there are enough of them for all threads; others alone."""
    most = max(1, min(TOGETHER, len(pieces) // (2 * AT_A_TIME)))
    turn, size = list[Piece](), 0
    for piece in pieces:
        is_tiny = piece.place.is_far and piece.place.size <= TINY
        if turn and not (is_tiny and len(turn) < most and size + piece.place.size <= TURN_BYTES):
            yield turn
            turn, size = [], 0
        turn.append(piece)
        # Nothing comes to one that is not tiny.
        size += piece.place.size if is_tiny else TURN_BYTES
    if turn:
        yield turn


def _sent_for(pool: ThreadPoolExecutor, turn: Sequence[Piece]) -> list[Piece]:
    coming = pool.submit(_fetched, [piece.place for piece in turn])
    return [replace(piece, place=_ComingPlace(piece.place, coming, number)) for number, piece in enumerate(turn)]


def _fetched(places: Sequence[ObjectPlace]) -> list[bytes | Exception]:
    """Of each its bytes, or what is wrong with it. After one that cannot be reached none is asked for."""
    came: list[bytes | Exception] = []
    for place in places:
        came.append(came[-1] if came and isinstance(came[-1], Unavailable) else _one_fetched(place))
    return came


def _one_fetched(place: ObjectPlace) -> bytes | Exception:
    try:
        return place.fetched()
    except Exception as error:  # noqa: BLE001 - told when it is read
        return error
