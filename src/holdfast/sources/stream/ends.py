"""The ends of all shards of a stream, in a small file that writers and readers on one host map into memory.

A writer moves the end of its shard once its records are as durable as the stream promises. A reader delivers nothing
beyond that end, so it never sees bytes of an append that was not finished, and it learns of new records by looking at
memory, without a system call.

Each entry also names the boot of the host under which it was written. After a crash of the host, memory that had not
reached the disk is lost: an entry of another boot is not trusted, and the checksums in the segments decide.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import struct
from functools import cache
from pathlib import Path

from holdfast.errors import SourceUnavailable

NAME = "ends"
_MAGIC = int.from_bytes(b"HFENDS01", "little")
_HEADER_WORDS = 2
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@cache
def boot() -> int:
    """A number that differs from boot to boot of this host, never 0; 1 if the host does not provide one."""
    try:
        text = _BOOT_ID.read_bytes()
    except OSError:
        return 1
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") | 1


class Ends:
    """The ends of all shards, shared by processes. Any thread may read; a shard's end is set under its lock only."""

    def __init__(self, folder: Path, *, writable: bool) -> None:
        self.path = folder / NAME
        try:
            descriptor = os.open(self.path, os.O_RDWR if writable else os.O_RDONLY)
        except OSError as error:
            raise SourceUnavailable(f"{self.path} cannot be opened: {error.strerror}") from error
        try:
            status = os.fstat(descriptor)
            access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
            self._map = mmap.mmap(descriptor, 0, access=access) if status.st_size else None
        finally:
            os.close(descriptor)
        if self._map is None or len(self._map) < 16 or self._map[:8] != _MAGIC.to_bytes(8, "little"):
            raise SourceUnavailable(f"{self.path} is damaged or still being created")
        self.inode = status.st_ino
        # Aligned words, each read and written by one instruction.
        self._words = memoryview(self._map).cast("Q")
        self.shards = self._words[1]

    def get(self, shard: int) -> int | None:
        """The offset after the last record of the shard; None if only the checksums in its segments can show it."""
        at = _HEADER_WORDS + 2 * shard
        return self._words[at] if self._words[at + 1] == boot() else None

    def set(self, shard: int, end: int) -> None:
        at = _HEADER_WORDS + 2 * shard
        self._words[at] = end
        self._words[at + 1] = boot()

    def picture(self) -> bytes:
        """All entries as bytes, to see whether any of them has changed."""
        assert self._map is not None
        return self._map[:]

    def close(self) -> None:
        self._words.release()
        if self._map is not None:
            self._map.close()


def create(folder: Path, shards: int) -> None:
    """Write the file for empty shards."""
    entries = b"".join(struct.pack("=QQ", 0, boot()) for _ in range(shards))
    (folder / NAME).write_bytes(struct.pack("=QQ", _MAGIC, shards) + entries)
