# SPDX-License-Identifier: Apache-2.0
"""Writes the table of docs/failure.md from what tests saw when they caused a failure.

Tests note rows with the fixture `note`. With RDMATENSOR_TEST_FAILURES=FILE, the rows are appended to
that file, and

    python tests/faults/failure_table.py FILE docs/failure.md

writes them into the page. `make test SUITE=failures` does both.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

VARIABLE = "RDMATENSOR_TEST_FAILURES"
LONGEST = 300  # characters of a text: TensorFlow appends the whole graph to its errors
BEGIN, END = "<!-- rows: begin -->", "<!-- rows: end -->"
HEAD = "| fault | where | what the user sees | seconds | what still works or helps |\n|---|---|---|---|---|"

SHM, VERBS, TCP, TENSORFLOW = "shm", "verbs", "tcp", "TensorFlow"
BOTH = (SHM, VERBS)
ALL = (*BOTH, TCP)
# Where each fault has to be shown.
FAULTS: dict[str, tuple[str, ...]] = {
    "process killed": (*ALL, TENSORFLOW),
    "process killed, its forked child lives": ALL,
    "host killed": (VERBS, TCP),
    "link down for a moment": (VERBS, TCP),
    "link down for long": (VERBS, TCP),
    "own port down for a moment": (VERBS,),
    "packets lost": (VERBS, TCP),
    "packets reordered": (VERBS,),
    "packets delayed": (VERBS, TCP),
    "slow network": (VERBS, TCP),
    "half-open connection": (TCP,),
    "hostile bytes": (TCP,),
    "peer stopped, then resumed": (*ALL, TENSORFLOW),
    "peer stopped for long": ALL,
    "peer restarted": (*ALL, TENSORFLOW),
    "device removed": (VERBS,),
    "better transport works again": (TENSORFLOW,),
    "better transport fails again": (TENSORFLOW,),
    "memlock refused": BOTH,
    "arena full": (TENSORFLOW,),
    "queue full": ALL,
    "no file descriptors left": ALL,
    "no room in /dev/shm": (SHM,),
    "file size limit": (SHM,),
    "bootstrap port taken": ALL,
    "clock jump": BOTH,
    "fork": ALL,
    "threads post while the device closes": ALL,
}
# Why shared memory has no row for the other faults.
NOT_ON_SHM = {
    **dict.fromkeys(
        [
            "host killed",
            "link down for a moment",
            "link down for long",
            "own port down for a moment",
        ],
        "both ends are on one host",
    ),
    **dict.fromkeys(
        ["packets lost", "packets reordered", "packets delayed"], "shared memory has no packets"
    ),
    "slow network": "shared memory uses no network",
    "device removed": "shared memory uses no RDMA device",
    "arena full": "only TensorFlow has an arena",
}

# Parts of a text that differ from run to run.
VARYING = [
    (r"[\w.-]+:\d{2,} at \S+:\d+", "PEER at HOST:PORT"),
    (r"\d+\.\d+\.\d+\.\d+:\d+", "HOST:PORT"),
    (r"(\d+\.\d+\.\d+\.\d+) port \d+", "HOST port N"),
    (r"queue pair 0x[0-9a-f]+", "queue pair N"),
    (r"\bpid \d+", "pid N"),
    (r"\b(localhost|host\d|[\w-]+):\d{2,}\b", "PEER"),
    (r"/tmp/\S+", "PATH"),
]


@dataclass(frozen=True)
class Row:
    """The effect of one fault; `seconds` from the fault to what the user sees, None if nothing waits."""

    fault: str
    where: str
    seen: str
    seconds: float | None
    then: str


def note(row: Row) -> None:
    """Appends a row to the file, if there is one. ValueError for a fault that is not in the table."""
    if row.fault not in FAULTS:
        raise ValueError(f"{row.fault!r} is no fault of the table")
    if os.environ.get(VARIABLE):
        with Path(os.environ[VARIABLE]).open("a") as file:
            file.write(json.dumps(asdict(row)) + "\n")


def describe(error: BaseException | str) -> str:
    """Returns an error as a user sees it, without what differs from run to run."""
    text = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
    text = " ".join(text.split())
    for pattern, name in VARYING:
        text = re.sub(pattern, name, text)
    text = text if len(text) <= LONGEST else f"{text[:LONGEST]} ..."
    return text.replace("|", "\\|")


def read(lines: Iterable[str]) -> list[Row]:
    """Merges equal rows into one with the longest time, in the order of FAULTS."""
    rows: dict[tuple[str, str, str], Row] = {}
    for line in lines:
        row = Row(**json.loads(line))
        key = (row.fault, row.where, row.seen)
        before = rows.get(key)
        if before is None or (row.seconds or 0) > (before.seconds or 0):
            rows[key] = row
    order, places = list(FAULTS), (*ALL, TENSORFLOW)
    return sorted(rows.values(), key=lambda row: (order.index(row.fault), places.index(row.where)))


def render(rows: list[Row]) -> str:
    """Returns the table."""
    lines = [HEAD]
    for fault in FAULTS:
        if fault in NOT_ON_SHM:
            lines.append(f"| {fault} | {SHM} | does not apply: {NOT_ON_SHM[fault]} | | |")
        for row in rows:
            if row.fault == fault:
                seconds = "" if row.seconds is None else f"{row.seconds:.2f}"
                lines.append(f"| {fault} | {row.where} | {row.seen} | {seconds} | {row.then} |")
    return "\n".join(lines)


def missing(page: str) -> list[str]:
    """Returns the rows that a page lacks."""
    table = page.partition(BEGIN)[2].partition(END)[0]
    cells = [
        [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:]] for line in table.split("\n")
    ]
    there = {(row[0], row[1]) for row in cells if len(row) > 4}
    wanted = [(fault, where) for fault, places in FAULTS.items() for where in places]
    wanted += [(fault, SHM) for fault in NOT_ON_SHM]
    return [f"{fault} on {where}" for fault, where in wanted if (fault, where) not in there]


def main(notes: str, page: str) -> None:
    path = Path(page)
    before, _, rest = path.read_text().partition(BEGIN)
    table = render(read(Path(notes).read_text().splitlines()))
    text = f"{before}{BEGIN}\n\n{table}\n\n{END}{rest.partition(END)[2]}"
    lacking = missing(text)
    if lacking:
        sys.exit(f"no test noted: {', '.join(lacking)}")
    path.write_text(text)


if __name__ == "__main__":
    main(*sys.argv[1:])
