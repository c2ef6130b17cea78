"""The tree of all commands."""

from __future__ import annotations

from typing import Annotated

import typer

from holdfast import __version__
from holdfast.cli import (
    connector,
    controls,
    convert,
    deadletters,
    functions,
    generations,
    output,
    partitions,
    reindex,
    runs,
    shards,
    stream,
)
from holdfast.cli.audit import locate, verify
from holdfast.cli.configuration import plugins, schema, validate
from holdfast.cli.exit_codes import VERBOSE, Commands
from holdfast.cli.lag import lag
from holdfast.cli.nodes import nodes
from holdfast.cli.reprocess import backfill, rewind
from holdfast.cli.run import run
from holdfast.cli.status import status


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


app = typer.Typer(cls=Commands, no_args_is_help=True, pretty_exceptions_enable=False)
app.callback(epilog=_examples("holdfast run pipeline.yaml", "holdfast partitions list pipeline.yaml --status FAILED"))(
    holdfast
)
app.command(epilog=_examples("holdfast run pipeline.yaml --node replica1", "holdfast run pipeline.yaml --log json"))(
    run
)
app.command(epilog=_examples("holdfast validate pipeline.yaml", "holdfast validate pipeline.yaml --no-env"))(validate)
app.command(epilog=_examples("holdfast schema > holdfast.schema.json"))(schema)
app.command(epilog=_examples("holdfast plugins", "holdfast plugins --json"))(plugins)
app.command(epilog=_examples("holdfast status pipeline.yaml", "holdfast status pipeline.yaml --watch"))(status)
app.command(epilog=_examples("holdfast lag pipeline.yaml", "holdfast lag pipeline.yaml --by-partition --json"))(lag)
app.command(epilog=_examples("holdfast nodes pipeline.yaml"))(nodes)
app.command(epilog=_examples("holdfast drain pipeline.yaml replica1"))(controls.drain)
app.command(epilog=_examples("holdfast undrain pipeline.yaml replica1"))(controls.undrain)
_pipelines = typer.Typer(no_args_is_help=True, help="List the pipelines of a file, pause them and resume them.")
app.add_typer(_pipelines, name="pipelines", epilog=_examples("holdfast pipelines list pipeline.yaml"))
_pipelines.command("list", epilog=_examples("holdfast pipelines list pipeline.yaml --json"))(controls.list_pipelines)
_pipelines.command(epilog=_examples("holdfast pipelines pause pipeline.yaml --pipeline events"))(controls.pause)
_pipelines.command(epilog=_examples("holdfast pipelines resume pipeline.yaml --pipeline events"))(controls.resume)
app.command(
    epilog=_examples("holdfast verify archive.yaml", "holdfast verify archive.yaml --pipeline backup --deep --json")
)(verify)
app.command(
    epilog=_examples(
        "holdfast locate archive.yaml --pipeline daily --topic orders --partition 0 --offset 1234",
        "holdfast locate archive.yaml --pipeline daily --files orders/dt=2026-01-01/1_0_00000000000000000000.txt.gz "
        "--in backup",
    )
)(locate)

app.command(
    epilog=_examples("holdfast rewind pipeline.yaml --pipeline events --topic clicks --partition 3 --to 120000")
)(rewind)
app.command(
    epilog=_examples("holdfast backfill pipeline.yaml --pipeline events --from backup --between 2026-01-01..2026-01-02")
)(backfill)
_runs = typer.Typer(no_args_is_help=True, help="List, show, stop, resume and join runs, such as a rewind.")
app.add_typer(_runs, name="runs", epilog=_examples("holdfast runs list pipeline.yaml"))
_runs.command("list", epilog=_examples("holdfast runs list pipeline.yaml --pipeline events --json"))(runs.list_runs)
_runs.command(epilog=_examples("holdfast runs show pipeline.yaml backfill-0123456789ab"))(runs.show)
_runs.command(epilog=_examples("holdfast runs stop pipeline.yaml backfill-0123456789ab"))(runs.stop)
_runs.command(epilog=_examples("holdfast runs resume pipeline.yaml backfill-0123456789ab"))(runs.resume)
_runs.command(epilog=_examples("holdfast runs throttle pipeline.yaml backfill-0123456789ab 5000"))(runs.throttle)
_runs.command(epilog=_examples("holdfast runs join pipeline.yaml backfill-0123456789ab"))(runs.join)

_reindex = typer.Typer(
    no_args_is_help=True, help="Copy live tables into search indexes, and promote these without downtime."
)
app.add_typer(_reindex, name="reindex", epilog=_examples("holdfast reindex start pipeline.yaml"))
_reindex.command(
    epilog=_examples(
        "holdfast reindex start pipeline.yaml --entities users,orders",
        "holdfast reindex start pipeline.yaml --changed",
        "holdfast reindex start pipeline.yaml --dry-run",
    )
)(reindex.start)
_reindex.command(epilog=_examples("holdfast reindex status pipeline.yaml --watch"))(reindex.status)
_reindex.command("list", epilog=_examples("holdfast reindex list pipeline.yaml --json"))(reindex.list_runs)
_reindex.command(epilog=_examples("holdfast reindex stop pipeline.yaml"))(reindex.stop)
_reindex.command(epilog=_examples("holdfast reindex resume pipeline.yaml"))(reindex.resume)
_reindex.command(epilog=_examples("holdfast reindex throttle pipeline.yaml 5000"))(reindex.throttle)
_reindex.command(epilog=_examples("holdfast reindex promote pipeline.yaml --run reindex-0123456789ab"))(reindex.promote)
_reindex.command(epilog=_examples("holdfast reindex rollback pipeline.yaml --entities users"))(reindex.rollback)
_reindex.command(epilog=_examples("holdfast reindex verify pipeline.yaml --sample 0.01"))(reindex.verify)
_reindex.command(
    epilog=_examples("holdfast reindex views pipeline.yaml", "holdfast reindex views pipeline.yaml --remove")
)(reindex.views)
_reindex.command(epilog=_examples("holdfast reindex serve pipeline.yaml --port 8585"))(reindex.serve)

