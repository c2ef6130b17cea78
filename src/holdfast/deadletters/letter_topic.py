"""A topic that gets a copy of each published dead letter, only once, however often the commit is published.

An attempt to send the letters of a commit

1. fences every earlier attempt for the same partition, by its transactional id: their open transactions are aborted;
2. creates a note of where the topic ends, or reads the one that an earlier attempt has created;
3. if there was a note, looks for letters of the commit from there to the end of the topic;
4. sends those that are missing in one transaction.

An attempt that commits was not fenced since it began, so that the next one begins after it and finds its letters.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol

from holdfast.config.kafka_client import LetterTopicOptions, client_properties
from holdfast.errors import BatchError, Halt, Unavailable
from holdfast.flow.kafka_columns import HEADERS, KEY, TOPIC, VALUE, columns_of_source
from holdfast.flow.letter import MAX_SPILLED_FIELD, CommittedLetters, Letter, decoded_bytes
from holdfast.flow.sink import Publication
from holdfast.leases.lease import Lease
from holdfast.registry import needing

SHARD = "shard"
"""Field of `source` in letters of functions."""
LETTER, COMMIT = "holdfast.letter", "holdfast.commit"
SILENCE = 5.0
"""Seconds for which brokers that did not respond are not called again: a step publishes many commits."""
OVERHEAD = 1024
"""Bytes that a message may have besides key, value and headers."""
PROGRESS_EVERY = 1000

Header = tuple[str, bytes | None]


@dataclass(frozen=True, slots=True)
class Message:
    """A message of the topic."""

    key: bytes | None
    value: bytes | None
    headers: Sequence[Header]

    @property
    def size(self) -> int:
        of_headers = sum(len(name.encode()) + len(value or b"") for name, value in self.headers)
        return len(self.key or b"") + len(self.value or b"") + of_headers + OVERHEAD


class TopicAttempt(Protocol):
    """An attempt to send letters. All calls block and raise `Unavailable`, also if a later attempt has begun."""

    def ends(self) -> dict[str, Any]:
        """The topic's id, and by partition (as text) the offset after its last message, uncommitted ones included."""

    def letters_since(
        self, offsets: Mapping[str, int], ends: Mapping[str, int], commit: str, progress: Callable[[], None]
    ) -> set[str]:
        """The letters of that commit in committed messages before `ends`; without an offset, from the start."""

    def send(self, message: Message) -> None:
        """Send a message in the transaction of this attempt. May return before it has arrived."""

    def commit(self) -> None:
        """Make all that was sent visible."""


@dataclass
class LetterTopic:
    """The topic of one sink."""

    topic: str
    max_message_bytes: int
    identity: Sequence[str]
    """Distinguishes this sink from others of the same cluster, also of another installation."""
    attempt: Callable[[str], AbstractContextManager[TopicAttempt]]
    """Begins an attempt with that transactional id. Raises `Unavailable`."""
    check: Callable[[], str]
    """Raises `Refused` if the topic is not suitable, `Unavailable` if no broker responds. Returns text for people."""
    clock: Callable[[], float] = time.monotonic
    _away: tuple[float, str] | None = field(default=None, init=False)

    def publish(self, box: CommittedLetters, publication: Publication, progress: Callable[[], None]) -> None:
        """Send the letters of a commit, which are in `box`. May be repeated.

        `progress` is called whenever a part is done. Raises `Unavailable`, and `Halt` if a letter was altered.
        """
        note_name = box.note_name(publication.receipt, publication.lease.commit.commit_id)
        if note_name is None:
            return
        noted = partial(box.note, self.topic, note_name)
        with ExitStack() as stack:
            lease = publication.lease
            attempt = self._begun(stack, lease.pipeline, self._digest(lease.run, lease.key))
            progress()
            try:
                present = self._present(attempt, noted, lease.commit.commit_id, progress)
                letters = (
                    letter for letter in box.of_receipt(publication.receipt) if _letter_text(letter) not in present
                )
                self._send(attempt, _messages(box, letters, _about(lease), self.max_message_bytes), progress)
            except (BatchError, ValueError) as altered:
                raise Halt(f"a dead letter cannot be sent to topic {self.topic}: {altered}") from altered
        progress()

    def send(self, box: CommittedLetters, letters: Sequence[Letter], lease: Lease) -> None:
        """Send letters that belong to no commit, each with a note of its own. May be repeated, also concurrently.

        `lease` names the pipeline, the partition and, instead of a commit, what the letters have in common. Blocks.
        Raises `Unavailable`, and `BatchError` or `ValueError` if a letter was altered.
        """
        commit = self._digest(lease.run, lease.key)
        about = _about(replace(lease, run="", commit=replace(lease.commit, commit_id=commit)))
        with ExitStack() as stack:
            attempt = self._begun(stack, lease.pipeline, commit)
            present = self._present_each(attempt, box, letters, commit)
            missing = [letter for letter in letters if _letter_text(letter) not in present]
            self._send(attempt, _messages(box, missing, about, self.max_message_bytes), lambda: None)

    def _digest(self, *of: str) -> str:
        return hashlib.sha256(json.dumps([*self.identity, *of]).encode()).hexdigest()[:32]

    def _begun(self, stack: ExitStack, pipeline: str, digest: str) -> TopicAttempt:
        if self._away is not None and self.clock() < self._away[0]:
            raise Unavailable(self._away[1])
        try:
            return stack.enter_context(self.attempt(f"holdfast-{pipeline}-{digest}"))
        except Unavailable as away:
            self._away = (self.clock() + SILENCE, str(away))
            raise

    def _send(self, attempt: TopicAttempt, messages: Iterable[Message], progress: Callable[[], None]) -> None:
        progress()
        sent = 0
        for message in messages:
            attempt.send(message)
            sent += 1
            if sent % PROGRESS_EVERY == 0:
                progress()
        if sent:
            attempt.commit()

    def _present(
        self, attempt: TopicAttempt, noted: Callable[[bytes], bytes | None], commit: str, progress: Callable[[], None]
    ) -> set[str]:
        """The letters of the commit that the topic has."""
        ends = attempt.ends()
        before = noted(json.dumps(ends, sort_keys=True).encode())
        # Nobody sends before there is a note: if it is ours, there is nothing to look for.
        if before is None:
            return set()
        return attempt.letters_since(_earliest([before], ends), ends["offsets"], commit, progress)

    def _present_each(
        self, attempt: TopicAttempt, box: CommittedLetters, letters: Sequence[Letter], commit: str
    ) -> set[str]:
        """Return which of the letters the topic already has."""
        ends = attempt.ends()
        text = json.dumps(ends, sort_keys=True).encode()
        notes = [box.note(self.topic, f"{letter.id.container}-{letter.id.number}", text) for letter in letters]
        before = [note for note in notes if note is not None]
        if not before:
            return set()
        return attempt.letters_since(_earliest(before, ends), ends["offsets"], commit, lambda: None)


