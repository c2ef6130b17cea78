"""The one place that prints: data to stdout, everything else to stderr."""

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
    """An answer to what was asked, on stdout; characters that a terminal would act on are shown as escapes."""
    typer.echo(printable(line))


def tell(text: str) -> None:
    """Something beside the answer, on stderr. Its lines stay as they are: some quote the configuration file."""
    typer.echo(printable(text, keep=LINE_BREAKS), err=True)


def say_json(value: Any) -> None:
    """A document on stdout."""
    typer.echo(json.dumps(value, indent=2))


def say_json_line(value: Any) -> None:
    """A document on one line of stdout; nothing in it can act on a terminal."""
    typer.echo(json.dumps(value))


def say_json_rows(rows: Iterable[Any]) -> None:
    """A list on stdout, written row by row. If the rows end by an error, what was written is no complete document."""
    before = "[\n"
    for row in rows:
        typer.echo(before + json.dumps(row), nl=False)
        before = ",\n"
    typer.echo("[]" if before == "[\n" else "\n]")


def say_table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Rows below headings. On a terminal long cells are folded; elsewhere each row is one line."""
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


def confirm(question: str, *, otherwise: str) -> bool:
    """What a person answers. Raises `UsageError` if nobody can be asked; `otherwise` is the option that answers yes."""
    if not can_ask():
        raise UsageError(f"there is no terminal to ask on; {otherwise} goes on without asking")
    # Typer's own question prints to stdout, too.
    typer.echo(f"{question} [y/N] ", nl=False, err=True)
    return sys.stdin.readline().strip().lower() in {"y", "yes"}


def can_ask() -> bool:
    """Whether a person sits at the other end of stdin."""
    return sys.stdin.isatty()


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return printable(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
