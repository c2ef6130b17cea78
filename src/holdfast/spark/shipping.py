"""Code that the node sends to Spark: holdfast itself and the user's modules.

Executors on other machines need Python with the packages that holdfast depends on, but not holdfast itself. They run
the code of the node that sent the work, so that nodes of two versions can share a cluster.
"""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import holdfast
from holdfast.errors import UsageError

if TYPE_CHECKING:
    from pyspark import SparkContext

PACKED = (".zip", ".egg")
_SAME_TIME = (1980, 1, 1, 0, 0, 0)


def check_modules(paths: Sequence[Path]) -> None:
    """Raise `UsageError` for a path that is not a module, a package or a zip of these. Reads the disk only."""
    for path in paths:
        if not path.exists():
            raise UsageError(f"{path} of spark.py_files does not exist")
        is_package = path.is_dir() and (path / "__init__.py").is_file()
        if not is_package and not (path.is_file() and path.suffix in (".py", *PACKED)):
            raise UsageError(
                f"{path} of spark.py_files cannot be sent to executors: "
                "name a module (.py), a folder with an __init__.py, or a .zip of modules"
            )


def ship_holdfast(context: SparkContext, folder: Path) -> None:
    """Let every task import the node's holdfast, in preference to any other on the executor.

    It is packed into `folder`, which must exist as long as the context, because executors that start later fetch it.
    """
    package = Path(holdfast.__file__).parent
    context.addPyFile(str(packed(package, folder / f"holdfast-{holdfast.__version__}.zip")))


def ship_modules(context: SparkContext, paths: Sequence[Path], folder: Path) -> None:
    """Let every task import these modules. Packages are packed into `folder`, which must outlive the context."""
    for path in paths:
        sent = packed(path.resolve(), folder / f"{path.resolve().name}.zip") if path.is_dir() else path.resolve()
        context.addPyFile(str(sent))


def packed(package: Path, target: Path) -> Path:
    """The package's sources as a zip from which Python can import it. The same sources give the same bytes."""
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for source in sorted(package.rglob("*.py")):
            entry = zipfile.ZipInfo(str(source.relative_to(package.parent)), _SAME_TIME)
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, source.read_bytes(), zipfile.ZIP_DEFLATED)
    return target
