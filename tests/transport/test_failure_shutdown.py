# SPDX-License-Identifier: Apache-2.0
"""Ends in the middle of something: forked children that live on, threads that post, processes that exit."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import rdmatensor
from support.ports import free_ports
from support.waits import AT_ONCE, lost, until


@pytest.mark.usefixtures("patient")
def test_forked_child_does_not_hide_the_death_of_its_parent(
    spawn: Any, device: rdmatensor.Device, note: Any
) -> None:
    """It has copies of all sockets: the peer would wait for an end of stream that does not come, and a
    successor could not listen where the parent did."""
    parent, port = spawn(device=False), free_ports(1)[0]
    parent.run(
        """
        device = rdmatensor.Device(port=port)
        region = device.allocate(4096, name='region')
        """,
        port=port,
    )
    address = parent.get("device.address")
    region = device.connect(address).region("region")
    parent.run("child = os.fork()\nif child == 0:\n    time.sleep(100)\n    os._exit(0)")
    child = parent.get("child")
    try:
        region.write(b"1").wait(20)
        begin = time.monotonic()
        parent.kill()
        until("the peer is not lost", lambda: lost(lambda: region.write(b"1").wait(20)))
        took = time.monotonic() - begin
        assert took < AT_ONCE
        with pytest.raises(rdmatensor.ConnectionLost) as caught:
            region.write(b"1")
        os.kill(child, 0)  # it lives
        successor = spawn(device=False)
        successor.run(
            "device = rdmatensor.Device(port=port)\nregion = device.allocate(64, name='region')",
            port=port,
        )
        device.connect(address).region("region").write(b"12345678").wait(20)
        assert successor.get("bytes(region.array[:8])") == b"12345678"
    finally:
        os.kill(child, signal.SIGKILL)
    note(
        "process killed, its forked child lives",
        caught.value,
        took,
        "a new process can take its port",
    )


# ---- Threads ------------------------------------------------------------------------------------------

STORM = """
def storm(address, delay):
    'Threads that do everything there is, while the device closes; how long that takes, and how they end.'
    device = rdmatensor.Device()
    remote = device.connect(address)
    region, local = remote.region('region'), device.allocate(4096)
    ends = []

    def silence():
        try:
            device.next_notification(0.05)
        except rdmatensor.DeadlineExceeded:
            pass

    actions = [
        lambda: region.write(local.array),
        lambda: region.write(bytes(100), 4096).wait(20),
        lambda: region.read(0, 8, 20),
        lambda: remote.notify(bytes(50)).wait(20),
        lambda: device.allocate(4096).close(),
        lambda: device.connect(address).close(),
        lambda: remote.region('region', 20),
        lambda: remote.allocate(8, timeout=20).close(),
        silence,
        device.stats,
    ]

    def repeat(action):
        try:
            while True:
                action()
        except (rdmatensor.Closed, rdmatensor.Cancelled,
                rdmatensor.ConnectionLost) as error:
            ends.append(f'{type(error).__name__}: {error}')

    threads = [threading.Thread(target=repeat, args=[each], daemon=True) for each in actions * 2]
    for thread in threads:
        thread.start()
    time.sleep(delay)
    begin = time.monotonic()
    device.close()
    took = time.monotonic() - begin
    for thread in threads:
        thread.join(20)
    return took, ends, len(threads)
"""


@pytest.mark.usefixtures("patient")
def test_threads_that_post_while_the_device_closes(
    spawn: Any, peer: Any, transport: str, note: Any
) -> None:
    peer.run("region = device.allocate(8192, name='region')")
    busy = spawn(device=False)
    busy.run(STORM)
    longest = 0.0
    for turn in range(2 if transport == "verbs" else 4):  # in a guest of the lab each takes long
        took, ends, threads = busy.get(
            "storm(address, delay)", address=peer.address, delay=0.05 * turn
        )
        assert len(ends) == threads, f"{threads - len(ends)} threads hang, or failed: {ends}"
        assert took < AT_ONCE
        longest = max(longest, took)
        peer.run("for _ in device.notifications(0): pass\nimport gc; gc.collect()")
    until("threads are left", lambda: busy.get("len(os.listdir('/proc/self/task'))") < 8)
    closed = next(end for end in ends if end.startswith("Closed"))
    note("threads post while the device closes", closed, longest, "the peer, and other devices")


def accepted(port: int) -> bool:
    """Whether a connection to a port of this machine was accepted: those that were not have no inode."""
    established = "01"
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            _, here, _, state, *_, inode = line.split()[:10]
            if int(here.split(":")[1], 16) == port and state == established and inode != "0":
                return True
    return False


@contextlib.contextmanager
def silent_stranger(address: str) -> Iterator[None]:
    """Connects to a device's port and says nothing."""
    import socket

    host, port = address.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=5):
        until("nobody answers", lambda: accepted(int(port)))
        yield


