# SPDX-License-Identifier: Apache-2.0
"""Processes as the tests of the lab start and look for them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from rdmatensor.softroce import Host, Process
from support import WHOLE

# Emulated processors on busy machines are slow: deadlines are for what hangs. When all is well, nothing waits
# so long; and a test gets so much that its own deadlines, which tell more, come first.
PATIENCE = 300.0
TEST_SECONDS = 4500.0 if WHOLE else 1800.0
# What the fixture of that name gives.
Softroce = Callable[..., subprocess.CompletedProcess[str]]


def command_line(*arguments: str) -> list[str]:
    """`rdmatensor softroce ARGUMENTS`, with this interpreter."""
    return [sys.executable, "-m", "rdmatensor", "softroce", *arguments]


def qemus_of(folder: Path) -> list[int]:
    """The QEMU processes whose command line names a folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if b"qemu" in words[0] and any(str(folder).encode() in word for word in words):
                found.append(int(entry.name))
    return found


def rping_server(host: Host, pings: int = 5) -> Process:
    """A server of rdma_cm connections that can be connected to, for so many pings."""
    server = host.start(["rping", "-s", "-a", host.address, "-C", str(pings)])
    listens = "until rdma resource show cm_id | grep -q LISTEN; do sleep 0.05; done"
    host.run(["sh", "-c", listens])
    return server
