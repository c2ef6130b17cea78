"""The contents of a file: its digest, its rows, and the offsets of its records if the format keeps them."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, BinaryIO

from holdfast.audit.documents import ManifestFile
from holdfast.audit.roots import Root
from holdfast.errors import HoldfastError

if TYPE_CHECKING:
    from holdfast.flow.format import Format

OFFSET = "offset"
CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class Contents:
    """The contents of a file."""

    sha256: str
    rows: int | None = None
    """None if the file was not decoded."""
    offsets: Any = None
    """numpy array of int64, one for each row, in the order of the file; None if the format keeps no offsets."""
    trouble: str | None = None
    """The reason why the file could not be decoded."""
    foreign: bool = False
    """Whether the file is not in the format of the current settings."""


def read_contents(
    root: Root, file: ManifestFile, at: str, chosen: Format, others: Sequence[Format] = ()
) -> Contents | None:
    """Read the file at the key `at`; None if it does not exist. It is decoded if its bytes match the manifest.

    `others` are tried if the file does not have the rows of its manifest in the chosen format.
    """
    data = root.open(at)
    if data is None:
        return None
    with data:
        sha256 = _digest(data)
        if sha256 != file.sha256:
            # Damaged bytes are not decoded: a reader may end the process, as that of ORC does.
            return Contents(sha256)
        if file.is_letter_records:
            return Contents(sha256, 0, _no_offsets())
        if file.is_letters:
            return _read(data, sha256, _letters)
        found = Contents(sha256, foreign=True)
        if is_named_for(file, chosen):
            found = _read(data, sha256, partial(_decoded, chosen))
        for other in others if found.rows != file.rows else ():
            decoded = _read(data, sha256, partial(_decoded, other))
            if decoded.rows == file.rows:
                return decoded
        return found


def is_named_for(file: ManifestFile, form: Format) -> bool:
    """Return whether the file's name has the format's extension."""
    return file.key.endswith(f".{form.extension}")


def _read(data: BinaryIO, sha256: str, decode: Callable[[BinaryIO, str], Contents]) -> Contents:
    data.seek(0)
    try:
        return decode(data, sha256)
    except (HoldfastError, OSError):
        raise  # the root failed, not the decoding
    except Exception as wrong:  # noqa: BLE001 - a reader may fail in any way on such bytes
        return Contents(sha256, trouble=str(wrong) if isinstance(wrong, ValueError) else repr(wrong))


def offsets_in(root: Root, file: ManifestFile, at: str, chosen: Format) -> Any:
    """Return the offsets of a file's rows as a numpy array; None if they are not kept or there is no file."""
    found = read_contents(root, file, at, chosen)
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


def _no_offsets() -> Any:
    import numpy as np

    return np.zeros(0, np.int64)


def _origin(line: bytes) -> int:
    """Return the item of the letter in this line. Raises `ValueError` if it is not a letter with its record."""
    letter = json.loads(line)
    try:
        item = int(letter["origin"]["item"])
    except (KeyError, TypeError) as wrong:
        raise ValueError(f"a dead letter has no origin: {wrong!r}") from wrong
    if letter.get("encoding") == "base64":
        base64.b64decode(letter["raw"], validate=True)
    return item


def _decoded(chosen: Format, data: BinaryIO, sha256: str) -> Contents:
    import numpy as np

    rows, parts, has_offsets = 0, [], True
    for batch in chosen.read(data):
        rows += batch.num_rows
        # A parsed column may be called offset too: it is Kafka's only if all columns of the format are there.
        has_offsets = has_offsets and OFFSET in chosen.keeps and chosen.keeps <= set(batch.schema.names)
        if has_offsets:
            parts.append(np.asarray(batch.column(OFFSET), np.int64))
    return Contents(sha256, rows, np.concatenate(parts) if has_offsets and parts else None)


def duplicates(offsets: Any) -> Iterator[int]:
    """Yield the values that occur more than once in an array."""
    import numpy as np

    values, times = np.unique(offsets, return_counts=True)
    yield from map(int, values[times > 1])
