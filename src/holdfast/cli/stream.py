"""`holdfast stream`: creates, fills, shows and deletes embedded streams."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli import output
from holdfast.cli.options import AsJson
from holdfast.errors import SourceUnavailable, UsageError

if TYPE_CHECKING:
    from holdfast.sources.stream.stream import ShardView, Stream

Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the stream.")]
Folder = Annotated[
    str | None,
    typer.Option(
        "--folder",
        metavar="FOLDER",
        help="Folder of streams; $HOLDFAST_STREAMS or ~/.local/share/holdfast/streams unless given.",
    ),
]
Shards = Annotated[int, typer.Option("--shards", metavar="N", help="Number of shards.")]
Retention = Annotated[
    str, typer.Option("--retention", metavar="TIME", help="How long records are kept at least, or `forever`.")
]
Durability = Annotated[
    str,
    typer.Option(
        "--durability",
        metavar="KIND",
        help="What appended records survive: `process`, the end of any process; `disk`, also a crash of the host.",
    ),
]
ShardId = Annotated[
    int | None, typer.Option("--shard-id", metavar="N", help="Number of the shard; from --key unless given.")
]
Data = Annotated[str | None, typer.Option("--data", metavar="TEXT", help="Body of the record.")]
DataFile = Annotated[
    str | None, typer.Option("--file", metavar="FILE", help="A file with one record per line; - is stdin.")
]
Key = Annotated[str | None, typer.Option("--key", metavar="TEXT", help="Key of the records.")]
Yes = Annotated[bool, typer.Option("--yes", metavar="", help="Do not ask for confirmation.")]

COLUMNS = ("SHARD", "FIRST", "END", "RECORDS", "BYTES", "OLDEST")
PORTION = 500
"""Lines of a file that are appended together."""


def create(
    name: Name,
    shards: Shards = 1,
    retention: Retention = "24h",
    durability: Durability = "process",
    folder: Folder = None,
) -> None:
    """Create a stream: shards as append-only files in a folder of this host."""
    from holdfast.sources.stream.stream import Stream, StreamSettings

    if durability not in ("process", "disk"):
        raise UsageError(f"--durability: {durability!r} is neither process nor disk")
    settings = StreamSettings(shards, _retention(retention), "disk" if durability == "disk" else "process")
    stream = Stream.create(_folder(folder), name, settings)
    output.say(f"stream {name} has {_number(shards, 'shard')} in {stream.path}")


def put(
    name: Name,
    shard_id: ShardId = None,
    data: Data = None,
    file: DataFile = None,
    key: Key = None,
    folder: Folder = None,
) -> None:
    """Append records to a shard: one with --data, or one per line with --file.

    Records are durable when the command has printed their offsets.
    """
    from holdfast.sources.stream.frames import NewRecord

    if (data is None) == (file is None):
        raise UsageError("give either --data or --file")
    key_bytes = None if key is None else _bytes(key)
    with _opened(name, folder) as stream:
        shard = _shard(stream, shard_id, key_bytes)
        lines = iter([_bytes(data)]) if data is not None else _lines(file or "-")
        first, end = None, None
        while portion := [NewRecord(line, key_bytes) for line in islice(lines, PORTION)]:
            begin, end = stream.append(shard, portion)
            first = begin if first is None else first
        output.say(
            f"shard {shard}: nothing to append"
            if first is None
            else f"shard {shard}: offsets {first} to {(end or 1) - 1}"
        )


def show(name: Name, folder: Folder = None, json: AsJson = False) -> None:
    """Show the shards of a stream: their offsets, sizes and the time of their oldest records."""
    with _opened(name, folder) as stream:
        views = [stream.view(number) for number in range(stream.settings.shards)]
        settings = stream.settings
    if json:
        output.say_json(
            {
                "name": name,
                "path": str(stream.path),
                "id": stream.id,
                "retention": settings.retention,
                "durability": settings.durability,
                "shards": [dict(zip((c.lower() for c in COLUMNS), _cells(view), strict=True)) for view in views],
            }
        )
        return
    output.say_table(COLUMNS, [_cells(view) for view in views])
    kept = "for ever" if settings.retention is None else f"for {_duration(settings.retention)}"
    output.tell(f"{stream.path}: kept {kept}, durability {settings.durability}")


def list_streams(folder: Folder = None, json: AsJson = False) -> None:
    """List the streams of a folder."""
    from holdfast.sources.stream.stream import stream_names

    names = stream_names(_folder(folder))
    if json:
        output.say_json(names)
    else:
        for name in names:
            output.say(name)


def delete(name: Name, yes: Yes = False, folder: Folder = None) -> None:
    """Delete a stream with all its records."""
    with _opened(name, folder) as stream:
        if yes or output.confirm(f"Delete stream {name} with all its records?", otherwise="--yes"):
            stream.delete()
            output.say(f"stream {name} is deleted")
        else:
            output.say("nothing was changed")


@contextmanager
def _opened(name: str, folder: str | None) -> Iterator[Stream]:
    from holdfast.sources.stream.stream import Stream, stream_names

    where = _folder(folder)
    try:
        stream = Stream.open(where, name)
    except SourceUnavailable:
        from holdfast.registry import did_you_mean

        # A command of a person: a name that is not there is a mistake, not an outage.
        if (where / name).exists():
            raise
        raise UsageError(f"there is no stream {name!r} in {where}{did_you_mean(name, stream_names(where))}") from None
    with closing(stream):
        yield stream


def _folder(given: str | None) -> Path:
    from holdfast.sources.stream.stream import default_folder

    return default_folder() if given is None else Path(given)


def _shard(stream: Stream, shard_id: int | None, key: bytes | None) -> int:
    from zlib import crc32

    if shard_id is not None:
        return shard_id
    if key is not None:
        return crc32(key) % stream.settings.shards
    if stream.settings.shards == 1:
        return 0
    raise UsageError(f"stream {stream.name} has {stream.settings.shards} shards; give --shard-id or --key")


def _lines(file: str) -> Iterator[bytes]:
    """Yield the lines of a file or of stdin, without their line ends."""
    if file == "-":
        yield from (line.removesuffix(b"\n") for line in sys.stdin.buffer)
        return
    try:
        with Path(file).open("rb") as opened:
            yield from (line.removesuffix(b"\n") for line in opened)
    except OSError as error:
        raise UsageError(f"--file: {file}: {error.strerror}") from None


def _bytes(text: str) -> bytes:
    # An argument that is not UTF-8 comes with its bytes escaped.
    return text.encode("utf-8", "surrogateescape")


def _retention(text: str) -> float | None:
    from holdfast.config.units import parse_duration

    if text == "forever":
        return None
    try:
        return parse_duration(text)
    except ValueError as error:
        raise UsageError(f"--retention: {text!r} {error}, or `forever`") from None


def _duration(seconds: float) -> str:
    from holdfast.config.units import format_duration

    return format_duration(seconds)


def _cells(view: ShardView) -> tuple[object, ...]:
    oldest = None
    if view.oldest is not None:
        oldest = datetime.fromtimestamp(view.oldest / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"
    return (view.number, view.first, view.end, view.end - view.first, view.bytes, oldest)


def _number(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
