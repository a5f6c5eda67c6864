# SPDX-License-Identifier: Apache-2.0
"""Writes from Python: rdmatensor, NIXL (over UCX) and the Mooncake Transfer Engine (over TCP), in turns.

With --verbs, both ends use an RDMA device of this machine, and Mooncake is left out. With --tcp, all use
TCP, over loopback, and as root between two network namespaces. Rivals that are not installed are reported,
with the command that installs them.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np

import rdmatensor
import rivals
from networks import LOOPBACK, Network, loopback_and_veth, missing_veth
from options import deliver, json_option, quick_option
from programs import first_line, started
from programs import run as run_program
from rdmatensor.bench import probe, record
from rdmatensor.bench.turns import in_turns

KB, MB = 1 << 10, 1 << 20
SIZES = (8, 512, 4 * KB, 64 * KB, MB, 16 * MB, 128 * MB)
QUICK_SIZES = (8, 4 * KB, 64 * KB, MB, 16 * MB)
TCP_SIZES = (4 * KB, MB, 64 * MB)
WARM_S = 0.3
PREFIX = "RDMATENSOR_"
OURS, NIXL, MOONCAKE = "rdmatensor", "NIXL", "Mooncake"
BANDWIDTH_FROM = 4 * KB
NIXL_TARGET = 3.0  # for small writes
TCP_TARGET = 1.2  # against NIXL; twice Mooncake's speed is wanted
MODULES = {
    NIXL: ("nixl", "pip install --no-deps nixl nixl-cu12"),
    MOONCAKE: ("mooncake", "pip install mooncake-transfer-engine-non-cuda"),
}
QUIET = {"UCX_LOG_LEVEL": "error", "NIXL_LOG_LEVEL": "ERROR", "RDMATENSOR_LOG_LEVEL": "error"}

Write = Callable[[], object]
Turn = Callable[[], list[float]]


def over_verbs(device: str, gid_index: int) -> None:
    """Make this process and those that it starts use one RDMA device."""
    os.environ.update(rivals.over_verbs(device, gid_index))
    rdmatensor.config.set("TRANSPORTS", "verbs")
    rdmatensor.config.set("DEVICE", device)


def over_tcp(network: Network, far: bool) -> dict[str, str]:
    """The environment in which the libraries use TCP at one end of the network."""
    return {**rivals.over_tcp(network.interface(far)), **network.over_tcp(far)}


def use(name: str, value: str) -> None:
    """Set a variable of the environment, or the setting of rdmatensor that it names, in this process."""
    os.environ[name] = value
    if name.startswith(PREFIX):
        rdmatensor.config.set(name.removeprefix(PREFIX), value)


def agent(name: str) -> Any:
    """NIXL's end of a connection, over UCX. It polls only while it waits."""
    from nixl._api import nixl_agent, nixl_agent_config  # type: ignore[import-not-found]

    return nixl_agent(name, nixl_agent_config(True, True, 0, backends=["UCX"]))


def why_no_agent(words: list[object]) -> str:
    """Why NIXL cannot use the device; "" if it can. NIXL may exit, so another process tries."""
    done = run_program([sys.executable, __file__, "--trial", *words], patience=120.0)
    return rivals.reason(done.output) if done.status else ""


def engine(host: str) -> Any:
    """Mooncake's end of a connection, at an address of this machine."""
    from mooncake.engine import TransferEngine  # type: ignore[import-not-found]

    made = TransferEngine()
    if made.initialize(host, "P2PHANDSHAKE", "tcp", ""):
        raise SystemExit("the engine of Mooncake does not start")
    return made


def serve(library: str, nbytes: int, host: str) -> None:
    """Offer `nbytes` bytes, print where they are, and run until the parent process ends."""
    parent = os.getppid()
    memory = np.zeros(nbytes, np.uint8)
    about: dict[str, Any] = {"address": memory.ctypes.data}
    if library == OURS:
        device = rdmatensor.Device(name="peer")
        device.allocate(nbytes, name="region").array[:] = 0
        about["device"] = device.address
    elif library == NIXL:
        there = agent("peer")
        there.register_memory([(memory.ctypes.data, nbytes, 0, "")], mem_type="DRAM")
        about["metadata"] = there.get_agent_metadata().hex()
    else:
        there = engine(host)
        there.register_memory(memory.ctypes.data, nbytes)
        about["session"] = f"{host}:{there.get_rpc_port()}"
    print("here " + json.dumps(about), flush=True)
    while os.getppid() == parent:
        time.sleep(1)


