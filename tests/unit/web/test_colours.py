"""Colours of the pages: readable in light and dark, and states apart from each other for colour-blind eyes."""

from __future__ import annotations

import re
from itertools import combinations
from math import dist
from pathlib import Path

import pytest

import holdfast.web

CSS = (Path(holdfast.web.__file__).parent / "static" / "holdfast.css").read_text()
COLOURS: dict[str, tuple[str, str]] = {
    name: (light, dark) for name, light, dark in re.findall(r"--([\w-]+): light-dark\((#\w{6}), (#\w{6})\)", CSS)
}
STATES = ("unassigned", "assigned", "closed", "completed", "failed", "silent")
THEMES = ("light", "dark")

Rgb = tuple[float, float, float]
Matrix = tuple[Rgb, Rgb, Rgb]

# Machado, Oliveira and Fernandes (2009), severity 1.0, on linear RGB.
BLINDNESS: dict[str, Matrix] = {
    "protanopia": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "deuteranopia": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881)),
    "tritanopia": ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.303900)),
}
_TO_LMS: Matrix = (
    (0.4122214708, 0.5363325363, 0.0514459929),
    (0.2119034982, 0.6806995451, 0.1073969566),
    (0.0883024619, 0.2817188376, 0.6299787005),
)
_TO_LAB: Matrix = (
    (0.2104542553, 0.7936177850, -0.0040720468),
    (1.9779984951, -2.4285922050, 0.4505937099),
    (0.0259040371, 0.7827717662, -0.8086757660),
)


def _linear(colour: str) -> Rgb:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return red, green, blue


def _times(matrix: Matrix, vector: Rgb) -> Rgb:
    first, second, third = (sum(a * b for a, b in zip(row, vector, strict=True)) for row in matrix)
    return first, second, third


def _contrast(left: str, right: str) -> float:
    light = sorted(0.2126 * r + 0.7152 * g + 0.0722 * b for r, g, b in (_linear(left), _linear(right)))
    return (light[1] + 0.05) / (light[0] + 0.05)


def _seen(colour: str, blindness: str) -> Rgb:
    """The colour in OKLab, times 100, as that eye sees it."""
    red, green, blue = (min(1.0, max(0.0, part)) for part in _times(BLINDNESS[blindness], _linear(colour)))
    long, medium, short = (part ** (1 / 3) for part in _times(_TO_LMS, (red, green, blue)))
    lightness, a, b = _times(_TO_LAB, (long, medium, short))
    return lightness * 100, a * 100, b * 100


def _of(name: str, theme: str) -> str:
    return COLOURS[name][THEMES.index(theme)]


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("blindness", BLINDNESS)
def test_states_are_apart_for_colour_blind_eyes(theme: str, blindness: str) -> None:
    pairs = combinations(STATES, 2)
    apart = {pair: dist(*(_seen(_of(state, theme), blindness) for state in pair)) for pair in pairs}
    assert {pair: round(distance, 1) for pair, distance in apart.items() if distance < 13} == {}


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("state", [*STATES, "control", "good"])
def test_graphics_stand_out_from_what_is_behind_them(state: str, theme: str) -> None:
    assert _contrast(_of(state, theme), _of("panel", theme)) >= 3
    assert _contrast(_of(state, theme), _of("page", theme)) >= 2.95


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("state", STATES)
def test_the_sign_of_a_state_is_readable_on_its_colour(state: str, theme: str) -> None:
    assert _contrast(_of(state, theme), _of(f"on-{state}", theme)) >= 4.5


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("behind", ["page", "panel", "raised"])
@pytest.mark.parametrize("text", ["text", "muted", "accent", "bad", "good", "warn"])
def test_text_is_readable(text: str, behind: str, theme: str) -> None:
    assert _contrast(_of(text, theme), _of(behind, theme)) >= 4.5
