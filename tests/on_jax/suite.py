# SPDX-License-Identifier: Apache-2.0
"""Runs JAX's own tests of several processes on gloo and on rdmatensor, and compares: `make test SUITE=jax`.

Each test that gloo passes has to pass. One that does not runs once more by itself, because what fails in one
test may be the fault of an earlier one.
"""

from __future__ import annotations

import argparse
import importlib
import os
import re
import subprocess
import sys
import time
import unittest
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from support.ports import free_ports
from support.suites import Ends, Result, check_version, ends_in, last_error

LIMIT_S = 900.0
TIMEOUT_S = 60.0  # of what waits for other processes
# Of the ends that a test has in several processes, the last one counts.
ENDS = ("skipped", "passed", "lost", "failed")
LOST = ("lost", "a process ended before it")
# What fails with a text that docs/jax.md has among the limits.
F16 = "Unsupported primitive type for reduction: f16"
DIFFERENT = {
    "AllGatherTest.test_all_gather_shard_map2": F16,
    "AllReduceTest.test_psum2": F16,
    "ColocatedPythonTestMultiHost.test_simple_function": "a process has several devices",
}


class Verdict(NamedTuple):
    """What the tests have shown: `wrong` and `different` have how tests ended that gloo passes."""

    passed: int
    skipped: int
    wrong: Ends
    different: Ends


def work(mode: str, file: Path, tests: re.Pattern[str], folder: Path) -> None:
    """Run the tests of a file whose names match, as one of the processes."""
    rank, size = (os.environ[name] for name in ("RANK", "WORLD_SIZE"))
    if mode == "rdmatensor":
        import rdmatensor.jax

        rdmatensor.jax.use(timeout=TIMEOUT_S)
    import jax
    from absl import flags
    from jax._src import test_multiprocess  # noqa: F401 - defines flags
    from jax._src.test_util import JaxTestLoader

    jax.config.config_with_absl()
    given = {"num_processes": size, "multiprocess_test_worker_id": rank}
    given["barrier_timeout"] = str(int(2 * TIMEOUT_S))
    flags.FLAGS([file.name, *(f"--{name}={value}" for name, value in given.items())])
    if mode == "rdmatensor":
        jax.distributed.initialize()
    else:
        jax.config.update("jax_cpu_collectives_implementation", mode)
        address = ":".join(os.environ[name] for name in ("MASTER_ADDR", "MASTER_PORT"))
        jax.distributed.initialize(address, int(size), int(rank))
    sys.path.insert(0, str(file.parent))
    found = JaxTestLoader().loadTestsFromModule(importlib.import_module(file.stem))
    chosen = [test for test in cases(found) if tests.fullmatch(name_of(test))]
    with (folder / f"{rank}.json").open("w") as out:
        unittest.TestSuite(chosen).run(Result(out, name_of))


def cases(suite: unittest.TestSuite) -> Iterator[unittest.TestCase]:
    for each in suite:
        if isinstance(each, unittest.TestSuite):
            yield from cases(each)
        else:
            yield each


def name_of(test: unittest.TestCase) -> str:
    """Return the names of class and test, without the parameters."""
    return ".".join(test.id().partition(" ")[0].split(".")[-2:])


def run(mode: str, size: int, file: Path, out: Path, tests: str = ".*") -> Ends:
    """Run the tests of a file whose names match in `size` processes. Return how each ended, and why.

    The name of the file stands for the end of the processes.
    """
    folder = out / f"{mode}-{size}" / file.stem
    folder.mkdir(parents=True, exist_ok=True)
    (port,) = free_ports(1)
    place = {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    command = [sys.executable, "-W", "ignore", "-m", "on_jax.suite", "--mode", mode]
    command += ["--source", str(file), "--out", str(folder), "--tests", tests]
    started = []
    for rank in range(size):
        (folder / f"{rank}.json").write_text("")
        with (folder / f"{rank}.log").open("w") as log:
            both = {"stdout": log, "stderr": subprocess.STDOUT}
            here = os.environ | place | {"RANK": str(rank)}
            started.append(subprocess.Popen(command, env=here, **both))  # type: ignore[call-overload]
    end = time.monotonic() + LIMIT_S
    try:
        for each in started:
            each.wait(max(end - time.monotonic(), 0))
    except subprocess.TimeoutExpired:
        pass  # the tests that have not ended are lost
    finally:
        for each in started:
            each.kill()
            each.wait()
    parts = [ends_in(folder / f"{rank}.json") for rank in range(size)]
    ends = {
        name: max((part.get(name, LOST) for part in parts), key=lambda each: ENDS.index(each[0]))
        for name in set().union(*parts)
    }
    statuses = [each.returncode for each in started]
    ends[file.stem] = (
        "failed" if any(statuses) else "passed",
        f"Error: the processes end with {statuses}",
    )
    return ends


def compare(size: int, file: Path, out: Path, tests: str = ".*") -> Verdict:
    """Run the tests of a file on both."""
    gloo = run("gloo", size, file, out, tests)
    end = gloo.pop(file.stem)
    skipped = sum(how == "skipped" for how, _ in gloo.values())
    wanted = [name for name, (how, _) in gloo.items() if how == "passed"]
    if not wanted:
        return Verdict(0, skipped, {}, {})
    ours = run("rdmatensor", size, file, out, "|".join(map(re.escape, wanted)))
    wrong, different = {}, {}
    for name in wanted:
        ended = ours.get(name, LOST)
        if ended[0] == "passed":
            continue
        if DIFFERENT.get(name, "\0") in ended[1]:
            different[name] = ended
            continue
        alone = run("rdmatensor", size, file, out / "alone" / name, re.escape(name))
        if alone.get(name, LOST)[0] != "passed":
            wrong[name] = alone.get(name, LOST)
    passed = len(wanted) - len(wrong) - len(different)
    if end[0] == "passed" != ours[file.stem][0]:
        wrong[file.stem] = ours[file.stem]
    return Verdict(passed, skipped, wrong, different)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--source", type=Path, required=True, help="a clone of JAX's repository")
    parser.add_argument("--sizes", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--tests", default=".*", help="a regular expression that names match")
    parser.add_argument("--out", type=Path, default=Path("build/jax"))
    parser.add_argument("--mode", help="be a process that --source, a file, is for")
    asked = parser.parse_args()
    if asked.mode:
        work(asked.mode, asked.source, re.compile(asked.tests), asked.out)
        return 0
    try:
        check_version("jax", asked.source / "jax/version.py", r'^_version = "(.*)"', "jax-v")
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    failed = False
    for size in asked.sizes:
        files = sorted((asked.source / "tests/multiprocess").glob("*_test.py"))
        verdicts = [compare(size, file, asked.out, asked.tests) for file in files]
        failed |= report(size, verdicts)
    print(f"logs are in {asked.out}")
    return int(failed)


def report(size: int, verdicts: list[Verdict]) -> bool:
    """Print what the tests have shown. Return whether that is wrong."""
    passed = sum(each.passed for each in verdicts)
    wrong = [item for each in verdicts for item in each.wrong.items()]
    different = [item for each in verdicts for item in each.different.items()]
    print(
        f"{size} processes: of {passed + len(wrong) + len(different)} tests that gloo passes, {passed} pass, "
        f"{len(different)} fail as docs/jax.md says, {len(wrong)} do not; "
        f"gloo skips {sum(each.skipped for each in verdicts)}"
    )
    for name, (how, why) in wrong + different:
        print(f"  {name}: {how}: {last_error(why)}", flush=True)
    return bool(wrong) or not passed


if __name__ == "__main__":
    sys.exit(main())