class Ours:
    """Writes with rdmatensor."""

    def __init__(self, about: dict[str, Any], nbytes: int) -> None:
        self._device = rdmatensor.Device(name="bench")
        self._region = self._device.connect(about["device"]).region("region")
        self._memory = self._device.allocate(nbytes).array
        self._memory[:] = 1

    def write(self, nbytes: int) -> Write:
        """What writes `nbytes` bytes and waits until they are complete."""
        data = self._memory[:nbytes]
        return lambda: self._region.write(data).wait()


class Nixl:
    """Writes with NIXL: one prepared transfer, which is posted repeatedly."""

    def __init__(self, about: dict[str, Any], nbytes: int) -> None:
        self._agent = agent("bench")
        self._memory = np.ones(nbytes, np.uint8)
        self._agent.register_memory([(self._memory.ctypes.data, nbytes, 0, "")], mem_type="DRAM")
        self._peer = self._agent.add_remote_agent(bytes.fromhex(about["metadata"]))
        self._there = about["address"]

    def write(self, nbytes: int) -> Write:
        """As in Ours. RuntimeError if NIXL reports a failure."""
        ends = [
            self._agent.get_xfer_descs([(address, nbytes, 0)], mem_type="DRAM")
            for address in (self._memory.ctypes.data, self._there)
        ]
        transfer = self._agent.initialize_xfer("WRITE", *ends, self._peer)

        def write() -> None:
            state = self._agent.transfer(transfer)
            while state != "DONE":
                if state == "ERR":
                    raise RuntimeError("the transfer of NIXL failed")
                state = self._agent.check_xfer_state(transfer)

        return write


class Mooncake:
    """Writes with Mooncake over TCP, because it has no shared memory."""

    def __init__(self, about: dict[str, Any], nbytes: int) -> None:
        self._engine = engine(about["near"])
        self._memory = np.ones(nbytes, np.uint8)
        self._engine.register_memory(self._memory.ctypes.data, nbytes)
        self._about = about

    def write(self, nbytes: int) -> Write:
        """As in Ours. RuntimeError if Mooncake reports a failure."""
        here, there = self._memory.ctypes.data, self._about["address"]

        def write() -> None:
            if self._engine.transfer_sync_write(self._about["session"], here, there, nbytes):
                raise RuntimeError("the transfer of Mooncake failed")

        return write


ENDS: dict[str, Callable[[dict[str, Any], int], Ours | Nixl | Mooncake]] = {
    OURS: Ours,
    NIXL: Nixl,
    MOONCAKE: Mooncake,
}


@contextlib.contextmanager
def connected(
    libraries: list[str],
    nbytes: int,
    words: list[object],
    network: Network = LOOPBACK,
    far: Mapping[str, str] = {},
) -> Iterator[dict[str, Ours | Nixl | Mooncake]]:
    """The local end of each library, connected to a process of its own at the other end of the network.

    That process gets the options `words` and the environment `far`.
    """
    with contextlib.ExitStack() as stack:
        ends = {}
        for library in libraries:
            command = [*network.prefix, sys.executable, __file__, "--serve", library]
            command += ["--bytes", nbytes, "--host", network.host, *words]
            peer = stack.enter_context(started(command, {**QUIET, **far}))
            line = first_line(peer)
            while not line.startswith("here "):  # libraries may print other lines first
                line = first_line(peer)
            about = {**json.loads(line[5:]), "near": network.near}
            ends[library] = ENDS[library](about, nbytes)
        yield ends


