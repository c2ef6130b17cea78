"""What is made in the cluster before the first document: an index template, mappings, a data stream."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from holdfast.errors import Refused
from holdfast.sinks.opensearch.access import Access, is_answer, short
from holdfast.sinks.opensearch.templates import IndexName

GC_DELETES = "index.gc_deletes"
DELETES_KEPT = "1d"
"""For so long new indexes remember a deleted version, against batches that are written again. It takes their memory."""
MOST_NAMED = 5


@dataclass(frozen=True)
class Setup:
    """What indexes are to look like. Applying it again changes nothing."""

    access: Access
    index: IndexName
    template_name: str
    template: Mapping[str, Any] | None = None
    """The body of an index template as the server knows it; ours are left out then."""
    mappings: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    data_stream: bool = False
    pipeline: str | None = None
    keeps_deletes: bool = False
    """Whether documents are deleted by version, which is as good as the index's memory of it."""

    def apply(self) -> str:
        """Blocks. Answers what was found, for people. Raises `SinkUnavailable` and `Refused`."""
        client = self.access.connect()
        try:
            return self.access.call(lambda: self._applied(client))
        finally:
            client.close()

    def _applied(self, client: Any) -> str:
        version = self._version(client)
        if self.pipeline is not None:
            self._check_pipeline(client, self.pipeline)
        body = self.template or self._own_template()
        if body is not None:
            path = f"/_index_template/{quote(self.template_name, safe='')}"
            told = client.transport.perform_request("PUT", path, body=dict(body))
            if not isinstance(told, dict) or not told.get("acknowledged"):
                raise self.access.not_understood(told)
        found = f"{_kind(version)} at {', '.join(self.access.hosts)}"
        return f"{found}; {self._deletes(client)}" if self.keeps_deletes else found

    def _version(self, client: Any) -> Any:
        from opensearchpy.exceptions import TransportError

        try:
            told = client.info()
        except TransportError as error:
            # Amazon's serverless collections do not say what they are.
            if error.status_code in (404, 405) and (is_answer(error) or not error.error):
                return None
            raise
        if not isinstance(told, dict) or not isinstance(told.get("version"), dict):
            raise self.access.not_understood(told)
        return told["version"]

    def _own_template(self) -> dict[str, Any] | None:
        settings = self._settings()
        if not (self.mappings or settings or self.data_stream):
            return None
        made = {"settings": settings, "mappings": dict(self.mappings)}
        body: dict[str, Any] = {
            "index_patterns": list(self.index.patterns),
            # Above those that somebody has for everything.
            "priority": 200,
            "template": {name: given for name, given in made.items() if given},
        }
        return body | ({"data_stream": {}} if self.data_stream else {})

    def _settings(self) -> dict[str, Any]:
        given = dict(self.settings)
        nested = given.get("index")
        names = {*given, *(f"index.{name}" for name in (nested if isinstance(nested, dict) else ()))}
        if not self.keeps_deletes or names & {"gc_deletes", GC_DELETES}:
            return given
        return given | {GC_DELETES: DELETES_KEPT}

    def _deletes(self, client: Any) -> str:
        """For people: how long the indexes that are there remember a deleted version."""
        from opensearchpy.exceptions import TransportError

        names = ",".join(self.index.patterns)
        params = {"include_defaults": "true", "flat_settings": "true", "ignore_unavailable": "true"}
        path = f"/{quote(names, safe=',*')}/_settings/{GC_DELETES}"
        try:
            found = client.transport.perform_request("GET", path, params=params)
        except TransportError as error:
            if not isinstance(error.status_code, int) or error.status_code >= 500 or not is_answer(error):
                raise
            return f"WARNING: how long a deleted version is remembered cannot be told: {short(error)}"
        if not isinstance(found, dict):
            raise self.access.not_understood(found)
        kept = {name: _gc_deletes(told) for name, told in found.items()}
        brief = sorted(f"{name} ({time})" for name, time in kept.items() if _seconds(time) < _seconds(DELETES_KEPT))
        if not brief:
            return f"a deleted version is remembered for at least {DELETES_KEPT}"
        more = f" and {len(brief) - MOST_NAMED} more" if len(brief) > MOST_NAMED else ""
        return (
            f"WARNING: an older version that is written after {GC_DELETES} of an index brings a deleted document back; "
            f"it is short in {', '.join(brief[:MOST_NAMED])}{more}: set it to {DELETES_KEPT} there"
        )

    def _check_pipeline(self, client: Any, pipeline: str) -> None:
        from opensearchpy.exceptions import NotFoundError

        try:
            client.transport.perform_request("GET", f"/_ingest/pipeline/{quote(pipeline, safe='')}")
        except NotFoundError as error:
            if not is_answer(error):
                raise
            raise Refused(f"{self.access.place} has no ingest pipeline {pipeline!r}") from None


def _gc_deletes(told: Any) -> str:
    settings = {**told.get("defaults", {}), **told.get("settings", {})} if isinstance(told, dict) else {}
    return str(settings.get(GC_DELETES, "60s"))


def _seconds(time: str) -> float:
    """A time as the server writes it; -1 is for ever."""
    found = re.fullmatch(r"(-?[\d.]+)(nanos|micros|ms|s|m|h|d)?", time)
    if found is None:
        return 0.0
    number = float(found[1])
    units = {"nanos": 1e-9, "micros": 1e-6, "ms": 1e-3, "s": 1, "m": 60, "h": 3600, "d": 86400}
    return math.inf if number < 0 else number * units.get(found[2] or "ms", 1)


def _kind(version: Any) -> str:
    if not isinstance(version, dict):
        return "a search cluster"
    kind = "OpenSearch" if version.get("distribution") == "opensearch" else "Elasticsearch"
    return f"{kind} {version.get('number')}"
