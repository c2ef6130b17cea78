"""Hooks: commands and functions that are told of final places. They are the user's own, trusted code.

A hook is called at least once for each place, and again when a node died before it could note that it was called.
"""

from __future__ import annotations

import importlib
import json
import subprocess
from collections.abc import Callable, Mapping
from typing import Any

from holdfast.errors import UsageError
from holdfast.sinks.files.finalize_config import Hook
from holdfast.sinks.files.hive import statement

SHOWN = 500
Fact = Mapping[str, Any]
"""What a hook is told: pipeline, sink, topic, place, location, files, rows, bytes, late."""


class BuiltHook:
    """One hook, ready to be called. Raises `UsageError` when made for a function that is not there."""

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
        """Blocks until it is done. Raises whatever goes wrong."""
        sentence = self._statement(fact)
        if self._function is not None:
            self._function(dict(fact) if sentence is None else sentence)
        else:
            self._run(fact, sentence)

    def _statement(self, fact: Fact) -> str | None:
        hive = self._hook.hive
        if hive is None:
            return None
        location = fact["location"]
        if hive.location is not None:
            location = f"{hive.location.rstrip('/')}/{fact['folder']}"
        return statement(hive.table, fact["topic"], fact["place"], location, hive.columns)

    def _run(self, fact: Fact, sentence: str | None) -> None:
        fields = {name: str(fact[name]) for name in ("topic", "place", "location")} | {"statement": sentence or ""}
        told = json.dumps(dict(fact)) if sentence is None else sentence
        program = [_filled(word, fields) for word in self._hook.command or ()]
        done = subprocess.run(program, input=told.encode(), capture_output=True, timeout=self.timeout, check=False)
        if done.returncode:
            said = (done.stderr or done.stdout).decode(errors="replace").strip()[-SHOWN:]
            raise RuntimeError(f"{program[0]} ended with {done.returncode}: {said}")


def _filled(word: str, fields: Mapping[str, str]) -> str:
    # One at a time would fill in again what a value brings.
    pieces = word.split("{")
    filled = pieces[0]
    for piece in pieces[1:]:
        name, brace, rest = piece.partition("}")
        filled += fields[name] + rest if brace and name in fields else "{" + piece
    return filled


def _imported(place: str) -> Callable[[Any], Any]:
    module, _, name = place.partition(":")
    try:
        function = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise UsageError(f"the function {place} cannot be imported: {error}") from error
    if not callable(function):
        raise UsageError(f"{place} is no function")
    return function  # type: ignore[no-any-return]
