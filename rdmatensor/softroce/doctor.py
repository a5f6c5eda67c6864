# SPDX-License-Identifier: Apache-2.0
"""`rdmatensor softroce doctor` shows what the lab needs and what this machine lacks."""

from __future__ import annotations

import contextlib
import ctypes.util
import os
import platform
import re
import resource
import shutil
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from . import cache, emulator, kernel, native, packages, qemu
from .errors import Unavailable
from .lab import MEMORY

KVM_GROUP = "usermod -aG kvm $USER, then log in again"
INSTALL = "apt-get install --no-install-recommends"


@dataclass(frozen=True)
class Check:
    """One line of the report."""

    what: str
    good: bool
    found: str
    package: str = ""  # the package that provides it
    remedy: str = ""  # what else to do about it


def native_checks() -> list[Check]:
    """Check what the running kernel's SoftRoCE needs."""
    device = native.existing()
    if device:
        found = f"{device.name} on {device.netdev}, {device.address}"
        return [Check("SoftRoCE device", True, found), memlock()]
    why_not = native.problem()
    release = platform.release()
    return [
        Check(
            f"kernel {release}",
            not why_not,
            why_not or "rdma_rxe can be used",
            remedy=module_remedy(release) if "rdma_rxe" in why_not else "",
        ),
        memlock(),
    ]


def module_remedy(release: str) -> str:
    """Return the command that installs rdma_rxe for this kernel, if there is one."""
    if packages.System.here().name == "ubuntu":
        return f"apt-get install linux-modules-extra-{release}"
    return ""


def memlock() -> Check:
    """Check how much memory a program may register."""
    limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[1]
    if limit == resource.RLIM_INFINITY or os.geteuid() == 0:
        return Check("memory lock limit", True, "none")
    enough = limit >= 1 << 26
    remedy = "" if enough else "raise `memlock` in /etc/security/limits.conf"
    return Check("memory lock limit", enough, f"{limit >> 10} KB", remedy=remedy)


def program(name: str, package: str) -> Check:
    """Check that a program is installed."""
    path = shutil.which(name)
    return Check(name, path is not None, path or "missing", package)


def qemu_checks() -> list[Check]:
    """Check what a virtual machine needs. It works if all checks pass."""
    return [
        machine_emulator(),
        program("setpriv", "util-linux"),
        program("rdma", "iproute2"),
        guest_kernel(),
        memory(),
    ]


def machine_emulator() -> Check:
    """Check for a QEMU."""
    here = emulator.installed()
    if here is None:
        return Check("QEMU", False, "not installed", emulator.PACKAGE)
    found = f"{here.version[0]}.{here.version[1]}"
    if here.sound or not qemu.kvm_problem():
        return Check("QEMU", True, found)
    with contextlib.suppress(Unavailable):
        newer = emulator.kept()
        if newer:
            return Check("QEMU", True, f"{found}; the lab uses {newer.version[0]} from the cache")
    if emulator.fetchable():
        return Check("QEMU", True, f"{found}; the first run fetches a newer one (15 MB)")
    return Check("QEMU", True, f"{found}: each guest gets one processor (several need 8.1)")


def guest_kernel() -> Check:
    """Check that a kernel is in the cache or can be fetched."""
    what = "guest kernel"
    try:
        folder = cache.folder()
    except Unavailable as error:
        return Check(what, False, str(error), remedy="export XDG_CACHE_HOME=/a/writable/folder")
    found = kernel.cached(folder)
    if found:
        return Check(what, True, f"{found.release}, in {folder}")
    if platform.machine() != "x86_64":
        return Check(what, False, f"{platform.machine()} is not supported, only x86_64")
    if not shutil.which("apt-get") or not shutil.which("dpkg-deb"):
        return Check(
            what, False, "not cached, and no apt to fetch it", remedy="use a Debian container"
        )
    return Check(what, True, "not cached; the first run fetches about 110 MB")


def memory() -> Check:
    """Check that a guest of the default size fits."""
    match = re.search(r"^MemAvailable:\s*(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE)
    available = int(match[1]) >> 10 if match else 0
    remedy = "" if available >= MEMORY else f"use --memory {available // 2}"
    return Check("memory", available >= MEMORY, f"{available} MB available", remedy=remedy)


def optional_checks() -> list[Check]:
    """Check what makes guests faster and what commands commonly use."""
    slow = qemu.kvm_problem()
    found = f"emulation is 10 to 20 times slower: {slow}" if slow else "usable"
    remedy = KVM_GROUP if "Permission denied" in slow else ""
    verbs = ctypes.util.find_library("ibverbs")
    provider = any(Path("/usr/lib").glob("*/libibverbs/librxe-rdmav*.so"))
    return [
        Check("KVM", not slow, found, remedy=remedy),
        Check("libibverbs", verbs is not None, verbs or "missing", "libibverbs1"),
        Check(
            "SoftRoCE provider", provider, "present" if provider else "missing", "ibverbs-providers"
        ),
        program("ibv_rc_pingpong", "ibverbs-utils"),
        program("tc", "iproute2"),
    ]


def examine() -> int:
    """Print the report and what to do. Returns 0 if `run` works, else 1."""
    groups = {
        "This kernel's SoftRoCE": native_checks(),
        "Virtual machine": qemu_checks(),
        "Optional": optional_checks(),
    }
    native_works = not native.problem()
    qemu_works = all(check.good for check in groups["Virtual machine"])
    console = Console(highlight=False)
    console.print(table(groups))
    missing = sorted(
        {
            check.package
            for name, checks in groups.items()
            for check in checks
            if check.package and not check.good and not (native_works and name == "Virtual machine")
        }
    )
    if missing:
        console.print(f"Install what is missing:\n  {INSTALL} {' '.join(missing)}", soft_wrap=True)
    if native_works:
        console.print("`rdmatensor softroce run` uses this kernel's SoftRoCE.")
    elif qemu_works:
        console.print("`rdmatensor softroce run` uses a virtual machine.")
    else:
        console.print("`rdmatensor softroce run` does not work here yet.")
    return 0 if native_works or qemu_works else 1


def table(groups: dict[str, list[Check]]) -> Table:
    """Lay out one line for each check below its group's heading."""
    result = Table(box=None, show_header=False, pad_edge=False)
    for heading, checks in groups.items():
        result.add_row(f"[bold]{heading}[/bold]")
        for check in checks:
            mark = "[green]yes[/green]" if check.good else "[yellow]no[/yellow]"
            remedy = "" if check.good or not check.remedy else f"\n→ {check.remedy}"
            result.add_row(f"  {check.what}", mark, check.found + remedy)
    return result
