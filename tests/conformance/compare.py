# SPDX-License-Identifier: Apache-2.0
"""Compares how each test went over stock grpc and over another side, and says so as a table and in words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from conformance import counts
from conformance.shards import BAD, Result, Results, Side

STOCK = "grpc"
SLOWER = 3.0  # times
SLOWER_BY = 2.0  # seconds

Kind = Literal["bad", "missing", "skipped", "flaky", "stock", "slower"]
MEANING: dict[Kind, str] = {
    "bad": "bad over grpc+rdma, good over grpc",
    "missing": "ran on one side only",
    "skipped": "skipped on one side only",
    "flaky": "sometimes bad on both sides",
    "stock": "bad over grpc, good over grpc+rdma",
    "slower": "passes, but takes much longer over grpc+rdma",
}
DIFFERENCES: frozenset[Kind] = frozenset({"bad", "missing", "skipped"})


@dataclass
class SideReport:
    """What one side did with a file."""

    tests: Results = field(default_factory=dict)
    seconds: float = 0.0
    plugin: dict[str, int] = field(default_factory=dict)
    shards_left: int = 0
    """Shards that were not begun, for want of time."""


@dataclass
class FileReport:
    """What all sides did with a file."""

    path: str
    sides: dict[str, SideReport] = field(default_factory=dict)
    again: dict[str, dict[str, list[Result]]] = field(default_factory=dict)
    """By side and test: how it went when it was run again."""
    errors: list[str] = field(default_factory=list)
    """Why the results are worth nothing."""

    def runs(self, side: str, test: str) -> list[Result]:
        """All runs of a test, the first of them first."""
        first = self.sides[side].tests.get(test)
        return [*([first] if first else []), *self.again.get(side, {}).get(test, [])]

    def as_json(self, others: Sequence[str]) -> dict[str, Any]:
        """With the verdicts on the sides `others`."""
        found = [
            {"side": side, "test": test, "verdict": kind}
            for side in others
            for test, kind in verdicts(self, side)
        ]
        return asdict(self) | {"verdicts": found}


def is_bad(result: Result) -> bool:
    return result["status"] in BAD


def is_test(name: str) -> bool:
    """False for what happens between tests, as the end of a process, whose name is in brackets."""
    return not name.startswith("(")


def judge(name: str, stock: Sequence[Result], other: Sequence[Result]) -> Kind | None:
    """What is different in the runs of a test, None if nothing is."""
    if not stock or not other:
        present = [*stock, *other]
        if not is_test(name):
            return "bad" if any(map(is_bad, other)) else None
        return "missing" if present else None
    bad, other_bad = any(map(is_bad, stock)), any(map(is_bad, other))
    if bad and other_bad:
        # One that never works on this side and does on the other is not merely unsteady.
        steady = all(map(is_bad, other)) and not all(map(is_bad, stock))
        mixed = not all(map(is_bad, other)) or not all(map(is_bad, stock))
        return "bad" if steady else "flaky" if mixed else None
    if other_bad:
        return "bad"
    if bad:
        return "stock"
    if (stock[0]["status"] == "skip") != (other[0]["status"] == "skip"):
        return "skipped"
    before, after = (min(run["seconds"] for run in runs) for runs in (stock, other))
    slower = after > SLOWER * before and after - before > SLOWER_BY
    return "slower" if slower else None


def verdicts(report: FileReport, side: str) -> Iterator[tuple[str, Kind]]:
    """The tests that differ between stock grpc and `side`."""
    if STOCK not in report.sides or side not in report.sides:
        return
    for test in {**report.sides[STOCK].tests, **report.sides[side].tests}:
        kind = judge(test, report.runs(STOCK, test), report.runs(side, test))
        if kind is not None:
            yield test, kind


def check(report: FileReport, sides: Iterable[Side], expected: bool) -> None:
    """Fills in report.errors."""
    for side in sides:
        mine = report.sides.get(side.name, SideReport())
        if mine.shards_left:
            report.errors.append(f"{side.name}: {mine.shards_left} shards were not run in time")
        elif not any(is_test(test) and not is_bad(result) for test, result in mine.tests.items()):
            report.errors.append(f"{side.name}: no test of the file passed")
        elif side.name != STOCK and (why := counts.doubt(mine.plugin, side.path, expected)):
            report.errors.append(f"{side.name}: {why}")


def failures(reports: Iterable[FileReport], others: Sequence[Side]) -> int:
    """How many differences and errors there are."""
    return sum(
        len(report.errors)
        + sum(kind in DIFFERENCES for side in others for _, kind in verdicts(report, side.name))
        for report in reports
    )


def table(reports: Iterable[FileReport], sides: Sequence[Side]) -> Iterator[str]:
    """A line for each file and side."""
    columns = "{:<50} {:<18} {:>6} {:>6} {:>5} {:>5} {:>8}  {}".format
    yield columns("file", "side", "tests", "pass", "bad", "skip", "seconds", "tensors")
    for report in reports:
        title = report.path.removeprefix("tensorflow/python/")
        for side in (side for side in sides if side.name in report.sides):
            mine = report.sides[side.name]
            tests = [result for name, result in mine.tests.items() if is_test(name)]
            bad = sum(map(is_bad, mine.tests.values()))
            good, skipped = (sum(r["status"] == s for r in tests) for s in ("pass", "skip"))
            moved = counts.sent(mine.plugin) | {
                name: mine.plugin[f"{name}"] for name in ("collectives",) if name in mine.plugin
            }
            if "rpc tensors" in mine.plugin:
                moved["rpc"] = mine.plugin["rpc tensors"]
            said = ", ".join(f"{name} {count}" for name, count in moved.items())
            yield columns(
                title, side.name, len(tests), good, bad, skipped, round(mine.seconds), said
            )
            title = ""


def details(report: FileReport, side: str) -> Iterator[str]:
    """How each test that differs went on both sides, each time."""
    for test, kind in verdicts(report, side):
        mark = "DIFFERENCE" if kind in DIFFERENCES else "note"
        yield f"{mark}: {report.path} {test}: {MEANING[kind]}"
        for name in (STOCK, side):
            runs = report.runs(name, test)
            yield f"    {name:<18} " + (
                ", ".join(f"{run['status']} {run['seconds']:.1f} s" for run in runs)
                or "did not run"
            )
            errors = [run["text"].strip().splitlines() for run in runs if is_bad(run)]
            for error in dict.fromkeys(lines[0][:300] for lines in errors if lines):
                yield f"        {error}"
