"""How we show who we are, seen from the server's side."""

from __future__ import annotations

import base64
import json
import ssl
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from holdfast.config import Secret
from holdfast.config.aws import AwsIdentity
from holdfast.errors import Refused, SinkUnavailable
from holdfast.sinks.opensearch.access import Access, AwsAccess, Tls
from holdfast.sinks.opensearch.dead_letter_index import IndexLetters
from holdfast.sinks.opensearch.index_setup import IndexSetup
from holdfast.sinks.opensearch.templates import IndexName, Template
from tests.unit.sinks.opensearch.stub_server import StubServers


def send_request(access: Access) -> Any:
    client = access.connect()
    try:
        return access.call(client.info)
    finally:
        client.close()


def test_a_name_and_a_password(stub_servers: StubServers) -> None:
    stub = stub_servers()
    send_request(Access((stub.url,), username="me", password=Secret("se:cret")))
    ((_, headers),) = stub.requests
    assert headers["authorization"] == "Basic " + base64.b64encode(b"me:se:cret").decode()


def test_an_api_key(stub_servers: StubServers) -> None:
    stub = stub_servers()
    send_request(Access((stub.url,), api_key=Secret("a2V5")))
    assert stub.requests[0][1]["authorization"] == "ApiKey a2V5"


def test_a_signature_that_amazon_would_make(stub_servers: StubServers) -> None:
    stub = stub_servers()
    aws = AwsAccess("eu-central-1", "aoss", AwsIdentity(Secret("AKID"), Secret("secret"), Secret("token")))
    send_request(Access((stub.url,), aws=aws))
    path, headers = stub.requests[0]
    request = AWSRequest("GET", stub.url + path, data=None)
    request.context["timestamp"] = headers["x-amz-date"]
    request.headers["X-Amz-Date"] = headers["x-amz-date"]
    request.headers["X-Amz-Security-Token"] = "token"
    signer = SigV4Auth(Credentials("AKID", "secret", "token"), "aoss", "eu-central-1")
    signature = signer.signature(signer.string_to_sign(request, signer.canonical_request(request)), request)
    assert headers["authorization"].endswith(f"Signature={signature}")
    assert "/eu-central-1/aoss/aws4_request" in headers["authorization"]
    assert datetime.strptime(headers["x-amz-date"], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC) <= datetime.now(UTC)


def test_an_authority_of_ones_own_is_trusted_and_no_other(stub_servers: StubServers, tmp_path: Path) -> None:
    key, certificate = str(tmp_path / "key.pem"), str(tmp_path / "cert.pem")
    made = ("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=search")
    names = ("-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", certificate)
    subprocess.run(["openssl", *made, *names], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    stub = stub_servers(context)
    send_request(Access((stub.url,), tls=Tls(ca=Path(certificate).read_text())))
    assert len(stub.requests) == 1
    with pytest.raises(Refused, match="cannot be trusted"):
        send_request(Access((stub.url,)))
    send_request(Access((stub.url,), tls=Tls(verify=False)))
    assert len(stub.requests) == 2


@pytest.mark.parametrize(("status", "found"), [(200, "Elasticsearch 8.0.0"), (404, "a search cluster")])
def test_a_cluster_need_not_say_what_it_is(stub_servers: StubServers, status: int, found: str) -> None:
    stub = stub_servers()
    stub.status = status
    stub.body = b'{"version":{"number":"8.0.0"}}' if status == 200 else b"{}"
    setup = IndexSetup(Access((stub.url,)), IndexName(Template("orders")), "unused")
    assert setup.apply() == f"{found} at {stub.url}"


@pytest.mark.parametrize(
    ("status", "kind", "words"),
    [
        (401, Refused, "denies access"),
        (403, Refused, "denies access"),
        (503, SinkUnavailable, "cannot serve the request now"),
        (400, Refused, "refuses"),
    ],
)
def test_answers_become_our_own_errors(
    stub_servers: StubServers, status: int, kind: type[Exception], words: str
) -> None:
    stub = stub_servers()
    stub.status = status
    with pytest.raises(kind, match=words):
        send_request(Access((stub.url,)))


PAGE = b"<html><title>Log in</title></html>"


@pytest.mark.parametrize(
    ("status", "body", "content_type"),
    [
        (200, PAGE, "text/html"),
        (200, PAGE, "text/plain"),
        (200, PAGE, "application/json"),
        (200, b"", None),
        (200, b'{"ok":true}', "application/json"),
        (200, b'{"version":{"num', "application/json"),
        (302, b"{}", "application/json"),
        (400, PAGE, "text/html"),
        (400, b"[]", "application/json"),
        (401, PAGE, "text/html"),
        (403, PAGE, "text/html"),
        (403, b'{"error":', "application/json"),
        (404, PAGE, "text/html"),
    ],
)
def test_at_start_what_is_not_an_answer_of_a_search_cluster_means_unavailable(
    stub_servers: StubServers, status: int, body: bytes, content_type: str | None
) -> None:
    stub = stub_servers()
    stub.status, stub.body, stub.content_type = status, body, content_type
    setup = IndexSetup(Access((stub.url,)), IndexName(Template("orders")), "unused", mappings={"dynamic": False})
    with pytest.raises(SinkUnavailable, match="not a response of a search cluster"):
        setup.apply()


def test_a_cluster_that_does_not_know_us_says_so_in_plain_text(stub_servers: StubServers) -> None:
    stub = stub_servers()
    stub.status, stub.body, stub.content_type = 401, b"Unauthorized", "text/plain"
    with pytest.raises(Refused, match="denies access: 401 Unauthorized"):
        send_request(Access((stub.url,)))


@pytest.mark.parametrize(
    ("status", "kind", "reason"),
    [
        (403, "cluster_block_exception", "blocked by: [FORBIDDEN/6/cluster read-only (api)];"),
        (400, "validation_exception", "this action would add [2] shards, [10]/[10] maximum shards open;"),
    ],
)
def test_a_cluster_that_is_blocked_or_full_at_start_is_waited_for(
    stub_servers: StubServers, status: int, kind: str, reason: str
) -> None:
    stub = stub_servers()
    stub.status = status
    stub.body = json.dumps({"error": {"type": kind, "reason": reason}, "status": status}).encode()
    with pytest.raises(SinkUnavailable, match="cannot serve the request now"):
        send_request(Access((stub.url,)))
    letters = IndexLetters(Access((stub.url,)), "letters", "orders", "search")
    with pytest.raises(SinkUnavailable, match="cannot serve the request now"):
        letters.prepare()


def test_who_may_not_look_at_settings_hears_that_nothing_can_be_told_of_deletes(stub_servers: StubServers) -> None:
    stub = stub_servers()
    denied = {"error": {"type": "security_exception", "reason": "no permissions"}, "status": 403}
    stub.by_path = {
        "/": (200, b'{"version":{"number":"2.0","distribution":"opensearch"}}'),
        "/_index_template/orders": (200, b'{"acknowledged":true}'),
        "/orders/_settings/index.gc_deletes": (403, json.dumps(denied).encode()),
    }
    setup = IndexSetup(Access((stub.url,)), IndexName(Template("orders")), "orders", keeps_deletes=True)
    assert "cannot be read: 403 security_exception: no permissions" in setup.apply()
