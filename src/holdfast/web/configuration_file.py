"""The configuration file on this host: shown as it is written, checked, and replaced as a whole.

References stay as they are written. A file with a secret in plain text, also in a comment or among the settings of
Spark and Kafka, is neither shown nor saved, so that a page never has a secret, and a mask that hides one is never saved
over it.
"""

from __future__ import annotations

import os
import tempfile
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

from holdfast.config.load import load_text
from holdfast.config.models import Settings
from holdfast.config.plain_text import warnings_of_plain_text
from holdfast.config.secrets import REFERENCE
from holdfast.config.settings_file import text_digest
from holdfast.config.yaml_positions import (
    Document,
    has_secret_entry,
    has_secret_parameter,
    is_secret_key,
    scalars_of,
    without_password,
)
from holdfast.errors import ConfigError, Refused, UsageError
from holdfast.registry import Registry

_BOM = b"\xef\xbb\xbf"
_PLAIN_SECRETS = (
    "the file may have secrets in plain text, so that its text is not shown here: write references such as ${env:KEY}"
)
_CHANGED = "the file has changed since you loaded it; reload the page, and make your change again"


Problems = list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class FileText:
    """What the file holds. `text` is None if it may not be shown; `fault` says why."""

    digest: str
    text: str | None
    fault: str | None = None
    problems: Problems = field(default_factory=list)
    """What is wrong with it, each with its line."""
    text_digest: str | None = None
    """As nodes announce it that have read this text; None if it cannot be read."""


class ConfigurationFile:
    """One file. Any thread may use it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()

    @property
    def name(self) -> str:
        """The name without the folder."""
        return self._path.name

    def read(self) -> FileText:
        """Return what the file holds now. Never raises because of its contents."""
        try:
            content = self._path.read_bytes()
            text = content.decode("utf-8-sig")
        except (OSError, ValueError) as error:
            return FileText("", None, f"the file cannot be read: {error}")
        settings, problems = self._loaded(text)
        fault = _why_hidden(text, settings)
        shown = None if fault else text.replace("\r\n", "\n")
        return FileText(sha256(content).hexdigest(), shown, fault, problems, text_digest(text))

    def text_digest(self) -> str | None:
        """Return the digest that nodes with the present text announce; None if the file cannot be read."""
        try:
            return text_digest(self._path.read_bytes().decode("utf-8-sig"))
        except (OSError, ValueError):
            return None

    def problems(self, text: str) -> Problems:
        """Return everything that is wrong with a text, each with its line; empty if it is valid. Needs no Spark."""
        settings, found = self._loaded(text)
        fault = None if settings is None else _why_hidden(text, settings)
        return found if fault is None else [{"line": None, "column": None, "message": fault}]

    def save(self, text: str, expect: str) -> str:
        """Replace the file by a valid text, and return its digest. `expect` is the digest of the text that was edited.

        Readers see the file before or after, and never a part. Raises `ConfigError`, `UsageError` and `Refused`; the
        file is then as before.
        """
        if fault := _why_hidden(text, load_text(text, str(self._path), Registry.installed())):
            raise UsageError(fault)
        with self._lock:
            if fault := self.read().fault:
                raise Refused(fault)
            present = self._path.read_bytes()
            if sha256(present).hexdigest() != expect:
                raise Refused(_CHANGED)
            content = _as_before(text, present)
            try:
                _replace(self._path.resolve(), content)
            except OSError as error:
                raise Refused(f"the file cannot be replaced on this host: {error.strerror or error}") from None
        return sha256(content).hexdigest()

    def _loaded(self, text: str) -> tuple[Settings | None, Problems]:
        """The settings of a text; None and what is wrong with it if it is not valid."""
        try:
            return load_text(text, str(self._path), Registry.installed()), []
        except ConfigError as error:
            return None, [
                {"line": mark and mark.line, "column": mark and mark.column, "message": message}
                for mark, message in error.problems
            ]


def _why_hidden(text: str, settings: Settings | None) -> str | None:
    """Why a text may not be shown. `settings` are those of the text, None if it is not valid.

    In a valid file without plain-text secrets every secret is a reference. In any other, whatever messages hide may be
    a secret.
    """
    try:
        document = Document("", text)
    except ConfigError:
        return "the file is not YAML, so that it may have secrets anywhere, and its text is not shown here"
    if settings is None:
        hidden = document.shown_lines(()) != document.lines
    else:
        hidden = without_password(text) != text or bool(warnings_of_plain_text(settings))
    literal = any(
        (is_secret_key(key) and REFERENCE.sub("", node.value)) or has_secret_parameter(node.value)
        for key, node in scalars_of(document.root)
    )
    commented = any(has_secret_entry(line.partition("#")[2]) for line in document.lines)
    allowed = document.find(("allow_plaintext_secrets",)).path
    return _PLAIN_SECRETS if literal or hidden or commented or allowed else None


def _as_before(text: str, present: bytes) -> bytes:
    """The bytes of a text, with the line breaks and the byte order mark that the file had."""
    lines = text.replace("\r\n", "\n")
    written = lines.replace("\n", "\r\n") if b"\r\n" in present else lines
    return (_BOM if present.startswith(_BOM) else b"") + written.encode()


def _replace(path: Path, content: bytes) -> None:
    before = path.stat()
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        with suppress(PermissionError):  # only root may give a file to others
            os.chown(name, before.st_uid, before.st_gid)
        Path(name).chmod(before.st_mode & 0o777)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
