"""Write pictures of every page of the dashboard, light and dark, to docs/pictures/.

python scripts/make_screenshots.py            all pages
python scripts/make_screenshots.py overview   some of them

The fleet exists only in a SQLite file: no node runs, and Spark is not needed. Needs Chromium.
"""

from __future__ import annotations

import struct
import sys
import tempfile
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from playwright.sync_api import ViewportSize, expect

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from holdfast.assemble import StoredPipeline  # noqa: E402 - found through the path above
from holdfast.runs import rewind  # noqa: E402
from holdfast.runs.verification import Verification, Verified  # noqa: E402
from tests.unit.web.test_api_runs import back_up  # noqa: E402
from tests.web.browser import ServedFleet, chromium, served_fleet  # noqa: E402
from tests.web.fleet import populate_letters  # noqa: E402

PICTURES = ROOT / "docs" / "pictures"
PAGES = {
    "overview": "/",
    "pipeline": "/pipelines/clicks",
    "partition": "/pipelines/clicks/partition?key=clicks%7C1080",
    "rewind": "/pipelines/clicks/rewind?key=clicks%7C3&to=998000",
    "backfill": "/pipelines/invoices/backfill?backup=invoices&between=..7",
    "nodes": "/nodes",
    "runs": "/runs",
    "run": "/runs/clicks?run=rewind-2026-11-17",
    "functions": "/functions",
    "alerts": "/alerts",
    "letters": "/letters?pipeline=invoices",
    "redrive": "/letters/redrive?pipeline=invoices&sink=files",
    "generations": "/generations",
    "proof": "/proof",
    "configuration": "/configuration",
    "audit": "/audit",
}
SIZE = ViewportSize(width=1100, height=700)
SETTLED = "document.fonts.ready"
MOST_COLOURS = 256
NEAR = 10
"""Colours whose parts differ by less than this in all are one."""


class KafkaLog:
    """What Kafka would say if there were one: the log begins at 0."""

    def starts(self, wanted: list[Any]) -> dict[Any, int]:
        """Return the first offsets."""
        return dict.fromkeys(wanted, 0)

    def close(self) -> None:
        """Nothing is open."""


def furnish(fleet: ServedFleet, folder: Path) -> None:
    """Add what only pictures show: dead letters, the files of a backup, and proofs."""
    populate_letters(fleet.dashboard.settings, fleet.store, folder)
    back_up(folder / "invoices", "invoices")
    now = fleet.store.now()
    proven = Verified("proven", "ana", True, now - 7000, now - 6860, 640, 0, 8_214, 640_211_904)
    doubt = "files: clicks|17: offsets 1,204 to 1,377 are in no file"
    doubtful = replace(proven, verdict="doubt", by="ben", deep=False, partitions=1213, doubtful=1, doubts=[doubt])
    for pipeline, found in (("invoices", proven), ("clicks", doubtful)):
        stored = StoredPipeline(fleet.dashboard.settings, fleet.store, pipeline)
        Verification(stored)._keep(found)  # noqa: SLF001 - nothing is verified here


def main() -> None:
    """Write the pictures of the pages that are named, or of all."""
    names = sys.argv[1:] or list(PAGES)
    kafka = mock.patch.object(rewind, "_cluster", return_value=KafkaLog())
    with kafka, tempfile.TemporaryDirectory(prefix="data-") as name, chromium() as browser:
        folder = Path(name)
        with served_fleet(folder) as fleet:
            furnish(fleet, folder)
            for theme in ("light", "dark"):
                context = browser.new_context(base_url=fleet.url, viewport=SIZE, color_scheme=theme)
                page = context.new_page()
                for each in names:
                    page.goto(PAGES[each])
                    page.evaluate(SETTLED)
                    if page.locator("[data-map]").count():
                        expect(page.locator(".map output")).to_contain_text(" of ")
                    taken = with_palette(page.screenshot(scale="css"))
                    (PICTURES / f"dashboard-{each}-{theme}.png").write_bytes(taken)


def with_palette(png: bytes) -> bytes:
    """Return a picture of three or four bytes per pixel as one of at most 256 colours: a third of the size."""
    width, height, depth, kind = struct.unpack(">IIBB", png[16:26])
    assert (depth, kind in {2, 6}) == (8, True)
    pixels = _pixels(png, width, height, 3 if kind == 2 else 4)
    packed = (pixels[..., 0] << 16) | (pixels[..., 1] << 8) | pixels[..., 2]
    colours, places, counts = np.unique(packed, return_inverse=True, return_counts=True)
    parts = np.stack([colours >> 16, (colours >> 8) & 255, colours & 255], axis=1)
    palette = _palette(parts[np.argsort(-counts)])
    nearest = np.abs(parts[:, None, :] - palette[None, :, :]).sum(axis=2).argmin(axis=1).astype(np.uint8)
    rows = np.hstack([np.zeros((height, 1), np.uint8), nearest[places].reshape(height, width)])
    head = struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)
    chunks = (
        (b"IHDR", head),
        (b"PLTE", palette.astype(np.uint8).tobytes()),
        (b"IDAT", zlib.compress(rows.tobytes(), 9)),
    )
    return png[:8] + b"".join(_chunk(name, data) for name, data in (*chunks, (b"IEND", b"")))


def _chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def _palette(parts: Any) -> Any:
    """The most frequent colours that are not near each other."""
    chosen = parts[:1]
    for colour in parts[1:]:
        if len(chosen) == MOST_COLOURS:
            break
        if np.abs(chosen - colour).sum(axis=1).min() >= NEAR:
            chosen = np.vstack([chosen, colour])
    return chosen


def _pixels(png: bytes, width: int, height: int, size: int) -> Any:
    data, at = b"", 8
    while at < len(png):
        (length,) = struct.unpack(">I", png[at : at + 4])
        if png[at + 4 : at + 8] == b"IDAT":
            data += png[at + 8 : at + 8 + length]
        at += 12 + length
    rows = np.frombuffer(zlib.decompress(data), np.uint8).reshape(height, 1 + width * size)
    found, above = np.zeros((height, width * size), np.int64), [0] * (width * size)
    for number, row in enumerate(rows):
        above = _unfiltered(int(row[0]), row[1:].tolist(), above, size)
        found[number] = above
    return found.reshape(height, width, size)


def _unfiltered(kind: int, row: list[int], above: list[int], size: int) -> list[int]:
    """A row of a PNG without its filter."""
    for at, value in enumerate(row):
        left, corner = (row[at - size], above[at - size]) if at >= size else (0, 0)
        up = above[at]
        if kind == 4:
            near = left + up - corner
            distances = (abs(near - left), abs(near - up), abs(near - corner))
            guess = (left, up, corner)[distances.index(min(distances))]
        else:
            guess = (0, left, up, (left + up) // 2)[kind]
        row[at] = (value + guess) & 255
    return row


if __name__ == "__main__":
    main()
