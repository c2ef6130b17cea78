"""What can go wrong, and how much of it does in one seed.

Swarm testing: each seed enables a random subset of kinds, each with a random strength. A seed with few kinds goes deep
into them, one with many mixes them; together they find more than one recipe for all would.
"""

from __future__ import annotations

import random

STORE_CALLS = ("store_request_lost", "store_answer_lost", "store_write_late", "store_write_twice", "store_slow")
BUCKET_CALLS = ("bucket_request_lost", "bucket_answer_lost", "bucket_write_late", "bucket_slow")
NODE = ("crash", "pause", "freeze", "preempt", "clock", "stop")
PEOPLE = ("row_touched",)
OUTAGES = ("store_down", "bucket_down")
DAMAGE = ("store_rolled_back", "row_rolled_back", "staged_expired", "foreign_object")
SOURCE = ("source_unavailable", "source_waits", "poison")
ENGINE = (
    "batch_failed",
    "batch_unavailable",
    "batch_hangs",
    "batch_slow",
    "batch_cut_short",
    "report_late",
    "report_after_cancel",
    "executor_outlives",
    "parser_varies",
)
HANDLER = ("ack_lost",)
ELSEWHERE = ("ack_elsewhere",)

FILES_KINDS = STORE_CALLS + BUCKET_CALLS + NODE + PEOPLE + OUTAGES + DAMAGE + SOURCE + ENGINE
STREAM_KINDS = (
    *STORE_CALLS,
    *NODE,
    *PEOPLE,
    "store_down",
    "store_rolled_back",
    "row_rolled_back",
    "source_unavailable",
    "batch_failed",
    "report_late",
    "report_after_cancel",
    *HANDLER,
)
OUTPUT_KINDS = (*STREAM_KINDS, *BUCKET_CALLS, *OUTAGES, "staged_expired")
LASTING_KINDS = tuple(kind for kind in FILES_KINDS if kind not in {"store_rolled_back", "row_rolled_back"})
"""For worlds in which everything must come to its end: a partition whose row has lost writes stands still."""
LETTER_KINDS = tuple(kind for kind in LASTING_KINDS if kind not in {"staged_expired", "foreign_object", "poison"})
"""What a redrive has committed and cannot publish any more is left to people."""
LEASE_KINDS = (*STORE_CALLS, *NODE, *PEOPLE, "store_down")
"""For worlds without batches; nothing is ever lost there, so that every token can be judged."""
ROLL_OUT_KINDS = tuple(kind for kind in FILES_KINDS if kind != "staged_expired")
"""Staged data that is gone ends a partition whose parsing no node has any more: that is for `REBUILD_KINDS`."""
WIDE_KINDS = ("crash", "stop", "store_answer_lost", "bucket_answer_lost", "bucket_down", "report_late")
REBUILD_KINDS = (
    "store_answer_lost",
    "bucket_request_lost",
    "bucket_answer_lost",
    "bucket_down",
    "crash",
    "stop",
    "preempt",
    "staged_expired",
    "batch_failed",
    "batch_cut_short",
    "report_late",
    "executor_outlives",
    "parser_varies",
)
MONTHS_KINDS = (*STORE_CALLS, *NODE, *OUTAGES, "source_unavailable", "batch_unavailable", "batch_slow", "report_late")
"""For worlds in which every halt is judged: nothing is lost, and no batch fails by itself."""
PROMOTION_KINDS = ("crash", "pause", "index_answer_lost", "index_write_late")
SPLIT_KINDS = (
    *LEASE_KINDS,
    "source_unavailable",
    "source_waits",
    "batch_unavailable",
    "batch_slow",
    "batch_cut_short",
    "report_late",
    "report_after_cancel",
    "executor_outlives",
)
"""For worlds in which every item must be committed once: no batch fails by itself."""
FORWARD_KINDS = (*STREAM_KINDS, *ELSEWHERE)
ALL_KINDS = (*FILES_KINDS, *HANDLER, *ELSEWHERE)

RARE = frozenset(("store_rolled_back", "row_rolled_back", "foreign_object", "poison", "staged_expired"))
"""Kinds after which less can be demanded, so most seeds go without them."""


class Faults:
    """The kinds that are enabled in one seed, each with a strength from 0 to 1, and how often each one struck."""

    def __init__(self, dice: random.Random, kinds: tuple[str, ...]) -> None:
        share = dice.random() * 0.7
        self._strength = {
            kind: dice.random() for kind in kinds if dice.random() < (share * 0.5 if kind in RARE else share)
        }
        self.struck: dict[str, int] = {}
        self.active = True

    def __getitem__(self, kind: str) -> float:
        """Strength of the kind; 0 when it is not enabled, or when the time of faults is over."""
        return self._strength.get(kind, 0.0) if self.active else 0.0

    def enables(self, kind: str) -> bool:
        """Whether the kind belongs to this seed, also when the time of faults is over."""
        return kind in self._strength

    @property
    def enabled(self) -> dict[str, float]:
        return dict(self._strength)

    def strike(self, kind: str) -> None:
        """Count one that happened."""
        self.struck[kind] = self.struck.get(kind, 0) + 1

    def happens(self, dice: random.Random, kind: str, likely: float) -> bool:
        """Whether a fault of that kind happens now, given its likelihood at full strength. Counts it."""
        strength = self._strength.get(kind, 0.0) if self.active else 0.0
        if strength == 0.0 or dice.random() >= strength * likely:
            return False
        self.strike(kind)
        return True

    def end(self) -> None:
        """From now on nothing goes wrong any more."""
        self.active = False


class CallFaults:
    """Faults of calls over one network, cheap to ask on every call."""

    def __init__(self, faults: Faults, kinds: tuple[str, ...], likely: float) -> None:
        self._faults = faults
        self._steps: list[tuple[float, str]] = []
        total = 0.0
        for kind in kinds:
            if faults[kind]:
                total += faults[kind] * likely
                self._steps.append((total, kind))
        self.total = total

    def pick(self, roll: float) -> str | None:
        """The fault that a roll of the dice below `total` means."""
        if not self._faults.active:
            return None
        for limit, kind in self._steps:
            if roll < limit:
                return kind
        return None
