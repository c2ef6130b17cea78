"""What is in a file: its digest, its rows, and where the format keeps them the offsets of its records."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, BinaryIO

from holdfast.audit.place import Place
from holdfast.audit.witness import ToldFile
from holdfast.errors import HoldfastError

if TYPE_CHECKING:
    from holdfast.flow.format import Format

OFFSET = "offset"
CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class Contents:
    """What a file was found to hold."""

    sha256: str
    rows: int | None = None
    """None if it was not decoded."""
    offsets: Any = None
    """numpy array of int64, one for each row, in the order of the file; None if they cannot be told."""
    trouble: str | None = None
    """Why it could not be decoded."""
    foreign: bool = False
    """It is not in the format that the settings name today."""


def look_into(place: Place, file: ToldFile, at: str, chosen: Format, others: Sequence[Format] = ()) -> Contents | None:
    """Read the file, which is at the key `at`; None if it is not there.

    `others` are tried if by the chosen format it does not have the rows that its manifest says.
    """
    data = place.open(at)
    if data is None:
        return None
    with data:
        sha256 = _digest(data)
        if file.is_letters:
            return _read(data, sha256, _letters)
        found = Contents(sha256, foreign=True)
        if is_named_for(file, chosen):
            found = _read(data, sha256, partial(_decoded, chosen))
        for other in others if found.rows != file.rows else ():
            again = _read(data, sha256, partial(_decoded, other))
            if again.rows == file.rows:
                return again
        return found


def is_named_for(file: ToldFile, form: Format) -> bool:
    """Whether the file's name ends as the format's files do."""
    return file.key.endswith(f".{form.extension}")


def _read(data: BinaryIO, sha256: str, decode: Callable[[BinaryIO, str], Contents]) -> Contents:
    data.seek(0)
    try:
        return decode(data, sha256)
    except (HoldfastError, OSError):
        raise  # of the place, and not of the bytes
    except Exception as wrong:  # noqa: BLE001 - whatever a reader makes of such bytes, it could not read them
        return Contents(sha256, trouble=str(wrong) if isinstance(wrong, ValueError) else repr(wrong))


def offsets_in(place: Place, file: ToldFile, at: str, chosen: Format) -> Any:
    """The offsets of a file's rows as a numpy array; None if they cannot be told, or the file is not there."""
    found = look_into(place, file, at, chosen)
    return None if found is None else found.offsets


def _digest(data: BinaryIO) -> str:
    digest = hashlib.sha256()
    while chunk := data.read(CHUNK):
        digest.update(chunk)
    return digest.hexdigest()


def _letters(data: BinaryIO, sha256: str) -> Contents:
    import numpy as np

    items = np.fromiter((_origin(line) for line in data), np.int64)
    return Contents(sha256, len(items), items)


def _origin(line: bytes) -> int:
    try:
        return int(json.loads(line)["origin"]["item"])
    except (KeyError, TypeError) as wrong:
        raise ValueError(f"a dead letter does not tell its origin: {wrong!r}") from wrong


def _decoded(chosen: Format, data: BinaryIO, sha256: str) -> Contents:
    import numpy as np

    rows, parts, told = 0, [], True
    for batch in chosen.read(data):
        rows += batch.num_rows
        # A parsed column may be called offset, too: only with all that the format keeps it is Kafka's.
        told = told and OFFSET in chosen.keeps and chosen.keeps <= set(batch.schema.names)
        if told:
            parts.append(np.asarray(batch.column(OFFSET), np.int64))
    return Contents(sha256, rows, np.concatenate(parts) if told and parts else None)


def doubled(offsets: Any) -> Iterator[int]:
    """Values that an array has more than once."""
    import numpy as np

    values, times = np.unique(offsets, return_counts=True)
    yield from map(int, values[times > 1])
