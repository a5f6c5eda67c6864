# SPDX-License-Identifier: Apache-2.0
"""Findings about limits and containers."""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ...softroce.native import may
from ...units import binary_size
from .fabric import kernel_devices
from .finding import Finding

_IPC_LOCK = 14  # bit of the capability, capability.h of the kernel
_RING_BYTES = 4 << 20  # of a connection, for notifications in one direction
_PEER_DESCRIPTORS = 3  # of a connection over shared memory, at each end
_FEW_PEERS = 64
_CONGESTION = Path("/proc/sys/net/ipv4/tcp_congestion_control")
_DOCKER = (
    "docker run --device=/dev/infiniband --cap-add=IPC_LOCK --ulimit memlock=-1 --network=host ..."
)


def findings(report: Mapping[str, Any]) -> Iterator[Finding]:
    """Report on this machine. `report` is the result of the probe, {} if it failed."""
    verbs = bool(report.get("transports", {}).get("verbs", {}).get("usable"))
    yield memlock(verbs, report)
    yield descriptors()
    if report.get("transports", {}).get("tcp", {}).get("usable"):
        yield from congestion()
    if kind := container():
        yield _in_container(kind)
    yield memory(report)
    if "cuda" in report:
        yield cuda(report["cuda"])


def memlock(verbs: bool, report: Mapping[str, Any]) -> Finding:
    """Report whether the limit of locked memory is enough for registering, which only RDMA needs."""
    limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    text = "no limit" if limit == resource.RLIM_INFINITY else binary_size(limit)
    left = report.get("registrable")
    if not verbs:
        return Finding("memlock", "ok", f"{text}; without RDMA nothing is locked")
    if left is None:
        exempt = "" if limit == resource.RLIM_INFINITY else ", which CAP_IPC_LOCK lifts"
        return Finding("memlock", "ok", f"{text}{exempt}")
    # A connection registers the rings of both directions.
    needed = 2 * _RING_BYTES
    remedy = "ulimit -l unlimited   (systemd: LimitMEMLOCK=infinity; docker: --ulimit memlock=-1)"
    state = f"{text}, of which {binary_size(left)} are free"
    if left < needed:
        text = f"{state}: one connection over RDMA locks about {binary_size(needed)}"
        return Finding("memlock", "fail", text, remedy)
    wanted = _setting(report, "ARENA_LIMIT") or _memory_limit() * 3 // 4
    if left < wanted:
        text = f"{state}: the tensors of a TensorFlow server may take {binary_size(wanted)}"
        text += " (RDMATENSOR_ARENA_LIMIT)"
        return Finding("memlock", "warn", text, remedy)
    return Finding("memlock", "ok", state)


def cuda(found: Mapping[str, str]) -> Finding:
    """Report whether tensors in the memory of NVIDIA's GPUs can be used."""
    why_not = found["why_not"]
    if not why_not:
        unshared = found["not_shared"]
        how = (
            f"; peers on this host use tcp: {unshared}"
            if unshared
            else "; shared with peers on this host"
        )
        return Finding("cuda", "ok", found["text"] + how)
    if "is not installed" in why_not:  # as on every machine without such a GPU
        return Finding("cuda", "ok", f"none: {why_not}")
    return Finding("cuda", "warn", why_not, "nvidia-smi   (tells whether the driver works)")


def descriptors() -> Finding:
    """Report whether the limit of open files is enough, because each connection needs some."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError):
        used = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
        peers = max(0, soft - used) // _PEER_DESCRIPTORS
        text = f"the limit is {soft}: enough for about {peers} connections over shared memory"
        if peers < _FEW_PEERS:
            most = "unlimited" if hard == resource.RLIM_INFINITY else hard
            return Finding("open files", "warn", text, f"ulimit -n {most}")
        return Finding("open files", "ok", text)
    return Finding("open files", "ok", f"the limit is {soft}")


def congestion() -> Iterator[Finding]:
    """Report whether new connections over TCP use congestion control that suits nearby hosts."""
    with contextlib.suppress(OSError):  # a container may hide it
        name = _CONGESTION.read_text().strip()
        if name != "bbr":
            yield Finding("congestion control", "ok", name)
            return
        text = (
            "bbr, which sends by a clock: cubic moves up to twice as much between nearby hosts "
            "(docs/networks.md)"
        )
        remedy = (
            "ip route change NETWORK dev DEVICE congctl cubic   (for connections to that network)"
        )
        yield Finding("congestion control", "warn", text, remedy)


def container() -> str:
    """Return the kind of container; "" outside one."""
    if "KUBERNETES_SERVICE_HOST" in os.environ:
        return "Kubernetes"
    if Path("/.dockerenv").exists():
        return "Docker"
    if Path("/run/.containerenv").exists():
        return "Podman"
    with contextlib.suppress(OSError):
        return Path("/run/systemd/container").read_text().strip()
    return ""


def _in_container(kind: str) -> Finding:
    passed = Path("/dev/infiniband").exists()
    devices = [each.name for each in kernel_devices()]
    if devices and not passed:
        text = f"{kind} has no /dev/infiniband, but the machine has {', '.join(devices)}"
        return Finding("container", "fail", text, _DOCKER)
    locks = "may" if may(_IPC_LOCK) else "may not"
    text = (
        f"{kind}; /dev/infiniband is {'there' if passed else 'not there'}; memory {locks} be locked beyond "
        f"the limit (CAP_IPC_LOCK); /dev/shm has {_shm()}, which rdmatensor does not use"
    )
    return Finding("container", "ok", text)


def memory(report: Mapping[str, Any]) -> Finding:
    """Report whether this process may use as much memory as its arena."""
    limit = _memory_limit()
    arena = _setting(report, "ARENA_LIMIT") if report else 0
    text = f"the limit is {binary_size(limit)}"
    if arena > limit:
        text += f", but RDMATENSOR_ARENA_LIMIT is {binary_size(arena)}: the process would be killed"
        return Finding("memory", "warn", text, f"export RDMATENSOR_ARENA_LIMIT={limit * 3 // 4}")
    return Finding("memory", "ok", text)


def _memory_limit() -> int:
    """Return the memory of the machine, or the limit of the control group if that is lower."""
    limit = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for name in ("memory.max", "memory/memory.limit_in_bytes"):  # version 2, version 1
        with contextlib.suppress(OSError, ValueError):
            limit = min(limit, int(Path("/sys/fs/cgroup", name).read_text()))
    return limit


def _shm() -> str:
    try:
        room = os.statvfs("/dev/shm")
    except OSError:
        return "nothing"
    return binary_size(room.f_blocks * room.f_frsize)


def _setting(report: Mapping[str, Any], name: str) -> int:
    """Return a numeric setting in force, in bytes."""
    return next(int(row["number"]) for row in report["settings"] if row["name"] == name)
