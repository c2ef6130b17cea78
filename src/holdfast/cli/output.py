"""All printing: data to stdout, everything else to stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import typer

from holdfast.errors import UsageError
from holdfast.observe.text import printable

UNLIMITED = 1_000_000
LINE_BREAKS = "\n\t"


def say(line: str) -> None:
    """Print a line of the result to stdout; control characters are shown as escapes."""
    typer.echo(printable(line))


def tell(text: str) -> None:
    """Print a message to stderr. Line breaks are kept: some messages quote the configuration file."""
    typer.echo(printable(text, keep=LINE_BREAKS), err=True)


def say_json(value: Any) -> None:
    """Print a JSON document to stdout."""
    typer.echo(json.dumps(value, indent=2))


def say_json_line(value: Any) -> None:
    """Print a JSON document as one line to stdout; it contains no control characters."""
    typer.echo(json.dumps(value))


def say_json_rows(rows: Iterable[Any]) -> None:
    """Print a JSON list to stdout, row by row. If an error ends the rows, the document is incomplete."""
    before = "[\n"
    for row in rows:
        typer.echo(before + json.dumps(row), nl=False)
        before = ",\n"
    typer.echo("[]" if before == "[\n" else "\n]")


def say_table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Print rows below headings. On a terminal long cells are folded; elsewhere each row is one line."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    on_terminal = sys.stdout.isatty()
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold", no_wrap=not on_terminal)
    for row in rows:
        table.add_row(*(Text(_cell(value)) for value in row))
    Console(file=sys.stdout, width=None if on_terminal else UNLIMITED).print(table)


def clear_screen() -> None:
    """Clear the terminal; if stdout is not a terminal, print an empty line instead."""
    typer.echo("\x1b[2J\x1b[H" if sys.stdout.isatty() else "", nl=not sys.stdout.isatty())


def confirm(question: str, *, otherwise: str) -> bool:
    """Ask a person to confirm. Raises `UsageError` without a terminal; `otherwise` is the option that confirms."""
    if not can_ask():
        raise UsageError(f"there is no terminal to ask for confirmation; use {otherwise}")
    # Typer's own prompt prints to stdout too.
    typer.echo(f"{question} [y/N] ", nl=False, err=True)
    return sys.stdin.readline().strip().lower() in {"y", "yes"}


def can_ask() -> bool:
    """Return whether stdin is a terminal."""
    return sys.stdin.isatty()


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return printable(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
