"""A model of tables that change: transactions begin, write and commit at moments of the test's choice."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from holdfast.flow.tables import Entity, LiveTables, Sizing, TableRow
from holdfast.leases.lease import Json, Partition

ROWS = 4
"""Rows of a partition."""


@dataclass
class Transaction:
    """Changes that nobody else sees yet. Versions are the time of its beginning, as `updated_at` often is."""

    tables: ModelTables
    began: int
    changes: dict[str, int | None] = field(default_factory=dict)

    def write(self, key: str) -> None:
        self.changes[key] = self.began

    def delete(self, key: str) -> None:
        self.changes[key] = None

    def commit(self) -> dict[str, int | None]:
        """Make the changes visible. Returns the version of each changed row, None if the row is gone."""
        self.tables.open.remove(self)
        for key, version in self.changes.items():
            if version is None:
                self.tables.rows.pop(key, None)
                if self.tables.has_tombstones:
                    self.tables.tombstones.append((self.began, key))
            else:
                self.tables.rows[key] = version
        return self.changes


class ModelTables(LiveTables):
    """One table, `users`, of keys and versions."""

    def __init__(self, *, has_versions: bool = True, has_tombstones: bool = False) -> None:
        self.rows: dict[str, int] = {}
        self.tombstones: list[tuple[int, str]] = []
        """Of deleted rows, the beginning of the transaction and the key."""
        self.has_tombstones = has_tombstones
        self.open: list[Transaction] = []
        self.now = 1
        self.has_versions = has_versions

    def begin(self) -> Transaction:
        self.now += 1
        self.open.append(Transaction(self, self.now))
        return self.open[-1]

    def documents(self) -> dict[str, tuple[int, str]]:
        """What an index of the table should have."""
        return {key: (version, document(key, version)) for key, version in self.rows.items()}

    def read(self, spec: Mapping[str, Json]) -> dict[str, int]:
        """The rows of a partition as they are now."""
        keys = sorted(self.rows)
        within = [key for key in keys if spec["from"] <= key and (spec["to"] is None or key < spec["to"])]
        return {key: self.rows[key] for key in within if self.rows[key] >= spec.get("since", 0)}

    def entities(self) -> Mapping[str, Entity]:
        entity = Entity("users", "people", has_versions=self.has_versions, has_tombstones=self.has_tombstones)
        return {"users": entity}

    def watermark(self) -> Json:
        self.now += 1
        return {"oldest": min([self.now, *(open_.began for open_ in self.open)]), "at": self.now}

    def settled(self, mark: Json) -> bool:
        return not any(open_.began <= mark["at"] for open_ in self.open)

    def copy_partitions(self, entities: Sequence[str], sizing: Sizing) -> Iterator[Partition]:
        yield from self._partitions(0, {})

    def catch_up_partitions(self, entities: Sequence[str], since: Json, number: int) -> Iterator[Partition]:
        changed = [key for key, version in self.rows.items() if version >= since["oldest"]]
        if changed or not self.has_versions:
            yield from self._partitions(number, {"since": since["oldest"]} if self.has_versions else {})

    def _partitions(self, number: int, more: Mapping[str, Json]) -> Iterator[Partition]:
        keys = sorted(self.rows)
        starts = ["", *keys[ROWS::ROWS]]
        for index, start in enumerate(starts):
            end = starts[index + 1] if index + 1 < len(starts) else None
            spec = {"entity": "users", "from": start, "to": end, "pass": number, **more}
            yield Partition(f"users|{number}|{index}", "users", spec, estimated_count=ROWS)

    def removed(self, entity: str, since: Json) -> Iterator[Sequence[str]] | None:
        if not self.has_tombstones:
            return None
        found = sorted({key for began, key in self.tombstones if began >= since["oldest"]})
        return iter([found[:3], found[3:]])

    def counts(self, entities: Sequence[str], since: Json = None) -> Mapping[str, int]:
        oldest = since["oldest"] if since is not None and self.has_versions else float("inf")
        return {entity: sum(version < oldest for version in self.rows.values()) for entity in entities}

    def present(self, entity: str, document_ids: Sequence[str]) -> Mapping[str, int | None]:
        return {key: self.rows[key] for key in document_ids if key in self.rows}

    def find(self, entity: str, document_ids: Sequence[str]) -> Mapping[str, TableRow]:
        return {row.document_id: row for (row,) in self.pages(entity) if row.document_id in document_ids}

    def pages(self, entity: str) -> Iterator[Sequence[TableRow]]:
        for key, version in sorted(self.rows.items()):
            yield [TableRow(key, version if self.has_versions else None, document(key, version))]


def document(key: str, version: int) -> str:
    return json.dumps({"key": key, "version": version}, sort_keys=True)
