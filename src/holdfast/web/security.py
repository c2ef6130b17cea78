"""The layer in front of everything: it covers WebSocket connections as well as requests, which middleware does not.

In this order: the host and the origin are allowed, the client is within its rate, the viewer has logged in or has sent
a token, and what changes something comes from a viewer with the role for it, and not from a page of somebody else.
"""

from __future__ import annotations

import asyncio
import hmac
import json
from collections import Counter
from collections.abc import Awaitable, Callable, MutableMapping
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

from holdfast.config.hosts import is_local
from holdfast.web.access import Access, Role, Viewer
from holdfast.web.limits import Rate
from holdfast.web.logins import Logins, unmasked

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types holdfast"
)
"""What pages may load: files of this server only. HTML from the server passes through one Trusted Types policy."""
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}
FOREVER = "private, max-age=31536000, immutable"


SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
_POLICY_VIOLATION = 1008
_TOO_BIG = 1009


class _Refusal(Exception):
    """The request is refused. `location`: where a browser goes instead."""

    def __init__(self, status: int, reason: str, **headers: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason
        self.headers = headers


def cookie_name(access: Access) -> str:
    """Return the name of the cookie. Browsers send cookies to every port of a host, so that it names the port."""
    return f"holdfast_{access.port}"


class Security:
    """The layer around an application. `report` gets what went wrong inside of it."""

    def __init__(self, app: Application, access: Access, logins: Logins | None, report: Callable[[str], None]) -> None:
        self._app = app
        self._access = access
        self._logins = logins
        self._report = report
        limits = access.limits
        self._requests = Rate(limits.requests_per_second, limits.requests_burst)
        self._refused_tokens = Rate(limits.logins_per_second, limits.logins_burst)
        self._names = {urlsplit(f"//{address}").hostname for address in access.hosts}
        self._sockets: Counter[str] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        _strip(scope, self._access.base_path)
        sending = _Sending(scope, send)
        try:
            await self._serve(scope, receive, sending)
        except _Refusal as refusal:
            await _refuse(scope, receive, sending, refusal)
        except Exception as error:  # noqa: BLE001 - no error of one request may end others, or show its inside
            self._report(f"{scope['path']}: {type(error).__name__}: {error}")
            await _refuse(scope, receive, sending, _Refusal(500, "this is a bug in holdfast; its log has the details"))

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        if scope["path"] == "/healthz":
            raise _Refusal(200, "ok")
        if not self._may_connect(headers):
            raise _Refusal(403, "this host or origin is not allowed; `--allowed-host` allows a host name")
        client = self._client(scope, headers)
        if not self._requests.allows(client):
            wait = str(self._requests.wait(client))
            raise _Refusal(429, f"too many requests; try again in {wait} s", **{"retry-after": wait})
        state = scope.setdefault("state", {})
        state["client"] = client
        state["viewer"] = viewer = self._viewer(scope, headers)
        if scope["type"] == "websocket":
            await self._serve_socket(scope, receive, self._while_admitted(scope, headers, send), client)
            return
        limits = self._access.limits
        if scope["method"] not in SAFE:
            body = await self._body(receive, headers, limits.body_bytes if viewer else limits.unknown_body_bytes)
            self._check_change(scope["path"], viewer, headers, body)
            receive = _replayed(body, receive)
        await self._app(scope, receive, send)

    def _client(self, scope: Scope, headers: dict[str, str]) -> str:
        """The address that sends the request. What stands before the last one in the header, anybody may have sent."""
        forwarded = headers.get("x-forwarded-for", "") if self._access.behind_proxy else ""
        return forwarded.rpartition(",")[2].strip() or (scope.get("client") or ("",))[0]

    def _may_connect(self, headers: dict[str, str]) -> bool:
        host, origin = headers.get("host", ""), headers.get("origin")
        try:
            name, page = urlsplit(f"//{host}").hostname, None if origin is None else urlsplit(origin)
            # Other ports of a host are other sites, although browsers send them the same cookies.
            from_here = page is None or page.netloc == host or page.netloc.lower() in self._access.hosts
        except ValueError:
            return False
        return from_here and name is not None and (is_local(name) or name in self._names)

    # --- who it is -----------------------------------------------------------------------------------------------

    def _viewer(self, scope: Scope, headers: dict[str, str]) -> Viewer | None:
        """The viewer who sends the request; None for an unknown one on a public page. Raises `_Refusal` elsewhere."""
        if self._logins is None:
            return Viewer("local", Role.ADMIN)
        kind, _, token = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer":
            viewer = self._of_token(token.strip(), scope["state"]["client"])
        else:
            viewer = self._logins.of_cookie(_cookie(headers, cookie_name(self._access)))
        path: str = scope["path"]
        if viewer is None and path not in {"/login", "/logout"} and not path.startswith("/static/"):
            raise self._unknown(scope)
        return viewer

    def _of_token(self, token: str, client: str) -> Viewer | None:
        """The holder of a token. A client that sends wrong ones is refused for a while, as on the login page."""
        assert self._logins is not None
        viewer = self._logins.of_token(token)
        if viewer is None:
            self._report(f"a token from {client} was refused")
            if not self._refused_tokens.allows(client):
                wait = str(self._refused_tokens.wait(client))
                raise _Refusal(429, f"too many wrong tokens; try again in {wait} s", **{"retry-after": wait})
        return viewer

    def _unknown(self, scope: Scope) -> _Refusal:
        path, query = scope["path"], scope.get("query_string", b"").decode("latin-1")
        is_page = scope["type"] == "http" and scope["method"] == "GET" and not _wants_data(scope)
        if not is_page:
            return _Refusal(
                401, "log in, or send a token as `Authorization: Bearer TOKEN`", **{"www-authenticate": "Bearer"}
            )
        wanted = quote(f"{path}?{query}" if query else path, safe="")
        return _Refusal(303, "log in", location=f"{self._access.base_path}/login?next={wanted}")

    # --- what changes something ----------------------------------------------------------------------------------

    def _check_change(self, path: str, viewer: Viewer | None, headers: dict[str, str], body: bytes) -> None:
        if path == "/login":
            return
        if viewer is not None and viewer.csrf and not _sent_back(viewer.csrf, headers, body):
            raise _Refusal(403, "the form is not from this page or is too old; reload the page")
        if path == "/logout":
            return
        if self._access.read_only:
            raise _Refusal(403, "this dashboard is read-only")
        if viewer is None or viewer.role < Role.OPERATOR:
            raise _Refusal(403, "this needs the role operator")

    async def _body(self, receive: Receive, headers: dict[str, str], most: int) -> bytes:
        body = bytearray()
        too_large = _Refusal(413, f"a request has at most {most} bytes")
        announced = headers.get("content-length", "")
        if announced.isdecimal() and int(announced) > most:
            raise too_large
        try:
            async with asyncio.timeout(self._access.limits.body_seconds):
                while True:
                    message = await receive()
                    body += message.get("body", b"")
                    if len(body) > most:
                        raise too_large
                    if message["type"] == "http.disconnect" or not message.get("more_body", False):
                        return bytes(body)
        except TimeoutError:
            raise _Refusal(408, "the body of the request did not arrive in time") from None

    # --- sockets -------------------------------------------------------------------------------------------------

    async def _serve_socket(self, scope: Scope, receive: Receive, send: Send, client: str) -> None:
        limits = self._access.limits
        if self._sockets.total() >= limits.sockets or self._sockets[client] >= limits.sockets_of_client:
            raise _Refusal(429, "too many sockets")
        self._sockets[client] += 1
        try:
            await self._app(scope, self._limited(receive, send), send)
        finally:
            self._sockets[client] -= 1
            self._sockets += Counter()  # forgets clients without sockets

    def _while_admitted(self, scope: Scope, headers: dict[str, str], send: Send) -> Send:
        """A `send` that closes a socket once its login has ended or its token is not valid any more."""

        async def sending(message: Message) -> None:
            if message["type"] == "websocket.send":
                try:
                    self._viewer(scope, headers)
                except _Refusal as refusal:
                    await send({"type": "websocket.close", "code": _POLICY_VIOLATION, "reason": refusal.reason})
                    raise OSError(refusal.reason) from None
            await send(message)

        return sending

    def _limited(self, receive: Receive, send: Send) -> Receive:
        """The messages of a socket, which is closed if one is too large or if there are too many."""
        limits = self._access.limits
        rate = Rate(limits.messages_per_second, limits.messages_burst)

        async def receiving() -> Message:
            message = await receive()
            if message["type"] != "websocket.receive":
                return message
            size = len(message.get("text") or message.get("bytes") or "")
            code = _TOO_BIG if size > limits.message_bytes else None if rate.allows("") else _POLICY_VIOLATION
            if code is None:
                return message
            await send({"type": "websocket.close", "code": code})
            return {"type": "websocket.disconnect", "code": code}

        return receiving


class _Sending:
    """Sends what the application sends, with the headers that every response has; remembers whether it has begun."""

    def __init__(self, scope: Scope, send: Send) -> None:
        self._send = send
        self._secure = scope.get("scheme") in {"https", "wss"}
        is_file = scope["path"].startswith("/static/")
        # The address of a file names its digest; without it, a browser must ask whether it has changed.
        self._kept = (FOREVER if scope.get("query_string") else "no-cache") if is_file else "no-store"
        self.begun = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            given = {name.lower() for name, _ in message.get("headers", ())}
            wanted = {**HEADERS, "cache-control": self._kept if message["status"] in {200, 304} else "no-store"}
            if self._secure:
                wanted["strict-transport-security"] = "max-age=31536000"
            added = [(name.encode(), value.encode()) for name, value in wanted.items() if name.encode() not in given]
            message["headers"] = [*message.get("headers", ()), *added]
        self.begun = self.begun or message["type"] in {"http.response.start", "websocket.accept", "websocket.close"}
        await self._send(message)


def _strip(scope: Scope, base_path: str) -> None:
    """Remove the prefix of the proxy, unless the proxy has removed it itself."""
    path: str = scope["path"]
    if base_path and (path == base_path or path.startswith(f"{base_path}/")):
        scope["path"] = path.removeprefix(base_path) or "/"
        scope["raw_path"] = quote(scope["path"]).encode()


def _cookie(headers: dict[str, str], name: str) -> str:
    try:
        found = SimpleCookie(headers.get("cookie", "")).get(name)
    except CookieError:
        return ""
    return "" if found is None else found.value


def _sent_back(csrf: str, headers: dict[str, str], body: bytes) -> bool:
    given = headers.get("x-csrf-token", "")
    if not given and headers.get("content-type", "").startswith("application/x-www-form-urlencoded"):
        given = next(iter(parse_qs(body.decode("latin-1")).get("csrf", ())), "")
    return hmac.compare_digest(unmasked(given).encode("latin-1", "replace"), csrf.encode())


def _replayed(body: bytes, receive: Receive) -> Receive:
    """The messages of a request whose body was read already."""
    sent = False

    async def receiving() -> Message:
        nonlocal sent
        if sent:
            return await receive()
        sent = True
        return {"type": "http.request", "body": body, "more_body": False}

    return receiving


def _wants_data(scope: Scope) -> bool:
    query = parse_qs(scope.get("query_string", b"").decode("latin-1"))
    return scope["path"].startswith("/api/") or "region" in query or query.get("format") == ["json"]


async def _refuse(scope: Scope, receive: Receive, send: _Sending, refusal: _Refusal) -> None:
    if send.begun:
        return
    if scope["type"] == "websocket":
        # Closing before accepting is a response with status 403.
        await receive()
        await send({"type": "websocket.close", "code": _POLICY_VIOLATION})
        return
    kind, text = "text/plain; charset=utf-8", f"{refusal.reason}\n"
    if _wants_data(scope) and refusal.status != 200:
        kind, text = "application/json", json.dumps({"error": refusal.reason})
    headers = [(name.encode(), value.encode()) for name, value in {"content-type": kind, **refusal.headers}.items()]
    await send({"type": "http.response.start", "status": refusal.status, "headers": headers})
    await send({"type": "http.response.body", "body": text.encode()})
