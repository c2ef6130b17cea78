"""The channel between driver and worker: whoever lacks the secret, or changes a byte, is not listened to."""

from __future__ import annotations

import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from holdfast.errors import ChannelLost, ChannelRefused
from holdfast.functions import channel
from holdfast.functions.channel import Address, Channel, Tls, accept, dial, new_secret

SECRET = new_secret()


class Listener:
    """Accepts one connection on a thread and does the driver's handshake on it."""

    def __init__(self, secret: bytes = SECRET, tls: Tls | None = None, patience: float = 5.0) -> None:
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.port = self.socket.getsockname()[1]
        self.accepted: Future[Channel] = Future()
        threading.Thread(target=self._serve, args=(secret, tls, patience), daemon=True).start()

    def _serve(self, secret: bytes, tls: Tls | None, patience: float) -> None:
        connection, _ = self.socket.accept()
        try:
            self.accepted.set_result(accept(connection, secret, tls.context() if tls else None, patience))
        except Exception as error:  # noqa: BLE001 - the test looks at it
            self.accepted.set_exception(error)

    def address(self, secret: bytes = SECRET, fingerprint: bytes | None = None) -> Address:
        return Address("127.0.0.1", self.port, secret, fingerprint)


def certificate_files(folder: Path) -> tuple[Path, Path]:
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    made = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=driver"
    subprocess.run([*made.split(), "-keyout", key, "-out", certificate], check=True, capture_output=True)
    return certificate, key


@contextmanager
def connected() -> Iterator[tuple[Channel, Channel]]:
    listener = Listener()
    worker = dial(listener.address())
    driver = listener.accepted.result(10)
    yield worker, driver
    worker.close()
    driver.close()
    listener.socket.close()


class Middle:
    """Stands between worker and driver; `change` gets each chunk from the worker after the handshake."""

    def __init__(self, port: int, change: Callable[[bytes], bytes]) -> None:
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = self._server.getsockname()[1]
        self._to, self._change, self.after_handshake = port, change, threading.Event()
        threading.Thread(target=self._carry, daemon=True).start()

    def _carry(self) -> None:
        worker, _ = self._server.accept()
        driver = socket.create_connection(("127.0.0.1", self._to))
        threading.Thread(target=self._pass, args=(driver, worker, lambda data: data), daemon=True).start()
        self._pass(worker, driver, lambda data: self._change(data) if self.after_handshake.is_set() else data)

    @staticmethod
    def _pass(source: socket.socket, target: socket.socket, change: Callable[[bytes], bytes]) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                target.sendall(change(data))


def through(change: Callable[[bytes], bytes]) -> tuple[Channel, Channel]:
    listener = Listener()
    middle = Middle(listener.port, change)
    worker = dial(Address("127.0.0.1", middle.port, SECRET))
    driver = listener.accepted.result(10)
    middle.after_handshake.set()
    return worker, driver


def receive_all(channel: Channel) -> None:
    while True:
        assert channel.receive() == b"message"


def send_for_ever(to: Channel) -> None:
    while True:
        to.send(bytes(channel.MAX_PAYLOAD))


def test_messages_arrive_in_both_directions_and_in_order() -> None:
    with connected() as (worker, driver):
        for number in range(100):
            worker.send(b"up %d" % number)
            driver.send(b"down %d" % number)
        assert [driver.receive() for _ in range(100)] == [b"up %d" % number for number in range(100)]
        assert [worker.receive() for _ in range(100)] == [b"down %d" % number for number in range(100)]


def test_a_worker_with_another_secret_is_refused_and_learns_nothing() -> None:
    listener = Listener()
    with pytest.raises(ChannelRefused, match="secret"):
        dial(listener.address(new_secret()))
    with pytest.raises(ChannelLost):
        listener.accepted.result(10)


def test_a_driver_without_the_secret_is_refused_by_the_worker() -> None:
    listener = Listener(new_secret())
    with pytest.raises(ChannelRefused, match="driver"):
        dial(listener.address())


def test_the_proof_of_a_worker_is_checked_by_the_driver_too() -> None:
    listener = Listener()
    stranger = socket.create_connection(("127.0.0.1", listener.port))
    stranger.sendall(channel._MAGIC + bytes(32))
    stranger.recv(1024)
    stranger.sendall(bytes(32))
    with pytest.raises(ChannelRefused, match="worker does not have the secret"):
        listener.accepted.result(10)


