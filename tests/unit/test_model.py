"""The model in docs/model, its configurations, its README and the code name the same things. Needs no Java."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MODEL = ROOT / "docs" / "model"
SPEC = (MODEL / "StagePublish.tla").read_text()
README = (MODEL / "README.md").read_text()
SCRIPT = (ROOT / "scripts" / "model.sh").read_text()

CONFIGS = sorted(MODEL.glob("*.cfg"))
MUTANTS = sorted((MODEL / "mutants").glob("*.cfg"))
DEFINED = set(re.findall(r"^([A-Z]\w*)(?:\([^)]*\))? ==", SPEC, re.MULTILINE))
BUGS = set(re.findall(r'Bug\("(\w+)"\)', SPEC))


def _actions() -> set[str]:
    """The steps that `Next` is made of, without those that only a mutant takes."""
    bodies = re.findall(r"^(?:Work\(n\)|Next) ==\n((?: .*\n)+)", SPEC, re.MULTILINE)
    named = set(re.findall(r"\b([A-Z]\w*)\b(?=\(|\s|$)", "".join(bodies))) & DEFINED
    only_mutants = set(re.findall(r"^\(\* Mutant: .*\n(\w+)\(n\) ==", SPEC, re.MULTILINE))
    return named - only_mutants - {"Work"}


def _table() -> dict[str, list[str]]:
    """Action to functions, as the README tells."""
    section = README.partition("## Model and code")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`[^|]*) \|[^|]*\|([^|]*)\|$", section, re.MULTILINE)
    return {
        action: re.findall(r"`(holdfast\.[\w.]+)`", functions)
        for actions, functions in rows
        for action in re.findall(r"`(\w+)`", actions)
    }


def _checks(config: Path) -> list[str]:
    listed = re.findall(r"^(?:INVARIANT|PROPERT)\w*((?:\s+[A-Z]\w+)+)$", config.read_text(), re.MULTILINE)
    return [name for names in listed for name in names.split() if not name.startswith(("INVARIANT", "PROPERT"))]


def _constants(config: Path) -> dict[str, str]:
    return dict(re.findall(r"^ {4}(\w+) = (.+)$", config.read_text(), re.MULTILINE))


def _exists(dotted: str) -> bool:
    """Whether a module of the source has that function, class or method."""
    path, *rest = dotted.split(".")
    place = ROOT / "src" / path
    while rest and (place / rest[0]).is_dir():
        place /= rest.pop(0)
    if not rest:
        return False
    module = place / f"{rest.pop(0)}.py"
    if not module.is_file():
        return False
    body: list[ast.stmt] = ast.parse(module.read_text()).body
    for name in rest:
        found = [n for n in body if isinstance(n, ast.ClassDef | ast.FunctionDef) and n.name == name]
        if not found:
            return False
        body = found[0].body
    return True


def test_the_readme_tells_of_every_action_and_of_no_other() -> None:
    assert len(_actions()) > 15
    assert set(_table()) == _actions()


@pytest.mark.parametrize("dotted", sorted({name for names in _table().values() for name in names}))
def test_functions_that_the_readme_names_exist(dotted: str) -> None:
    assert _exists(dotted)


def test_a_function_that_does_not_exist_is_noticed() -> None:
    assert _exists("holdfast.leases.writes.FencedWrites.apply")
    assert not _exists("holdfast.leases.writes.FencedWrites.guess")
    assert not _exists("holdfast.leases.nowhere.guess")


@pytest.mark.parametrize("config", [*CONFIGS, *MUTANTS], ids=lambda path: path.stem)
def test_configurations_check_what_the_model_defines(config: Path) -> None:
    declared = re.search(r"^CONSTANTS\n((?: .*\n)+)", SPEC, re.MULTILINE)
    assert declared is not None
    assert set(_constants(config)) == set(re.findall(r"^ {4}(\w+)", declared[1], re.MULTILINE))
    assert _checks(config)
    assert set(_checks(config)) <= DEFINED


@pytest.mark.parametrize("config", CONFIGS, ids=lambda path: path.stem)
def test_good_configurations_have_no_bug_and_are_run(config: Path) -> None:
    assert _constants(config)["Bugs"] == "{}"
    assert re.search(rf"check_all\b.* {config.stem}\b", SCRIPT)
    assert f"`{config.name}`" in README


@pytest.mark.parametrize("config", MUTANTS, ids=lambda path: path.stem)
def test_mutants_say_what_they_expect(config: Path) -> None:
    expected = re.findall(r"^\\\* expect: (\w+)$", config.read_text(), re.MULTILINE)
    assert len(expected) == 1
    assert expected in (_checks(config), ["nothing"])
    assert f"`{config.stem}`" in README


def test_every_bug_has_a_mutant_and_every_mutant_a_bug() -> None:
    used = [set(re.findall(r"\w+", _constants(config)["Bugs"])) for config in MUTANTS]
    assert set().union(*used) == BUGS


def test_what_users_rely_on_is_checked_everywhere() -> None:
    promises = set(_checks(MODEL / "small.cfg"))
    assert {"NothingTwice", "NothingCommittedIsLost", "PublishedIsForEver"} <= promises
    for name in ("rollback", "large", "large-rollback"):
        assert set(_checks(MODEL / f"{name}.cfg")) == promises
