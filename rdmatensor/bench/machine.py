# SPDX-License-Identifier: Apache-2.0
"""The machine and the software that a benchmark ran on."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

PACKAGES = (
    *("rdmatensor", "tensorflow", "tensorflow-cpu", "numpy", "cffi"),
    *("nixl", "mooncake-transfer-engine", "torch", "mpi4py", "scikit-learn"),
)


@dataclass(frozen=True)
class Environment:
    """Loads are one-minute averages; `mtu` is 0 where there is none."""

    host: str
    processor: str
    cores: int
    memory_bytes: int
    kernel: str
    python: str
    versions: dict[str, str]
    load_before: float
    load_after: float | None = None
    transport: str = ""
    device: str = ""
    mtu: int = 0
    commit: str = ""

    @classmethod
    def here(
        cls,
        *,
        transport: str = "",
        device: str = "",
        mtu: int = 0,
        versions: Mapping[str, str] = {},
    ) -> Environment:
        """This machine now. `versions` adds programs that are not Python packages."""
        return cls(
            host=platform.node(),
            processor=_processor(),
            cores=len(os.sched_getaffinity(0)),
            memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
            kernel=platform.release(),
            python=platform.python_version(),
            versions={**dict(_versions()), **versions},
            load_before=os.getloadavg()[0],
            transport=transport,
            device=device,
            mtu=mtu,
            commit=_commit(),
        )

    @property
    def summary(self) -> str:
        """One line for people."""
        parts = [
            f"{self.processor}, {self.cores} cores, {self.memory_bytes / 2**30:.0f} GiB",
            f"Linux {self.kernel}, Python {self.python}",
            *(f"{name} {version}" for name, version in self.versions.items()),
            self.transport,
            self.device,
            f"MTU {self.mtu}" if self.mtu else "",
            f"commit {self.commit}" if self.commit else "",
            f"load average {self.load_before:.1f}",
        ]
        after = "" if self.load_after is None else f" before, {self.load_after:.1f} after"
        return ", ".join(filter(None, parts)) + after


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith(("model name", "Model")):
            return line.partition(":")[2].strip()
    return platform.machine()


def _versions() -> Iterator[tuple[str, str]]:
    """The packages that are installed."""
    for package in PACKAGES:
        try:
            yield package, metadata.version(package)
        except metadata.PackageNotFoundError:
            continue


def _commit() -> str:
    """The commit in the current folder; "" if that does not hold this project, or if git is missing."""
    if not Path("csrc/include/rdmatensor.h").exists():
        return ""
    command = ["git", "describe", "--always", "--dirty"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip()
