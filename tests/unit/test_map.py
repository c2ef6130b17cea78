"""The map of the house, the walk and the glossary name what exists in the tree, and leave nothing out."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "holdfast"
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()
WALK = ROOT / "docs" / "walk.md"


def _blocks(text: str) -> list[str]:
    return re.findall(r"^```\w*\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def _map() -> dict[str, str]:
    """What the map says of each entry below `src/holdfast`."""
    (block,) = [block for block in _blocks(CONTRIBUTING) if block.startswith("src/holdfast/")]
    entries, name = dict[str, str](), ""
    for line in block.split("\ntests/")[0].splitlines()[1:]:
        if found := re.match(r"  (\S+) +(.*)", line):
            entries[name := found[1]] = found[2]
        else:
            entries[name] += f" {line.strip()}"
    return entries


MAP = _map()


def _is_package(path: Path) -> bool:
    return path.is_dir() and path.name != "__pycache__"


# --- the map ---------------------------------------------------------------------------------------------------------


def test_the_map_names_every_package_and_every_module_at_the_top() -> None:
    packages = {f"{path.name}/" for path in SOURCE.iterdir() if _is_package(path)}
    modules = {path.name for path in SOURCE.glob("*.py") if not path.name.startswith("__")}
    assert set(MAP) == packages | modules


@pytest.mark.parametrize("name", [name for name in MAP if name.endswith("/")])
def test_modules_that_the_map_names_exist(name: str) -> None:
    named = re.findall(r"\b(\w+\.py)\b", MAP[name])
    assert [module for module in named if not (SOURCE / name / module).is_file()] == []


@pytest.mark.parametrize("name", [name for name in MAP if name.endswith("/")])
def test_the_map_names_every_package_below_a_package(name: str) -> None:
    below = [path.name for path in (SOURCE / name).iterdir() if _is_package(path)]
    assert [package for package in below if not re.search(rf"\b{package}\b", MAP[name])] == []


def test_the_map_names_every_folder_of_tests() -> None:
    listed = re.search(r"^tests/ +(.*)$", CONTRIBUTING, re.MULTILINE)
    assert listed is not None
    folders = {path.name for path in (ROOT / "tests").iterdir() if path.is_dir() and list(path.rglob("test_*.py"))}
    assert set(listed[1].split()) == folders


def test_imports_go_the_way_that_the_map_says() -> None:
    (arrows,) = [block for block in _blocks(CONTRIBUTING) if "→" in block]
    said = [{word.strip() for word in layer.split("|")} for layer in " ".join(arrows.split()).split("→")]
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (layers,) = [contract["layers"] for contract in contracts if contract["id"] == "layers"]
    checked = [{word.strip() for word in layer.split("|") if "(" not in word} for layer in layers]
    assert said == [layer for layer in checked if layer]


# --- the walk --------------------------------------------------------------------------------------------------------


STOPS = sorted(set(re.findall(r"\[`([\w.]+)`\]\(\.\./(src/holdfast/[\w/]+\.py)\)", WALK.read_text())))


def _defined(path: Path) -> Iterator[str]:
    """Names of functions, classes and methods of a module."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        if isinstance(node, ast.ClassDef):
            yield from (f"{node.name}.{part.name}" for part in node.body if isinstance(part, ast.FunctionDef))


@pytest.mark.parametrize(("name", "file"), STOPS)
def test_functions_of_the_walk_exist(name: str, file: str) -> None:
    assert name in set(_defined(ROOT / file))


def test_the_walk_passes_every_step_of_the_loop() -> None:
    visited = {file for _, file in STOPS}
    for step in ("acquire", "plan", "commit", "publish"):
        assert f"src/holdfast/flow/{step}.py" in visited
    assert len(STOPS) > 20


# --- the glossary ----------------------------------------------------------------------------------------------------

PLAIN_WORDS = set((Path(__file__).parent / "plain_words.txt").read_text().split())
"""Verbs, adjectives and words of computing that every reader knows: they need no entry."""
_WORD = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+")
_ENDINGS = (
    ("ies", "y"),
    ("es", ""),
    ("s", ""),
    ("ed", ""),
    ("ed", "e"),
    ("er", ""),
    ("er", "e"),
    ("ing", ""),
    ("ing", "e"),
)


def _forms(word: str) -> Iterator[str]:
    """The word, and what it may be a plural or another form of."""
    yield word
    for ending, instead in _ENDINGS:
        if word.endswith(ending):
            stem = word.removesuffix(ending) + instead
            yield stem
            if len(stem) > 2 and stem[-1] == stem[-2]:
                yield stem[:-1]


def _glossary() -> set[str]:
    (section,) = re.findall(
        r"^## Words\n(.*?)^## ", (ROOT / "docs" / "concepts.md").read_text(), re.MULTILINE | re.DOTALL
    )
    terms = re.findall(r"^\| ([^|]+) \| [^|]+ \|$", section, re.MULTILINE)
    words = {word for term in terms for word in re.findall(r"[a-z]+", term.lower())}
    return words | {form for word in words for form in _forms(word)}


def _words_of_names() -> dict[str, str]:
    """Each word of a module's or class's name, and where it was found."""
    found: dict[str, str] = {}
    for path in sorted(SOURCE.rglob("*.py")):
        classes = [node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ClassDef)]
        for name in [path.parent.name if path.stem.startswith("__") else path.stem, *classes]:
            for word in _WORD.findall(name):
                found.setdefault(word.lower(), f"{path.relative_to(SOURCE)}: {name}")
    return found


def test_the_glossary_has_every_noun_of_a_module_or_class() -> None:
    known = _glossary() | PLAIN_WORDS
    unknown = {word: name for word, name in _words_of_names().items() if known.isdisjoint(_forms(word))}
    assert unknown == {}, (
        "add them to the glossary in docs/concepts.md, or if they are plain to tests/unit/plain_words.txt"
    )


def test_no_name_has_a_word_that_means_five_things() -> None:
    vague = {"told", "asked", "again", "few", "quick", "together", "own", "known", "thing"}
    vague |= {"manager", "util", "utils", "helper", "base", "impl"}
    assert {word: name for word, name in _words_of_names().items() if word in vague} == {}
