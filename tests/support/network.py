# SPDX-License-Identifier: Apache-2.0
"""Two hosts on one machine: network namespaces that a veth pair joins, with a link that can be shaped or cut.

    with two_hosts() as network:
        network.shape(rate="10mbit", delay_ms=50, loss=0.01)
        subprocess.run(network.first.command("ping", "-c1", network.second.address))

It needs root. A keeper, which is this file as a program, removes both namespaces and ends what runs in them
when the test ends, however it ends. The keeper also delays and drops frames, because not every kernel has
netem: both interfaces then redirect what they send to TAP devices, which it reads and writes.
"""

from __future__ import annotations

import ctypes
import fcntl
import heapq
import itertools
import json
import os
import random
import select
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, NamedTuple

import pytest

CARD, TAP = "eth0", "wire0"
NETWORK_NAMESPACE = 0x40000000  # CLONE_NEWNET
TUNSETIFF, TAP_WITHOUT_HEADER = 0x400454CA, 0x1002
SIOCGIFHWADDR = 0x8927
FRAME_BYTES = 1 << 16
QUEUED_FRAMES = 20000
_numbers = itertools.count()
_libc = ctypes.CDLL(None, use_errno=True)


class Host(NamedTuple):
    """A network namespace, and its address on the link."""

    namespace: str
    address: str

    def command(self, *words: str) -> list[str]:
        """The command line that runs a program on this host."""
        return ["ip", "netns", "exec", self.namespace, *words]

    def run(self, *words: str) -> str:
        """Runs a program on this host to its end; its output. CalledProcessError if it fails."""
        return subprocess.run(
            self.command(*words), check=True, text=True, stdout=subprocess.PIPE, timeout=60
        ).stdout

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Within the block, the calling thread is on this host, and so are its sockets and new threads."""
        other = Path("/run/netns", self.namespace)
        with Path("/proc/thread-self/ns/net").open() as before, other.open() as ours:
            _enter(ours)
            try:
                yield
            finally:
                _enter(before)


class Network(NamedTuple):
    """Two hosts and their link."""

    first: Host
    second: Host
    keeper: subprocess.Popen[str]

    def shape(self, *, rate: str = "", delay_ms: float = 0, loss: float = 0) -> None:
        """Give each direction a rate, such as "10mbit", a delay, and a share of lost frames, 0 to 1.

        No argument: the link as it was at first. It has about 50 ms of buffer before a `rate`. With a delay
        or a loss, frames go through a program, which carries some 100 MB/s.
        """
        self._tell({"delay": delay_ms / 1000, "loss": loss})
        for host in (self.first, self.second):
            for card in (CARD, TAP):
                with suppress(subprocess.CalledProcessError):
                    _tc(host.namespace, f"qdisc del dev {card} root", quiet=True)
            if rate:
                card = TAP if delay_ms or loss else CARD
                _tc(
                    host.namespace,
                    f"qdisc add dev {card} root tbf rate {rate} burst 128k latency 50ms",
                )

    def link(self, up: bool) -> None:
        """Pull the cable out of the second host, or put it in again."""
        self.second.run("ip", "link", "set", CARD, "up" if up else "down")

    def _tell(self, order: object) -> None:
        assert self.keeper.stdin and self.keeper.stdout
        print(json.dumps(order), file=self.keeper.stdin, flush=True)
        answer = self.keeper.stdout.readline().strip()
        if answer != "done":
            raise OSError(f"the network's keeper: {answer or 'ended'}")


@contextmanager
def two_hosts() -> Iterator[Network]:
    """Two hosts that reach each other and nobody else. Skips the test where that cannot be."""
    if os.geteuid() != 0:
        pytest.skip("network namespaces need root")
    label = f"rdmatensor-{os.getpid()}-{next(_numbers)}"
    first, second = (Host(f"{label}-{end}", f"10.213.0.{end}") for end in (1, 2))
    keeper = subprocess.Popen(
        [sys.executable, __file__, first.namespace, second.namespace],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    with keeper:
        assert keeper.stdin and keeper.stdout
        why_not = _lay(first, second)
        if why_not:
            keeper.stdin.close()
            pytest.skip(f"no network namespaces here: {why_not}")
        yield Network(first, second, keeper)
        keeper.stdin.close()


def _lay(first: Host, second: Host) -> str:
    """Make the hosts and the cable; why that cannot be done, or ""."""
    lines = [f"netns add {first.namespace}", f"netns add {second.namespace}"]
    lines += [
        f"-n {first.namespace} link add {CARD} type veth peer {CARD} netns {second.namespace}"
    ]
    for name, address in (first, second):
        lines += [f"-n {name} address add {address}/24 dev {CARD}"]
        lines += [f"-n {name} link set {card} up" for card in ("lo", CARD)]
    for line in lines:
        done = subprocess.run(["ip", *line.split()], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            return f"ip {line}: {done.stderr.strip()}"
    return ""


def _tc(namespace: str, line: str, quiet: bool = False) -> None:
    errors = subprocess.DEVNULL if quiet else None
    subprocess.run(["tc", "-n", namespace, *line.split()], check=True, stderr=errors)


def _enter(namespace: IO[str]) -> None:
    if _libc.setns(namespace.fileno(), NETWORK_NAMESPACE) != 0:
        raise OSError(ctypes.get_errno(), "cannot enter a network namespace")


# ---- The keeper -------------------------------------------------------------------------------------


def _open_tap(namespace: str) -> int:
    with Host(namespace, "").inside():
        tap = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        fcntl.ioctl(tap, TUNSETIFF, struct.pack("16sH22x", TAP.encode(), TAP_WITHOUT_HEADER))
        with socket.socket() as any_socket:
            request = struct.pack("256s", CARD.encode())
            mac = fcntl.ioctl(any_socket, SIOCGIFHWADDR, request)[18:24]
    # With another address, the redirected frames would count as somebody else's.
    link = f"ip -n {namespace} link set {TAP} address {mac.hex(':')} up"
    subprocess.run(link.split(), check=True)
    for card in (CARD, TAP):
        _tc(namespace, f"qdisc add dev {card} clsact")
    everything = "protocol all u32 match u32 0 0 action mirred"
    _tc(namespace, f"filter add dev {TAP} ingress {everything} ingress redirect dev {CARD}")
    _tc(namespace, f"filter add dev {CARD} egress {everything} egress redirect dev {TAP}")
    return tap


class _Wire:
    """Carries frames between two TAP devices, late or not at all."""

    def __init__(self, namespaces: list[str]) -> None:
        self._namespaces = namespaces
        self.taps: list[int] = []
        self._delay = self._loss = 0.0
        self._waiting: list[tuple[float, int, int, bytes]] = []  # due, number, TAP, frame
        self._count = itertools.count()

    def shape(self, delay: float, loss: float) -> None:
        for tap in self.taps:
            self.take(tap)  # what was sent in the former shape
        self._delay, self._loss = delay, loss
        if (delay or loss) and not self.taps:
            self.taps = [_open_tap(each) for each in self._namespaces]
        elif not (delay or loss) and self.taps:
            for namespace in self._namespaces:
                _tc(namespace, f"qdisc del dev {CARD} clsact")
            self.carry()
            for tap in self.taps:
                os.close(tap)
            self.taps = []

    def take(self, tap: int) -> None:
        other = self.taps[1 - self.taps.index(tap)]
        with suppress(BlockingIOError):
            for _ in range(QUEUED_FRAMES // 20):  # as many as a TAP keeps
                frame = os.read(tap, FRAME_BYTES)
                if random.random() >= self._loss and len(self._waiting) < QUEUED_FRAMES:
                    due = time.monotonic() + self._delay
                    heapq.heappush(self._waiting, (due, next(self._count), other, frame))

    def carry(self) -> float | None:
        """Pass on what is due; the seconds until something is due again."""
        while self._waiting:
            early = self._waiting[0][0] - time.monotonic()
            if early > 0:
                return early
            _, _, tap, frame = heapq.heappop(self._waiting)
            with suppress(OSError):  # the card is down, or its queue is full
                os.write(tap, frame)
        return None


def _remove(namespace: str) -> None:
    listed = subprocess.run(
        ["ip", "netns", "pids", namespace], capture_output=True, text=True, check=False
    )
    for pid in listed.stdout.split():
        with suppress(OSError):
            os.kill(int(pid), signal.SIGKILL)
    subprocess.run(["ip", "netns", "del", namespace], capture_output=True, check=False)


def keep(namespaces: list[str]) -> None:
    """Follow the orders on standard input; at its end, remove the namespaces."""
    wire = _Wire(namespaces)
    try:
        while True:
            ready = select.select([0, *wire.taps], [], [], wire.carry())[0]
            for each in ready:
                if each != 0:
                    wire.take(each)
            if 0 in ready:
                line = os.read(0, FRAME_BYTES)  # one order: each waits for its answer
                if not line:
                    return
                try:
                    wire.shape(**json.loads(line))
                    print("done", flush=True)
                except (OSError, subprocess.CalledProcessError) as error:
                    print(error, flush=True)
    finally:
        for namespace in namespaces:
            _remove(namespace)


if __name__ == "__main__":
    keep(sys.argv[1:])
