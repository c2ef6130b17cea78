"""Behaviour suites for plugins, and fakes: public, for people who write plugins.

`docs/testing.md` says how a suite is used. Register the assertions before the first import, in `conftest.py`:

    pytest.register_assert_rewrite("holdfast.testing")
"""

from importlib import import_module
from typing import Any

_PUBLIC = {
    "holdfast.testing.buckets": "BucketBehaviour",
    "holdfast.testing.flows": "HandEngine MemoryBucket NumbersSource",
    "holdfast.testing.formats": "FormatBehaviour",
    "holdfast.testing.processors": "ProcessorBehaviour",
    "holdfast.testing.proxy": "TcpProxy",
    "holdfast.testing.sinks": "SinkBehaviour",
    "holdfast.testing.sources": "SourceBehaviour",
    "holdfast.testing.store_outages": "OutageBehaviour",
    "holdfast.testing.stores": "StoreBehaviour StoreMachine",
    "holdfast.testing.worlds": "TurnableClock",
}
"""Public names by module. Each is loaded when it is first used, so that importing this package loads nothing else."""
_MODULES = {name: module for module, names in _PUBLIC.items() for name in names.split()}

__all__ = list(_MODULES)


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
