"""`holdfast connector`: fetches what Spark needs to read Kafka."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli import output


class Connector(StrEnum):
    KAFKA = "kafka"


Name = Annotated[Connector, typer.Argument(metavar="NAME", help="The connector: kafka.")]
RepositoryUrl = Annotated[
    str | None,
    typer.Option(
        "--repository",
        metavar="URL",
        help="Maven repository; the mirror in ~/.m2/settings.xml, or Maven Central, unless given.",
    ),
]
Folder = Annotated[
    Path | None,
    typer.Option("--folder", metavar="FOLDER", help="Where the jars go; into this Python environment unless given."),
]


def install(name: Name, repository: RepositoryUrl = None, folder: Folder = None) -> None:
    """Fetch the jars of Spark's connector from a Maven repository, and check them by their SHA-256.

    Needs neither make nor Maven. Jars that are there already are checked and kept. Exits with 3 if the repository
    cannot be reached.
    """
    from holdfast.spark.connector import install_connector, jar_folder, repository_of

    target = folder or jar_folder()
    number = install_connector(repository_of(repository), target, output.tell)
    output.say(f"the connector {name.value} is complete in {target}" + ("" if number else "; nothing was fetched"))
