"""The jars of Spark's Kafka connector: which they are, where they are kept, and how they are fetched.

They are fetched by the standard library from a Maven repository, without Maven: four files whose SHA-256 is known need
no resolution of dependencies.
"""

from __future__ import annotations

import base64
import hashlib
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from http.client import HTTPException
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.parse import SplitResult, unquote, urlsplit
from urllib.request import Request, urlopen
from xml.etree import ElementTree as ET

from holdfast.errors import Unavailable, UsageError

CENTRAL = "https://repo.maven.apache.org/maven2"
PATIENCE = 60.0
"""Seconds to wait for each response of the repository."""
_MIRRORS_CENTRAL = {"*", "central", "external:*"}


@dataclass(frozen=True, slots=True)
class Jar:
    """A file of a Maven repository."""

    group: str
    artifact: str
    version: str
    sha256: str

    @property
    def name(self) -> str:
        return f"{self.artifact}-{self.version}.jar"

    @property
    def coordinates(self) -> str:
        return f"{self.group}:{self.artifact}:{self.version}"

    @property
    def path(self) -> str:
        """The path below the repository's URL."""
        return "/".join((*self.group.split("."), self.artifact, self.version, self.name))

    def is_genuine(self, folder: Path) -> bool:
        """Return whether the folder has the file, with these bytes. Reads the whole file."""
        file = folder / self.name
        return file.is_file() and hashlib.sha256(file.read_bytes()).hexdigest() == self.sha256


JARS = (
    Jar(
        "org.apache.spark",
        "spark-sql-kafka-0-10_2.13",
        "4.2.0",
        "64539c45e5d39f7ddb747312c239f38f5208d08c1a0ddf7d70beb2fbd9373705",
    ),
    # The last one that every repository has; it fits the connector of 4.2.0.
    Jar(
        "org.apache.spark",
        "spark-token-provider-kafka-0-10_2.13",
        "4.0.0",
        "f2be3b76f9e6cbe63379d4e4e0dc14f59dbf056ae2ad16ff15ac108004c86767",
    ),
    Jar(
        "org.apache.kafka",
        "kafka-clients",
        "3.9.2",
        "014b4ef36884478a932641818b080c36a8f8e2e92dc771e800c9d2694f4f83d8",
    ),
    Jar(
        "org.apache.commons",
        "commons-pool2",
        "2.13.1",
        "f77a5060d6936a9144023584232f9de3f2248f1abfe156e9d31795f18770674f",
    ),
)
"""What the connector needs besides the jars of Spark."""


@dataclass(frozen=True, slots=True)
class Repository:
    """A Maven repository.

    `user` and `password` come from the user's settings or from its URL; `url` contains neither.
    """

    url: str
    user: str = ""
    password: str = field(default="", repr=False)

    def fetch(self, jar: Jar) -> bytes:
        """Return the bytes of a file. Raises `Unavailable` if it cannot be fetched."""
        request = Request(f"{self.url.rstrip('/')}/{jar.path}")  # noqa: S310 - the scheme is checked
        if self.user:
            credentials = base64.b64encode(f"{self.user}:{self.password}".encode()).decode()
            # The host of a redirect must not get them.
            request.add_unredirected_header("Authorization", f"Basic {credentials}")
        try:
            with urlopen(request, timeout=PATIENCE) as response:  # noqa: S310 - as above
                content: bytes = response.read()
                return content
        except HTTPError as error:
            raise Unavailable(f"{self.url} has no {jar.coordinates}: {error.code} {error.reason}") from error
        except (URLError, OSError) as error:
            raise Unavailable(f"{self.url} does not respond: {error}") from error
        except HTTPException as error:
            raise Unavailable(f"{self.url} does not respond as HTTP requires: {error!r}") from error


def jar_folder() -> Path:
    """Return the folder of the jars in this Python environment; it may be missing."""
    return Path(sys.prefix, "share", "holdfast", "jars")


def connector_jars() -> list[Path]:
    """Return the connector's jars, to be given to `start_session`. Checks only that they exist.

    Raises `UsageError` when a jar is missing.
    """
    folder = jar_folder()
    missing = [jar.coordinates for jar in JARS if not (folder / jar.name).is_file()]
    if missing:
        raise UsageError(
            f"Spark's Kafka connector is incomplete in {folder}: run `holdfast connector install kafka`, "
            f"or put these jars of a Maven repository there: {', '.join(missing)}"
        )
    return [folder / jar.name for jar in JARS]


def install_connector(repository: Repository, folder: Path, say: Callable[[str], None]) -> int:
    """Fetch the jars that the folder lacks or has with other bytes, and return how many. May be repeated.

    Raises `Unavailable` if the repository does not respond, `UsageError` if it has other bytes under a name, or if the
    folder cannot be written; each file is then either complete or unchanged.
    """
    missing = [jar for jar in JARS if not jar.is_genuine(folder)]
    for jar in missing:
        content = repository.fetch(jar)
        found = hashlib.sha256(content).hexdigest()
        if found != jar.sha256:
            raise UsageError(
                f"{repository.url} has other bytes as {jar.coordinates}: SHA-256 {found} instead of {jar.sha256}"
            )
        try:
            _write(folder / jar.name, content)
        except OSError as error:
            raise UsageError(f"{folder} cannot be written: {error.strerror}") from error
        say(f"{jar.name} ({len(content) / 1e6:.1f} MB)")
    return len(missing)


def _write(file: Path, content: bytes) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=file.parent, delete=False) as draft:
        draft.write(content)
    Path(draft.name).chmod(0o644)
    Path(draft.name).replace(file)


def repository_of(url: str | None, settings: Path | None = None) -> Repository:
    """Return the repository of that URL; without one, the mirror of Maven Central in the user's settings, or Central.

    A user and password in the URL are used if the settings have none. Raises `UsageError` for a URL that is malformed
    or neither http nor https, and for settings that cannot be read.
    """
    found = Repository(url) if url else _mirror(settings or Path.home() / ".m2" / "settings.xml")
    parts = _split(found.url)
    address = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
    if found.user:
        return Repository(address, found.user, found.password)
    return Repository(address, unquote(parts.username or ""), unquote(parts.password or ""))


def _split(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        if parts.scheme in {"https", "http"} and parts.hostname and parts.port != 0:
            return parts
    except ValueError:
        pass  # its message may show the password
    shown = url.rpartition("@")[2]
    raise UsageError(f"{shown!r} is not a URL of a Maven repository; write https://host/path or http://host/path")


def _mirror(settings: Path) -> Repository:
    if not settings.is_file():
        return Repository(CENTRAL)
    try:
        root = ET.parse(settings).getroot()  # noqa: S314 - a file of the user, who also runs this
    except (ET.ParseError, OSError) as error:
        raise UsageError(f"{settings} cannot be read: {error}; name the repository with --repository") from error
    for mirror in root.iterfind("{*}mirrors/{*}mirror"):
        of = {part.strip() for part in _text(mirror, "mirrorOf").split(",")}
        if of & _MIRRORS_CENTRAL and "!central" not in of:
            name = _text(mirror, "id")
            users = [server for server in root.iterfind("{*}servers/{*}server") if _text(server, "id") == name]
            user, password = (_text(users[0], "username"), _text(users[0], "password")) if users else ("", "")
            return Repository(_text(mirror, "url"), user, password)
    return Repository(CENTRAL)


def _text(element: ET.Element, name: str) -> str:
    return (element.findtext(f"{{*}}{name}") or "").strip()
