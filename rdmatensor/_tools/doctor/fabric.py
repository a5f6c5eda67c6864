# SPDX-License-Identifier: Apache-2.0
"""Findings about RDMA devices and transports.

The kernel lists devices (/sys/class/infiniband). The core reports which port and GID it uses, and why it does
not use the others.
"""

from __future__ import annotations

import contextlib
import ipaddress
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from .finding import Finding

_FOLDER = Path("/sys/class/infiniband")
_LINE = re.compile(r"rdmatensor: (ERROR|WARN|INFO|DEBUG): (.*)")
_ORDER = (
    "the choice of a GID prefers RoCE v2 to v1, IPv4 to IPv6, other addresses to link-local ones, and an "
    "interface that is up to an unknown one; RDMATENSOR_GID_INDEX overrides it"
)
_TRY = "rdmatensor softroce run -- rdmatensor doctor   (RDMA in software, on any machine)"


def lines(log: Sequence[str], level: str) -> list[str]:
    """Return the lines that the core logged at this level."""
    found = [match for line in log if (match := _LINE.fullmatch(line))]
    return [match[2] for match in found if match[1] == level]


def findings(report: Mapping[str, Any], log: Sequence[str]) -> Iterator[Finding]:
    """Report each transport, and each port in the kernel."""
    for name, found in report["transports"].items():
        yield _transport(name, found)
    using = report["transports"].get("verbs", {"usable": False, "text": ""})
    said = [line.removeprefix("verbs: ") for line in lines(log, "DEBUG")]
    for device in kernel_devices():
        for port in sorted((device / "ports").iterdir()) if (device / "ports").is_dir() else []:
            yield _port(f"{device.name}:{port.name}", port, using, said)


def _transport(name: str, found: Mapping[str, Any]) -> Finding:
    area, text = f"transport {name}", str(found["text"])
    if found["usable"]:
        return Finding(area, "ok", text or "usable")
    if text.startswith("not in RDMATENSOR_TRANSPORTS"):
        return Finding(area, "ok", text)
    if name != "verbs" or kernel_devices():
        return Finding(area, "fail", text, "see its ports below" if name == "verbs" else "")
    consequence = "other machines are reached over TCP only"
    if "not installed" in text:
        return Finding(
            area, "warn", f"{text}: {consequence}", "apt-get install libibverbs1 ibverbs-providers"
        )
    return Finding(area, "warn", f"{text}: {consequence}", _TRY)


def kernel_devices() -> list[Path]:
    """Return the RDMA devices of the kernel, whether or not this process may use them."""
    return sorted(_FOLDER.iterdir()) if _FOLDER.is_dir() else []


def _port(name: str, port: Path, using: Mapping[str, Any], said: Sequence[str]) -> Finding:
    """Report a port. `using` is the core's report on the transport, and `said` its log."""
    chosen = using["usable"] and str(using["text"]).startswith(f"{name} ")
    state = _read(port / "state").partition(": ")[2] or "of unknown state"
    facts = f"{state}, {_read(port / 'link_layer')}, {_read(port / 'rate')}"
    gid = re.search(r"GID (\d+) ", str(using["text"])) if chosen else None
    details = [
        *_gids(name, port, int(gid[1]) if gid else None, said),
        *([_ORDER] if chosen else []),
    ]
    if chosen:
        return Finding(f"port {name}", "ok", f"{facts}: this port is used", "", tuple(details))
    device = name.partition(":")[0]
    about = [line for line in said if line.startswith((f"{name} ", f"{device} "))]
    why = about[0] if about else str(using["text"])
    state_of_it: Any = "ok" if using["usable"] else "fail"
    remedy = "" if using["usable"] else _remedy(why, port)
    return Finding(f"port {name}", state_of_it, f"{facts}: not used, {why}", remedy, tuple(details))


def _remedy(why: str, port: Path) -> str:
    if " is down" in why or "initializing" in why:
        netdevs = sorted({name for _, _, _, name in _table(port) if name})
        if netdevs:
            return f"ip link set {netdevs[0]} up"
        return "rdma link   (is the cable in? InfiniBand needs a subnet manager: opensm)"
    if "/dev/infiniband" in why:
        return "docker run --device=/dev/infiniband --cap-add=IPC_LOCK --ulimit memlock=-1 ..."
    if "ib_uverbs" in why:
        return "modprobe ib_uverbs"
    if "no driver" in why:
        return "apt-get install ibverbs-providers"
    if "DEVICE" in why or "GID_INDEX" in why:
        return "unset RDMATENSOR_DEVICE RDMATENSOR_GID_INDEX   (or correct them)"
    return "docs/troubleshooting.md"


def _gids(name: str, port: Path, chosen: int | None, said: Sequence[str]) -> list[str]:
    """Return the GIDs of a port, each with the reason from `said` if the core did not choose it."""
    passed_over = re.compile(rf"GID (\d+) of {re.escape(name)}, \S+, is passed over: (.*)")
    why = {int(match[1]): match[2] for line in said if (match := passed_over.fullmatch(line))}
    if chosen is not None:
        why[chosen] = "chosen"
    return [
        f"GID {index} {address}, {kind}{f' on {netdev}' if netdev else ''}"
        f"{f': {why[index]}' if index in why else ''}"
        for index, address, kind, netdev in _table(port)
    ]


def _table(port: Path) -> list[tuple[int, str, str, str]]:
    """Return the index, address, type and network interface of each GID that is not empty."""
    rows = []
    folder = port / "gids"
    for entry in sorted(folder.iterdir(), key=lambda e: int(e.name)) if folder.is_dir() else []:
        address = ipaddress.IPv6Address(_read(entry) or "::")
        # An entry without an interface identifier, such as fe80::, is empty.
        if int(address) & (1 << 64) - 1:
            kind = _read(port / "gid_attrs" / "types" / entry.name) or "unknown type"
            netdev = _read(port / "gid_attrs" / "ndevs" / entry.name)
            rows.append((int(entry.name), str(address.ipv4_mapped or address), kind, netdev))
    return rows


def _read(path: Path) -> str:
    """Return a line of sysfs; "" if the kernel refuses it, which happens in containers."""
    with contextlib.suppress(OSError):
        return path.read_text().strip()
    return ""
