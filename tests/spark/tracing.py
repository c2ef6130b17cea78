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
    """The modules that were visited while it was `recording`, in order of the first call.

    For each the function that was called first; of functions with one line alone, such as accessors and the defaults of
    interfaces, one is kept only if no other function of the module was called.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.recording = False
        self.visits: dict[str, str] = {}
        self.read: dict[str, str] = {}
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
        if self.recording and is_function and is_walked(module) and module not in self.read:
            self.visits.setdefault(module, code.co_qualname)
            if len({line for *_, line in code.co_lines()} - {code.co_firstlineno, None}) > 1:
                self.read[module] = code.co_qualname

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

    def in_the_task(self, work: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
        """The function that a task runs, which then leaves the modules that it has visited in the folder."""
        folder = str(self.folder)

        def traced(*given: Any) -> Iterator[Any]:
            # By value, with nothing but the standard library: the worker need not find this module.
            import json
            import sys
            import threading
            import uuid
            from pathlib import Path

            visits: dict[str, str] = {}
            read: dict[str, str] = {}
            importing = [0]

            def profile(frame: Any, event: str, _argument: Any) -> None:
                code = frame.f_code
                if code.co_name == "<module>":
                    importing[0] += {"call": 1, "return": -1}.get(event, 0)
                elif event == "call" and importing[0] == 0 and code.co_flags & 1 and code.co_filename != "<string>":
                    module = frame.f_globals.get("__name__", "")
                    if module.startswith("holdfast.") and module not in read:
                        visits.setdefault(module, code.co_qualname)
                        if len({line for *_, line in code.co_lines()} - {code.co_firstlineno, None}) > 1:
                            read[module] = code.co_qualname

            threading.setprofile(profile)
            sys.setprofile(profile)
            try:
                yield from work(*given)
            finally:
                sys.setprofile(None)
                threading.setprofile(None)
                Path(folder, f"{uuid.uuid4().hex}.json").write_text(json.dumps([visits, read]))

        return traced

    def modules(self) -> dict[str, str | None]:
        """Modules, those of the node first, and a function of more than one line that was called; None if none was."""
        visits, read = dict(self.visits), dict(self.read)
        for file in sorted(self.folder.glob("*.json")):
            of_task, read_in_task = json.loads(file.read_text())
            visits |= {module: function for module, function in of_task.items() if module not in visits}
            read = {**read_in_task, **read}
        return {module: read.get(module) for module in visits if is_walked(module)}
