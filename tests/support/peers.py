# SPDX-License-Identifier: Apache-2.0
"""Peers in other processes, here or in a guest: the test's side of nursery.py."""

from __future__ import annotations

import itertools
import os
import queue
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from support import nursery

PROGRAM = Path(nursery.__file__)
# Every wait of a test ends. Long, because CI machines stall; nothing waits so long when all is well.
# For what hangs: in a guest of the lab everything is slow.
PATIENCE = 100.0
SETUP = "import rdmatensor, numpy as np, time, os, threading"
# The C library keeps stacks and heaps of threads that ended. It gives them back at once, so that what a peer
# holds can be counted.
COUNTABLE = {"GLIBC_TUNABLES": "glibc.malloc.arena_max=1:glibc.pthread.stack_cache_size=0"}


Answers = queue.SimpleQueue[tuple[str, Any]]


class PeerFailed(AssertionError):
    """What ran in the peer raised, or did not answer in time."""


class Nursery:
    """Makes peers. `send` carries bytes to the nursery program, whose output is given to feed()."""

    def __init__(self, send: Callable[[bytes], object]) -> None:
        self._send = send
        self._sending = threading.Lock()
        self._parser = nursery.Parser()
        self._numbers = itertools.count(1)
        self._peers: dict[int, Peer] = {}

    def spawn(
        self, environment: dict[str, str], setup: str = SETUP, device: str | None = None
    ) -> Peer:
        """A new peer that has run `setup`. `device` is what its device is made with; None: it has none."""
        peer = Peer(self, next(self._numbers))
        self._peers[peer.number] = peer
        peer.begin(environment)
        peer.run(setup)
        if device is not None:
            peer.run(f"device = rdmatensor.Device({device})")
            peer.address = peer.get("device.address")
        return peer

    def send(self, *frame: Any) -> None:
        with self._sending:
            self._send(nursery.pack(frame))

    def feed(self, data: bytes) -> None:
        for number, kind, value in self._parser.feed(data):
            self._peers[number].hear(kind, value)

    def forget_half_frames(self) -> None:
        """The program starts anew."""
        self._parser = nursery.Parser()

    def end(self, text: str) -> None:
        """The nursery itself is gone, and all its peers; `text` says how."""
        for peer in self._peers.values():
            peer.hear("exit", text)


class Peer:
    """Another process with a Python that does what it is told."""

    def __init__(self, nursery: Nursery, number: int) -> None:
        self.number = number
        self.pid = 0
        self.address = ""
        self._nursery = nursery
        self._answers: Answers = queue.SimpleQueue()  # of the peer
        self._orders: Answers = queue.SimpleQueue()  # carried out by the nursery
        self._ended = threading.Event()
        self._status: Any = None
        self._killed = False

    def begin(self, environment: dict[str, str]) -> None:
        self.pid = self._order("spawn", environment)

    def run(self, source: str, **variables: Any) -> None:
        """Runs statements in the peer."""
        self.start(source, **variables)
        self.finish()

    def get(self, expression: str, **variables: Any) -> Any:
        """The value of an expression in the peer."""
        self._nursery.send(self.number, "get", expression, variables)
        return self.finish()

    def start(self, source: str, **variables: Any) -> None:
        """As run, without waiting for the end: call finish() later."""
        self._nursery.send(self.number, "run", textwrap.dedent(source), variables)

    def finish(self, timeout: float = PATIENCE) -> Any:
        return self._value(self._answers, timeout)

    def stop(self) -> None:
        """Stops every thread of the peer, as a machine does that hangs."""
        self._order("stop", PATIENCE)

    def resume(self) -> None:
        self._order("signal", signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL; returns when it is gone."""
        self._killed = True
        self._nursery.send(self.number, "signal", signal.SIGKILL)
        if not self._ended.wait(PATIENCE):
            raise PeerFailed("the peer does not die")

    def close(self) -> None:
        """Lets it end. PeerFailed if it crashed, now or before."""
        if not self._ended.is_set():
            self._nursery.send(self.number, "close")
            self._nursery.send(self.number, "signal", signal.SIGCONT)
            if not self._ended.wait(PATIENCE / 10):
                self.kill()
        if isinstance(self._status, int) and self._status != 0 and not self._killed:
            raise PeerFailed(f"the peer ended with {self._status}")

    def hear(self, kind: str, value: Any) -> None:
        """The nursery told this about it."""
        if kind == "exit":
            self._status = value
            self._ended.set()
        if kind in ("ok", "error", "exit"):
            self._answers.put((kind, value))
        if kind in ("done", "failed", "exit"):
            self._orders.put((kind, value))

    def _order(self, *request: Any) -> Any:
        while not self._orders.empty():
            self._orders.get()  # of an order that nobody waited for
        self._nursery.send(self.number, *request)
        return self._value(self._orders, PATIENCE)

    def _value(self, answers: Answers, timeout: float) -> Any:
        try:
            kind, value = answers.get(timeout=timeout)
        except queue.Empty:
            raise PeerFailed(f"the peer did not answer for {timeout} s") from None
        if kind == "exit":
            raise PeerFailed(f"the peer ended with {value}")
        if kind in ("error", "failed"):
            raise PeerFailed(value)
        return value


class LocalNursery(Nursery):
    """A nursery on this machine. `prefix` is a command that runs it elsewhere, such as in a namespace;
    `modules` are imported once for all peers."""

    def __init__(
        self, prefix: Sequence[str] = (), modules: Sequence[str] = ("numpy", "rdmatensor.group")
    ) -> None:
        command = [*prefix, sys.executable, str(PROGRAM), *modules]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=os.environ | COUNTABLE
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        super().__init__(self._write)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def close(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(PATIENCE)
        finally:
            self._process.kill()
            status = self._process.wait()
            self._reader.join(PATIENCE)
            self._process.stdout.close()
        if status != 0:
            raise PeerFailed(f"the nursery ended with {status}")

    def _write(self, data: bytes) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(data)
        self._process.stdin.flush()

    def _read(self) -> None:
        assert self._process.stdout is not None
        while data := os.read(self._process.stdout.fileno(), nursery.CHUNK):
            self.feed(data)
        self.end("the nursery ended")
