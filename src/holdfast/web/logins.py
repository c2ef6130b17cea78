"""Logins of browsers: a random cookie for a token, kept in this process until it expires or the viewer logs out."""

from __future__ import annotations

import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

from holdfast.web.access import Viewer
from holdfast.web.tokens import TokenHolder, Tokens, holder_of

LASTS = 12 * 3600.0
"""Seconds after which a viewer has to log in anew."""
MOST = 1000
"""Logins that are kept; the oldest are dropped."""


class Login(NamedTuple):
    """A browser that has shown a token. `csrf` is what its forms send back."""

    digest: str
    csrf: str
    until: float


def masked(csrf: str) -> str:
    """Return the token in a form that is different each time.

    Pages are compressed: their length would otherwise reveal how much of the token another part of the page repeats.
    """
    pad = secrets.token_bytes(len(csrf))
    return f"{pad.hex()}.{_crossed(csrf.encode(), pad).hex()}" if csrf else ""


def unmasked(text: str) -> str:
    """Return the token that was masked; the text itself if it was not."""
    pad, _, crossed = text.partition(".")
    try:
        return _crossed(bytes.fromhex(crossed), bytes.fromhex(pad)).decode("latin-1") if crossed else text
    except ValueError:
        return text


def _crossed(text: bytes, pad: bytes) -> bytes:
    return bytes(one ^ other for one, other in zip(text, pad, strict=True))


class Logins:
    """All logins, and who has which token. Used from one event loop."""

    def __init__(self, tokens: Tokens, clock: Callable[[], float] = time.monotonic) -> None:
        self._tokens = tokens
        self._clock = clock
        self._logins: OrderedDict[str, Login] = OrderedDict()

    def of_token(self, token: str) -> Viewer | None:
        """Return who has this token."""
        holder = holder_of(self._tokens, token)
        return None if holder is None else Viewer(holder.name, holder.role)

    def begin(self, token: str) -> str | None:
        """Return the value of a new cookie; None if nobody has this token."""
        holder = holder_of(self._tokens, token)
        if holder is None:
            return None
        cookie = secrets.token_urlsafe(32)
        self._logins[cookie] = Login(holder.digest, secrets.token_urlsafe(32), self._clock() + LASTS)
        while len(self._logins) > MOST:
            self._logins.popitem(last=False)
        return cookie

    def of_cookie(self, cookie: str) -> Viewer | None:
        """Return who has logged in; None if the login has expired, or the token is not valid any more."""
        login = self._logins.get(cookie)
        if login is None:
            return None
        holder = self._holder(login.digest)
        if holder is None or login.until <= self._clock():
            self.end(cookie)
            return None
        return Viewer(holder.name, holder.role, login.csrf)

    def end(self, cookie: str) -> None:
        """Forget a login. May be repeated."""
        self._logins.pop(cookie, None)

    def _holder(self, digest: str) -> TokenHolder | None:
        return next((holder for holder in self._tokens.holders() if holder.digest == digest), None)
