"""The store in DynamoDB.

Every write is one PutItem of the whole row on condition of its version. Reads that decide are consistent reads of the
table; the index only yields candidates. There is no transaction and no exact clock: sessions are watched, see
`holdfast.leases.session_watch`, and `now()` comes from the dates of the server's responses.

DynamoDB may delete rows by its TTL. Only a COMPLETED row without receipts expires, `ttl` after its last write; a row
that is reopened has no expiry time. Administrative rows of a pipeline (`$floor`, `$runs`, `$generations` and so on)
never expire; ended sessions do, because their keys are never used again. A row that is added after such a deletion must
not begin with a token or version that was used before. Hence the pipeline's token floor is raised above a row *before*
that row is written with a time to expire. Between the two and the deletion lies `ttl`, which is at least
`holdfast.leases.token_floor.REST`; so the proof there holds, with this write instead of the purge.
"""

from __future__ import annotations

import itertools
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from holdfast.errors import AnswerLost, RowTooLarge, StoreUnavailable
from holdfast.leases.columns import OutlineRow
from holdfast.leases.lease import FINISHED, UNFINISHED, Key, Lease, Ownership, Status
from holdfast.leases.query import Query, select
from holdfast.leases.store import Outcome, Snapshot, Store, Swap
from holdfast.leases.token_floor import floor_of, height
from holdfast.leases.transitions import stamped
from holdfast.stores.dynamodb import DynamodbConfig
from holdfast.stores.dynamodb.client import ConditionFailed, DynamodbClient
from holdfast.stores.dynamodb.items import (
    BODY_BYTES,
    PIPELINE,
    VERSION,
    Item,
    is_indexed,
    item_of,
    table_key,
)
from holdfast.stores.dynamodb.receipts import LARGEST, Outgoing, Receipts
from holdfast.stores.dynamodb.search import due_hints, get_rows, outlines, owned_hints, search, statuses
from holdfast.stores.dynamodb.tables import prepare_table

REMEMBERED = 20_000
"""Maximum number of rows whose owner is cached; far more than a node ever holds."""
_NO_ROW = "attribute_not_exists(#name)"
_THIS_VERSION = "#name = :version"
STEP = 100
"""Floors go up in steps: of rows that were added at the same time, only the first to complete raises the floor."""
_NODES = "$nodes"


