"""OpenSearch behind a load balancer that ends TLS: which certificates the sink trusts, and where it sends its login."""

from __future__ import annotations

import base64
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.config.secrets import Secret
from holdfast.errors import Refused
from holdfast.testing.proxy import TcpProxy
from tests.servers.opensearch import OpenSearchServer
from tests.servers.opensearch_desk import Desk
from tests.servers.processes import certificate

LOGIN = base64.b64encode(b"writer:pass").decode()


class Balancer(TcpProxy):
    """Speaks TLS with clients and plain HTTP with the server. Keeps what it decrypted."""

    def __init__(self, port: int, context: ssl.SSLContext) -> None:
        super().__init__(port)
        self._context = context
        self.decrypted: list[bytes] = []

    def _serve(self, client: socket.socket) -> None:
        try:
            sealed = self._context.wrap_socket(client, server_side=True)
        except OSError:  # the client does not trust the certificate
            client.close()
            return
        super()._serve(sealed)

    def _pass_on(self, client: socket.socket, server: socket.socket, *, from_client: bool) -> bool:
        if from_client and isinstance(client, ssl.SSLSocket):
            try:
                request = client.recv()
                while client.pending():
                    request += client.recv()
                self.decrypted.append(request)
                server.sendall(request)
            except OSError:
                return False
            return bool(request)
        return super()._pass_on(client, server, from_client=from_client)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("certificates")
    for name in ("server", "other"):
        certificate(made, name)
    return made


@pytest.fixture
def balancer(opensearch_server: OpenSearchServer, folder: Path) -> Iterator[Balancer]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "server.pem", folder / "server.key")
    with Balancer(opensearch_server.port, context) as proxy:
        yield proxy


def desk(server: OpenSearchServer, balancer: Balancer, host: str = "127.0.0.1", **tls: Any) -> Desk:
    login = {"username": "writer", "password": Secret("pass")}
    return Desk(server, hosts=[f"https://{host}:{balancer.port}"], tls=tls, **login)


def test_documents_and_the_login_go_over_tls(
    opensearch_server: OpenSearchServer, balancer: Balancer, folder: Path
) -> None:
    used = desk(opensearch_server, balancer, ca_file=str(folder / "server.pem"))
    used.write([{"n": 1}, {"n": 2}])
    assert [document["n"] for document in used.documents] == [1, 2]
    assert any(f"authorization: basic {LOGIN}".lower().encode() in sent.lower() for sent in balancer.decrypted)


@pytest.mark.parametrize("case", ["authorities of the system", "another authority", "another host"])
def test_a_certificate_that_cannot_be_trusted_gets_no_login(
    opensearch_server: OpenSearchServer, balancer: Balancer, folder: Path, case: str
) -> None:
    tls = {
        "authorities of the system": {},
        "another authority": {"ca_file": str(folder / "other.pem")},
        "another host": {"ca_file": str(folder / "server.pem"), "host": "localhost"},
    }[case]
    with pytest.raises(Refused, match="cannot be trusted"):
        desk(opensearch_server, balancer, **tls)
    assert balancer.decrypted == []


def test_verification_is_turned_off_by_name(opensearch_server: OpenSearchServer, balancer: Balancer) -> None:
    used = desk(opensearch_server, balancer, verify=False)
    used.write([{"n": 1}])
    assert [document["n"] for document in used.documents] == [1]
