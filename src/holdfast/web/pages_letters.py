"""Pages of dead letters: how many there are by reason, what some of them hold, and what a redrive would send."""

from __future__ import annotations

from dataclasses import asdict
from itertools import islice
from typing import Any

from holdfast.assemble import StoredPipeline
from holdfast.runs import redrive
from holdfast.runs.letter_counts import letter_rows, letter_time, letters_of
from holdfast.runs.letter_selection import Choice
from holdfast.web.dashboard import Dashboard
from holdfast.web.page import Data, Parameters
from holdfast.web.pages_fleet import head

_MOST_LETTERS = 20
_MOST_PARTITIONS = 50
_LONGEST_RECORD = 4000


def show_letters(dashboard: Dashboard, parameters: Parameters) -> Data:
    """Return numbers of dead letters by reason, and some letters if a pipeline is given. Raises `NotFound`.

    Reads all letters, in the sinks that keep them. If letters cannot be read, the reason stands in place of the
    numbers.
    """
    name, reason, key = (parameters.get(each, "") for each in ("pipeline", "reason", "key"))
    names = [name] if name else list(dashboard.settings.pipelines)
    if name:
        dashboard.identifier(name)
    groups = [_groups(dashboard, each, key) for each in names]
    letters = _letters(dashboard, name, Choice("", key or None, reason)) if name else []
    return {"head": head(dashboard, pipeline=name, reason=reason, key=key), "groups": groups, "letters": letters}


def show_redrive(dashboard: Dashboard, parameters: Parameters) -> Data:
    """Return what a redrive would send now: nothing is changed. Raises `NotFound`.

    If nothing can be sent, the reason stands in place of the numbers.
    """
    name, sink, reason, key = (parameters.get(each, "") for each in ("pipeline", "sink", "reason", "key"))
    dashboard.identifier(name)
    choice = Choice(sink, key or None, reason or None)
    try:
        found = redrive.look(StoredPipeline(dashboard.settings, dashboard.store, name), choice, detached=True).row()
        found |= {"shown": found["partitions"][:_MOST_PARTITIONS], "partitions": len(found["partitions"])}
        problem = None
    except Exception as error:  # noqa: BLE001 - whatever a sink raises is why nothing can be sent
        found, problem = {"number": None, "shown": [], "partitions": None, "refused": {}, "left": None}, str(error)
    return {
        "head": head(dashboard, pipeline=name, sink=sink, reason=reason, key=key),
        "preview": {**found, "problem": problem},
        "letters": _letters(dashboard, name, choice),
    }


def _groups(dashboard: Dashboard, pipeline: str, key: str) -> Data:
    try:
        rows, problem = letter_rows(dashboard.settings, pipeline, by_partition=bool(key)), None
    except Exception as error:  # noqa: BLE001 - a sink that cannot be reached must not hide the letters of others
        rows, problem = [], str(error)
    rows = [row for row in rows if row.get("partition", "") == key]
    waiting = sum(row["waiting"] for row in rows)
    return {"pipeline": pipeline, "rows": rows, "waiting": waiting, "problem": problem}


def _letters(dashboard: Dashboard, pipeline: str, choice: Choice) -> list[Data]:
    try:
        found = (
            (sink, letter)
            for sink, _, letter in letters_of(dashboard.settings, pipeline, choice.sink or None)
            if letter.redriven is None and choice.takes(letter)
        )
        return [_letter(sink, letter) for sink, letter in islice(found, _MOST_LETTERS)]
    except Exception:  # noqa: BLE001 - the region of the numbers says why
        return []


def _letter(sink: str, letter: Any) -> Data:
    fields = asdict(letter) | {"id": f"{letter.id.container}:{letter.id.number}", "at": letter_time(letter.at)}
    shown = {name: _shortened(value) for name, value in fields.items() if value is not None}
    return {"sink": sink, "cannot_be_sent": letter.refusal, **shown}


def _shortened(value: Any) -> Any:
    """JSON of a letter's field; a large record is cut, as it is shown and not sent."""
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    if isinstance(value, str):
        return value if len(value) <= _LONGEST_RECORD else f"{value[:_LONGEST_RECORD]}…"
    if isinstance(value, dict):
        return {str(name): _shortened(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_shortened(part) for part in value]
    return value
