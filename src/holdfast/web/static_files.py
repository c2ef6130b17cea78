"""Static files from memory, compressed once: a page loads some ten of them, which wait for no disk and no thread."""

from __future__ import annotations

import gzip
import mimetypes
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

SMALLEST_COMPRESSED = 1000
"""Bytes from which a response is compressed."""

_COMPRESSED = {"content-encoding": "gzip", "vary": "Accept-Encoding"}


@dataclass(frozen=True)
class _File:
    plain: bytes
    compressed: bytes | None
    headers: dict[str, str]


class StaticFiles:
    """The files of a folder as they were when the server started."""

    def __init__(self, folder: Path) -> None:
        paths = (path for path in sorted(folder.rglob("*")) if path.is_file())
        self._files = {path.relative_to(folder).as_posix(): _file(path) for path in paths}

    async def serve(self, request: Request) -> Response:
        """Return the file that the request names. Raises `HTTPException` if there is none."""
        found = self._files.get(request.path_params["name"])
        if found is None:
            raise HTTPException(404)
        if found.headers["etag"] in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=found.headers)
        if found.compressed is None or "gzip" not in request.headers.get("accept-encoding", ""):
            return Response(found.plain, headers=found.headers)
        return Response(found.compressed, headers={**found.headers, **_COMPRESSED})


def _file(path: Path) -> _File:
    plain = path.read_bytes()
    compressed = gzip.compress(plain, 9, mtime=0) if len(plain) >= SMALLEST_COMPRESSED else None
    kind = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
    if kind.startswith("text/"):
        kind = f"{kind}; charset=utf-8"
    headers = {"content-type": kind, "etag": f'"{sha256(plain).hexdigest()[:32]}"'}
    return _File(plain, compressed, headers)
