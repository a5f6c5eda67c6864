# SPDX-License-Identifier: Apache-2.0
"""What memory windows cost over verbs: connecting, a region for one peer, and writes into it.

Two devices in this process, with RDMATENSOR_WINDOWS=off and =on in turns. A machine without an RDMA device
measures in the SoftRoCE lab, where the difference between the two says more than either.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import click
import numpy as np
from rich.console import Console
from rich.table import Table

import rdmatensor
from bench_verbs import first_device
from rdmatensor.demo.machine import describe
from rdmatensor.demo.timing import Distribution, duration

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


def render(times: dict[str, Times], device: str) -> Table:
    table = Table(title=f"memory windows on {device}", title_justify="left")
    for column in ("", "off: p10", "median", "p90", "on: p10", "median", "p90"):
        table.add_column(column, justify="right" if column else "left")
    for name in times["off"]:
        found = [Distribution.of(times[windows][name]) for windows in SETTINGS]
        cells = (duration(value) for each in found for value in (each.p10, each.median, each.p90))
        table.add_row(name, *cells)
    return table


def in_lab(turns: int, output: Path | None) -> int:
    with tempfile.TemporaryDirectory() as folder:
        inside = [sys.executable, __file__, "--turns", str(turns)]
        if output is not None:
            inside += ["--json", f"{folder}/result.json"]
        lab = [sys.executable, "-m", "rdmatensor.softroce", "run", "--shared", folder, "--"]
        status = subprocess.run([*lab, *inside]).returncode
        if output is not None and status == 0:
            output.write_text(Path(folder, "result.json").read_text())
        return status


@click.command(help=__doc__)
@click.option("--turns", default=6, show_default=True, help="Turns of each setting.")
@click.option("--json", "output", type=click.Path(path_type=Path), help="Write all times here too.")
def main(turns: int, output: Path | None) -> None:
    device = first_device()
    if device is None:
        sys.exit(in_lab(turns, output))
    os.environ["RDMATENSOR_TRANSPORTS"] = "verbs"
    rdmatensor.config.set("TRANSPORTS", "verbs")
    times = measure(turns)
    Console(width=110).print(render(times, device))
    if output is not None:
        output.write_text(json.dumps({"machine": describe(("rdmatensor",)), "times": times}))


if __name__ == "__main__":
    main()