def _earliest(notes: Sequence[bytes], ends: Mapping[str, Any]) -> dict[str, int]:
    """By partition, the lowest offset in these notes, before which their letters cannot be; 0 if a note has none."""
    found = [json.loads(note) for note in notes]
    # Offsets of another topic, which was deleted or is of another cluster, mean nothing.
    offsets = [note["offsets"] if note.get("topic_id") == ends["topic_id"] else {} for note in found]
    return {number: min(each.get(number, 0) for each in offsets) for number in ends["offsets"]}


def _about(lease: Lease) -> dict[str, str]:
    """Headers that say where a letter comes from."""
    about = {"holdfast.pipeline": lease.pipeline, "holdfast.partition": lease.key, COMMIT: lease.commit.commit_id}
    return about | ({"holdfast.run": lease.run} if lease.run else {})


def _messages(
    box: CommittedLetters, letters: Iterable[Letter], about: Mapping[str, str], max_bytes: int
) -> Iterator[Message]:
    """The messages of letters, each with the whole record if it fits."""
    for letter in letters:
        message = letter_message(box.whole(letter), about) if (letter.size or 0) <= max_bytes else None
        yield message if message is not None and message.size <= max_bytes else letter_message(letter, about)


def letter_message(letter: Letter, about: Mapping[str, str]) -> Message:
    """The message of a letter: the record as the source has it, with headers that describe it added after its own."""
    source = letter.source or {}
    key, record_headers = _key_and_headers(source)
    described = {
        "holdfast.reason": letter.reason,
        **about,
        "holdfast.source": json.dumps(_origin(letter, source), sort_keys=True),
        LETTER: _letter_text(letter),
    }
    missing = letter.missing
    if letter.raw is None and not letter.is_null:
        missing = missing or "no record is kept in the letter"
    cut = letter.size if letter.spilled is None or letter.size is not None else letter.spilled["size"]
    described |= {} if cut is None else {"holdfast.cut": str(cut)}
    described |= {} if missing is None else {"holdfast.missing": missing}
    described |= {} if letter.form is None else {"holdfast.form": letter.form}
    # A record may have been a letter before: the last header of a name counts, and these are the last.
    headers = [*record_headers, *((name, text.encode("utf-8", "backslashreplace")) for name, text in described.items())]
    return Message(key, None if letter.raw is None else letter.record(), headers)


def _key_and_headers(source: Mapping[str, Any]) -> tuple[bytes | None, list[Header]]:
    """Key and headers of a Kafka message, or of a record of any stream that a function has read."""
    if TOPIC in source:
        columns = columns_of_source(source)
        return columns.get(KEY), [(header["key"], header["value"]) for header in columns.get(HEADERS) or ()]
    if SHARD not in source:
        return None, []
    headers = [(str(header["key"]), decoded_bytes(header, "value")) for header in source.get(HEADERS, ())]
    return decoded_bytes(source, KEY, f"{KEY}_encoding"), headers


def _origin(letter: Letter, source: Mapping[str, Any]) -> dict[str, Any]:
    """Where the record is in the source, without the fields that the message itself has."""
    held = {KEY, f"{KEY}_encoding", HEADERS, VALUE} if TOPIC in source or SHARD in source else {VALUE}
    short = {name: value for name, value in source.items() if len(json.dumps(value)) <= MAX_SPILLED_FIELD}
    return {"item": letter.item, **{name: value for name, value in short.items() if name not in held}}


def _letter_text(letter: Letter) -> str:
    return f"{letter.id.container}:{letter.id.number}"


def letter_topic(options: LetterTopicOptions | None, identity: Sequence[str]) -> LetterTopic | None:
    """The topic that the settings name, not yet connected. Raises `UsageError` if the client is missing."""
    if options is None:
        return None
    with needing("a topic of dead letters", "confluent-kafka", "kafka"):
        from holdfast.deadletters.topic_client import TopicClient
    client = TopicClient(client_properties(options), options.topic, options.max_message_bytes)
    return LetterTopic(options.topic, options.max_message_bytes, identity, client.attempt, client.check)
