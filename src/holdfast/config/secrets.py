"""Secrets, and the references `${env:NAME}` and `${file:PATH}` through which they enter a configuration.

`${env:NAME:-default}` is the default if the variable is unset or empty. `$${` stands for a literal `${`. A path is
relative to the working directory of the process.
"""

from __future__ import annotations

import hmac
import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Self
from urllib.parse import unquote_plus, urlsplit

from pydantic import BeforeValidator, GetCoreSchemaHandler, GetJsonSchemaHandler, ValidationInfo
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

HIDDEN = "***"
# The message is shown without the value from the file.
SECRET_ERROR = "holdfast.secret"  # noqa: S105 (the kind of an error)
REFERENCE = re.compile(r"\$\{(?P<kind>env|file):(?P<name>[^{}]+)\}")
_TOKEN = re.compile(rf"(?P<escape>\$\$\{{)|{REFERENCE.pattern}|(?P<stray>\$\{{[^}}]*\}}?)")
_LARGEST_FILE = 64 * 1024
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_PASSWORD_WORDS = ("password", "passwd", "pwd")


class Resolved(str):
    """Text that came from a reference; its repr is the reference."""

    __slots__ = ("written",)

    written: str

    def __new__(cls, text: str, written: str) -> Self:
        """`text` is the value of the reference, `written` the reference as written in the file."""
        resolved = super().__new__(cls, text)
        resolved.written = written
        return resolved

    @property
    def has_default(self) -> bool:
        """Whether the file itself holds a text to use instead of a variable."""
        return any(token["name"].partition(":-")[2] for token in REFERENCE.finditer(self.written))

    def __reduce__(self) -> tuple[type[Self], tuple[str, str]]:
        return type(self), (str.__str__(self), self.written)

    def __repr__(self) -> str:
        return repr(self.written)


@dataclass(frozen=True)
class PlaintextRule:
    """Whether plain-text secrets are allowed in the file, and which were found, so that no error quotes them."""

    allowed: bool
    seen: set[str] = field(default_factory=set)


