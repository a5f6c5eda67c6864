# SPDX-License-Identifier: Apache-2.0
"""A real OpenSSH server of a test."""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from support.ports import free_ports


@contextmanager
def server(folder: Path) -> Iterator[list[str]]:
    """Runs a server at 127.0.0.1, with keys in `folder`; the options of ssh for it. Skips without one."""
    program = shutil.which("sshd") or shutil.which("/usr/sbin/sshd")
    if not program or not shutil.which("ssh"):
        pytest.skip("no OpenSSH server: apt install openssh-server")
    folder.chmod(0o700)
    for name in ("host", "user"):
        key = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)]
        subprocess.run(key, check=True, timeout=30)
    (port,) = free_ports(1)
    options = {
        "HostKey": folder / "host",
        "AuthorizedKeysFile": folder / "user.pub",
        "ListenAddress": f"127.0.0.1:{port}",
        "PidFile": "none",
        "UsePAM": "no",
        "StrictModes": "no",
    }
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)  # OpenSSH insists on it
    words = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
    with subprocess.Popen([program, "-D", "-f", "/dev/null", *words]) as process:
        try:
            _await_port(port)
            user = {"IdentityFile": folder / "user", "UserKnownHostsFile": folder / "known"}
            quiet = {"StrictHostKeyChecking": "no", "LogLevel": "ERROR", "IdentitiesOnly": "yes"}
            more = {**user, **quiet, "Port": port, "User": getpass.getuser()}
            yield [f"-o{name}={value}" for name, value in more.items()]
        finally:
            process.kill()


def _await_port(port: int) -> None:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.05)
    raise AssertionError("the test's sshd does not listen")
