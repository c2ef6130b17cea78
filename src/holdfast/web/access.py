"""Who may look and act: viewers and their roles, and how the dashboard may be reached."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

from holdfast.web.limits import Limits

if TYPE_CHECKING:
    from holdfast.web.tokens import Tokens


class Role(IntEnum):
    """What a viewer may do; a higher role may do all that a lower one may."""

    VIEWER = 1
    OPERATOR = 2
    ADMIN = 3

    @classmethod
    def named(cls, name: str) -> Role:
        """Return the role of this name. Raises `KeyError`."""
        return cls[name.upper()]


@dataclass(frozen=True, slots=True)
class Viewer:
    """Who sends a request. `csrf` is what its forms send back; empty for programs, which send no cookie."""

    name: str
    role: Role
    csrf: str = ""

    def may(self, role: str) -> bool:
        """Return whether the viewer has this role, or a higher one."""
        return self.role >= Role.named(role)


@dataclass(frozen=True)
class Access:
    """How the dashboard may be reached.

    `base_path` is the prefix that a proxy puts in front of all paths, without a slash at its end. `hosts` are the names
    that a request may give as its host, besides those of loopback, each with its port unless that is the usual one.
    Without `tokens`, whoever can connect is an admin: only for an application that another one protects.
    `token_in_url`: a link may carry the token. `behind_proxy`: the last address in `X-Forwarded-For` is the client's,
    as the proxy itself has added it.
    """

    base_path: str = ""
    hosts: frozenset[str] = frozenset()
    read_only: bool = False
    tokens: Tokens | None = None
    token_in_url: bool = False
    behind_proxy: bool = False
    port: int = 0
    limits: Limits = Limits()
