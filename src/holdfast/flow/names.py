"""Names in the bucket: keys of manifests, staged files and dead letters, and the layout of data files. Pure.

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
import string
from dataclasses import dataclass

from holdfast.flow.batch import Name

OURS = "_holdfast"
OWNER_KEY = f"{OURS}/owner.json"
LONGEST_SEGMENT = 128
SHORTER_SEGMENTS = (LONGEST_SEGMENT, 96, 80, 64, 48, 40)
LONGEST_PATH = 600
"""Bytes of an output folder in a key. With root, topic and file name a key has less than the 1,024 bytes of S3."""
LONGEST_FOLDER = 4096
"""Bytes of an output folder as the record names it. Receipt and manifest hold all of them."""
_HASH_BYTES = 34
_PLAIN = re.compile(r"[A-Za-z0-9=-][A-Za-z0-9=._-]*")
DEFAULT_LAYOUT = "{topic}/{place}/{generation}_{partition}_{offset:020}.{ext}"
PRESETS = {"holdfast": DEFAULT_LAYOUT, "secor": DEFAULT_LAYOUT}
"""Secor names its files alike, offsets with 20 digits included."""
_REQUIRED = {"topic", "place", "generation", "partition", "offset", "ext"}


def segment(text: str, longest: int = LONGEST_SEGMENT) -> str:
    """The text as one path segment of at most `longest` bytes; different texts give different segments."""
    if len(text) <= longest and _PLAIN.fullmatch(text):
        return text
    escaped = "".join(_escape(char, first=i == 0) for i, char in enumerate(text[: longest + 1])) or "%"
    if len(escaped) <= longest:
        return escaped
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]
    return f"{escaped[: longest - _HASH_BYTES - 1]}%~{digest}"


def folder_path(output_folder: str) -> str:
    """The output folder as a path of at most `LONGEST_PATH` bytes, if `folder_refusal` does not refuse it.

    Long values are shortened to their beginning and a hash, so that different folders stay different.
    """
    parts, path = output_folder.split("/"), ""
    for longest in SHORTER_SEGMENTS:
        path = "/".join(segment(part, longest) for part in parts)
        if len(path) <= LONGEST_PATH:
            break
    return path


def folder_refusal(output_folder: str) -> str | None:
    """Why no folder can have that name; None if one can. Depends on the name alone."""
    if len(output_folder) <= LONGEST_PATH // 3 and output_folder.isascii():
        return None
    if (size := len(output_folder.encode("utf-8", "surrogatepass"))) > LONGEST_FOLDER:
        return f"its partition names have {size} bytes, and a folder may have {LONGEST_FOLDER}"
    if len(folder_path(output_folder)) > LONGEST_PATH:
        return f"it has {output_folder.count('/') + 1} partition names, which are too many for one path"
    return None


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


def letter_records_key(name: Name, generation: int, first_item: int) -> str:
    """The file with the large records of a dead-letter file, whose letters name their parts of it."""
    return f"{OURS}/deadletter-records/{file_key(name, generation, first_item, 'jsonl')}"


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


@dataclass(frozen=True)
class Layout:
    """Makes final keys from a template. What comes from data is escaped, so that different files get different keys."""

    template: str = DEFAULT_LAYOUT

    def key(self, name: Name, generation: int, first_item: int, extension: str, output_folder: str = "") -> str:
        """The key of a file whose first item is `first_item`."""
        filled = self.template.format(
            topic=segment(name.stream),
            place=folder_path(output_folder) if output_folder else "",
            generation=generation,
            partition=segment(name.label),
            offset=first_item,
            ext=extension,
        )
        return re.sub("/{2,}", "/", filled).strip("/")

    def folder(self, topic: str, output_folder: str) -> str:
        """The path of an output folder below the root. Raises `ValueError` if its files are not in one folder."""
        above: list[str] = []
        for part in self.template.split("/"):
            fields = {field for _, field, _, _ in string.Formatter().parse(part) if field is not None}
            if fields - {"topic", "place"}:
                break
            above.append(part)
        joined = "/".join(above)
        if not {"{topic}", "{place}"} <= set(re.findall(r"\{[a-z]+\}", joined)):
            raise ValueError("finalize needs a layout that begins with folders of {topic} and {place}")
        return joined.format(topic=segment(topic), place=folder_path(output_folder) if output_folder else "")


def check_layout(text: str) -> str:
    """The text as a template, or the preset of that name. Raises `ValueError` if two files could get the same key."""
    template = PRESETS.get(text, text)
    used = [field for _, field, _, _ in string.Formatter().parse(template) if field is not None]
    unknown = [field for field in used if field not in _REQUIRED]
    if unknown:
        raise ValueError(f"has the unknown field {{{unknown[0]}}}; there are {_list(_REQUIRED)}")
    if missing := _REQUIRED - set(used):
        raise ValueError(f"must have {_list(missing)}, or two files could get the same key")
    if template.startswith(("/", "_", ".")) or OURS in template:
        raise ValueError("must not begin with '/', '_' or '.', nor contain _holdfast")
    Layout(template).key(Name("topic", "0"), 1, 0, "txt", "dt=2026-01-01")
    return template


def _list(fields: set[str]) -> str:
    return ", ".join(f"{{{field}}}" for field in sorted(fields))
