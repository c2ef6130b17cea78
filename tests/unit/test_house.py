"""Rules of the house that no other tool checks."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src"
MODULES = sorted(SOURCE.rglob("*.py"))
CORE = [path for path in MODULES if path.relative_to(SOURCE).parts[1] in {"leases", "flow", "finalize"}]

LONGEST_MODULE = 400
LONGEST_FUNCTION = 40

# What would make the core differ from run to run; it comes in through the World instead.
IMPURE_MODULES = {"time", "random", "uuid", "threading", "os"}
IMPURE_CALLS = {"now", "utcnow", "today"}
REAL_WORLD = SOURCE / "holdfast" / "leases" / "world.py"


def _name(path: Path) -> str:
    return str(path.relative_to(SOURCE))


def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), str(path))


def _imported(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.lineno, node.module or ""


def _length(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    lines = (function.end_lineno or function.lineno) - function.lineno + 1
    if ast.get_docstring(function) is not None:
        docstring = function.body[0]
        lines -= (docstring.end_lineno or docstring.lineno) - docstring.lineno + 1
    return lines


def _clock_calls(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Attribute) and node.attr in IMPURE_CALLS):
            continue
        owner = ast.unparse(node.value)
        if owner.split(".")[-1] in {"datetime", "date"}:
            yield f"line {node.lineno}: {owner}.{node.attr}"


@pytest.mark.parametrize("path", MODULES, ids=_name)
def test_module_is_short(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= LONGEST_MODULE


@pytest.mark.parametrize("path", MODULES, ids=_name)
def test_functions_are_short(path: Path) -> None:
    functions = [node for node in ast.walk(_tree(path)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    assert {f.name: _length(f) for f in functions if _length(f) > LONGEST_FUNCTION} == {}


@pytest.mark.parametrize("path", [path for path in CORE if path != REAL_WORLD], ids=_name)
def test_core_has_no_clock_no_dice_and_no_threads(path: Path) -> None:
    tree = _tree(path)
    imports = [f"line {line}: import {name}" for line, name in _imported(tree) if name.split(".")[0] in IMPURE_MODULES]
    assert imports + list(_clock_calls(tree)) == []


@pytest.mark.parametrize("path", [path for path in CORE if "leases" in path.parts], ids=_name)
def test_leases_knows_the_standard_library_errors_and_events_only(path: Path) -> None:
    allowed = {"holdfast.errors", "holdfast.events", "holdfast.leases"}
    foreign = [
        f"line {line}: {name}"
        for line, name in _imported(_tree(path))
        if name.split(".")[0] not in sys.stdlib_module_names and ".".join(name.split(".")[:2]) not in allowed
    ]
    # `from holdfast import errors` names the package; the layers contract checks what it brings in.
    assert [line for line in foreign if not line.endswith(": holdfast")] == []


def test_the_rules_look_at_real_modules() -> None:
    assert REAL_WORLD in CORE
    assert list(_clock_calls(ast.parse("import datetime as d\nd.datetime.now()"))) == ["line 2: d.datetime.now"]
