# SPDX-License-Identifier: Apache-2.0
"""The Python API over shared memory, between two processes of this machine.

Latencies are of single calls from Python, the clock's own cost (about 0.05 us) included. A write is
compared with numpy.copyto of the same size: the two take turns, so that both see the same machine.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import click
import numpy as np
from rich.console import Console
from rich.table import Table

import rdmatensor
from rdmatensor.demo.machine import describe, summary
from rdmatensor.demo.timing import Distribution, size

PACKAGES = ("rdmatensor", "numpy", "cffi")
REGION_BYTES = 64 << 20
COPY_SIZES = (64 << 10, 1 << 20, 16 << 20)
COPIES_PER_SECOND = 1.5e9  # bytes; only decides how many turns fit into the time there is
DEADLINE = 60.0


@dataclass(frozen=True)
class Row:
    """One measurement; `rival` is a memory copy of the same size."""

    name: str
    times: Distribution
    rival: Distribution | None = None
    target: str = ""

    def ratio(self) -> float | None:
        """Speed relative to the rival: 1 is as fast, more is faster."""
        return self.rival.median / self.times.median if self.rival else None


def echo() -> None:
    """The other process: offers a region, sends every notification back."""
    with rdmatensor.Device(name="bench-peer") as device:
        device.allocate(REGION_BYTES, name="region").array[:] = 0
        print(device.address, flush=True)
        while True:
            try:
                note = device.next_notification(DEADLINE)
            except rdmatensor.DeadlineExceeded:
                return
            if note.payload == b"end":
                return
            # The echo of the time this process has computed so far, for the idle measurement.
            answer = int(time.process_time() * 1e9) if note.payload == b"cpu" else note.immediate
            note.source.notify(immediate=answer)


@contextlib.contextmanager
def connected() -> Iterator[tuple[rdmatensor.Device, rdmatensor.RemoteDevice]]:
    command = [sys.executable, __file__, "--peer"]
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as peer,
        rdmatensor.Device(name="bench") as device,
    ):
        assert peer.stdout is not None
        try:
            remote = device.connect(peer.stdout.readline().strip())
            yield device, remote
            remote.notify(b"end").wait()
            peer.wait(DEADLINE)
        finally:
            peer.kill()


def timed(call: Callable[[], object], count: int) -> list[float]:
    times = []
    for _ in range(count):
        begin = perf_counter()
        call()
        times.append(perf_counter() - begin)
    return times


def latencies(region: rdmatensor.RemoteRegion, count: int) -> Iterator[Row]:
    """Single small operations, completion included."""
    data = np.arange(8, dtype=np.uint8)
    target = np.zeros(8, dtype=np.uint8)
    for name, call, goal in (
        ("write 8 B", lambda: region.write(data).wait(), "p50 <= 2 us"),
        ("read 8 B", lambda: region.read_into(target).wait(), ""),
    ):
        timed(call, count // 10)
        yield Row(name, Distribution.of(timed(call, count)), target=goal)
    if (target != data).any():
        raise SystemExit("bench_api: what was read is not what was written")


def ping_pong(
    device: rdmatensor.Device, remote: rdmatensor.RemoteDevice, count: int
) -> Iterator[Row]:
    def turn() -> None:
        remote.notify(immediate=1)
        device.next_notification(DEADLINE)

    timed(turn, count // 10)
    yield Row("notify and echo, round trip", Distribution.of(timed(turn, count)))

    def sleepy_turn() -> float:
        time.sleep(0.002)  # longer than either side polls: both have to be woken
        begin = perf_counter()
        turn()
        return perf_counter() - begin

    times = [sleepy_turn() for _ in range(count // 10)]
    yield Row("the same, both sides asleep", Distribution.of(times))


def copies(region: rdmatensor.RemoteRegion, seconds: float) -> Iterator[Row]:
    """Writes against memory copies, in turns."""
    for nbytes in COPY_SIZES:
        data, local = aligned(nbytes), aligned(nbytes)
        data[:] = np.random.default_rng(nbytes).integers(0, 256, nbytes, dtype=np.uint8)
        writes: list[float] = []
        memory: list[float] = []
        turns = max(20, int(seconds * COPIES_PER_SECOND / nbytes / 2))
        for turn in range(turns + 3):
            begin = perf_counter()
            region.write(data).wait()
            middle = perf_counter()
            np.copyto(local, data)
            end = perf_counter()
            if turn >= 3:  # the first touch pages
                writes.append(middle - begin)
                memory.append(end - middle)
        if (region.read(0, nbytes) != data).any():
            raise SystemExit(f"bench_api: {nbytes} bytes arrived wrong")
        goal = ">= 0.9 of memcpy" if nbytes >= 1 << 20 else ""
        yield Row(f"write {binary(nbytes)}", Distribution.of(writes), Distribution.of(memory), goal)


def aligned(nbytes: int) -> Any:
    """Page-aligned memory, as the region is: a copy's speed depends on it."""
    return np.frombuffer(mmap.mmap(-1, nbytes), dtype=np.uint8)


