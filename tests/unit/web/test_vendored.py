"""The vendored files of the pages are those that their packages have published, and come with their licences."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

import holdfast.web

VENDOR = Path(holdfast.web.__file__).parent / "static" / "vendor"
MANIFEST = json.loads((VENDOR / "manifest.json").read_text())


@pytest.mark.parametrize("name", MANIFEST)
def test_a_vendored_file_has_the_digest_of_its_package(name: str) -> None:
    assert hashlib.sha256((VENDOR / name).read_bytes()).hexdigest() == MANIFEST[name]["sha256"]


@pytest.mark.parametrize("name", MANIFEST)
def test_a_vendored_file_comes_with_its_licence(name: str) -> None:
    text = (VENDOR / MANIFEST[name]["licence_file"]).read_text()
    assert {"0BSD": "Zero-Clause BSD", "MIT": "The MIT License"}[MANIFEST[name]["licence"]] in text


def test_the_manifest_names_every_vendored_file() -> None:
    listed = {*MANIFEST, *(entry["licence_file"] for entry in MANIFEST.values()), "manifest.json"}
    assert {path.name for path in VENDOR.iterdir()} == listed
