"""Every exception that holdfast raises on purpose.

HoldfastError
├── ConfigError                 the file is wrong; names file, line and column (exit 2)
├── UsageError                  a command was given something that cannot be done (exit 2)
│   └── NotFound                it names something that does not exist
├── Refused                     starting would put data at risk (exit 2)
│   └── SelectionChanged        the number of matching partitions is not what a person has seen
├── Unavailable                 a server or a disk does not respond; waiting helps (exit 3)
│   ├── StoreUnavailable
│   │   └── AnswerLost          a write was sent and may have been applied
│   ├── NotAudited              the audit log cannot be written, so that nothing was done
│   ├── SourceUnavailable
│   └── SinkUnavailable
├── StoreError                  the store responded, and waiting will not help
│   ├── RowTooLarge             refused before the write
│   ├── RowUnreadable           a stored row that cannot be decoded is never a fresh start
│   └── SchemaMismatch          the tables are missing or have another version
│       └── NotCreatedYet       they are missing, and this command may not create them
├── TransitionRefused           this lease cannot change that way
├── LeaseLost                   this node no longer owns the lease
│   └── LeaseMissing            its row is gone
├── SessionExpired              this node was declared dead; it must join again
├── PartitionError              errors of the API for source authors
│   ├── PartitionNotFound
│   ├── PartitionNotOwned
│   └── PartitionUpdateFailed
├── SupplierFailed              discovery failed; which partitions exist is unknown
├── BatchError                  this batch cannot be processed; that counts as an attempt
│   └── BeyondRepair            and it never will be: the partition is FAILED at once
├── PlanError                   a part of a pipeline does not fit the rows that it gets
├── Halt                        evidence disagrees; a person must check, nothing is overwritten
├── StagedDataGone              a committed file can no longer be published from its staging
├── ChannelLost                 the connection between the driver and a worker has ended
│   └── ChannelRefused          the other side is not genuine, or a frame was altered
└── Interrupted                 the process was asked to stop while it waited
"""

from __future__ import annotations

import errno
import unicodedata
from dataclasses import dataclass

# Characters of a configuration line that an error quotes at most.
_QUOTED = 120


_HOST_FAULTS = frozenset(
    {
        errno.EAGAIN,
        errno.EBUSY,
        errno.EDQUOT,
        errno.EINTR,
        errno.EIO,
        errno.EMFILE,
        errno.ENFILE,
        errno.ENOBUFS,
        errno.ENODEV,
        errno.ENOLCK,
        errno.ENOMEM,
        errno.ENOSPC,
        errno.ENOTCONN,
        errno.EREMOTEIO,
        errno.ESTALE,
        errno.ETIMEDOUT,
        errno.EHOSTDOWN,
        errno.EHOSTUNREACH,
        errno.ENETDOWN,
        errno.ENETUNREACH,
    }
)


def is_host_fault(error: BaseException) -> bool:
    """Return whether an error comes from the host, a disk or the network, so that waiting helps.

    Errors of the accessed file itself do not count, such as a missing file or denied access.
    """
    if isinstance(error, ConnectionError | TimeoutError):
        return True
    return isinstance(error, OSError) and error.errno in _HOST_FAULTS


class HoldfastError(Exception):
    """Base class of all holdfast errors."""


@dataclass(frozen=True)
class Mark:
    """A position in a configuration file; line and column count from 1."""

    file: str
    line: int
    column: int
    text: str = ""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"


class ConfigError(HoldfastError):
    """One or more problems of a configuration file, each with its position."""

    def __init__(self, problems: list[tuple[Mark | None, str]]) -> None:
        self.problems = problems
        super().__init__("\n\n".join(_paragraph(mark, message) for mark, message in problems))


def _paragraph(mark: Mark | None, message: str) -> str:
    if mark is None:
        return message
    if not mark.text:
        return f"{mark}: {message}"
    gutter = f"{mark.line:>5} | "
    # A long line is cut to the part that holds the caret.
    start = max(0, mark.column - 1 - _QUOTED // 2)
    before, after = mark.text[start : mark.column - 1], mark.text[mark.column - 1 : start + _QUOTED]
    caret = " " * len(gutter) + "".join(map(_blank, before)) + "^"
    return f"{mark}: {message}\n{gutter}{_printable(before)}{_printable(after)}\n{caret}"


def _blank(character: str) -> str:
    """Return blanks of the character's width, so that the caret stands at the right column."""
    if character == "\t":
        return character
    if unicodedata.combining(character):
        return ""
    return "  " if unicodedata.east_asian_width(character) in "WF" else " "


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() or c == "\t" else "?" for c in text)


class UsageError(HoldfastError):
    """A command was given something that cannot be done."""

    part: tuple[str | int, ...] = ()
    """The part of a pipeline that cannot be built, such as `("processors", 0)`; empty if it is not known."""