@pytest.mark.any_transport
@pytest.mark.usefixtures("patient")
def test_strangers_do_not_hold_up_the_end(transport: str) -> None:
    device = rdmatensor.Device()
    with silent_stranger(device.address):
        begin = time.monotonic()
        device.close()
        assert time.monotonic() - begin < AT_ONCE


# ---- Processes ----------------------------------------------------------------------------------------

BUSY = """
import contextlib, os, signal, socket, sys, threading, time
import rdmatensor

how, address = sys.argv[1:]
device = rdmatensor.Device()
local = device.allocate(1 << 16).array
remote = device.connect(address)
region = remote.region("region")
with contextlib.suppress(rdmatensor.Unsupported):
    view = region.map()
silent = socket.create_server(("127.0.0.1", 0))

def ignore(action):
    with contextlib.suppress(rdmatensor.RdmaError):
        while True:
            action()

waits = [
    lambda: device.next_notification(600),
    lambda: device.connect("127.0.0.1:%d" % silent.getsockname()[1], timeout=600),
    lambda: rdmatensor.Group(device, 0, 2, timeout=600),
    lambda: region.write(local).wait(600),
    lambda: remote.notify(bytes(1000)),
]
for wait in waits:
    threading.Thread(target=ignore, args=[wait], daemon=True).start()
if how == "handler":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))
signal.signal(signal.SIGINT, signal.default_int_handler)
time.sleep(1)
print("ready", flush=True)
if how == "return":
    sys.exit(0)
if how == "raise":
    raise RuntimeError("on purpose")
if how == "_exit":
    os._exit(5)
time.sleep(100)
"""
# By how the process is to end: the signal it gets, and its exit status.
ENDS = {
    "return": (0, 0),
    "raise": (0, 1),
    "_exit": (0, 5),
    "SIGTERM": (signal.SIGTERM, -signal.SIGTERM),
    "handler": (signal.SIGTERM, 3),
    "SIGINT": (signal.SIGINT, -signal.SIGINT),
    "SIGKILL": (signal.SIGKILL, -signal.SIGKILL),
}


def names_in_dev_shm() -> list[str]:
    """Of ours."""
    return [entry.name for entry in Path("/dev/shm").iterdir() if "rdmatensor" in entry.name]


def resources() -> list[int]:
    """Descriptors, threads, and mappings of shared memory, of this process."""
    gc.collect()
    counts = [len(list(Path(f"/proc/self/{name}").iterdir())) for name in ("fd", "task")]
    return [*counts, Path("/proc/self/maps").read_text().count("memfd:rdmatensor")]


@pytest.fixture
def short_queue(setting: Any) -> None:
    """Of notifications that nobody takes."""
    setting("NOTIFY_QUEUE_BYTES", "1M")


# Linux's SoftRoCE waits for up to 50 s for what uses a queue pair, and the process with it.
END_S = 120


def start(*words: str | Path) -> subprocess.Popen[str]:
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, *words], **pipes)


def end_all(running: dict[str, subprocess.Popen[str]]) -> None:
    """Each in its way, and without a word of a crash."""
    for process in running.values():
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
    for how, process in running.items():
        if ENDS[how][0]:
            process.send_signal(ENDS[how][0])
    for how, process in running.items():
        _, errors = process.communicate(timeout=END_S)
        assert process.returncode == ENDS[how][1], (how, errors)
        assert "Fatal" not in errors and "terminate called" not in errors, (how, errors)


# In a guest of the lab a Python takes many seconds to start.
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "ways",
    [
        ["handler"],
        pytest.param(sorted(ENDS.keys() - {"handler"}), marks=pytest.mark.any_transport),
    ],
    ids=["handler", "others"],
)
def test_processes_end_in_the_middle_of_everything(
    transport: str, short_queue: None, tmp_path: Path, ways: list[str]
) -> None:
    """Threads connect, join, wait, write and notify without end when the interpreter exits, or is killed."""
    script = tmp_path / "busy.py"
    script.write_text(textwrap.dedent(BUSY))
    with rdmatensor.Device() as device:
        region = device.allocate(1 << 20, name="region")
        with rdmatensor.Device() as first:
            first.connect(device.address)  # starts the threads that the device keeps
        before = resources()
        running = {how: start(script, how, device.address) for how in ways}
        try:
            end_all(running)
        finally:
            for process in running.values():
                process.kill()
        for peer in {note.source for note in device.notifications(0.5)}:
            peer.close()
        kept = [0]

        def given_back() -> bool:
            kept[:] = [now - then for now, then in zip(resources(), before, strict=True)]
            return max(kept) <= 0

        until("descriptors, threads or mappings are kept", given_back)
        assert region.array.nbytes == 1 << 20
    assert names_in_dev_shm() == []
