"""A topic that gets a copy of each published dead letter: once, whoever publishes the commit, and however often.

An attempt to send the letters of a commit

1. fences every earlier attempt for the same partition, by its transactional id: what these had open is aborted;
2. creates an object that notes where the topic ends, or reads the one that an earlier attempt has created;
3. if there was one, looks for letters of the commit from there to the end of the topic;
4. sends those that are missing in one transaction.

An attempt that commits was not fenced since it began, so that the next one begins after it and finds its letters.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from typing import Any, Protocol

from holdfast.buckets.bucket import Bucket
from holdfast.config.kafka_client import LetterTopicOptions, client_properties
from holdfast.deadletters.letter_files import LETTERS, FileLetters
from holdfast.errors import BatchError, Halt, Unavailable
from holdfast.flow.kafka_columns import HEADERS, KEY, TOPIC, VALUE, columns_of_source
from holdfast.flow.letter import MAX_SPILLED_FIELD, Letter
from holdfast.flow.names import OURS, segment
from holdfast.flow.sink import Publication
from holdfast.leases.lease import Lease
from holdfast.registry import needing

LETTER, COMMIT = "holdfast.letter", "holdfast.commit"
NOTES = f"{OURS}/deadletter-topics/"
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
        """The id of the topic and by partition, as text, the offset after its last message, also of a transaction."""

    def letters_since(
        self, offsets: Mapping[str, int], ends: Mapping[str, int], commit: str, progress: Callable[[], None]
    ) -> set[str]:
        """The letters of that commit in committed messages before `ends`; without an offset from the start on."""

    def send(self, message: Message) -> None:
        """Send a message in the transaction of this attempt. May return before it has arrived."""

    def commit(self) -> None:
        """Make all that was sent visible."""


@dataclass
class LetterTopic:
    """The topic of one sink, which keeps its letters in files of `bucket`."""

    bucket: Bucket
    topic: str
    max_message_bytes: int
    identity: Sequence[str]
    """Distinguishes this sink from others of the same cluster, also of another installation."""
    attempt: Callable[[str], AbstractContextManager[TopicAttempt]]
    """Begins an attempt with that transactional id. Raises `Unavailable`."""
    check: Callable[[], str]
    """Raises `Refused` if the topic is not suitable, `Unavailable` if no broker responds. Returns text for people."""
    _away: tuple[float, str] | None = field(default=None, init=False)

    def publish(self, publication: Publication, progress: Callable[[], None]) -> None:
        """Send the letters of a commit, whose files are published. May be repeated.

        `progress` is called whenever a part is done. Raises `Unavailable`, and `Halt` if a letter was altered.
        """
        files = sorted(file["key"] for file in publication.receipt["files"] if file["key"].startswith(LETTERS))
        if not files:
            return
        with ExitStack() as stack:
            attempt = self._begun(stack, publication.lease)
            progress()
            try:
                self._send(attempt, publication, files, progress)
            except (BatchError, ValueError) as altered:
                raise Halt(f"a dead letter cannot be sent to topic {self.topic}: {altered}") from altered
        progress()

    def _begun(self, stack: ExitStack, lease: Lease) -> TopicAttempt:
        if self._away is not None and time.monotonic() < self._away[0]:
            raise Unavailable(self._away[1])
        of_partition = hashlib.sha256(json.dumps([*self.identity, lease.run, lease.key]).encode()).hexdigest()[:32]
        try:
            return stack.enter_context(self.attempt(f"holdfast-{lease.pipeline}-{of_partition}"))
        except Unavailable as away:
            self._away = (time.monotonic() + SILENCE, str(away))
            raise

    def _send(
        self, attempt: TopicAttempt, publication: Publication, files: Sequence[str], progress: Callable[[], None]
    ) -> None:
        present = self._present(attempt, files[0], publication.lease.commit.commit_id, progress)
        progress()
        sent = 0
        for letter in self._letters(files):
            if _letter_text(letter) not in present:
                attempt.send(self._message(letter, publication))
                sent += 1
                if sent % PROGRESS_EVERY == 0:
                    progress()
        if sent:
            attempt.commit()

    def _present(self, attempt: TopicAttempt, file: str, commit: str, progress: Callable[[], None]) -> set[str]:
        """The letters of the commit that the topic has."""
        ends = attempt.ends()
        key = f"{NOTES}{segment(self.topic)}/{file.removeprefix(LETTERS)}.json"
        # Nobody sends before this object exists: if it is ours, there is nothing to look for.
        if self.bucket.create(key, json.dumps(ends, sort_keys=True).encode()):
            return set()
        noted = json.loads(self.bucket.read(key) or b"{}")
        # Offsets of another topic, which was deleted or is of another cluster, mean nothing.
        offsets = noted["offsets"] if noted.get("topic_id") == ends["topic_id"] else {}
        return attempt.letters_since(offsets, ends["offsets"], commit, progress)

    def _letters(self, files: Sequence[str]) -> Iterator[Letter]:
        box = FileLetters(self.bucket)
        for file in files:
            is_gone = True
            for letter in box.of_file(file):
                yield letter
                is_gone = False
            if is_gone:
                raise BatchError(f"{file} is gone")

    def _message(self, letter: Letter, publication: Publication) -> Message:
        about = {
            "holdfast.pipeline": publication.lease.pipeline,
            "holdfast.partition": publication.lease.key,
            COMMIT: publication.lease.commit.commit_id,
        }
        if publication.lease.run:
            about["holdfast.run"] = publication.lease.run
        if (letter.size or 0) <= self.max_message_bytes:
            message = letter_message(FileLetters(self.bucket).whole(letter), about)
            if message.size <= self.max_message_bytes:
                return message
        return letter_message(letter, about)


def letter_message(letter: Letter, about: Mapping[str, str]) -> Message:
    """The message of a letter: the record as the source has it, with headers that describe it behind its own."""
    source = letter.source or {}
    columns = columns_of_source(source) if TOPIC in source else {}
    own: list[Header] = [(header["key"], header["value"]) for header in columns.get(HEADERS) or ()]
    described = {
        "holdfast.reason": letter.reason,
        **about,
        "holdfast.source": json.dumps(_place(letter, source), sort_keys=True),
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
    headers = [*own, *((name, text.encode("utf-8", "backslashreplace")) for name, text in described.items())]
    return Message(columns.get(KEY), None if letter.raw is None else letter.record(), headers)


def _place(letter: Letter, source: Mapping[str, Any]) -> dict[str, Any]:
    """Where the source has the record; without what the message itself holds."""
    held = {KEY, f"{KEY}_encoding", HEADERS, VALUE} if TOPIC in source else {VALUE}
    short = {name: value for name, value in source.items() if len(json.dumps(value)) <= MAX_SPILLED_FIELD}
    return {"item": letter.item, **{name: value for name, value in short.items() if name not in held}}


def _letter_text(letter: Letter) -> str:
    return f"{letter.id.container}:{letter.id.number}"


def letter_topic(
    options: LetterTopicOptions | None, bucket: Bucket | None, identity: Sequence[str]
) -> LetterTopic | None:
    """The topic that the settings name, not yet connected. Raises `UsageError` where the client is missing."""
    if options is None or bucket is None:
        return None
    with needing("a topic of dead letters", "confluent-kafka", "kafka"):
        from holdfast.deadletters.topic_client import TopicClient
    client = TopicClient(client_properties(options), options.topic, options.max_message_bytes)
    return LetterTopic(bucket, options.topic, options.max_message_bytes, identity, client.attempt, client.check)
