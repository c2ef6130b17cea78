"""All commands together."""

from __future__ import annotations

from typing import Annotated

import typer

from holdfast import __version__
from holdfast.cli import output, partitions
from holdfast.cli.exits import VERBOSE, Commands
from holdfast.cli.nodes import nodes
from holdfast.cli.plugins import plugins
from holdfast.cli.run import run
from holdfast.cli.settings import schema, validate


def _version(wanted: bool) -> None:
    if wanted:
        output.say(f"holdfast {__version__}")
        raise typer.Exit


Version = Annotated[
    bool, typer.Option("--version", metavar="", callback=_version, is_eager=True, help="Show the version and exit.")
]
Verbose = Annotated[bool, typer.Option("--verbose", metavar="", help="Show where errors come from.")]


def holdfast(ctx: typer.Context, version: Version = False, verbose: Verbose = False) -> None:  # noqa: ARG001
    """Data pipelines on any number of Spark applications that share work through leases.

    Every record lands exactly once.
    """
    ctx.meta[VERBOSE] = verbose


def _examples(*commands: str) -> str:
    return "\n\n".join(["Example:" if len(commands) == 1 else "Examples:", *commands])


app = typer.Typer(cls=Commands, no_args_is_help=True, pretty_exceptions_enable=False)
app.callback(epilog=_examples("holdfast run pipeline.yaml", "holdfast partitions list pipeline.yaml --status FAILED"))(
    holdfast
)
app.command(epilog=_examples("holdfast run pipeline.yaml --node replica1", "holdfast run pipeline.yaml --log json"))(
    run
)
app.command(epilog=_examples("holdfast validate pipeline.yaml"))(validate)
app.command(epilog=_examples("holdfast schema > holdfast.schema.json"))(schema)
app.command(epilog=_examples("holdfast plugins", "holdfast plugins --json"))(plugins)
app.command(epilog=_examples("holdfast nodes pipeline.yaml"))(nodes)

_partitions = typer.Typer(no_args_is_help=True, help="Look at the partitions of a pipeline, and act on them.")
app.add_typer(_partitions, name="partitions", epilog=_examples("holdfast partitions list pipeline.yaml"))
_partitions.command(
    "list", epilog=_examples("holdfast partitions list pipeline.yaml --pipeline orders --status FAILED --json")
)(partitions.list_partitions)
_partitions.command(epilog=_examples("holdfast partitions show pipeline.yaml 'my-bucket|orders/1.jsonl'"))(
    partitions.show
)
_partitions.command(epilog=_examples("holdfast partitions reopen pipeline.yaml 'my-bucket|orders/1.jsonl'"))(
    partitions.reopen
)
_partitions.command(epilog=_examples("holdfast partitions release pipeline.yaml 'my-bucket|orders/1.jsonl'"))(
    partitions.release
)
_partitions.command(
    epilog=_examples("holdfast partitions fail pipeline.yaml 'my-bucket|orders/1.jsonl' --reason 'wrong encoding'")
)(partitions.fail)
_partitions.command(
    epilog=_examples(
        "holdfast partitions purge pipeline.yaml --older-than 7d --dry-run",
        "holdfast partitions purge pipeline.yaml --status COMPLETED --older-than 7d --yes",
    )
)(partitions.purge)
