# SPDX-License-Identifier: Apache-2.0
"""Idle cost, leaks, fork, garbage collection, and what is left open at exit."""

from __future__ import annotations

import gc
import os
import resource
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rdmatensor
from rdmatensor import RemoteDevice
from support import WHOLE
from support.nursery import state
from support.ports import free_ports
from support.usage import grown
from support.waits import AT_ONCE, PATIENCE, lost, until, until_it_ends

TRIES = 5


@pytest.mark.any_transport
def test_idle_process_uses_no_cpu(peer: Any, remote: RemoteDevice) -> None:
    """An open connection, nothing to do: both sides sleep.

    A busy machine, and more so a guest that it emulates, counts time that was not used, so wake-ups are
    counted too. A thread that polls uses the whole core, and one that is kept awake wakes often, in each try.
    """
    idle = "(time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw)"
    remote.notify(b"warm").wait()
    peer.run("import resource; device.next_notification(20)")
    time.sleep(0.5)  # what was begun ends
    for _ in range(TRIES):
        begin = eval(idle), peer.get(idle)
        time.sleep(2)  # the idle time that is measured
        end = eval(idle), peer.get(idle)
        used = [(now[0] - was[0], now[1] - was[1]) for now, was in zip(end, begin, strict=True)]
        if all(seconds < 0.2 and wakes < 60 for seconds, wakes in used):
            return
    raise AssertionError(f"seconds of 2 and wake-ups, here and in the peer: {used}")


def spent(wait: Callable[[], object]) -> tuple[float, int]:
    """Runs `wait()`; the seconds of processor time that this process used meanwhile, and how often one of its
    threads slept."""
    begin = resource.getrusage(resource.RUSAGE_SELF)
    wait()
    end = resource.getrusage(resource.RUSAGE_SELF)
    used = end.ru_utime + end.ru_stime - begin.ru_utime - begin.ru_stime
    return used, end.ru_nvcsw - begin.ru_nvcsw


def test_waiting_uses_no_cpu(device: rdmatensor.Device, remote: RemoteDevice) -> None:
    """A thread that waits wakes ten times a second, and uses little more than one that waits for nothing.

    That one is measured beside it, because what ten wake-ups cost depends on the machine.
    """
    slices, never = 20, threading.Event()

    def in_vain() -> None:
        with pytest.raises(rdmatensor.DeadlineExceeded):
            device.next_notification(slices / 10)

    for _ in range(TRIES):
        bare, _ = spent(lambda: [never.wait(0.1) for _ in range(slices)])
        used, slept = spent(in_vain)
        if used - bare < 0.06 and slept <= 2 * slices:
            return
    raise AssertionError(
        f"{used:.3f} s of 2 s while waiting, {bare:.3f} without; slept {slept} times"
    )


# In a peer.
CYCLE = """
import gc

def view(region):
    try:
        return region.map()
    except rdmatensor.Unsupported:
        return region.read()

def cycle(address):
    with rdmatensor.Device() as device:
        local = device.allocate(1 << 16)
        remote = device.connect(address)
        region = remote.region("region")
        region.write(b"12345678").wait()
        assert view(region)[:8].tobytes() == b"12345678"
        remote.allocate(4096).write(b"1").wait()
        remote.notify(b"note").wait()

def holdings():
    gc.collect()
    return {
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": len(os.listdir("/proc/self/task")),
        "mappings": len(open("/proc/self/maps").readlines()),
    }
"""


