# SPDX-License-Identifier: Apache-2.0
"""Other users of this host: what they leave at a device's unix socket, and who is taken for its user."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

import rdmatensor
from security.devices import SECRET, Open, works
from security.strangers import (
    SOMEBODY,
    another_process,
    as_user,
    knock_with_descriptors,
    knows_nobody,
)
from support import tools
from support.bootstrap import Line, Meeting

PATIENCE = 60.0
KNOCKS = 100  # as many as may wait to be let in
DEVICE = """
import sys, rdmatensor
with rdmatensor.Device() as device:
    print(device.address, flush=True)
    region = device.allocate(64, name="region")
    sys.stdin.readline()
print("closed", flush=True)
"""
# A kernel before 6.16: sockets cannot refuse descriptors.
OLDER_KERNEL = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <sys/socket.h>
int setsockopt(int fd, int level, int name, const void *value, socklen_t size) {
  static int (*real)(int, int, int, const void *, socklen_t);
  if (level == SOL_SOCKET && name == 83) {
    errno = ENOPROTOOPT;
    return -1;
  }
  if (!real) real = dlsym(RTLD_NEXT, "setsockopt");
  return real(fd, level, name, value, size);
}
"""


@pytest.fixture(scope="session")
def older_kernel(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A library, to be loaded into a device's process, that makes the kernel look older."""
    folder = tmp_path_factory.mktemp("older")
    source, library = folder / "older.c", folder / "older.so"
    source.write_text(OLDER_KERNEL)
    subprocess.run(
        [tools.compiler(), "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True
    )
    return str(library)


@pytest.fixture(params=["this kernel", "an older kernel"])
def kernel(request: pytest.FixtureRequest) -> dict[str, str]:
    """The environment in which a device finds such a kernel."""
    if request.param == "this kernel":
        return {}
    return {"LD_PRELOAD": request.getfixturevalue("older_kernel")}


class Listening:
    """A device in a process of its own."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdin is not None and process.stdout is not None
        self.process, self._in, self._out = process, process.stdin, process.stdout
        self.address = self._out.readline().strip()

    def local_name(self) -> str:
        line = Line(self.address)
        try:
            return str(Meeting(line, SECRET).hello()["local_name"])
        finally:
            line.close()

    def close(self) -> str:
        """What it says when its device is closed."""
        try:
            return self.process.communicate("\n", timeout=PATIENCE)[0]
        except subprocess.TimeoutExpired:
            return "it hangs"


@contextmanager
def listening(environment: dict[str, str], user: int | None = None) -> Iterator[Listening]:
    with subprocess.Popen(
        [sys.executable, "-c", DEVICE],
        env={**os.environ, "RDMATENSOR_TRANSPORTS": "shm", **environment},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        user=user,
    ) as process:
        try:
            yield Listening(process)
        finally:
            process.kill()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_descriptors_of_another_user(open_device: Open, kernel: dict[str, str]) -> None:
    """Closing them may block for as long as their sender likes: none gets as far as the device."""
    ours = open_device(SECRET)
    secret_file = rdmatensor.config.get("SECRET_FILE")
    with ExitStack() as ends:
        theirs = ends.enter_context(
            listening({**kernel, "RDMATENSOR_SECRET_FILE": str(secret_file)})
        )
        act = knock_with_descriptors(theirs.local_name(), KNOCKS)
        os.kill(theirs.process.pid, signal.SIGSTOP)  # so that it closes last
        outcome = ends.enter_context(another_process(as_user(SOMEBODY, act)))
        os.kill(theirs.process.pid, signal.SIGCONT)
        remote = ours.connect(theirs.address, timeout=PATIENCE)
        assert remote.transport == "shm"
        remote.region("region").write(b"1").wait()
        remote.close()
        assert theirs.close() == "closed\n"
        assert outcome in ("[Errno 1] Operation not permitted", "[Errno 13] Permission denied")


# ---- User namespaces ------------------------------------------------------------------------------------


def open_with_region() -> str:
    """The address of a device that lasts as long as this process."""
    device = rdmatensor.Device()
    device.allocate(64, name="region").array[:] = ord("s")
    _kept.append(device)
    return device.address


_kept: list[rdmatensor.Device] = []


def local_name(address: str) -> str:
    line = Line(address)
    try:
        return str(Meeting(line).hello()["local_name"])
    finally:
        line.close()


def get_in(address: str) -> str:
    """Tries to be let in over the unix socket of the device there."""
    name = local_name(address)
    if not name:
        return "it has no unix socket"
    try:
        Meeting(Line(name)).hello()
        return "let in"
    except (OSError, EOFError) as error:
        return f"kept out: {error!r}"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_users_that_a_namespace_does_not_know(open_device: Open) -> None:
    """All of them have one number there, and so has who opened the device."""
    open_device()  # the settings
    opens = as_user(SOMEBODY, knows_nobody(open_with_region))
    with ExitStack() as ends:
        address = ends.enter_context(another_process(opens))
        if "Errno" in address:
            pytest.skip(f"no user namespaces here: {address}")
        visits = as_user(SOMEBODY + 1, lambda: get_in(address))
        outcome = ends.enter_context(another_process(visits))
        assert outcome == "it has no unix socket" or outcome.startswith("kept out"), outcome


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_the_user_of_that_number(open_device: Open) -> None:
    """Where every user is known, nobody (65534) is a user like others."""
    nobody = int(Path("/proc/sys/kernel/overflowuid").read_text())
    if Path("/proc/self/uid_map").read_text().split() != ["0", "0", str(2**32 - 1)]:
        pytest.skip("the tests run in a user namespace")
    open_device()

    def meet() -> bool:
        with rdmatensor.Device() as ours, rdmatensor.Device() as theirs:
            return works(ours, theirs)

    with another_process(as_user(nobody, meet)) as outcome:
        assert outcome == "True"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_devices_of_a_namespace_that_knows_nobody_are_told(open_device: Open) -> None:
    open_device()

    def meet() -> bool:
        with rdmatensor.Device() as ours, rdmatensor.Device() as theirs:
            return works(ours, theirs)

    with another_process(as_user(SOMEBODY, knows_nobody(meet))) as outcome:
        if "Errno" in outcome:
            pytest.skip(f"no user namespaces here: {outcome}")
        assert "stands for everybody whom it does not know" in outcome, outcome
