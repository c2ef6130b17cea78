"""Everything that is fuzzed."""

from __future__ import annotations

from functools import cache

from tests.fuzz.codec_targets import codec_targets
from tests.fuzz.message_targets import message_targets
from tests.fuzz.response_targets import response_targets
from tests.fuzz.target import Target


@cache
def all_targets() -> tuple[Target, ...]:
    return (*response_targets(), *codec_targets(), *message_targets())
