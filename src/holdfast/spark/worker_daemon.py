"""pyspark's daemon of Python workers, with six differences. Spark runs this module with `python -m`.

When a session stops, the JVM closes the socket of an idle worker and sends it a signal. A worker that notices the
socket first would print a traceback about a broken pipe, although nothing was lost. This traceback is not printed;
every other is.

The daemon collects garbage after every task, and would traverse the objects of all loaded modules each time, for a
tenth of a second. When a task has left many objects, those that outlive a collection are frozen: later collections skip
them. During a task the collector runs less often than Python's default: the rows of a page are many short-lived objects
without cycles.

Workers have a limit of memory. A batch that needs more fails with a MemoryError; without the limit the operating system
would end the JVM or another process.

Modules that are named in the environment are imported before workers are forked, which then begin with them: a worker
of a function that has died is replaced half a second earlier, and a round after a pause, in which Spark has ended idle
workers, begins at once. Objects of these modules are frozen, too.

Spark puts archives of pyspark and of its own classes before the installed package that they belong to. Modules of an
archive have no cached bytecode, and each new worker would read the directories of these archives a dozen times, for a
third of a second. The installed package is used.

Modules of a folder that is named in the environment are found after all others. In PYTHONPATH the folder would come
before the standard library, and a file `secrets.py` in it would hide the module that numpy needs.
"""

from __future__ import annotations

import gc
import os
import resource
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

MEMORY = "HOLDFAST_WORKER_MEMORY"
"""The environment variable with the limit of memory, in bytes."""
PRELOAD = "HOLDFAST_WORKER_PRELOAD"
"""The environment variable with the names of modules to import, separated by commas."""
MODULES = "HOLDFAST_WORKER_MODULES"
"""The environment variable with a folder of further modules."""
MANY = 10_000
"""Number of objects that the collector traverses in a millisecond or two."""
COLLECT_AFTER = 20_000
"""Number of new objects after which the collector runs; a page of rows has about as many."""
FREEZES = 8
"""Maximum number of freezes: each also keeps objects that later tasks no longer need."""


def quiet_on_hangup(print_traceback: Callable[..., None]) -> Callable[..., None]:
    """`print_traceback`, except for broken pipes of the daemon itself."""
    from pyspark import daemon

    def print_unless_hung_up(*args: Any, **kwargs: Any) -> None:
        error = sys.exception()
        if not (isinstance(error, BrokenPipeError) and _raised_in(error, daemon.__file__)):
            print_traceback(*args, **kwargs)

    return print_unless_hung_up


def _raised_in(error: BaseException, file: str) -> bool:
    frames = traceback.extract_tb(error.__traceback__)
    return bool(frames) and frames[-1].filename == file


def freezing_what_stays(work: Callable[..., Any]) -> Callable[..., Any]:
    """`work`, followed by a freeze of the objects that it has loaded, so that later collections skip them."""
    left = FREEZES

    def work_and_freeze(*args: Any, **kwargs: Any) -> Any:
        nonlocal left
        code = work(*args, **kwargs)
        if left and len(gc.get_objects()) > MANY:
            gc.collect()
            if len(gc.get_objects()) > MANY:
                gc.freeze()
                left -= 1
        return code

    return work_and_freeze


def limit_memory() -> None:
    """Limit the memory of this process, and that of each process that it forks, if the environment says so.

    What counts is memory that the process can write to and shares with no other: neither the code of libraries nor
    addresses that an allocator has only reserved.
    """
    if MEMORY in os.environ:
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        limit = int(os.environ[MEMORY])
        resource.setrlimit(resource.RLIMIT_DATA, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))


def prefer_installed_pyspark() -> None:
    """Take the archives of an installed pyspark off the path of modules. Must precede the first import of pyspark.

    Archives that belong to another installation of Spark stay: only they have its version of pyspark.
    """
    packages = [
        package for folder in sys.path if (package := Path(folder, "pyspark")).joinpath("__init__.py").is_file()
    ]
    for entry in [entry for entry in sys.path if any(Path(entry).is_relative_to(package) for package in packages)]:
        sys.path.remove(entry)
        sys.path_importer_cache.pop(entry, None)


def find_modules() -> None:
    """Let this process and those that it forks import modules of the folder that the environment names."""
    if MODULES in os.environ:
        sys.path.append(os.environ[MODULES])


def preload() -> None:
    """Import the modules that the environment names. Failures are left to the workers, which report them."""
    for name in filter(None, os.environ.get(PRELOAD, "").split(",")):
        with suppress(Exception):
            import_module(name)
    gc.collect()
    gc.freeze()


def run() -> None:
    """Serve the JVM until it closes the daemon's input."""
    prefer_installed_pyspark()
    from pyspark import daemon

    limit_memory()
    find_modules()
    preload()
    gc.set_threshold(COLLECT_AFTER)
    daemon.worker = freezing_what_stays(daemon.worker)
    traceback.print_exc = quiet_on_hangup(traceback.print_exc)
    daemon.manager()


if __name__ == "__main__":
    run()
