"""Read-only access to the files of a root: a folder, or a prefix of an S3 bucket. Nothing here writes."""

from __future__ import annotations

import os
import shutil
import tempfile
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeVar

from holdfast.config.aws import AwsIdentity, aws_client
from holdfast.errors import Unavailable
from holdfast.registry import needing

OURS = "_holdfast/"
STAGING = f"{OURS}staging/"
_ABSENT = (FileNotFoundError, NotADirectoryError, IsADirectoryError)
TRIES = 5
CONNECTIONS = 32
CONNECT_TIMEOUT = 5.0
READ_TIMEOUT = 60.0
_ABSENT_CODES = {"NoSuchKey", "NotFound", "404"}
Given = TypeVar("Given")
Made = TypeVar("Made")
THREADS = 8
WINDOW = 16


class Listed(NamedTuple):
    """One object of a listing. Keys are relative to the root."""

    key: str
    size: int


class Root(ABC):
    """The files below one root. All calls block and raise `Unavailable` when it does not respond. Thread-safe."""

    location: str
    """The root as written in the settings."""

    @abstractmethod
    def listing(self) -> Iterator[Listed]:
        """Yield all objects, hidden ones included, in no particular order; staged files are left out."""

    @abstractmethod
    def folders(self, prefix: str) -> Iterator[str]:
        """Yield the names of the folders directly below a prefix that ends with a slash."""

    @abstractmethod
    def size(self, key: str) -> int | None:
        """Return the current size of an object; None if it does not exist."""

    @abstractmethod
    def open(self, key: str) -> BinaryIO | None:
        """Return the object as a seekable file; None if it does not exist. The caller closes it."""

    def read(self, key: str) -> bytes | None:
        """Return all bytes of a small object; None if it does not exist."""
        file = self.open(key)
        if file is None:
            return None
        with file:
            return file.read()

    def key_of(self, name: str) -> str:
        """Return the key of a file whose name is given with or without the root."""
        return name.removeprefix(self.location.rstrip("/") + "/")


def is_key(key: Any) -> bool:
    """Return whether this may be the key of an object below a root."""
    return isinstance(key, str) and "\0" not in key and not any(part in {"", ".", ".."} for part in key.split("/"))


def root_of(root: str, s3: Any) -> Root:
    """Return the root of a sink's settings. Connects to nothing."""
    if root.startswith("s3://"):
        return S3Root(root, s3)
    return FolderRoot(root)


