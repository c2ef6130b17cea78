"""The simulated bucket: staged and visible objects with their items, behind an unreliable network."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from holdfast.buckets.bucket import Bucket, Published, StagedFile, StagedWriter
from holdfast.errors import Unavailable
from holdfast.leases.lease import Json
from tests.simulation.faults import BUCKET_CALLS, CallFaults, Faults
from tests.simulation.host import Host
from tests.simulation.kernel import Kernel

T = TypeVar("T")
CALL_LIKELY = 0.25


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file's content: items of one partition. The digest stands for its bytes."""

    partition: str
    items: tuple[int, ...]
    digest: str
    parser: str = ""
    """Digest of the parsing that made it."""


class Watcher(Protocol):
    """Who judges every change of the bucket."""

    halts_allowed: bool

    def created(self, sink: str, key: str, data: bytes) -> None: ...

    def became_visible(self, sink: str, key: str, file: DataFile) -> None: ...

    def discarded(self, sink: str, staged_key: str) -> None: ...

    def moved(self, sink: str, key: str, file: DataFile) -> None: ...


class BucketServer:
    """One root. In copy mode a published object's staging stays until it is discarded; else publishing moves it."""

    def __init__(
        self, kernel: Kernel, faults: Faults, sink: str, watcher: Watcher, *, ttl: float, copies: bool
    ) -> None:
        self.kernel = kernel
        self.faults = CallFaults(faults, BUCKET_CALLS, CALL_LIKELY)
        self.strike = faults.strike
        self.sink = sink
        self._all_faults = faults
        self._ttl = ttl
        self.down_until = 0.0
        self.staged: dict[str, DataFile] = {}
        self.visible: dict[str, DataFile] = {}
        self.objects: dict[str, bytes] = {}
        self.replaced: dict[str, DataFile] = {}
        self.expired: set[str] = set()
        self._targets: dict[str, str] = {}
        self._watcher = watcher
        self._copies = copies

    def stage(self, staged_key: str, key: str, file: DataFile) -> None:
        """What an executor does: a hidden object that is meant for that key."""
        self.staged[staged_key] = file
        self._targets[staged_key] = key
        dice, faults = self.kernel.dice, self._all_faults
        if faults.happens(dice, "staged_expired", 0.4):
            self.kernel.after(self._ttl * 0.3 * self.kernel.random(), self._expire, staged_key)
        if faults.happens(dice, "foreign_object", 0.2):
            self.kernel.after(self._ttl * 0.3 * self.kernel.random(), self._put_foreign, staged_key)

    def create(self, key: str, data: bytes) -> bool:
        if key in self.objects:
            return False
        self.objects[key] = data
        self._watcher.created(self.sink, key, data)
        return True

    def publish(self, files: Sequence[StagedFile]) -> list[Published]:
        return [self._publish(file) for file in files]

    def _publish(self, file: StagedFile) -> Published:
        present = self.visible.get(file.key)
        if present is not None:
            return Published.DONE if present.digest == file.sha256 else Published.FOREIGN
        staged = self.staged.get(file.handle)
        if staged is None:
            return Published.GONE
        if not self._copies:
            del self.staged[file.handle]
        self.visible[file.key] = staged
        self._watcher.became_visible(self.sink, file.key, staged)
        return Published.DONE

    def move(self, key: str, to: str) -> bool:
        """Away from readers; true if it is there, by this call or an earlier one."""
        file = self.visible.pop(key, None)
        if self.objects.pop(key, None) is not None:
            self.replaced[to] = DataFile("", (), key)
        if file is not None:
            self.replaced[to] = file
            self._watcher.moved(self.sink, key, file)
        return to in self.replaced

    def discard(self, handles: Sequence[Json]) -> None:
        for staged_key in handles:
            if self.staged.pop(staged_key, None) is not None:
                self._watcher.discarded(self.sink, staged_key)

    def _expire(self, staged_key: str) -> None:
        """The bucket's own rules delete a staged object."""
        if self.staged.pop(staged_key, None) is not None:
            self.expired.add(staged_key)
            # Data made again may differ then, and a manifest may say so.
            self._watcher.halts_allowed |= self._all_faults.enables("parser_varies")
            self.kernel.note("bucket", f"{self.sink}: expired", staged_key)

    def _put_foreign(self, staged_key: str) -> None:
        """Somebody else writes to the key for which that object was staged, if nothing is there yet."""
        key = self._targets[staged_key]
        if key not in self.visible:
            self.visible[key] = DataFile("", (), "foreign")
            self._watcher.halts_allowed = True
            self.kernel.note("bucket", f"{self.sink}: foreign object", key)


