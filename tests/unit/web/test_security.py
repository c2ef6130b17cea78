"""Who gets in and what is refused, with a real server on loopback; every rule for requests and for sockets."""

from __future__ import annotations

import json
import re
import uuid
from collections import deque
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI, Request, WebSocket
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from holdfast.leases.audit_log import AuditLog
from holdfast.stores.memory import MemoryStore
from holdfast.web import app as application
from holdfast.web.access import Access
from holdfast.web.entrance import Entrance
from holdfast.web.limits import Limits
from holdfast.web.login import AuditedAttempts
from holdfast.web.tokens import TokenFile
from tests.unit.web.serving import PATIENCE, Served, served
from tests.unit.web.test_tokens import token_file

VIEWER, OPERATOR, ADMIN = (f"{name}-0123456789abcdef0123" for name in ("viewer", "operator", "admin"))
FILE = f"viewer vera {VIEWER}\noperator otto {OPERATOR}\nadmin ana {ADMIN}\n"
LIMITS = Limits(
    body_bytes=1000,
    unknown_body_bytes=500,
    requests_burst=10_000,
    logins_burst=3,
    logins_per_second=1e-6,
    sockets_of_client=3,
    messages_burst=5,
)


class ProbedApp(FastAPI):
    """The application, with routes that show what gets through."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.add_api_route("/api/v1/probe", self.change, methods=["POST"])
        self.add_api_route("/api/v1/bug", self.bug, methods=["GET"])
        self.add_api_websocket_route("/api/v1/echo", self.echo)

    async def change(self, request: Request) -> dict[str, Any]:
        return {"viewer": request.state.viewer.name, "bytes": len(await request.body())}

    async def bug(self) -> None:
        raise RuntimeError("secret of the inside")

    async def echo(self, socket: WebSocket) -> None:
        await socket.accept()
        async for text in socket.iter_text():
            await socket.send_text(text)


@pytest.fixture
def attempts() -> list[tuple[str, str, bool]]:
    return []


@pytest.fixture
def board(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, attempts: list[tuple[str, str, bool]]) -> Iterator[Served]:
    monkeypatch.setattr(application, "FastAPI", ProbedApp)
    access = Access(
        tokens=TokenFile(token_file(tmp_path, FILE)), port=8600, hosts=frozenset({"dash.example.com"}), limits=LIMITS
    )
    with served(tmp_path, access, attempt=lambda *seen: attempts.append(seen)) as found:
        yield found


@contextmanager
def logged_in(board: Served, token: str) -> Iterator[httpx.Client]:
    with board.client() as client:
        assert client.post("/login", data={"token": token}).status_code == 303
        yield client


def csrf_of(client: httpx.Client) -> str:
    found = re.search(r'data-csrf="([^"]+)"', client.get("/").text)
    assert found is not None
    return found[1]


def socket_of(board: Served, path: str = "/api/v1/echo", host: str = "127.0.0.1", **settings: Any) -> Any:
    uri = f"ws://{host}:{board.port}{path}"
    return connect(uri, address=("127.0.0.1", board.port), open_timeout=PATIENCE, **settings)


# --- logging in ------------------------------------------------------------------------------------------------------


def test_a_page_sends_to_the_login_and_from_there_back(board: Served) -> None:
    with board.client() as client:
        response = client.get("/nowhere?a=1&b=2")
        assert (response.status_code, response.headers["location"]) == (303, "/login?next=%2Fnowhere%3Fa%3D1%26b%3D2")
        form = client.get(response.headers["location"]).text
        assert 'name="next" value="/nowhere?a=1&amp;b=2"' in form
        response = client.post("/login", data={"token": VIEWER, "next": "/nowhere?a=1&b=2"})
        assert (response.status_code, response.headers["location"]) == (303, "/nowhere?a=1&b=2")
        assert client.get("/").status_code == 200


@pytest.mark.parametrize(
    "wanted", ["https://evil.example", "//evil.example", "/\\evil.example", "javascript:1", "/\r\n"]
)
def test_a_login_leads_to_this_server_only(board: Served, wanted: str) -> None:
    with board.client() as client:
        response = client.post("/login", data={"token": VIEWER, "next": wanted})
        assert response.headers["location"] == "/"


def test_the_cookie_is_for_this_port_and_not_for_scripts(board: Served) -> None:
    with board.client() as client:
        cookie = client.post("/login", data={"token": VIEWER}).headers["set-cookie"]
    assert cookie.startswith("holdfast_8600=")
    assert {"httponly", "samesite=lax", "path=/"} <= {part.strip().lower() for part in cookie.split(";")}


def test_programs_get_401_and_send_a_token(board: Served) -> None:
    with board.client() as client:
        for path in ("/api/v1/openapi.json", "/?format=json", "/?region=pipelines"):
            refused = client.get(path)
            assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Bearer")
            assert "Authorization: Bearer" in refused.json()["error"]
    for token, status in ((VIEWER, 200), (VIEWER[:-1], 401), ("x", 401)):
        with board.client() as client:
            headers = {"Authorization": f"Bearer {token}"}
            assert client.get("/?format=json", headers=headers).status_code == status


def test_after_logging_out_the_cookie_is_worth_nothing(board: Served) -> None:
    with logged_in(board, VIEWER) as client:
        kept = dict(client.cookies)
        csrf = csrf_of(client)
        assert client.post("/logout").status_code == 403
        assert client.post("/logout", data={"csrf": csrf}).headers["location"] == "/login"
        with board.client(cookies=kept) as thief:
            assert thief.get("/").status_code == 303


def test_a_socket_ends_with_its_login(board: Served) -> None:
    with logged_in(board, VIEWER) as client:
        cookie = f"holdfast_8600={client.cookies['holdfast_8600']}"
        with socket_of(board, additional_headers={"Cookie": cookie}) as socket:
            socket.send("before")
            assert socket.recv(PATIENCE) == "before"
            client.post("/logout", data={"csrf": csrf_of(client)})
            socket.send("after")
            with pytest.raises(ConnectionClosed) as closed:
                socket.recv(PATIENCE)
            assert closed.value.rcvd is not None
            assert closed.value.rcvd.code == 1008


def test_attempts_are_limited_and_seen(board: Served, attempts: list[tuple[str, str, bool]]) -> None:
    with board.client() as client:
        assert "not a valid token" in client.post("/login", data={"token": "wrong"}).text
        assert client.post("/login", data={"token": VIEWER}).status_code == 303
        assert client.post("/login", data={"token": "wrong"}).status_code == 401
        refused = client.post("/login", data={"token": ADMIN})
        assert (refused.status_code, "too many attempts" in refused.text) == (429, True)
        assert int(refused.headers["retry-after"]) > 0
    assert attempts == [("", "127.0.0.1", False), ("vera", "127.0.0.1", True), ("", "127.0.0.1", False)]


def test_a_link_brings_a_token_only_if_that_was_made_for_it(board: Served) -> None:
    with board.client() as client:
        response = client.get(f"/login?token={ADMIN}")
        assert (response.status_code, "set-cookie" in response.headers) == (200, False)


# --- what changes something ------------------------------------------------------------------------------------------


def test_what_changes_something_needs_the_role_operator(board: Served) -> None:
    for token, status in ((VIEWER, 403), (OPERATOR, 200), (ADMIN, 200)):
        with board.client(token) as client:
            assert client.post("/api/v1/probe", json={}).status_code == status


def test_a_form_must_send_back_what_its_page_has(board: Served) -> None:
    with logged_in(board, OPERATOR) as client:
        csrf = csrf_of(client)
        assert client.post("/api/v1/probe").status_code == 403
        assert csrf_of(client) != csrf  # a page that is compressed must not repeat it
        for wrong in (csrf[:-1], csrf[:-2], f"{csrf}.", "é.00", "."):
            assert client.post("/api/v1/probe", headers={b"X-CSRF-Token": wrong.encode()}).status_code == 403
        assert client.post("/api/v1/probe", headers={"X-CSRF-Token": csrf}).json()["viewer"] == "otto"
        assert client.post("/api/v1/probe", data={"csrf": csrf, "a": "1"}).json()["bytes"] > 4


def test_a_read_only_dashboard_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(application, "FastAPI", ProbedApp)
    access = Access(tokens=TokenFile(token_file(tmp_path, FILE)), read_only=True)
    with served(tmp_path, access) as board, board.client(ADMIN) as client:
        refused = client.post("/api/v1/probe", json={})
        assert (refused.status_code, refused.json()["error"]) == (403, "this dashboard is read-only")
        assert client.post("/api/v1/nowhere", json={}).status_code == 403
        assert client.get("/").status_code == 200


# --- hosts and origins -----------------------------------------------------------------------------------------------


def test_other_hosts_and_pages_of_other_origins_are_refused(board: Served) -> None:
    here = f"http://127.0.0.1:{board.port}"
    with board.client(OPERATOR) as client:
        for headers, status in (
            ({"Host": "evil.example"}, 403),
            ({"Host": "["}, 403),
            ({"Host": "dash.example.com"}, 200),
            ({"Host": "localhost:1"}, 200),
            ({"Origin": "https://evil.example"}, 403),
            ({"Origin": f"http://127.0.0.1:{board.port + 1}"}, 403),
            ({"Origin": "null"}, 403),
            ({"Origin": here}, 200),
            # A proxy may name another host to this server than the browser does to it.
            ({"Origin": "https://dash.example.com"}, 200),
        ):
            assert client.post("/api/v1/probe", headers=headers).status_code == status, headers


@pytest.mark.parametrize(("host", "origin"), [("127.0.0.1", "http://127.0.0.1"), ("10.1.2.3", "https://10.1.2.3")])
def test_a_page_on_another_port_of_the_same_host_is_another_origin(tmp_path: Path, host: str, origin: str) -> None:
    tls = token_file(tmp_path, FILE)  # any file will do as a certificate that nobody loads
    entrance = Entrance(host, tls, allowed_hosts=["dash.example.com"], tls_cert=tls, tls_key=tls)
    access, _ = entrance.access(8600, report=lambda _message: None)
    with served(tmp_path, access) as board, board.client(VIEWER) as client:
        for given, status in (
            (f"{origin}:8600", 200),
            (f"{origin}:9000", 403),
            (origin, 403),
            ("https://dash.example.com", 200),
            ("https://dash.example.com:9000", 403),
        ):
            found = client.get("/api/v1/overview", headers={"Host": f"{host}:8600", "Origin": given})
            assert found.status_code == status, given


def test_wrong_tokens_are_limited_as_logins_are(board: Served) -> None:
    with board.client("wrong-0123456789abcdef0123") as client:
        statuses = [client.get("/api/v1/overview").status_code for _ in range(5)]
    assert statuses == [401, 401, 401, 429, 429]
    assert any("a token from 127.0.0.1 was refused" in report for report in board.reported)
    with board.client(VIEWER) as client:
        assert client.get("/api/v1/overview").status_code == 200, "a right token is let in all the same"


def test_who_has_not_logged_in_sends_little(board: Served) -> None:
    with board.client() as client:
        assert client.post("/login", content=b"x" * (LIMITS.unknown_body_bytes + 1)).status_code == 413


def test_sockets_need_a_token_and_this_host_and_origin(board: Served) -> None:
    token = {"Authorization": f"Bearer {VIEWER}"}
    here = f"http://127.0.0.1:{board.port}"
    for settings in (
        {},
        {"additional_headers": {"Authorization": "Bearer wrong"}},
        {"additional_headers": token, "origin": "https://evil.example"},
        {"additional_headers": token, "host": "evil.example"},
    ):
        with pytest.raises(InvalidStatus, match="403"), socket_of(board, **settings):
            pass
    for settings in ({"additional_headers": token}, {"additional_headers": token, "origin": here}):
        with socket_of(board, **settings) as socket:
            socket.send("hello")
            assert socket.recv(PATIENCE) == "hello"
    with logged_in(board, VIEWER) as client:
        cookie = "; ".join(f"{name}={value}" for name, value in client.cookies.items())
    with socket_of(board, additional_headers={"Cookie": cookie}, origin=here) as socket:
        socket.send("hello")
        assert socket.recv(PATIENCE) == "hello"


# --- limits ----------------------------------------------------------------------------------------------------------


def test_bodies_are_limited_whether_or_not_their_length_is_announced(board: Served) -> None:
    with board.client(OPERATOR) as client:
        assert client.post("/api/v1/probe", content=b"x" * 1000).json()["bytes"] == 1000
        assert client.post("/api/v1/probe", content=b"x" * 1001).status_code == 413
        assert client.post("/api/v1/probe", content=iter([b"x" * 600] * 2)).status_code == 413
        assert client.post("/api/v1/probe", content=iter([b"x" * 400] * 2)).json()["bytes"] == 800


def test_requests_are_limited(tmp_path: Path) -> None:
    access = Access(limits=Limits(requests_burst=2, requests_per_second=1e-6))
    with served(tmp_path, access) as board, board.client() as client:
        assert [client.get("/").status_code for _ in range(3)] == [200, 200, 429]
        assert client.get("/healthz").text == "ok\n"


def test_behind_a_proxy_only_what_it_has_added_itself_names_the_client(tmp_path: Path) -> None:
    limits = Limits(requests_per_second=0.001, requests_burst=3)
    with served(tmp_path, Access(limits=limits, behind_proxy=True)) as board, board.client() as client:
        invented = [client.get("/", headers={"X-Forwarded-For": f"10.0.0.{n}, 192.0.2.7"}) for n in range(4)]
        assert [each.status_code for each in invented] == [200, 200, 200, 429]
        assert client.get("/", headers={"X-Forwarded-For": "10.0.0.1, 192.0.2.8"}).status_code == 200


def test_sockets_and_their_messages_are_limited(board: Served) -> None:
    token = {"Authorization": f"Bearer {VIEWER}"}
    with socket_of(board, additional_headers=token) as first, socket_of(board, additional_headers=token):
        with socket_of(board, additional_headers=token) as socket:
            with pytest.raises(InvalidStatus, match="403"), socket_of(board, additional_headers=token):
                pass
            for _ in range(20):
                socket.send("x")
            with pytest.raises(ConnectionClosed) as closed:
                deque(iter(lambda: socket.recv(PATIENCE), None))
            assert closed.value.rcvd is not None
            assert closed.value.rcvd.code == 1008
        first.send("hello")
        assert first.recv(PATIENCE) == "hello"


# --- what is shown ---------------------------------------------------------------------------------------------------


def test_a_bug_shows_nothing_of_the_inside(board: Served) -> None:
    with board.client(VIEWER) as client:
        response = client.get("/api/v1/bug")
        assert (response.status_code, "secret" in response.text, "Traceback" in response.text) == (500, False, False)
        assert client.get("/").status_code == 200
    assert any("secret of the inside" in line for line in board.reported)


def test_a_path_that_is_not_text_is_not_an_error(board: Served) -> None:
    with closing(HTTPConnection("127.0.0.1", board.port, timeout=PATIENCE)) as client:
        client.request("GET", "/%ff%00?next=%ff", headers={"Authorization": f"Bearer {VIEWER}"})
        assert client.getresponse().status == 404


def test_the_health_is_public_and_says_nothing_else(board: Served) -> None:
    with board.client() as client:
        assert client.get("/healthz", headers={"Host": "10.0.0.1"}).text == "ok\n"


def test_openapi_is_served_by_us(board: Served) -> None:
    with board.client(VIEWER) as client:
        described = json.loads(client.get("/api/v1/openapi.json").text)
        assert described["info"]["title"] == "holdfast"
        assert client.get("/docs").status_code == 404


def test_attempts_are_in_the_audit_log() -> None:
    log, reported = AuditLog(MemoryStore(), lambda: uuid.uuid4().hex, "$nodes"), list[str]()
    attempts = AuditedAttempts(log, reported.append)

    attempts("vera", "10.0.0.1", True)
    attempts("", "10.0.0.9", False)
    attempts.close()

    refused, let_in = (entry.row() for entry in log.list())
    assert len(log.logins.list()) == 2, "they have a bound of their own"
    assert (let_in["who"], let_in["action"], let_in["outcome"]) == ("vera", "log in", "done")
    assert (refused["origin"], refused["outcome"]) == ("10.0.0.9", "refused")
    assert reported == ["vera has logged in from 10.0.0.1", "a login from 10.0.0.9 was refused"]
