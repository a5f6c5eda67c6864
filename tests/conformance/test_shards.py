# SPDX-License-Identifier: Apache-2.0
"""Each test of a file has its result, also where a test ends the process or keeps it from ending."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from conformance.shards import Limits, Side, Work, run
from conformance.sources import Preparation, Sources, parse

STOCK = Side("grpc", "grpc")
EVERY_END = """
import os, signal, threading, time, unittest

class Ends(unittest.TestCase):
    def test_a_pass(self):
        pass

    def test_b_fail(self):
        self.assertEqual(1, 2)

    def test_c_crash(self):
        os.kill(os.getpid(), signal.SIGSEGV)

    def test_d_hang(self):
        os.fork()  # a process that the test leaves behind
        threading.Event().wait()

    @unittest.skip("not today")
    def test_e_skip(self):
        pass

    @unittest.expectedFailure
    def test_f_pass(self):
        self.fail()

    def test_g_subtests(self):
        for number in range(3):
            with self.subTest(number):
                self.assertNotEqual(number, 1)

if __name__ == "__main__":
    unittest.main()
"""


def work(tmp_path: Path, path: str) -> Work:
    (file,) = parse(path)
    program = Preparation(Sources(tmp_path / "source"), None, tmp_path).prepare(file)
    return Work(program, tmp_path)


def test_every_test_has_its_result(tmp_path: Path, sources: Callable[..., str]) -> None:
    part = work(tmp_path, sources("ends_test", EVERY_END))
    results, _ = run(part, STOCK, Limits(test=5, shard=100, native=True))
    assert {name: result["status"] for name, result in results.items()} == {
        "Ends.test_a_pass": "pass",
        "Ends.test_b_fail": "fail",
        "Ends.test_c_crash": "crash",
        "Ends.test_d_hang": "timeout",
        "Ends.test_e_skip": "skip",
        "Ends.test_f_pass": "pass",
        "Ends.test_g_subtests": "fail",
        "(exit)": "pass",
    }
    assert results["Ends.test_b_fail"]["text"] == "AssertionError: 1 != 2"
    assert results["Ends.test_c_crash"]["text"] == "signal 11"
    assert results["Ends.test_e_skip"]["text"] == "not today"
    log = (part.folder(STOCK) / "log").read_text()
    both = 2  # the test and the process that it leaves behind
    assert log.count("in test_d_hang") == log.count("=== native stacks") == both


@pytest.mark.long
def test_an_end_that_hangs_or_fails_is_seen(tmp_path: Path, sources: Callable[..., str]) -> None:
    text = """
import atexit, os, threading, unittest

class Passes(unittest.TestCase):
    def test_pass(self):
        pass

if __name__ == "__main__":
    atexit.register(END)
    unittest.main()
"""
    ends = {"threading.Event().wait": "timeout", "lambda: os._exit(7)": "fail", "os.abort": "crash"}
    for number, (end, status) in enumerate(ends.items()):
        part = work(tmp_path, sources(f"end{number}_test", text.replace("END", end)))
        results, _ = run(part, STOCK, Limits(test=5, shard=100))
        assert results["Passes.test_pass"]["status"] == "pass"
        assert results["(exit)"]["status"] == status


def test_a_file_that_cannot_be_imported_ends(tmp_path: Path, sources: Callable[..., str]) -> None:
    part = work(tmp_path, sources("broken_test", "import no_such_module\n"))
    results, _ = run(part, STOCK, Limits(test=5, shard=100))
    assert list(results) == ["(between tests)"]
    assert results["(between tests)"]["status"] == "crash"
    assert "no_such_module" in (part.folder(STOCK) / "log").read_text()
