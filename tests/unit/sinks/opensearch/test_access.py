"""How we show who we are, seen from the server's side."""

from __future__ import annotations

import base64
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from holdfast.config import Secret
from holdfast.errors import Refused, SinkUnavailable
from holdfast.sinks.opensearch.access import Access, AwsAccess, Tls
from holdfast.sinks.opensearch.indexes import IndexName
from holdfast.sinks.opensearch.setup import Setup
from holdfast.sinks.opensearch.templates import Template


class Door:
    """A server that notes who knocks, and answers with one status."""

    def __init__(self, context: ssl.SSLContext | None = None) -> None:
        self.status = 200
        self.body = b"{}"
        self.knocks: list[tuple[str, dict[str, str]]] = []
        door = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                door.knocks.append((self.path, {name.lower(): value for name, value in self.headers.items()}))
                body = door.body
                self.send_response(door.status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                """Nobody reads it."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        if context is not None:
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.url = f"http{'s' if context else ''}://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


Doors = Callable[..., Door]


@pytest.fixture
def doors() -> Iterator[Doors]:
    made: list[Door] = []

    def build(context: ssl.SSLContext | None = None) -> Door:
        made.append(Door(context))
        return made[-1]

    yield build
    for door in made:
        door.close()


def knock(access: Access) -> Any:
    client = access.connect()
    try:
        return access.call(client.info)
    finally:
        client.close()


def test_a_name_and_a_password(doors: Doors) -> None:
    door = doors()
    knock(Access((door.url,), username="me", password=Secret("se:cret")))
    ((_, headers),) = door.knocks
    assert headers["authorization"] == "Basic " + base64.b64encode(b"me:se:cret").decode()


def test_an_api_key(doors: Doors) -> None:
    door = doors()
    knock(Access((door.url,), api_key=Secret("a2V5")))
    assert door.knocks[0][1]["authorization"] == "ApiKey a2V5"


def test_a_signature_that_amazon_would_make(doors: Doors) -> None:
    door = doors()
    aws = AwsAccess("eu-central-1", "aoss", Secret("AKID"), Secret("secret"), Secret("token"))
    knock(Access((door.url,), aws=aws))
    path, headers = door.knocks[0]
    request = AWSRequest("GET", door.url + path, data=None)
    request.context["timestamp"] = headers["x-amz-date"]
    request.headers["X-Amz-Date"] = headers["x-amz-date"]
    request.headers["X-Amz-Security-Token"] = "token"
    signer = SigV4Auth(Credentials("AKID", "secret", "token"), "aoss", "eu-central-1")
    signature = signer.signature(signer.string_to_sign(request, signer.canonical_request(request)), request)
    assert headers["authorization"].endswith(f"Signature={signature}")
    assert "/eu-central-1/aoss/aws4_request" in headers["authorization"]
    assert datetime.strptime(headers["x-amz-date"], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC) <= datetime.now(UTC)


def test_an_authority_of_ones_own_is_trusted_and_no_other(doors: Doors, tmp_path: Path) -> None:
    key, certificate = str(tmp_path / "key.pem"), str(tmp_path / "cert.pem")
    made = ("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=search")
    names = ("-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", certificate)
    subprocess.run(["openssl", *made, *names], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    door = doors(context)
    knock(Access((door.url,), tls=Tls(ca=Path(certificate).read_text())))
    assert len(door.knocks) == 1
    with pytest.raises(Refused, match="cannot be trusted"):
        knock(Access((door.url,)))
    knock(Access((door.url,), tls=Tls(verify=False)))
    assert len(door.knocks) == 2


@pytest.mark.parametrize(("status", "found"), [(200, "Elasticsearch 8.0.0"), (404, "a search cluster")])
def test_a_cluster_need_not_say_what_it_is(doors: Doors, status: int, found: str) -> None:
    door = doors()
    door.status = status
    door.body = b'{"version":{"number":"8.0.0"}}' if status == 200 else b"{}"
    setup = Setup(Access((door.url,)), IndexName(Template("orders")), "unused")
    assert setup.apply() == f"{found} at {door.url}"


@pytest.mark.parametrize(
    ("status", "kind", "words"),
    [
        (401, Refused, "does not let us in"),
        (403, Refused, "does not let us in"),
        (503, SinkUnavailable, "cannot do it now"),
        (400, Refused, "refuses"),
    ],
)
def test_answers_become_our_own_errors(doors: Doors, status: int, kind: type[Exception], words: str) -> None:
    door = doors()
    door.status = status
    with pytest.raises(kind, match=words):
        knock(Access((door.url,)))
