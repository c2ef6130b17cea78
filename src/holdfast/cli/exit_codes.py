"""Exit codes, and the conversion of errors into codes and messages."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from enum import IntEnum
from typing import Any, ClassVar

import typer
from typer.core import TyperGroup

from holdfast.cli import output
from holdfast.errors import (
    ConfigError,
    HoldfastError,
    Interrupted,
    PartitionError,
    PartitionUpdateFailed,
    Refused,
    StoreError,
    TransitionRefused,
    Unavailable,
    UsageError,
)

VERBOSE = "holdfast.verbose"
"""Key in a context's `meta`: true if tracebacks are shown."""


class ExitCode(IntEnum):
    """Exit codes of all commands; `MEANINGS` describes them."""

    DONE = 0
    PARTITIONS_FAILED = 1
    DOUBT = 1
    WRONG = 2
    UNREACHABLE = 3
    BUG = 70
    INTERRUPTED = 130
    TERMINATED = 143


MEANINGS = {
    ExitCode.DONE: "Done, or stopped in order by SIGTERM or SIGINT while `run` was working.",
    ExitCode.PARTITIONS_FAILED: "`run` has ended, and some partitions are FAILED; or `verify` has doubts; or `locate` "
    "has not found everything; or the handler of `function invoke` has failed.",
    ExitCode.WRONG: "Wrong usage or configuration, or refused because data would be at risk; nothing was started.",
    ExitCode.UNREACHABLE: "The store or another server could not be reached; nothing was lost, try later.",
    ExitCode.BUG: "A bug in holdfast or in a plugin; `--verbose` shows where.",
    ExitCode.INTERRUPTED: "Interrupted by the keyboard (SIGINT) before the command had finished, or before `run` "
    "had started working.",
    ExitCode.TERMINATED: "Ended by SIGTERM before `run` had started working.",
}

CODES: tuple[tuple[type[HoldfastError], ExitCode], ...] = (
    (ConfigError, ExitCode.WRONG),
    (UsageError, ExitCode.WRONG),
    (Refused, ExitCode.WRONG),
    (StoreError, ExitCode.WRONG),
    (TransitionRefused, ExitCode.WRONG),
    # The row changes all the time: the same command may work the next time.
    (PartitionUpdateFailed, ExitCode.UNREACHABLE),
    (PartitionError, ExitCode.WRONG),
    (Unavailable, ExitCode.UNREACHABLE),
    (Interrupted, ExitCode.INTERRUPTED),
)
"""The first entry whose class matches is used; any other error is a bug."""


def exit_code(error: Exception) -> ExitCode:
    """Return the exit code for this error."""
    return next((code for kind, code in CODES if isinstance(error, kind)), ExitCode.BUG)


class Commands(TyperGroup):
    """The group of all commands; it handles their errors."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command. Errors are printed to stderr and become exit codes; Typer handles wrong usage."""
        try:
            result = super().invoke(ctx)
            # A closed pipe must be noticed here and not when the process ends.
            sys.stdout.flush()
        except (typer.Exit, typer.Abort, typer.TyperException):
            raise
        except BrokenPipeError:
            _discard_stdout()
            raise typer.Exit(ExitCode.DONE) from None
        except Exception as error:
            _print_error(error, verbose=bool(ctx.meta.get(VERBOSE)))
            raise typer.Exit(exit_code(error)) from error
        return result


class LateCommands(TyperGroup):
    """A group whose commands are made when they are needed, so that other commands need not wait for them."""

    fill: ClassVar[Callable[[typer.Typer], None]]

    def list_commands(self, ctx: Any) -> list[str]:
        self._make()
        return super().list_commands(ctx)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        self._make()
        return super().get_command(ctx, cmd_name)

    def _make(self) -> None:
        if not self.commands:
            group = typer.Typer(pretty_exceptions_enable=False)
            type(self).fill(group)
            self.commands = typer.main.get_group(group).commands


def _print_error(error: Exception, *, verbose: bool) -> None:
    if verbose:
        output.tell("".join(traceback.format_exception(error)).rstrip("\n"))
    if isinstance(error, ConfigError):
        # Begins with file, line and column, as editors expect.
        output.tell(str(error))
    elif exit_code(error) is not ExitCode.BUG:
        output.tell(f"error: {error}")
    else:
        hint = "" if verbose else " (--verbose shows where it happened)"
        output.tell(f"error: this is a bug: {_in_one_line(error)}{hint}")


def _in_one_line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())


def _discard_stdout() -> None:
    """Discard buffered output after the reader, such as `head`, has ended, so that exiting raises no error."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