def test_nothing_leaks_over_many_connections(spawn: Any, transport: str) -> None:
    # One takes seconds in a guest of the lab.
    cycles = 15 if transport != "verbs" else 6 if WHOLE else 3
    server, client = spawn(device=False), spawn(device=False)
    for each in (server, client):
        each.run(CYCLE)
    server.run("device = rdmatensor.Device(); region = device.allocate(1 << 20, name='region')")
    address = server.get("device.address")

    def theirs() -> dict[str, int]:
        server.run("for _ in device.notifications(0.3): pass")
        return server.get("holdings()")

    def ours() -> dict[str, int]:
        return client.get("holdings()")

    def connect(times: int) -> None:
        for _ in range(times):
            client.run("cycle(address)", address=address)

    def more() -> list[dict[str, str]]:
        ends = [(measure, measure()) for measure in (ours, theirs)]
        connect(cycles)
        return [grown(measure, were, dict.fromkeys(were, cycles // 3), 5) for measure, were in ends]

    connect(2)
    # A leak goes on. What begins with its first use, such as a thread, may do so in any round.
    rounds = [more()]
    while any(rounds[-1]) and len(rounds) < 4:
        rounds.append(more())
    assert not any(rounds[-1]), rounds


@pytest.mark.any_transport
def test_device_restarted_a_hundred_times(device: rdmatensor.Device, spawn: Any) -> None:
    """In one process, on one port: each is another generation, and nothing stays of those before."""
    peer = spawn(device=False)
    port = free_ports(1)[0]
    count = "(len(os.listdir('/proc/self/fd')), len(os.listdir('/proc/self/task')))"
    seen, before = set(), (0, 0)
    for turn in range(100):
        peer.run(f"device = rdmatensor.Device(port={port}); memory = device.allocate(8, name='m')")
        remote = device.connect(peer.get("device.address"))
        region = remote.region("m")
        region.write(b"%8d" % turn).wait()
        assert peer.get("memory.array.tobytes()") == b"%8d" % turn
        peer.run("device.close(); del memory")
        until("the peer is not lost", lambda r=region: lost(lambda: r.write(b"too late").wait()))
        seen.add(remote.generation)
        if turn == 9:
            before = peer.get(count)
    assert len(seen) == 100

    def given_back() -> bool:
        return all(now <= then + 2 for then, now in zip(before, peer.get(count), strict=True))

    until(lambda: f"descriptors, threads: {before}, then {peer.get(count)}", given_back)


@pytest.mark.any_transport
def test_connections_leave_room_for_others(device: rdmatensor.Device, spawn: Any) -> None:
    """Far more connections, one after the other, than there is room for at once."""
    peer = spawn({"RDMATENSOR_CONNECTIONS": "8"})
    for turn in range(24):
        remote = device.connect(peer.address)
        remote.notify(immediate=turn).wait()
        assert peer.get("device.next_notification(20).immediate") == turn
        remote.close()
        peer.run("import gc; gc.collect()")


@pytest.mark.any_transport
def test_views_outlive_everything(transport: str) -> None:
    device = rdmatensor.Device()
    region = device.allocate((4, 4), "float32")
    array, raw = region.array, region.array.data
    array[:] = 7
    region.close()
    device.close()
    del region, device
    gc.collect()
    assert array.sum() == raw.cast("B").cast("f").tolist()[0] * 16 == 112


def test_regions_of_a_dropped_object_stay(device: rdmatensor.Device, peer: Any) -> None:
    device.allocate(64, name="kept").array[:] = 1
    gc.collect()
    peer.run(
        "total = int(device.connect(address).region('kept').read().sum())", address=device.address
    )
    assert peer.get("total") == 64


@pytest.mark.any_transport
def test_region_converts_to_numpy(device: rdmatensor.Device) -> None:
    region = device.allocate(4, "int32")
    region.array[:] = [1, 2, 3, 4]
    assert np.asarray(region).tolist() == [1, 2, 3, 4]
    assert np.shares_memory(np.asarray(region), region.array)
    assert region.nbytes == 16
    assert repr(region).startswith("<Region")
    if sys.version_info >= (3, 12):
        assert memoryview(region).tolist() == [1, 2, 3, 4]


@pytest.mark.any_transport
def test_unclosed_device_warns_and_is_closed(transport: str) -> None:
    def threads() -> int:
        return len(list(Path("/proc/self/task").iterdir()))

    before = threads()
    device = rdmatensor.Device()
    with pytest.warns(ResourceWarning, match="not closed"):
        del device
        gc.collect()
    until("its threads go on", lambda: threads() <= before)


def test_use_after_fork_is_an_error_in_the_child_only(
    peer: Any, remote: RemoteDevice, note: Any
) -> None:
    peer.run("region = device.allocate(64, name='region')")
    region = remote.region("region")
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        outcome = []
        try:
            for action in (
                lambda: region.write(b"1"),
                lambda: remote.notify(b"1"),
                lambda: remote.region("region"),
                lambda: remote._device.allocate(8),
                lambda: remote._device.stats(),
                lambda: remote._device.connect("127.0.0.1:1"),
                lambda: remote._device.next_notification(0),
            ):
                try:
                    action()
                    outcome.append("worked")
                except rdmatensor.UsageError as error:
                    outcome.append(error.status)
                    text = str(error)
            outcome.append(text)
            remote._device.close()
            del region, remote
            gc.collect()
            with rdmatensor.Device() as fresh:
                fresh.connect(peer.address).region("region").write(b"12345678").wait()
                outcome.append("fresh")
        except BaseException as error:
            outcome.append(repr(error))
        os.write(writer, ",".join(outcome).encode())
        os._exit(0)
    os.close(writer)
    assert until_it_ends(child), "the child hangs"
    outcome = os.read(reader, 10000).decode().split(",")
    os.close(reader)
    text = outcome.pop(7)
    assert outcome == ["FORKED"] * 7 + ["fresh"]
    assert peer.get("bytes(region.array[:8])") == b"12345678"
    region.write(b"87654321").wait()
    assert peer.get("bytes(region.array[:8])") == b"87654321"
    note(
        "fork",
        f"in the child: UsageError: {text}",
        None,
        "the parent; the child can open its own device",
    )


@pytest.mark.any_transport
def test_exit_without_closing_is_clean(peer: Any, transport: str, tmp_path: Path) -> None:
    """Everything open, transfers under way, views alive: the interpreter ends, quietly and soon."""
    peer.run("region = device.allocate(1 << 20, name='region')")
    script = tmp_path / "careless.py"
    script.write_text(
        textwrap.dedent(
            """
            import contextlib, sys, threading, rdmatensor
            device = rdmatensor.Device()
            local = device.allocate(1 << 16).array
            remote = device.connect(sys.argv[1])
            region = remote.region("region")
            with contextlib.suppress(rdmatensor.Unsupported):
                view = region.map()
            transfers = [remote.notify(bytes(1000)) for _ in range(10000)]
            def wait():
                with contextlib.suppress(rdmatensor.Closed):
                    device.next_notification(600)
            threading.Thread(target=wait, daemon=True).start()
            """
        )
    )
    done = subprocess.run(
        [sys.executable, str(script), peer.address],
        timeout=PATIENCE,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert peer.get("device.closed") is False


@pytest.mark.any_transport
def test_signals_reach_a_waiting_process(transport: str, tmp_path: Path) -> None:
    script = tmp_path / "waiting.py"
    script.write_text(
        "import signal, rdmatensor\n"
        # A background shell's commands have it ignored, and hand that on.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "with rdmatensor.Device() as device:\n"
        "    print('ready', flush=True)\n"
        "    device.next_notification(60)\n"
    )
    process = subprocess.Popen(
        [sys.executable, str(script)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    until("it does not wait", lambda: state(Path(f"/proc/{process.pid}")) == "S")
    begin = time.monotonic()
    process.send_signal(2)
    _, errors = process.communicate(timeout=PATIENCE)
    assert time.monotonic() - begin < AT_ONCE
    assert "KeyboardInterrupt" in errors