def binary(nbytes: int) -> str:
    return f"{nbytes >> 20} MiB" if nbytes >= 1 << 20 else f"{nbytes >> 10} KiB"


def idle(
    device: rdmatensor.Device, remote: rdmatensor.RemoteDevice, seconds: float
) -> dict[str, float]:
    """Share of a core that each process uses while the connection is open and nothing happens."""

    def computed_there() -> float:
        remote.notify(b"cpu")
        return device.next_notification(DEADLINE).immediate / 1e9

    before = computed_there()
    mine = time.process_time()
    time.sleep(seconds)
    mine = time.process_time() - mine
    return {"here": mine / seconds, "peer": (computed_there() - before) / seconds}


def duration(seconds: float) -> str:
    return f"{seconds * 1e6:.2f} us" if seconds < 1e-3 else f"{seconds * 1e3:.3f} ms"


def render(rows: list[Row], idle_share: dict[str, float]) -> Table:
    table = Table(title="Python API, two processes, shared memory", title_justify="left")
    for column in ("", "p10", "median", "p90", "memcpy", "of memcpy", "rate", "wanted"):
        table.add_column(column, justify="left" if column in ("", "wanted") else "right")
    for row in rows:
        times = row.times
        cells = [row.name, *(duration(t) for t in (times.p10, times.median, times.p90))]
        ratio = row.ratio()
        if row.rival is not None and ratio is not None:
            nbytes = next(n for n in COPY_SIZES if row.name.endswith(binary(n)))
            rate = f"{size(nbytes / times.median)}/s"
            cells += [duration(row.rival.median), f"{ratio:.2f}", rate]
        else:
            cells += ["", "", ""]
        table.add_row(*cells, row.target)
    shares = ", ".join(f"{share:.2%} {where}" for where, share in idle_share.items())
    table.caption = f"CPU use of an idle connection: {shares}"
    table.caption_justify = "left"
    return table


def as_json(rows: list[Row]) -> dict[str, Any]:
    return {
        row.name: {
            **row.times.as_json(),
            "memcpy": row.rival.as_json() if row.rival else None,
            "of_memcpy": row.ratio(),
            "wanted": row.target,
        }
        for row in rows
    }


@click.command()
@click.option("--quick", is_flag=True, help="Fewer turns: under half a minute.")
@click.option(
    "--json", "json_file", type=click.Path(path_type=Path, dir_okay=False), help="Write all."
)
@click.option("--peer", is_flag=True, hidden=True)
def main(quick: bool, json_file: Path | None, peer: bool) -> None:
    """Latency and speed of rdmatensor's Python API between two processes of this machine."""
    if peer:
        return echo()
    console = Console(width=None if sys.stdout.isatty() else 130)
    machine = describe(PACKAGES)
    console.print(summary(machine), highlight=False)
    factor = 1 if quick else 10
    with connected() as (device, remote), console.status("measuring"):
        region = remote.region("region")
        rows = [
            *latencies(region, 20_000 * factor),
            *ping_pong(device, remote, 2_000 * factor),
            *copies(region, 1.5 * factor),
        ]
        idle_share = idle(device, remote, 2.0 * min(factor, 3))
    console.print(render(rows, idle_share))
    if json_file:
        fields = {"machine": machine, "quick": quick, "rows": as_json(rows), "idle": idle_share}
        json_file.write_text(json.dumps(fields, indent=1))
    return None


if __name__ == "__main__":
    main()
