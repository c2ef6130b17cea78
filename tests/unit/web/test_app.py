"""Pages, regions and static files, with a real server on loopback."""

from __future__ import annotations

import asyncio
import json
import re
import time
from html import unescape
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.errors import StoreUnavailable
from holdfast.observe.overview import overview
from holdfast.stores.memory import MemoryStore
from holdfast.web import readings as readings_module
from holdfast.web.pace import Pace
from holdfast.web.page import digests_of
from holdfast.web.readings import Readings
from holdfast.web.snapshots import Snapshots
from tests.unit.web.serving import served


def test_a_page_is_html_and_its_data_are_json(tmp_path: Path) -> None:
    with served(tmp_path) as board, board.client() as client:
        board.add("a", "<script>b")
        page = client.get("/")
        assert page.status_code == 200
        assert page.headers["content-type"] == "text/html; charset=utf-8"
        assert 'data-region="pipelines"' in page.text
        data = client.get("/?format=json")
        expected = overview(board.store, board.dashboard.fleet, board.dashboard.pipelines)
        found = {name: data.json()[name] for name in expected}
        assert {**found, "at": None} == {**expected, "at": None}
        assert data.headers["age"].isdecimal()


def test_a_region_is_a_part_of_its_page(tmp_path: Path) -> None:
    with served(tmp_path) as board, board.client() as client:
        region = client.get("/?region=pipelines").text
        assert region.strip().startswith('<section id="region-pipelines"')
        assert region.strip() in client.get("/").text
        assert client.get("/?region=other").status_code == 404


def test_what_does_not_exist_is_an_error_for_people_and_for_programs(tmp_path: Path) -> None:
    with served(tmp_path) as board, board.client() as client:
        assert "<h1>404</h1>" in client.get("/nowhere").text
        assert client.get("/api/v1/nowhere").json() == {"error": "Not Found"}
        assert client.get("/nowhere?format=json").status_code == 404


def test_responses_may_not_be_kept_framed_or_extended_by_scripts_of_others(tmp_path: Path) -> None:
    with served(tmp_path) as board, board.client() as client:
        for path in ("/", "/nowhere", "/static/nothing.js", "/api/v1/openapi.json"):
            headers = client.get(path).headers
            assert headers["content-security-policy"].startswith("default-src 'none';")
            assert "require-trusted-types-for 'script'" in headers["content-security-policy"]
            assert headers["cache-control"] == "no-store"
            assert headers["x-content-type-options"] == "nosniff"


def test_a_page_and_its_regions_say_which_data_they_show(tmp_path: Path) -> None:
    with served(tmp_path) as board, board.client() as client:
        digests = digests_of(client.get("/?format=json").json())
        page = client.get("/")
        assert json.loads(unescape(re.findall(r'data-digests="([^"]*)"', page.text)[0])) == digests
        assert client.get("/?region=needs").headers["x-region-digest"] == digests["needs"]
        assert "x-region-digest" not in page.headers


def test_large_responses_are_compressed(tmp_path: Path) -> None:
    with served(tmp_path) as board, board.client() as client:
        for path in ("/", "/static/vendor/idiomorph.min.js", "/api/v1/openapi.json"):
            assert client.get(path).headers["content-encoding"] == "gzip"
            assert "content-encoding" not in client.get(path, headers={"accept-encoding": "identity"}).headers
        assert "content-encoding" not in client.get("/api/v1/pipelines").headers


def away() -> Any:
    raise StoreUnavailable("it does not respond")


def test_a_store_that_is_back_is_read_at_once_however_long_it_was_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = count(0, 100)  # every look at the clock is 100 seconds later
    monkeypatch.setattr(readings_module, "time", SimpleNamespace(monotonic=lambda: float(next(looks))))

    async def twice() -> Any:
        readings = Readings(every=1.0)
        with pytest.raises(StoreUnavailable):
            await readings.get("key", away)
        found = await readings.get("key", lambda: "back")
        readings.close()
        return found.value

    assert asyncio.run(twice()) == "back"


def test_what_was_read_beside_an_action_is_read_anew_after_it() -> None:
    async def twice() -> list[Any]:
        readings = Readings(every=3600)

        def acted() -> str:
            readings.forget()
            return "before"

        found = [await readings.get("key", acted), await readings.get("key", lambda: "after")]
        readings.close()
        return [reading.value for reading in found]

    assert asyncio.run(twice()) == ["before", "after"]


def test_data_are_as_old_as_the_snapshot_that_they_come_from() -> None:
    snapshots = Snapshots(MemoryStore(), Pace(3600, 0))

    async def second_after_first() -> tuple[float, float]:
        readings = Readings(every=0, share=0)
        readings.attach(snapshots)
        snapshots.pace = Pace(3600, 0)
        await readings.get("key", lambda: snapshots.get("orders"))
        taken_at = time.monotonic()
        found = await readings.get("key", lambda: snapshots.get("orders"))
        readings.close()
        return found.read_at, taken_at

    read_at, taken_at = asyncio.run(second_after_first())
    assert read_at <= taken_at


def test_who_opens_a_page_does_not_wait_for_a_read_unless_the_last_is_long_ago_or_before_an_action() -> None:
    async def opened() -> list[Any]:
        readings = Readings(every=0.1, share=0)
        found = [await readings.get("key", lambda: "first", wait=False)]
        readings._kept["key"].next_at = 0.0
        found.append(await readings.get("key", lambda: "second", wait=False))
        found.append(await readings.get("key", lambda: "second"))
        readings.forget()
        found.append(await readings.get("key", lambda: "third", wait=False))
        await asyncio.sleep(0.6)
        found.append(await readings.get("key", lambda: "fourth", wait=False))
        readings.close()
        return [(reading.value, reading.fault) for reading in found]

    wanted = ["first", "first", "second", "third", "fourth"]
    assert asyncio.run(opened()) == [(value, None) for value in wanted]


def test_a_store_that_charges_for_reads_is_read_seldom() -> None:
    store = MemoryStore()
    assert Readings.of_store(store).every == 2

    store.charges_for_reads = True

    assert Readings.of_store(store).every == 30
