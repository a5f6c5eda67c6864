# SPDX-License-Identifier: Apache-2.0
"""Runs torch's own suite for backends on gloo and on rdmatensor, and compares: `make test SUITE=torch`.

Each test that gloo passes has to pass. One that rdmatensor skips because it asks for gloo by name runs once
more, with our process groups in the place of gloo's.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections import Counter
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

from pytorch.suite_source import DIFFERENT, check_version
from support.suites import Ends, ends_in, last_error

LIMIT = 3600.0


class Verdict(NamedTuple):
    """What a run with `size` processes has shown: `wrong` has what went wrong by test."""

    size: int
    passed: int
    disguised: int
    wrong: dict[str, str]
    skips: Counter[str]


def run(mode: str, size: int, folder: Path, tests: str, source: Path | None = None) -> Ends:
    """Run the tests whose names match, and return how each ended, and why."""
    out = folder / f"{mode}-{size}.json"
    command = [sys.executable, "-W", "ignore", "-m", "pytorch.suite_cases", "--tests", tests]
    if source is not None:
        command += ["--source", str(source)]
    with (folder / f"{mode}-{size}.log").open("w") as log:
        subprocess.run(
            [*command, mode, str(size), str(out)],
            stdout=log,
            stderr=subprocess.STDOUT,
            timeout=LIMIT,
            check=False,
        )
    return ends_in(out)


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


def compare_source(source: Path, folder: Path, tests: str = ".*") -> tuple[Counter[str], Ends]:
    """Run the tests of torch's repository on both backends.

    Return how those on rdmatensor ended, and what went wrong: what fails that does not fail on gloo, and what
    does not run that passes on gloo.
    """
    gloo, ours = (run(mode, 0, folder, tests, source) for mode in ("gloo", "rdmatensor"))
    wrong = {}
    for name in sorted(gloo | ours):
        (theirs, _), (how, why) = gloo.get(name, ("lost", "")), ours.get(name, ("lost", ""))
        if name.rpartition(".")[2] in DIFFERENT:
            continue
        if (how == "failed" and theirs != "failed") or (theirs == "passed" and how != "passed"):
            wrong[name] = (how, why or "the run ended before it")
    return Counter(how for how, _ in ours.values()), wrong


def report_source(source: Path, folder: Path, tests: str) -> int:
    try:
        check_version(source, version("torch"))
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    ends, wrong = compare_source(source, folder, tests)
    print(
        f"tests of torch's repository: {ends['passed']} pass, {ends['skipped']} skip, {len(wrong)} do not"
    )
    for name, (how, why) in wrong.items():
        print(f"  {name}: {how}: {last_error(why)}")
    for name, why in DIFFERENT.items():
        print(f"  {name} is not compared: {why}")
    print(f"logs are in {folder}")
    return int(bool(wrong) or not ends["passed"])


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--sizes", type=int, nargs="+", default=[2, 3, 4])
    parser.add_argument("--tests", default=".*", help="a regular expression that names match")
    parser.add_argument("--out", type=Path, default=Path("build/torch"))
    parser.add_argument(
        "--source", type=Path, help="a clone of torch's repository: its tests instead"
    )
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    if asked.source is not None:
        return report_source(asked.source, asked.out, asked.tests)
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
