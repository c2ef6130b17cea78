"""A file made from one of another system: its pipelines, and notes about what people must check."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from typing import Any

import yaml


@dataclass(slots=True)
class ConvertedFile:
    """The file so far. `file_name` is that of the original."""

    file_name: str
    pipelines: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    coordination: dict[str, Any] = field(default_factory=dict)

    def note(self, path: str, reason: str) -> None:
        self.notes.append(f"{path}: {reason}")

    def text(self) -> str:
        """Return the file as YAML, with the notes as comments at its top."""
        notes = "".join(f"#   {' '.join(note.split())}\n" for note in dict.fromkeys(self.notes))
        head = f"# Made from {self.file_name}.\n" + (f"# Please check:\n{notes}" if notes else "")
        settings = {"source_coordination": self.coordination} if self.coordination else {}
        return head + yaml.safe_dump(
            {**settings, "pipelines": self.pipelines}, sort_keys=False, allow_unicode=True, width=120
        )


class ForeignSettings:
    """Settings of the other system, taken one by one; what is left gets a note."""

    def __init__(self, made: ConvertedFile, path: str, given: Any) -> None:
        self.made = made
        self.path = path
        self._given = dict(given) if isinstance(given, Mapping) else {}

    def __iter__(self) -> Iterator[str]:
        return iter(self._given)

    def take(self, name: str, default: Any = None) -> Any:
        """Return a setting; a `${` in it is escaped, so that it is not read as a reference, and a time becomes text."""
        value = self._given.pop(name, None)
        return default if value is None else as_literal(value)

    def group(self, name: str) -> ForeignSettings:
        """Return a group of settings, empty if it is not given."""
        return ForeignSettings(self.made, f"{self.path}.{name}", self._given.pop(name, None))

    def groups(self, name: str) -> list[ForeignSettings]:
        """Return a list of groups; a single one counts as a list of one."""
        given = self._given.pop(name, None)
        entries = given if isinstance(given, list) else [] if given is None else [given]
        return [ForeignSettings(self.made, f"{self.path}.{name}[{n}]", entry) for n, entry in enumerate(entries)]

    def texts(self, name: str) -> list[str]:
        """Return a list of texts; a single one counts as a list of one."""
        given = self.take(name, [])
        return [str(text) for text in (given if isinstance(given, list) else [given])]

    def whole(self, name: str, default: int | None = None) -> int | None:
        """Return a whole number; if the setting is not one, the default, and a note."""
        given = self.take(name)
        if given is None or str(given).isdecimal():
            return default if given is None else int(given)
        self.note(name, f"not converted: {given!r} is not a whole number")
        return default

    def copy(self, names: Mapping[str, str]) -> dict[str, Any]:
        """Return those of these settings that are given, under their new names."""
        taken = {new: self.take(old) for old, new in names.items()}
        return {name: value for name, value in taken.items() if value is not None}

    def drop(self, *names: str) -> None:
        """Take settings that have no meaning in holdfast, so that they get no note."""
        for name in names:
            self._given.pop(name, None)

    def secret(self, name: str, variable: str) -> str | None:
        """Return a reference in place of a secret, which is never copied; None if there is no secret."""
        if not self._given.pop(name, None):
            return None
        self.note(name, f"put it into the environment, as {variable}")
        return f"${{env:{variable}}}"

    def note(self, name: str, reason: str) -> None:
        self.made.note(f"{self.path}.{name}" if self.path else name, reason)

    def rest(self, reason: str = "not converted") -> None:
        """Add a note about every setting that was not taken."""
        for name in self._given:
            self.note(str(name), reason)


def as_literal(value: Any) -> Any:
    """Return a value of another system's file, in which `${` does not begin a reference of holdfast."""
    if isinstance(value, str):
        return value.replace("${", "$${")
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, Mapping):
        return {str(name): as_literal(entry) for name, entry in value.items()}
    if isinstance(value, Sequence):
        return [as_literal(entry) for entry in value]
    return value
