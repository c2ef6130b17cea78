"""Prepares the cluster before the first document: an index template, with mappings and data stream."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from holdfast.errors import Refused
from holdfast.sinks.opensearch.access import Access, is_cluster_response, summary
from holdfast.sinks.opensearch.templates import IndexName

GC_DELETES = "index.gc_deletes"
GC_DELETES_DEFAULT = "1d"
"""How long new indexes remember deleted versions, for batches that are written again. It takes memory."""
MAX_NAMED_INDEXES = 5


@dataclass(frozen=True)
class IndexSetup:
    """The template of the sink's indexes, and checks of the cluster. Applying it again changes nothing."""

    access: Access
    index: IndexName | None
    """None: the sink writes to staged indexes, which are created with everything that they need."""
    template_name: str
    template: Mapping[str, Any] | None = None
    """The body of the user's index template; without it, one is made from `mappings` and `settings`."""
    mappings: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    data_stream: bool = False
    pipeline: str | None = None
    keeps_deletes: bool = False
    """Whether documents are deleted by version, so that indexes must remember deleted versions."""

    def apply(self) -> str:
        """Check the cluster and put the template. Returns a message for people. Blocks.

        Raises `SinkUnavailable` and `Refused`.
        """
        client = self.access.connect()
        try:
            return self.access.call(lambda: self._applied(client))
        finally:
            client.close()

    def _applied(self, client: Any) -> str:
        version = self._version(client)
        if self.pipeline is not None:
            self._check_pipeline(client, self.pipeline)
        body = self.template or self._made_template()
        if body is not None:
            path = f"/_index_template/{quote(self.template_name, safe='')}"
            response = client.transport.perform_request("PUT", path, body=dict(body))
            if not isinstance(response, dict) or not response.get("acknowledged"):
                raise self.access.unexpected_response(response)
        found = f"{_kind(version)} at {', '.join(self.access.hosts)}"
        return f"{found}; {self._deletes(client)}" if self.keeps_deletes else found

    def _version(self, client: Any) -> Any:
        from opensearchpy.exceptions import TransportError

        try:
            info = client.info()
        except TransportError as error:
            # Amazon's serverless collections do not return their version.
            if error.status_code in (404, 405) and (is_cluster_response(error) or not error.error):
                return None
            raise
        if not isinstance(info, dict) or not isinstance(info.get("version"), dict):
            raise self.access.unexpected_response(info)
        return info["version"]

    def _made_template(self) -> dict[str, Any] | None:
        settings = self._settings()
        if self.index is None or not (self.mappings or settings or self.data_stream):
            return None
        made = {"settings": settings, "mappings": dict(self.mappings)}
        body: dict[str, Any] = {
            "index_patterns": list(self.index.patterns),
            # Above the priority of catch-all templates.
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
        return given | {GC_DELETES: GC_DELETES_DEFAULT}

    def _deletes(self, client: Any) -> str:
        """A text for people: how long the existing indexes remember the versions of deleted documents."""
        from opensearchpy.exceptions import TransportError

        names = ",".join(() if self.index is None else self.index.patterns)
        params = {"include_defaults": "true", "flat_settings": "true", "ignore_unavailable": "true"}
        path = f"/{quote(names, safe=',*')}/_settings/{GC_DELETES}"
        try:
            found = client.transport.perform_request("GET", path, params=params)
        except TransportError as error:
            if not isinstance(error.status_code, int) or error.status_code >= 500 or not is_cluster_response(error):
                raise
            return f"WARNING: {GC_DELETES} of the indexes cannot be read: {summary(error)}"
        if not isinstance(found, dict):
            raise self.access.unexpected_response(found)
        kept = {name: _gc_deletes(index) for name, index in found.items()}
        short_lived = sorted(
            f"{name} ({time})" for name, time in kept.items() if _seconds(time) < _seconds(GC_DELETES_DEFAULT)
        )
        if not short_lived:
            return f"deleted versions are remembered for at least {GC_DELETES_DEFAULT}"
        more = f" and {len(short_lived) - MAX_NAMED_INDEXES} more" if len(short_lived) > MAX_NAMED_INDEXES else ""
        return (
            f"WARNING: an older version that is written after {GC_DELETES} restores a deleted document; the setting "
            f"is short in {', '.join(short_lived[:MAX_NAMED_INDEXES])}{more}: set it to {GC_DELETES_DEFAULT}"
        )

    def _check_pipeline(self, client: Any, pipeline: str) -> None:
        from opensearchpy.exceptions import NotFoundError

        try:
            client.transport.perform_request("GET", f"/_ingest/pipeline/{quote(pipeline, safe='')}")
        except NotFoundError as error:
            if not is_cluster_response(error):
                raise
            raise Refused(f"{self.access.label} has no ingest pipeline {pipeline!r}") from None


def _gc_deletes(index: Any) -> str:
    settings = {**index.get("defaults", {}), **index.get("settings", {})} if isinstance(index, dict) else {}
    return str(settings.get(GC_DELETES, "60s"))


def _seconds(time: str) -> float:
    """Seconds of a time value of the server, such as `60s`; infinite for -1."""
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