class Secret:
    """A value that is never shown. In a file it must be a reference, unless plain text is allowed there."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        """Return the value itself."""
        return self._value

    def __repr__(self) -> str:
        return HIDDEN

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Secret):
            return NotImplemented
        return hmac.compare_digest(self._bytes(), other._bytes())

    def __hash__(self) -> int:
        return hash((Secret, self._value))

    def _bytes(self) -> bytes:
        return self._value.encode("utf-8", "surrogatepass")

    @classmethod
    def _validate(cls, value: Any, info: ValidationInfo) -> Secret:
        if isinstance(value, Secret):
            return value
        rule = (info.context or {}).get("plaintext")
        referred = isinstance(value, Resolved) and not value.has_default
        if isinstance(rule, PlaintextRule) and not referred:
            rule.seen.add(str(value))
            if not rule.allowed:
                raise PydanticCustomError(SECRET_ERROR, _PLAINTEXT_REFUSED)
        if not isinstance(value, str):
            raise PydanticCustomError(SECRET_ERROR, "a secret must be text; put it in quotes")
        return cls(str.__str__(value))

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        hide = core_schema.plain_serializer_function_ser_schema(lambda _: HIDDEN)
        return core_schema.with_info_plain_validator_function(cls._validate, serialization=hide)

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"type": "string", "writeOnly": True, "examples": ["${env:NAME}", "${file:PATH}"]}


def _without_password(url: Any) -> Any:
    # Only URLs are understood here: the form `host=… password=…` may quote and space its parts in many ways.
    if not isinstance(url, str):
        return url
    address = url.removeprefix("jdbc:")  # a mistake that is named later, without the hint of a secret
    try:
        parts = urlsplit(address)
    except ValueError:
        return url
    names = (unquote_plus(each.partition("=")[0]).lower() for each in re.split("[&;]", parts.query))
    shows_one = parts.password is not None or any(word in name for name in names for word in _PASSWORD_WORDS)
    return Secret(str.__str__(url)) if _URL.match(address) and not shows_one else url


SecretUrl = Annotated[Secret, BeforeValidator(_without_password)]
"""The URL of a server. One that holds no password is not a secret: it may be written as it is."""


_PLAINTEXT_REFUSED = (
    "plain-text secrets are not allowed in the file; "
    "write ${env:NAME} or ${file:PATH}, or set allow_plaintext_secrets: true"
)


class UnsetVariable(ValueError):
    """A reference to an environment variable that does not exist here."""


@dataclass(frozen=True)
class References:
    """Replaces references in text by their values."""

    environ: Mapping[str, str]
    values: dict[str, str] = field(default_factory=dict)
    """Value of every reference that was replaced, by the reference as written."""

    def resolve(self, text: str) -> str:
        """Return the text with every reference replaced. Raises `ValueError` for a reference without a value."""
        resolved = _TOKEN.sub(self._replace, text)
        referred = any(token["kind"] for token in _TOKEN.finditer(text))
        return Resolved(resolved, text) if referred else resolved

    def _replace(self, match: re.Match[str]) -> str:
        if match["escape"]:
            return "${"
        if match["stray"]:
            # The rest is not repeated: it may be part of a password.
            usage = "write ${env:NAME} or ${file:PATH}, or $${ for a literal ${"
            raise ValueError(f"'${{' does not begin a reference; {usage}")
        value = self._variable(match["name"]) if match["kind"] == "env" else read_secret_file(match["name"])
        self.values[match[0]] = value
        return value

    def _variable(self, reference: str) -> str:
        name, has_default, default = reference.partition(":-")
        try:
            value = self.environ.get(name)
        except ValueError:  # the name cannot be encoded, so there is no such variable
            value = None
        if has_default and not value:
            return default
        if value is None:
            raise UnsetVariable(f"the environment variable {name!r} is not set")
        if not is_encodable(value):
            raise ValueError(f"the environment variable {name!r} is not UTF-8 text")
        return value


def read_secret_file(path: str) -> str:
    """Return the text of a file that no other user may write, without the last line break.

    Others may read it: Kubernetes mounts secrets with the modes 0644 and 0440, as links into a folder with a version in
    its name.
    """
    try:
        # Without O_NONBLOCK, opening a pipe would block here.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:  # noqa: PTH123 (a descriptor has no path)
            mode = os.fstat(descriptor).st_mode
            content = file.read(_LARGEST_FILE + 1) if stat.S_ISREG(mode) else b""
    except PermissionError as error:
        runs_as = f"the process runs as user {os.geteuid()}, group {os.getegid()}"
        raise ValueError(f"the secret file {path!r} cannot be read: {error.strerror}; {runs_as}") from None
    except OSError as error:
        raise ValueError(f"the secret file {path!r} cannot be read: {error.strerror}") from None
    except ValueError:
        raise ValueError(f"the secret file {path!r} cannot be read: the path is not valid") from None
    if not stat.S_ISREG(mode):
        raise ValueError(f"the secret file {path!r} is not a regular file")
    if mode & (stat.S_IWGRP | stat.S_IWOTH):
        shown = f"{stat.S_IMODE(mode):04o}"
        raise ValueError(f"other users may write the secret file {path!r} (mode {shown}); run chmod go-w on it")
    return _decode(path, content)


def _decode(path: str, content: bytes) -> str:
    if len(content) > _LARGEST_FILE:
        raise ValueError(f"the secret file {path!r} is larger than {_LARGEST_FILE // 1024} KiB")
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        raise ValueError(f"the secret file {path!r} is not UTF-8 text") from None
    return text.removesuffix("\n").removesuffix("\r")


def is_encodable(text: str) -> bool:
    """Return whether the text can be encoded as UTF-8; a lone surrogate cannot."""
    return not any("\ud800" <= character <= "\udfff" for character in text)
