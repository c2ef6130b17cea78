"""The channel: an authenticated connection between the driver and one worker.

The worker dials. Both sides prove that they have the engine's secret, by HMAC-SHA256 over two nonces, before anything
else is read. After that, each message is a frame: `u32 length | blake2b-16 of (counter, payload) | payload`, with a key
for each direction that belongs to this connection alone. A frame that is repeated, left out, reordered or altered does
not match. Records do not travel here, only control messages.

The frames are authenticated and not secret. Where they leave the host, `Tls` encrypts them.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import select
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from holdfast.errors import ChannelLost, ChannelRefused

MAX_PAYLOAD = 1 << 20
HANDSHAKE_PATIENCE = 5.0
SEND_PATIENCE = 2.0
"""Seconds for the other side to take in a message; a stopped process does not."""

_Result = TypeVar("_Result")
_MAGIC = b"holdfast-worker-1\n"
_NONCE = 32
_TAG = 16
_HEAD = struct.Struct(">I")
_COUNTER = struct.Struct(">Q")
_NOT_NOW = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


@dataclass(frozen=True, slots=True)
class Address:
    """Where a driver listens, what proves that a worker belongs to it, and its certificate if it uses TLS."""

    host: str
    port: int
    secret: bytes
    fingerprint: bytes | None = None
    """SHA-256 of the driver's certificate; None: no TLS."""

    def __repr__(self) -> str:
        return f"Address({self.host}:{self.port})"


@dataclass(frozen=True, slots=True)
class Tls:
    """The certificate and key of a driver, as files in PEM. Workers accept this very certificate and no other."""

    certificate: Path
    key: Path

    def context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.certificate, self.key)
        return context

    def fingerprint(self) -> bytes:
        der = ssl.PEM_cert_to_DER_cert(self.certificate.read_text())
        return hashlib.sha256(der).digest()


def new_secret() -> bytes:
    return secrets.token_bytes(32)


class Channel:
    """A connection after its handshake. Any thread may send or close; one thread receives.

    Both raise `ChannelLost` when the connection has ended, and `ChannelRefused` for a frame that is not genuine. After
    either, the connection cannot be used any more.
    """

    def __init__(self, connection: socket.socket, send_key: bytes, receive_key: bytes) -> None:
        self._stream = _Stream(connection)
        self._send_key = send_key
        self._receive_key = receive_key
        self._sent = 0
        self._received = 0
        self._sending = threading.Lock()

    def send(self, payload: bytes) -> None:
        """Send one message. Blocks up to `SEND_PATIENCE` if the other side does not read."""
        if len(payload) > MAX_PAYLOAD:
            raise ValueError(f"a message of {len(payload)} bytes is longer than {MAX_PAYLOAD}")
        with self._sending:
            tag = _tag(self._send_key, self._sent, payload)
            self._sent += 1
            self._stream.write(_HEAD.pack(len(payload)) + tag + payload, time.monotonic() + SEND_PATIENCE)

    def receive(self) -> bytes:
        """Return the next message. Blocks until there is one."""
        (length,) = _HEAD.unpack(self._stream.read(_HEAD.size))
        if length > MAX_PAYLOAD:
            self.close()
            raise ChannelRefused(f"a frame announces {length} bytes, more than {MAX_PAYLOAD}")
        tag, payload = self._stream.read(_TAG), self._stream.read(length)
        if not hmac.compare_digest(tag, _tag(self._receive_key, self._received, payload)):
            self.close()
            raise ChannelRefused("a frame was altered, repeated or left out on its way")
        self._received += 1
        return payload

    def close(self) -> None:
        """End the connection; a blocked `receive` returns with `ChannelLost`. May be repeated; never raises."""
        self._stream.close()


def dial(address: Address, patience: float = HANDSHAKE_PATIENCE) -> Channel:
    """Connect to the driver, and authenticate both sides. Raises `ChannelLost` or `ChannelRefused`."""
    deadline = time.monotonic() + patience
    try:
        connection = socket.create_connection((address.host, address.port), timeout=patience)
    except OSError as error:
        raise ChannelLost(f"the driver does not respond at {address.host}:{address.port}: {error}") from error
    try:
        if address.fingerprint is not None:
            connection = _pinned(connection, address)
        return _as_worker(connection, address.secret, deadline)
    except OSError as error:
        connection.close()
        raise ChannelLost(f"the handshake did not complete: {error}") from error
    except BaseException:
        connection.close()
        raise


