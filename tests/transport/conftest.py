# SPDX-License-Identifier: Apache-2.0
"""Peers in other processes, and the transports that the suite runs on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Pipe
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import rdmatensor

PEER = Path(__file__).parent / "peer.py"
# Every wait of a test ends. Long, because CI machines stall; nothing waits so long when all is well.
PATIENCE = 30.0


class PeerFailed(AssertionError):
    """What ran in the peer raised, or did not answer in time."""


def state(task: Path) -> str:
    """The scheduler's letter for a thread: R, S, T, ..."""
    return (task / "stat").read_text().rpartition(")")[2].split()[0]


class Peer:
    """Another process with a Python that does what it is told, and a device unless told not to."""

    def __init__(self, environment: dict[str, str] | None = None, device: bool = True) -> None:
        self._line, theirs = Pipe()
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, str(PEER), str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                env={**os.environ, **(environment or {})},
            )
        self.address = ""
        self.run("import rdmatensor, numpy as np, time, os, threading")
        if device:
            self.run("device = rdmatensor.Device()")
            self.address = self.get("device.address")

    def run(self, source: str, **variables: Any) -> None:
        """Runs statements in the peer."""
        self._ask("run", textwrap.dedent(source), variables)

    def get(self, expression: str, **variables: Any) -> Any:
        """The value of an expression in the peer."""
        return self._ask("get", expression, variables)

    def start(self, source: str, **variables: Any) -> None:
        """As run, without waiting for the end: call finish() later."""
        self._line.send(("run", textwrap.dedent(source), variables))

    def finish(self, timeout: float = PATIENCE) -> Any:
        if not self._line.poll(timeout):
            raise PeerFailed(f"the peer did not answer for {timeout} s")
        kind, value = self._line.recv()
        if kind == "error":
            raise PeerFailed(value)
        return value

    def stop(self) -> None:
        """Stops every thread of the peer, as a machine does that hangs."""
        self.process.send_signal(signal.SIGSTOP)
        tasks = Path(f"/proc/{self.process.pid}/task")
        end = time.monotonic() + PATIENCE
        # Threads that are not scheduled yet go on for a moment after the signal is sent.
        while any(state(task) != "T" for task in tasks.iterdir()):
            if time.monotonic() > end:
                raise PeerFailed("the peer does not stop")
            time.sleep(0.01)

    def resume(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(PATIENCE)

    def close(self) -> None:
        self._line.close()
        try:
            self.resume()
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.kill()

    def _ask(self, kind: str, source: str, variables: dict[str, Any]) -> Any:
        self._line.send((kind, source, variables))
        return self.finish()


@pytest.fixture(params=["shm"])
def transport(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The transport under test, chosen for devices opened from now on, here and in peers."""
    name: str = request.param
    monkeypatch.setenv("RDMATENSOR_TRANSPORTS", name)
    before = rdmatensor.config.get("TRANSPORTS")
    rdmatensor.config.set("TRANSPORTS", name)
    request.addfinalizer(lambda: rdmatensor.config.set("TRANSPORTS", before))
    return name


@pytest.fixture
def spawn(transport: str) -> Iterator[Callable[..., Peer]]:
    """Makes peers; they end with the test."""
    peers: list[Peer] = []

    def make(environment: dict[str, str] | None = None, device: bool = True) -> Peer:
        peer = Peer(environment, device)
        peers.append(peer)
        return peer

    yield make
    for peer in peers:
        peer.close()


@pytest.fixture
def peer(spawn: Callable[..., Peer]) -> Peer:
    return spawn()


NARROW = {"RING_BYTES": "65536", "NOTIFY_QUEUE_BYTES": "4096"}


@pytest.fixture
def narrow(spawn: Callable[..., Peer]) -> Iterator[Peer]:
    """A peer to which few notifications fit before the sender has to wait."""
    before = {name: rdmatensor.config.get(name) for name in NARROW}
    for name, value in NARROW.items():
        rdmatensor.config.set(name, value)
    yield spawn({f"RDMATENSOR_{name}": value for name, value in NARROW.items()})
    for name, value in before.items():
        rdmatensor.config.set(name, value)


@pytest.fixture
def clogged(narrow: Peer, device: rdmatensor.Device) -> Iterator[Clogged]:
    """A connection on which notifications already wait for the peer to take some."""
    remote = device.connect(narrow.address)
    transfers = [remote.notify(bytes(1000))]
    # The peer's own queue takes a few more, a moment later.
    while not stays(lambda: not transfers[-1].done):
        transfers.append(remote.notify(bytes(1000)))
        assert len(transfers) < 10000, "the sender never runs out of credit"
    yield Clogged(narrow, remote, transfers[-1], len(transfers))


def stays(condition: Callable[[], bool], seconds: float = 0.2) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if not condition():
            return False
        time.sleep(0.01)
    return True


class Clogged(NamedTuple):
    peer: Peer
    remote: rdmatensor.RemoteDevice
    waiting: rdmatensor.Transfer
    posted: int


@pytest.fixture
def device(transport: str) -> Iterator[rdmatensor.Device]:
    with rdmatensor.Device() as device:
        yield device


@pytest.fixture
def remote(device: rdmatensor.Device, peer: Peer) -> rdmatensor.RemoteDevice:
    """The peer's device, connected from ours."""
    return device.connect(peer.address)
