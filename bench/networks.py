# SPDX-License-Identifier: Apache-2.0
"""Networks of this machine that benchmarks compare transports over."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from harness import Bench


@dataclass(frozen=True)
class Network:
    """Where the other end is: its address, and what its commands begin with. This end is at `near`.

    `device` is this end's interface, `far_device` the other one's. `environment` is what rdmatensor needs at
    both ends.
    """

    name: str
    near: str
    host: str
    device: str
    far_device: str
    prefix: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)

    def interface(self, far: bool) -> str:
        """The interface of one end."""
        return self.far_device if far else self.device

    def over_tcp(self, far: bool) -> dict[str, str]:
        """The environment in which rdmatensor uses TCP at one end."""
        return {
            "RDMATENSOR_TRANSPORTS": "tcp",
            "RDMATENSOR_BIND_ADDRESS": self.host if far else self.near,
            **self.environment,
        }

    @property
    def carried_bytes(self) -> int:
        """The bytes that have passed the network, in both directions."""
        for line in Path("/proc/net/dev").read_text().splitlines():
            name, _, counters = line.partition(":")
            if name.strip() == self.device:
                values = [int(each) for each in counters.split()]
                # Loopback counts each byte twice: as sent, and as received.
                return values[0] if self.device == "lo" else values[0] + values[8]
        return 0


CONGESTION = Path("/proc/sys/net/ipv4/tcp_congestion_control")
CUBIC = "cubic"  # what most kernels are set to
LOOPBACK = Network("loopback", "127.0.0.1", "127.0.0.1", "lo", "lo")


@contextlib.contextmanager
def veth(rate: str = "", congestion: str = "") -> Iterator[Network]:
    """A pair of interfaces that joins this network namespace with another one; only root can make it.

    `rate` limits each direction, in words of tc, such as "1gbit". Connections over the pair use
    `congestion`, a congestion control of the kernel, or the one that it is set to.
    """
    pid = os.getpid()
    space, near, far = f"rdtbench-{pid}", f"rdtb{pid}", f"rdtc{pid}"
    inside = ("ip", "netns", "exec", space)
    # Another run's, or one that was killed, may be there.
    subnet = f"198.{18 + pid // 256 % 2}.{pid % 256}"
    shape = ("root", "tbf", "rate", rate, "burst", "128kb", "latency", "20ms")
    commands = [
        ("ip", "netns", "add", space),
        ("ip", "link", "add", near, "type", "veth", "peer", far, "netns", space),
        ("ip", "address", "add", f"{subnet}.1/24", "dev", near),
        ("ip", "link", "set", near, "up"),
        (*inside, "ip", "address", "add", f"{subnet}.2/24", "dev", far),
        (*inside, "ip", "link", "set", far, "up"),
        (*inside, "ip", "link", "set", "lo", "up"),
    ]
    if congestion:
        route = ("ip", "route", "change", f"{subnet}.0/24", "dev")
        algorithm = ("congctl", congestion)
        commands += [
            (*route, near, "src", f"{subnet}.1", *algorithm),
            (*inside, *route, far, "src", f"{subnet}.2", *algorithm),
        ]
    if rate:
        commands += [
            ("tc", "qdisc", "add", "dev", near, *shape),
            (*inside, "tc", "qdisc", "add", "dev", far, *shape),
        ]
    try:
        for words in commands:
            subprocess.run(words, check=True, capture_output=True)
        # The namespaces are this machine's alone, and the peers have no secret.
        alone = {"RDMATENSOR_INSECURE": "1"}
        name = f"veth at {rate}" if rate else f"veth with {congestion}" if congestion else "veth"
        yield Network(name, f"{subnet}.1", f"{subnet}.2", near, far, inside, alone)
    finally:
        subprocess.run(("ip", "link", "delete", near), capture_output=True)
        subprocess.run(("ip", "netns", "delete", space), capture_output=True)


def may_make_veth(bench: Bench) -> bool:
    """Whether this is root. If not, the network between namespaces is recorded as missing."""
    if os.geteuid():
        bench.missing("veth", "only root makes network namespaces", "sudo")
    return not os.geteuid()


def loopback_and_veth(bench: Bench) -> Iterator[Network]:
    """Loopback, then as root a pair of interfaces with the congestion control of most kernels."""
    yield LOOPBACK
    if may_make_veth(bench):
        with veth(congestion=CUBIC) as network:
            yield network
