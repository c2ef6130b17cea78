"""`holdfast verify` and `holdfast locate`: what is visible, against what was committed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli import output
from holdfast.cli.exits import ExitCode
from holdfast.cli.options import AsJson, File, PipelineName, chosen_pipeline, opened_pipeline
from holdfast.errors import UsageError

if TYPE_CHECKING:
    from holdfast.audit.locate import Found
    from holdfast.audit.proof import PartitionProof, RootProof
    from holdfast.audit.sink import AuditedSink
    from holdfast.leases.store import Store

Deep = Annotated[
    bool, typer.Option("--deep", metavar="", help="Read every file: compare its SHA-256 and decode its rows.")
]
RunId = Annotated[
    str | None, typer.Option("--run", metavar="RUN", help="The files of this rewind or backfill, not the live ones.")
]
Topic = Annotated[str | None, typer.Option("--topic", metavar="TOPIC", help="The topic of the message.")]
Partition = Annotated[int | None, typer.Option("--partition", min=0, metavar="N", help="Its Kafka partition.")]
Offset = Annotated[int | None, typer.Option("--offset", min=0, metavar="N", help="Its offset.")]
Files = Annotated[
    list[str] | None,
    typer.Option("--files", metavar="FILE", help="Output files, with or without the root; may be given several times."),
]
Backup = Annotated[
    str | None, typer.Option("--in", metavar="PIPELINE", help="The pipeline whose files hold the raw records.")
]

LOCATED = ("OFFSETS", "PLACE", "FILE", "TOLD BY")


def verify(
    file: File, pipeline: PipelineName = None, run: RunId = None, deep: Deep = False, json: AsJson = False
) -> None:
    """Prove that every offset up to the committed position is in exactly one file, a recorded gap or a dead letter.

    Reads the store, all manifests and the listing of every `files` sink of the pipeline; changes nothing, and may run
    beside the pipeline. Ends with 1 on any doubt or file that cannot be read, with 3 if something cannot be reached.
    """
    from holdfast.assemble import audited, audited_run, with_redrives
    from holdfast.cli.proofs import Report

    with opened_pipeline(file, pipeline) as opened:
        if run is None:
            audited_sinks = with_redrives(opened, audited(opened.settings, opened.name))
        else:
            audited_sinks = audited_run(opened, run)
        report = Report(deep=deep, offsets=all(audited.offsets for audited in audited_sinks))
        proofs = report.watched(_proofs(audited_sinks, opened.store, deep=deep))
        if json:
            output.say_json_rows(proof.row() for proof in proofs)
        else:
            for _ in proofs:
                pass
            report.say()
    if report.doubtful or report.unread:
        raise typer.Exit(ExitCode.DOUBT)


def _proofs(audited_sinks: list[AuditedSink], store: Store, *, deep: bool) -> Iterator[PartitionProof | RootProof]:
    from holdfast.audit.verify import verify as proofs

    for audited in audited_sinks:
        yield from proofs(audited, store, deep=deep)


def locate(  # noqa: PLR0913, PLR0917 - each is an option
    file: File,
    pipeline: PipelineName = None,
    topic: Topic = None,
    partition: Partition = None,
    offset: Offset = None,
    files: Files = None,
    backup: Backup = None,
    json: AsJson = False,
) -> None:
    """Name the file that holds a message, or the backup files that hold the raw records of output files.

    Give --topic, --partition and --offset for a message; or --files and --in. Ends with 1 if something asked for is in
    no file.
    """
    from holdfast.assemble import audited

    with opened_pipeline(file, pipeline) as opened:
        settings, store = opened.settings, opened.store
        audited_sinks = audited(settings, opened.name)
        if files or backup:
            if not (files and backup) or topic or partition is not None or offset is not None:
                raise UsageError("give --files together with --in, and neither --topic, --partition nor --offset")
            found = _in_backup(audited_sinks, audited(settings, chosen_pipeline(settings, backup)), store, files)
        elif topic is None or partition is None or offset is None:
            raise UsageError("give --topic, --partition and --offset of a message; or --files and --in")
        else:
            found = _message(audited_sinks, store, topic, partition, offset)
    if json:
        output.say_json([message.row() for message in found])
    else:
        output.say_table(
            LOCATED, [(message.offsets, message.found_in, message.file, message.evidence) for message in found]
        )
    nowhere = all(message.file is None for message in found)
    if nowhere or any(message.file is None and not message.by_route for message in found):
        raise typer.Exit(ExitCode.DOUBT)


def _message(audited_sinks: list[AuditedSink], store: Store, topic: str, partition: int, offset: int) -> list[Found]:
    from holdfast.audit.locate import locate_offset

    return [
        found for audited in audited_sinks for found in locate_offset(audited, store, topic, str(partition), offset)
    ]


def _in_backup(
    audited_sinks: list[AuditedSink], backups: list[AuditedSink], store: Store, files: list[str]
) -> list[Found]:
    from holdfast.audit.locate import locate_files

    return [found for backup in backups for found in locate_files(audited_sinks, backup, store, files)]
