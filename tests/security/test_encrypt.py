# SPDX-License-Identifier: Apache-2.0
"""ENCRYPT: who connects to whom, what is seen on the way, and what changes there do."""

from __future__ import annotations

import importlib.util
import os
import shutil
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import numpy as np
import pytest

import rdmatensor
from security.devices import OTHER, SECRET, Open, works
from security.test_secret import TENSORFLOW
from support.bootstrap import Line, Meeting, Refused
from support.relay import Relay
from support.waits import PATIENCE

MB = 1 << 20
PATTERN = b"tensors that nobody else may see"

Setting = Callable[[str, str | int], None]


@pytest.fixture
def open_tcp(open_device: Open) -> Open:
    """Opens a device that has only tcp, and encrypts unless it is told otherwise."""

    def make(secret: bytes = SECRET, **settings: str | int) -> rdmatensor.Device:
        return open_device(secret, **{"TRANSPORTS": "tcp", "ENCRYPT": "on", **settings})

    return make


@pytest.fixture
def between() -> Iterator[Callable[..., Relay]]:
    with ExitStack() as opened:

        def start(device: rdmatensor.Device, **how: object) -> Relay:
            relay = Relay(device.address, **how)  # type: ignore[arg-type]
            opened.callback(relay.close)
            return relay

        yield start


def test_both_sides(open_tcp: Open) -> None:
    first, second = open_tcp(), open_tcp()
    assert works(first, second)
    assert works(second, first)
    remote = first.connect(second.address)
    assert (remote.transport, remote.encrypted) == ("tcp", True)


def test_shared_memory_stays(open_tcp: Open) -> None:
    """It leaves no machine. The connection that finds it is encrypted."""
    both = "shm,verbs,tcp"
    first, second = open_tcp(TRANSPORTS=both), open_tcp(TRANSPORTS=both)
    assert works(first, second)
    remote = first.connect(second.address)
    assert (remote.transport, remote.encrypted) == ("shm", False)
    assert "cannot encrypt" in first.transports["verbs"].text


