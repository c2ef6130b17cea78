"""Actions of people, as the audit log keeps them: who wants what, why, and what became of it. Pure, bounded in size."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from holdfast.errors import storable
from holdfast.leases.lease import Json

MOST_KEYS = 20
MOST_PROBLEMS = 20
LONGEST_NAME = 300
LONGEST_REASON = 1000
LONGEST_PARAMETERS = 4000
NOT_RECORDED = "the outcome is not known: the action is still running, or its process died before it could record one"


class Verdict(StrEnum):
    """What became of an action."""

    DONE = "done"
    PARTLY = "partly"
    REFUSED = "refused"
    """Nothing was done."""
    UNKNOWN = "unknown"
    """It may or may not be done."""


@dataclass(frozen=True, slots=True)
class Request:
    """Who wants something, through what, and why."""

    who: str
    via: str
    """`cli`, `web` or `api`."""
    origin: str = ""
    """The host of a command, or the address of a client."""
    reason: str = ""
    idempotency_key: str | None = None
    """Names the request: repeated with the same key by the same person, it is carried out once."""

    def row(self) -> dict[str, Json]:
        """The request as an entry of the audit log keeps it."""
        return {
            "who": short(self.who),
            "via": short(self.via),
            "origin": short(self.origin),
            "reason": short(self.reason, LONGEST_REASON),
        }


@dataclass(frozen=True, slots=True)
class Action:
    """What is to be done: its name, such as `partitions release`, and what it is done to."""

    name: str
    pipeline: str = ""
    keys: Sequence[str] = ()
    number: int | None = None
    """How many partitions it is about; unless given, as many as `keys`."""
    parameters: Mapping[str, Json] = field(default_factory=dict)
    named: Json = None
    """What the person has named, such as a filter, if that is not `keys`."""

    def row(self) -> dict[str, Json]:
        """The action as an entry of the audit log keeps it: with the first keys only, and no long text."""
        parameters = _clean(dict(self.parameters))
        text = json.dumps(parameters)
        return {
            "action": short(self.name),
            "pipeline": short(self.pipeline),
            "keys": [short(key) for key in self.keys[:MOST_KEYS]],
            "number": (len(self.keys) or None) if self.number is None else self.number,
            "parameters": parameters if len(text) <= LONGEST_PARAMETERS else {"cut": text[:LONGEST_PARAMETERS]},
        }

    def digest(self) -> str:
        """A hash of what the person wants; it does not depend on which partitions a filter has found."""
        named = list(self.keys) if self.named is None else self.named
        return hash_of(self.name, self.pipeline, named, dict(self.parameters))


@dataclass(frozen=True, slots=True)
class ActionOutcome:
    """What became of an action. An outcome that is not recorded is unknown."""

    verdict: Verdict = Verdict.UNKNOWN
    message: str = NOT_RECORDED
    done: int | None = None
    """How many partitions were changed, if it was about partitions."""
    problems: Sequence[str] = ()
    """What was not done and why, the first of them."""
    run: str | None = None
    """The run that carries the action out."""
    error: str | None = None
    """The class of the error that has ended the action."""
    ended_at: float | None = None

    @classmethod
    def of(cls, state: Json) -> ActionOutcome:
        """The outcome as it is stored; unknown if there is none, or if a later version has written another kind."""
        if not isinstance(state, dict) or state.get("outcome") not in set(Verdict):
            return cls()
        return cls(
            Verdict(state["outcome"]),
            state.get("message", ""),
            state.get("done"),
            state.get("problems", ()),
            state.get("run"),
            state.get("error"),
            state.get("ended_at"),
        )

    def row(self) -> dict[str, Json]:
        """The outcome for people and programs, and as it is stored."""
        return {
            "outcome": self.verdict.value,
            "message": short(self.message, LONGEST_REASON),
            "done": self.done,
            "problems": [short(problem, LONGEST_REASON) for problem in self.problems[:MOST_PROBLEMS]],
            "run": self.run,
            "error": self.error,
            "ended_at": self.ended_at,
        }


@dataclass(frozen=True, slots=True)
class Entry:
    """One action in the audit log."""

    id: str
    fields: Mapping[str, Json]
    outcome: ActionOutcome
    repeated: bool = False
    """Whether an earlier request with the same idempotency key has made this entry: nothing is left to do."""

    def row(self) -> dict[str, Json]:
        """The entry for people and programs."""
        return {"id": self.id, **self.fields, **self.outcome.row()}


def short(text: str, most: int = LONGEST_NAME) -> str:
    """The text as a row can keep it, cut if it is longer than `most`."""
    kept = storable(text)
    return kept if len(kept) <= most else f"{kept[: most - 1]}…"


def hash_of(*parts: Json) -> str:
    """A hash of these values."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _clean(value: Json) -> Json:
    if isinstance(value, str):
        return short(value, LONGEST_REASON)
    if isinstance(value, dict):
        return {short(str(name)): _clean(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_clean(part) for part in value]
    return value
