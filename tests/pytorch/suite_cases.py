# SPDX-License-Identifier: Apache-2.0
"""Runs tests of torch's own suite for backends, from its wheel, in one mode, and writes how each ended.

The mode is a backend, "gloo" or "rdmatensor", or "disguised": then torch makes our process groups where it
would make gloo's, so that tests run on them that ask for gloo by name. `python -m pytorch.suite` starts it.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
import unittest
from pathlib import Path
from typing import Any

from pytorch import suite_source
from support.suites import Result


def name_of(test: unittest.TestCase) -> str:
    """Return the name of a test, which is the same for all backends."""
    module, _, name = test.id().rpartition(".")
    if "test_c10d" not in module:
        return name
    return re.sub("Gloo|Rdmatensor", "", f"{module.rpartition('.')[2]}.{name}")


def prepare(mode: str, size: int, folder: Path) -> None:
    """Set what torch's tests read when they are imported."""
    for name in ("barrier", "test_dir"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    os.environ.update(
        BACKEND="gloo" if mode == "disguised" else mode,
        WORLD_SIZE=str(size),
        TEMP_DIR=str(folder),
        INIT_METHOD="file://",
        DISTRIBUTED_TESTS_DEFAULT_TIMEOUT="100",
    )


def disguise() -> None:
    """Let torch make our process groups where it would make gloo's."""
    import types

    import torch.distributed.distributed_c10d as c10d

    from rdmatensor.torch import ProcessGroup, profiling

    profiling.PREFIX = "gloo:"

    class ProcessGroupGloo(ProcessGroup):
        def __init__(
            self, store: Any, rank: int, size: int, timeout: Any, enable_reconfigure: bool = False
        ) -> None:
            super().__init__(store, rank, size, timeout)
            self.options = types.SimpleNamespace()

    c10d.ProcessGroupGloo = ProcessGroupGloo


def cases(mode: str, size: int) -> type[unittest.TestCase]:
    """Return the class of torch's tests. Its processes are forked: spawning takes ten times as long."""
    import torch
    import torch.testing._internal.common_distributed as common

    if size > 2:
        # Such tests would want 8 processes; none of them needs more than 3.
        common.skip_if_small_worldsize = lambda function: function
    torch.set_num_threads(1)
    if mode != "gloo":
        import rdmatensor.torch  # noqa: F401 - registers the backend
    for feature in ("plugin", "ddp", "subgroup"):
        common.DistTestCases.backend_feature[feature].add("rdmatensor")
    from torch.testing._internal.distributed import distributed_test as suite

    for known in (suite.PROFILING_SUPPORTED_BACKENDS, suite.SEND_RECV_PROFILING_SUPPORTED_BACKENDS):
        known.append("rdmatensor")
    if mode == "disguised":
        disguise()

    class Cases(suite.TestDistBackend, suite.DistributedTest._DistTestBase):
        def setUp(self) -> None:
            super().setUp()
            self._start_processes(torch.multiprocessing.get_context("fork").Process)

    return Cases


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("mode", choices=["gloo", "rdmatensor", "disguised"])
    parser.add_argument("size", type=int)
    parser.add_argument("out", type=Path)
    parser.add_argument("--source", type=Path)
    parser.add_argument("--tests", type=re.compile, default=re.compile(".*"))
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, asked.out.open("w") as out:
        prepare(asked.mode, asked.size, Path(folder))
        kinds = (
            suite_source.cases(asked.source, asked.mode)
            if asked.source
            else [cases(asked.mode, asked.size)]
        )
        result = Result(out, name_of)
        for kind in kinds:
            tests = map(kind, unittest.defaultTestLoader.getTestCaseNames(kind))
            chosen = [test for test in tests if asked.tests.fullmatch(name_of(test))]
            unittest.TestSuite(chosen).run(result)
        return 0 if result.wasSuccessful() else 1


if __name__ == "__main__":
    sys.exit(main())
