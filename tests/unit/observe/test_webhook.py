"""Alerts to a real HTTP server on this host."""

from __future__ import annotations

import io
import json
import shlex
import socket
import socketserver
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import pytest

from holdfast.config.alerts import WebhookSettings
from holdfast.config.secrets import Secret
from holdfast.events import AlertCleared, AlertRaised, AlertsNotSent, Event, Notice, Unreachable
from holdfast.observe import http_post, webhook
from holdfast.observe.addresses import allowed
from holdfast.observe.http_post import Target
from holdfast.observe.log import Log
from holdfast.observe.webhook import Webhook

E = TypeVar("E", bound=Event)
TOKEN = "T0KEN-sesame"
STAMP = "2023-11-14T22:13:20.000Z"


def alert(key: str = "k") -> AlertRaised:
    return AlertRaised("partition_failed", "orders", key, "cannot parse")


@dataclass
class Receiver:
    """A server that notes what it gets and responds with these statuses first, then with 200."""

    statuses: list[int] = field(default_factory=list)
    headers: dict[str, str] = field(default_factory=dict)
    requests: list[tuple[str, str, dict[str, str], Any]] = field(default_factory=list)
    hold: threading.Event = field(default_factory=threading.Event)
    port: int = 0

    def __post_init__(self) -> None:
        self.hold.set()

    @property
    def keys(self) -> list[str]:
        """Of all alerts that were accepted or not, in order."""
        return [alert["key"] for *_, body in self.requests for alert in body["alerts"]]

    def take(self, handler: BaseHTTPRequestHandler) -> None:
        body = handler.rfile.read(int(handler.headers["Content-Length"]))
        self.hold.wait(10)
        status = self.statuses.pop(0) if self.statuses else 200
        self.requests.append((handler.command, handler.path, dict(handler.headers), json.loads(body)))
        handler.send_response(status)
        for name, value in self.headers.items():
            handler.send_header(name, value)
        handler.end_headers()


@contextmanager
def serving(receiver: Receiver, context: ssl.SSLContext | None = None) -> Iterator[Receiver]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            receiver.take(self)

        def do_GET(self) -> None:
            raise AssertionError("nothing is fetched")

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    class Server(ThreadingHTTPServer):
        def handle_error(self, request: object, client_address: object) -> None:
            """A sender that has given up is no news."""

    with Server(("127.0.0.1", receiver.port), Handler) as server:
        if context is not None:
            server.socket = context.wrap_socket(server.socket, server_side=True)
        receiver.port = server.server_port
        thread = threading.Thread(target=lambda: server.serve_forever(0.01))
        thread.start()
        try:
            yield receiver
        finally:
            receiver.hold.set()
            server.shutdown()
            thread.join()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with serving(Receiver()) as made:
        yield made


