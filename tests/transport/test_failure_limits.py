# SPDX-License-Identifier: Apache-2.0
"""What the system refuses: descriptors, files of some size, room in /dev/shm, system calls."""

from __future__ import annotations

import errno
import os
import platform
import time
from typing import Any

import pytest

import rdmatensor
from support.waits import AT_ONCE

# In a peer. A limit of descriptors is one of their numbers, and there may be holes below.
DESCRIPTORS = """
import contextlib, resource

def used():
    numbers = [int(name) for name in os.listdir('/proc/self/fd')]
    return [number for number in numbers if os.path.exists(f'/proc/self/fd/{number}')]

@contextlib.contextmanager
def room_for(count):
    'This process may open so many more descriptors.'
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    numbers, limit = used(), 0
    while limit - sum(number < limit for number in numbers) < count:
        limit += 1
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)

def attempts(action):
    'How an action ends where 0, 1, 2, ... more may be opened, until it works; what is kept between.'
    ends, kept = [], []
    for count in range(64):
        before, begin = len(used()), time.monotonic()
        with room_for(count):
            try:
                made = action()
            except rdmatensor.RdmaError as error:
                took = time.monotonic() - begin
                ends.append((type(error).__name__, error.status, str(error), took))
                made = None
        if made is not None:
            made.close()
            return ends, kept
        end = time.monotonic() + 20  # for workers to end
        while len(used()) > before and time.monotonic() < end:
            time.sleep(0.01)
        kept.append(len(used()) - before)
    raise AssertionError('it never works')
"""


@pytest.fixture
def starved(spawn: Any) -> Any:
    """A peer without a device that can be kept from opening descriptors."""
    peer = spawn(device=False)
    peer.run(DESCRIPTORS)
    return peer


def check(ends: list[Any], kept: list[int], transport: str) -> None:
    """Every attempt ended at once, saying what to do, and left nothing behind."""
    assert len(ends) >= 2, ends
    for kind, _, text, took in ends:
        # A secret that cannot be read is a UsageError.
        assert kind in ("DeviceError", "Unsupported", "UsageError"), (kind, text)
        # libibverbs finds no device where it cannot read about it.
        assert "ulimit -n" in text or transport == "verbs", text
        assert took < AT_ONCE
    assert max(kept) <= 0, kept


@pytest.mark.any_transport
def test_no_descriptors_for_a_device(starved: Any, transport: str, note: Any) -> None:
    # libibverbs looks for its drivers once: those that it could not read then, a process never has.
    starved.run("rdmatensor.Device().close()")
    ends, kept = starved.get("attempts(rdmatensor.Device)")
    check(ends, kept, transport)
    kind, _, text, took = ends[0]
    note(
        "no file descriptors left",
        f"Device(): {kind}: {text}",
        took,
        "opening works once descriptors are free",
    )


def test_no_descriptors_to_connect(
    starved: Any, device: rdmatensor.Device, transport: str, note: Any
) -> None:
    device.allocate(4096, name="region").array[:] = 1
    starved.run(
        "device = rdmatensor.Device()\nkept = device.connect(address)", address=device.address
    )
    starved.run("region = kept.region('region')")
    ends, left = starved.get("attempts(lambda: device.connect(address))", address=device.address)
    check(ends, left, transport)
    kind, _, text, took = ends[0]
    note("no file descriptors left", f"connect: {kind}: {text}", took, "existing connections")
    starved.run("region.write(b'12345678').wait(20)\nassert region.read()[9] == 1")
    assert device.allocate(1, name="fresh").nbytes == 1
    ends, left = starved.get("attempts(lambda: kept.region('fresh'))")
    for kind, _, text, _ in ends:  # over verbs nothing is opened
        assert kind == "DeviceError" and "ulimit -n" in text, text
    assert max(left, default=0) <= 0
    assert starved.get("kept.up")