def test_something_that_is_not_a_worker_is_refused() -> None:
    listener = Listener()
    stranger = socket.create_connection(("127.0.0.1", listener.port))
    stranger.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
    with pytest.raises(ChannelRefused, match="not that of a worker"):
        listener.accepted.result(10)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda data: data + data, id="repeated"),
        pytest.param(lambda data: data[:-1] + bytes([data[-1] ^ 1]), id="altered"),
        pytest.param(lambda data: data[:4] + bytes(16) + data[20:], id="without tag"),
    ],
)
def test_a_frame_that_is_not_genuine_ends_the_connection(change: Callable[[bytes], bytes]) -> None:
    worker, driver = through(change)
    worker.send(b"message")
    with pytest.raises(ChannelRefused, match="altered, repeated"):
        receive_all(driver)
    with pytest.raises(ChannelLost):
        driver.receive()


def test_a_frame_that_is_left_out_is_noticed_with_the_next() -> None:
    seen: list[bytes] = []

    def without_first(data: bytes) -> bytes:
        seen.append(data)
        return data if len(seen) > 1 else b""

    worker, driver = through(without_first)
    worker.send(b"first")
    while not seen:
        time.sleep(0.001)
    worker.send(b"second")
    with pytest.raises(ChannelRefused, match="left out"):
        driver.receive()


def test_a_frame_of_an_earlier_connection_is_refused() -> None:
    kept: list[bytes] = []

    def keep(data: bytes) -> bytes:
        kept.append(data)
        return data

    worker, driver = through(keep)
    worker.send(b"message")
    assert driver.receive() == b"message"
    worker, driver = through(lambda data: kept[0])
    worker.send(b"another")
    with pytest.raises(ChannelRefused):
        driver.receive()


def test_a_frame_that_announces_too_much_is_refused_before_it_is_read() -> None:
    worker, driver = through(lambda data: b"\xff\xff\xff\xff" + data[4:])
    worker.send(b"message")
    with pytest.raises(ChannelRefused, match="4294967295 bytes"):
        driver.receive()


def test_a_message_that_is_too_long_is_not_sent() -> None:
    with connected() as (worker, driver):
        with pytest.raises(ValueError, match="longer"):
            worker.send(bytes(channel.MAX_PAYLOAD + 1))
        worker.send(bytes(channel.MAX_PAYLOAD))
        assert driver.receive() == bytes(channel.MAX_PAYLOAD)


def test_a_connection_that_says_nothing_is_given_up() -> None:
    listener = Listener(patience=0.1)
    silent = socket.create_connection(("127.0.0.1", listener.port))
    with pytest.raises(ChannelLost, match="in time"):
        listener.accepted.result(10)
    silent.close()


def test_a_handshake_byte_by_byte_does_not_get_more_time() -> None:
    listener = Listener(patience=0.2)
    slow = socket.create_connection(("127.0.0.1", listener.port))
    with suppress(OSError):
        for byte in channel._MAGIC + bytes(1000):
            slow.send(bytes([byte]))
            if listener.accepted.done():
                break
            time.sleep(0.02)
    with pytest.raises(ChannelLost, match="in time"):
        listener.accepted.result(10)


def test_a_side_that_does_not_read_ends_the_connection_and_blocks_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel, "SEND_PATIENCE", 0.1)
    with connected() as (_, driver), pytest.raises(ChannelLost, match="in time"):
        send_for_ever(driver)


def test_the_end_of_the_other_side_and_a_close_of_this_one_end_a_receive() -> None:
    with connected() as (worker, driver):
        worker.close()
        with pytest.raises(ChannelLost):
            driver.receive()
    with connected() as (worker, _):
        threading.Timer(0.05, worker.close).start()
        with pytest.raises(ChannelLost):
            worker.receive()


def test_over_tls_both_directions_work_at_once(tmp_path: Path) -> None:
    tls = Tls(*certificate_files(tmp_path))
    listener = Listener(tls=tls)
    worker = dial(listener.address(fingerprint=tls.fingerprint()))
    driver = listener.accepted.result(10)

    def send() -> None:
        for _ in range(300):
            worker.send(b"up" * 500)

    sender = threading.Thread(target=send)
    sender.start()
    for _ in range(300):
        driver.send(b"down" * 500)
        assert driver.receive() == b"up" * 500
    assert [worker.receive() for _ in range(300)] == [b"down" * 500] * 300
    sender.join()


def test_another_certificate_is_refused(tmp_path: Path) -> None:
    listener = Listener(tls=Tls(*certificate_files(tmp_path)))
    with pytest.raises(ChannelRefused, match="certificate"):
        dial(listener.address(fingerprint=bytes(32)))
