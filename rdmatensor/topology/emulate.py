# SPDX-License-Identifier: Apache-2.0
"""Emulate a topology on this machine: a network namespace for each node, and a shaped cable for each link.

It needs root, and the programs ip, tc, nsenter and unshare. The kernel limits what each direction of a link
carries (htb), so everything that speaks IP has the same links. Latencies are not emulated.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from ..errors import Unsupported, UsageError
from .model import Topology
from .routes import next_hops

_NETWORK = "10.214"
_MTU = 9000
_PACKETS = 9000, 32768  # bytes that the kernel sends at a time: those of a millisecond
_QUEUE_S = 0.05  # what waits for a link
# Classes of packets. Those below 256 bytes go first: acknowledgements that wait behind the data of a slow
# direction would slow down the other one.
_SHORT, _LONG = 10, 20
_SETTINGS = (
    "net/ipv4/ip_forward=1",
    "net/ipv4/conf/all/rp_filter=0",
    "net/ipv4/conf/default/rp_filter=0",
    # A link that was idle is as fast as before.
    "net/ipv4/tcp_slow_start_after_idle=0",
)


class Emulation:
    """An emulated topology. `addresses` are those of its nodes: members by rank, then switches."""

    def __init__(self, topology: Topology, holders: list[subprocess.Popen[bytes]]) -> None:
        self.topology = topology
        self.addresses = [f"{_NETWORK}.{i >> 8}.{i & 255}" for i in range(1, len(holders) + 1)]
        self._holders = holders

    def namespace(self, node: int) -> str:
        """Return the file of a node's network namespace, for setns()."""
        return f"/proc/{self._holders[node].pid}/ns/net"

    def command(self, node: int, *words: str) -> list[str]:
        """Return the command line that runs a program at a node."""
        return ["nsenter", f"--net={self.namespace(node)}", "--", *words]

    def shape(self, source: str, target: str, bandwidth: float) -> None:
        """Give one direction of a link another bandwidth, in bytes per second."""
        ends = [self.topology.index[each] for each in (source, target)]
        self._shape(ends[0], ends[1], bandwidth, "change")

    def _shape(self, source: int, target: int, bandwidth: float, verb: str) -> None:
        whole, burst = int(8 * bandwidth), 4 * _at_a_time(bandwidth)
        at = f"dev to{target} parent"
        several = f"ceil {whole}bit burst {burst} cburst {burst} quantum {_PACKETS[1]}"
        classes = ((1, "1:", 0, 1.0), (_SHORT, "1:1", 0, 0.1), (_LONG, "1:1", 1, 0.9))
        self._run(
            source,
            *(
                f"tc class {verb} {at} {above} classid 1:{name} htb prio {rank} rate {int(part * whole)}bit "
                + several
                for name, above, rank, part in classes
            ),
            f"tc qdisc {verb} {at} 1:{_LONG} bfifo limit {burst + int(_QUEUE_S * bandwidth)}",
        )

    def _run(self, node: int, *lines: str) -> None:
        _checked(self.command(node, "sh", "-e", "-c", "\n".join(lines)))

    def _lay(self) -> None:
        links = self.topology.capacity
        if ((links > 0) != (links.T > 0)).any():
            raise UsageError("every link of an emulated topology must lead both ways")
        for node, address in enumerate(self.addresses):
            settings = ["echo {1} > /proc/sys/{0}".format(*each.split("=")) for each in _SETTINGS]
            self._run(node, *settings, "ip link set lo up", f"ip address add {address}/32 dev lo")
        for one, other in zip(*np.nonzero(np.triu(links)), strict=True):
            peer = f"peer to{one} netns {self._holders[other].pid}"
            self._run(one, f"ip link add to{other} mtu {_MTU} type veth {peer}")
            for source, target in ((one, other), (other, one)):
                packet = _at_a_time(links[source, target])
                self._run(source, f"ip link set to{target} mtu {_MTU} gso_max_size {packet} up")
                self._run(
                    source,
                    f"tc qdisc add dev to{target} root handle 1: htb default {_LONG}",
                    f"tc filter add dev to{target} parent 1: protocol ip u32 match u16 0 0xff00 at 2 "
                    f"flowid 1:{_SHORT}",
                )
                self._shape(source, target, links[source, target], "add")
        for node, hops in enumerate(next_hops(links)):
            routes = [
                f"ip route add {self.addresses[target]}/32 via {self.addresses[hop]} dev to{hop} onlink "
                f"src {self.addresses[node]}"
                for target, hop in enumerate(hops)
                if target != node and hop >= 0
            ]
            self._run(node, *routes)


def _at_a_time(bandwidth: float) -> int:
    return int(min(max(bandwidth / 1000, _PACKETS[0]), _PACKETS[1]))


def _checked(words: list[str]) -> None:
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
    if done.returncode != 0:
        raise Unsupported(f"cannot emulate links: {words[-1]}: {done.stderr.strip()}")


def _namespace() -> subprocess.Popen[bytes]:
    """Start a process in a network namespace of its own, which ends when its input does."""
    holder = subprocess.Popen(
        ["unshare", "--net", "sh", "-c", "echo; exec cat"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert holder.stdout is not None
    if not holder.stdout.readline():
        holder.communicate()
        raise Unsupported("cannot emulate links: this system has no network namespaces")
    return holder


@contextmanager
def emulated(topology: Topology) -> Iterator[Emulation]:
    """Emulate the topology within the block. What runs at its nodes must have ended at the block's end.

    The namespaces vanish with this process and what runs in them, however that ends. Raises UsageError if a
    link leads one way only, and Unsupported if this system cannot emulate links.
    """
    if os.geteuid() != 0:
        raise Unsupported("emulating links needs root")
    missing = [each for each in ("ip", "tc", "nsenter", "unshare") if not shutil.which(each)]
    if missing:
        raise Unsupported(f"emulating links needs the program {missing[0]}")
    holders: list[subprocess.Popen[bytes]] = []
    try:
        holders.extend(_namespace() for _ in topology.index)
        emulation = Emulation(topology, holders)
        emulation._lay()
        yield emulation
    finally:
        for holder in holders:
            holder.communicate()
