"""The documents are true: files they show load, links lead somewhere, commands exist, code runs."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Iterator
from importlib.metadata import entry_points
from itertools import groupby
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from typer.main import get_command

from examples.own_sink.holdfast_own_sink import sqlite
from examples.own_source.holdfast_own_source import ranges
from holdfast.cli.root import app
from holdfast.config import load_text
from holdfast.registry import Registry

ROOT = Path(__file__).parents[2]
SKIPPED = {".venv", "build", "dist", "node_modules"}
PAGES = sorted(
    path
    for path in ROOT.rglob("*.md")
    if not any(part in SKIPPED or part.startswith(".") for part in path.relative_to(ROOT).parts)
)

_FENCED = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
_FULL_FILE = re.compile(
    r"<!-- full pipeline file(?:: (?P<path>\S+))? -->\s*```yaml\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL
)
_RUNS = re.compile(r"<!-- run by tests/unit/test_docs.py -->\s*```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
REGISTRY = Registry(
    {"sources": [ranges.PLUGIN], "sinks": [sqlite.PLUGIN]}, lambda kind: entry_points(group=f"holdfast.{kind}")
)


@pytest.fixture(autouse=True)
def _secrets_of_the_examples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_STORE", "postgresql://holdfast@db/leases")
    monkeypatch.setenv("SEARCH_PASSWORD", "secret")


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def _without_code(text: str) -> str:
    return _FENCED.sub("", text)


def _anchors(page: Path) -> set[str]:
    """Anchors as GitHub makes them from headings."""
    titles = _HEADING.findall(_without_code(page.read_text()))
    plain = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title) for title in titles]
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in plain}


def _links(page: Path) -> Iterator[str]:
    for target in _LINK.findall(re.sub(r"`[^`]*`", "code", _without_code(page.read_text()))):
        if not re.match(r"[a-z]+:", target):
            yield unquote(target)


def _commands(page: Path) -> Iterator[tuple[str, ...]]:
    """What follows `holdfast` in blocks for the shell."""
    # Also those of the README, which are written with a prompt and a path.
    plain = re.sub(r"^\$ ", "", page.read_text().replace("\\\n", " ").replace(".venv/bin/", ""), flags=re.MULTILINE)
    for _, language, block in _FENCED.findall(plain):
        for line in block.splitlines() if language in {"", "sh", "bash"} else ():
            if re.search(r"(^|\| *|xargs .*)holdfast [a-z-]", line):
                yield from _calls(line)


def _calls(line: str) -> Iterator[tuple[str, ...]]:
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    for is_shell, group in groupby(lexer, lambda word: set(word) <= set("|&;<>()")):
        words = list(group)
        if not is_shell and "holdfast" in words:
            piped = ["KEY"] if words[0] == "xargs" else []
            yield (*words[words.index("holdfast") + 1 :], *piped)


FULL_FILES = [
    pytest.param(page, found["text"], found["path"], id=f"{_name(page)}-{number}")
    for page in PAGES
    for number, found in enumerate(_FULL_FILE.finditer(page.read_text()))
]
COMMANDS = sorted({call for page in PAGES if "reference" not in page.parts for call in _commands(page)})


@pytest.mark.parametrize(("page", "text", "path"), FULL_FILES)
def test_full_pipeline_files_load(page: Path, text: str, path: str | None) -> None:
    settings = load_text(text, _name(page), REGISTRY)
    assert settings.pipelines
    if path is not None:
        assert text == (ROOT / path).read_text(), f"{path} has changed"


@pytest.mark.parametrize("file", sorted(ROOT.glob("examples/*/*.yaml")), ids=_name)
def test_files_of_the_examples_load(file: Path) -> None:
    load_text(file.read_text(), _name(file), REGISTRY)


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_relative_links_lead_somewhere(page: Path) -> None:
    broken = []
    for link in _links(page):
        place, _, anchor = link.partition("#")
        target = page if not place else Path(os.path.normpath(page.parent / place))
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in _anchors(target)):
            broken.append(link)
    assert broken == []


@pytest.mark.parametrize("call", COMMANDS, ids=" ".join)
def test_commands_that_are_shown_exist_with_their_options(call: tuple[str, ...]) -> None:
    words = list(call)
    command: Any = get_command(app)
    while words and hasattr(command, "get_command") and (below := command.get_command(None, words[0])):
        words.pop(0)
        command = below
    if words != ["--help"]:
        # Raises for an unknown command or option, and for a missing argument.
        command.make_context("holdfast", words)


def test_the_reader_of_manifests_hands_on_each_commit_once_and_only_when_it_is_complete(tmp_path: Path) -> None:
    (code,) = _RUNS.findall((ROOT / "docs/how-to/read-the-output.md").read_text())
    names: dict[str, Any] = {}
    exec(code, names)  # noqa: S102 (the page's own code, as a reader would paste it)
    new_commits, seen = names["new_commits"], dict[str, int]()
    commits = tmp_path / "_holdfast" / "commits" / "in" / "a"
    commits.mkdir(parents=True)

    def write(sequence: int, *keys: str) -> None:
        commit = {"sequence": sequence, "files": [{"key": key} for key in keys]}
        (commits / f"{sequence:020d}.json").write_text(json.dumps(commit))

    write(1, "1_a_0.parquet")
    write(2, "1_a_5.parquet", "1_a_7.parquet")
    write(3)
    (tmp_path / "1_a_0.parquet").touch()
    (tmp_path / "1_a_5.parquet").touch()
    assert [commit["sequence"] for commit in new_commits(tmp_path, seen)] == [1]
    assert [commit["sequence"] for commit in new_commits(tmp_path, seen)] == []
    (tmp_path / "1_a_7.parquet").touch()
    assert [commit["sequence"] for commit in new_commits(tmp_path, seen)] == [2, 3]
    assert seen == {"_holdfast/commits/in/a": 3}


def test_the_rules_look_at_real_documents() -> None:
    assert {ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "docs" / "README.md"} <= set(PAGES)
    assert FULL_FILES
    assert ("partitions", "list", "pipeline.yaml") in COMMANDS
