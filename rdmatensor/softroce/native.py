# SPDX-License-Identifier: Apache-2.0
"""Use the running kernel's SoftRoCE: an existing device, or one made for the time of a command."""

from __future__ import annotations

import contextlib
import fcntl
import os
import platform
import re
import resource
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from . import cache
from .errors import DeadlineExceeded, Unavailable
from .qemu import LEASH

NETDEV = "rdmalab0"
DEVICE = "rxe0"
ADDRESS = "10.77.0.1"
_INFINIBAND = Path("/sys/class/infiniband")
_CAP_NET_ADMIN = 12
_TOOL_SECONDS = 30


@dataclass(frozen=True)
class Device:
    """An active SoftRoCE device and the IPv4 address of its network card."""

    name: str
    netdev: str
    address: str


def existing() -> Device | None:
    """Return an active device whose network card has an IPv4 address, or None."""
    for folder in sorted(_INFINIBAND.iterdir()) if _INFINIBAND.is_dir() else []:
        with contextlib.suppress(OSError):  # only rxe has `parent`, and a device may vanish
            netdev = (folder / "parent").read_text().strip()
            addresses = _output("ip", "-4", "-o", "addr", "show", "dev", netdev)
            match = re.search(r"\binet ([0-9.]+)", addresses)
            active = "ACTIVE" in (folder / "ports/1/state").read_text()
            if match and active:
                return Device(folder.name, netdev, match[1])
    return None


def problem() -> str:
    """Return why this kernel's SoftRoCE cannot be used, or "" if it probably can. Change nothing."""
    if existing():
        return ""
    for program in ("rdma", "ip"):
        if shutil.which(program) is None:
            return f"the program {program} is missing: apt-get install iproute2"
    if not _kernel_has_rxe():
        return f"the kernel {platform.release()} has no module rdma_rxe"
    if not may(_CAP_NET_ADMIN):
        return "creating a device needs CAP_NET_ADMIN: run as root, or ask root to run: " + HINT
    return ""


HINT = "modprobe rdma_rxe && rdma link add rxe0 type rxe netdev eth0"


def _kernel_has_rxe() -> bool:
    if Path("/sys/module/rdma_rxe").exists():
        return True
    if shutil.which("modprobe") is None:
        return False
    return subprocess.run(["modprobe", "-n", "-q", "rdma_rxe"], check=False).returncode == 0


def may(capability: int) -> bool:
    """Return whether this process has a capability, by its number in the kernel's capability.h."""
    match = re.search(r"^CapEff:\s*(\w+)", Path("/proc/self/status").read_text(), re.MULTILINE)
    return match is not None and bool(int(match[1], 16) >> capability & 1)


def _output(*command: str) -> str:
    """Return what a tool prints. Raises Unavailable if it fails."""
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=_TOOL_SECONDS,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"{' '.join(command)}: {error}") from error
    if done.returncode != 0:
        raise Unavailable(f"{' '.join(command)}: {done.stderr.strip() or done.returncode}")
    return done.stdout


@contextlib.contextmanager
def device(mtu: int) -> Iterator[Device]:
    """Provide a SoftRoCE device: an existing one, or a new one on a dummy network card with this MTU.

    The last concurrent user removes a new device. Raises Unavailable.
    """
    with (cache.folder() / "native.lock").open("w") as users:
        fcntl.flock(users, fcntl.LOCK_EX)
        found = existing()
        if found is None:
            found = _make(mtu)
        fcntl.flock(users, fcntl.LOCK_SH)
        try:
            yield found
        finally:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # This also removes what a killed run has left.
                if found.netdev == NETDEV:
                    _remove(found)


def _make(mtu: int) -> Device:
    why = problem()
    if why:
        raise Unavailable(f"this kernel's SoftRoCE cannot be used: {why}")
    if shutil.which("modprobe"):
        for module in ("rdma_rxe", "rdma_ucm"):
            subprocess.run(["modprobe", "-q", module], check=False)
    made = Device(DEVICE, NETDEV, ADDRESS)
    try:
        _output("ip", "link", "add", NETDEV, "type", "dummy")
        _output("ip", "link", "set", NETDEV, "mtu", str(mtu), "up")
        _output("ip", "addr", "add", f"{ADDRESS}/24", "dev", NETDEV)
        _output("rdma", "link", "add", DEVICE, "type", "rxe", "netdev", NETDEV)
    except BaseException:
        _remove(made)
        raise
    return made


def _remove(made: Device) -> None:
    for command in (("rdma", "link", "delete", made.name), ("ip", "link", "delete", made.netdev)):
        with contextlib.suppress(Unavailable):
            _output(*command)


def run(command: Sequence[str], env: Mapping[str, str], timeout: float | None) -> int:
    """Run a command with this process's output streams and return its exit status as a shell does.

    Raises DeadlineExceeded after `timeout` seconds and kills the command with its children.
    """
    lift_memlock()
    try:
        process = subprocess.Popen(
            [*LEASH, *command],
            env=dict(env),
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError as error:
        raise Unavailable(f"cannot start setpriv (util-linux): {error.strerror}") from error
    try:
        status = process.wait(timeout)
    except subprocess.TimeoutExpired as error:
        raise DeadlineExceeded(f"{command[0]} did not end in {timeout:g} s") from error
    finally:
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return 128 - status if status < 0 else status


def lift_memlock() -> None:
    """Raise the memory lock limit of this process and its children as far as possible."""
    hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)[1]
    for limit in (resource.RLIM_INFINITY, hard):
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_MEMLOCK, (limit, limit))
            return
