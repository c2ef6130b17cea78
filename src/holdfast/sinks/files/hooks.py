"""Hooks: commands and functions that are called when an output folder is final. They are the user's trusted code.

A hook is called at least once for each output folder, and again if a node died before it recorded the call.
"""

from __future__ import annotations

import importlib
import json
import re
import subprocess
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from holdfast.errors import UsageError
from holdfast.sinks.files.config import Hook

SHOWN = 500
Fact = Mapping[str, Any]
"""The data of a hook: pipeline, sink, topic, place, folder, location, files, rows, bytes, late."""


class BuiltHook:
    """A hook, ready to be called. The constructor raises `UsageError` for a function that cannot be imported."""

    def __init__(self, hook: Hook) -> None:
        self._hook = hook
        self._function = None if hook.python is None else _imported(hook.python)

    @property
    def on_late(self) -> bool:
        return self._hook.on_late

    @property
    def timeout(self) -> float:
        return self._hook.timeout

    def call(self, fact: Fact) -> None:
        """Call the hook. Blocks until it has ended. Raises any error of the hook."""
        statement = self._statement(fact)
        if self._function is not None:
            self._function(dict(fact) if statement is None else statement)
        else:
            self._run(fact, statement)

    def _statement(self, fact: Fact) -> str | None:
        hive = self._hook.hive
        if hive is None:
            return None
        location = fact["location"]
        if hive.location is not None:
            location = f"{hive.location.rstrip('/')}/{fact['folder']}"
        return add_partition_statement(hive.table, fact["topic"], fact["place"], location, hive.columns)

    def _run(self, fact: Fact, statement: str | None) -> None:
        fields = {name: str(fact[name]) for name in ("topic", "place", "location")} | {"statement": statement or ""}
        given = json.dumps(dict(fact)) if statement is None else statement
        program = [_filled(word, fields) for word in self._hook.command or ()]
        done = subprocess.run(program, input=given.encode(), capture_output=True, timeout=self.timeout, check=False)
        if done.returncode:
            said = (done.stderr or done.stdout).decode(errors="replace").strip()[-SHOWN:]
            raise RuntimeError(f"{program[0]} ended with {done.returncode}: {said}")


def _filled(word: str, fields: Mapping[str, str]) -> str:
    # In one pass: a value may contain the name of another field in braces.
    pieces = word.split("{")
    filled = pieces[0]
    for piece in pieces[1:]:
        name, brace, rest = piece.partition("}")
        filled += fields[name] + rest if brace and name in fields else "{" + piece
    return filled


def _imported(path: str) -> Callable[[Any], Any]:
    module, _, name = path.partition(":")
    try:
        function = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise UsageError(f"the function {path} cannot be imported: {error}") from error
    if not callable(function):
        raise UsageError(f"{path} is not a function")
    return function  # type: ignore[no-any-return]


# --- Hive ------------------------------------------------------------------------------------------------------------


def add_partition_statement(
    table: str, topic: str, output_folder: str, location: str, columns: Sequence[str] = ()
) -> str:
    """`ALTER TABLE … ADD IF NOT EXISTS PARTITION (…) LOCATION '…'` for a final output folder. Pure.

    The partition columns are in the folder's names (`dt=2026-01-01`), or in `columns`, one for each name. Everything
    that comes from data is quoted. Raises `ValueError` when a name has no column.
    """
    pairs = [_pair(name, output_folder, columns, number) for number, name in enumerate(output_folder.split("/"))]
    spec = ", ".join(f"{_identifier(column)}={_text(value)}" for column, value in pairs)
    return f"ALTER TABLE {_table(table, topic)} ADD IF NOT EXISTS PARTITION ({spec}) LOCATION {_text(location)}"


def _pair(name: str, output_folder: str, columns: Sequence[str], number: int) -> tuple[str, str]:
    if columns:
        names = output_folder.count("/") + 1
        if len(columns) != names:
            raise ValueError(f"{output_folder} has {names} names, but there are {len(columns)} columns")
        return columns[number], name.partition("=")[2] or name
    column, equals, value = name.partition("=")
    if not (column and equals):
        raise ValueError(f"the name {name} of the output folder {output_folder} has no column; set `columns`")
    return column, value


def _table(table: str, topic: str) -> str:
    filled = table.replace("{topic}", re.sub(r"[^A-Za-z0-9_]", "_", topic))
    return ".".join(_identifier(part) for part in filled.split("."))


def _identifier(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _text(value: str) -> str:
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
