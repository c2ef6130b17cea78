"""`holdfast web` as other hosts reach it: with a certificate of its own, or behind an nginx that has one."""

from __future__ import annotations

import json
import re
import shutil
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, expect
from typer.testing import CliRunner
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from holdfast.cli.root import app as commands
from tests.servers.processes import certificate, free_port
from tests.unit.web.serving import wait_for
from tests.web.browser import PATIENCE, opened_page
from tests.web.fleet import opened
from tests.web.test_access_in_chromium import OPERATOR, log_in, tokens

GUIDE = Path(__file__).parents[2] / "docs" / "how-to" / "dashboard.md"
NGINX = shutil.which("nginx") or "/usr/sbin/nginx"
SERVER = """\
daemon off;
master_process off;
pid {folder}/nginx.pid;
error_log {folder}/error.log;
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder};
    proxy_temp_path {folder};
    fastcgi_temp_path {folder};
    uwsgi_temp_path {folder};
    scgi_temp_path {folder};
    server {{
        listen 127.0.0.1:{port} ssl;
        ssl_certificate {certificate};
        ssl_certificate_key {key};
        {location}
    }}
}}
"""


@pytest.fixture
def file(tmp_path: Path) -> Iterator[Path]:
    """The file of a fleet, with a token file and a certificate beside it."""
    tokens(tmp_path)
    certificate(tmp_path, "cert")
    with opened(tmp_path) as (found, _, _):
        yield found


@contextmanager
def holdfast_web(file: Path, *options: str) -> Iterator[str]:
    """Run the command until the block ends, and yield the address that it prints."""
    command = [sys.executable, "-m", "holdfast", "web", str(file), "--port", "0", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=file.parent) as process:
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            yield next(word for word in line.split() if word.startswith("http")).rstrip("/")
        finally:
            process.terminate()


@contextmanager
def nginx(folder: Path, upstream: str) -> Iterator[str]:
    """Run nginx with TLS and the location of the guide in front of a dashboard, and yield its address."""
    (location,) = re.findall(r"^location /holdfast/ {.*?^}", GUIDE.read_text(), re.MULTILINE | re.DOTALL)
    port = free_port()
    values = {"certificate": folder / "cert.pem", "key": folder / "cert.key", "folder": folder, "port": port}
    here = location.replace("http://127.0.0.1:8600", re.sub(r"(:\d+).*", r"\1", upstream))
    (folder / "nginx.conf").write_text(SERVER.format(location=here, **values))
    with subprocess.Popen([NGINX, "-p", str(folder), "-c", str(folder / "nginx.conf")]) as process:
        try:
            url = f"https://127.0.0.1:{port}/holdfast"
            wait_for(lambda: _responds(f"{url}/healthz", folder))
            yield url
        finally:
            process.terminate()


def _responds(url: str, folder: Path) -> bool:
    try:
        return httpx.get(url, verify=trusting(folder), timeout=PATIENCE).status_code == 200
    except httpx.ConnectError:
        return False


def trusting(folder: Path) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(folder / "cert.pem"))


def first_tick(url: str, folder: Path, headers: dict[str, str]) -> str:
    address = f"{url.replace('https', 'wss')}/api/v1/live"
    with connect(address, ssl=trusting(folder), additional_headers=headers) as socket:
        socket.send(json.dumps({"subscribe": ["/nodes"]}))
        return str(json.loads(socket.recv(PATIENCE))["store"])


def check_as_a_client(url: str, folder: Path) -> None:
    """Log in, act and listen over TLS; without a token nothing is shown."""
    with httpx.Client(verify=trusting(folder), timeout=PATIENCE) as client:
        assert client.get(f"{url}/api/v1/overview").status_code == 401
        entered = client.post(f"{url}/login", data={"token": OPERATOR})
        assert entered.status_code == 303
        assert "secure" in entered.headers["set-cookie"].lower()
        assert client.get(f"{url}/api/v1/overview").status_code == 200
    sent = httpx.post(
        f"{url}/api/v1/pipelines/clicks:pause",
        json={"reason": "over TLS"},
        headers={"Authorization": f"Bearer {OPERATOR}"},
        verify=trusting(folder),
        timeout=PATIENCE,
    )
    assert (sent.status_code, sent.json()["who"]) == (200, "ana")
    assert first_tick(url, folder, {"Authorization": f"Bearer {OPERATOR}"}) == "ok"
    with pytest.raises(InvalidStatus, match="403"):
        first_tick(url, folder, {})


def test_with_a_certificate_everything_is_sent_over_tls(file: Path) -> None:
    folder = file.parent
    options = ("--host", "0.0.0.0", "--allowed-host", "127.0.0.1", "--token-file", "tokens")  # noqa: S104 - with tokens
    with holdfast_web(file, *options, "--tls-cert", "cert.pem", "--tls-key", "cert.key") as url:
        assert url.startswith("https://")
        check_as_a_client(url, folder)
        with pytest.raises(httpx.TransportError):
            httpx.get(url.replace("https", "http"), timeout=PATIENCE)


def test_behind_a_proxy_with_tls_everything_works_below_its_prefix(file: Path, browser: Browser) -> None:
    folder = file.parent
    options = ("--token-file", "tokens", "--behind-proxy", "--base-path", "/holdfast", "--allowed-host", "127.0.0.1")
    with holdfast_web(file, *options) as upstream, nginx(folder, upstream) as url:
        check_as_a_client(url, folder)
        with opened_page(browser, url, ignore_https_errors=True) as page:
            page.goto(f"{url}/pipelines/clicks/partition?key=clicks%7C1")
            log_in(page, OPERATOR)
            expect(page.locator("#live")).to_have_attribute("data-state", "live")
            page.locator("[data-action]").first.click()
            page.locator("#confirm-reason").fill("through nginx")
            page.locator("#confirm-go").click()
            expect(page.locator("#toast")).to_contain_text("1 partition")
            page.goto(f"{url}/audit")
            entry = page.locator("#region-entries tbody tr").first
            expect(entry).to_contain_text("through nginx")
            (cookie,) = page.context.cookies()
            assert (cookie["secure"], cookie["httpOnly"], cookie["path"]) == (True, True, "/holdfast")
            assert page.evaluate("refused") == []


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (["--host", "0.0.0.0"], "add --token-file"),  # noqa: S104 - it is refused
        (["--host", "0.0.0.0", "--token-file", "tokens"], "--tls-cert and --tls-key, or --behind-proxy"),  # noqa: S104
        (["--host", "::", "--token-file", "tokens", "--behind-proxy"], "add --allowed-host"),
        (["--behind-proxy"], "add --token-file"),
    ],
)
def test_what_would_let_everyone_in_is_refused_before_it_is_served(file: Path, options: list[str], error: str) -> None:
    here = [str(file.parent / word) if word == "tokens" else word for word in options]
    result = CliRunner().invoke(commands, ["web", str(file), "--port", "0", *here])
    assert result.exit_code == 2, result.output
    assert error in result.output
