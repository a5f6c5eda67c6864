# SPDX-License-Identifier: Apache-2.0
"""What memory windows cost over verbs: connecting, a region for one peer, and writes into it.

Two devices in this process, with RDMATENSOR_WINDOWS=off and =on in turns. A machine without an RDMA device
measures in the SoftRoCE lab, where the difference between the two says more than either.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import click
import numpy as np
from rich.console import Console

import rdmatensor
from programs import first_device, in_lab
from rdmatensor.bench import record, report

SETTINGS = ("off", "on")
CONNECTIONS, REGIONS, WRITES = 20, 50, 500  # of a turn
LARGE_WRITES = 8
REGION_BYTES = 64 << 10
LARGE = 4 << 20  # over all queue pairs

Times = dict[str, list[float]]
Result = TypeVar("Result")


def timed(times: list[float], action: Callable[[], Result]) -> Result:
    begin = time.perf_counter()
    result = action()
    times.append(time.perf_counter() - begin)
    return result


def one_turn(windows: str, times: Times) -> None:
    rdmatensor.config.set("WINDOWS", windows)
    with rdmatensor.Device() as owner, rdmatensor.Device() as peer:
        for _ in range(CONNECTIONS):
            remote = timed(times["connect"], lambda: peer.connect(owner.address))
            remote.close()
        remote = peer.connect(owner.address)
        regions = [
            timed(times["region of 64 KB"], lambda: remote.allocate(REGION_BYTES))
            for _ in range(REGIONS)
        ]
        large, source = remote.allocate(LARGE), peer.allocate(LARGE)
        source.array[:] = np.arange(LARGE) % 251
        for _ in range(WRITES):
            timed(times["write of 8 B"], lambda: regions[0].write(source.array[:8]).wait(20))
        for _ in range(LARGE_WRITES):
            timed(times["write of 4 MB"], lambda: large.write(source.array).wait(20))


def measure(turns: int) -> dict[str, Times]:
    names = ("connect", "region of 64 KB", "write of 8 B", "write of 4 MB")
    times: dict[str, Times] = {each: {name: [] for name in names} for each in SETTINGS}
    for turn in range(turns):
        # In turns, and each first as often as the other.
        for windows in SETTINGS if turn % 2 == 0 else reversed(SETTINGS):
            one_turn(windows, times[windows])
    return times


def results(times: dict[str, Times], device: str) -> Iterator[record.Result]:
    for name in times["off"]:
        for windows in SETTINGS:
            yield record.Result(
                f"memory windows on {device}",
                name,
                windows,
                record.SECONDS,
                times[windows][name],
                rival="off" if windows == "on" else "",
            )


@click.command(help=__doc__)
@click.option("--turns", default=6, show_default=True, help="Turns of each setting.")
@click.option("--json", "output", type=click.Path(path_type=Path), help="Write the record.")
def main(turns: int, output: Path | None) -> None:
    device = first_device()
    if device is None:
        with tempfile.TemporaryDirectory() as folder:
            sys.exit(in_lab([__file__, "--turns", turns], output, Path(folder)))
    rdmatensor.config.set("TRANSPORTS", "verbs")
    run = record.Run("Memory windows", record.Environment.here(transport="verbs", device=device))
    began = time.monotonic()
    run.results += results(measure(turns), device)
    run.finish(time.monotonic() - began)
    report.show(Console(width=None if sys.stdout.isatty() else 110), run)
    if output is not None:
        run.write(output)


if __name__ == "__main__":
    main()
