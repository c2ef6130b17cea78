"""Settings of the sink: what is taken, and what is refused in words for people."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from holdfast.buckets.local import LocalBucket
from holdfast.config import Secret
from holdfast.errors import UsageError
from holdfast.registry import Registry
from holdfast.sinks.opensearch import PLUGIN
from holdfast.sinks.opensearch.config import OpenSearchConfig
from holdfast.sinks.opensearch.dead_letter_index import LetterIndex, letters_index
from holdfast.sinks.opensearch.sink import cluster_access, entry_builder
from holdfast.sinks.opensearch.templates import Template


def config(**settings: Any) -> OpenSearchConfig:
    return OpenSearchConfig.model_validate({"hosts": ["http://search:9200"], "index": "orders", **settings})


def test_an_address_and_an_index_are_enough() -> None:
    chosen = config()
    assert (chosen.max_bulk_bytes, chosen.document_id, chosen.acts) == (10_000_000, "origin", "index")
    stager = PLUGIN.build("search", chosen, Registry.installed()).stager()
    assert (stager.target.index, stager.entries.names) == ("orders", frozenset())
    assert stager.letters == LetterIndex("search", None)
    assert letters_index("prod|Orders") == "prod-orders-deadletters"


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"hosts": ["search:9200"]}, "not an address of a cluster"),
        ({"hosts": ["https://me:secret@search"]}, "not an address of a cluster"),
        ({"hosts": []}, "at least 1"),
        ({"index": "Orders"}, "not an index name"),
        ({"index": "{tenant}"}, "allowed_indexes"),
        ({"index": "a-{"}, "is not a template"),
        ({"document_id": "id"}, "not origin, server or a template"),
        ({"action": "replace"}, "is not an action"),
        ({"data_stream": True, "action": "index"}, "a data stream accepts only the action create"),
        ({"version": "{v}", "action": "upsert"}, "versions are possible only with the actions index and delete"),
        ({"document_id": "server", "action": "update"}, "ids assigned by the server"),
        ({"username": "me"}, "needed together"),
        ({"username": "me", "password": Secret("x"), "api_key": Secret("y")}, "only one of username"),
        ({"username": "me", "password": Secret("x")}, "over http.*tls.allow_http_login: true"),
        ({"hosts": ["https://a", "http://b"], "api_key": Secret("x")}, "over http.*tls.allow_http_login: true"),
        ({"dead_letters": {"file": "/a", "index": "b"}}, "not to both"),
        ({"dead_letters": {"file": "/a", "s3": {}}}, "begins with s3://"),
        (
            {"mappings": {"a": 1}, "index_template": {"name": "a", "body": {}}},
            "into its body",
        ),
    ],
)
def test_what_cannot_be_is_refused(settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValidationError, match=reason):
        config(**settings)


@pytest.mark.parametrize(
    "settings",
    [
        {"hosts": ["https://search:9200"]},
        {"hosts": ["http://localhost:9200", "http://127.0.0.1", "http://[::1]:9200"]},
        {"hosts": ["http://search:9200"], "tls": {"allow_http_login": True}},
    ],
)
def test_a_password_is_sent_encrypted_to_this_host_or_as_allowed(settings: dict[str, Any]) -> None:
    assert config(username="me", password=Secret("x"), **settings).password == Secret("x")
    assert config(api_key=Secret("x"), **settings).api_key == Secret("x")


def test_a_data_stream_creates() -> None:
    assert entry_builder(config(data_stream=True)).action == Template("create")


def test_letters_may_go_to_files(tmp_path: Any) -> None:
    sink = PLUGIN.build("search", config(dead_letters={"file": tmp_path}), Registry.installed())
    assert isinstance(sink.stager().letters, LocalBucket)


def test_the_authority_is_read_by_the_node(tmp_path: Any) -> None:
    (tmp_path / "ca.pem").write_text("a certificate")
    assert cluster_access(config(tls={"ca_file": str(tmp_path / "ca.pem")})).tls.ca == "a certificate"
    with pytest.raises(UsageError, match=r"tls.ca_file: cannot read .* No such file"):
        cluster_access(config(tls={"ca_file": str(tmp_path / "missing.pem")}))
