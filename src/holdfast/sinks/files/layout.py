"""How files are called. Pure and picklable."""

from __future__ import annotations

import re
import string
from dataclasses import dataclass

from holdfast.flow.batch import Name
from holdfast.flow.names import OURS, segment

DEFAULT_LAYOUT = "{topic}/{place}/{generation}_{partition}_{offset:020}.{ext}"
PRESETS = {"holdfast": DEFAULT_LAYOUT, "secor": "{topic}/{place}/{generation}_{partition}_{offset}.{ext}"}
_REQUIRED = {"topic", "place", "generation", "partition", "offset", "ext"}


@dataclass(frozen=True)
class Layout:
    """Final keys of files, made from a template. What comes from data is escaped, so that no two keys become one."""

    template: str = DEFAULT_LAYOUT

    def key(self, name: Name, generation: int, first_item: int, extension: str, place: str = "") -> str:
        """The key of a file; `first_item` is the first item in that very file."""
        filled = self.template.format(
            topic=segment(name.stream),
            place=_escaped(place),
            generation=generation,
            partition=segment(name.label),
            offset=first_item,
            ext=extension,
        )
        return re.sub("/{2,}", "/", filled).strip("/")

    def folder(self, topic: str, place: str) -> str:
        """The folder that has all files of a place, and of no other. Raises `ValueError` if there is none."""
        above: list[str] = []
        for part in self.template.split("/"):
            fields = {field for _, field, _, _ in string.Formatter().parse(part) if field is not None}
            if fields - {"topic", "place"}:
                break
            above.append(part)
        joined = "/".join(above)
        if not {"{topic}", "{place}"} <= set(re.findall(r"\{[a-z]+\}", joined)):
            raise ValueError("finalize needs a layout that begins with folders of {topic} and {place}")
        return joined.format(topic=segment(topic), place=_escaped(place))


def _escaped(place: str) -> str:
    return "/".join(segment(part) for part in place.split("/")) if place else ""


def check_layout(text: str) -> str:
    """The template that the text is or names. Raises `ValueError` where two files could get the same name."""
    template = PRESETS.get(text, text)
    used = [field for _, field, _, _ in string.Formatter().parse(template) if field is not None]
    unknown = [field for field in used if field not in _REQUIRED]
    if unknown:
        raise ValueError(f"has the unknown field {{{unknown[0]}}}; there are {_list(_REQUIRED)}")
    if missing := _REQUIRED - set(used):
        raise ValueError(f"must have {_list(missing)}, or two files could get one name")
    if template.startswith(("/", "_", ".")) or OURS in template:
        raise ValueError("must not begin with '/', '_' or '.', nor lie below _holdfast")
    Layout(template).key(Name("topic", "0"), 1, 0, "txt", "dt=2026-01-01")
    return template


def _list(fields: set[str]) -> str:
    return ", ".join(f"{{{field}}}" for field in sorted(fields))
