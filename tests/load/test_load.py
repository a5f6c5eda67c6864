# SPDX-License-Identifier: Apache-2.0
"""Many peers, many edges, many transfers: nothing is lost, wrong, or kept.

`make test SUITE=soak` lets it run for SOAK_SECONDS and prints a report; `make sanitize` runs a smaller one.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

SANITIZER = os.environ.get("RDMATENSOR_TEST_SANITIZE", "none")
SANITIZED = SANITIZER != "none"
SOAK = int(os.environ.get("SOAK_SECONDS", "0"))
PEERS, PROCESSES, EDGES = (16, 2, 1000) if SANITIZED else (64, 4, 10_000)
TRANSFERS = {"none": 1_000_000, "address": 400_000, "thread": 100_000}[SANITIZER]
PATIENCE = 400  # where everything is slow
# Sanitizers keep what was freed for a while.
GROWTH = 1.3 if SANITIZED else 1.02
MORE = 1024  # kB that anything may grow by


def run(programs: Path, transfers: int, seconds: int) -> list[dict[str, Any]]:
    """What the program reports: samples, and the end."""
    words = [PEERS, PROCESSES, EDGES, transfers, seconds]
    done = subprocess.run(
        [programs / "load", *map(str, words)],
        capture_output=True,
        text=True,
        timeout=seconds + PATIENCE,
    )
    assert done.returncode == 0, f"exit status {done.returncode}\n{done.stderr[-8000:]}"
    return [json.loads(line) for line in done.stdout.splitlines()]


def flat(samples: list[dict[str, Any]], name: str) -> None:
    """It is no larger after the second half of the transfers than it was after the first."""
    half = samples[-1]["transfers"] / 2
    before = max(each[name] for each in samples if each["transfers"] < half)
    after = max(each[name] for each in samples)
    assert after <= before * GROWTH + MORE, f"{name} grew from {before} to {after}"


@pytest.mark.timeout(SOAK + 2 * PATIENCE)
def test_many_peers_edges_and_transfers(programs: Path) -> None:
    *samples, end = run(programs, 0, SOAK) if SOAK else run(programs, TRANSFERS, PATIENCE)
    assert end["errors"] == 0
    assert end["transfers"] >= TRANSFERS
    assert end["reads"] > end["transfers"] // 16
    samples = [each for each in samples if each["transfers"] < 0.95 * end["transfers"]]
    assert len(samples) >= 4, "too fast to see whether memory stays flat"
    for name in ("rss_kb", "peers_rss_kb"):
        flat(samples, name)
    for name in ("threads", "fds", "peers_threads", "peers_fds"):
        assert len({sample[name] for sample in samples}) == 1, name
    if SOAK:
        print(table(samples, end))


def table(samples: list[dict[str, Any]], end: dict[str, Any]) -> str:
    """The report, as docs/failure.md has it."""
    lines = [
        f"{PEERS} peers in {PROCESSES} processes, {EDGES} edges, {end['seconds']:.0f} seconds: "
        f"{end['transfers']} transfers of {end['bytes'] / 2**30:.1f} GiB, {end['reads']} read "
        f"back, {end['errors']} errors; {end['transfers'] / end['seconds']:.0f} transfers and "
        f"{end['bytes'] / 2**20 / end['seconds']:.0f} MiB a second.",
        "",
        "| seconds | transfers | resident, hub | resident, peers | threads | descriptors |",
        "|---|---|---|---|---|---|",
    ]
    rows = [
        f"| {each['seconds']:.0f} | {each['transfers']} | {each['rss_kb'] / 1024:.1f} MiB "
        f"| {each['peers_rss_kb'] / 1024:.1f} MiB | {each['threads'] + each['peers_threads']} "
        f"| {each['fds'] + each['peers_fds']} |"
        for each in samples[:: max(1, len(samples) // 10)]
    ]
    return "\n".join(lines + rows)