class DynamodbStore(Store):
    """Rows in a table of DynamoDB. Sends up to eight requests at a time."""

    has_clock = False
    charges_for_reads = True
    max_body_bytes = BODY_BYTES

    def __init__(self, config: DynamodbConfig, clock: Callable[[], float] | None = None) -> None:
        """`clock` returns the time in seconds, instead of the server's clock."""
        self._config = config
        self.forgets_after = config.ttl
        self._client = DynamodbClient(config)
        self._clock = clock
        self._floors = Floors(self)
        self._receipts = Receipts(config.spill)
        self._owners: dict[Key, str] = {}
        """Owners of rows as last written by this process: the index may be behind."""
        self._prepared = False

    @property
    def max_receipt_bytes(self) -> int:
        return self.max_body_bytes if self._config.spill is None else LARGEST

    def open(self) -> None:
        """Create the table if it does not exist, unless the settings forbid it."""
        if not self._prepared:
            prepare_table(self._client, self._config)
            self._receipts.open()
            self._prepared = True

    def close(self) -> None:
        self._client.close()
        self._prepared = False

    def now(self) -> float:
        """The server's time according to its last responses; sends a request if there was none recently."""
        if self._clock is not None:
            return self._clock()
        now = self._client.clock.now()
        if now is None:
            self.get([Key("$clock", "", "")])
            now = self._client.clock.now()
        if now is None:
            raise StoreUnavailable(f"{self._client.location}: the server's responses have no date")
        return now

    # --- reads -------------------------------------------------------------------------------------------------

    def get(self, keys: Sequence[Key]) -> list[Lease | None]:
        return get_rows(self._client, self._receipts, keys)

    def find(self, query: Query) -> list[Lease]:
        if query.limit is not None and query.limit <= 0:
            return []
        now = self.now() if query.due or query.not_due else 0.0
        if query.run is None or not is_indexed(query.pipeline) or not query.statuses:
            return search(self._client, self._receipts, query, now)
        if query.due and not set(query.statuses) & set(FINISHED):
            return self._find_due(query, now)
        if query.statuses == (Status.ASSIGNED,) and (query.owner is not None or query.without_owners is not None):
            return self._find_owned(query, now)
        return search(self._client, self._receipts, query, now)

    def outline(self, pipeline: str, run: str | None = "") -> list[OutlineRow]:
        """Reads every row of the pipeline, but returns no bodies over the network."""
        return outlines(self._client, pipeline, run)

    def snapshot(self, pipeline: str, sessions: str, run: str = "") -> Snapshot:
        """Not consistent: sessions are read first, then leases."""
        nodes = self.find(Query(sessions, run=None))
        leases = self.find(Query(pipeline, run, UNFINISHED))
        return Snapshot(tuple(nodes), tuple(leases), consistent=False)

    def count(self, pipeline: str, run: str = "") -> Mapping[Status, int]:
        """Reads every row of the run, also the finished ones."""
        return {Status(name): number for name, number in Counter(statuses(self._client, pipeline, run)).items()}

    def _find_due(self, query: Query, now: float) -> list[Lease]:
        found: list[Lease] = []
        seemed = due_hints(self._client, query, now)
        while query.limit is None or len(found) < query.limit:
            missing = None if query.limit is None else query.limit - len(found)
            keys = [hint.key for hint in itertools.islice(seemed, missing)]
            if not keys:
                break
            found = select([*found, *self._there(keys)], query, now)
        return found

    def _find_owned(self, query: Query, now: float) -> list[Lease]:
        keys = {hint.key for hint in owned_hints(self._client, query)}
        if query.owner is not None:
            of_run = (query.pipeline, query.run)
            keys |= {key for key, owner in list(self._owners.items()) if owner == query.owner and key[:2] == of_run}
        return select(self._there(sorted(keys)), query, now)

    def _there(self, keys: Sequence[Key]) -> list[Lease]:
        return [row for row in self.get(keys) if row is not None]

    # --- writes ------------------------------------------------------------------------------------------------

    def add(self, leases: Sequence[Lease]) -> list[Outcome]:
        condition = {"ConditionExpression": _NO_ROW, "ExpressionAttributeNames": {"#name": PIPELINE}}
        return self._put(leases, [None] * len(leases), lambda _: condition)

    def swap(self, swaps: Sequence[Swap]) -> list[Outcome]:
        versions = [swap.version for swap in swaps]
        leases = [swap.lease for swap in swaps]
        return self._put(leases, versions, lambda index: _at_version(_THIS_VERSION, versions[index]))

    def remove(self, leases: Sequence[Lease]) -> list[Outcome]:
        """The only method that needs the permission dynamodb:DeleteItem; raises `StoreError` without it."""

        def delete(index: int) -> None:
            lease = leases[index]
            condition = _at_version(f"attribute_not_exists(#name) OR {_THIS_VERSION}", lease.version)
            response = self._client.call(
                "delete_item", Key=table_key(lease.id), **condition, **self._receipts.request_options
            )
            self._receipts.settle(lease, None, response.get("Attributes"))

        return self._write_each(leases, delete)

    def _put(
        self, leases: Sequence[Lease], versions: Sequence[int | None], condition: Callable[[int], Mapping[str, object]]
    ) -> list[Outcome]:
        outgoing = [self._receipts.outgoing(lease, version) for lease, version in zip(leases, versions, strict=True)]
        items = self._items(outgoing)

        def put(index: int) -> None:
            self._receipts.send(outgoing[index])
            options = {**condition(index), **self._receipts.request_options}
            response = self._client.call("put_item", Item=items[index], **options)
            self._receipts.settle(leases[index], items[index], response.get("Attributes"))

        return self._write_each(leases, put)

    def _items(self, outgoing: Sequence[Outgoing]) -> list[Item]:
        """All items, made before any is written: one that is too large fails the whole call."""
        leases = [row.lease for row in outgoing]
        if self._config.ttl is None:
            return [self._item(lease, None) for lease in leases]
        self._floors.raise_above(leases)
        expires_at = self.now() + self._config.ttl
        return [self._item(lease, expires_at if may_expire(lease) else None) for lease in leases]

    def _item(self, lease: Lease, expires_at: float | None) -> Item:
        try:
            return item_of(lease, expires_at)
        except RowTooLarge as large:
            if self._config.spill is not None or not lease.commit.receipts:
                raise
            raise RowTooLarge(f"{large}. With the setting `spill` large receipts are kept beside the table") from large

    def _write_each(self, leases: Sequence[Lease], write: Callable[[int], None]) -> list[Outcome]:
        """Send all writes, those of one key in sequence. Once the store does not respond, nothing more is sent."""
        by_key: dict[Key, list[int]] = defaultdict(list)
        for index, lease in enumerate(leases):
            by_key[lease.id].append(index)
            self._remember(lease)
        outcomes: list[Outcome | None] = [None] * len(leases)
        away: list[StoreUnavailable] = []

        def send(indexes: list[int]) -> None:
            for index in indexes:
                if not away:
                    try:
                        outcomes[index] = _outcome(write, index)
                    except StoreUnavailable as error:
                        away.append(error)

        self._client.each(send, by_key.values())
        if away and not any(outcomes):
            raise away[0]
        # What was not sent is not known to be done either: whoever asked reads the row back.
        return [outcome or Outcome.UNKNOWN for outcome in outcomes]

    def _remember(self, lease: Lease) -> None:
        self._owners.pop(lease.id, None)
        if lease.owner is not None and lease.status is Status.ASSIGNED and is_indexed(lease.pipeline):
            self._owners[lease.id] = lease.owner
        if len(self._owners) > REMEMBERED:
            self._owners.pop(next(iter(self._owners)), None)


