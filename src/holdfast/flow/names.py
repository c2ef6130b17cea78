"""Names in the bucket. Pure.

    <root>/<stream>/<partition names>/<generation>_<label>_<first item, 20 digits>.<ext>
    <root>/_holdfast/commits/<stream>/<label>/<sequence, 20 digits>.json
    <root>/_holdfast/staging/<stream>/<label>/<token, 20 digits>/<batch id>/<n>
    <root>/_holdfast/owner.json

Spark, Hive and Trino skip names that begin with `_`. Everything that comes from data is escaped, so that different
names stay different and none leaves its folder.
"""

from __future__ import annotations

import hashlib
import re

from holdfast.flow.batch import Name

OURS = "_holdfast"
OWNER_KEY = f"{OURS}/owner.json"
LONGEST_SEGMENT = 128
_PLAIN = re.compile(r"[A-Za-z0-9=-][A-Za-z0-9=._-]*")


def segment(text: str) -> str:
    """The text as one path segment; different texts give different segments."""
    if _PLAIN.fullmatch(text) and len(text) <= LONGEST_SEGMENT:
        return text
    escaped = "".join(_escape(char, first=i == 0) for i, char in enumerate(text)) or "%"
    if len(escaped) <= LONGEST_SEGMENT:
        return escaped
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]
    return f"{escaped[: LONGEST_SEGMENT - 35]}%~{digest}"


def _escape(char: str, *, first: bool) -> str:
    plain = char.isascii() and (char.isalnum() or char in "=-" or (char in "._" and not first))
    return char if plain else "".join(f"%{byte:02X}" for byte in char.encode("utf-8", "surrogatepass"))


def folder(name: Name) -> str:
    """Stream and label as a path."""
    return f"{segment(name.stream)}/{segment(name.label)}"


def file_key(name: Name, generation: int, first_item: int, extension: str, parts: tuple[str, ...] = ()) -> str:
    """The final name of a data file; `first_item` is the first item in the file."""
    path = [segment(name.stream), *(segment(part) for part in parts)]
    return "/".join([*path, f"{generation}_{segment(name.label)}_{first_item:020d}.{extension}"])


def dead_letter_key(name: Name, generation: int, first_item: int) -> str:
    """The file of a batch's dead letters: beside the data, hidden from readers of the data."""
    return f"{OURS}/deadletters/{file_key(name, generation, first_item, 'jsonl')}"


def manifest_key(name: Name, sequence: int) -> str:
    """The manifest of the commit with that sequence number."""
    return f"{OURS}/commits/{folder(name)}/{sequence:020d}.json"


def staging_folder(name: Name) -> str:
    """The folder of all files that were ever staged for the partition."""
    return f"{OURS}/staging/{folder(name)}/"


def staging_key(name: Name, token: int, batch_id: str, part: str) -> str:
    """A key that is unique to the attempt: it contains token, batch id and part."""
    return f"{staging_folder(name)}{token:020d}/{batch_id}/{part}"


def staged_token(name: Name, key: str) -> int:
    """The token under which a staged object was written."""
    return int(key.removeprefix(staging_folder(name)).split("/", 1)[0])
