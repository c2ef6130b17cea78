"""What plugin authors import from `holdfast` and `holdfast.testing` is there, is typed, and loads no Spark."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import holdfast
import holdfast.testing

ROOT = Path(__file__).parents[2]
PACKAGES = [holdfast, holdfast.testing]
WITHOUT_SPARK = """
import sys
for name in ("pyspark", "py4j", "pandas"):
    sys.modules[name] = None
"""
PIPELINE = ROOT / "examples" / "local_files" / "pipeline.yaml"


def _name(package: ModuleType) -> str:
    return package.__name__


def _stub(package: ModuleType) -> dict[str, str]:
    """Names and their modules, as type checkers see them."""
    tree = ast.parse(Path(str(package.__file__)).with_suffix(".pyi").read_text())
    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    return {alias.asname or alias.name: str(node.module) for node in imports for alias in node.names}


def _modules(package: ModuleType) -> dict[str, str]:
    return {name: module for module, names in package._PUBLIC.items() for name in names.split()}


def _listed(package: ModuleType) -> list[str]:
    """What the stub exports."""
    tree = ast.parse(Path(str(package.__file__)).with_suffix(".pyi").read_text())
    (names,) = [node.value for node in tree.body if isinstance(node, ast.Assign)]
    listed: list[str] = ast.literal_eval(names)
    return listed


@pytest.mark.parametrize("package", PACKAGES, ids=_name)
def test_every_public_name_is_that_of_its_module(package: ModuleType) -> None:
    for name, module in _modules(package).items():
        assert getattr(package, name) is getattr(importlib.import_module(module), name)
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = package.no_such_name


@pytest.mark.parametrize("package", PACKAGES, ids=_name)
def test_type_checkers_see_the_same_names(package: ModuleType) -> None:
    assert _stub(package) == _modules(package)
    assert set(_listed(package)) == set(package.__all__)
    assert set(package.__all__) == set(_modules(package)) <= set(dir(package))


@pytest.mark.parametrize(
    "code",
    [
        "import holdfast\nassert holdfast.__version__",
        "import holdfast\n[getattr(holdfast, name) for name in holdfast.__all__]",
        "import holdfast.testing",
        "from holdfast.cli.root import app\napp(['--help'])",
        f"from holdfast.cli.root import app\napp(['validate', {str(PIPELINE)!r}])",
        "import examples.own_sink.holdfast_own_sink.sqlite\nimport examples.own_source.holdfast_own_source.ranges",
    ],
    ids=["import", "every name", "testing", "help", "validate", "examples"],
)
def test_it_works_without_spark(code: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_SPARK + code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_importing_the_package_loads_nothing_else() -> None:
    code = "import sys, holdfast, holdfast.testing\nprint(*(name for name in sys.modules if name[:8] == 'holdfast'))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["holdfast", "holdfast.testing"]
