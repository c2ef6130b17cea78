"""`holdfast verify` and `holdfast locate`: compare visible files with commits, and find messages in them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.audit.proof import Findings, LettersProof, PartitionProof, RootProof
from holdfast.cli import output
from holdfast.cli.exit_codes import ExitCode
from holdfast.cli.options import AsJson, File, PipelineName, chosen_pipeline, opened_pipeline
from holdfast.errors import UsageError

if TYPE_CHECKING:
    from holdfast.audit.locate import Found
    from holdfast.audit.sink import AuditedSink
    from holdfast.leases.store import Store

Deep = Annotated[
    bool, typer.Option("--deep", metavar="", help="Read every file: compare its SHA-256 and decode its rows.")
]
Everything = Annotated[bool, typer.Option("--all", metavar="", help="Also show partitions that are proven, and notes.")]
RunId = Annotated[
    str | None,
    typer.Option("--run", metavar="RUN", help="Audit the files of this rewind or backfill instead of the live ones."),
]
Topic = Annotated[str | None, typer.Option("--topic", metavar="TOPIC", help="The topic of the message.")]
Partition = Annotated[
    int | None, typer.Option("--partition", min=0, metavar="N", help="The Kafka partition of the message.")
]
Offset = Annotated[int | None, typer.Option("--offset", min=0, metavar="N", help="The offset of the message.")]
Files = Annotated[
    list[str] | None,
    typer.Option(
        "--files", metavar="FILE", help="An output file, with or without the root; may be given several times."
    ),
]
Backup = Annotated[
    str | None, typer.Option("--in", metavar="PIPELINE", help="The pipeline whose files hold the raw records.")
]

LOCATED = ("OFFSETS", "PLACE", "FILE", "TOLD BY")
COLUMNS = (
    "SINK", "PARTITION", "FROM", "TO", "COMMITS", "FILES", "ROWS", "GAPS", "DEAD LETTERS", "NO RECORD", "VERDICT",
)  # fmt: skip
ROUTED = "ROUTED ELSEWHERE"
"""Column that is shown only if a sink has routes."""
PROVEN = "proven"
MOST_ROWS = 1000
MOST_SENTENCES = 200


def verify(
    file: File,
    pipeline: PipelineName = None,
    run: RunId = None,
    deep: Deep = False,
    everything: Everything = False,
    json: AsJson = False,
) -> None:
    """Prove that every offset up to the committed position is in exactly one file, a recorded gap or a dead letter.

    Reads the store, all manifests and the listing of every `files` sink of the pipeline; of other sinks it reads the
    dead letters. Shows partitions with doubts, and a summary. Changes nothing, and may run beside the pipeline. Exits
    with 1 on any doubt or unreadable file, with 3 if a server cannot be reached.
    """
    from holdfast.runs.verification import audited_parts, proofs_of

    with opened_pipeline(file, pipeline) as opened:
        audited_sinks, letters = audited_parts(opened, run)
        offsets = all(audited.offsets for audited in audited_sinks)
        report = Report(deep=deep, offsets=offsets, everything=everything)
        proofs = report.collect(proofs_of(audited_sinks, letters, opened.store, deep=deep))
        if json:
            output.say_json_rows(proof.row() for proof in proofs)
        else:
            for _ in proofs:
                pass
            report.say()
    if report.doubtful or report.unread:
        raise typer.Exit(ExitCode.DOUBT)


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

    Give --topic, --partition and --offset of a message, or --files and --in. Exits with 1 if something is in no file.
    """
    from holdfast.assemble import audited

    with opened_pipeline(file, pipeline) as opened:
        settings, store = opened.settings, opened.store
        audited_sinks = audited(settings, opened.name)
        if files or backup:
            if not (files and backup) or topic or partition is not None or offset is not None:
                raise UsageError(
                    "--files and --in belong together, and cannot be combined with --topic, --partition or --offset"
                )
            found = _in_backup(audited_sinks, audited(settings, chosen_pipeline(settings, backup)), store, files)
        elif topic is None or partition is None or offset is None:
            raise UsageError("give --topic, --partition and --offset of a message, or --files and --in")
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


