"""The engine of functions: one Spark job per worker slot, each with one task that lives until it is stopped.

A batch is a shard that a worker handles until it is drained. `Slots` decides which worker has which shard; this module
gives it sockets, Spark jobs and a clock. Everything about slots happens under one lock, and messages are sent under it,
so that workers get them in the order of the decisions.
"""

from __future__ import annotations

import itertools
import queue
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from holdfast.errors import ChannelLost, ChannelRefused, Refused, Unavailable
from holdfast.events import Event, HandlerCalled, Notice, RecordsLost
from holdfast.flow.batch import Batch, Name
from holdfast.flow.engine import Advanced, Engine, Failed, Report
from holdfast.flow.shards import ReaderFactory, ReportsLags
from holdfast.flow.sink import Sink
from holdfast.functions import messages
from holdfast.functions.channel import Address, Channel, Tls, accept, new_secret
from holdfast.functions.events import TriggerInfo
from holdfast.functions.messages import decode_up, encode
from holdfast.functions.output import OutputSinks, output_spec
from holdfast.functions.record_letters import letter_origin
from holdfast.functions.settings import FunctionConfig
from holdfast.functions.shard_lags import ShardLags
from holdfast.functions.shard_reports import CoalescedReports, LetterStore
from holdfast.functions.slot_state import Action, HangUp, Kill, Launch, Send, Shard, SlotRules, home_of, worker_states
from holdfast.functions.slots import Slots
from holdfast.functions.task import TaskSettings, boot_time, run_worker
from holdfast.leases.lease import Json, Ranges
from holdfast.spark.failures import how_it_ended, quieten, readable, session_is_gone

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TICK = 0.1
CLOSE_PATIENCE = 2.0
UP_WITHIN = 60.0
"""Seconds that a node waits for its workers before it joins without them."""
MAX_GREETINGS = 64
"""Connections that may be in their handshake at once."""
ROOM = 1000
LIFE_SIGN = 10.0
LOCAL = ("127.0.0.1", "localhost", "::1")
_ENGINES = itertools.count(1)


@dataclass(frozen=True, slots=True)
class FunctionParts:
    """What the workers of one pipeline run, and how the driver treats them."""

    reader: ReaderFactory
    config: FunctionConfig
    letters: LetterStore | None = None
    lags: ReportsLags | None = None
    trigger: TriggerInfo = TriggerInfo()
    drain_within: float = 5.0
    host: str = "127.0.0.1"
    """The driver's address, as the executors reach it."""
    tls: Tls | None = None
    sinks: Mapping[str, Sink] = field(default_factory=dict)
    """The other sinks of the pipeline, which get the records that handlers return."""
    output: OutputSinks | None = None
    """The same as workers need them; None if there are none."""
    plain_text: bool = False
    """Whether frames may leave this host without TLS; they are authenticated in any case."""


