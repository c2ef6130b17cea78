"""`holdfast plugins`: what is installed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.cli import output
from holdfast.cli.options import AsJson
from holdfast.errors import UsageError

if TYPE_CHECKING:
    from holdfast.registry import Kind, Registry


def plugins(json: AsJson = False) -> None:
    """List the stores, sources, processors, sinks and formats that can be used in a file."""
    from holdfast.registry import KINDS, Registry

    registry = Registry.installed()
    rows = [_row(registry, kind, name) for kind in KINDS for name in registry.names(kind)]
    if json:
        output.say_json(rows)
    else:
        output.say_table(
            ("KIND", "NAME", "SUMMARY"), [(row["kind"], row["name"], row["summary"] or row["problem"]) for row in rows]
        )


def _row(registry: Registry, kind: Kind, name: str) -> dict[str, Any]:
    from holdfast.registry import singular

    row: dict[str, Any] = {"kind": singular(kind), "name": name, "summary": None, "problem": None}
    try:
        return {**row, "summary": registry.get(kind, name).summary}
    except UsageError as error:
        # One plugin that cannot be loaded does not hide the others.
        return {**row, "problem": str(error)}
