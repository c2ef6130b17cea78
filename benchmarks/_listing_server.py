"""A stand-in for a bucket of a million objects: it answers listings, made up page by page, and nothing else."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

PAGE = 1000
_ENTRY = (
    "<Contents><Key>logs/2026/{day:02d}/{number:010d}-events.jsonl.gz</Key>"
    "<LastModified>2026-01-{day:02d}T{hour:02d}:{minute:02d}:00.000Z</LastModified>"
    "<ETag>&quot;{number:032x}&quot;</ETag><Size>{size}</Size><StorageClass>STANDARD</StorageClass></Contents>"
)


def page(start: int, count: int) -> bytes:
    """The listing of that many objects in all, from the given one on. Times are in no order."""
    end = min(start + PAGE, count)
    entries = "".join(
        _ENTRY.format(
            number=number,
            day=1 + number * 28 // count,
            hour=number * 7919 % 24,
            minute=number * 104_729 % 60,
            size=number % 9000 + 1,
        )
        for number in range(start, end)
    )
    more = f"<NextContinuationToken>{end}</NextContinuationToken>" if end < count else ""
    text = (
        '<?xml version="1.0" encoding="UTF-8"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
        f"<Name>landing</Name><Prefix></Prefix><KeyCount>{end - start}</KeyCount><MaxKeys>{PAGE}</MaxKeys>"
        f"<IsTruncated>{str(end < count).lower()}</IsTruncated>{more}{entries}</ListBucketResult>"
    )
    return text.encode()


@contextmanager
def listing(count: int) -> Iterator[str]:
    """The address of a server that lists so many objects, in a process of its own."""
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_serve, args=(count, theirs), daemon=True)
    process.start()
    try:
        yield f"http://127.0.0.1:{ours.recv()}"
    finally:
        process.terminate()
        process.join()


def _serve(count: int, ready: Any) -> None:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            query = parse_qs(urlsplit(self.path).query)
            body = page(int(query.get("continuation-token", ["0"])[0]), count)
            self.send_response(200)
            self.send_header("Content-Type", "application/xml")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    ready.send(server.server_port)
    server.serve_forever()
