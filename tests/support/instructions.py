# SPDX-License-Identifier: Apache-2.0
"""Counts the instructions of the hot paths with callgrind, and compares them with their budgets.

Counts are the same on a busy machine and an idle one. `python tests/support/instructions.py --renew` writes
budgets.json anew, from what the installed library takes now and a margin; with `--tcp` those of tcp, with
`--calls` those of messages of calls, and with `--verbs` those of verbs, for which it boots the SoftRoCE lab.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from rdmatensor.softroce import Host, Lab

HERE = Path(__file__).resolve().parent
BUDGETS = HERE / "budgets.json"
# call_paths.cc, which `programs` of conftest.py builds.
CALL_PATHS = HERE.parents[1] / "build" / "unit-none" / "unit" / "call_paths"
# What the posting thread does. `submit` waits, which is the same each time over shm only.
POSTED = {
    "shm": ("write", "read", "batch", "submit", "notify", "write_notify"),
    "verbs": ("write", "read", "batch", "notify", "write_notify"),
    "tcp": ("write", "read", "batch", "notify", "write_notify"),
    # What the plugin adds to the notifications of its calls: a program of its own.
    "calls": ("call", "answer", "pieces"),
}
# What devices' threads do with 64 notifications: they sleep at once when none is left. Over tcp, chance
# decides in how many pieces these arrive, so they are counted PARTS times, and the smallest count stands.
TAKEN = ("poll",)
PARTS = 10
TAKING = {"shm": "shm_poll", "verbs": "rdt_verbs_poll", "tcp": "rdt_tcp_poll"}
COUNTS = {"shm": 500, "verbs": 30, "tcp": 200, "calls": 500}
# Another compiler, or a C library that copies otherwise, may take a little more. Over tcp, chance decides
# whether the posting thread finds memory in malloc's cache.
MARGIN = {"shm": 1.10, "verbs": 1.10, "tcp": 1.20, "calls": 1.10}
SETTINGS = {
    "RDMATENSOR_LOG_LEVEL": "error",
    "RDMATENSOR_SPIN_US": "0",
    "RDMATENSOR_DEADLINE_MS": "60000",
}
PATIENCE_S = 100.0

# Runs words with variables; the exit status, and what was written to standard error.
Runner = Callable[[Sequence[str], Mapping[str, str]], tuple[int, str]]


def here(words: Sequence[str], variables: Mapping[str, str]) -> tuple[int, str]:
    """A Runner on this machine."""
    environment = {**os.environ, **variables}
    done = subprocess.run(
        words, capture_output=True, text=True, timeout=PATIENCE_S, env=environment
    )
    return done.returncode, done.stderr


def in_guest(host: Host) -> Runner:
    """A Runner in a lab."""

    def run(words: Sequence[str], variables: Mapping[str, str]) -> tuple[int, str]:
        done = host.run(words, env=variables, timeout=3 * PATIENCE_S, check=False)
        return done.returncode, done.stderr

    return run


def library() -> Path:
    """The installed librdmatensor.so.0: what users run."""
    spec = importlib.util.find_spec("rdmatensor")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).with_name("librdmatensor.so.0")


def build(folder: Path) -> Path:
    """paths.c, linked with the installed library."""
    program, beside = folder / "paths", library().parent
    compile_ = ["cc", "-O2", "-I", str(HERE.parents[1] / "csrc" / "include"), str(HERE / "paths.c")]
    link = ["-o", str(program), f"-L{beside}", "-l:librdmatensor.so.0", f"-Wl,-rpath,{beside}"]
    subprocess.run([*compile_, *link], check=True, timeout=60)
    return program


def count(program: Path, transport: str = "shm", run: Runner = here) -> dict[str, float]:
    """Instructions of one call of each path. RuntimeError if valgrind fails, or finds no such function."""
    paths = POSTED[transport]
    times = COUNTS[transport]
    totals = _inside("run_path", program, transport, paths, times, run)
    counts = {path: total / times for path, total in zip(paths, totals, strict=True)}
    if transport in TAKING:
        times = COUNTS[transport] // PARTS
        for path in TAKEN:
            totals = _inside(TAKING[transport], program, transport, [path] * PARTS, times, run)
            counts[path] = min(totals) / (times + 1)  # each part begins with one more
    return counts


def _inside(
    function: str, program: Path, transport: str, paths: Sequence[str], times: int, run: Runner
) -> list[int]:
    """The part of `function`, which threads run: one valgrind for all paths, as it is slow to start."""
    with tempfile.TemporaryDirectory(dir=program.parent) as folder:
        tool = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={folder}/counts"]
        tool += [f"--toggle-collect={function}", "--dump-before=next_path"]
        words = [*tool, str(program), str(times), *paths]
        status, said = run(words, {**SETTINGS, "RDMATENSOR_TRANSPORTS": transport})
        if status:
            raise RuntimeError(f"valgrind ended with status {status}: {said}")
        parts = [Path(folder, f"counts.{part}") for part in range(1, len(paths) + 1)]
        return [_total(part) for part in parts]


def _total(part: Path) -> int:
    """Of what callgrind wrote down."""
    found = re.search(r"^totals: (\d+)", part.read_text(), re.MULTILINE)
    if not found or not int(found[1]):
        raise RuntimeError(f"{part} has no counts")
    return int(found[1])


def over(counts: Mapping[str, float], budgets: Mapping[str, float]) -> list[str]:
    """Paths that take more than their budget, or have none, in words."""
    return [
        f"{path}: {used:.0f} instructions, the budget is {budgets.get(path, 0):.0f}; if they are worth "
        "it: python tests/support/instructions.py --renew, with --tcp, --calls or --verbs too if it is theirs"
        for path, used in counts.items()
        if used > budgets.get(path, 0)
    ]


def read_budgets(transport: str = "shm") -> dict[str, float]:
    """Instructions by path."""
    budgets = json.loads(BUDGETS.read_text())[transport]
    return {path: float(budget) for path, budget in budgets.items()}


def write_budgets(transport: str, counts: Mapping[str, float]) -> None:
    """What the paths of one transport take now, and a margin."""
    budgets = json.loads(BUDGETS.read_text())
    budgets[transport] = {path: round(used * MARGIN[transport]) for path, used in counts.items()}
    BUDGETS.write_text(json.dumps(budgets, indent=1) + "\n")


def measure(transport: str) -> dict[str, float]:
    """Here, or of verbs in a lab."""
    if transport == "calls":
        return count(CALL_PATHS, transport)
    if transport != "verbs":
        with tempfile.TemporaryDirectory() as folder:
            return count(build(Path(folder)), transport)
    with Lab() as lab:
        return count(build(lab.shared), transport, in_guest(lab.hosts[0]))


def main() -> None:
    """Print counts beside budgets; with --renew, write budgets."""
    transport = next((each for each in POSTED if f"--{each}" in sys.argv[1:]), "shm")
    counts = measure(transport)
    if "--renew" in sys.argv[1:]:
        write_budgets(transport, counts)
    known = read_budgets(transport)
    for path, used in counts.items():
        print(f"{path:14} {used:8.0f} of {known.get(path, 0):8.0f}")
    sys.exit("\n".join(over(counts, known)))


if __name__ == "__main__":
    main()
