"""`holdfast function`: write a function, and try it."""

from __future__ import annotations

import keyword
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli import output
from holdfast.cli.exit_codes import ExitCode
from holdfast.cli.options import AsJson, PipelineName, text_of
from holdfast.errors import UsageError

if TYPE_CHECKING:
    from holdfast.flow.shards import StreamRecord
    from holdfast.functions.function import Invocation
    from holdfast.functions.settings import FunctionConfig

FunctionName = Annotated[str, typer.Argument(metavar="NAME", help="Name of the function, and of its Python module.")]
Folder = Annotated[Path, typer.Option("--folder", metavar="PATH", help="Where the function's folder is made.")]
FunctionFile = Annotated[
    str,
    typer.Argument(
        metavar="FILE",
        help="A Python file with a handler (FILE.py or FILE.py:NAME), a pipeline file with a function, or Nuclio's "
        "function.yaml.",
    ),
]
Events = Annotated[
    list[str],
    typer.Option("--event", metavar="TEXT", help="Body of the event; @PATH reads a file, - stdin. May be repeated."),
]
Headers = Annotated[
    list[str] | None, typer.Option("--header", metavar="NAME=VALUE", help="Header of the events. May be repeated.")
]
HandlerOption = Annotated[
    str | None, typer.Option("--handler", metavar="NAME", help="The function in a Python file; handler unless given.")
]
ShardId = Annotated[int, typer.Option("--shard-id", metavar="N", help="The shard of the events.")]
_HANDLER = '''"""Called for every record of a stream, in order per shard."""


def init_context(context):
    """Called once per worker, before the first record."""
    context.user_data.count = 0


def handler(context, event):
    """Called for one record. An exception means: try again later. The record is done when this returns."""
    context.user_data.count += 1
    context.logger.info_with("Got event", shard_id=event.shard_id, offset=event.offset, size=event.size)
'''

_TEST = """from holdfast.testing import RecordingContext, call_handler, stream_event

from {name} import handler, init_context


def test_every_record_is_counted_and_logged():
    context = RecordingContext()
    init_context(context)
    for offset in (0, 1):
        call_handler(handler, context, stream_event(b"hello", shard_id=3, offset=offset))
    assert context.user_data.count == 2
    assert context.logged[0]["message"] == "Got event"
"""


def init(name: FunctionName, folder: Folder = Path()) -> None:
    """Create a handler and its test, to start from."""
    for path in create_function(name, folder):
        output.say(str(path))


def invoke(
    file: FunctionFile,
    event: Events,
    header: Headers = None,
    handler: HandlerOption = None,
    shard_id: ShardId = 0,
    pipeline: PipelineName = None,
    json: AsJson = False,
) -> None:
    """Call a handler with events, in this process: no stream, no store, no Spark. Its log goes to stderr.

    Nothing is tried again. Exits with 1 if a call fails.
    """
    from holdfast.functions.events import EventOrigin, TriggerInfo
    from holdfast.functions.function import invoke as call_function

    config = _config(file, handler, pipeline)
    for warning in config.warnings():
        output.tell(f"warning: {warning}")
    origin = EventOrigin("invoke", shard_id, TriggerInfo("invoke", "invoke"))
    calls = call_function(config, _records(event, header or [], str(shard_id)), origin)
    if json:
        output.say_json([_shown(call) for call in calls])
    else:
        for call in calls:
            _say(call)
    if any(call.error is not None for call in calls):
        raise typer.Exit(ExitCode.DOUBT)


def _config(file: str, handler: str | None, pipeline: str | None) -> FunctionConfig:
    from holdfast.functions.settings import FunctionConfig
    from holdfast.functions.settings_file import function_settings
    from holdfast.sinks.function.config import FunctionSinkConfig

    source, _, name = file.rpartition(":")
    if source.endswith(".py"):
        if not name:
            raise UsageError(f"{file} names no handler after the colon")
        if handler is not None:
            raise UsageError(f"{file} names its handler already; leave out --handler")
        file, handler = source, name
    if not file.endswith(".py"):
        if handler is not None:
            raise UsageError("--handler is for Python files; this file names its handler itself")
        # Handlers are beside the file, as Nuclio has them.
        sys.path.insert(0, str(Path(file).resolve().parent))
        return function_settings(text_of(file), file, pipeline, FunctionSinkConfig)
    if pipeline is not None:
        raise UsageError("--pipeline is for pipeline files")
    return FunctionConfig(handler=file if handler is None else f"{file}:{handler}")


def _records(events: list[str], headers: list[str], shard: str) -> list[StreamRecord]:
    from holdfast.flow.shards import StreamRecord

    wrong = [header for header in headers if "=" not in header]
    if wrong:
        raise UsageError(f"the header {wrong[0]!r} must be NAME=VALUE")
    pairs = tuple((name, value.encode()) for name, _, value in (header.partition("=") for header in headers))
    now = int(time.time() * 1000)
    return [StreamRecord(shard, offset, now, None, pairs, _body(text)) for offset, text in enumerate(events)]


def _body(text: str) -> bytes:
    if text == "-":
        return sys.stdin.buffer.read()
    if not text.startswith("@"):
        return text.encode("utf-8", "surrogateescape")
    try:
        return Path(text[1:]).read_bytes()
    except OSError as error:
        raise UsageError(f"the event {text} cannot be read: {error}") from None


def _shown(call: Invocation) -> dict[str, Any]:
    return {
        "offsets": list(call.offsets),
        "result": _plain(call.result),
        "error": call.error,
        "acked": call.acked,
        "explicit_acks": [[ack.partition, ack.offset] for ack in call.explicit_acks],
    }


def _plain(result: Any) -> Any:
    """The result as JSON: a response becomes its status and body, and a value that JSON does not have becomes text."""
    from holdfast.observe.json_values import plain

    if hasattr(result, "status_code"):
        return {"status_code": result.status_code, "body": _plain(result.body), "headers": _plain(result.headers)}
    if isinstance(result, bytes):
        return result.decode("utf-8", "replace")
    return plain(result)


def _say(call: Invocation) -> None:
    offsets = ", ".join(map(str, call.offsets))
    if call.error is not None:
        output.say(f"event {offsets}: failed: {call.error.splitlines()[0]}")
        return
    acks = "acked" if call.acked else "not acked"
    explicit = ", ".join(f"{ack.partition}/{ack.offset}" for ack in call.explicit_acks)
    output.say(f"event {offsets}: {acks}{f'; explicit acks: {explicit}' if explicit else ''}; returned {call.result!r}")


def create_function(name: str, folder: Path) -> list[Path]:
    """Write a handler and its test into `folder/name`, and return their paths. Raises `UsageError` if one exists."""
    if not name.isidentifier() or keyword.iskeyword(name):
        raise UsageError(f"{name!r} cannot be the name of a Python module; use letters, digits and underscores")
    files = {folder / name / f"{name}.py": _HANDLER, folder / name / f"test_{name}.py": _TEST.format(name=name)}
    for path in files:
        if path.exists():
            raise UsageError(f"{path} exists already; nothing was written")
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return list(files)
