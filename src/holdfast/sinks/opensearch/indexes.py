"""Names of indexes: constant, or made from a record's fields and then only what is allowed."""

from __future__ import annotations

import fnmatch
import re
from dataclasses import dataclass

from holdfast.sinks.opensearch.templates import Template

LONGEST = 255
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]*")
_PATTERN = re.compile(r"[a-z0-9][a-z0-9._*-]*")


def is_index_name(name: str) -> bool:
    """Whether an index may have that name. Names that begin with a dot are the server's own."""
    return bool(_NAME.fullmatch(name)) and len(name) <= LONGEST


def index_name_of(text: str) -> str:
    """The text as the name of an index."""
    name = re.sub(r"[^a-z0-9._-]+", "-", text.lower()).lstrip("._-+")
    return name[:LONGEST] or "holdfast"


@dataclass(frozen=True)
class IndexName:
    """The template of a name. Raises `ValueError` where records could name any index whatever. Picklable."""

    template: Template
    allowed: tuple[str, ...] = ()
    """Patterns with `*`. Without any, names must begin as the template does."""

    def __post_init__(self) -> None:
        for pattern in self.allowed:
            if not _PATTERN.fullmatch(pattern):
                raise ValueError(f"{pattern!r} is no pattern of index names: lower case, with * for anything")
        name = self.template.constant
        if name is not None and not is_index_name(name):
            raise ValueError(f"{name!r} is no index name: lower case letters, digits, '.', '_' and '-'")
        if name is None and not self.allowed and not is_index_name(self.template.beginning):
            raise ValueError("begins with a field, so that records could name any index; give allowed_indexes")

    @property
    def constant(self) -> str | None:
        return self.template.constant

    @property
    def patterns(self) -> tuple[str, ...]:
        """Patterns of all indexes that may be written to."""
        if self.constant is not None:
            return (self.constant,)
        return self.allowed or (f"{self.template.beginning}*",)

    def allows(self, name: str) -> bool:
        """Whether a record may name this index."""
        return is_index_name(name) and any(fnmatch.fnmatchcase(name, pattern) for pattern in self.patterns)
