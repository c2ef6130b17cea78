"""A world in which dead letters are copied to a Kafka topic, by transactions that a node may leave open when it dies.

What must hold: readers of committed messages get no letter twice, none of a file that is not published, and a commit is
done only when all of its letters are in the topic. What must come about: every record that cannot be parsed is there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from holdfast.deadletters.letter_files import LETTERS, NOTES, FileLetters
from holdfast.deadletters.letter_topic import COMMIT, LETTER, LetterTopic, Message
from holdfast.errors import SinkUnavailable, Unavailable
from holdfast.flow.batch import Batch
from holdfast.flow.letter import CommittedLetters, Letter, LetterId
from holdfast.flow.names import dead_letter_key
from holdfast.flow.sink import Sink
from holdfast.leases.lease import Json, Lease
from holdfast.sinks.files.sink import FilesSink
from tests.simulation.bucket import CALL_LIKELY, BucketClient, BucketServer
from tests.simulation.engine import SimulatedEngine
from tests.simulation.faults import BUCKET_CALLS, CallFaults, Faults
from tests.simulation.files_oracle import FilesOracle
from tests.simulation.fleet import Fleet
from tests.simulation.host import Host
from tests.simulation.kernel import Kernel

UNREADABLE = 0.4
"""How likely a record cannot be parsed."""
LETTERS_SHELF = 9


class TopicOracle(FilesOracle):
    """Reads the topic as a consumer of committed messages does."""

    unreadable: Mapping[str, set[int]]
    received: dict[str, str]
    """The commit that each letter came with."""

    def created(self, sink: str, key: str, data: bytes) -> None:
        if not key.startswith(NOTES):
            super().created(sink, key, data)

    def sent(self, message: Message) -> None:
        """A transaction with this message was committed."""
        headers = dict(message.headers)
        letter, commit = ((headers[name] or b"").decode() for name in (LETTER, COMMIT))
        if letter in self.received:
            self.fail(f"letter {letter} is in the topic twice, by commits {self.received[letter]} and {commit}")
        self.received[letter] = commit
        if letter.rpartition(":")[0] not in self.buckets["sink0"].visible:
            self.fail(f"letter {letter} is in the topic before its file is published")

    def receipts_changed(self, before: Lease, row: Lease) -> None:
        super().receipts_changed(before, row)
        for file in (before.commit.receipts or {})["sink0"]["files"] if row.commit.receipts is None else ():
            letters = [f"{file['key']}:{n}" for n in range(file["rows"] if file["key"].startswith(LETTERS) else 0)]
            if missing := [letter for letter in letters if letter not in self.received]:
                self.fail(f"{row.key}: receipts cleared before {missing} are in the topic")

    def judge_end(self) -> None:
        super().judge_end()
        unreadable = sum(map(len, self.unreadable.values()))
        if len(self.received) != unreadable:
            self.fail(f"{unreadable} records cannot be parsed, and the topic has {len(self.received)} letters")


# --- Kafka -----------------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class Transaction:
    """What an epoch of a transactional id has sent since its last commit."""

    transactional_id: str
    epoch: int
    is_open: bool = True
    is_committed: bool = False


@dataclass
class TopicServer:
    """One partition of a topic, and the coordinator of its transactions."""

    kernel: Kernel
    all_faults: Faults
    oracle: TopicOracle
    ttl: float
    log: list[tuple[Message, Transaction]] = field(default_factory=list)
    epochs: dict[str, int] = field(default_factory=dict)
    sink: str = "topic"
    down_until: float = 0.0

    def __post_init__(self) -> None:
        self.faults = CallFaults(self.all_faults, BUCKET_CALLS, CALL_LIKELY)
        self.strike = self.all_faults.strike

    def begin(self, transactional_id: str) -> int:
        """A new epoch of the id, from which on earlier ones are fenced; what they have open is aborted."""
        self.epochs[transactional_id] = self.epochs.get(transactional_id, 0) + 1
        for _, transaction in self.log:
            if transaction.transactional_id == transactional_id and transaction.is_open:
                transaction.is_open = False
        return self.epochs[transactional_id]

    def send(self, transaction: Transaction, message: Message) -> bool:
        """Whether the message was accepted. One that arrives late, after the transaction has ended, is not."""
        if not self._may_write(transaction):
            return False
        if all(other is not transaction for _, other in self.log):
            self.kernel.after(3 * self.ttl, self._time_out, transaction)
        self.log.append((message, transaction))
        return True

    def commit(self, transaction: Transaction) -> bool:
        """Whether the transaction is committed. Repeating it changes nothing."""
        if self._may_write(transaction):
            transaction.is_open, transaction.is_committed = False, True
            for message, sender in self.log:
                if sender is transaction:
                    self.oracle.sent(message)
        return transaction.is_committed

    def abort(self, transaction: Transaction) -> None:
        if self._may_write(transaction):
            transaction.is_open = False

    def letters(self, start: int, end: int, commit: str) -> set[str] | None:
        """Letters of a commit, for who reads committed messages; None if one has to wait for an open transaction."""
        span = self.log[start:end]
        if any(transaction.is_open for _, transaction in self.log[:end]):
            return None
        found = [dict(message.headers) for message, transaction in span if transaction.is_committed]
        return {(headers[LETTER] or b"").decode() for headers in found if headers[COMMIT] == commit.encode()}

    def _may_write(self, transaction: Transaction) -> bool:
        return transaction.is_open and self.epochs[transaction.transactional_id] == transaction.epoch

    def _time_out(self, transaction: Transaction) -> None:
        if transaction.is_open:
            self.kernel.note("topic", "times out", transaction)
            transaction.is_open = False


class TopicConnection(BucketClient):
    """A node's connection to the brokers, over a network like that of the bucket."""

    _server: Any

    @contextmanager
    def attempt(self, transactional_id: str) -> Iterator[SimulatedAttempt]:
        epoch = self._call("begin", transactional_id, lambda: self._server.begin(transactional_id))
        attempt = SimulatedAttempt(self, Transaction(transactional_id, epoch))
        try:
            yield attempt
        finally:
            with suppress(Unavailable):
                self.request("abort", attempt.transaction)

    def request(self, name: str, *arguments: Any) -> Any:
        return self._call(name, "", partial(getattr(self._server, name), *arguments))

    def ends(self) -> int:
        return self._call("ends", "", lambda: len(self._server.log), writes=False)

    def letters(self, start: int, end: int, commit: str) -> set[str]:
        found: set[str] | None = self._call(
            "letters", "", lambda: self._server.letters(start, end, commit), writes=False
        )
        if found is None:
            self._host.sleep(self._ttl * 0.2)
            raise SinkUnavailable("a transaction is open")
        return found


