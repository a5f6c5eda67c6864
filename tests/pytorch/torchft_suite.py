# SPDX-License-Identifier: Apache-2.0
"""Runs torchft's own tests, from its wheel, with our process group in the place of gloo's.

`make test SUITE=torch` does. Members of most of them are threads of one process. Afterwards, members change
many times, and nothing may be left of earlier ones.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import unittest
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from pytorch.ranks import Ranks
from pytorch.test_torchft import COUNT, SETUP
from support.peers import LocalNursery

MODULES = (
    "process_group_test",
    "manager_integ_test",
    "local_sgd_integ_test",
    "parameter_server_test",
)
# Of other process groups, of accelerators, and of what needs none.
OTHERS = ("baby", "nccl", "dummy", "wrapper", "managed", "parses", "torchcomms", "cuda")


def tests() -> Iterator[unittest.TestCase]:
    """Yield torchft's tests of gloo, and of the operations that gloo lacks."""
    import torchft.process_group
    from parameterized import parameterized

    from rdmatensor.torch.torchft import ProcessGroup

    torchft.ProcessGroupGloo = torchft.process_group.ProcessGroupGloo = ProcessGroup
    modules = [import_module(f"torchft.{name}") for name in MODULES]
    base: Any = modules[0].MultiPgBaseTest

    class Lacking(base):  # type: ignore[misc]
        WORLD_SIZE = 3

        @parameterized.expand(modules[0].NormalGlooMultiPgTest.SKIP)
        def test_collective(self, collective: str) -> None:
            self._run_parallel(collective)

        @parameterized.expand(modules[0].NormalGlooMultiPgTest.SKIP)
        def test_collective_with_resiliency(self, collective: str) -> None:
            self._run_with_resiliency(collective)

    suites = [unittest.defaultTestLoader.loadTestsFromModule(each) for each in modules]
    suites.append(unittest.defaultTestLoader.loadTestsFromTestCase(Lacking))
    for each in _cases(suites):
        if not any(word in each.id().lower() for word in OTHERS):
            yield each


def _cases(of: Any) -> Iterator[unittest.TestCase]:
    for each in of:
        if isinstance(each, unittest.TestCase):
            yield each
        else:
            yield from _cases(each)


def widen_patterns() -> None:
    """Let tests that list the errors of gloo and nccl take ours too, which name the member or the rank."""
    known = unittest.TestCase.assertRaisesRegex
    ours = r"rdmatensor: .*(member|rank) \d"

    def assert_raises_regex(self: Any, kind: Any, pattern: str, *more: Any) -> Any:
        return known(self, kind, f"(?:{pattern})|{ours}", *more)

    unittest.TestCase.assertRaisesRegex = assert_raises_regex  # type: ignore[assignment, method-assign]


def change_members(times: int) -> None:
    """Configure the process group of two processes so often. Raises AssertionError if something is left."""
    nursery = LocalNursery(modules=["torchft.coordination", "rdmatensor.torch.torchft"])
    with tempfile.TemporaryDirectory() as folder:
        pair = Ranks(nursery, 2, Path(folder) / "store", joins=False, environment=dict(os.environ))
        pair[0].run("store = dist.TCPStore('127.0.0.1', 0, is_master=True, wait_for_workers=False)")
        pair.run("pass", port=pair[0].get("store.port"))
        pair.run(SETUP)
        pair.run("import resource\nfor n in range(100): member(f'before {n}', rank, 2); total()")
        pair.run(f"{COUNT}; most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss")
        for start in range(0, times, 50):  # a peer has to answer now and then
            source = "for n in range(50): member(f'{start + n}', (rank + n) % 2, 2); total()"
            pair.run(source, start=start)
        pair.run(
            "after = usage(); grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - most"
        )
        before, after, grown = pair.get("before"), pair.get("after"), pair.get("grown")
        print(
            f"members changed {times} times: {before} before, {after} after, {grown} KiB more memory"
        )
        assert before == after and max(grown) < 4096
        pair.close()
    nursery.close()


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--changes", type=int, default=1000)
    asked = parser.parse_args()
    os.environ.setdefault("RES_OPTIONS", "timeout:1 attempts:1")
    change_members(asked.changes)
    widen_patterns()
    result = unittest.TextTestRunner(verbosity=1).run(unittest.TestSuite(tests()))
    sys.stdout.flush()
    sys.stderr.flush()
    # torchft's threads would keep the process.
    os._exit(0 if result.wasSuccessful() and result.testsRun else 1)


if __name__ == "__main__":
    main()
