"""The messages between the driver and a worker, as JSON.

`id` is that of a batch: it belongs to one lease, one token and one attempt. Either side drops messages about ids that
it does not know. Positions are opaque; offsets are integers of any size.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from holdfast.errors import ChannelRefused
from holdfast.leases.lease import Json, Ranges


class Message(msgspec.Struct, frozen=True, tag_field="kind", tag=str.lower, omit_defaults=True):
    """What all messages share: they are immutable, and the name of the class is part of the JSON."""


# --- from a worker to the driver -------------------------------------------------------------------------------------


class Hello(Message, frozen=True):
    """The first message of a worker. `attempt` is the number of the Spark job that was submitted for the slot."""

    slot: int
    attempt: int
    pid: int = 0


class Beat(Message, frozen=True):
    """A sign of life, a few times per second. `n` grows by one; the grant in response has the same number."""

    n: int
    busy: str = ""
    """The id of the batch whose record the handler has; empty if it is idle."""
    rss: int = 0
    """Bytes of memory that the worker occupies."""
    handled: tuple[int, ...] = ()
    """Records since the last beat by how long they took, see `HandlerCalled`; empty if there were none."""
    seconds: float = 0.0
    """What all of them took."""


class Progress(Message, frozen=True):
    """How far a batch got. `counts` are those since the last message: processed, succeeded, failed, dead."""

    id: str
    position: Json
    acked: Ranges = ()
    counts: tuple[int, int, int, int] = (0, 0, 0, 0)
    forwarded: Ranges = ()
    """Records of `Ack` messages since the last message: the position and `acked` contain them."""
    parts: dict[str, Json] = {}
    """By sink, what was staged for the records since the last message."""


class Began(Message, frozen=True):
    """A handler is about to get a record of a batch that was assigned with `careful`."""

    id: str
    offset: int


class Failed(Message, frozen=True):
    """The batch cannot continue in this worker, and has ended there."""

    id: str
    error: str
    unavailable: bool = False
    """Whether waiting helps: the stream does not respond."""


class Drained(Message, frozen=True):
    """The batch has ended as requested, or because its shard has ended (`last`); no record of it is being handled."""

    id: str
    position: Json
    acked: Ranges = ()
    counts: tuple[int, int, int, int] = (0, 0, 0, 0)
    last: bool = False
    forwarded: Ranges = ()
    parts: dict[str, Json] = {}


class Dropped(Message, frozen=True):
    """The worker has let go of a revoked batch: no record of it is being handled."""

    id: str


class Acked(Message, frozen=True):
    """The handler acknowledged a record of a shard that this worker does not have."""

    stream: str
    shard: str
    offset: int


class Lost(Message, frozen=True):
    """Records of a shard were deleted before they were read, from `start` up to `end`; reading continues after them."""

    shard: str
    start: int
    end: int


class Notice(Message, frozen=True):
    """A message for people."""

    text: str


# --- from the driver to a worker -------------------------------------------------------------------------------------


class Grant(Message, frozen=True):
    """The worker may begin records until `usable` seconds after it sent beat `n`, by its own clock."""

    n: int
    usable: float


class Assign(Message, frozen=True):
    """Handle this shard, from the position on, without the records in `acked`."""

    id: str
    shard: str
    position: Json
    acked: Ranges = ()
    spec: Json = None
    careful: bool = False
    """Whether to send `Began` before each record: the last worker of this shard died, and it is unclear why."""


class Drain(Message, frozen=True):
    """Finish the record in hand, wait up to `within` seconds for acks of records that are out, and say `Drained`."""

    id: str
    within: float


class Revoke(Message, frozen=True):
    """Let go of the batch: the node does not hold its lease any more. Nothing of it is reported but `Dropped`."""

    id: str


class Ack(Message, frozen=True):
    """Records of this batch were acknowledged elsewhere. May be repeated."""

    id: str
    ranges: Ranges


class Published(Message, frozen=True):
    """Everything that was reported about this batch is visible; the next progress may be reported."""

    id: str


class Stop(Message, frozen=True):
    """Call the termination callback and end the process within that many seconds."""

    within: float


Up: TypeAlias = Hello | Beat | Progress | Began | Failed | Drained | Dropped | Acked | Lost | Notice
Down: TypeAlias = Grant | Assign | Drain | Revoke | Ack | Published | Stop

_up: msgspec.json.Decoder[Up] = msgspec.json.Decoder(Up)
_down: msgspec.json.Decoder[Down] = msgspec.json.Decoder(Down)


def encode(message: Up | Down) -> bytes:
    return msgspec.json.encode(message)


def decode_up(payload: bytes) -> Up:
    """Return a worker's message. Raises `ChannelRefused` for anything else."""
    try:
        return _up.decode(payload)
    except msgspec.MsgspecError as error:
        raise ChannelRefused(f"a worker sent an invalid message: {error}") from None


def decode_down(payload: bytes) -> Down:
    """Return the driver's message. Raises `ChannelRefused` for anything else."""
    try:
        return _down.decode(payload)
    except msgspec.MsgspecError as error:
        raise ChannelRefused(f"the driver sent an invalid message: {error}") from None
