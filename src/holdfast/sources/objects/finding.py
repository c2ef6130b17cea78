"""Finding objects: regular files below a folder, in order of their paths."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from holdfast.errors import Unavailable


@dataclass(frozen=True, slots=True)
class Found:
    """A file as it was when it was found. `path` is relative to the folder."""

    path: str
    size: int
    mtime_ns: int


class Selection:
    """Which paths below a folder are read. Raises `ValueError` for what is no pattern."""

    def __init__(self, include: Sequence[str], exclude: Sequence[str] = ()) -> None:
        self._include = [_pattern(glob) for glob in include]
        self._exclude = [_pattern(glob) for glob in exclude]

    def __contains__(self, path: str) -> bool:
        if not any(pattern.fullmatch(path) for pattern in self._include):
            return False
        return not any(pattern.fullmatch(path) for pattern in self._exclude)


def find(folder: Path, selection: Selection) -> Iterator[Found]:
    """Files of the selection, sorted by path. Follows no symbolic links.

    Raises `Unavailable` if a folder cannot be listed: an error is not an empty folder.
    """
    for path in _walk(folder, ""):
        if path not in selection:
            continue
        try:
            facts = (folder / path).stat(follow_symlinks=False)
        except FileNotFoundError:
            continue  # deleted since the folder was listed
        except OSError as error:
            raise Unavailable(f"cannot look at {folder / path}: {error.strerror}") from error
        yield Found(path, facts.st_size, facts.st_mtime_ns)


def _walk(folder: Path, at: str) -> Iterator[str]:
    try:
        with os.scandir(folder / at) as entries:
            names = sorted(filter(None, map(_listed, entries)))
    except FileNotFoundError:
        if at:
            return  # deleted since its parent was listed
        raise Unavailable(f"the folder {folder} is not there") from None
    except OSError as error:
        raise Unavailable(f"cannot list {folder / at}: {error.strerror}") from error
    for name in names:
        if name.endswith("/"):
            yield from _walk(folder, at + name)
        else:
            yield at + name


def _listed(entry: os.DirEntry[str]) -> str:
    """The entry's name, with a slash if it is a folder; nothing if it is not for us."""
    # Such files are unfinished, or somebody's own: ours begin with these when they are not data.
    if entry.name.startswith((".", "_")):
        return ""
    if entry.is_dir(follow_symlinks=False):
        # The slash also puts the paths within a folder into the order of whole paths.
        return f"{entry.name}/"
    return entry.name if entry.is_file(follow_symlinks=False) else ""


def _pattern(glob: str) -> re.Pattern[str]:
    """The glob as an expression for whole paths: `*`, `?` and `[…]` stay in a name, `**/` is any folders or none."""
    tokens = re.findall(r"\*\*/|\*\*|\*|\?|\[!?[^\]/]+\]|.", glob, re.DOTALL)
    try:
        return re.compile("".join(map(_translated, tokens)), re.DOTALL)
    except re.error as error:
        raise ValueError(f"{glob!r} is no pattern: {error}") from error


def _translated(token: str) -> str:
    known = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    if token in known:
        return known[token]
    if token.startswith("[") and len(token) > 1:
        negated = token.startswith("[!")
        inner = re.escape(token[2:-1] if negated else token[1:-1]).replace(r"\-", "-")
        return f"(?!/)[{'^' if negated else ''}{inner}]"
    return re.escape(token)