class BucketClient(Bucket):
    """A node's connection. What raised `Unavailable` may have been applied, in part, or be applied later."""

    def __init__(self, server: BucketServer, host: Host, latency: float, ttl: float) -> None:
        self._server = server
        self._host = host
        self._kernel = host.kernel
        self._trouble = server.faults
        self._latency = latency
        self._ttl = ttl
        self.seconds_per_file = 0.0

    def create(self, key: str, data: bytes) -> bool:
        return self._call("create", key, lambda: self._server.create(key, data))

    def read(self, key: str) -> bytes | None:
        return self._call("read", key, lambda: self._server.objects.get(key), writes=False)

    def visible(self, key: str) -> DataFile | None:
        """The content of a file that readers see."""
        return self._call("read", key, lambda: self._server.visible.get(key), writes=False)

    def keys(self, prefix: str) -> Iterator[str]:
        present = [*self._server.objects, *self._server.visible]
        found = sorted(key for key in present if key.startswith(prefix))
        return iter(self._call("keys", prefix, lambda: found, writes=False))

    def stage(self, staged_key: str, key: str) -> StagedWriter:
        raise NotImplementedError("simulated executors stage without a connection")

    def has_staged(self, files: Sequence[StagedFile]) -> list[bool]:
        staged = self._server.staged
        return self._call("has_staged", "", lambda: [file.handle in staged for file in files], writes=False)

    def publish(self, files: Sequence[StagedFile]) -> list[Published]:
        def some() -> None:
            self._server.publish(files[: self._kernel.below(len(files) + 1)])

        if self.seconds_per_file:
            self._host.sleep(self.seconds_per_file * len(files))
        return self._call("publish", "", lambda: self._server.publish(files), partly=some)

    def discard(self, handles: Sequence[Json]) -> None:
        if handles:
            self._call("discard", "", lambda: self._server.discard(handles))

    def move(self, key: str, to: str) -> bool:
        return self._call("move", key, lambda: self._server.move(key, to))

    def staged_under(self, prefix: str) -> Iterator[tuple[str, Json]]:
        def listed() -> list[tuple[str, Json]]:
            return [
                (staged_key, staged_key) for staged_key in sorted(self._server.staged) if staged_key.startswith(prefix)
            ]

        return iter(self._call("staged_under", "", listed, writes=False))

    # --- the network ----------------------------------------------------------------------------------------------

    def _call(
        self,
        name: str,
        about: str,
        send: Callable[[], T],
        partly: Callable[[], None] | None = None,
        *,
        writes: bool = True,
    ) -> T:
        host, kernel = self._host, self._kernel
        host.risk()
        roll = kernel.random()
        if roll < self._trouble.total or self._server.down_until > kernel.now:
            self._trouble_with(name, send, partly, roll, writes=writes)
        answer = send()
        if kernel.trace is not None:
            kernel.note(host.name, f"{self._server.sink}.{name} {about[-30:]}", _shown(answer))
        host.sleep(self._latency * roll)
        return answer

    def _trouble_with(
        self, name: str, send: Callable[[], object], partly: Callable[[], None] | None, roll: float, *, writes: bool
    ) -> None:
        kernel, host = self._kernel, self._host
        if self._server.down_until > kernel.now:
            host.sleep(self._latency * roll)
            raise Unavailable("the bucket is down")
        fault = self._trouble.pick(roll)
        if fault is None:
            return
        if fault == "bucket_slow":
            self._server.strike(fault)
            host.sleep(self._ttl * kernel.random())
            return
        if writes:
            self._server.strike(fault)
            self._apply_somehow(fault, name, send, partly)
        kernel.note(host.name, f"{self._server.sink}.{name}", fault)
        host.sleep(self._ttl * (0.1 + 0.4 * kernel.random()))
        raise Unavailable("no answer")

    def _apply_somehow(
        self, fault: str, name: str, send: Callable[[], object], partly: Callable[[], None] | None
    ) -> None:
        kernel = self._kernel
        if fault == "bucket_write_late":

            def land(_: object) -> None:
                kernel.note(self._host.name, f"{self._server.sink}.{name} lands late", _shown(send()))

            kernel.after(4 * self._ttl * kernel.random() ** 2, land)
        elif fault == "bucket_answer_lost":
            if partly is not None and kernel.random() < 0.5:
                partly()
            else:
                send()


def _shown(answer: object) -> str:
    if isinstance(answer, list):
        return ", ".join(_shown(item) for item in answer)
    return answer.name if isinstance(answer, Published) else str(answer)[:60]
