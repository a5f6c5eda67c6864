# SPDX-License-Identifier: Apache-2.0
"""Writes from Python: rdmatensor, NIXL (over UCX) and the Mooncake Transfer Engine (over TCP), in turns.

With --verbs, both ends use an RDMA device of this machine, and Mooncake is left out. Rivals that are not
installed are reported, with the command that installs them.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import numpy as np

import rdmatensor
import rivals
from options import deliver, json_option, quick_option
from programs import first_line, started
from programs import run as run_program
from rdmatensor.bench import probe, record
from rdmatensor.bench.turns import in_turns

KB, MB = 1 << 10, 1 << 20
SIZES = (8, 512, 4 * KB, 64 * KB, MB, 16 * MB, 128 * MB)
QUICK_SIZES = (8, 4 * KB, 64 * KB, MB, 16 * MB)
OURS, NIXL, MOONCAKE = "rdmatensor", "NIXL", "Mooncake"
BANDWIDTH_FROM = 4 * KB
NIXL_TARGET = 3.0  # for small writes
MODULES = {
    NIXL: ("nixl", "pip install --no-deps nixl nixl-cu12"),
    MOONCAKE: ("mooncake", "pip install mooncake-transfer-engine-non-cuda"),
}
QUIET = {"UCX_LOG_LEVEL": "error", "NIXL_LOG_LEVEL": "ERROR", "RDMATENSOR_LOG_LEVEL": "error"}

Write = Callable[[], object]


def over_verbs(device: str, gid_index: int) -> None:
    """Make this process and those that it starts use one RDMA device."""
    os.environ.update(rivals.over_verbs(device, gid_index))
    rdmatensor.config.set("TRANSPORTS", "verbs")
    rdmatensor.config.set("DEVICE", device)


def agent(name: str) -> Any:
    """NIXL's end of a connection, over UCX. It polls only while it waits."""
    from nixl._api import nixl_agent, nixl_agent_config  # type: ignore[import-not-found]

    return nixl_agent(name, nixl_agent_config(True, True, 0, backends=["UCX"]))


def why_no_agent(words: list[object]) -> str:
    """Why NIXL cannot use the device; "" if it can. NIXL may exit, so another process tries."""
    done = run_program([sys.executable, __file__, "--trial", *words], patience=120.0)
    return rivals.reason(done.output) if done.status else ""


def engine() -> Any:
    """Mooncake's end of a connection."""
    from mooncake.engine import TransferEngine  # type: ignore[import-not-found]

    made = TransferEngine()
    if made.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", ""):
        raise SystemExit("the engine of Mooncake does not start")
    return made


def serve(library: str, nbytes: int) -> None:
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
        there = engine()
        there.register_memory(memory.ctypes.data, nbytes)
        about["session"] = f"127.0.0.1:{there.get_rpc_port()}"
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
        self._engine = engine()
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
    libraries: list[str], nbytes: int, words: list[object]
) -> Iterator[dict[str, Ours | Nixl | Mooncake]]:
    """The local end of each library, connected to a process of its own, which gets the options `words`."""
    with contextlib.ExitStack() as stack:
        ends = {}
        for library in libraries:
            command = [sys.executable, __file__, "--serve", library, "--bytes", nbytes, *words]
            peer = stack.enter_context(started(command, QUIET))
            line = first_line(peer)
            while not line.startswith("here "):  # libraries may print other lines first
                line = first_line(peer)
            ends[library] = ENDS[library](json.loads(line[5:]), nbytes)
        yield ends


def results(
    nbytes: int, ends: dict[str, Ours | Nixl | Mooncake], turns: int, transport: str
) -> Iterator[record.Result]:
    """The latency and the bandwidth of writes of one size."""
    verbs = transport == "verbs"
    suite = "rivals, Python, verbs" if verbs else "rivals, Python"
    count = max(3, min(1000, (8 if verbs else 128) * MB // nbytes))
    writes = {library: end.write(nbytes) for library, end in ends.items()}
    for write in writes.values():
        probe.timed(write, max(2, count // 10))
    calls = {
        library: lambda write=write: probe.timed(write, count) for library, write in writes.items()
    }
    for library, samples in in_turns(calls, turns).items():
        rival = NIXL if library == OURS and NIXL in ends else ""
        kept = record.thinned(samples.all)
        shape = (suite, "write latency", library, record.SECONDS, kept, nbytes)
        target = NIXL_TARGET if nbytes == 8 and rival and not verbs else None
        times = record.Result(*shape, samples.turns, rival=rival, target=target)
        yield times
        if nbytes >= BANDWIDTH_FROM:
            yield probe.as_rate(times, "write bandwidth", nbytes, 1.0 if rival else None)


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
    began = time.monotonic()
    sizes = QUICK_SIZES if quick else SIZES
    with connected(there, max(sizes), words) as ends:
        for size in sizes:
            run.results += results(size, ends, 3 if quick else 5, transport)
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
@click.option("--serve", "library", type=click.Choice(list(ENDS)), hidden=True)
@click.option("--bytes", "nbytes", type=int, default=0, hidden=True)
@click.option("--trial", is_flag=True, hidden=True)
def main(
    quick: bool,
    json_file: Path | None,
    device: str,
    gid_index: int,
    library: str | None,
    nbytes: int,
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
        serve(library, nbytes)
    run = measure(quick, "verbs" if device else "shm", device, words)
    deliver(run, json_file)


if __name__ == "__main__":
    main()
