# SPDX-License-Identifier: Apache-2.0
"""Runs torch's own suite for backends on gloo and on rdmatensor, and compares: `make test SUITE=torch`.

Each test that gloo passes has to pass. One that rdmatensor skips because it asks for gloo by name runs once
more, with our process groups in the place of gloo's.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import NamedTuple

LIMIT = 3600.0
Ends = dict[str, tuple[str, str]]


class Verdict(NamedTuple):
    """What a run with `size` processes has shown: `wrong` has what went wrong by test."""

    size: int
    passed: int
    disguised: int
    wrong: dict[str, str]
    skips: Counter[str]


def run(mode: str, size: int, folder: Path, tests: str) -> Ends:
    """Run the tests whose names match, and return how each ended, and why."""
    out = folder / f"{mode}-{size}.json"
    command = [sys.executable, "-W", "ignore", "-m", "pytorch.suite_cases", "--tests", tests]
    with (folder / f"{mode}-{size}.log").open("w") as log:
        subprocess.run(
            [*command, mode, str(size), str(out)],
            stdout=log,
            stderr=subprocess.STDOUT,
            timeout=LIMIT,
            check=False,
        )
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    return {each["test"]: (each["how"], each["why"]) for each in lines}


def compare(size: int, folder: Path, tests: str = ".*") -> Verdict:
    """Run the tests on both backends, and compare."""
    gloo = run("gloo", size, folder, tests)
    wanted = [name for name, (how, _) in gloo.items() if how == "passed"]
    ours = run("rdmatensor", size, folder, "|".join(map(re.escape, wanted)))
    skipped = [name for name in wanted if ours.get(name, ("", ""))[0] == "skipped"]
    disguised = run("disguised", size, folder, "|".join(map(re.escape, skipped))) if skipped else {}
    wrong = {}
    for name in wanted:
        how, why = disguised.get(name) or ours.get(name) or ("lost", "the run ended before it")
        if how != "passed":
            wrong[name] = f"{how}: {why}"
    skips = Counter(why for how, why in gloo.values() if how == "skipped")
    return Verdict(size, len(wanted) - len(wrong), len(disguised), wrong, skips)


def last_error(text: str) -> str:
    """Return the line of a report that names the error."""
    lines = [line for line in text.splitlines() if re.match(r"[\w.]*(Error|Exception)\b", line)]
    return (lines or text.strip().splitlines())[-1]


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--sizes", type=int, nargs="+", default=[2, 3, 4])
    parser.add_argument("--tests", default=".*", help="a regular expression that names match")
    parser.add_argument("--out", type=Path, default=Path("build/torch"))
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    failed = False
    for size in asked.sizes:
        verdict = compare(size, asked.out, asked.tests)
        failed |= bool(verdict.wrong) or not verdict.passed
        print(
            f"{size} processes: of {verdict.passed + len(verdict.wrong)} tests that gloo passes, "
            f"{verdict.passed} pass ({verdict.disguised} in the place of gloo), {len(verdict.wrong)} do not"
        )
        for name, why in verdict.wrong.items():
            print(f"  {name}: {last_error(why)}")
        for why, count in verdict.skips.most_common():
            print(f"  gloo skips {count}: {why}")
    print(f"logs are in {asked.out}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
