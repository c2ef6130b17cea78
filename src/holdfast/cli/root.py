"""The tree of all commands."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Annotated

import typer

from holdfast import __version__
from holdfast.cli import controls, output
from holdfast.cli.audit import locate, verify
from holdfast.cli.configuration import plugins, schema, validate
from holdfast.cli.exit_codes import VERBOSE, Commands, LateCommands
from holdfast.cli.reprocess import backfill, rewind
from holdfast.cli.run import run
from holdfast.cli.status import lag, status
from holdfast.cli.web import web


def _version(wanted: bool) -> None:
    if wanted:
        output.say(f"holdfast {__version__}")
        raise typer.Exit


Version = Annotated[
    bool, typer.Option("--version", metavar="", callback=_version, is_eager=True, help="Show the version and exit.")
]
Verbose = Annotated[bool, typer.Option("--verbose", metavar="", help="Show tracebacks of errors.")]


def holdfast(ctx: typer.Context, version: Version = False, verbose: Verbose = False) -> None:  # noqa: ARG001
    """Data pipelines on any number of Spark applications that share work through leases.

    Every record lands exactly once.
    """
    ctx.meta[VERBOSE] = verbose


def _examples(*commands: str) -> str:
    return "\n\n".join(["Example:" if len(commands) == 1 else "Examples:", *commands])


def _add(group: typer.Typer, command: Callable[..., None], *examples: str, name: str | None = None) -> None:
    """Add a command. Its docstring is the help; paragraphs are joined, because Typer would keep their line breaks."""
    paragraphs = inspect.cleandoc(command.__doc__ or "").split("\n\n")
    text = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
    group.command(name, help=text, epilog=_examples(*examples))(command)


app = typer.Typer(cls=Commands, no_args_is_help=True, pretty_exceptions_enable=False)
app.callback(epilog=_examples("holdfast run pipeline.yaml", "holdfast partitions list pipeline.yaml --status FAILED"))(
    holdfast
)
_add(app, run, "holdfast run pipeline.yaml --node replica1", "holdfast run pipeline.yaml --log json")
_add(app, validate, "holdfast validate pipeline.yaml", "holdfast validate pipeline.yaml --no-env")
_add(app, schema, "holdfast schema > holdfast.schema.json")
_add(app, plugins, "holdfast plugins", "holdfast plugins --json")
_add(app, status, "holdfast status pipeline.yaml", "holdfast status pipeline.yaml --watch")
_add(app, lag, "holdfast lag pipeline.yaml", "holdfast lag pipeline.yaml --by-partition --json")
_add(app, controls.nodes, "holdfast nodes pipeline.yaml")
_add(app, web, "holdfast web pipeline.yaml", "holdfast web pipeline.yaml --port 8600 --read-only")
_add(app, controls.drain, "holdfast drain pipeline.yaml replica1")
_add(app, controls.undrain, "holdfast undrain pipeline.yaml replica1")
_add(
    app,
    controls.audit_log,
    "holdfast audit-log pipeline.yaml",
    "holdfast audit-log pipeline.yaml --json",
    name="audit-log",
)
_add(app, verify, "holdfast verify archive.yaml", "holdfast verify archive.yaml --pipeline backup --deep --json")
_add(
    app,
    locate,
    "holdfast locate archive.yaml --pipeline daily --topic orders --partition 0 --offset 1234",
    "holdfast locate archive.yaml --pipeline daily --files orders/dt=2026-01-01/1_0_00000000000000000000.txt.gz "
    "--in backup",
)
_add(app, rewind, "holdfast rewind pipeline.yaml --pipeline events --topic clicks --partition 3 --to 120000")
_add(app, backfill, "holdfast backfill pipeline.yaml --pipeline events --from backup --between 2026-01-01..2026-01-02")


Fill = Callable[[typer.Typer], None]


def _group(name: str, purpose: str, example: str) -> Callable[[Fill], None]:
    """Decorator: adds a group; the function adds the commands to it, and imports their module, when they are needed."""

    def add(fill: Fill) -> None:
        late = type(name, (LateCommands,), {"fill": staticmethod(fill)})
        group = typer.Typer(no_args_is_help=True, help=purpose, cls=late)
        app.add_typer(group, name=name, epilog=_examples(example))

    return add


@_group(
    "pipelines", "List the pipelines of a file, pause them and resume them.", "holdfast pipelines list pipeline.yaml"
)
def _pipelines(group: typer.Typer) -> None:
    _add(group, controls.list_pipelines, "holdfast pipelines list pipeline.yaml --json", name="list")
    _add(group, controls.pause, "holdfast pipelines pause pipeline.yaml --pipeline events")
    _add(group, controls.resume, "holdfast pipelines resume pipeline.yaml --pipeline events")


@_group("runs", "List, show, stop, resume and join runs, such as a rewind.", "holdfast runs list pipeline.yaml")
def _runs(group: typer.Typer) -> None:
    from holdfast.cli import runs

    _add(group, runs.list_runs, "holdfast runs list pipeline.yaml --pipeline events --json", name="list")
    _add(group, runs.show, "holdfast runs show pipeline.yaml backfill-0123456789ab")
    _add(group, runs.stop, "holdfast runs stop pipeline.yaml backfill-0123456789ab")
    _add(group, runs.resume, "holdfast runs resume pipeline.yaml backfill-0123456789ab")
    _add(group, runs.throttle, "holdfast runs throttle pipeline.yaml backfill-0123456789ab 5000")
    _add(group, runs.join, "holdfast runs join pipeline.yaml backfill-0123456789ab")


@_group(
    "reindex",
    "Copy live tables into search indexes, and promote these without downtime.",
    "holdfast reindex start pipeline.yaml",
)
def _reindex(group: typer.Typer) -> None:
    from holdfast.cli import reindex

    _add(
        group,
        reindex.start,
        "holdfast reindex start pipeline.yaml --entities users,orders",
        "holdfast reindex start pipeline.yaml --changed",
        "holdfast reindex start pipeline.yaml --dry-run",
    )
    _add(group, reindex.status, "holdfast reindex status pipeline.yaml --watch")
    _add(group, reindex.list_runs, "holdfast reindex list pipeline.yaml --json", name="list")
    _add(group, reindex.stop, "holdfast reindex stop pipeline.yaml")
    _add(group, reindex.resume, "holdfast reindex resume pipeline.yaml")
    _add(group, reindex.throttle, "holdfast reindex throttle pipeline.yaml 5000")
    _add(group, reindex.promote, "holdfast reindex promote pipeline.yaml --run reindex-0123456789ab")
    _add(group, reindex.rollback, "holdfast reindex rollback pipeline.yaml --entities users")
    _add(group, reindex.verify, "holdfast reindex verify pipeline.yaml --sample 0.01")
    _add(group, reindex.views, "holdfast reindex views pipeline.yaml", "holdfast reindex views pipeline.yaml --remove")
    _add(group, reindex.serve, "holdfast reindex serve pipeline.yaml --port 8585")


@_group(
    "deadletters",
    "Show records that could not be processed, and send them again.",
    "holdfast deadletters list pipeline.yaml",
)
def _letters(group: typer.Typer) -> None:
    from holdfast.cli import deadletters

    _add(
        group, deadletters.list_letters, "holdfast deadletters list pipeline.yaml --pipeline orders --json", name="list"
    )
    _add(group, deadletters.show, "holdfast deadletters show pipeline.yaml --reason 'is not a time' --limit 5")
    _add(
        group,
        deadletters.redrive,
        "holdfast deadletters redrive pipeline.yaml --dry-run",
        "holdfast deadletters redrive pipeline.yaml --pipeline orders --sink files",
    )


@_group("function", "Write functions, and try them without a stream.", "holdfast function init orders")
def _function(group: typer.Typer) -> None:
    from holdfast.cli import functions

    _add(group, functions.init, "holdfast function init orders", "holdfast function init orders --folder src")
    _add(
        group,
        functions.invoke,
        "holdfast function invoke orders/orders.py --event hello",
        "holdfast function invoke function.yaml --event '{\"id\": 7}' --header content-type=application/json --json",
    )


@_group("connector", "Bring what Spark needs to read Kafka.", "holdfast connector install kafka")
def _connector(group: typer.Typer) -> None:
    from holdfast.cli import connector

    _add(
        group,
        connector.install,
        "holdfast connector install kafka",
        "holdfast connector install kafka --repository https://repo.example.com/maven",
    )


@_group("convert", "Make files for holdfast from those of other systems.", "holdfast convert nuclio function.yaml")
def _convert(group: typer.Typer) -> None:
    from holdfast.cli import convert

    _add(group, convert.nuclio, "holdfast convert nuclio function.yaml > pipeline.yaml")
    _add(group, convert.data_prepper, "holdfast convert data-prepper pipelines.yaml > pipeline.yaml")
    _add(group, convert.secor, "holdfast convert secor secor.prod.partition.properties > pipeline.yaml")


@_group(
    "generation",
    "Roll out another version of the parsing, or return to the previous one.",
    "holdfast generation list pipeline.yaml",
)
def _generation(group: typer.Typer) -> None:
    from holdfast.cli import generations

    _add(group, generations.list_generations, "holdfast generation list pipeline.yaml --json", name="list")
    _add(group, generations.show, "holdfast generation show pipeline.yaml 2")
    _add(group, generations.switch, "holdfast generation switch pipeline.yaml 2")
    _add(group, generations.back, "holdfast generation back pipeline.yaml")


@_group(
    "partitions",
    "Show the partitions of a pipeline, and change them by hand.",
    "holdfast partitions list pipeline.yaml",
)
def _partitions(group: typer.Typer) -> None:
    from holdfast.cli import partitions

    _add(
        group,
        partitions.list_partitions,
        "holdfast partitions list pipeline.yaml --pipeline orders --status FAILED --json",
        name="list",
    )
    _add(group, partitions.show, "holdfast partitions show pipeline.yaml 'my-bucket|orders/1.jsonl'")
    _add(
        group,
        partitions.reopen,
        "holdfast partitions reopen pipeline.yaml 'my-bucket|orders/1.jsonl'",
        "holdfast partitions reopen pipeline.yaml --status FAILED --yes",
    )
    _add(group, partitions.release, "holdfast partitions release pipeline.yaml 'my-bucket|orders/1.jsonl'")
    _add(
        group,
        partitions.fail,
        "holdfast partitions fail pipeline.yaml 'my-bucket|orders/1.jsonl' --reason 'wrong encoding'",
    )
    _add(
        group,
        partitions.purge,
        "holdfast partitions purge pipeline.yaml --older-than 7d --dry-run",
        "holdfast partitions purge pipeline.yaml --status COMPLETED --older-than 7d --yes",
    )
    _add(
        group,
        partitions.forget,
        "holdfast partitions forget pipeline.yaml --dry-run",
        "holdfast partitions forget pipeline.yaml --yes",
    )


@_group("shards", "Show how the nodes share the shards of a stream.", "holdfast shards list pipeline.yaml")
def _shards(group: typer.Typer) -> None:
    from holdfast.cli import shards

    _add(group, shards.list_shards, "holdfast shards list pipeline.yaml --pipeline orders --json", name="list")


@_group(
    "stream",
    "Create, fill, show and delete streams in a folder of this host.",
    "holdfast stream create clicks --shards 4",
)
def _stream(group: typer.Typer) -> None:
    from holdfast.cli import stream

    _add(group, stream.create, "holdfast stream create clicks --shards 32 --retention 24h")
    _add(
        group,
        stream.put,
        "holdfast stream put clicks --shard-id 0 --data hello",
        "holdfast stream put clicks --key user1 --file clicks.jsonl",
    )
    _add(group, stream.show, "holdfast stream show clicks --json")
    _add(group, stream.list_streams, "holdfast stream list", name="list")
    _add(group, stream.delete, "holdfast stream delete clicks --yes")
