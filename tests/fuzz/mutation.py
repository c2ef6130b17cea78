"""Inputs that are almost valid. An input is a function of its random numbers: the same seed gives the same inputs."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from typing import Any

LONGEST = 64 << 10
MOST_CHANGES = 5
_NEAR = 64
_BYTES = (0, 1, 2, 0x7F, 0x80, 0xFE, 0xFF, ord("0"), ord("9"), ord('"'), ord("{"), ord("["), ord("\n"))
_NUMBERS = (0, 1, -1, 2, 100, 2**7, 2**15, 2**16, 2**24, 2**28, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**62, 2**63 - 1)
_WIDTHS = (1, 2, 4, 8)
_WRAP = object()
_KEYS = ("", "type", "error", "caused_by", "name", "\ud800", "__proto__")
_VALUES: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    1,
    404,
    2**63,
    10**400,
    1.5,
    float("nan"),
    "",
    "\ud800",
    "\0",
    "long",
    [],
    [[]],
    {},
    {"a": []},
    _WRAP,
)

Change = Callable[[random.Random, bytes, bytes, Sequence[bytes]], bytes]


def mutated(dice: random.Random, seeds: Sequence[bytes], tokens: Sequence[bytes] = ()) -> bytes:
    """A seed with some changes. `tokens` are words of the format, which replace bytes or are inserted."""
    data, other = dice.choice(seeds), dice.choice(seeds)
    for _ in range(min(1 + int(dice.expovariate(0.7)), MOST_CHANGES)):
        data = dice.choice(_CHANGES)(dice, data, other, tokens)[:LONGEST]
    return data


def _offset(dice: random.Random, data: bytes) -> int:
    """Any offset; those near the beginning and the end are more likely, as headers and footers are there."""
    size = len(data)
    near = min(size, _NEAR)
    return (dice.randint(0, size), dice.randint(0, near), size - dice.randint(0, near))[dice.randrange(3)]


def _length(dice: random.Random, data: bytes) -> int:
    return dice.randint(1, dice.choice((1, 4, 16, max(len(data), 1))))


def _flip(dice: random.Random, data: bytes, _other: bytes, _tokens: Sequence[bytes]) -> bytes:
    at = _offset(dice, data)
    return data[:at] + bytes(byte ^ (1 << dice.randrange(8)) for byte in data[at : at + 1]) + data[at + 1 :]


def _overwrite(dice: random.Random, data: bytes, _other: bytes, _tokens: Sequence[bytes]) -> bytes:
    at, length = _offset(dice, data), dice.randint(1, 8)
    byte = dice.choice((dice.randrange(256), dice.choice(_BYTES)))
    return data[:at] + bytes([byte]) * length + data[at + length :]


def _cut(dice: random.Random, data: bytes, _other: bytes, _tokens: Sequence[bytes]) -> bytes:
    return data[: _offset(dice, data)]


def _delete(dice: random.Random, data: bytes, _other: bytes, _tokens: Sequence[bytes]) -> bytes:
    at = _offset(dice, data)
    return data[:at] + data[at + _length(dice, data) :]


def _insert(dice: random.Random, data: bytes, _other: bytes, _tokens: Sequence[bytes]) -> bytes:
    at = _offset(dice, data)
    return data[:at] + dice.randbytes(dice.randint(1, 16)) + data[at:]


def _repeat(dice: random.Random, data: bytes, _other: bytes, _tokens: Sequence[bytes]) -> bytes:
    """Some bytes many times: long lists, and nesting."""
    at, length = _offset(dice, data), _length(dice, data)
    part = data[at : at + length]
    return data[:at] + part * dice.choice((2, 3, 200, 20_000 // max(len(part), 1) + 2)) + data[at + length :]


def _splice(dice: random.Random, data: bytes, other: bytes, _tokens: Sequence[bytes]) -> bytes:
    """Bytes of another input in place of as many, or between others."""
    at, begin, length = _offset(dice, data), _offset(dice, other), _length(dice, other)
    part = other[begin : begin + length]
    return data[:at] + part + data[at + dice.choice((0, len(part))) :]


def _number(dice: random.Random, data: bytes, _other: bytes, _tokens: Sequence[bytes]) -> bytes:
    """Another length or offset: a number of fixed width, or in seven bits to a byte."""
    at, value = _offset(dice, data), dice.choice(_NUMBERS)
    if dice.random() < 0.5:
        width = dice.choice(_WIDTHS)
        part = (value % (1 << 8 * width)).to_bytes(width, dice.choice(("big", "little")))
        return data[:at] + part + data[at + width :]
    part = varint(dice.choice((value % (1 << 64), (value << 1) ^ (value >> 63))))
    return data[:at] + part + data[at + dice.randint(0, len(part)) :]


def _text_number(dice: random.Random, data: bytes, _other: bytes, _tokens: Sequence[bytes]) -> bytes:
    at = _offset(dice, data)
    text = dice.choice((str(dice.choice(_NUMBERS)), "9" * dice.choice((19, 400, 5000)), "1e999", "-0", "NaN", "1.5"))
    return data[:at] + text.encode() + data[at + dice.randint(0, len(text)) :]


def _token(dice: random.Random, data: bytes, other: bytes, tokens: Sequence[bytes]) -> bytes:
    if not tokens:
        return _splice(dice, data, other, tokens)
    at, token = _offset(dice, data), dice.choice(tokens)
    return data[:at] + token + data[at + dice.choice((0, 1, len(token))) :]


def _move_line(dice: random.Random, data: bytes, _other: bytes, _tokens: Sequence[bytes]) -> bytes:
    lines = data.split(b"\n")
    line = lines.pop(dice.randrange(len(lines)))
    lines.insert(dice.randint(0, len(lines)), b" " * dice.choice((0, 2, 4)) + line.lstrip())
    return b"\n".join(lines)


def _json_value(dice: random.Random, data: bytes, other: bytes, tokens: Sequence[bytes]) -> bytes:
    """Another value somewhere in a JSON document, which may stand behind the headers of a response."""
    headers, blank, body = data.rpartition(b"\r\n\r\n")
    try:
        return headers + blank + json.dumps(_replaced(dice, json.loads(body))).encode()
    except (ValueError, RecursionError):
        return _token(dice, data, other, tokens)


def _replaced(dice: random.Random, document: Any) -> Any:
    """The document with one value replaced, or moved into another."""
    keys: list[Any] = list(range(len(document))) if isinstance(document, list) else []
    if isinstance(document, dict):
        keys = list(document)
    if keys and dice.random() < 0.8:
        key = dice.choice(keys)
        if dice.random() < 0.15:
            del document[key]
        else:
            document[key] = _replaced(dice, document[key])
        return document
    value = dice.choice(_VALUES)
    return {dice.choice(_KEYS): document} if value is _WRAP else value


_CHANGES: tuple[Change, ...] = (
    _flip,
    _flip,
    _json_value,
    _json_value,
    _overwrite,
    _overwrite,
    _cut,
    _delete,
    _insert,
    _repeat,
    _splice,
    _number,
    _number,
    _text_number,
    _token,
    _token,
    _move_line,
)


def varint(value: int) -> bytes:
    """A number that is not negative, seven bits to a byte, the lowest first."""
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*parts, value])
