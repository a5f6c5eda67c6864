# SPDX-License-Identifier: Apache-2.0
"""Which results count as differences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pytest

from conformance import counts
from conformance.compare import judge
from conformance.shards import Result, Status

P: Final = "pass"
S: Final = "skip"
F: Final = "fail"
T: Final = "timeout"
C: Final = "crash"


def runs(*statuses: Status, seconds: float = 1.0) -> list[Result]:
    return [{"status": status, "seconds": seconds, "text": "", "shard": 0} for status in statuses]


@pytest.mark.parametrize(
    ("stock", "other", "kind"),
    [
        ((P,), (P,), None),
        ((S,), (S,), None),
        ((F,), (T,), None),
        ((P,), (F, F), "bad"),
        ((P, P), (C, P), "bad"),
        ((P, F), (T, T), "bad"),
        ((P, F), (T, P), "flaky"),
        ((F, F), (T, P), "flaky"),
        ((F,), (P,), "stock"),
        ((P,), (S,), "skipped"),
        ((P,), (), "missing"),
        ((), (P,), "missing"),
    ],
)
def test_runs_are_judged(stock: Any, other: Any, kind: str | None) -> None:
    assert judge("Class.test", runs(*stock), runs(*other)) == kind


def test_the_end_of_a_process_is_no_test_that_could_be_missing() -> None:
    assert judge("(exit of shard 0)", runs(P), []) is None
    assert judge("(exit of shard 0)", [], runs(T)) == "bad"


def test_much_slower_is_noted() -> None:
    assert judge("Class.test", runs(P), runs(P, seconds=9)) == "slower"
    assert judge("Class.test", runs(P), runs(P, P, seconds=2)) is None


@pytest.mark.parametrize(
    ("plugin", "path", "expected", "word"),
    [
        ({"static tensors": 2, "rpc tensors": 5}, "", True, ""),
        ({"collectives": 1}, "", True, ""),
        ({"collectives": 1}, "bounce", True, ""),
        ({"servers": 1}, "", True, "no tensor"),
        ({"servers": 1}, "", False, ""),
        ({"rpc tensors": 5, "by rpc: string": 5}, "", False, ""),
        ({"rpc tensors": 5, "by rpc: string": 3, "by rpc: no peer": 2}, "", False, "all 2"),
        ({"inline tensors": 1}, "bounce", False, "bounce"),
        ({"inline tensors": 1, "bounce tensors": 1}, "bounce", False, ""),
    ],
)
def test_results_without_our_tensors_are_doubted(
    plugin: dict[str, int], path: str, expected: bool, word: str
) -> None:
    doubt = counts.doubt(plugin, path, expected)
    assert word in doubt and bool(word) == bool(doubt)


UNEQUAL = """
import os, pathlib, unittest

RDMA = os.environ["CONFORMANCE_PROTOCOL"] == "grpc+rdma"

class Unequal(unittest.TestCase):
    def test_same(self):
        pass

    def test_bad(self):
        self.assertFalse(RDMA, "on purpose")

    def test_bad_once(self):
        marker = pathlib.Path(os.environ["CONFORMANCE_OVERLAY"] + "-marker")
        if RDMA and not marker.exists():
            marker.touch()
            os.abort()

    @unittest.skipIf(RDMA, "on purpose")
    def test_skipped(self):
        pass

    def test_worse_over_grpc(self):
        self.assertTrue(RDMA)

    def test_bad_on_both(self):
        self.fail()

    if not RDMA:
        def test_missing(self):
            pass

if __name__ == "__main__":
    unittest.main()
"""


def test_every_difference_is_found_and_fails_the_run(
    sources: Callable[..., str], conformance: Callable[..., Any]
) -> None:
    path = sources("unequal_test", UNEQUAL)
    done = conformance(path, "--confirm", "1")
    assert done.status == 1, done.said
    report = done.results["made_up.unequal_test"]
    found = {verdict["test"]: verdict["verdict"] for verdict in report["verdicts"]}
    assert found == {
        "Unequal.test_bad": "bad",
        "Unequal.test_bad_once": "bad",
        "Unequal.test_skipped": "skipped",
        "Unequal.test_worse_over_grpc": "stock",
        "Unequal.test_missing": "missing",
    }
    again = report["again"]["grpc+rdma"]
    assert [run["status"] for run in again["Unequal.test_bad"]] == [F]
    # Once alone, and once among the others.
    assert [run["status"] for run in again["Unequal.test_bad_once"]] == [P, P]
    assert "AssertionError: True is not false : on purpose" in done.said
    assert "4 differences" in done.said


def test_equal_results_are_no_failure(
    sources: Callable[..., str], conformance: Callable[..., Any]
) -> None:
    text = UNEQUAL.replace('"grpc+rdma"', '"neither"')
    done = conformance(sources("equal_test", text))
    assert done.status == 0, done.said
    assert done.results["made_up.equal_test"]["verdicts"] == []


def test_a_file_without_a_test_that_passes_is_an_error(
    sources: Callable[..., str], conformance: Callable[..., Any]
) -> None:
    done = conformance(sources("broken_test", "import no_such_module\n"))
    assert done.status == 1 and "no test of the file passed" in done.said


def test_what_was_not_run_in_time_is_an_error(
    sources: Callable[..., str], conformance: Callable[..., Any]
) -> None:
    done = conformance(sources("equal_test", UNEQUAL), "--total-seconds", "0")
    assert done.status == 1 and "1 shards were not run in time" in done.said


def test_a_path_that_does_not_exist_is_said(
    sources: Callable[..., str], conformance: Callable[..., Any]
) -> None:
    done = conformance("tensorflow/no_such_test.py")
    assert done.status == 2 and "has no tensorflow/no_such_test.py" in done.said
