"""Static files, with a real server on loopback."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from holdfast.web.page import STATIC
from tests.unit.web.serving import served


@pytest.fixture
def client(tmp_path: Path) -> Iterator[httpx.Client]:
    with served(tmp_path) as board, board.client() as found:
        yield found


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("holdfast.css", "text/css"),
        ("app.js", "text/javascript"),
        ("icon.svg", "image/svg+xml"),
        ("vendor/idiomorph.min.js", "text/javascript"),
    ],
)
def test_a_file_is_served_as_it_is_and_compressed_for_those_who_take_that(
    client: httpx.Client, name: str, kind: str
) -> None:
    content = (STATIC / name).read_bytes()
    small = len(content) < 1000
    for taken, coding in (("identity", None), ("gzip", None if small else "gzip")):
        found = client.get(f"/static/{name}", headers={"Accept-Encoding": taken})
        assert (found.status_code, found.content) == (200, content)
        assert found.headers["content-type"].split(";")[0] == kind
        assert found.headers.get("content-encoding") == coding
        assert found.headers.get("vary") == (None if small else "Accept-Encoding")


def test_a_file_that_the_browser_has_is_not_sent_again(client: httpx.Client) -> None:
    etag = client.get("/static/app.js").headers["etag"]
    again = client.get("/static/app.js", headers={"If-None-Match": etag})
    assert (again.status_code, again.content) == (304, b"")
    assert client.get("/static/app.js", headers={"If-None-Match": '"other"'}).status_code == 200


@pytest.mark.parametrize("path", ["nothing.js", "vendor", "", "../app.py", "%2e%2e/app.py", "vendor/../app.js/"])
def test_nothing_else_is_served(client: httpx.Client, path: str) -> None:
    assert client.get(f"/static/{path}").status_code in {404, 405}