@pytest.mark.parametrize("mode", ["off", "on"])
def test_what_is_seen_on_the_way(open_tcp: Open, between: Callable[..., Relay], mode: str) -> None:
    """Data, notifications, and the names of regions and devices; without encryption all of these."""
    first, second = open_tcp(ENCRYPT=mode), open_tcp(ENCRYPT=mode)
    relay = between(second)
    data = np.frombuffer(PATTERN * (3 * MB // len(PATTERN)), np.uint8)
    with second.allocate(data.nbytes, name="a secret name") as region:
        remote = first.connect(relay.address)
        assert remote.encrypted == (mode == "on")
        there = remote.region("a secret name")
        there.write(data).wait(PATIENCE)
        assert (region.array == data).all()
        assert (there.read() == data).all()
        remote.notify(b"a secret message", 7)
        notification = second.next_notification(PATIENCE)
        assert bytes(notification.payload) == b"a secret message"
    assert relay.connections == 3
    for text, ways in {
        PATTERN: ("there", "back"),
        b"a secret name": ("there",),
        b"a secret message": ("there",),
        first.name.encode(): ("there",),
    }.items():
        for way in ways:
            assert (text in relay.said[way]) == (mode == "off"), (text, way)
    assert SECRET not in relay.said["there"] + relay.said["back"]


@pytest.mark.parametrize("connecting", ["off", "on"])
def test_one_side(open_tcp: Open, connecting: str) -> None:
    ours = open_tcp(ENCRYPT=connecting)
    theirs = open_tcp(ENCRYPT="off" if connecting == "on" else "on")
    with pytest.raises(rdmatensor.ConnectionRefused) as caught:
        ours.connect(theirs.address)
    assert "RDMATENSOR_ENCRYPT=on" in str(caught.value)
    if connecting == "off":  # the other answered in words
        assert "RDMATENSOR_ENCRYPT=off" in str(caught.value)
        assert theirs.name in str(caught.value)
    else:
        assert "clear text" in str(caught.value)


def test_another_secret(open_tcp: Open, capfd: pytest.CaptureFixture[str]) -> None:
    first, second, stranger = open_tcp(), open_tcp(), open_tcp(OTHER)
    for ours, theirs in ((stranger, first), (first, stranger)):
        with pytest.raises(rdmatensor.ConnectionRefused) as caught:
            ours.connect(theirs.address)
        for words in ("does not have our secret", "SECRET_FILE", "sha256sum", theirs.address):
            assert words in str(caught.value)
    assert works(first, second)
    assert "was refused: the other end does not have our secret" in capfd.readouterr().err


def test_settings_that_contradict_it(open_tcp: Open) -> None:
    for settings, words in {
        ("", "tcp"): "SECRET_FILE",
        (SECRET.decode(), "verbs"): "verbs cannot encrypt",
        (SECRET.decode(), "shm,verbs"): "verbs cannot encrypt",
    }.items():
        with pytest.raises(rdmatensor.RdmaError, match=words) as caught:
            open_tcp(settings[0].encode(), TRANSPORTS=settings[1])
        assert caught.value.status == "INVALID"
        assert "RDMATENSOR_ENCRYPT=on" in str(caught.value)


# ---- who is on the way and has no secret ------------------------------------------------------------------


def test_clear_text_opens_nothing(open_tcp: Open) -> None:
    """Not even with the secret, and for data connections neither."""
    device = open_tcp()
    for kind in (1, 9):
        line = Line(device.address)
        with pytest.raises(Refused, match="RDMATENSOR_ENCRYPT=on"):
            if kind == 1:
                Meeting(line, SECRET).hello()
            else:
                line.send(kind, b"?" * 80)
                line.receive()
        line.close()


def test_answer_in_clear_text(open_tcp: Open, between: Callable[..., Relay]) -> None:
    """Somebody answers in the device's place as one that does not encrypt, in its very words."""
    device, plain = open_tcp(), open_tcp(ENCRYPT="off")
    line = Line(plain.address)
    meeting = Meeting(line, SECRET)
    meeting.hello()
    answer = meeting.said[1]
    relay = between(device, edit=lambda way, at, data: data if way == "there" else answer)
    with pytest.raises(rdmatensor.ConnectionRefused, match="clear text"):
        open_tcp().connect(relay.address)
    line.close()


def flip(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


@pytest.mark.parametrize("way", ["there", "back"])
def test_changes_to_the_handshake(open_tcp: Open, between: Callable[..., Relay], way: str) -> None:
    """Whatever of it is changed: suites, groups, keys, the name of the key, what proves it."""
    first, second = open_tcp(), open_tcp()
    for position in (0, 5, 11, 43, 80, 110, 150, 200):

        def edit(at: str, passed: int, data: bytes, position: int = position) -> bytes:
            reached = at == way and passed == 0
            return flip(data, min(position, len(data) - 1)) if reached else data

        relay = between(second, edit=edit)
        with pytest.raises(rdmatensor.RdmaError):
            first.connect(relay.address, timeout=3)
    assert works(first, second)


@pytest.mark.parametrize("how", ["changed", "repeated", "cut", "garbage"])
def test_changes_to_data(open_tcp: Open, between: Callable[..., Relay], how: str) -> None:
    """They end the connection, promptly, and never arrive as data."""
    first, second = open_tcp(), open_tcp()
    struck = threading.Event()

    def edit(way: str, passed: int, data: bytes) -> bytes | None:
        if way == "back" or passed < MB or struck.is_set():
            return data
        struck.set()
        if how == "cut":
            return data[: len(data) // 2 + 1]
        changed = {
            "changed": lambda: flip(data, len(data) // 2),
            "repeated": lambda: data + data,
            "garbage": lambda: os.urandom(len(data)),
        }
        return changed[how]()

    relay = between(second, edit=edit)
    with second.allocate(8 * MB, name="target") as region:
        there = first.connect(relay.address).region("target")
        data = np.full(8 * MB, 7, np.uint8)
        with pytest.raises(rdmatensor.ConnectionLost):
            there.write(data).wait(PATIENCE)
        assert struck.is_set()
        assert set(np.unique(region.array)) <= {0, 7}
    assert works(first, second)


def test_strangers_certificate(open_tcp: Open, tmp_path: Path) -> None:
    """A server of TLS that has no secret, but a certificate."""
    if not shutil.which("openssl"):
        pytest.skip("no openssl to make a certificate with")
    pem = str(tmp_path / "stranger.pem")
    request = ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=x", "-days", "1"]
    command = ["openssl", *request, "-keyout", pem, "-out", pem + ".crt"]
    subprocess.run(command, check=True, capture_output=True, timeout=PATIENCE)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem + ".crt", pem)
    device = open_tcp()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with suppress(OSError), context.wrap_socket(listener.accept()[0], server_side=True):
                pass

        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(rdmatensor.RdmaError):
            device.connect(f"127.0.0.1:{listener.getsockname()[1]}", timeout=PATIENCE)
        thread.join()


@pytest.mark.parametrize("junk", [b"\x16", b"\x16\x03\x01\x00\x05hello", b"\x16" * 5000])
def test_no_client_hello(open_tcp: Open, junk: bytes) -> None:
    first, second = open_tcp(), open_tcp()
    for _ in range(5):
        line = Line(first.address)
        line.socket.sendall(junk)
        line.close()
    assert works(second, first)


# ---- beside TensorFlow ------------------------------------------------------------------------------------


BEFORE = "import rdmatensor\nrdmatensor.Device().close()\n"


@pytest.mark.skipif(not importlib.util.find_spec("tensorflow"), reason="TensorFlow is missing")
@pytest.mark.parametrize("first", ["rdmatensor", "tensorflow"])
def test_beside_the_cryptography_of_tensorflow(
    secret_file: Callable[[bytes], Path], first: str
) -> None:
    """Whose names are global. A Python that opens OpenSSL after it makes OpenSSL unusable for the whole
    process, which is an error, and no crash."""
    settings = {"SECRET_FILE": str(secret_file(SECRET)), "TRANSPORTS": "tcp", "ENCRYPT": "on"}
    done = subprocess.run(
        [sys.executable, "-c", (BEFORE if first == "rdmatensor" else "") + TENSORFLOW],
        env={**os.environ, **{f"RDMATENSOR_{name}": value for name, value in settings.items()}},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    if first == "rdmatensor":
        assert done.stdout == "connected\n", done.stderr[-3000:]
    else:
        assert done.returncode == 1, (done.returncode, done.stderr[-3000:])
        assert "load rdmatensor before" in done.stderr
