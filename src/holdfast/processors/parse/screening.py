"""Which JSON messages surely do not fit a schema, told by msgspec.

Arrow's parser refuses a whole portion for one message and is slow to find out which. This is fast, and judges only what
both judge alike: a value of the wrong kind. What passes here may still be refused there; what fails here always is.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import pyarrow as pa


class Screen:
    """Knows the kinds of values that columns take. Not picklable."""

    def __init__(self, schema: pa.Schema) -> None:
        self._decoder = msgspec.json.Decoder(_struct(schema))

    def reason(self, message: bytes) -> str | None:
        """Why the message does not fit; None if nothing is known against it."""
        try:
            self._decoder.decode(message)
        except msgspec.ValidationError as wrong:
            return f"the message does not fit the columns: {wrong}"
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            # Arrow's parser may be of another opinion about what is JSON.
            return None
        return None


def _struct(fields: Any) -> Any:
    names = {f"f{number}": field.name for number, field in enumerate(fields)}
    made: list[Any] = [(own, _kind(field.type) | None, None) for own, field in zip(names, fields, strict=True)]
    return msgspec.defstruct("Row", made, rename=names, gc=False)


def _kind(kind: Any) -> Any:
    types = pa.types
    if types.is_integer(kind):
        bound = 2 ** (kind.bit_width - 1)
        return int if kind.bit_width == 64 else Annotated[int, msgspec.Meta(ge=-bound, lt=bound)]
    if types.is_floating(kind):
        return float
    if types.is_boolean(kind):
        return bool
    if types.is_string(kind):
        return str
    if types.is_struct(kind):
        return _struct(kind)
    if types.is_list(kind):
        return list[_kind(kind.value_type) | None]  # type: ignore[misc]
    return Any