class Report:
    """Prints proofs as a table, doubts and notes, and a conclusion. Keeps a bounded number of rows and sentences."""

    def __init__(self, *, deep: bool, offsets: bool, everything: bool = False) -> None:
        self._deep = deep
        self._everything = everything
        self._offsets = offsets
        self._rows: list[tuple[Any, ...]] = []
        self._doubts: list[str] = []
        self._notes: list[str] = []
        self._letters: list[str] = []
        """For each sink without manifests, the letters that could be read back."""
        self._left_out = 0
        self._partitions = 0
        self._doubtful_partitions = 0
        self._sums = {"files": 0, "rows": 0, "gaps": 0, "dead_letters": 0, "skipped": 0, "elsewhere": 0, "absent": 0}
        self._routed = False
        self._exact = True
        self.unread = 0
        """Files that could not be read."""
        self.doubtful = 0
        """Partitions and roots with doubts."""

    def collect(
        self, proofs: Iterator[PartitionProof | RootProof | LettersProof]
    ) -> Iterator[PartitionProof | RootProof | LettersProof]:
        """Yield the same proofs, and keep what will be printed."""
        for proof in proofs:
            self.doubtful += bool(proof.doubts.number)
            if isinstance(proof, PartitionProof):
                self._count(proof)
                name = f"{proof.sink}: {proof.key}"
            elif isinstance(proof, LettersProof):
                self._letters.append(f"{self._plural(proof.letters, 'dead letter')} of sink {proof.sink}")
                name = f"{proof.sink}: dead letters"
            else:
                name = f"{proof.sink}: {proof.root}"
            _keep(self._doubts, f"doubt: {name}", proof.doubts)
            _keep(self._notes, f"note: {name}", proof.notes)
            yield proof

    def say(self) -> None:
        """Print the report."""
        if self._rows:
            output.say_table(*self._table())
        if self._left_out:
            output.say(f"{self._left_out} more partitions are not shown; --json shows all")
        show_notes = self._everything or self.unread
        for sentence in (*(self._notes if show_notes else ()), *self._doubts):
            output.say(sentence)
        if self._notes and not show_notes:
            output.say(f"{self._plural(len(self._notes), 'note')} left out; --all shows them")
        output.say(self.conclusion())

    def _table(self) -> tuple[Sequence[str], list[tuple[Any, ...]]]:
        shown = [index for index in range(len(COLUMNS) + 1) if self._routed or index != len(COLUMNS) - 1]
        names = (*COLUMNS[:-1], ROUTED, COLUMNS[-1])
        return [names[index] for index in shown], [tuple(row[index] for index in shown) for row in self._rows]

    def conclusion(self) -> str:
        """Return the conclusion as one line."""
        sums = self._sums
        if self.doubtful:
            checked = self._plural(self._partitions, "partition")
            return f"doubt: {checked} checked, {self._doubtful_partitions} with doubts; see the doubts above"
        if self.unread:
            files = self._plural(self.unread, "file")
            return f"not proven: the rows of {files} could not be read, although the digests are correct; see the notes"
        if self._letters and not self._partitions:
            return f"proven: {' and '.join(self._letters)} can be read back; what the sinks hold is not audited"
        scope = f"{self._plural(self._partitions, 'partition')}, {self._plural(sums['files'], 'file')}"
        if not self._offsets:
            proven = "the chain of commits is complete and every committed file exists"
            return (
                f"proven: {proven} ({scope}, {sums['rows']} rows){self._by_routes()}{self._by_letters()}; {self._how()}"
            )
        skipped = f", is skipped by a setting ({sums['skipped']})" if sums["skipped"] else ""
        return (
            f"proven: every offset up to the committed position is in exactly one file ({scope}, {sums['rows']} rows), "
            f"a recorded gap ({sums['gaps']}), a dead letter ({sums['dead_letters']}){skipped} "
            f"or has no record ({sums['absent']}){self._by_routes()}{self._by_letters()}; {self._how()}"
        )

    def _by_routes(self) -> str:
        """Return what is proven about sinks with routes: they have all rows that were routed to them."""
        if not self._routed:
            return ""
        number = self._sums["elsewhere"]
        return f"; each sink with routes holds every row that was routed to it, and {number} rows were routed elsewhere"

    def _by_letters(self) -> str:
        """Return what is proven about sinks without manifests."""
        return "".join(f"; {letters} can be read back" for letters in self._letters)

    def _how(self) -> str:
        if not self._deep:
            return "by manifests, names and sizes, and dead letters by their bytes: --deep also reads the other files"
        if not self._offsets:
            return "by digests and row counts: items of this source are not offsets"
        return (
            "by the offsets in the files" if self._exact else "by digests and row counts: the format keeps no offsets"
        )

    def _count(self, proof: PartitionProof) -> None:
        self._partitions += 1
        self.unread += proof.unread
        for name in self._sums:
            self._sums[name] += getattr(proof, name) or 0
        self._routed = self._routed or proof.elsewhere is not None
        self._exact = self._exact and (proof.exact or not proof.files)
        self._doubtful_partitions += bool(proof.doubts.number)
        if proof.verdict == PROVEN and not self._everything:
            return
        if len(self._rows) < MOST_ROWS:
            self._rows.append(_cells(proof))
        else:
            self._left_out += 1

    @staticmethod
    def _plural(number: int, word: str) -> str:
        return f"{number} {word}" if number == 1 else f"{number} {word}s"


def _keep(sentences: list[str], name: str, found: Findings) -> None:
    room = MOST_SENTENCES - len(sentences)
    sentences += [f"{name}: {sentence}" for sentence in found.sentences()[:room]]


def _cells(proof: PartitionProof) -> tuple[Any, ...]:
    counts = (proof.commits, proof.files, proof.rows, proof.gaps, proof.dead_letters, proof.absent, proof.elsewhere)
    return (proof.sink, proof.key, _shown(proof.start), _shown(proof.end), *counts, proof.verdict)


def _shown(position: Any) -> Any:
    """Return an offset as a number, and other positions as JSON."""
    if isinstance(position, dict) and list(position) == ["offset"]:
        return position["offset"]
    return None if position is None else json.dumps(position)