class NotFound(UsageError):
    """What a request names does not exist: a pipeline, a run, a page."""


class Refused(HoldfastError):
    """Starting would put data at risk; the message says what to do instead."""


class SelectionChanged(Refused):
    """The number of matching partitions or letters is not what the person has seen; nothing was changed."""

    def __init__(self, found: int, expected: int, what: str = "partitions") -> None:
        super().__init__(f"{found} {what} match now, not {expected}; nothing was changed, look at them and repeat it")
        self.found = found
        self.expected = expected


class Unavailable(HoldfastError):
    """A server or a disk does not respond now; the same call may work later.

    The S3 client and buckets raise this class itself; their callers raise the class for a source, sink or store.
    """


class StoreUnavailable(Unavailable):
    """The store did not respond. For a read, nothing is known; for a write, nothing was sent."""


class AnswerLost(StoreUnavailable):
    """The request was sent and no response came; it may have been applied, or may still be."""


class NotAudited(Unavailable):
    """The action of a person was not done, because it could not be written to the audit log beforehand."""


class SourceUnavailable(Unavailable):
    """The source does not respond."""


class SinkUnavailable(Unavailable):
    """The sink does not respond."""


class StoreError(HoldfastError):
    """The store responded with an error that waiting does not fix."""


class RowTooLarge(StoreError):
    """Progress and receipts of a row exceed the store's declared limit; nothing was written."""


class RowUnreadable(StoreError):
    """A stored row cannot be decoded. It is an error, never a fresh start."""


class SchemaMismatch(StoreError):
    """The store's tables are missing or belong to another version."""


class NotCreatedYet(SchemaMismatch):
    """The store's tables do not exist, and may not be created by this command."""


class TransitionRefused(HoldfastError):
    """The lease is not in a state from which this change is allowed."""


class LeaseLost(HoldfastError):
    """The lease has another owner or token; nothing more may be written under it."""


class LeaseMissing(LeaseLost):
    """The lease's row does not exist."""


class SessionExpired(HoldfastError):
    """This node's session was declared dead; it must stop its work and join again."""


class PartitionError(HoldfastError):
    """Base class of errors of the API for source authors; carries the partition's key."""

    def __init__(self, key: str, message: str) -> None:
        self.key = key
        super().__init__(f"partition {key!r}: {message}")


class PartitionNotFound(PartitionError):
    """No row with this key exists."""


class PartitionNotOwned(PartitionError):
    """The caller does not own this partition, or no longer does."""


class PartitionUpdateFailed(PartitionError):
    """The store could not apply the update."""


class SupplierFailed(HoldfastError):
    """Discovery failed, in this call or recently on another node; it runs again after its backoff."""


class BatchError(HoldfastError):
    """This batch cannot be processed; that counts as an attempt of its partition."""


class BeyondRepair(BatchError):
    """The rest of this partition cannot be processed, and retrying will not help."""


class PlanError(HoldfastError):
    """A part of a pipeline cannot be planned: a column, type or expression does not fit the rows that it gets.

    `part` is the path of its settings below those of the pipeline, such as `("processors", 0)`, and empty for the whole
    pipeline; the error that the part has raised is the cause.
    """

    def __init__(self, part: tuple[str | int, ...], reason: str) -> None:
        super().__init__(reason)
        self.part = part


class Halt(HoldfastError):
    """Store and sink contradict each other; the partition stops with an alert, and nothing is overwritten.

    `lost`: items [from, to) that the source has deleted before they were read, if that is why.
    """

    def __init__(self, reason: str = "", *, lost: tuple[int, int] | None = None) -> None:
        super().__init__(reason)
        self.lost = lost


class StagedDataGone(HoldfastError):
    """Staged files of a commit disappeared before they were published; they must be rebuilt from the source."""


class ChannelLost(HoldfastError):
    """The connection between the driver and a worker of a function has ended.

    `by_peer`: the other side has closed it, as the end of its process does.
    """

    def __init__(self, reason: str = "", *, by_peer: bool = False) -> None:
        super().__init__(reason)
        self.by_peer = by_peer


class ChannelRefused(ChannelLost):
    """The other side of a connection has not proved that it belongs to this engine, or a frame was altered."""


class Interrupted(HoldfastError):
    """The process was asked to stop while it waited."""


ERROR_ENDS = 2000
"""How many characters of each end of a long error a row keeps."""


def storable(error: str) -> str:
    """The error as a row can keep it: cut if it is long, and without what databases refuse in JSON."""
    # An error may quote a record of many megabytes; the row must still fit into the store.
    short = error if len(error) <= 2 * ERROR_ENDS else f"{error[:ERROR_ENDS]} … {error[-ERROR_ENDS:]}"
    # Lone surrogates and NUL are replaced.
    return short.encode("utf-16", "surrogatepass").decode("utf-16", "replace").replace("\0", "\ufffd")