@pytest.mark.any_transport
@pytest.mark.usefixtures("patient")
def test_listener_without_descriptors_keeps_its_peers_and_recovers(
    starved: Any, device: rdmatensor.Device, transport: str, note: Any
) -> None:
    starved.run("device = rdmatensor.Device()\nregion = device.allocate(4096, name='region')")
    address = starved.get("device.address")
    remote = device.connect(address)
    region = remote.region("region")
    starved.run("room = room_for(0)\nroom.__enter__()\ncpu = time.process_time()")
    begin = time.monotonic()
    with pytest.raises(rdmatensor.RdmaError) as caught:
        device.connect(address, timeout=2)
    took = time.monotonic() - begin
    assert isinstance(caught.value, rdmatensor.DeadlineExceeded | rdmatensor.ConnectionFailure)
    assert took < AT_ONCE
    region.write(b"12345678").wait(20)
    remote.notify(b"still there").wait(20)
    assert starved.get("device.next_notification(20).payload") == b"still there"
    starved.run("cpu = time.process_time() - cpu\nroom.__exit__(None, None, None)")
    if transport == "shm":  # in an emulated guest time that others took counts, too
        assert starved.get("cpu") < 1, "it looked again and again"
    device.connect(address, timeout=20).region("region")
    note(
        "no file descriptors left",
        f"connecting to a process without any: {type(caught.value).__name__}: {caught.value}",
        took,
        "its connections; it can be connected to once it has some",
    )


@pytest.mark.any_transport
def test_file_size_limit_is_an_error(spawn: Any, transport: str, note: Any) -> None:
    """Shared memory is a file; a process that makes one too large is killed."""
    peer = spawn({"RDMATENSOR_TEST_RING_BYTES": "65536"})
    peer.run(
        """
        import resource
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, before[1]))
        begin = time.monotonic()
        try:
            device.allocate(2 << 20)
        except rdmatensor.DeviceError as error:
            outcome = (error.status, str(error), time.monotonic() - begin)
        small = device.allocate(1 << 19, name='small')
        """
    )
    status, text, took = peer.get("outcome")
    assert status == "NO_MEMORY"
    assert "2097152 bytes" in text and "ulimit -f unlimited" in text
    with rdmatensor.Device() as other:
        other.connect(peer.address).region("small").write(b"1").wait(20)
    if transport == "shm":
        note("file size limit", f"allocate: DeviceError: {text}", took, "smaller regions")


def test_only_verbs_lock_memory(spawn: Any, transport: str, note: Any) -> None:
    peer = spawn(device=False)
    peer.run(
        """
        import resource
        if os.environ['RDMATENSOR_TRANSPORTS'] != 'verbs':
            resource.setrlimit(resource.RLIMIT_MEMLOCK, (0, 0))
        device = rdmatensor.Device()
        region = device.allocate(64 << 20, name='region')
        lines = open('/proc/self/status').read().splitlines()
        locked = {line.split()[0]: int(line.split()[1]) for line in lines if line[:4] in ('VmLc', 'VmPi')}
        """
    )
    if transport != "verbs":
        assert peer.get("locked") == {"VmLck:": 0, "VmPin:": 0}
        note("memlock refused", "nothing: no memory is locked", None, "everything")
    else:
        assert peer.get("locked")["VmPin:"] >= 64 << 10


# Mounts a /dev/shm of one page, and fills it, for this process alone.
FULL = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
CLONE_NEWNS, MS_REC, MS_PRIVATE = 0x20000, 0x4000, 1 << 18

def fill():
    if libc.unshare(CLONE_NEWNS) != 0:
        return os.strerror(ctypes.get_errno())
    libc.mount(None, b'/', None, MS_REC | MS_PRIVATE, None)
    if libc.mount(b'none', b'/dev/shm', b'tmpfs', 0, b'size=4096') != 0:
        return os.strerror(ctypes.get_errno())
    try:
        with open('/dev/shm/full', 'wb') as file:
            file.write(bytes(8192))
    except OSError as error:
        return 'full' if error.errno == 28 else str(error)
