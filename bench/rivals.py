# SPDX-License-Identifier: Apache-2.0
"""UCX as a rival of the C interface, by its own benchmark `ucx_perftest`."""

from __future__ import annotations

import csv
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from programs import Failed, await_listener, free_port, run, started
from rdmatensor.bench.record import Missing, Process

# Shared memory and reading from the other's memory through the kernel: UCX chooses.
SHARED_MEMORY = {"UCX_TLS": "posix,sysv,cma,self", "UCX_LOG_LEVEL": "error"}
_PATIENCE_S = 60.0


def over_verbs(device: str, gid_index: int) -> dict[str, str]:
    """UCX's settings for reliable connections over one device, which it makes by datagrams, and nothing else.
    UCX inside NIXL reads them too."""
    return {
        "UCX_TLS": "rc_verbs,ud_verbs",
        "UCX_NET_DEVICES": f"{device}:1",
        "UCX_IB_GID_INDEX": str(gid_index),
        "UCX_LOG_LEVEL": "error",
    }


def missing_ucx() -> Missing | None:
    """What there is to say if there is no ucx_perftest."""
    if shutil.which("ucx_perftest"):
        return None
    return Missing("UCX", "there is no ucx_perftest", "apt install ucx-utils")


def reason(output: str) -> str:
    """What a program that failed says of it in one line: the first with an error, or its last."""
    lines = [line.strip() for line in output.splitlines() if line.strip()] or ["it printed nothing"]
    return next((line for line in lines if "error" in line.lower()), lines[-1])[:300]


def ucx_version() -> str:
    """As `ucx_info` tells it."""
    for line in run(["ucx_info", "-v"]).checked().output.splitlines():
        if "version" in line.lower():
            return line.split()[-1]
    return "unknown"


@dataclass(frozen=True)
class UcxFigures:
    """One run of ucx_perftest: its median time of an operation, and what it moved."""

    seconds: float
    bytes_per_second: float
    per_second: float
    processes: list[Process] = field(default_factory=list)


def ucx(
    test: str,
    nbytes: int,
    iterations: int,
    depth: int = 32,
    environment: Mapping[str, str] = SHARED_MEMORY,
    words: Sequence[str] = (),
) -> UcxFigures:
    """`ucx_perftest -t test` between two processes of this machine, which both get `words`, warmed up with a
    tenth."""
    port = free_port()
    server = ["ucx_perftest", "-p", port, *words]
    client = [*server, "-t", test, "-s", nbytes, "-n", iterations, "-w", max(1, iterations // 10)]
    client += ["-O", depth, "-f", "-v", "localhost"]
    with started(server, environment) as serving:
        await_listener(serving, port)
        done = run(client, environment, _PATIENCE_S)
    return parse_ucx(done.checked().output, done.used)


def parse_ucx(output: str, used: Process) -> UcxFigures:
    """Of its two lines of comma-separated values. Its rates are in MiB/s and in messages a second."""
    lines = output.splitlines()
    at = next((n for n, line in enumerate(lines) if line.startswith("iterations,")), len(lines))
    row = next(csv.DictReader(lines[at : at + 2]), None)
    if row is None:
        raise Failed(f"ucx_perftest printed no result:\n{output}")
    try:
        median = next(value for name, value in row.items() if name.endswith("percentile_lat"))
        return UcxFigures(
            float(median) / 1e6,
            float(row["overall_bw"]) * (1 << 20),
            float(row["overall_mr"]),
            [used],
        )
    except (KeyError, StopIteration, TypeError, ValueError):
        raise Failed(f"ucx_perftest printed something else:\n{output}") from None
