"""The files that `holdfast function init` makes."""

from __future__ import annotations

import keyword
from pathlib import Path

from holdfast.errors import UsageError

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
