"""Java for programs that live for seconds: compiled quickly only, and with classes from an archive of class data.

A JVM that starts Spark spends most of its CPU on loading classes and on compiling what it hardly runs. Tests start
dozens of them, so `tests/conftest.py` calls `use_short_lived_java`; benchmarks and long campaigns do not. The archives
are made by `python -m tests.servers.class_data`. A JVM for which none fits runs without, and starts more slowly.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from tests.servers.processes import cache_folder

QUICK = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
_SPARK = ("SPARK_LAUNCHER_OPTS", "SPARK_SUBMIT_OPTS")


def use_short_lived_java() -> None:
    """Let every server and Spark application that this process and its children start have such a JVM."""
    os.environ.update(dict.fromkeys(_SPARK, " ".join(QUICK)))
    os.environ["SPARK_SUBMIT_OPTS"] = " ".join(short_lived(spark_jars()))


def server_options(jars: Path) -> Sequence[str]:
    """Options of a server's JVM with these jars: for a short life if `use_short_lived_java` was called."""
    return short_lived(jars) if all(name in os.environ for name in _SPARK) else ("-XX:+UseSerialGC",)


def short_lived(jars: Path) -> Sequence[str]:
    """Options of a JVM with these jars on its class path that lives for seconds."""
    archive = archive_of(jars)
    # An archive that does not fit any more is not a reason for a warning on the program's output.
    return (*QUICK, f"-XX:SharedArchiveFile={archive}", "-Xlog:cds*=off") if archive.exists() else QUICK


def spark_jars() -> Path:
    """The folder with the jars of pyspark, which is not imported for this."""
    found = find_spec("pyspark")
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).with_name("jars")


def archive_of(jars: Path) -> Path:
    """The file with the class data of these jars, which may be missing. Java itself judges whether it fits."""
    key = hashlib.sha256(f"{os.environ.get('JAVA_HOME')} {shutil.which('java')} {jars}".encode()).hexdigest()[:16]
    return cache_folder() / "class-data" / f"{key}.jsa"
