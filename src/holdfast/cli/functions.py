"""`holdfast function`: write a function, and try it."""

from __future__ import annotations

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
        metavar="FILE", help="A Python file with a handler, a pipeline file with a function, or Nuclio's function.yaml."
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


def init(name: FunctionName, folder: Folder = Path()) -> None:
    """Make a handler and its test, to begin with."""
    from holdfast.functions.scaffold import create_function

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
    """The result as JSON has it: a response by its status and body, what JSON does not have as text."""
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
