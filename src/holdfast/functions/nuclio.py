"""What handlers written for Nuclio import: its SDK if it is installed, and the module `nuclio`."""

from __future__ import annotations

import sys
from functools import cache
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from holdfast.functions.contexts import FunctionContext, FunctionResponse
from holdfast.functions.events import FunctionEvent, QualifiedOffset, TriggerInfo


@cache
def nuclio_sdk() -> ModuleType | None:
    """The package `nuclio_sdk`, or None if it is not installed."""
    return import_module("nuclio_sdk") if find_spec("nuclio_sdk") else None


@cache
def event_class() -> type[FunctionEvent]:
    """The class of events: with Nuclio's SDK also a subclass of its `Event`."""
    sdk = nuclio_sdk()
    return type("NuclioEvent", (FunctionEvent, sdk.Event), {"__reduce__": _reduce}) if sdk else FunctionEvent


def _reduce(event: FunctionEvent) -> tuple[Any, ...]:
    return _remake, (), vars(event)


def _remake() -> FunctionEvent:
    # The class is made at run time, so pickle cannot find it by name.
    return object.__new__(event_class())


def response_class() -> type[Any]:
    """The class that handlers find as `context.Response`: that of Nuclio's SDK if it is installed."""
    sdk = nuclio_sdk()
    return sdk.Response if sdk else FunctionResponse


def provide_nuclio() -> None:
    """Make `import nuclio` work, with `QualifiedOffset` in it. May be repeated.

    Nuclio's documentation uses that module, but no package has that class in it. If a package `nuclio` is installed, it
    keeps its other contents.
    """
    sdk = nuclio_sdk()
    if "nuclio" in sys.modules or find_spec("nuclio"):
        module = import_module("nuclio")
    else:
        module = sys.modules["nuclio"] = ModuleType("nuclio", "Names for handlers written for Nuclio.")
        # Without one, find_spec raises where others ask whether nuclio is installed.
        module.__spec__ = ModuleSpec("nuclio", None)
    names = {
        "Context": FunctionContext,
        "Event": FunctionEvent,
        "QualifiedOffset": QualifiedOffset,
        "Response": FunctionResponse,
        "TriggerInfo": TriggerInfo,
    }
    for name, ours in names.items():
        if not hasattr(module, name):
            setattr(module, name, getattr(sdk, name, ours))
