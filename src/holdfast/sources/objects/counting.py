"""Records of a batch are counted while they are read: what is beyond its bound is left for the next batch."""

from __future__ import annotations

from collections import Counter

import numpy as np

from holdfast.sources.objects.codecs.codec import Portion
from holdfast.sources.objects.pieces import Piece


class Counting:
    """The batches of one task. A batch that has a bound is read by one task, in order."""

    def __init__(self) -> None:
        self._taken: Counter[str] = Counter()
        self._ended: set[str] = set()

    def has_ended(self, piece: Piece) -> bool:
        """Whether the batch was cut short before this piece."""
        return piece.batch in self._ended

    def ends_before(self, piece: Piece) -> bool:
        """Whether the batch is cut short here, where another of its objects would begin."""
        full = piece.whole_objects and piece.most is not None and self._taken[piece.batch] >= piece.most
        if full:
            self._ended.add(piece.batch)
        return full

    def admitted(self, piece: Piece, portion: Portion) -> tuple[Portion, int | None]:
        """What of the portion belongs to the piece, and the first item that is left if the batch is cut short there."""
        portion = _between(portion, piece.first, piece.until)
        cut = None if piece.most is None or piece.whole_objects else self._cut(piece, piece.most, portion)
        if cut is not None:
            self._ended.add(piece.batch)
            portion = _between(portion, 0, cut)
        self._taken[piece.batch] += len(portion.items) + len(portion.faults)
        return portion, cut

    def _cut(self, piece: Piece, most: int, portion: Portion) -> int | None:
        left = most - self._taken[piece.batch]
        if len(portion.items) + len(portion.faults) <= left:
            return None
        # Records that are faulty come beside the good ones of their portion, and not between them.
        items = sorted([*np.asarray(portion.items).tolist(), *(item for item, _ in portion.faults)])
        return int(items[left])


def _between(portion: Portion, first: int, until: int | None) -> Portion:
    """The records whose items are in [first, until)."""
    if not first and until is None:
        return portion
    items = np.asarray(portion.items)
    start = int(np.searchsorted(items, first))
    end = len(items) if until is None else int(np.searchsorted(items, until))
    length = max(0, end - start)
    return Portion(
        items[start : start + length],
        [column.slice(start, length) for column in portion.columns],
        [(item, fault) for item, fault in portion.faults if item >= first and (until is None or item < until)],
    )