def turns_of(
    nbytes: int, ends: dict[str, Ours | Nixl | Mooncake], megabytes: int
) -> dict[str, Turn]:
    """Warm each library up, and return a function that times one turn of it.

    A turn has up to 1000 writes, and at least three, of `megabytes` MB in total.
    """
    count = max(3, min(1000, megabytes * MB // nbytes))
    writes = {library: end.write(nbytes) for library, end in ends.items()}
    for write in writes.values():
        # The kernel needs a while to give threads that talk to each other a core each.
        end = time.monotonic() + WARM_S
        while time.monotonic() < end:
            probe.timed(write, max(2, count // 10))
    return {library: partial(probe.timed, write, count) for library, write in writes.items()}


def tcp_turn(library: str, nbytes: int, network: Network) -> list[float]:
    """One turn over TCP, in a process of its own."""
    for name, value in over_tcp(network, far=False).items():
        use(name, value)
    with connected([library], nbytes, [], network, over_tcp(network, far=True)) as ends:
        return turns_of(nbytes, ends, 128)[library]()


def alone(library: str, nbytes: int, network: Network) -> Turn:
    """Return a function that times one turn in new processes.

    The threads of NIXL poll as long as its processes run, which would slow the other libraries down.
    """

    def turn() -> list[float]:
        spawn = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(1, mp_context=spawn) as process:
            return process.submit(tcp_turn, library, nbytes, network).result()

    return turn


def results(nbytes: int, calls: dict[str, Turn], turns: int, over: str) -> Iterator[record.Result]:
    """The latency and the bandwidth of writes of one size. `over` names what is no shared memory."""
    suite = ", ".join(filter(None, ("rivals, Python", over)))
    for library, samples in in_turns(calls, turns).items():
        rival = NIXL if library == OURS and NIXL in calls else ""
        kept = record.thinned(samples.all)
        shape = (suite, "write latency", library, record.SECONDS, kept, nbytes)
        target = NIXL_TARGET if nbytes == 8 and rival and not over else None
        times = record.Result(*shape, samples.turns, rival=rival, target=target)
        yield times
        if nbytes >= BANDWIDTH_FROM:
            wanted = TCP_TARGET if over.startswith("tcp") else 1.0
            yield probe.as_rate(times, "write bandwidth", nbytes, wanted if rival else None)


def measure(quick: bool, transport: str, device: str, words: list[object]) -> record.Run:
    """Measure all sizes with every library that is installed. Mooncake is left out over verbs."""
    environment = record.Environment.here(transport=transport, device=device)
    run = record.Run("Rivals in Python", environment, quick)
    there = [OURS]
    for name, (module, remedy) in MODULES.items():
        if transport == "verbs" and name == MOONCAKE:
            continue
        if importlib.util.find_spec(module):
            there.append(name)
        else:
            run.missing.append(record.Missing(name, "it is not installed", remedy))
    if device and NIXL in there and (why := why_no_agent(words)):
        there.remove(NIXL)
        run.missing.append(record.Missing(NIXL, f"not over {device}: {why}", "use shared memory"))
    if transport == "tcp" and (no_veth := missing_veth()):
        run.missing.append(no_veth)
    began = time.monotonic()
    turns = 3 if quick else 5
    if transport == "tcp":
        for network in loopback_and_veth():
            for size in TCP_SIZES:
                calls = {library: alone(library, size, network) for library in there}
                run.results += results(size, calls, turns, f"tcp over {network.name}")
    else:
        sizes = QUICK_SIZES if quick else SIZES
        verbs = transport == "verbs"
        with connected(there, max(sizes), words) as ends:
            for size in sizes:
                calls = turns_of(size, ends, 8 if verbs else 128)
                run.results += results(size, calls, turns, "verbs" if verbs else "")
    run.finish(time.monotonic() - began)
    return run


@click.command(help=__doc__)
@quick_option("Measure fewer sizes in fewer turns.")
@json_option
@click.option(
    "--verbs", "device", default="", help="Use this RDMA device instead of shared memory."
)
@click.option(
    "--gid-index", default=1, show_default=True, help="The GID index of that device, for NIXL."
)
@click.option("--tcp", is_flag=True, help="Use TCP instead of shared memory.")
@click.option("--serve", "library", type=click.Choice(list(ENDS)), hidden=True)
@click.option("--bytes", "nbytes", type=int, default=0, hidden=True)
@click.option("--host", default=LOOPBACK.host, hidden=True)
@click.option("--trial", is_flag=True, hidden=True)
def main(
    quick: bool,
    json_file: Path | None,
    device: str,
    gid_index: int,
    tcp: bool,
    library: str | None,
    nbytes: int,
    host: str,
    trial: bool,
) -> None:
    os.environ.update(QUIET)
    words: list[object] = []
    if device:
        over_verbs(device, gid_index)
        words = ["--verbs", device, "--gid-index", gid_index]
    if trial:
        agent("trial")
        os._exit(0)
    if library:
        serve(library, nbytes, host)
    run = measure(quick, "verbs" if device else "tcp" if tcp else "shm", device, words)
    deliver(run, json_file)


if __name__ == "__main__":
    main()
