"""The handler of the demonstration: notes what it gets, one line per record, in a file of its worker."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any


def init_context(context: Any) -> None:
    node, folder = os.environ.get("DEMO_NODE", "node"), Path(os.environ.get("DEMO_HANDLED", "build/function/handled"))
    folder.mkdir(parents=True, exist_ok=True)
    context.user_data.node = node
    context.user_data.lines = (folder / f"{node}-{os.getpid()}").open("a", buffering=1)


def handler(context: Any, event: Any) -> None:
    # One write per line: what was noted is there, also if the process is killed right after it.
    context.user_data.lines.write(f"{event.shard_id} {event.offset} {context.user_data.node} {time.time()}\n")