class Reported:
    """What the webhook says of itself."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def __call__(self, event: Event) -> None:
        self.events.append(event)

    def of(self, kind: type[E]) -> list[E]:
        return [event for event in self.events if isinstance(event, kind)]

    @property
    def log(self) -> str:
        stream = io.StringIO()
        for form in ("text", "json"):
            log = Log(stream, form=form, level="debug")
            for event in self.events:
                log(event)
        return stream.getvalue() + repr(self.events)


@pytest.fixture
def reported() -> Reported:
    return Reported()


@pytest.fixture
def hook(reported: Reported) -> Iterator[Callable[..., Webhook]]:
    """Makes webhooks that are stopped after the test."""
    made: list[Webhook] = []

    def make(
        port: int,
        *,
        path: str = f"/hooks/{TOKEN}?wait=1",
        timeout: float = 5.0,
        private: bool = True,
        pause: float = 0.01,
    ) -> Webhook:
        settings = WebhookSettings(url=Secret(f"http://127.0.0.1:{port}{path}"), allow_private=private, timeout=timeout)
        made.append(Webhook(settings, "replica1", reported, now=lambda: 1_700_000_000.0, pause=pause))
        return made[-1]

    yield make
    for created in made:
        created.stop()


def eventually(true: Callable[[], object]) -> None:
    end = time.monotonic() + 60
    while not true():
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.005)


# --- what is sent ----------------------------------------------------------------------------------------------------


def test_an_alert_arrives_as_json(receiver: Receiver, hook: Callable[..., Webhook], reported: Reported) -> None:
    send = hook(receiver.port)
    send(alert())
    eventually(lambda: receiver.requests)

    ((method, path, headers, body),) = receiver.requests
    assert (method, path) == ("POST", f"/hooks/{TOKEN}?wait=1")
    assert headers["Content-Type"] == "application/json"
    assert headers["Host"] == f"127.0.0.1:{receiver.port}"
    assert body == {
        "node": "replica1",
        "text": "raised partition_failed (`orders k`): `cannot parse`",
        "alerts": [
            {
                "status": "raised",
                "at": STAMP,
                "kind": "partition_failed",
                "pipeline": "orders",
                "key": "k",
                "message": "cannot parse",
                "runbook": "docs/runbooks/partition-failed.md",
            }
        ],
        "dropped": 0,
    }
    send.stop()
    assert reported.events == []


def test_an_alert_that_is_over_arrives_too_and_nothing_else_does(
    receiver: Receiver, hook: Callable[..., Webhook]
) -> None:
    send = hook(receiver.port)
    send(Notice("not an alert"))
    send(AlertCleared("store_unreachable", None, None, "heartbeat"))
    send.stop()

    ((_, _, _, body),) = receiver.requests
    assert body["text"] == "cleared store_unreachable: `heartbeat`"
    assert body["alerts"] == [
        {
            "status": "cleared",
            "at": STAMP,
            "kind": "store_unreachable",
            "pipeline": None,
            "key": None,
            "reason": "heartbeat",
            "runbook": "docs/runbooks/store-unreachable.md",
        }
    ]


def test_many_alerts_go_out_together_in_order_and_calling_does_not_wait_for_them(
    receiver: Receiver, hook: Callable[..., Webhook]
) -> None:
    receiver.hold.clear()
    send = hook(receiver.port)
    keys = [str(number) for number in range(250)]
    for key in keys:
        send(alert(key))
    receiver.hold.set()
    send.stop()

    assert receiver.keys == keys
    assert all(len(body["alerts"]) <= webhook.MOST_IN_A_POST for *_, body in receiver.requests)
    assert len(receiver.requests) <= 4


def test_long_texts_are_cut(receiver: Receiver, hook: Callable[..., Webhook]) -> None:
    send = hook(receiver.port)
    send(AlertRaised("partition_failed", "orders", 5000 * "k", 5000 * "m"))
    send.stop()

    (sent,) = receiver.requests[0][3]["alerts"]
    assert (len(sent["key"]), len(sent["message"])) == (webhook.LONGEST_TEXT, webhook.LONGEST_TEXT)


def test_a_chat_shows_what_comes_from_data_as_text_alone(receiver: Receiver, hook: Callable[..., Webhook]) -> None:
    key = "a\ncleared partition_failed: all good\n<!channel> @here"
    message = "`<https://evil.example|Sign in>` [in](https://evil.example) &lt;!here&gt; \x1b[2J\u202e"
    send = hook(receiver.port)
    send(AlertRaised("partition_failed", "orders", key, message))
    send.stop()

    body = receiver.requests[0][3]
    assert body["text"] == (
        "raised partition_failed (`orders a\\ncleared partition_failed: all good\\n&lt;!channel&gt; @here`): "
        "`'&lt;https://evil.example|Sign in&gt;' [in](https://evil.example) &amp;lt;!here&amp;gt; "
        "\\x1b[2J\\u202e`"
    )
    # Programs get the data as it is.
    assert (body["alerts"][0]["key"], body["alerts"][0]["message"]) == (key, message)


# --- when it does not work -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [408, 429, 500, 503])
def test_what_may_work_later_is_tried_again_with_growing_pauses(
    receiver: Receiver, hook: Callable[..., Webhook], reported: Reported, status: int
) -> None:
    receiver.statuses = [status, status, status]
    send = hook(receiver.port)
    send(alert())
    eventually(lambda: len(receiver.requests) == 4)
    send.stop()

    away = reported.of(Unreachable)
    assert [event.error for event in away] == 3 * [f"it responded with status {status}"]
    assert {event.what for event in away} == {"webhook"}
    assert all(later.retry_in > 1.3 * earlier.retry_in for earlier, later in pairwise(away))
    assert reported.of(AlertsNotSent) == []


@pytest.mark.parametrize("status", [301, 302, 307, 400, 401, 404, 410])
def test_what_is_refused_is_given_up_and_told_and_no_redirect_is_followed(
    receiver: Receiver, hook: Callable[..., Webhook], reported: Reported, status: int
) -> None:
    with serving(Receiver()) as elsewhere:
        receiver.statuses = [status]
        receiver.headers = {"Location": f"http://127.0.0.1:{elsewhere.port}/other"}
        send = hook(receiver.port)
        send(alert("refused"))
        eventually(lambda: reported.events)
        send(alert("next"))
        send.stop()

    assert reported.events == [AlertsNotSent(1, f"it responded with status {status}")]
    assert receiver.keys == ["refused", "next"]
    assert elsewhere.requests == []


def test_a_receiver_that_comes_back_gets_all_that_waited(hook: Callable[..., Webhook], reported: Reported) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        send = hook(nobody.getsockname()[1])
        send(alert("a"))
        eventually(lambda: reported.of(Unreachable))
        send(alert("b"))
        port = nobody.getsockname()[1]
    with serving(Receiver(port=port)) as back:
        eventually(lambda: back.keys == ["a", "b"])

    assert reported.of(Unreachable)[0].error == "ConnectionRefusedError: Connection refused"
    assert reported.of(AlertsNotSent) == []


class _Silent(socketserver.BaseRequestHandler):
    """Answers a byte now and then, for ever."""

    def handle(self) -> None:
        try:
            while True:
                self.request.sendall(b"H")
                time.sleep(0.02)
        except OSError:
            return


def test_a_receiver_that_never_ends_its_answer_is_left_after_the_timeout(
    hook: Callable[..., Webhook], reported: Reported
) -> None:
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), _Silent) as server:
        server.daemon_threads = True
        threading.Thread(target=lambda: server.serve_forever(0.01), daemon=True).start()
        started = time.monotonic()
        send = hook(server.server_address[1], timeout=0.2)
        send(alert())
        eventually(lambda: reported.of(Unreachable))
        assert time.monotonic() - started < 5
        server.shutdown()


def test_a_receiver_that_accepts_and_says_nothing_is_left_after_the_timeout(
    receiver: Receiver, hook: Callable[..., Webhook], reported: Reported
) -> None:
    receiver.hold.clear()
    send = hook(receiver.port, timeout=0.1)
    send(alert())
    eventually(lambda: reported.of(Unreachable))
    receiver.hold.set()


def test_too_many_waiting_drop_the_oldest_and_that_is_told_here_and_there(
    receiver: Receiver, hook: Callable[..., Webhook], reported: Reported, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhook, "MOST_WAITING", 3)
    receiver.hold.clear()
    receiver.statuses = [503]
    send = hook(receiver.port)
    send(alert("0"))
    eventually(lambda: not send._outbox._alerts)
    for key in "12345":
        send(alert(key))
    receiver.hold.set()
    eventually(lambda: len(receiver.requests) == 2)
    send(alert("6"))
    send.stop()

    refused, accepted, last = [body for *_, body in receiver.requests]
    assert [alert["key"] for alert in refused["alerts"]] == ["0"]
    assert [alert["key"] for alert in accepted["alerts"]] == ["3", "4", "5"]
    assert (accepted["dropped"], last["dropped"]) == (3, 0)
    assert reported.of(AlertsNotSent) == [AlertsNotSent(3, "3 newer alerts were queued for the webhook")]


def test_stopping_sends_what_waits_and_does_not_wait_for_ever(
    receiver: Receiver, hook: Callable[..., Webhook], reported: Reported
) -> None:
    receiver.statuses = 100 * [503]
    send = hook(receiver.port, pause=60.0)
    send(alert("a"))
    eventually(lambda: reported.of(Unreachable))
    send(alert("b"))
    started = time.monotonic()
    send.stop()
    send.stop()

    assert time.monotonic() - started < 5
    assert reported.of(AlertsNotSent) == [AlertsNotSent(2, "it responded with status 503")]


# --- trust -----------------------------------------------------------------------------------------------------------


def test_the_address_is_never_told(receiver: Receiver, hook: Callable[..., Webhook], reported: Reported) -> None:
    receiver.statuses = [500, 404]
    send = hook(receiver.port)
    send(alert())
    eventually(lambda: len(receiver.requests) == 2)
    send.stop()
    refused = hook(receiver.port, private=False)
    refused(alert())
    refused.stop()
    for path in ("/%zz", "//x"):
        odd = hook(1, path=path + TOKEN)
        odd(alert())
        odd.stop()

    assert len(reported.events) > 5
    assert TOKEN not in reported.log
    assert "127.0.0.1" not in reported.log


def test_a_private_address_is_refused_unless_it_is_allowed(
    receiver: Receiver, hook: Callable[..., Webhook], reported: Reported
) -> None:
    send = hook(receiver.port, private=False)
    send(alert())
    send.stop()

    reason = "its address is private, local or reserved; alerts.webhook.allow_private allows the first two"
    assert reported.events == [Notice(f"alerts will not reach the webhook: {reason}"), AlertsNotSent(1, reason)]
    assert receiver.requests == []


def test_the_name_is_looked_up_once_and_the_address_that_was_checked_is_used(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = [["127.0.0.1"], ["169.254.169.254"]]
    monkeypatch.setattr(http_post, "resolved", lambda host, port: answers.pop(0))
    target = Target(Secret(f"http://hooks.example:{receiver.port}/"), 5.0, allow_private=True)

    assert target.post(b'{"alerts": []}').done
    assert len(answers) == 1
    ((_, _, headers, _),) = receiver.requests
    assert headers["Host"] == f"hooks.example:{receiver.port}"

    outcome = target.post(b'{"alerts": []}')
    assert (outcome.done, outcome.retry) == (False, False)


def test_only_addresses_that_are_allowed_are_tried(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []

    def connect(address: tuple[str, int], timeout: float) -> socket.socket:
        tried.append(address[0])
        raise ConnectionRefusedError

    monkeypatch.setattr(http_post, "resolved", lambda host, port: ["10.0.0.1", "1.1.1.1", "::1", "2606:4700::1111"])
    monkeypatch.setattr(socket, "create_connection", connect)

    assert Target(Secret("http://hooks.example/"), 5.0).post(b"{}").retry
    assert tried == ["1.1.1.1", "2606:4700::1111"]


def test_a_proxy_of_the_environment_is_not_used(
    receiver: Receiver, hook: Callable[..., Webhook], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    send = hook(receiver.port)
    send(alert())
    send.stop()

    assert receiver.keys == ["k"]


def test_a_name_that_nobody_knows_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(host: str, port: int) -> list[str]:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(http_post, "resolved", unknown)
    target = Target(Secret("https://hooks.example/"), 5.0)

    assert target.refusal() is None
    assert target.post(b"{}") == http_post.Outcome(done=False, retry=True, reason="gaierror: Name or service not known")


PUBLIC = ["1.1.1.1", "93.184.216.34", "2606:4700:4700::1111", "::ffff:1.1.1.1", "64:ff9b::101:101", "2002:101:101::1"]
PRIVATE = [
    "127.0.0.1",
    "10.1.2.3",
    "172.16.0.1",
    "192.168.1.1",
    "100.64.0.1",
    "100.100.100.200",
    "::1",
    "fd00:ec2::254",
    "::ffff:127.0.0.1",
    "64:ff9b::a00:1",
    "2002:a00:1::1",
    "fec0::1",
    "240.0.0.1",
]
NEVER = [
    "169.254.169.254",
    "::ffff:169.254.169.254",
    "64:ff9b::a9fe:a9fe",
    "2002:a9fe:a9fe::1",
    "fe80::1",
    "fe80::1%eth0",
    "168.63.129.16",
    "224.0.0.1",
    "ff02::1",
    "0.0.0.0",  # noqa: S104 (data, nothing listens)
    "::",
]


@pytest.mark.parametrize(
    ("address", "anyway", "if_private"),
    [
        *((address, True, True) for address in PUBLIC),
        *((address, False, True) for address in PRIVATE),
        *((address, False, False) for address in NEVER),
    ],
)
def test_which_addresses_are_allowed(address: str, anyway: bool, if_private: bool) -> None:
    assert allowed(address, private=False) is anyway
    assert allowed(address, private=True) is if_private


# --- encryption ------------------------------------------------------------------------------------------------------


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """Of `hooks.example`, signed by itself."""
    file = tmp_path / "certificate.pem"
    made = subprocess.run(
        shlex.split(
            "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=hooks.example "
            f"-addext subjectAltName=DNS:hooks.example -keyout {tmp_path / 'key.pem'} -out {file}"
        ),
        capture_output=True,
        check=False,
    )
    assert made.returncode == 0, made.stderr
    file.write_text(file.read_text() + (tmp_path / "key.pem").read_text())
    return file


@pytest.mark.parametrize(
    ("trusted", "host", "reason"),
    [
        (True, "hooks.example", None),
        (True, "other.example", "SSLCertVerificationError: CERTIFICATE_VERIFY_FAILED"),
        (False, "hooks.example", "SSLCertVerificationError: CERTIFICATE_VERIFY_FAILED"),
    ],
)
def test_https_checks_the_certificate_and_its_name(
    certificate: Path, monkeypatch: pytest.MonkeyPatch, trusted: bool, host: str, reason: str | None
) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    if trusted:
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    monkeypatch.setattr(http_post, "resolved", lambda host, port: ["127.0.0.1"])

    with serving(Receiver(), context) as receiver:
        target = Target(Secret(f"https://{host}:{receiver.port}/{TOKEN}"), 5.0, allow_private=True)
        outcome = target.post(b'{"alerts": []}')

    assert outcome.done is (reason is None)
    assert len(receiver.requests) == int(outcome.done)
    if reason is not None:
        assert outcome.reason == reason