def _outcome(write: Callable[[int], None], index: int) -> Outcome:
    try:
        write(index)
    except ConditionFailed:
        return Outcome.CONFLICT
    except AnswerLost:
        return Outcome.UNKNOWN
    return Outcome.OK


def _at_version(condition: str, version: int) -> dict[str, object]:
    return {
        "ConditionExpression": condition,
        "ExpressionAttributeNames": {"#name": VERSION},
        "ExpressionAttributeValues": {":version": {"N": str(version)}},
    }


def may_expire(lease: Lease) -> bool:
    """Whether this row may be deleted by the TTL without loss."""
    is_done = lease.status is Status.COMPLETED and lease.commit.receipts is None and lease.unreadable is None
    return is_done and (is_indexed(lease.pipeline) or _is_session(lease))


def _is_session(lease: Lease) -> bool:
    return lease.pipeline == _NODES or lease.pipeline.endswith(f"|{_NODES}")


class Floors:
    """Token floors that this process has read. Floors never sink, so cached values stay valid."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._seen: dict[str, int] = {}

    def raise_above(self, leases: Sequence[Lease]) -> None:
        """Raise the floors of the pipelines above the rows that may expire. Raises `StoreUnavailable`."""
        needed: dict[str, int] = {}
        for lease in leases:
            if may_expire(lease) and not _is_session(lease):
                needed[lease.pipeline] = max(height(lease), needed.get(lease.pipeline, 0))
        for pipeline, floor in needed.items():
            if self._seen.get(pipeline, 0) < floor:
                self._seen[pipeline] = self._raise(floor_of(pipeline), -(-floor // STEP) * STEP)

    def _raise(self, key: Key, floor: int) -> int:
        while True:
            (row,) = self._store.get([key])
            if row is None:
                ownership = Ownership(Status.COMPLETED, write_id=uuid.uuid4().hex, due_at=None)
                self._store.add([Lease(key.pipeline, key.key, ownership=ownership)])
            elif row.token >= floor:
                return row.token
            else:
                higher = replace(row, ownership=replace(row.ownership, token=floor))
                self._store.swap([Swap(row.version, stamped(row, higher, uuid.uuid4().hex))])
