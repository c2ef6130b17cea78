"""Where files are, for one who only looks: a folder, or a prefix of an S3 bucket. Nothing here writes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, BinaryIO, NamedTuple

OURS = "_holdfast/"
STAGING = f"{OURS}staging/"


class Listed(NamedTuple):
    """One object of a listing. Keys are relative to the root."""

    key: str
    size: int


class Place(ABC):
    """One root. All calls block and raise `Unavailable` when it does not answer. Threads may share it."""

    root: str
    """As the settings have it."""

    @abstractmethod
    def listing(self) -> Iterator[Listed]:
        """All objects, hidden ones included, in no order; not what is staged."""

    @abstractmethod
    def folders(self, prefix: str) -> Iterator[str]:
        """Names of the folders directly below a prefix that ends with a slash."""

    @abstractmethod
    def size(self, key: str) -> int | None:
        """Bytes of an object now; None if there is none."""

    @abstractmethod
    def open(self, key: str) -> BinaryIO | None:
        """The object as a file that can seek; None if there is none. The caller closes it."""

    def read(self, key: str) -> bytes | None:
        """All bytes of a small object; None if there is none."""
        file = self.open(key)
        if file is None:
            return None
        with file:
            return file.read()

    def key_of(self, name: str) -> str:
        """The key of a file that a person names by key or with its root before it."""
        return name.removeprefix(self.root.rstrip("/") + "/")


def is_key(key: Any) -> bool:
    """Whether this may name an object below a root."""
    return isinstance(key, str) and "\0" not in key and not any(part in {"", ".", ".."} for part in key.split("/"))


def place_of(root: str, s3: Any) -> Place:
    """The root that the settings of a sink name, not yet reached."""
    if root.startswith("s3://"):
        from holdfast.audit.s3 import S3Prefix

        return S3Prefix(root, s3)
    from holdfast.audit.folder import Folder

    return Folder(root)
