"""Tiny objects of lines, decoded together as if they were one: a call for each of them would do next to nothing.

Only what is plain in every respect; an object that is not, and all that are in its company, are read one by one.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np

from holdfast.errors import BatchError, Unavailable
from holdfast.sources.objects.codecs.codec import Codec
from holdfast.sources.objects.codecs.lines import LineCodec
from holdfast.sources.objects.compressions import HEAD_BYTES, compression_of
from holdfast.sources.objects.lines import BYTE_ORDER_MARK, LongLine, split
from holdfast.sources.objects.pieces import Piece


@dataclass(frozen=True, slots=True)
class Together:
    """Records of several objects, object by object: which of these each is from, its item there, the data columns."""

    which: Any
    items: Any
    columns: Sequence[Any]


def read_together(pieces: Sequence[Piece], codec: Codec, compression: str) -> Together | None:
    """What these objects hold; None if they cannot be read together. Blocks until all their bytes are there."""
    if len(pieces) < 2 or not isinstance(codec, LineCodec) or not all(map(_is_whole, pieces)):
        return None
    bodies = _bodies(pieces)
    if bodies is None or not all(_is_plain(*both, compression) for both in zip(pieces, bodies, strict=True)):
        return None
    ended = [body if body.endswith(b"\n") or not body else body + b"\n" for body in bodies]
    found = list(split(io.BytesIO(b"".join(ended)), longest=codec.longest))
    if len(found) != 1 or isinstance(found[0], LongLine):
        return None
    try:
        items, columns = codec.decode(found[0])
    except ValueError:
        return None
    starts = np.array([0, *accumulate(map(len, ended))], np.int64)
    which = np.searchsorted(starts, items, side="right") - 1
    own = items - starts[which] + np.array([piece.base for piece in pieces], np.int64)[which]
    return Together(which, own, columns)


def _is_whole(piece: Piece) -> bool:
    return (piece.start, piece.end) == (0, piece.place.size)


def _bodies(pieces: Sequence[Piece]) -> list[bytes] | None:
    try:
        return [piece.place.fetched() for piece in pieces]
    except (BatchError, Unavailable):
        return None  # told when the object is read by itself


def _is_plain(piece: Piece, body: bytes, compression: str) -> bool:
    if body.startswith(BYTE_ORDER_MARK):
        return False
    return compression_of(piece.place.path, compression, lambda: body[:HEAD_BYTES]) == "none"
