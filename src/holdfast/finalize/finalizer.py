"""The finalizer: declares output folders final, run by one node at a time under the `$finalizer` lease of a sink.

It runs beside the loop, which never waits for it; work that fails is repeated in a later pass. Its progress and
decisions are saved in the row of its lease before hooks are called. If a node dies in between, the next one calls the
hooks again.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from holdfast.errors import Interrupted, LeaseLost, Refused, StoreUnavailable, Unavailable
from holdfast.events import FinalizingFailed, FolderFinalized, LateRecords, Unreachable
from holdfast.finalize.output import FinalFolder, FinalizableOutput, Finalizes, FinalTime
from holdfast.finalize.rules import FolderView, PartitionView, TopicView, decode, encode
from holdfast.flow.pipeline import call_isolated
from holdfast.flow.sink import Sink
from holdfast.flow.source import ReportsExtents, Source
from holdfast.leases import transitions
from holdfast.leases.coordinator import Coordinator
from holdfast.leases.duty import Duty
from holdfast.leases.lease import Json, Key, Lease, Status
from holdfast.leases.query import Query
from holdfast.leases.writes import until_answered

FINALIZER = "$finalizer"
PAGE = 1000
READ_AT_ONCE = 5000
"""Manifests that are read in one pass; more are read in several passes."""
RENEW_EVERY = 500
CHECK_EVERY = 1000
"""Files after which is checked whether the row has room for their folders."""
TRACKED_SHARE = 0.8
"""Share of the row that the names and figures of folders may take."""
FIRST_WAIT = 10.0
LONGEST_WAIT = 3600.0

Renew: TypeAlias = Callable[[Lease, Json], Lease | LeaseLost]


class Finalizer(Duty):
    """Declares the output folders of one sink final."""

    def __init__(self, partitions: Coordinator, source: Source, sink: str, output: FinalizableOutput) -> None:
        super().__init__(partitions, finalizer_of(partitions.pipeline, sink), patience=output.patience)
        self._source = source
        self._output = output
        self.interval = output.interval

    def run(self) -> bool:
        """Make a pass if one is due and no other node makes it; update the final times in any case.

        Returns whether this node made the pass. Blocks while the store does not respond and while hooks run.
        """
        row = self.row()
        if row is None:
            self.add_row()
        ran = self.under_lease(self._pass)
        if not ran and row is not None:
            publish_final_times(self._output, row.progress.state)
        return ran

    def _pass(self, lease: Lease) -> None:
        if FinalizerPass(self.lock, self.pipeline, self._source, self._output, lease, self.renew).go():
            self.run_soon()

    def report(self, error: Exception) -> None:
        self.world.emit(FinalizingFailed(self.pipeline, "", "", 1, str(error) or repr(error)))


def finalizer_of(pipeline: str, sink: str) -> Key:
    """The key of the lease of a sink's finalizer, which is not one of the pipeline's partitions."""
    return Key(f"{pipeline}/{FINALIZER}/{sink}", "", FINALIZER)


def finalizers(coordinator: Coordinator, source: Source, sinks: Mapping[str, Sink]) -> list[Finalizer]:
    """A finalizer for each sink with `finalize` settings. Raises `Refused` if the partitions of the source end."""
    able = {name: sink.finalizing() for name, sink in sinks.items() if isinstance(sink, Finalizes)}
    wanted = {name: output for name, output in able.items() if output is not None}
    if wanted and not source.lives_long:
        raise Refused("finalize needs a source whose partitions never end, such as kafka")
    return [Finalizer(coordinator, source, name, output) for name, output in wanted.items()]


class FinalizerPass:
    """One pass of the finalizer, under its lease. `go` is called once, and blocks on store and hooks."""

    def __init__(
        self, lock: Coordinator, pipeline: str, source: Source, output: FinalizableOutput, lease: Lease, renew: Renew
    ) -> None:
        """`pipeline` identifies the pipeline that writes the records; `renew` extends the lease and saves its state."""
        self._lock = lock
        self._renew = renew
        self._pipeline = pipeline
        self._source = source
        self._output = output
        self._lease = lease
        self._views = decode(lease.progress.state)
        self._unread = READ_AT_ONCE
        self._late: defaultdict[tuple[str, str], int] = defaultdict(int)
        self._crowded = Counter[str]()
        self._unchecked = 0

    def go(self) -> bool:
        """Read, decide and announce, then close the lease until the next pass. Errors are reported, not raised.

        Returns whether more manifests wait to be read.
        """
        emit, more = self._lock.world.emit, False
        try:
            self._read_and_decide()
            if self._save(self._views):
                self._report_late()
                self._report_crowded()
                publish_final_times(self._output, encode(self._views))
                self._finish_due()
                more = self._unread <= 0
        except Interrupted:
            raise
        except Unavailable as away:
            what = "store" if isinstance(away, StoreUnavailable) else "sink"
            emit(Unreachable(what, str(away), self._output.interval, self._pipeline))
        except Exception as error:  # noqa: BLE001 - a broken manifest, a row too large: reported to people
            emit(FinalizingFailed(self._pipeline, "", "", 1, str(error) or repr(error)))
        pause = 0.0 if more else self._output.interval
        self._lock.write([self._lease], lambda row, now: transitions.close(row, now, now + pause))
        return more

    # --- read and decide ---------------------------------------------------------------------------------------

    def _read_and_decide(self) -> None:
        now = self._lock.now()
        for topic, rows in self._by_topic().items():
            view = self._views.setdefault(topic, TopicView())
            extents = self._extents(list(rows.values()))
            for (label, row), extent in zip(rows.items(), extents, strict=True):
                partition = view.partitions.setdefault(label, PartitionView())
                before = partition.sequence
                self._read(view, partition, row, now)
                quiet = partition.sequence == before and _is_idle(row, extent)
                partition.look(None if extent is None else extent[1], quiet=quiet, now=now)
            self._keep_bounds()
            if self._unread > 0:
                view.advance(rows, self._output.period, self._output.rules, now)

    def _by_topic(self) -> dict[str, dict[str, Lease]]:
        """Partitions that may still get records, by topic: FAILED ones included, COMPLETED ones not."""
        found: defaultdict[str, dict[str, Lease]] = defaultdict(dict)
        for row in self._rows():
            if row.status is not Status.COMPLETED and row.unreadable is None:
                name = self._source.name(row)
                found[name.stream][name.label] = row
        return found

    def _rows(self) -> Iterator[Lease]:
        after: str | None = None
        while True:
            page = self._page(Query(self._pipeline, "", after_key=after, limit=PAGE))
            yield from page
            if len(page) < PAGE:
                return
            after = page[-1].key

    def _page(self, query: Query) -> list[Lease]:
        return until_answered(self._lock.world, "store", lambda: self._lock.store.find(query))

    def _extents(self, rows: Sequence[Lease]) -> list[tuple[int, int] | None]:
        if not isinstance(self._source, ReportsExtents):
            return [None] * len(rows)
        try:
            extents = call_isolated(self._source.extents, rows, Unavailable)
        except Unavailable:
            return [None] * len(rows)
        return [None if isinstance(extent, Exception) else extent for extent in extents]

    def _read(self, view: TopicView, partition: PartitionView, row: Lease, now: float) -> None:
        """Read the new manifests of this partition, up to the limit of this pass."""
        name = self._source.name(row)
        # A manifest is written before its files; they are all visible when the row has no receipts any more.
        published = row.commit.sequence - (row.commit.receipts is not None)
        while partition.sequence < published and self._unread > 0:
            sequence = partition.sequence + 1
            manifest = self._output.manifest(name, sequence)
            self._unread -= 1
            if manifest is not None:
                for folder, records in view.absorb(manifest, self._output.period, now).items():
                    self._late[name.stream, folder] += records
                self._unchecked += len(manifest.files)
                if self._unchecked >= CHECK_EVERY:
                    self._keep_bounds()
            partition.sequence = sequence
            if self._unread % RENEW_EVERY == 0:
                self._save(None)

    def _keep_bounds(self) -> None:
        """Forget folders that the row has no room for; the topic with the most is the first to lose some."""
        self._unchecked = 0
        most = int(TRACKED_SHARE * self._lock.store.max_body_bytes)
        over = sum(view.tracked_bytes for view in self._views.values()) - most
        for topic, view in sorted(self._views.items(), key=lambda entry: -entry[1].tracked_bytes):
            if over <= 0:
                return
            before = view.tracked_bytes
            self._crowded[topic] += view.crowd_out(self._output.period, over + most // 10)
            over -= before - view.tracked_bytes

    # --- announce ----------------------------------------------------------------------------------------------

    def _report_late(self) -> None:
        for (topic, folder), records in self._late.items():
            self._lock.world.emit(LateRecords(self._pipeline, topic, folder, records))

    def _report_crowded(self) -> None:
        for topic, folders in self._crowded.items():
            reason = (
                f"{folders} open output folders of {topic} are not announced, because the row of the finalizer "
                "has no room for them; use partition names of fewer distinct values"
            )
            self._lock.world.emit(FinalizingFailed(self._pipeline, topic, "", 1, reason))

    def _finish_due(self) -> None:
        now = self._lock.now()
        for topic, view in self._views.items():
            for folder in sorted(view.due):
                if view.due[folder].not_before <= now and not self._finish(topic, folder):
                    return

    def _finish(self, topic: str, folder: str) -> bool:
        """Announce one output folder and save the result. Returns False if another node has taken the lease."""
        view, emit = self._views[topic], self._lock.world.emit
        content = view.due[folder]
        error = self._output.finish(FinalFolder(self._pipeline, topic, folder, content, _ends(view)))
        if error is None:
            del view.due[folder]
        else:
            view.due[folder] = self._put_off(content)
            emit(FinalizingFailed(self._pipeline, topic, folder, content.failures + 1, error))
        saved = self._save(self._views)
        if saved and error is None:
            emit(FolderFinalized(self._pipeline, topic, folder, content.files, content.rows, content.late))
        return saved

    def _put_off(self, content: FolderView) -> FolderView:
        pause = self._lock.world.jittered(min(LONGEST_WAIT, FIRST_WAIT * 2.0 ** min(content.failures, 20)))
        return replace(content, failures=content.failures + 1, not_before=self._lock.now() + pause)

    def _save(self, views: Mapping[str, TopicView] | None) -> bool:
        """Renew the lease, and save these views. Returns False if another node has taken the lease."""
        written = self._renew(self._lease, None if views is None else encode(views))
        if isinstance(written, LeaseLost):
            return False
        self._lease = written
        return True


def publish_final_times(output: FinalizableOutput, state: Json) -> None:
    """Pass the final times in the state of the row to the output, for batches that are staged from now on."""
    topics = decode(state).items()
    output.set_final_times(
        {topic: FinalTime(view.final, _ends(view)) for topic, view in topics if view.final is not None}
    )


def _is_idle(row: Lease, extent: tuple[int, int] | None) -> bool:
    """Whether there is nothing to read: everything up to the end of the log is committed and visible."""
    at_end = extent is not None and extent[0] >= extent[1]
    return at_end and row.status is not Status.FAILED and row.commit.receipts is None


def _ends(view: TopicView) -> dict[str, int]:
    return {label: partition.through for label, partition in view.partitions.items()}
