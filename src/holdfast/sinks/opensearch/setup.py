"""What is made in the cluster before the first document: an index template, mappings, a data stream."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from holdfast.errors import Refused
from holdfast.sinks.opensearch.access import Access
from holdfast.sinks.opensearch.indexes import IndexName


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

    def apply(self) -> str:
        """Blocks. Answers what was found, for people. Raises `SinkUnavailable` and `Refused`."""
        client = self.access.connect()
        try:
            return self.access.call(lambda: self._applied(client))
        finally:
            client.close()

    def _applied(self, client: Any) -> str:
        # Amazon's serverless collections do not say what they are.
        answer = client.info(ignore=[404, 405])
        if self.pipeline is not None:
            self._check_pipeline(client, self.pipeline)
        body = self.template or self._own_template()
        if body is not None:
            path = f"/_index_template/{quote(self.template_name, safe='')}"
            client.transport.perform_request("PUT", path, body=dict(body))
        return f"{_kind(answer.get('version'))} at {', '.join(self.access.hosts)}"

    def _own_template(self) -> dict[str, Any] | None:
        if not (self.mappings or self.settings or self.data_stream):
            return None
        made = {"settings": dict(self.settings), "mappings": dict(self.mappings)}
        body: dict[str, Any] = {
            "index_patterns": list(self.index.patterns),
            # Above those that somebody has for everything.
            "priority": 200,
            "template": {name: given for name, given in made.items() if given},
        }
        return body | ({"data_stream": {}} if self.data_stream else {})

    def _check_pipeline(self, client: Any, pipeline: str) -> None:
        from opensearchpy.exceptions import NotFoundError

        try:
            client.transport.perform_request("GET", f"/_ingest/pipeline/{quote(pipeline, safe='')}")
        except NotFoundError:
            raise Refused(f"{self.access.place} has no ingest pipeline {pipeline!r}") from None


def _kind(version: Any) -> str:
    if not isinstance(version, dict):
        return "a search cluster"
    kind = "OpenSearch" if version.get("distribution") == "opensearch" else "Elasticsearch"
    return f"{kind} {version.get('number')}"