_letters = typer.Typer(no_args_is_help=True, help="Show records that could not be processed, and send them again.")
app.add_typer(_letters, name="deadletters", epilog=_examples("holdfast deadletters list pipeline.yaml"))
_letters.command("list", epilog=_examples("holdfast deadletters list pipeline.yaml --pipeline orders --json"))(
    deadletters.list_letters
)
_letters.command(epilog=_examples("holdfast deadletters show pipeline.yaml --reason 'is not a time' --limit 5"))(
    deadletters.show
)
_letters.command(
    epilog=_examples(
        "holdfast deadletters redrive pipeline.yaml --dry-run",
        "holdfast deadletters redrive pipeline.yaml --pipeline orders --sink files",
    )
)(deadletters.redrive)

_function = typer.Typer(no_args_is_help=True, help="Write functions, and try them without a stream.")
app.add_typer(_function, name="function", epilog=_examples("holdfast function init orders"))
_function.command(epilog=_examples("holdfast function init orders", "holdfast function init orders --folder src"))(
    functions.init
)
_function.command(
    epilog=_examples(
        "holdfast function invoke orders/orders.py --event hello",
        "holdfast function invoke function.yaml --event '{\"id\": 7}' --header content-type=application/json --json",
    )
)(functions.invoke)
_connector = typer.Typer(no_args_is_help=True, help="Bring what Spark needs to read Kafka.")
app.add_typer(_connector, name="connector", epilog=_examples("holdfast connector install kafka"))
_connector.command(
    epilog=_examples(
        "holdfast connector install kafka",
        "holdfast connector install kafka --repository https://repo.example.com/maven",
    )
)(connector.install)
_convert = typer.Typer(no_args_is_help=True, help="Make files for holdfast from those of other systems.")
app.add_typer(_convert, name="convert", epilog=_examples("holdfast convert nuclio function.yaml"))
_convert.command(epilog=_examples("holdfast convert nuclio function.yaml > pipeline.yaml"))(convert.nuclio)
_convert.command(epilog=_examples("holdfast convert data-prepper pipelines.yaml > pipeline.yaml"))(convert.data_prepper)
_convert.command(epilog=_examples("holdfast convert secor secor.prod.partition.properties > pipeline.yaml"))(
    convert.secor
)

_generation = typer.Typer(
    no_args_is_help=True, help="Roll out another version of the parsing, or return to the previous one."
)
app.add_typer(_generation, name="generation", epilog=_examples("holdfast generation list pipeline.yaml"))
_generation.command("list", epilog=_examples("holdfast generation list pipeline.yaml --json"))(
    generations.list_generations
)
_generation.command(epilog=_examples("holdfast generation show pipeline.yaml 2"))(generations.show)
_generation.command(epilog=_examples("holdfast generation switch pipeline.yaml 2"))(generations.switch)
_generation.command(epilog=_examples("holdfast generation back pipeline.yaml"))(generations.back)

_partitions = typer.Typer(no_args_is_help=True, help="Show the partitions of a pipeline, and change them by hand.")
app.add_typer(_partitions, name="partitions", epilog=_examples("holdfast partitions list pipeline.yaml"))
_partitions.command(
    "list", epilog=_examples("holdfast partitions list pipeline.yaml --pipeline orders --status FAILED --json")
)(partitions.list_partitions)
_partitions.command(epilog=_examples("holdfast partitions show pipeline.yaml 'my-bucket|orders/1.jsonl'"))(
    partitions.show
)
_partitions.command(
    epilog=_examples(
        "holdfast partitions reopen pipeline.yaml 'my-bucket|orders/1.jsonl'",
        "holdfast partitions reopen pipeline.yaml --status FAILED --yes",
    )
)(partitions.reopen)
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
_partitions.command(
    epilog=_examples(
        "holdfast partitions forget pipeline.yaml --dry-run", "holdfast partitions forget pipeline.yaml --yes"
    )
)(partitions.forget)

_shards = typer.Typer(no_args_is_help=True, help="Show how the nodes share the shards of a stream.")
app.add_typer(_shards, name="shards", epilog=_examples("holdfast shards list pipeline.yaml"))
_shards.command("list", epilog=_examples("holdfast shards list pipeline.yaml --pipeline orders --json"))(
    shards.list_shards
)

_stream = typer.Typer(no_args_is_help=True, help="Create, fill, show and delete streams in a folder of this host.")
app.add_typer(_stream, name="stream", epilog=_examples("holdfast stream create clicks --shards 4"))
_stream.command(epilog=_examples("holdfast stream create clicks --shards 32 --retention 24h"))(stream.create)
_stream.command(
    epilog=_examples(
        "holdfast stream put clicks --shard-id 0 --data hello",
        "holdfast stream put clicks --key user1 --file clicks.jsonl",
    )
)(stream.put)
_stream.command(epilog=_examples("holdfast stream show clicks --json"))(stream.show)
_stream.command("list", epilog=_examples("holdfast stream list"))(stream.list_streams)
_stream.command(epilog=_examples("holdfast stream delete clicks --yes"))(stream.delete)
