"""What readers of the output see, and the manifests beside it; read as plain files."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path


def published(root: Path) -> Counter[tuple[str, int]]:
    """How often each item of each partition is visible to one who skips what begins with `_` or a dot."""
    seen: Counter[tuple[str, int]] = Counter()
    for path in sorted(root.rglob("*.txt")):
        if any(part[0] in "_." for part in path.relative_to(root).parts):
            continue
        for line in path.read_text().splitlines():
            key, item = line.split(" ")
            seen[key, int(item)] += 1
    return seen


def manifests(root: Path) -> dict[tuple[str, int], str]:
    """Commit ids by partition and sequence number."""
    manifests = [json.loads(path.read_text()) for path in root.glob("_holdfast/commits/*/*/*.json")]
    return {(manifest["key"], manifest["sequence"]): manifest["commit_id"] for manifest in manifests}


def judge_output(
    folder: Path, expected: Mapping[str, Mapping[str, int]], commits: Mapping[tuple[str, str, int], str]
) -> list[str]:
    """Everything that is lost, there twice, or that no commit of the history has decided."""
    decided = [what for pipeline in expected for what in _undecided(folder, pipeline, commits)]
    return miscounted(folder, expected) + decided


def miscounted(folder: Path, expected: Mapping[str, Mapping[str, int]]) -> list[str]:
    """Every item that is lost or there twice. `expected`: items by pipeline and partition."""
    return [what for pipeline, items in expected.items() for what in _miscounted(folder / pipeline, items)]


def _miscounted(root: Path, items: Mapping[str, int]) -> Iterator[str]:
    seen = published(root)
    wanted = Counter((key, item) for key, size in items.items() for item in range(size))
    for key, item in sorted(wanted - seen):
        yield f"{root.name}/{key}: item {item} is lost"
    for key, item in sorted(seen - wanted):
        yield f"{root.name}/{key}: item {item} is there {seen[key, item]} times instead of {wanted[key, item]}"


def _undecided(folder: Path, pipeline: str, commits: Mapping[tuple[str, str, int], str]) -> Iterator[str]:
    decided = {(key, sequence): commit_id for (owner, key, sequence), commit_id in commits.items() if owner == pipeline}
    witnessed = manifests(folder / pipeline)
    for key, sequence in sorted(
        commit for commit in {**decided, **witnessed} if decided.get(commit) != witnessed.get(commit)
    ):
        yield f"{pipeline}/{key}: commit {sequence} of the history and its manifest disagree"