class FolderRoot(Root):
    """A folder and all below it. Symbolic links to folders are not followed."""

    def __init__(self, root: str) -> None:
        self.location = root
        self._path = Path(root).absolute()

    def listing(self) -> Iterator[Listed]:
        with self._errors_translated():
            if not self._path.is_dir():
                raise Unavailable(f"the folder {self._path} does not exist")
            waiting = [""]
            while waiting:
                below = waiting.pop()
                for entry in _entries(self._path / below):
                    key = below + entry.name
                    if not entry.is_dir(follow_symlinks=False):
                        yield from _listed(key, entry)
                    elif f"{key}/" != STAGING:
                        waiting.append(f"{key}/")

    def folders(self, prefix: str) -> Iterator[str]:
        with self._errors_translated():
            names = sorted(entry.name for entry in _entries(self._path / prefix) if entry.is_dir())
        return iter(names)

    def size(self, key: str) -> int | None:
        path = self._path / key
        with self._errors_translated():
            try:
                return path.stat().st_size if is_key(key) and path.is_file() else None
            except _ABSENT:
                return None

    def open(self, key: str) -> BinaryIO | None:
        if not is_key(key):
            return None
        with self._errors_translated():
            try:
                return (self._path / key).open("rb")
            except _ABSENT:
                return None

    def key_of(self, name: str) -> str:
        path = Path(name).absolute()
        return path.relative_to(self._path).as_posix() if path.is_relative_to(self._path) else name

    @contextmanager
    def _errors_translated(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise Unavailable(f"cannot read {self._path}: {error}") from error


def _entries(path: Path) -> Iterator[os.DirEntry[str]]:
    try:
        with os.scandir(path) as entries:
            yield from entries
    except _ABSENT:
        return  # deleted after its parent was listed


def _listed(key: str, entry: os.DirEntry[str]) -> Iterator[Listed]:
    try:
        yield Listed(key, entry.stat().st_size)
    except FileNotFoundError:
        return


class S3Root(Root):
    """Objects below a prefix of a bucket. `options` are the sink's S3 settings, or None."""

    def __init__(self, root: str, options: Any) -> None:
        self.location = root
        self._bucket, _, prefix = root.removeprefix("s3://").partition("/")
        self._prefix = f"{prefix.strip('/')}/" if prefix.strip("/") else ""
        self._client = _connect(options)

    def listing(self) -> Iterator[Listed]:
        for page in self._pages(Prefix=self._prefix):
            for entry in page.get("Contents", ()):
                key = entry["Key"].removeprefix(self._prefix)
                # Some servers list folders as empty objects.
                if key and not key.endswith("/") and not key.startswith(STAGING):
                    yield Listed(key, entry["Size"])

    def folders(self, prefix: str) -> Iterator[str]:
        for page in self._pages(Prefix=self._prefix + prefix, Delimiter="/"):
            for entry in page.get("CommonPrefixes", ()):
                yield entry["Prefix"].removeprefix(self._prefix + prefix).rstrip("/")

    def size(self, key: str) -> int | None:
        with self._response(key) as found:
            if is_key(key):
                response = self._client.head_object(Bucket=self._bucket, Key=self._prefix + key)
                found.append(int(response["ContentLength"]))
        return found[0] if found else None

    def open(self, key: str) -> BinaryIO | None:
        with self._response(key) as found:
            if is_key(key):
                found.append(self._copied(key))
        return found[0] if found else None

    def _copied(self, key: str) -> BinaryIO:
        """Return the object as a temporary file: readers of some formats must seek."""
        from botocore.exceptions import BotoCoreError

        for left in reversed(range(TRIES)):
            file = tempfile.TemporaryFile()  # noqa: SIM115 - the caller closes it
            try:
                response = self._client.get_object(Bucket=self._bucket, Key=self._prefix + key)
                shutil.copyfileobj(response["Body"], file, 1 << 20)
                file.seek(0)
            except BaseException as error:
                file.close()
                # botocore does not retry a body that breaks off.
                if not left or not isinstance(error, BotoCoreError | OSError):
                    raise
            else:
                return file
        raise AssertionError

    def _pages(self, **arguments: Any) -> Iterator[Any]:
        with self._response(""):
            yield from self._client.get_paginator("list_objects_v2").paginate(Bucket=self._bucket, **arguments)

    @contextmanager
    def _response(self, key: str) -> Iterator[list[Any]]:
        """Yield a list for the result; it stays empty if the object does not exist."""
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            yield []
        except ClientError as error:
            if error.response.get("Error", {}).get("Code") not in _ABSENT_CODES:
                raise Unavailable(f"cannot read {self.location}/{key}: {error}") from error
        except (BotoCoreError, OSError) as error:
            raise Unavailable(f"cannot read {self.location}/{key}: {error}") from error


def _connect(options: Any) -> Any:
    def given(name: str) -> Any:
        value = getattr(options, name, None)
        return value.reveal() if value is not None and hasattr(value, "reveal") else value

    with needing("a root on S3", "boto3", "s3"):
        session = AwsIdentity.of(options).session(given("region"))
    return aws_client(
        session,
        "s3",
        endpoint_url=given("endpoint_url"),
        connect_timeout=CONNECT_TIMEOUT,
        read_timeout=READ_TIMEOUT,
        connections=CONNECTIONS,
        tries=TRIES,
        response_checksum_validation="when_required",
        s3={"addressing_style": "path" if given("path_style") else "auto"},
    )


def read_ahead(
    pool: Executor, do: Callable[[Given], Made], inputs: Iterable[Given], window: int = WINDOW
) -> Iterator[Made]:
    """Yield `do(input)` for each input in order, with up to `window` calls in flight; errors come in order, too."""
    waiting: deque[Future[Made]] = deque()
    rest = iter(inputs)
    try:
        while True:
            waiting.extend(pool.submit(do, given) for given in islice(rest, window - len(waiting)))
            if not waiting:
                return
            yield waiting.popleft().result()
    finally:
        for future in waiting:
            future.cancel()