@dataclass
class SimulatedAttempt:
    """A `TopicAttempt`."""

    connection: TopicConnection
    transaction: Transaction

    def ends(self) -> dict[str, Any]:
        return {"topic_id": "t", "offsets": {"0": self.connection.ends()}}

    def letters_since(
        self, offsets: Mapping[str, int], ends: Mapping[str, int], commit: str, progress: Callable[[], None]
    ) -> set[str]:
        progress()
        return self.connection.letters(offsets.get("0", 0), ends["0"], commit)

    def send(self, message: Message) -> None:
        if not self.connection.request("send", self.transaction, message):
            raise SinkUnavailable("fenced")

    def commit(self) -> None:
        if not self.connection.request("commit", self.transaction):
            raise SinkUnavailable("fenced")


# --- nodes -----------------------------------------------------------------------------------------------------------


class VisibleLetters(FileLetters):
    """The letters in files of a simulated bucket."""

    def __init__(self, bucket: BucketClient) -> None:
        super().__init__(bucket)
        self._client = bucket

    def of_file(self, key: str, marks: Mapping[int, str] = {}) -> Iterator[Letter]:
        file = self._client.visible(key)
        for number, item in enumerate(() if file is None else file.items):
            yield Letter(LetterId(key, number), file.partition if file else "", item, "bad", raw=str(item), source={})


class TopicSink(FilesSink):
    """Files, of which letters go to the topic, too."""

    client: BucketClient

    def letter_box(self, pipeline: str) -> CommittedLetters:
        return VisibleLetters(self.client)


class UnparsingEngine(SimulatedEngine):
    """Executors that cannot parse some records, and stage them as a file of letters."""

    unreadable: Mapping[str, set[int]]

    def files(self, batch: Batch, bucket: BucketServer, end: int) -> list[dict[str, Json]]:
        bad, items = self.unreadable[batch.lease.key], self._items(batch, end)
        good, letters = [item for item in items if item not in bad], [item for item in items if item in bad]
        files = [self._file(batch, bucket, 0, good, varies=False)] if good else []
        return files + ([self._letters_file(batch, bucket, letters)] if letters else [])

    def _letters_file(self, batch: Batch, bucket: BucketServer, items: Sequence[int]) -> dict[str, Json]:
        key = dead_letter_key(batch.name, batch.lease.commit.generation, items[0])
        return self._file(batch, bucket, LETTERS_SHELF, list(items), varies=False, key=key)


class TopicFleet(Fleet):
    """Nodes that copy the letters of what they publish to a topic."""

    oracle: TopicOracle
    engine_type = UnparsingEngine

    def files_oracle(self) -> FilesOracle:
        oracle = TopicOracle(self.kernel, self.data, self.knobs.max_retries)
        oracle.received = {}
        oracle.unreadable = self.unreadable = {
            key: {item for item in range(number) if self.kernel.random() < UNREADABLE}
            for key, number in self.data.items.items()
        }
        self.topic = TopicServer(self.kernel, self.faults, oracle, self.knobs.ttl)
        return oracle

    def files_engine(self, name: str, host: Host) -> SimulatedEngine:
        engine = super().files_engine(name, host)
        assert isinstance(engine, UnparsingEngine)
        engine.unreadable = self.unreadable
        return engine

    def sinks(self, host: Host) -> dict[str, Sink]:
        brokers: Any = self.topic
        connection = TopicConnection(brokers, host, self.knobs.latency, self.knobs.ttl)
        topic = LetterTopic("dead", 1 << 20, ("root",), connection.attempt, lambda: "", clock=host.monotonic)
        sinks: dict[str, Sink] = {}
        for name, bucket in self._buckets.items():
            client = self._reached(bucket, host)
            sinks[name] = made = TopicSink(name, client, letter_topic=topic)
            made.client = client
        return sinks