def accept(
    connection: socket.socket,
    secret: bytes,
    context: ssl.SSLContext | None = None,
    patience: float = HANDSHAKE_PATIENCE,
) -> Channel:
    """Authenticate both sides of a connection that was just accepted. Raises like `dial`, after closing it."""
    deadline = time.monotonic() + patience
    try:
        if context is not None:
            connection.settimeout(patience)
            connection = context.wrap_socket(connection, server_side=True)
        return _as_driver(connection, secret, deadline)
    except OSError as error:
        connection.close()
        raise ChannelLost(f"the handshake did not complete: {error}") from error
    except BaseException:
        connection.close()
        raise


def _pinned(connection: socket.socket, address: Address) -> ssl.SSLSocket:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # the fingerprint below decides, not an authority
    wrapped = context.wrap_socket(connection)
    certificate = wrapped.getpeercert(binary_form=True) or b""
    if not hmac.compare_digest(hashlib.sha256(certificate).digest(), address.fingerprint or b""):
        wrapped.close()
        raise ChannelRefused(f"the certificate at {address.host}:{address.port} is not that of the driver")
    return wrapped


def _as_worker(connection: socket.socket, secret: bytes, deadline: float) -> Channel:
    stream, mine = _Stream(connection), secrets.token_bytes(_NONCE)
    stream.write(_MAGIC + mine, deadline)
    theirs = stream.read(_NONCE, deadline)
    proof = stream.read(hashlib.sha256().digest_size, deadline)
    if not hmac.compare_digest(proof, _mac(secret, b"driver", mine + theirs)):
        raise ChannelRefused("the driver does not have the secret of this engine")
    stream.write(_mac(secret, b"worker", mine + theirs), deadline)
    return Channel(connection, *_keys(secret, mine + theirs))


def _as_driver(connection: socket.socket, secret: bytes, deadline: float) -> Channel:
    stream, mine = _Stream(connection), secrets.token_bytes(_NONCE)
    if stream.read(len(_MAGIC), deadline) != _MAGIC:
        raise ChannelRefused("the connection is not that of a worker")
    theirs = stream.read(_NONCE, deadline)
    stream.write(mine + _mac(secret, b"driver", theirs + mine), deadline)
    proof = stream.read(hashlib.sha256().digest_size, deadline)
    if not hmac.compare_digest(proof, _mac(secret, b"worker", theirs + mine)):
        raise ChannelRefused("the worker does not have the secret of this engine")
    up, down = _keys(secret, theirs + mine)
    return Channel(connection, down, up)


def _mac(secret: bytes, role: bytes, nonces: bytes) -> bytes:
    return hmac.digest(secret, role + b"\0" + nonces, "sha256")


def _keys(secret: bytes, nonces: bytes) -> tuple[bytes, bytes]:
    """The keys of frames from the worker and to the worker."""
    return _mac(secret, b"up", nonces), _mac(secret, b"down", nonces)


def _tag(key: bytes, counter: int, payload: bytes) -> bytes:
    return hashlib.blake2b(_COUNTER.pack(counter) + payload, digest_size=_TAG, key=key).digest()


class _Stream:
    """Bytes of a connection, which two threads use at once: OpenSSL allows only one of them inside at a time."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self._connection = connection
        self._inside = threading.Lock()
        self._closed = False

    def read(self, number: int, deadline: float | None = None) -> bytes:
        data = bytearray()
        while len(data) < number:
            part = self._try(partial(self._connection.recv, number - len(data)))
            if part is None:
                self._wait(select.POLLIN, deadline)
            elif not part:
                raise ChannelLost("the connection was closed", by_peer=not self._closed)
            else:
                data += part
        return bytes(data)

    def write(self, data: bytes, deadline: float) -> None:
        rest = memoryview(data)
        while rest:
            sent = self._try(partial(self._connection.send, rest))
            if sent is None:
                self._wait(select.POLLOUT, deadline)
            else:
                rest = rest[sent:]

    def _try(self, call: Callable[[], _Result]) -> _Result | None:
        try:
            with self._inside:
                return call()
        except _NOT_NOW:
            return None
        except OSError as error:
            # A process that ends before it has read everything resets the connection.
            by_peer = isinstance(error, ConnectionError) and not self._closed
            self.close()
            raise ChannelLost(f"the connection has ended: {error}", by_peer=by_peer) from error

    def _wait(self, wanted: int, deadline: float | None) -> None:
        """Wait until the connection is ready. Past the deadline it is closed: part of a message may be on its way."""
        left = None if deadline is None else deadline - time.monotonic()
        poll = select.poll()
        poll.register(self._connection, wanted)
        if left is not None and (left <= 0 or not poll.poll(left * 1000)):
            self.close()
            raise ChannelLost("the other side did not respond in time")
        if left is None:
            poll.poll()

    def close(self) -> None:
        # Not `close`: another thread may wait for this descriptor. SSLSocket's own method would wait for the peer.
        with suppress(OSError):
            self._closed = True
            socket.socket.shutdown(self._connection, socket.SHUT_RDWR)
