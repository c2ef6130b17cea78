"""`holdfast convert`: print a pipeline file for a file of another system."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli.options import text_of

NuclioFile = Annotated[str, typer.Argument(metavar="FILE", help="Nuclio's function.yaml.")]
DataPrepperFile = Annotated[str, typer.Argument(metavar="FILE", help="Data Prepper's pipelines.yaml.")]
SecorFile = Annotated[str, typer.Argument(metavar="FILE", help="Secor's file of properties.")]


def nuclio(file: NuclioFile) -> None:
    """Print a pipeline file for a function of Nuclio. Comments in it name what could not be converted."""
    from holdfast.functions.nuclio_file import convert_nuclio

    typer.echo(convert_nuclio(text_of(file), Path(file).name), nl=False)


def data_prepper(file: DataPrepperFile) -> None:
    """Print a pipeline file for the pipelines of Data Prepper. Comments in it name what could not be converted."""
    from holdfast.convert.data_prepper import convert_data_prepper

    typer.echo(convert_data_prepper(text_of(file), Path(file).name), nl=False)


def secor(file: SecorFile) -> None:
    """Print a pipeline file for the properties of Secor. Comments in it name what could not be converted.

    Files that it includes are read from the same folder.
    """
    from holdfast.convert.secor import convert_secor

    typer.echo(convert_secor(Path(file), text_of), nl=False)
