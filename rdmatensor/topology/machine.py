# SPDX-License-Identifier: Apache-2.0
"""Find this process's NUMA nodes, and the port and PCI address of its network card."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
from pathlib import Path

_SIOCGIFADDR = 0x8915


def details(address: str, verbs: str = "", sysfs: Path = Path("/sys")) -> dict[str, str]:
    """Return what is known of "numa", "port", "pci" and "speed".

    `address` is the IPv4 address at which others reach this process, and `verbs` the RDMA port that it uses,
    such as "mlx5_0:1", if any.
    """
    found = {"numa": _numa(sysfs)}
    if verbs:
        card, _, port = verbs.partition(":")
        folder = sysfs / "class/infiniband" / card
        found |= {"port": verbs, "speed": _read(folder / "ports" / port / "rate")}
    else:
        card = _interface(address)
        folder = sysfs / "class/net" / card
        speed = _read(folder / "speed")
        found |= {"port": card, "speed": f"{speed} Mb/sec" if speed.isdecimal() else ""}
    if card and (folder / "device").exists():
        found["pci"] = (folder / "device").resolve().name
    return {key: value for key, value in found.items() if value}


def _numa(sysfs: Path) -> str:
    """Return the nodes of the processors that this process may use."""
    own = os.sched_getaffinity(0)
    nodes = (
        int(each.name[4:])
        for each in (sysfs / "devices/system/node").glob("node[0-9]*")
        if own & _listed(_read(each / "cpulist"))
    )
    return ",".join(map(str, sorted(nodes)))


def _listed(text: str) -> set[int]:
    """Return the numbers of a list such as "0-3,8"."""
    ends = [each.split("-") for each in text.split(",") if each]
    return {number for each in ends for number in range(int(each[0]), int(each[-1]) + 1)}


def _interface(address: str) -> str:
    """Return the network interface that has the address, or ""."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(asked, _SIOCGIFADDR, struct.pack("256s", name.encode()))
            except OSError:
                continue  # it has none
            if socket.inet_ntoa(answer[20:24]) == address:
                return name
    return ""


def _read(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError:
        return ""
