"""Named tokens and their roles, from a file that only its owner may read.

Each line of the file is `ROLE NAME TOKEN`; lines that begin with `#` are comments:

    viewer    screen   8d5fb3c9a1f04c7e9b1d2a3f4e5c6b7a
    operator  ana      sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08

A token is written as it is, or as `sha256:` and the SHA-256 of it. Tokens are random and long, so that a fast hash is
enough. The file is read again when it has changed: a holder who is removed from it is refused from the next request on.
"""

from __future__ import annotations

import hmac
import os
import re
import stat
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple, Protocol

from holdfast.errors import UsageError
from holdfast.web.access import Role

SHORTEST = 20
"""Characters that a token has at least."""
_NAME = re.compile(r"[\w.@+-]{1,64}")
_HASH = re.compile(r"sha256:([0-9a-f]{64})")


class TokenHolder(NamedTuple):
    """Who has a token. `digest` is the SHA-256 of the token."""

    name: str
    role: Role
    digest: str


class Tokens(Protocol):
    """Tokens that let viewers in."""

    def holders(self) -> tuple[TokenHolder, ...]:
        """Return the holders of all tokens that are valid now."""


def holder_of(tokens: Tokens, token: str) -> TokenHolder | None:
    """Return who has this token. Takes equally long for every token, so that nobody can guess it piece by piece."""
    digest, found = digest_of(token), None
    for holder in tokens.holders():
        if hmac.compare_digest(holder.digest, digest):
            found = holder
    return found


def digest_of(token: str) -> str:
    """Return the hash by which tokens are compared."""
    return sha256(token.encode("utf-8", "surrogateescape")).hexdigest()


class ProcessToken:
    """A token that was made for this process; its holder is an admin."""

    def __init__(self, token: str, name: str = "local") -> None:
        self.token = token
        self._holders = (TokenHolder(name, Role.ADMIN, digest_of(token)),)

    def holders(self) -> tuple[TokenHolder, ...]:
        """Return the holder of this token."""
        return self._holders


class TokenFile:
    """The tokens of a file. Raises `UsageError` on creation if the file cannot be used.

    A file that becomes unusable later lets nobody in; that is reported once.
    """

    def __init__(self, path: Path, report: Callable[[str], None] = lambda _message: None) -> None:
        self._path = path
        self._report = report
        self._state: tuple[int, ...] = ()
        self._holders: tuple[TokenHolder, ...] = ()
        self._state, self._holders = self._read()

    def holders(self) -> tuple[TokenHolder, ...]:
        """Return the holders as the file has them now."""
        try:
            if self._state != _state(self._path.stat()):
                self._state, self._holders = self._read()
        except (OSError, UsageError) as error:
            if self._holders:
                self._report(f"nobody can log in: {error}")
            self._state, self._holders = (), ()
        return self._holders

    def _read(self) -> tuple[tuple[int, ...], tuple[TokenHolder, ...]]:
        try:
            with self._path.open(encoding="utf-8") as file:
                found = os.fstat(file.fileno())
                text = file.read()
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not text in UTF-8"
            raise UsageError(f"the token file {self._path} cannot be read: {reason}") from None
        if stat.S_IMODE(found.st_mode) & 0o077:
            raise UsageError(f"the token file {self._path} can be read by others; run `chmod 600 {self._path}`")
        holders = tuple(
            _holder(line, f"{self._path}:{number}")
            for number, line in enumerate(text.splitlines(), 1)
            if line.strip() and not line.lstrip().startswith("#")
        )
        if len({holder.digest for holder in holders}) < len(holders):
            raise UsageError(f"the token file {self._path} has the same token twice; each holder needs another one")
        if not holders:
            raise UsageError(f"the token file {self._path} has no tokens; each line is ROLE NAME TOKEN")
        return _state(found), holders


def _state(found: os.stat_result) -> tuple[int, ...]:
    return (found.st_ino, found.st_size, found.st_mtime_ns, found.st_mode)


def _holder(line: str, where: str) -> TokenHolder:
    """The holder of a line. Messages do not quote the line, because it has a secret."""
    words = line.split()
    if len(words) != 3:
        raise UsageError(f"{where}: expected ROLE NAME TOKEN")
    role, name, token = words
    if role not in {each.name.lower() for each in Role}:
        raise UsageError(f"{where}: the role is viewer, operator or admin")
    if not _NAME.fullmatch(name):
        raise UsageError(f"{where}: a name has letters, digits and . @ + - _")
    hashed = _HASH.fullmatch(token)
    if hashed is None and (len(token) < SHORTEST or token.startswith("sha256:")):
        raise UsageError(f"{where}: a token has {SHORTEST} characters or more, or is sha256: and 64 hexadecimal digits")
    return TokenHolder(name, Role.named(role), hashed[1] if hashed else digest_of(token))
