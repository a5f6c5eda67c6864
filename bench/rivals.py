# SPDX-License-Identifier: Apache-2.0
"""Runs `ucx_perftest`, the benchmark of UCX, as a rival of the C interface."""

from __future__ import annotations

import csv
import shutil
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from harness import Bench
from networks import LOOPBACK, Network
from programs import await_listener, run, started
from team import Failed, free_port

# UCX chooses between shared memory and reading the peer's memory through the kernel.
SHARED_MEMORY = {"UCX_TLS": "posix,sysv,cma,self", "UCX_LOG_LEVEL": "error"}
_PATIENCE_S = 60.0


def over_verbs(device: str, gid_index: int) -> dict[str, str]:
    """UCX's settings for reliable connections over one device. The UCX inside NIXL reads them too."""
    return {
        "UCX_TLS": "rc_verbs,ud_verbs",
        "UCX_NET_DEVICES": f"{device}:1",
        "UCX_IB_GID_INDEX": str(gid_index),
        "UCX_LOG_LEVEL": "error",
    }


def over_tcp(interface: str) -> dict[str, str]:
    """UCX's settings for TCP over one network interface. The UCX inside NIXL reads them too."""
    return {"UCX_TLS": "tcp", "UCX_NET_DEVICES": interface, "UCX_LOG_LEVEL": "error"}


def has_ucx(bench: Bench) -> bool:
    """Whether there is ucx_perftest; if not, it is recorded as missing."""
    if not shutil.which("ucx_perftest"):
        bench.missing("UCX", "there is no ucx_perftest", "apt install ucx-utils")
        return False
    bench.run.environment.versions["UCX"] = ucx_version()
    return True


def reason(output: str) -> str:
    """One line of a failed program's output: the first one with an error, or the last one."""
    lines = [line.strip() for line in output.splitlines() if line.strip()] or ["it printed nothing"]
    return next((line for line in lines if "error" in line.lower()), lines[-1])[:300]


def ucx_version() -> str:
    """The version that `ucx_info` prints."""
    for line in run(["ucx_info", "-v"]).splitlines():
        if "version" in line.lower():
            return line.split()[-1]
    return "unknown"


class UcxFigures(NamedTuple):
    """One run of ucx_perftest: the median time of an operation, and the rate."""

    seconds: float
    bytes_per_second: float


def ucx(
    test: str,
    nbytes: int,
    iterations: int,
    depth: int = 32,
    environment: Mapping[str, str] = SHARED_MEMORY,
    words: Sequence[str] = (),
    network: Network = LOOPBACK,
    far: Mapping[str, str] = {},
) -> UcxFigures:
    """Run `ucx_perftest -t test` between the two ends of `network`, both with the options `words`.

    `environment` is set at both ends, and `far` at the other one too.
    """
    port = free_port()
    server: list[object] = ["ucx_perftest", "-p", port, *words]
    client = [*server, "-t", test, "-s", nbytes, "-n", iterations, "-w", max(1, iterations // 10)]
    client += ["-O", depth, "-f", "-v", network.host]
    with started([*network.prefix, *server], {**environment, **far}) as serving:
        await_listener(serving, port)
        return parse_ucx(run(client, environment, _PATIENCE_S))


def parse_ucx(output: str) -> UcxFigures:
    """Read its two lines of comma-separated values. Failed if they are missing."""
    lines = output.splitlines()
    at = next((n for n, line in enumerate(lines) if line.startswith("iterations,")), len(lines))
    row = next(csv.DictReader(lines[at : at + 2]), None)
    if row is None:
        raise Failed(f"ucx_perftest printed no result:\n{output}")
    try:
        median = next(value for name, value in row.items() if name.endswith("percentile_lat"))
        return UcxFigures(float(median) / 1e6, float(row["overall_bw"]) * (1 << 20))  # us, MiB/s
    except (KeyError, StopIteration, TypeError, ValueError):
        raise Failed(f"ucx_perftest printed something else:\n{output}") from None