"""


@pytest.mark.any_transport
def test_full_dev_shm_does_not_matter(
    spawn: Any, device: rdmatensor.Device, transport: str, note: Any
) -> None:
    """Regions and rings are files in memory without a name: nothing of ours lies there."""
    peer = spawn(device=False)
    peer.run(FULL)
    how = peer.get("fill()")
    if how != "full" and os.geteuid() != 0:
        pytest.skip(f"only root may mount a small /dev/shm: {how}")
    assert how == "full"
    peer.run("device = rdmatensor.Device()\nregion = device.allocate(8 << 20, name='region')")
    region = device.connect(peer.get("device.address")).region("region")
    region.write(bytes(range(256)) * 4096, 1 << 20).wait(20)
    assert peer.get("bytes(region.array[(1 << 20) : (1 << 20) + 256])") == bytes(range(256))
    if transport == "shm":
        note("no room in /dev/shm", "nothing: rdmatensor keeps no file there", None, "everything")


# What the profiles of containers and services (seccomp) refuse, by machine.
CALLS = {
    "x86_64": {"memfd_create": 319, "eventfd2": 290, "pidfd_open": 434, "process_vm_readv": 310}
    | {"sendmsg": 46, "timerfd_create": 283, "ftruncate": 77, "clone3": 435, "seccomp": 317},
    "aarch64": {"memfd_create": 279, "eventfd2": 19, "pidfd_open": 434, "process_vm_readv": 270}
    | {"sendmsg": 211, "timerfd_create": 85, "ftruncate": 46, "clone3": 435, "seccomp": 277},
}
# In a peer without a device. Each call is refused in a child of its own.
REFUSING = """
import asyncio, ctypes, signal, struct
from rdmatensor import Access

def refuse(call, error):
    'Lets this system call of any thread fail.'
    rows = [(0x20, 0, 0, 0), (0x15, 0, 1, call), (6, 0, 0, 0x50000 | error), (6, 0, 0, 0x7FFF0000)]
    rules = ctypes.create_string_buffer(b''.join(struct.pack('HBBI', *row) for row in rows))
    program = struct.pack('HxxxxxxQ', len(rows), ctypes.addressof(rules))
    libc = ctypes.CDLL(None)
    assert libc.prctl(38, 1, 0, 0, 0) == 0  # PR_SET_NO_NEW_PRIVS
    assert libc.syscall(calls['seccomp'], 1, 1, program) == 0  # a filter, for all threads

async def wait(ours, remote):
    waiting = asyncio.ensure_future(ours.anext_notification(20))
    await asyncio.sleep(0)
    await remote.notify(b'x')
    await waiting

def use():
    with rdmatensor.Device() as ours, rdmatensor.Device() as theirs:
        remote = theirs.connect(ours.address, timeout=20)
        ours.allocate(4096, name='region').array[:] = 1
        region = remote.region('region')
        region.write(bytes(100)).wait(20)
        assert region.read(timeout=20).sum() == 3996
        remote.allocate(4096, timeout=20).close()
        asyncio.run(wait(ours, remote))
        ours.register(np.ones(10), Access.READ, 'plain')
        assert remote.region('plain').read(timeout=20).view('f8').sum() == 10

def outcome(call, error):
    read, write = os.pipe()
    child = os.fork()
    if not child:
        signal.alarm(60)
        end = b'crashed'
        try:
            refuse(call, error)
            use()
            end = b'works'
        except rdmatensor.RdmaError as caught:
            end = f'{type(caught).__name__}: {caught}'.encode()
        except BaseException as caught:
            end = f'untyped: {caught!r}'.encode()
        finally:
            os.write(write, end)
            os._exit(0)
    os.close(write)
    with os.fdopen(read, 'rb') as file:
        text = file.read().decode()
    status = os.waitpid(child, 0)[1]
    return text if status == 0 else f'status {status} {text}'
"""
TYPED = ("works", "DeviceError", "Unsupported", "ConnectionLost", "ConnectionRefused")


@pytest.mark.parametrize(
    "error", [errno.EPERM, pytest.param(errno.ENOSYS, marks=pytest.mark.any_transport)]
)
def test_refused_system_calls_are_typed_errors(spawn: Any, error: int) -> None:
    calls = CALLS.get(platform.machine())
    if calls is None:
        pytest.skip("the numbers of system calls are another machine's")
    peer = spawn(device=False)
    peer.run(REFUSING, calls=calls)
    for name, number in calls.items():
        text = peer.get("outcome(number, error)", number=number, error=error)
        assert text.startswith(TYPED), (name, text)
        if name in ("pidfd_open", "process_vm_readv") and text != "works":
            assert text.startswith("Unsupported"), (name, text)
            assert "another transport" in text
