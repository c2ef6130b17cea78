"""Plugins that a configuration file of these tests names by their place."""

from __future__ import annotations

from typing import Any, NoReturn

from holdfast.config.options import Options
from holdfast.config.secrets import Secret
from holdfast.errors import StoreUnavailable
from holdfast.registry import Plugin


class NoSettings(Options):
    """Nothing to set."""


class WithPassword(Options):
    """One secret."""

    password: Secret | None = None


def _never(*_: Any) -> NoReturn:
    raise AssertionError("commands that only look never build this")


def _away(_: Any) -> NoReturn:
    raise StoreUnavailable("db.example.com:5432 does not answer")


def _broken(_: Any) -> NoReturn:
    raise KeyError("a programming error\nover two lines")


SOURCE = Plugin("fake_source", WithPassword, _never, "A source that is never read.")
SINK = Plugin("fake_sink", NoSettings, _never, "A sink that is never written.")
LETTERLESS_SINK = Plugin("letterless", NoSettings, lambda *_: object(), "A sink whose dead letters cannot be read.")
AWAY = Plugin("away", NoSettings, _away, "A store that does not answer.")
BROKEN = Plugin("broken", NoSettings, _broken, "A store with a bug.")
