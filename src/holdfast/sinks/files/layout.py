"""Final keys of files. Pure and picklable."""

from __future__ import annotations

import re
import string
from dataclasses import dataclass

from holdfast.flow.batch import Name
from holdfast.flow.names import OURS, folder_path, segment

DEFAULT_LAYOUT = "{topic}/{place}/{generation}_{partition}_{offset:020}.{ext}"
PRESETS = {"holdfast": DEFAULT_LAYOUT, "secor": DEFAULT_LAYOUT}
"""Secor names its files alike, offsets with 20 digits included."""
_REQUIRED = {"topic", "place", "generation", "partition", "offset", "ext"}


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
