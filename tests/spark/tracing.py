"""Which modules of holdfast one record visits, in order of their first call, on the node and inside the task."""

from __future__ import annotations

import inspect
import json
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

NOT_WALKED = {"assemble", "cli", "config", "events", "errors", "observe", "registry", "service", "testing"}
"""What configures, reports and observes, also in a plugin; a record does not pass through it."""


def is_walked(module: str) -> bool:
    """Whether a record passes through that module."""
    return module.startswith("holdfast.") and NOT_WALKED.isdisjoint(module.split("."))


class Walk:
    """The functions that were called first of each module, in order, while it was `recording`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.recording = False
        self.visits: dict[str, str] = {}
        folder.mkdir()

    @contextmanager
    def recorded(self) -> Iterator[None]:
        """What is called meanwhile, on any thread, belongs to the walk."""
        self.recording = True
        try:
            yield
        finally:
            self.recording = False

    def note(self, code: CodeType, module: str) -> None:
        # Bodies of modules and classes are run by imports, and methods of dataclasses are nowhere to be read.
        is_function = code.co_flags & inspect.CO_OPTIMIZED and code.co_filename != "<string>"
        if self.recording and is_function and is_walked(module):
            self.visits.setdefault(module, code.co_qualname)

    @contextmanager
    def on_the_node(self) -> Iterator[None]:
        """Follow every thread that is started meanwhile, and this one."""

        def profile(frame: FrameType, event: str, _argument: Any) -> None:
            if event == "call":
                self.note(frame.f_code, frame.f_globals.get("__name__", ""))

        threading.setprofile(profile)
        sys.setprofile(profile)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)

    def in_the_task(self, work: Callable[[Iterator[Any]], Iterator[Any]]) -> Callable[[Iterator[Any]], Iterator[Any]]:
        """The function that a task runs, which then leaves the modules that it has visited in the folder."""
        folder = str(self.folder)

        def traced(portions: Iterator[Any]) -> Iterator[Any]:
            # By value, with nothing but the standard library: the worker need not find this module.
            import json
            import sys
            import threading
            import uuid
            from pathlib import Path

            visits: dict[str, str] = {}
            importing = [0]

            def profile(frame: Any, event: str, _argument: Any) -> None:
                code = frame.f_code
                if code.co_name == "<module>":
                    importing[0] += {"call": 1, "return": -1}.get(event, 0)
                elif event == "call" and importing[0] == 0 and code.co_flags & 1 and code.co_filename != "<string>":
                    module = frame.f_globals.get("__name__", "")
                    if module.startswith("holdfast."):
                        visits.setdefault(module, code.co_qualname)

            threading.setprofile(profile)
            sys.setprofile(profile)
            try:
                yield from work(portions)
            finally:
                sys.setprofile(None)
                threading.setprofile(None)
                Path(folder, f"{uuid.uuid4().hex}.json").write_text(json.dumps(visits))

        return traced

    def modules(self) -> dict[str, str]:
        """Modules and their first functions: those of the node, then those that only tasks have visited."""
        found = dict(self.visits)
        for file in sorted(self.folder.glob("*.json")):
            for module, function in json.loads(file.read_text()).items():
                if is_walked(module):
                    found.setdefault(module, function)
        return found