class FunctionEngine(Engine):
    """Runs the function of one pipeline. `usable` returns the seconds that the node's session can be relied on."""

    endless = True

    def __init__(
        self,
        spark: SparkSession,
        parts: FunctionParts,
        usable: Callable[[], float],
        emit: Callable[[Event], None] = lambda _event: None,
        rules: SlotRules | None = None,
    ) -> None:
        """Starts the workers. Raises `Refused` if their connections would leave this host without encryption."""
        if parts.host not in LOCAL and parts.tls is None and not parts.plain_text:
            raise Refused(
                f"workers would connect to {parts.host} without encryption: give certificate and key of this node, "
                "or allow plain_text on a network that nobody else can read"
            )
        quieten()
        self._spark, self._parts, self._emit = spark, parts, emit
        self._pipeline = parts.trigger.name  # its name in the store, once a batch was submitted
        self._secret = new_secret()
        self._tls_context = parts.tls.context() if parts.tls is not None else None
        static = parts.config.worker_allocation == "static"
        self._rules = replace(rules or SlotRules(), static=static)
        self._slots = Slots(parts.config.workers, boot_time, usable, self._rules)
        self._changed = threading.Condition()
        """Guards everything below; notified when there are reports."""
        self._reports = CoalescedReports(parts.config.commit_interval)
        self._foreign: dict[Name, set[int]] = {}
        self._channels: dict[int, Channel] = {}
        self._numbers, self._number = itertools.count(1), next(_ENGINES)
        self._jobs: queue.SimpleQueue[Launch | None] = queue.SimpleQueue()
        self._kills: queue.SimpleQueue[Kill | None] = queue.SimpleQueue()
        self._free_threads = 0
        self._gone: str | None = None
        self._closed, self._life_sign_at = False, 0.0
        self._greeting = threading.Semaphore(MAX_GREETINGS)
        self._listener = socket.create_server((parts.host, 0))
        self._address = Address(
            parts.host, self._listener.getsockname()[1], self._secret, parts.tls.fingerprint() if parts.tls else None
        )
        self._lags = ShardLags(parts.lags, lambda: self._slots.running, self._changed, emit)
        for work in (self._accept, self._tick, self._kill, lambda: self._lags.run(lambda: self._closed)):
            threading.Thread(target=work, daemon=True).start()

    def wait_until_up(self, patience: float = UP_WITHIN) -> None:
        """Block until each slot has a worker, or its first one has failed, or for `patience` seconds.

        A node that joined before would be given shards that nobody handles until its workers are up.
        """
        deadline = time.monotonic() + patience
        with self._changed:
            while not self._slots.tried and self._gone is None and (left := deadline - time.monotonic()) > 0:
                self._changed.wait(min(left, TICK))
            if not self._slots.tried:
                name = self._parts.trigger.name
                self._emit(Notice(f"{name}: workers are not up after {patience:.0f} s; Spark may lack cores for them"))

    # --- the node's thread -------------------------------------------------------------------------------------

    def room(self) -> int:
        return 0 if self._closed or self._gone else ROOM

    def submit(self, pipeline: str, batches: Sequence[Batch]) -> None:
        self._pipeline = pipeline
        with self._changed:
            self._slots.submit([_shard(batch) for batch in batches])
            self._lags.add(batches)
            self._carry_out()

    def poll(self, timeout: float) -> list[Report]:
        """As in the interface; raises `Unavailable`, once, when the Spark session is gone."""
        deadline = time.monotonic() + timeout
        with self._changed:
            while not (reports := self._reports.take(time.monotonic())):
                if self._gone is not None:
                    gone, self._gone, self._closed = self._gone, None, True
                    raise Unavailable(gone)
                left = min(deadline, self._reports.due_at) - time.monotonic()
                if deadline <= time.monotonic():
                    break
                self._changed.wait(max(left, 0.001))
            return reports

    def cancel(self, batch_ids: Sequence[str]) -> None:
        with self._changed:
            self._slots.cancel(batch_ids)
            self._carry_out()
            self._reports.forget(batch_ids)

    def drain(self, batch_ids: Sequence[str]) -> None:
        with self._changed:
            self._slots.drain(batch_ids, self._parts.drain_within)
            self._carry_out()

    def acknowledge(self, batch_id: str, ranges: Ranges) -> None:
        with self._changed:
            self._slots.acknowledge(batch_id, ranges)
            self._carry_out()

    def take_foreign_acks(self) -> dict[Name, set[int]]:
        with self._changed:
            taken, self._foreign = self._foreign, {}
            return taken

    def workers(self) -> dict[str, int]:
        return worker_states(self._slots.slots)

    def published(self, batch_ids: Sequence[str]) -> None:
        if self._parts.sinks:
            with self._changed:
                self._slots.published(batch_ids)
                self._carry_out()

    def close(self) -> None:
        with self._changed:
            if self._closed and not self._channels:
                return
            self._closed = True
            self._slots.close(CLOSE_PATIENCE)
            self._carry_out()
            deadline = time.monotonic() + CLOSE_PATIENCE
            while not self._slots.idle and (left := deadline - time.monotonic()) > 0:
                self._changed.wait(min(left, TICK))
            for channel in self._channels.values():
                channel.close()
            for kill in self._slots.jobs:
                self._kills.put(kill)
            for _ in range(self._free_threads):
                self._jobs.put(None)
            self._kills.put(None)
        self._listener.close()

    # --- under the lock ----------------------------------------------------------------------------------------

    def _carry_out(self) -> None:
        actions, self._slots.actions = self._slots.actions, []
        for action in actions:
            self._do(action)
        reports, self._slots.reports = self._slots.reports, []
        for report in reports:
            self._reports.add(self._with_receipts(report) if self._parts.sinks else report)
        self._changed.notify_all()

    def _with_receipts(self, report: Report) -> Report:
        """The report with a receipt of every sink, made from its parts: each commit has a manifest in each sink."""
        if isinstance(report, Failed):
            return report
        parts, receipts = report.receipts, dict[str, Json]()
        for name, sink in self._parts.sinks.items():
            try:
                receipts[name] = sink.receipt([parts[name]] if name in parts else [])
            except Exception as error:  # noqa: BLE001 - sinks are foreign code
                self._slots.cancel([report.batch_id])
                return Failed(report.batch_id, f"sink {name!r} has no receipt for what was staged: {error}")
        return replace(report, receipts=receipts)

    def _do(self, action: Action) -> None:
        if isinstance(action, Send):
            channel = self._channels.get(action.connection)
            if channel is not None:
                with suppress(ChannelLost):  # its own thread notices, too
                    channel.send(encode(action.message))
        elif isinstance(action, HangUp):
            channel = self._channels.get(action.connection)
            if channel is not None:
                channel.close()
        elif isinstance(action, Launch):
            if not self._free_threads:
                self._free_threads += 1
                threading.Thread(target=self._run_jobs, daemon=True).start()
            self._free_threads -= 1
            self._jobs.put(action)
        else:
            self._kills.put(action)

    def _tick(self) -> None:
        while not self._closed:
            with self._changed:
                self._slots.tick()
                now = time.monotonic()
                if now >= self._life_sign_at:
                    self._life_sign_at = now + LIFE_SIGN
                    for shard in self._slots.running:
                        self._reports.add(Advanced(shard.id, shard.position, shard.acked))
                self._carry_out()
            time.sleep(TICK)

    # --- connections -------------------------------------------------------------------------------------------

    def _accept(self) -> None:
        with suppress(OSError):  # closed
            while True:
                connection, _ = self._listener.accept()
                if self._greeting.acquire(blocking=False):
                    threading.Thread(target=self._serve, args=(connection,), daemon=True).start()
                else:
                    connection.close()

    def _serve(self, connection: socket.socket) -> None:
        number = next(self._numbers)
        by_worker = False
        try:
            try:
                channel = accept(connection, self._secret, self._tls_context)
                hello = decode_up(channel.receive())
            finally:
                self._greeting.release()
            if not isinstance(hello, messages.Hello):
                raise ChannelRefused("a worker must say hello first")
            with self._changed:
                self._channels[number] = channel
                self._slots.greeted(number, hello)
                self._carry_out()
            while True:
                self._received(number, channel.receive())
        except ChannelLost as lost:
            by_worker = not isinstance(lost, ChannelRefused) and lost.by_peer
        finally:
            with self._changed:
                self._slots.lost(number, by_worker=by_worker)
                self._channels.pop(number, None)
                self._carry_out()
            connection.close()

    def _received(self, number: int, payload: bytes) -> None:
        message = decode_up(payload)
        with self._changed:
            if isinstance(message, messages.Acked):
                self._pass_on(message)
            elif isinstance(message, messages.Notice):
                self._emit(Notice(f"{self._parts.trigger.name}: {message.text}"))
            elif isinstance(message, messages.Lost):
                self._emit(RecordsLost(self._pipeline, message.shard, message.start, message.end))
            elif isinstance(message, messages.Beat) and message.handled:
                self._emit(HandlerCalled(self._pipeline, message.handled, message.seconds))
            self._slots.received(number, message)
            self._carry_out()

    def _pass_on(self, ack: messages.Acked) -> None:
        """Pass an ack to the worker of this node that has the shard, or else to the node that has it."""
        stream, ranges = ack.stream.strip("/"), ((ack.offset, ack.offset + 1),)
        for shard in self._slots.running:
            is_meant = str(shard.spec["number"]) == ack.shard and stream in {shard.spec["stream"], ""}
            if is_meant and self._slots.acknowledge(shard.id, ranges):
                return
        self._foreign.setdefault(Name(stream, ack.shard), set()).add(ack.offset)

    # --- Spark jobs --------------------------------------------------------------------------------------------

    def _group(self, slot: int, attempt: int) -> str:
        return f"holdfast-function-{self._number}-{slot}-{attempt}"

    def _run_jobs(self) -> None:
        while (launch := self._jobs.get()) is not None:
            error = ""
            try:
                self._run_job(launch)
            except Exception as raised:  # noqa: BLE001 - whatever it is, the slot must be started again
                error = readable(raised)
                if not self._closed and session_is_gone(self._spark, raised):
                    self._gone = how_it_ended(self._spark, raised, [shard.key for shard in self._slots.running])
            with self._changed:
                self._free_threads += 1
                if error and not self._closed:
                    self._emit(Notice(f"worker {launch.slot} has ended: {error}"))
                self._slots.ended(launch.slot, launch.attempt, error)
                self._carry_out()

    def _run_job(self, launch: Launch) -> None:
        parts = self._parts
        settings = TaskSettings(
            self._address,
            launch.slot,
            launch.attempt,
            parts.reader,
            parts.config,
            letters=parts.letters,
            trigger=parts.trigger,
            overrun=self._rules.overrun,
            sinks=parts.output,
        )
        context = self._spark.sparkContext
        about = f"worker {launch.slot} of {parts.trigger.name}"
        context.setJobGroup(self._group(launch.slot, launch.attempt), about, interruptOnCancel=True)
        # The input is not read, so that Spark does not use the process for another task.
        context.parallelize([0], 1).mapPartitions(lambda _rows: _worked(settings)).collect()

    def _kill(self) -> None:
        while (kill := self._kills.get()) is not None:
            with suppress(Exception):  # without the JVM there is no job to end
                self._spark.sparkContext.cancelJobGroup(self._group(kill.slot, kill.attempt))


def _worked(settings: TaskSettings) -> list[int]:
    from pyspark import TaskContext

    context = TaskContext.get()
    if context is not None and context.attemptNumber() > 0:
        raise RuntimeError("Spark has started this worker a second time, and only the driver may do that")
    run_worker(settings)
    return []


def _shard(batch: Batch) -> Shard:
    label = batch.name.label
    number = int(label) if label.isdigit() else None
    return Shard(
        batch.id,
        batch.lease.key,
        home_of(batch.lease.key, number),
        batch.cut.start,
        batch.lease.progress.acknowledged,
        {
            "stream": batch.name.stream,
            "number": number or 0,
            **letter_origin(batch),
            "output": output_spec(batch),
            "until": batch.cut.end,
        },
    )
