"""Small objects of a task, fetched several at a time and before their turn: most of their time is waiting.

What is wrong with one of them is told when its turn comes.
"""

from __future__ import annotations

import io
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace

from holdfast.sources.objects.pieces import Piece
from holdfast.sources.objects.places import ObjectPlace, RandomBytes

SMALL = 1 << 20
"""Bytes up to which an object is fetched whole."""
AT_A_TIME = 8
AHEAD = 16


@dataclass(frozen=True)
class _ComingPlace:
    """An object whose bytes are on their way."""

    place: ObjectPlace
    coming: Future[bytes]
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
        return self.coming.result()

    @contextmanager
    def opened(self) -> Iterator[RandomBytes]:
        yield io.BytesIO(self.coming.result())


def fetched_ahead(pieces: Sequence[Piece]) -> Iterator[Piece]:
    """Each piece in its turn. That of a small object far away is being fetched when its turn comes."""
    if not any(map(_is_worth_it, pieces)):
        yield from pieces
        return
    pool, coming, left = ThreadPoolExecutor(AT_A_TIME, "holdfast-ahead"), deque[Piece](), iter(pieces)
    try:
        while True:
            while len(coming) < AHEAD and (piece := next(left, None)) is not None:
                coming.append(_sent_for(pool, piece) if _is_worth_it(piece) else piece)
            if not coming:
                return
            yield coming.popleft()
    finally:
        pool.shutdown(cancel_futures=True)


def _is_worth_it(piece: Piece) -> bool:
    return piece.place.is_far and piece.place.size <= SMALL


def _sent_for(pool: ThreadPoolExecutor, piece: Piece) -> Piece:
    return replace(piece, place=_ComingPlace(piece.place, pool.submit(piece.place.fetched)))
