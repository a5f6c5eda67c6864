# SPDX-License-Identifier: Apache-2.0
"""What runs of other projects' own suites share."""

from __future__ import annotations

import json
import re
import unittest
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any, TextIO

# How each test ended, "passed", "failed", "skipped" or "lost", and why.
Ends = dict[str, tuple[str, str]]


class Result(unittest.TestResult):
    """Writes a line of JSON for each test that has ended."""

    def __init__(self, out: TextIO, name_of: Callable[[unittest.TestCase], str]) -> None:
        super().__init__()
        self._out = out
        self._name_of = name_of

    def _say(self, test: unittest.TestCase, how: str, why: str = "") -> None:
        line = {"test": self._name_of(test), "how": how, "why": why[-4000:]}
        self._out.write(json.dumps(line) + "\n")
        self._out.flush()

    def addSuccess(self, test: unittest.TestCase) -> None:  # noqa: N802
        super().addSuccess(test)
        self._say(test, "passed")

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:  # noqa: N802
        super().addSkip(test, reason)
        self._say(test, "skipped", reason)

    def addFailure(self, test: unittest.TestCase, err: Any) -> None:  # noqa: N802
        super().addFailure(test, err)
        self._say(test, "failed", self.failures[-1][1])

    def addError(self, test: unittest.TestCase, err: Any) -> None:  # noqa: N802
        super().addError(test, err)
        self._say(test, "failed", self.errors[-1][1])


def ends_in(file: Path) -> Ends:
    """Return what a Result has written."""
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    return {each["test"]: (each["how"], each["why"]) for each in lines}


def last_error(text: str) -> str:
    """Return the line of a report that names the error."""
    lines = [
        line
        for line in text.splitlines()
        if re.match(r"[\w.]*(Error|Exception|Unsupported)\b", line)
    ]
    return (lines or text.strip().splitlines())[-1]


def check_version(
    name: str, file: Path, pattern: str, tag: str, installed: str = "", more: str = ""
) -> None:
    """Raise ValueError unless the tests are those of the version that is installed of a project.

    `pattern` finds theirs in `file`, which is in a clone of the project's repository. Its tags of versions
    begin with `tag`. `more` is a remedy, besides another revision, to which their version is added.
    """
    found = re.search(pattern, file.read_text(), re.MULTILINE) if file.is_file() else None
    if found is None:
        raise ValueError(
            f"no clone of {name}'s repository has a version in {file}, so this is none"
        )
    theirs, ours = found[1], installed or version(name)
    if theirs.split(".")[:2] != ours.split(".")[:2]:
        raise ValueError(
            f"{file} says that the tests are those of {name} {theirs}, and {name} {ours} is installed: "
            f"check out {tag}{ours.partition('+')[0]} there{more and more + theirs}"
        )
