# SPDX-License-Identifier: Apache-2.0
"""Counts the instructions of the hot paths with callgrind, and compares them with their budgets.

Counts are the same on a busy machine and an idle one. `python tests/bench/instructions.py --renew` writes
budgets.json anew, from what the installed library takes now and a margin.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

HERE = Path(__file__).resolve().parent
BUDGETS = HERE / "budgets.json"
# By the function in which instructions count: on the posting thread, and where the other device's takes 64
# notifications, which nothing else must be in: it sleeps at once when none is left.
POSTS, POLLS = "run_path", "shm_poll"
PATHS = {
    **dict.fromkeys(("write", "read", "batch", "submit", "notify", "write_notify"), POSTS),
    "poll": POLLS,
}
# Another compiler, or a C library that copies otherwise, may take a little more.
MARGIN = 1.10
COUNT = 500
SETTINGS = {
    "RDMATENSOR_TRANSPORTS": "shm",
    "RDMATENSOR_LOG_LEVEL": "error",
    "RDMATENSOR_SPIN_US": "0",
}


def library() -> Path:
    """The installed librdmatensor.so: what users run."""
    spec = importlib.util.find_spec("rdmatensor")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).with_name("librdmatensor.so")


def build(folder: Path) -> Path:
    """paths.c, linked with the installed library."""
    program, beside = folder / "paths", library().parent
    compile_ = ["cc", "-O2", "-I", str(HERE.parents[1] / "csrc" / "include"), str(HERE / "paths.c")]
    link = ["-o", str(program), f"-L{beside}", "-lrdmatensor", f"-Wl,-rpath,{beside}"]
    subprocess.run([*compile_, *link], check=True, timeout=60)
    return program


def count(program: Path, path: str) -> float:
    """Instructions of one call of `path`. RuntimeError if valgrind fails, or finds no such function."""
    tool = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null"]
    words = [*tool, f"--toggle-collect={PATHS[path]}", str(program), path, str(COUNT)]
    environment = {**os.environ, **SETTINGS}
    done = subprocess.run(words, capture_output=True, text=True, timeout=100, env=environment)
    collected = re.search(r"Collected : (\d+)", done.stderr)
    if done.returncode or not collected or not int(collected[1]):
        raise RuntimeError(f"valgrind ended with status {done.returncode}: {done.stderr}")
    return int(collected[1]) / COUNT


def over(counts: Mapping[str, float], budgets: Mapping[str, float]) -> list[str]:
    """Paths that take more than their budget, or have none, in words."""
    return [
        f"{path}: {used:.0f} instructions, the budget is {budgets.get(path, 0):.0f}; if they are worth "
        "it: python tests/bench/instructions.py --renew"
        for path, used in counts.items()
        if used > budgets.get(path, 0)
    ]


def read_budgets() -> dict[str, float]:
    """Instructions by path."""
    return {path: float(budget) for path, budget in json.loads(BUDGETS.read_text()).items()}


def main() -> None:
    """Print counts beside budgets; with --renew, write budgets."""
    with tempfile.TemporaryDirectory() as folder:
        program = build(Path(folder))
        counts = {path: count(program, path) for path in PATHS}
    if "--renew" in sys.argv[1:]:
        budgets = {path: round(used * MARGIN) for path, used in counts.items()}
        BUDGETS.write_text(json.dumps(budgets, indent=1) + "\n")
    known = read_budgets()
    for path, used in counts.items():
        print(f"{path:14} {used:8.0f} of {known.get(path, 0):8.0f}")
    sys.exit("\n".join(over(counts, known)))


if __name__ == "__main__":
    main()
